{# The epilogue of the GEMM kernels (src/ops/matmul/mod.rs). #}

{# Bounds check of a partial tile: row r and columns j of a group must lie within C. #}
{% macro inside(r, j) %}
{% if edge_m and edge_n %}
if (m{{ r }} < params.m && n{{ j }} < params.n)
{% elif edge_m %}
if (m{{ r }} < params.m)
{% elif edge_n %}
if (n{{ j }} < params.n)
{% endif %}
{% endmacro %}
{# The epilogue of one element, or of a vector of four: `sum` at index `i`, in column `n`, both counted in such. #}
{% macro finish(sum, i, n, vector=1) %}
{% set T = "vec4<f32>" if vector == 4 else "f32" %}
{% set out = "vec4<" ~ T_out ~ ">" if vector == 4 else T_out %}
{% set first = "" if vector == 4 else ".x" %}
{
    {% if bias and vector == 4 %}
    let column = {{ n }} * 4u;
    let shift = vec4<f32>(bias[column], bias[column + 1u], bias[column + 2u], bias[column + 3u]);
    {% elif bias %}
    let shift = bias[{{ n }}];
    {% endif %}
    var value = {{ sum }}{{ " + shift" if bias }}{{ " + " ~ T ~ "(c[" ~ i ~ "])" if accumulate }};
    {% if epilogue == "multiply" %}
    value *= {{ T }}(factors[{{ i }}]);
    {% endif %}
    {% if epilogue == "gelu" %}
    c[{{ i }}] = {{ out }}(gelu_derivative(vec4<f32>(value)){{ first }});
    activated[{{ i }}] = {{ out }}(gelu(vec4<f32>(value)){{ first }});
    {% elif epilogue == "gelu_only" %}
    c[{{ i }}] = {{ out }}(gelu(vec4<f32>(value)){{ first }});
    {% else %}
    c[{{ i }}] = {{ out }}(value);
    {% endif %}
}
{% endmacro %}

{# Writes the column sums of B, four columns a thread, from the `lanes` partial sums in `staged`. #}
{% macro finish_sums(staged, lanes) %}
    if (tile_row == 0u && thread < {{ BN // 4 }}u) {
        var total = {{ staged }}[thread];
        {% for lane in range(1, lanes) %}
        total += {{ staged }}[thread + {{ lane * BN // 4 }}u];
        {% endfor %}
        let n = tile_col + thread * 4u;
        {% for e in range(4) %}
        {{ "if (n + " ~ e ~ "u < params.n) " if edge_n }}{
            let i = split * params.n + n + {{ e }}u;
            sums[i] = total[{{ e }}]{{ " + sums[i]" if accumulate }};
        }
        {% endfor %}
    }
{% endmacro %}
