// GEMM with fused multiply-adds: C = op(A) op(B) [+ C] [+ bias]. The epilogue may write gelu(C) to a second output and
// GELU's derivative to C, multiply C by another matrix, or sum the columns of B.
//
// A workgroup of (BM/TM) x (BN/TN) threads computes a BM x BN tile of C; each thread a TM x TN block of it, in
// registers. The k loop stages a BM x BK tile of A and a BK x BN tile of B in workgroup memory, both k-major, and
// prefetches the next tiles into registers. A thread's rows and columns are groups of four, BM/(TM/4) and BN/(TN/4)
// apart, so that neighbouring threads read neighbouring vectors. Bounds checks are rendered only for partial tiles
// (edge_m, edge_n, edge_k). The loop over a tile's k is unrolled. Operands are {{ T_in }}, the result is {{ T_out }},
// the arithmetic is f32.
{{ interface }}
{% include "matmul_epilogue" %}

{% set threads_n = BN // TN %}
{% set threads = (BM // TM) * threads_n %}
{% set row_groups = TM // 4 %}
{% set col_groups = TN // 4 %}
{% set group_rows = BM // row_groups %}
{% set group_cols = BN // col_groups %}
{# One vector of padding spreads the transposing writes over the banks. #}
{% set stride_a = BM // 4 + 1 %}
{% set stride_b = BN // 4 + 1 %}
{% set loads_a = BM * BK // 4 // threads %}
{% set loads_b = BN * BK // 4 // threads %}

var<workgroup> tile_a: array<vec4<f32>, {{ BK * stride_a }}>; // [k][m/4]
var<workgroup> tile_b: array<vec4<f32>, {{ BK * stride_b }}>; // [k][n/4]

// Loads four consecutive elements of A: along k, or along m if A is stored (K, M). Zero out of bounds.
fn load_a(base: u32, m: u32, k: u32, k_end: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    {% if trans_a %}
    {{ "if (k < k_end) " if edge_k }}{
        let i = base + k * params.m + m;
        {% if vec_a %}
        {{ "if (m < params.m) " if edge_m }}{ v = vec4<f32>(a[i / 4u]); }
        {% else %}
        if (m < params.m) { v.x = f32(a[i]); }
        if (m + 1u < params.m) { v.y = f32(a[i + 1u]); }
        if (m + 2u < params.m) { v.z = f32(a[i + 2u]); }
        if (m + 3u < params.m) { v.w = f32(a[i + 3u]); }
        {% endif %}
    }
    {% else %}
    {{ "if (m < params.m) " if edge_m }}{
        let i = base + m * params.k + k;
        {% if vec_a %}
        {{ "if (k < k_end) " if edge_k }}{ v = vec4<f32>(a[i / 4u]); }
        {% else %}
        if (k < k_end) { v.x = f32(a[i]); }
        if (k + 1u < k_end) { v.y = f32(a[i + 1u]); }
        if (k + 2u < k_end) { v.z = f32(a[i + 2u]); }
        if (k + 3u < k_end) { v.w = f32(a[i + 3u]); }
        {% endif %}
    }
    {% endif %}
    return v;
}

// Loads four consecutive elements of B: along n, or along k if B is stored (N, K). Zero out of bounds.
fn load_b(base: u32, n: u32, k: u32, k_end: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    {% if trans_b %}
    {{ "if (n < params.n) " if edge_n }}{
        let i = base + n * params.k + k;
        {% if vec_b %}
        {{ "if (k < k_end) " if edge_k }}{ v = vec4<f32>(b[i / 4u]); }
        {% else %}
        if (k < k_end) { v.x = f32(b[i]); }
        if (k + 1u < k_end) { v.y = f32(b[i + 1u]); }
        if (k + 2u < k_end) { v.z = f32(b[i + 2u]); }
        if (k + 3u < k_end) { v.w = f32(b[i + 3u]); }
        {% endif %}
    }
    {% else %}
    {{ "if (k < k_end) " if edge_k }}{
        let i = base + k * params.n + n;
        {% if vec_b %}
        {{ "if (n < params.n) " if edge_n }}{ v = vec4<f32>(b[i / 4u]); }
        {% else %}
        if (n < params.n) { v.x = f32(b[i]); }
        if (n + 1u < params.n) { v.y = f32(b[i + 1u]); }
        if (n + 2u < params.n) { v.z = f32(b[i + 2u]); }
        if (n + 3u < params.n) { v.w = f32(b[i + 3u]); }
        {% endif %}
    }
    {% endif %}
    return v;
}

{{ entry(threads) }}
    let split = workgroup % params.splits;
    let tile = workgroup / params.splits;
    let tile_n = tile % params.tiles_n;
    let tile_m = (tile / params.tiles_n) % params.tiles_m;
    let batch = tile / (params.tiles_n * params.tiles_m);
    // The grid is rounded up; all threads of a surplus workgroup return together.
    if (batch >= params.batches) { return; }
    let base_a = batch * params.stride_a;
    let base_b = batch * params.stride_b;
    let tile_row = tile_m * {{ BM }}u;
    let tile_col = tile_n * {{ BN }}u;
    let k_begin = split * params.k_slice;
    let k_end = min(params.k, k_begin + params.k_slice);
    // 32 consecutive threads compute 4 x 8 blocks: they read 4 vectors of A and 8 of B, fewer than a row of blocks
    // would.
    let block = thread / 32u;
    let thread_m = block / {{ threads_n // 8 }}u * 4u + thread % 32u / 8u;
    let thread_n = block % {{ threads_n // 8 }}u * 8u + thread % 8u;

    {% for i in range(TM) %}
    {% for j in range(col_groups) %}
    var c{{ i }}_{{ j }} = vec4<f32>(0.0);
    {% endfor %}
    {% endfor %}

    {# The vector that load number x reads: its offset along m or n, and along k. #}
    {% if trans_a %}
    {% set a_m = "(x % " ~ (BM // 4) ~ "u) * 4u" %}{% set a_k = "x / " ~ (BM // 4) ~ "u" %}
    {% else %}
    {% set a_m = "x / " ~ (BK // 4) ~ "u" %}{% set a_k = "(x % " ~ (BK // 4) ~ "u) * 4u" %}
    {% endif %}
    {% if trans_b %}
    {% set b_n = "x / " ~ (BK // 4) ~ "u" %}{% set b_k = "(x % " ~ (BK // 4) ~ "u) * 4u" %}
    {% else %}
    {% set b_n = "(x % " ~ (BN // 4) ~ "u) * 4u" %}{% set b_k = "x / " ~ (BN // 4) ~ "u" %}
    {% endif %}

    {% for l in range(loads_a) %}
    var next_a{{ l }}: vec4<f32>;
    {
        let x = thread + {{ l * threads }}u;
        next_a{{ l }} = load_a(base_a, tile_row + {{ a_m }}, k_begin + {{ a_k }}, k_end);
    }
    {% endfor %}
    {% for l in range(loads_b) %}
    var next_b{{ l }}: vec4<f32>;
    {
        let x = thread + {{ l * threads }}u;
        next_b{{ l }} = load_b(base_b, tile_col + {{ b_n }}, k_begin + {{ b_k }}, k_end);
    }
    {% endfor %}

    {% if sums %}
    {# Every tile keeps eight partial sums, each of every eighth row of B, so that all tiles give the same bits. #}
    {% set lanes_b = threads // (BN // 4) %}
    {% set sums_each = 8 // lanes_b %}
    {% for s in range(sums_each) %}
    var sum{{ s }} = vec4<f32>(0.0);
    {% endfor %}
    {% endif %}
    for (var k0 = k_begin; k0 < k_end; k0 += {{ BK }}u) {
        {% if sums %}
        if (tile_row == 0u) {
            {% for l in range(loads_b) %}
            sum{{ l % sums_each }} += next_b{{ l }};
            {% endfor %}
        }
        {% endif %}
        workgroupBarrier();
        {% for l in range(loads_a) %}
        {
            let x = thread + {{ l * threads }}u;
            let m = {{ a_m }};
            let k = {{ a_k }};
            {% if trans_a %}
            tile_a[k * {{ stride_a }}u + m / 4u] = next_a{{ l }};
            {% else %}
            {% for e in range(4) %}
            tile_a[(k + {{ e }}u) * {{ stride_a }}u + m / 4u][m % 4u] = next_a{{ l }}[{{ e }}];
            {% endfor %}
            {% endif %}
        }
        {% endfor %}
        {% for l in range(loads_b) %}
        {
            let x = thread + {{ l * threads }}u;
            let n = {{ b_n }};
            let k = {{ b_k }};
            {% if trans_b %}
            {% for e in range(4) %}
            tile_b[(k + {{ e }}u) * {{ stride_b }}u + n / 4u][n % 4u] = next_b{{ l }}[{{ e }}];
            {% endfor %}
            {% else %}
            tile_b[k * {{ stride_b }}u + n / 4u] = next_b{{ l }};
            {% endif %}
        }
        {% endfor %}
        workgroupBarrier();
        let k1 = k0 + {{ BK }}u;
        if (k1 < k_end) {
            {% for l in range(loads_a) %}
            {
                let x = thread + {{ l * threads }}u;
                next_a{{ l }} = load_a(base_a, tile_row + {{ a_m }}, k1 + {{ a_k }}, k_end);
            }
            {% endfor %}
            {% for l in range(loads_b) %}
            {
                let x = thread + {{ l * threads }}u;
                next_b{{ l }} = load_b(base_b, tile_col + {{ b_n }}, k1 + {{ b_k }}, k_end);
            }
            {% endfor %}
        }
        {% for k in range(BK) %}
        {
            {% for g in range(row_groups) %}
            let a{{ g }} = tile_a[{{ k * stride_a + g * group_rows // 4 }}u + thread_m];
            {% endfor %}
            {% for g in range(col_groups) %}
            let b{{ g }} = tile_b[{{ k * stride_b + g * group_cols // 4 }}u + thread_n];
            {% endfor %}
            {% for i in range(TM) %}
            {% for j in range(col_groups) %}
            c{{ i }}_{{ j }} = fma(vec4<f32>(a{{ i // 4 }}[{{ i % 4 }}]), b{{ j }}, c{{ i }}_{{ j }});
            {% endfor %}
            {% endfor %}
        }
        {% endfor %}
    }

    {% if sums %}
    workgroupBarrier();
    {% for s in range(sums_each) %}
    tile_a[thread + {{ s * threads }}u] = sum{{ s }};
    {% endfor %}
    workgroupBarrier();
    {{ finish_sums("tile_a", 8) }}
    {% endif %}
    let base_c = batch * params.stride_c + split * params.m * params.n;
    {% if vec_c %}
    {% for j in range(col_groups) %}
    let n{{ j }} = tile_col + {{ j * group_cols }}u + thread_n * 4u;
    {% if bias %}
    var bias{{ j }} = vec4<f32>(0.0);
    {{ "if (n" ~ j ~ " < params.n) " if edge_n }}{
        bias{{ j }} = vec4<f32>(bias[n{{ j }}], bias[n{{ j }} + 1u], bias[n{{ j }} + 2u], bias[n{{ j }} + 3u]);
    }
    {% endif %}
    {% endfor %}
    {# Four rows at a time: a group's loads precede its first store, past which no compiler moves them. #}
    {% for g in range(row_groups) %}
    {
        {% for r in range(4) %}
        let m{{ r }} = tile_row + {{ g * group_rows + r }}u + thread_m * 4u;
        {% for j in range(col_groups) %}
        let i{{ r }}_{{ j }} = (base_c + m{{ r }} * params.n + n{{ j }}) / 4u;
        {% if accumulate or epilogue == "multiply" %}
        var old{{ r }}_{{ j }}: vec4<f32>;
        {{ inside(r, j) }}{ old{{ r }}_{{ j }} = vec4<f32>({{ "c" if accumulate else "factors" }}[i{{ r }}_{{ j }}]); }
        {% endif %}
        {% endfor %}
        {% endfor %}
        {% for r in range(4) %}
        {% for j in range(col_groups) %}
        {{ inside(r, j) }}{
            let v = c{{ 4 * g + r }}_{{ j }}{{ " + bias" ~ j if bias }}{{ " + old" ~ r ~ "_" ~ j if accumulate }};
            {% if epilogue == "gelu" %}
            c[i{{ r }}_{{ j }}] = vec4<{{ T_out }}>(gelu_derivative(v));
            activated[i{{ r }}_{{ j }}] = vec4<{{ T_out }}>(gelu(v));
            {% else %}
            c[i{{ r }}_{{ j }}] = vec4<{{ T_out }}>(v{{ " * old" ~ r ~ "_" ~ j if epilogue == "multiply" }});
            {% endif %}
        }
        {% endfor %}
        {% endfor %}
    }
    {% endfor %}
    {% else %}
    {% for i in range(TM) %}
    {
        let m = tile_row + {{ (i // 4) * group_rows + i % 4 }}u + thread_m * 4u;
        {% for j in range(col_groups) %}
        {
            let n = tile_col + {{ j * group_cols }}u + thread_n * 4u;
            let i = base_c + m * params.n + n;
            {% for e in range(4) %}
            if (m < params.m && n + {{ e }}u < params.n) {
                {{ finish("c" ~ i ~ "_" ~ j ~ "[" ~ e ~ "]", "i + " ~ e ~ "u", "n + " ~ e ~ "u") }}
            }
            {% endfor %}
        }
        {% endfor %}
    }
    {% endfor %}
    {% endif %}
}
