{# What the kernels of a matrix product share: src/ops/matmul.rs. #}

{# The sizes of a product, and how it is shared out. #}
{% macro product_params() %}
struct Params {
    m: u32, n: u32, k: u32,
    // Elements from one matrix of the batch to the next; 0 shares one.
    stride_a: u32, stride_b: u32, stride_c: u32,
    tiles_m: u32, tiles_n: u32,
    // This many consecutive workgroups share a tile and split k between them in pieces of `k_piece`.
    splits: u32, k_piece: u32, batches: u32,
}
var<immediate> p: Params;
{% endmacro %}

{# The bindings after the operands: what the epilogue reads, the result, and what the epilogue writes. #}
{% macro more_bindings(first, type) %}
{% set reads = first + (1 if bias else 0) %}
{% set writes = reads + (1 if epilogue == "multiply" else 0) %}
{% if bias %}
@group(0) @binding({{ first }}) var<storage, read> bias: array<f32>;
{% endif %}
{% if epilogue == "multiply" %}
@group(0) @binding({{ reads }}) var<storage, read> factors: array<{{ type }}>;
{% endif %}
@group(0) @binding({{ writes }}) var<storage, read_write> c: array<{{ type }}>;
{% if epilogue == "gelu" %}
@group(0) @binding({{ writes + 1 }}) var<storage, read_write> activated: array<{{ type }}>;
{% elif sums %}
@group(0) @binding({{ writes + 1 }}) var<storage, read_write> sums: array<f32>;
{% endif %}
{% endmacro %}

{# Where a tile overhangs, row r and columns j of a group must lie within C. #}
{% macro inside(r, j) %}
{% if edge_m and edge_n %}
if (m{{ r }} < p.m && n{{ j }} < p.n)
{% elif edge_m %}
if (m{{ r }} < p.m)
{% elif edge_n %}
if (n{{ j }} < p.n)
{% endif %}
{% endmacro %}
{# The end of one element: `sum` at `i`, in column `n`. #}
{% macro finish(sum, i, n) %}
{
    var value = {{ sum }}{{ " + bias[" ~ n ~ "]" if bias }}{{ " + f32(c[" ~ i ~ "])" if accumulate }};
    {% if epilogue == "multiply" %}
    value *= f32(factors[{{ i }}]);
    {% endif %}
    {% if epilogue == "gelu" %}
    c[{{ i }}] = {{ T_out }}(gelu_derivative(vec4<f32>(value)).x);
    activated[{{ i }}] = {{ T_out }}(gelu(vec4<f32>(value)).x);
    {% else %}
    c[{{ i }}] = {{ T_out }}(value);
    {% endif %}
}
{% endmacro %}

{# Writes the sums of four of B's columns from the staged ones of `lanes` threads, which have each added up some rows. #}
{% macro finish_sums(staged, lanes) %}
    if (tile_row == 0u && thread < {{ BN // 4 }}u) {
        var total = {{ staged }}[thread];
        {% for lane in range(1, lanes) %}
        total += {{ staged }}[thread + {{ lane * BN // 4 }}u];
        {% endfor %}
        let n = tile_col + thread * 4u;
        {% for e in range(4) %}
        {{ "if (n + " ~ e ~ "u < p.n) " if edge_n }}{
            let i = split * p.n + n + {{ e }}u;
            sums[i] = total[{{ e }}]{{ " + sums[i]" if accumulate }};
        }
        {% endfor %}
    }
{% endmacro %}
