// C = op(A) op(B) [+ C] [+ bias], tile by tile; in the same pass C may become gelu(C)
// and, in its own place, the derivative of GELU there, or be multiplied by one more matrix, or the columns of B be added up.
//
// A workgroup of (BM/TM) x (BN/TN) threads computes a BM x BN tile of C; each thread a TM x TN block of it, in
// registers. The k loop stages a BM x BK tile of A and a BK x BN tile of B in workgroup memory, both k-major, while the
// next tiles are already being loaded into registers. A thread's rows and columns come in groups of four that lie
// BM/(TM/4) and BN/(TN/4) apart, so that neighbouring threads read neighbouring vectors. Checks against the edges of A and
// B are rendered only where tiles overhang (edge_m, edge_n, edge_k); the k loop over a tile is unrolled. Operands are stored
// as {{ T_in }}, the result as {{ T_out }}; all arithmetic is f32.
{{ "enable f16;" if "f16" in [T_in, T_out] }}
{{ "enable wgpu_cooperative_matrix;" if kernel == "units" }}
{% include "common" %}

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

{% if kernel == "product" or kernel == "units" %}
struct Params {
    m: u32, n: u32, k: u32,
    // Elements from one matrix of the batch to the next; 0 shares one.
    stride_a: u32, stride_b: u32, stride_c: u32,
    tiles_m: u32, tiles_n: u32,
    // This many consecutive workgroups share a tile and split k between them in pieces of `k_piece`.
    splits: u32, k_piece: u32, batches: u32,
}
var<immediate> p: Params;

{% endif %}
{% if kernel == "product" %}
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

@group(0) @binding(0) var<storage, read> a: array<{{ "vec4<" ~ T_in ~ ">" if vec_a else T_in }}>;
@group(0) @binding(1) var<storage, read> b: array<{{ "vec4<" ~ T_in ~ ">" if vec_b else T_in }}>;
{{ more_bindings(2, "vec4<" ~ T_out ~ ">" if vec_c else T_out) }}

var<workgroup> tile_a: array<vec4<f32>, {{ BK * stride_a }}>; // [k][m/4]
var<workgroup> tile_b: array<vec4<f32>, {{ BK * stride_b }}>; // [k][n/4]

// Four elements of A that neighbour in memory: along k, or along m if A is stored (K, M). Zero outside A.
fn load_a(base: u32, m: u32, k: u32, k_end: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    {% if trans_a %}
    {{ "if (k < k_end) " if edge_k }}{
        let i = base + k * p.m + m;
        {% if vec_a %}
        {{ "if (m < p.m) " if edge_m }}{ v = vec4<f32>(a[i / 4u]); }
        {% else %}
        if (m < p.m) { v.x = f32(a[i]); }
        if (m + 1u < p.m) { v.y = f32(a[i + 1u]); }
        if (m + 2u < p.m) { v.z = f32(a[i + 2u]); }
        if (m + 3u < p.m) { v.w = f32(a[i + 3u]); }
        {% endif %}
    }
    {% else %}
    {{ "if (m < p.m) " if edge_m }}{
        let i = base + m * p.k + k;
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

// The same for B: along n, or along k if B is stored (N, K).
fn load_b(base: u32, n: u32, k: u32, k_end: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    {% if trans_b %}
    {{ "if (n < p.n) " if edge_n }}{
        let i = base + n * p.k + k;
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
        let i = base + k * p.n + n;
        {% if vec_b %}
        {{ "if (n < p.n) " if edge_n }}{ v = vec4<f32>(b[i / 4u]); }
        {% else %}
        if (n < p.n) { v.x = f32(b[i]); }
        if (n + 1u < p.n) { v.y = f32(b[i + 1u]); }
        if (n + 2u < p.n) { v.z = f32(b[i + 2u]); }
        if (n + 3u < p.n) { v.w = f32(b[i + 3u]); }
        {% endif %}
    }
    {% endif %}
    return v;
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let number = workgroup_number(id, count);
    let split = number % p.splits;
    let tile = number / p.splits;
    let tile_n = tile % p.tiles_n;
    let tile_m = (tile / p.tiles_n) % p.tiles_m;
    let batch = tile / (p.tiles_n * p.tiles_m);
    // Workgroups beyond the last only fill up the grid; all threads of one leave together.
    if (batch >= p.batches) { return; }
    let base_a = batch * p.stride_a;
    let base_b = batch * p.stride_b;
    let tile_row = tile_m * {{ BM }}u;
    let tile_col = tile_n * {{ BN }}u;
    let k_begin = split * p.k_piece;
    let k_end = min(p.k, k_begin + p.k_piece);
    // 32 neighbours make a patch of 4 x 8 blocks: they read 4 vectors of A and 8 of B, fewer than a strip would.
    let block = thread / 32u;
    let thread_m = block / {{ threads_n // 8 }}u * 4u + thread % 32u / 8u;
    let thread_n = block % {{ threads_n // 8 }}u * 8u + thread % 8u;

    {% for i in range(TM) %}
    {% for j in range(col_groups) %}
    var c{{ i }}_{{ j }} = vec4<f32>(0.0);
    {% endfor %}
    {% endfor %}

    {# Where thread number x of the loading order finds its vector: (position along m or n, position along k). #}
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
    { let x = thread + {{ l * threads }}u; next_a{{ l }} = load_a(base_a, tile_row + {{ a_m }}, k_begin + {{ a_k }}, k_end); }
    {% endfor %}
    {% for l in range(loads_b) %}
    var next_b{{ l }}: vec4<f32>;
    { let x = thread + {{ l * threads }}u; next_b{{ l }} = load_b(base_b, tile_col + {{ b_n }}, k_begin + {{ b_k }}, k_end); }
    {% endfor %}

    {% if sums %}
    {# Whichever tile computes them, eight sums of every eighth row of B are added up: the same bits. #}
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
            { let x = thread + {{ l * threads }}u; next_a{{ l }} = load_a(base_a, tile_row + {{ a_m }}, k1 + {{ a_k }}, k_end); }
            {% endfor %}
            {% for l in range(loads_b) %}
            { let x = thread + {{ l * threads }}u; next_b{{ l }} = load_b(base_b, tile_col + {{ b_n }}, k1 + {{ b_k }}, k_end); }
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
    let base_c = batch * p.stride_c + split * p.m * p.n;
    {% if vec_c %}
    {% for j in range(col_groups) %}
    let n{{ j }} = tile_col + {{ j * group_cols }}u + thread_n * 4u;
    {% if bias %}
    var bias{{ j }} = vec4<f32>(0.0);
    {{ "if (n" ~ j ~ " < p.n) " if edge_n }}{
        bias{{ j }} = vec4<f32>(bias[n{{ j }}], bias[n{{ j }} + 1u], bias[n{{ j }} + 2u], bias[n{{ j }} + 3u]);
    }
    {% endif %}
    {% endfor %}
    {# Rows by four: all loads of a group start before the first of its stores, behind which they could not move. #}
    {% for g in range(row_groups) %}
    {
        {% for r in range(4) %}
        let m{{ r }} = tile_row + {{ g * group_rows + r }}u + thread_m * 4u;
        {% for j in range(col_groups) %}
        let i{{ r }}_{{ j }} = (base_c + m{{ r }} * p.n + n{{ j }}) / 4u;
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
            let i = base_c + m * p.n + n;
            {% for e in range(4) %}
            if (m < p.m && n + {{ e }}u < p.n) {
                {{ finish("c" ~ i ~ "_" ~ j ~ "[" ~ e ~ "]", "i + " ~ e ~ "u", "n + " ~ e ~ "u") }}
            }
            {% endfor %}
        }
        {% endfor %}
    }
    {% endfor %}
    {% endif %}
}
{% elif kernel == "units" %}
// The product of f16 matrices on the GPU's matrix units. Each subgroup computes a TM x TN block of the tile as
// {{ side }} x {{ side }} matrices that its threads hold together; all subgroups stage A and B in workgroup memory as they are stored.
{% set subgroups_n = BN // TN %}
{% set subgroups = (BM // TM) * subgroups_n %}
{% set threads = subgroups * subgroup %}
{% set fragments_m = TM // side %}
{% set fragments_n = TN // side %}
{# Of each operand: its name, its side of C, which of its dimensions neighbours in memory, its tile's side and its origin. #}
{% set operands = [["a", "m", trans_a, BM, "tile_row", edge_m], ["b", "n", not trans_b, BN, "tile_col", edge_n]] %}
{# Vectors in a row of a staged tile, whose rows are of k or of m or n, and those from one row to the next: padded against conflicts of banks. #}
{% macro width(wide, length) %}{{ (length if wide else BK) // 4 }}{% endmacro %}
{% macro stride(wide, length) %}{{ (length if wide else BK) // 4 + 2 }}{% endmacro %}
{# Whether the result leaves the units straight to where it belongs. #}
{% set direct = not (bias or epilogue or edge_m or edge_n or T_out == "f16") %}
{% set block_stride = side // 4 + 1 %}

@group(0) @binding(0) var<storage, read> a: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f16>>;
{{ more_bindings(2, "f32" if direct else "vec4<" ~ T_out ~ ">") }}

{% for name, outer, wide, length, origin, edge in operands %}
var<workgroup> tile_{{ name }}: array<vec4<f16>, {{ (BK if wide else length) * (stride(wide, length) | int) }}>;
{% endfor %}
{% if sums %}
var<workgroup> column_sums: array<vec4<f32>, {{ threads }}>;
{% endif %}
{% if not direct %}
// Of each subgroup one of its matrices, on the way out.
var<workgroup> block: array<vec4<f32>, {{ subgroups * side * block_stride }}>;
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    // Not by `workgroup_number`: of what a function returns naga does not know that it is the same for all threads.
    let number = id.y * count.x + id.x;
    let split = number % p.splits;
    let batch = number / p.splits / (p.tiles_m * p.tiles_n);
    // Workgroups beyond the last only fill up the grid; all threads of one leave together.
    if (batch >= p.batches) { return; }
    // Eight rows of tiles at a time, column by column: what runs together reads the same parts of A and B.
    let tile = number / p.splits % (p.tiles_m * p.tiles_n);
    let band = tile / (8u * p.tiles_n);
    let height = min(8u, p.tiles_m - band * 8u);
    let tile_row = (band * 8u + tile % (8u * p.tiles_n) % height) * {{ BM }}u;
    let tile_col = tile % (8u * p.tiles_n) / height * {{ BN }}u;
    let base_a = batch * p.stride_a;
    let base_b = batch * p.stride_b;
    let k_begin = split * p.k_piece;
    let k_end = min(p.k, k_begin + p.k_piece);
    let unit = thread / {{ subgroup }}u;
    let block_row = unit / {{ subgroups_n }}u * {{ TM }}u;
    let block_col = unit % {{ subgroups_n }}u * {{ TN }}u;
    let base_c = batch * p.stride_c + split * p.m * p.n;

    {% for i in range(fragments_m) %}
    {% for j in range(fragments_n) %}
    var c{{ i }}_{{ j }}: coop_mat{{ side }}x{{ side }}<f32, C>;
    {% if direct and accumulate %}
    {
        let at = base_c + (tile_row + block_row + {{ i * side }}u) * p.n + tile_col + block_col + {{ j * side }}u;
        c{{ i }}_{{ j }} = coopLoadT<coop_mat{{ side }}x{{ side }}<f32, C>>(&c[at], p.n);
    }
    {% endif %}
    {% endfor %}
    {% endfor %}

    {# What a thread loads: row and column of its first vector, rows between its vectors, and where they lie in memory. #}
    {% for name, outer, wide, length, origin, edge in operands %}
    {% set w = width(wide, length) | int %}
    let {{ name }}_row = thread / {{ w }}u;
    let {{ name }}_col = thread % {{ w }}u;
    {% if wide %}
    let {{ name }}_from = (base_{{ name }} + (k_begin + {{ name }}_row) * p.{{ outer }} + {{ origin }}) / 4u + {{ name }}_col;
    let {{ name }}_line = p.{{ outer }} / 4u;
    let {{ name }}_step = {{ BK }}u * {{ name }}_line;
    {% else %}
    let {{ name }}_from = (base_{{ name }} + ({{ origin }} + {{ name }}_row) * p.k + k_begin) / 4u + {{ name }}_col;
    let {{ name }}_line = p.k / 4u;
    let {{ name }}_step = {{ BK // 4 }}u;
    {% endif %}
    let {{ name }}_to = {{ name }}_row * {{ stride(wide, length) }}u + {{ name }}_col;
    {% endfor %}

    {% if sums %}
    var column_sum = vec4<f32>(0.0);
    {% endif %}
    // Counted in steps, from which all addresses follow: so the driver makes the fastest loop of it.
    let steps = (k_end - k_begin + {{ BK - 1 }}u) / {{ BK }}u;
    for (var step = 0u; step < steps; step += 1u) {
        {% if edge_m or edge_n or edge_k %}
        let k0 = k_begin + step * {{ BK }}u;
        {% endif %}
        {% for name, outer, wide, length, origin, edge in operands %}
        {% set w = width(wide, length) | int %}
        {% set rows = threads // w %}
        {% set loads = (BK if wide else length) // rows %}
        let {{ name }}_at = {{ name }}_from + step * {{ name }}_step;
        {% for l in range(loads) %}
        var {{ name }}{{ l }} = vec4<f16>(0.0h);
        {% set inside_row = ("k0 + " ~ name ~ "_row + " ~ l * rows ~ "u < k_end") if wide else (origin ~ " + " ~ name ~ "_row + " ~ l * rows ~ "u < p." ~ outer) %}
        {% set inside_col = (origin ~ " + " ~ name ~ "_col * 4u < p." ~ outer) if wide else ("k0 + " ~ name ~ "_col * 4u < k_end") %}
        {{ ("if (" ~ inside_row ~ " && " ~ inside_col ~ ") ") if edge or edge_k }}{ {{ name }}{{ l }} = {{ name }}[{{ name }}_at + {{ l * rows }}u * {{ name }}_line]; }
        {% endfor %}
        {% endfor %}
        // All loads go before the first store, so that they are under way together.
        {% if sums %}
        if (tile_row == 0u) {
            {% for l in range(BK // (threads // (BN // 4))) %}
            column_sum += vec4<f32>(b{{ l }});
            {% endfor %}
        }
        {% endif %}
        {% for name, outer, wide, length, origin, edge in operands %}
        {% set rows = threads // (width(wide, length) | int) %}
        {% for l in range((BK if wide else length) // rows) %}
        tile_{{ name }}[{{ name }}_to + {{ l * rows * (stride(wide, length) | int) }}u] = {{ name }}{{ l }};
        {% endfor %}
        {% endfor %}
        workgroupBarrier();
        {% for k in range(0, BK, side) %}
        {
            {% set sa = stride(trans_a, BM) | int %}
            {% set sb = stride(not trans_b, BN) | int %}
            {% for i in range(fragments_m) %}
            {% if trans_a %}
            let from_a{{ i }} = {{ k * sa + i * side // 4 }}u + block_row / 4u;
            {% else %}
            let from_a{{ i }} = (block_row + {{ i * side }}u) * {{ sa }}u + {{ k // 4 }}u;
            {% endif %}
            let a{{ i }} = {{ "coopLoad" if trans_a else "coopLoadT" }}<coop_mat{{ side }}x{{ side }}<f16, A>>(&tile_a[from_a{{ i }}], {{ sa }}u);
            {% endfor %}
            {% for j in range(fragments_n) %}
            {
                {% if trans_b %}
                let at = (block_col + {{ j * side }}u) * {{ sb }}u + {{ k // 4 }}u;
                {% else %}
                let at = {{ k * sb + j * side // 4 }}u + block_col / 4u;
                {% endif %}
                let b = {{ "coopLoad" if trans_b else "coopLoadT" }}<coop_mat{{ side }}x{{ side }}<f16, B>>(&tile_b[at], {{ sb }}u);
                {% for i in range(fragments_m) %}
                c{{ i }}_{{ j }} = coopMultiplyAdd(a{{ i }}, b, c{{ i }}_{{ j }});
                {% endfor %}
            }
            {% endfor %}
        }
        {% endfor %}
        workgroupBarrier();
    }

    {% if sums %}
    column_sums[thread] = column_sum;
    workgroupBarrier();
    {{ finish_sums("column_sums", threads // (BN // 4)) }}
    {% endif %}
    {# naga wants every argument of a store to be a name. #}
    {% if direct %}
    let line = p.n;
    {% for i in range(fragments_m) %}
    {% for j in range(fragments_n) %}
    {
        let to = base_c + (tile_row + block_row + {{ i * side }}u) * p.n + tile_col + block_col + {{ j * side }}u;
        let values = c{{ i }}_{{ j }};
        coopStoreT(values, &c[to], line);
    }
    {% endfor %}
    {% endfor %}
    {% else %}
    // One matrix at a time: with more of this memory, fewer workgroups would run on a multiprocessor. First all of them, then
    // what touches storage, which a barrier would wait for.
    let lane = thread % {{ subgroup }}u;
    let block_at = unit * {{ side * block_stride }}u;
    let line = {{ block_stride }}u;
    {% set vectors = side * side // 4 %}
    {% set turns = (vectors + subgroup - 1) // subgroup %}
    {# The place of a thread's vector in a matrix; of threads without one, the last. #}
    {% macro place(l) %}{{ "min(lane, " ~ (vectors - 1) ~ "u)" if subgroup > vectors else "(lane + " ~ l * subgroup ~ "u)" }}{% endmacro %}
    {% if epilogue == "multiply" %}
    // What is read at the end is on its way while the matrices leave the units.
    {% for i in range(fragments_m) %}
    {% for l in range(turns) %}
    {% for j in range(fragments_n) %}
    var factor{{ i }}_{{ l }}_{{ j }}: vec4<{{ T_out }}>;
    {
        {% set x = place(l) %}
        let m{{ l }} = tile_row + block_row + {{ i * side }}u + {{ x }} / {{ side // 4 }}u;
        let n{{ l }}_{{ j }} = tile_col + block_col + {{ j * side }}u + {{ x }} % {{ side // 4 }}u * 4u;
        {{ inside(l, l ~ "_" ~ j) }}{ factor{{ i }}_{{ l }}_{{ j }} = factors[(base_c + m{{ l }} * p.n + n{{ l }}_{{ j }}) / 4u]; }
    }
    {% endfor %}
    {% endfor %}
    {% endfor %}
    {% endif %}
    {% for i in range(fragments_m) %}
    {% for j in range(fragments_n) %}
    {
        let to = block_at;
        let values = c{{ i }}_{{ j }};
        coopStoreT(values, &block[to], line);
    }
    workgroupBarrier();
    {% for l in range(turns) %}
    {% set x = place(l) %}
    let v{{ i }}_{{ j }}_{{ l }} = block[block_at + {{ x }} / {{ side // 4 }}u * {{ block_stride }}u + {{ x }} % {{ side // 4 }}u];
    {% endfor %}
    workgroupBarrier();
    {% endfor %}
    {% endfor %}
    {% for i in range(fragments_m) %}
    {
        {% for l in range(turns) %}
        {% set x = place(l) %}
        let m{{ l }} = tile_row + block_row + {{ i * side }}u + {{ x }} / {{ side // 4 }}u;
        {% for j in range(fragments_n) %}
        let n{{ l }}_{{ j }} = tile_col + block_col + {{ j * side }}u + {{ x }} % {{ side // 4 }}u * 4u;
        let at{{ l }}_{{ j }} = (base_c + m{{ l }} * p.n + n{{ l }}_{{ j }}) / 4u;
        {% if accumulate %}
        var old{{ l }}_{{ j }}: vec4<f32>;
        {{ inside(l, l ~ "_" ~ j) }}{ old{{ l }}_{{ j }} = vec4<f32>(c[at{{ l }}_{{ j }}]); }
        {% endif %}
        {% endfor %}
        {% endfor %}
        {% for l in range(turns) %}
        {% for j in range(fragments_n) %}
        {{ ("if (lane < " ~ vectors ~ "u) ") if subgroup > vectors }}{
        {{ inside(l, l ~ "_" ~ j) }}{
            {% set n = "n" ~ l ~ "_" ~ j %}
            let value = v{{ i }}_{{ j }}_{{ l }}{{ " + vec4<f32>(bias[" ~ n ~ "], bias[" ~ n ~ " + 1u], bias[" ~ n ~ " + 2u], bias[" ~ n ~ " + 3u])" if bias }}{{ " + old" ~ l ~ "_" ~ j if accumulate }};
            {% if epilogue == "gelu" %}
            c[at{{ l }}_{{ j }}] = vec4<{{ T_out }}>(gelu_derivative(value));
            activated[at{{ l }}_{{ j }}] = vec4<{{ T_out }}>(gelu(value));
            {% else %}
            c[at{{ l }}_{{ j }}] = vec4<{{ T_out }}>(value{{ " * vec4<f32>(factor" ~ i ~ "_" ~ l ~ "_" ~ j ~ ")" if epilogue == "multiply" }});
            {% endif %}
        }
        }
        {% endfor %}
        {% endfor %}
    }
    {% endfor %}
    {% endif %}
}
{% elif kernel == "transpose" %}
// result (cols, rows) = x (rows, cols) transposed, in squares of 32 x 32 by way of workgroup memory, so that both reading
// and writing touch neighbours.
struct Params { rows: u32, cols: u32, down: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<{{ T_in }}>;
@group(0) @binding(1) var<storage, read_write> result: array<{{ T_in }}>;

var<workgroup> square: array<{{ T_in }}, 1056>; // 32 rows of 33: columns then lie in different banks

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let number = workgroup_number(id, count);
    // Neighbours in this order write neighbouring parts of the same rows.
    let row0 = number % p.down * 32u;
    let col0 = number / p.down * 32u;
    let i = thread % 32u;
    for (var j = thread / 32u; j < 32u; j += 8u) {
        if (row0 + j < p.rows && col0 + i < p.cols) { square[j * 33u + i] = x[(row0 + j) * p.cols + col0 + i]; }
    }
    workgroupBarrier();
    for (var j = thread / 32u; j < 32u; j += 8u) {
        if (row0 + i < p.rows && col0 + j < p.cols) { result[(col0 + j) * p.rows + row0 + i] = square[i * 33u + j]; }
    }
}
{% else %}
// Adds up the pieces that the splits of k left: C = sum over s of partial[s] [+ C] [+ bias]{{ ", and those of the sums after it" if sums }}. One thread per element.
struct Params { len: u32, n: u32, splits: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> partial: array<f32>;
{% if sums %}
@group(0) @binding(1) var<storage, read> partial_sums: array<f32>;
{% endif %}
{{ more_bindings(2 if sums else 1, T_out) }}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    {% if sums %}
    if (i >= p.len) {
        let n = i - p.len;
        if (n >= p.n) { return; }
        var sum = 0.0;
        for (var s = 0u; s < p.splits; s++) { sum += partial_sums[s * p.n + n]; }
        sums[n] = sum{{ " + sums[n]" if accumulate }};
        return;
    }
    {% else %}
    if (i >= p.len) { return; }
    {% endif %}
    var sum = 0.0;
    for (var s = 0u; s < p.splits; s++) { sum += partial[s * p.len + i]; }
    {{ finish("sum", "i", "i % p.n") }}
}
{% endif %}
