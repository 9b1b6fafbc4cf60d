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
{# The epilogue of one element: `sum` at index `i`, in column `n`. #}
{% macro finish(sum, i, n) %}
{
    var value = {{ sum }}{{ " + bias[" ~ n ~ "]" if bias }}{{ " + f32(c[" ~ i ~ "])" if accumulate }};
    {% if epilogue == "multiply" %}
    value *= f32(factors[{{ i }}]);
    {% endif %}
    {% if epilogue == "gelu" %}
    c[{{ i }}] = {{ T_out }}(gelu_derivative(vec4<f32>(value)).x);
    activated[{{ i }}] = {{ T_out }}(gelu(vec4<f32>(value)).x);
    {% elif epilogue == "gelu_only" %}
    c[{{ i }}] = {{ T_out }}(gelu(vec4<f32>(value)).x);
    {% else %}
    c[{{ i }}] = {{ T_out }}(value);
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
