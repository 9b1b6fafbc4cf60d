// GEMM on cooperative matrices (tensor cores), with f16 operands, or f32 operands with `split_fp16`. Each subgroup
// computes a TM x TN block of the tile as {{ side }} x {{ side }} cooperative matrices. All subgroups stage A and B in
// workgroup memory, in the layout of storage.
enable f16;
enable wgpu_cooperative_matrix;
{{ interface }}
{% include "matmul_epilogue" %}
{% if eight %}
fn eight_f16(left: vec4<f32>, right: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
        pack2x16float(left.xy), pack2x16float(left.zw), pack2x16float(right.xy), pack2x16float(right.zw),
    );
}
{% endif %}

{% set subgroups_n = BN // TN %}
{% set subgroups = (BM // TM) * subgroups_n %}
{% set threads = subgroups * subgroup %}
{% set fragments_m = TM // side %}
{% set fragments_n = TN // side %}
{# Per operand: name, its dimension of C, whether that is contiguous, tile size, tile origin, partial tiles. Where it #}
{# is (a "wide" operand) the tile is staged as BK rows along it; else k is contiguous, and it has BM or BN rows of k. #}
{% set operands = [["a", "m", trans_a, BM, "tile_row", edge_m], ["b", "n", not trans_b, BN, "tile_col", edge_n]] %}
{# The rows (of a) or columns (of b) of C that a subgroup computes. #}
{% macro part(name) %}{{ TM if name == "a" else TN }}{% endmacro %}
{# Vectors per row of a staged tile, and its leading dimension in vectors: padded against bank conflicts. #}
{% macro width(wide, length) %}{{ (length if wide else BK) // 4 }}{% endmacro %}
{% macro stride(wide, length) %}{{ (length if wide else BK) // 4 + 2 }}{% endmacro %}
{# Loads of all threads at once that make whole rows of a staged tile: three where rows are of 24 vectors. #}
{% macro period(wide, length) %}{{ 3 if threads % (width(wide, length) | int) else 1 }}{% endmacro %}
{# The rows that those make, and the loads of each thread. #}
{% macro rows_at_once(wide, length) -%}
{{ (period(wide, length) | int) * threads // (width(wide, length) | int) }}
{%- endmacro %}
{% macro loads(wide, length) -%}
{{ (BK if wide else length) * (width(wide, length) | int) // threads }}
{%- endmacro %}
{# Tiles are staged in groups of so many rows: [group][vector] of a wide operand, else [part of a subgroup][group] #}
{# [vector]. The numbers of groups are constants, and so are the vectors of fragments of the latter: they become #}
{# offsets of one address, where a sum as index would take a register of its own. #}
{% macro group(wide, length) %}{{ [side, rows_at_once(wide, length) | int] | max }}{% endmacro %}
{% macro staged(name, wide, length) -%}
{% set rows = group(wide, length) | int %}
{% set group_type = "array<vec4<f16>, " ~ rows * (stride(wide, length) | int) ~ ">" %}
{% set groups = "array<" ~ group_type ~ ", " ~ (BK if wide else part(name) | int) // rows ~ ">" %}
{{ groups if wide else "array<" ~ groups ~ ", " ~ length // (part(name) | int) ~ ">" }}
{%- endmacro %}
{# With `eight` a thread stores vectors of eight f16. It has four columns of each of two matrices side by side, whose #}
{# columns are dealt out in turn, four to the one and four to the other, where b is staged. #}
{% set pair = 2 * side // 4 %}
{# Not padded: the threads of a subgroup then read whole rows of all banks. #}
{% set block_stride = side // 4 %}
{% set block_len = subgroups * side * block_stride %}
{% set sums_period = period(true, BN) | int %}
{% set sums_len = threads * sums_period if sums else 0 %}

{% for name, outer, wide, length, origin, edge in operands %}
var<workgroup> tile_{{ name }}: {{ staged(name, wide, length) }};
{% if split_fp16 %}
var<workgroup> low_{{ name }}: {{ staged(name, wide, length) }};
{% endif %}
{% endfor %}
{% if split_fp16 %}
// The largest magnitude that each subgroup loaded, and the step that exceeded the scale.
var<workgroup> largest: array<vec4<u32>, {{ subgroups }}>;
var<workgroup> exceeded: vec4<u32>;
{% endif %}
// One cooperative matrix of each subgroup on its way to storage; before that, the column sums.
var<workgroup> block: array<vec4<f32>, {{ block_len if block_len > sums_len else sums_len }}>;

{{ entry(threads) }}
    // Integer divisions take long beside a short loop over k, so there are as few of them as can be.
    {% if split_k %}
    let of_splits = workgroup / params.splits;
    let split = workgroup - of_splits * params.splits;
    {% else %}
    let of_splits = workgroup;
    const split = 0u;
    {% endif %}
    let tiles = params.tiles_m * params.tiles_n;
    {% if batched %}
    let batch = of_splits / tiles;
    {% else %}
    let batch = select(0u, params.batches, of_splits >= tiles);
    {% endif %}
    // The grid is rounded up; all threads of a surplus workgroup return together.
    if (batch >= params.batches) { return; }
    let tile = of_splits - batch * tiles;
    // Swizzle for the L2 cache: eight rows of tiles at a time, column by column. All bands but the last are whole.
    let band = tile / 8u / params.tiles_n;
    let in_band = tile - band * 8u * params.tiles_n;
    let height = min(8u, params.tiles_m - band * 8u);
    var row_in_band = in_band % 8u;
    var tile_of_row = in_band / 8u;
    if (height < 8u) {
        row_in_band = in_band % height;
        tile_of_row = in_band / height;
    }
    let tile_row = (band * 8u + row_in_band) * {{ BM }}u;
    let tile_col = tile_of_row * {{ BN }}u;
    let base_a = batch * params.stride_a;
    let base_b = batch * params.stride_b;
    let k_begin = split * params.k_slice;
    let k_end = min(params.k, k_begin + params.k_slice);
    let subgroup_index = thread / {{ subgroup }}u;
    let block_a = subgroup_index / {{ subgroups_n }}u;
    let block_b = subgroup_index % {{ subgroups_n }}u;
    let block_row = block_a * {{ TM }}u;
    let block_col = block_b * {{ TN }}u;
    let base_c = batch * params.stride_c + split * params.m * params.n;

    {% for i in range(fragments_m) %}
    {% for j in range(fragments_n) %}
    var c{{ i }}_{{ j }}: coop_mat{{ side }}x{{ side }}<f32, C>;
    {% endfor %}
    {% endfor %}

    {# A thread's loads: row, column and address of its first vectors, and the address steps by row and by k tile. #}
    {% for name, outer, wide, length, origin, edge in operands %}
    {% set w = width(wide, length) | int %}
    {% if wide %}
    let {{ name }}_line = params.{{ outer }} / 4u;
    let {{ name }}_step = {{ BK }}u * {{ name }}_line;
    {% else %}
    let {{ name }}_line = params.k / 4u;
    let {{ name }}_step = {{ BK // 4 }}u;
    {% endif %}
    {% for r in range(period(wide, length) | int) %}
    {% set x = "(thread + " ~ r * threads ~ "u)" if r else "thread" %}
    {% if wide or rows_at_once(wide, length) | int % 8 %}
    let {{ name }}_row{{ r }} = {{ x }} / {{ w }}u;
    {% else %}
    // Rows that are stored at once lie four apart, and so in different banks.
    let {{ name }}_line{{ r }} = {{ x }} / {{ w }}u;
    let {{ name }}_row{{ r }} =
        {{ name }}_line{{ r }} / 8u * 8u + {{ name }}_line{{ r }} % 2u * 4u + {{ name }}_line{{ r }} / 2u % 4u;
    {% endif %}
    let {{ name }}_col{{ r }} = {{ x }} % {{ w }}u;
    {% if wide %}
    let {{ name }}_from{{ r }} =
        (base_{{ name }} + (k_begin + {{ name }}_row{{ r }}) * params.{{ outer }} + {{ origin }}) / 4u
        + {{ name }}_col{{ r }};
    {% else %}
    let {{ name }}_from{{ r }} =
        (base_{{ name }} + ({{ origin }} + {{ name }}_row{{ r }}) * params.k + k_begin) / 4u
        + {{ name }}_col{{ r }};
    {% endif %}
    {% if eight and name == "b" %}
    let b_place{{ r }} = b_col{{ r }} / {{ pair }}u * {{ pair }}u + b_col{{ r }} % 2u * {{ side // 4 }}u
        + b_col{{ r }} % {{ pair }}u / 2u;
    {% endif %}
    {% set place = name ~ ("_place" if eight and name == "b" else "_col") ~ r %}
    let {{ name }}_to{{ r }} = {{ name }}_row{{ r }} * {{ stride(wide, length) }}u + {{ place }};
    {% endfor %}
    {% endfor %}

    {% if sums %}
    {% for r in range(sums_period) %}
    var column_sum{{ r }} = vec4<f32>(0.0);
    {% endfor %}
    {% endif %}
    // The loop counts steps and derives all addresses from the step: the driver compiles that to the fastest loop.
    let steps = (k_end - k_begin + {{ BK - 1 }}u) / {{ BK }}u;
    {# Declares registers for a thread's vectors of A and B. #}
    {% macro declare_loads() %}
        {% for name, outer, wide, length, origin, edge in operands %}
        {% for l in range(loads(wide, length) | int) %}
        var {{ name }}{{ l }}: vec4<{{ T_in }}>;
        {% endfor %}
        {% endfor %}
    {% endmacro %}
    {# Issues all loads of a step before the next store, so that they are in flight together. #}
    {% macro load_tiles(step) %}
        {% if edge_m or edge_n or edge_k %}
        let k0 = k_begin + {{ step }} * {{ BK }}u;
        {% endif %}
        {% for name, outer, wide, length, origin, edge in operands %}
        {% set rows = rows_at_once(wide, length) | int %}
        {% set repeat = period(wide, length) | int %}
        {% for r in range(repeat) %}
        let {{ name }}_at{{ r }} = {{ name }}_from{{ r }} + {{ step }} * {{ name }}_step;
        {% endfor %}
        {% for l in range(loads(wide, length) | int) %}
        {% set r = l % repeat %}
        {% set down = l // repeat * rows ~ "u" %}
        {% set row = name ~ "_row" ~ r ~ " + " ~ down %}
        {% set col = name ~ "_col" ~ r ~ " * 4u" %}
        {% set inside_k = "k0 + " ~ (row if wide else col) ~ " < k_end" %}
        {% set inside_outer = origin ~ " + " ~ (col if wide else row) ~ " < params." ~ outer %}
        {% if edge or edge_k %}
        {{ name }}{{ l }} = vec4<{{ T_in }}>();
        if ({{ inside_k if wide else inside_outer }} && {{ inside_outer if wide else inside_k }}) {
            {{ name }}{{ l }} = {{ name }}[{{ name }}_at{{ r }} + {{ down }} * {{ name }}_line];
        }
        {% else %}
        {{ name }}{{ l }} = {{ name }}[{{ name }}_at{{ r }} + {{ down }} * {{ name }}_line];
        {% endif %}
        {% endfor %}
        {% endfor %}
    {% endmacro %}
    {# Where a thread's load l goes in the staged tile. #}
    {% macro to(name, l, wide, length) -%}
    {% set repeat = period(wide, length) | int %}
    {% set row = l // repeat * (rows_at_once(wide, length) | int) %}
    {% set rows = group(wide, length) | int %}
    {% set of_part = part(name) | int %}
    {% set at = row % rows * (stride(wide, length) | int) ~ "u + " ~ name ~ "_to" ~ l % repeat %}
    {% if wide %}
    [{{ row // rows }}][{{ at }}]
    {%- else %}
    [{{ row // of_part }}][{{ row % of_part // rows }}][{{ at }}]
    {%- endif %}
    {%- endmacro %}
    {# Adds the loaded vectors of B to the column sums. #}
    {% macro add_columns() %}
        {% if sums %}
        if (tile_row == 0u) {
            {% for l in range(loads(true, BN) | int) %}
            column_sum{{ l % sums_period }} += vec4<f32>(b{{ l }});
            {% endfor %}
        }
        {% endif %}
    {% endmacro %}
    {# Fragment i of a subgroup's block at k, in the staged tile of an operand. #}
    {% macro from(name, k, i, wide, length) -%}
    {% set rows = group(wide, length) | int %}
    {% set row = k if wide else i * side %}
    {% set first = row % rows * (stride(wide, length) | int) + (i * side if wide else k) // 4 %}
    {% if wide %}
    [{{ row // rows }}][{{ first }}u + block_{{ name }} * {{ (part(name) | int) // 4 }}u]
    {%- else %}
    [block_{{ name }}][{{ row // rows }}][{{ first }}]
    {%- endif %}
    {%- endmacro %}
    {% macro coop_load(tile, name, role, k, i, wide, length) -%}
    {# T: the rows of the matrix lie in rows of the tile. #}
    {% set load = "coopLoad" if wide == (name == "a") else "coopLoadT" %}
    {% set at = tile ~ "_" ~ name ~ from(name, k, i, wide, length) %}
    {{ load }}<coop_mat{{ side }}x{{ side }}<f16, {{ role }}>>(&{{ at }}, {{ stride(wide, length) }}u)
    {%- endmacro %}
    {% macro coop_load_a(tile, k, i) -%}{{ coop_load(tile, "a", "A", k, i, trans_a, BM) }}{%- endmacro %}
    {% macro coop_load_b(tile, k, j) -%}{{ coop_load(tile, "b", "B", k, j, not trans_b, BN) }}{%- endmacro %}
    {% if split_fp16 %}
    {% include "matmul_split_fp16" %}
    {% else %}
    {# By hand: some drivers do not unroll a loop with barriers, another unrolls it further. `steps` is a multiple of #}
    {# `unroll` (Tile::k_slices). #}
    for (var first = 0u; first < steps; first += {{ unroll }}u) {
        {% for u in range(unroll) %}
        {
        let step = first + {{ u }}u;
        {{ declare_loads() }}
        {{ load_tiles("step") }}
        {{ add_columns() }}
        {% for name, outer, wide, length, origin, edge in operands %}
        {% for l in range(loads(wide, length) | int) %}
        tile_{{ name }}{{ to(name, l, wide, length) }} = {{ name }}{{ l }};
        {% endfor %}
        {% endfor %}
        workgroupBarrier();
        {% for k in range(0, BK, side) %}
        {
            {% for i in range(fragments_m) %}
            let a{{ i }} = {{ coop_load_a("tile", k, i) }};
            {% endfor %}
            {% for j in range(fragments_n) %}
            {
                let b = {{ coop_load_b("tile", k, j) }};
                {% for i in range(fragments_m) %}
                c{{ i }}_{{ j }} = coopMultiplyAdd(a{{ i }}, b, c{{ i }}_{{ j }});
                {% endfor %}
            }
            {% endfor %}
        }
        {% endfor %}
        workgroupBarrier();
        }
        {% endfor %}
    }
    {% endif %}

    {% if sums %}
    {% for r in range(sums_period) %}
    block[thread + {{ r * threads }}u] = column_sum{{ r }};
    {% endfor %}
    workgroupBarrier();
    {{ finish_sums("block", rows_at_once(true, BN) | int) }}
    workgroupBarrier();
    {% endif %}
    // One fragment at a time goes through workgroup memory, because more memory would lower occupancy. All fragments
    // are exchanged before the first store to storage: a barrier would wait for the store.
    let lane = thread % {{ subgroup }}u;
    let block_at = subgroup_index * {{ side * block_stride }}u;
    let line = {{ block_stride }}u;
    {% set vectors = side * side // 4 %}
    {% set turns = (vectors + subgroup - 1) // subgroup %}
    {# Index of a thread's vector in a fragment, clamped for surplus threads. A thread's vectors share their columns. #}
    {% macro place(l) -%}
    {{ "min(lane, " ~ (vectors - 1) ~ "u)" if subgroup > vectors else "(lane + " ~ l * subgroup ~ "u)" }}
    {%- endmacro %}
    {# The first column of a thread's vector in matrix j. #}
    {% macro column(j, x) -%}
    {% if eight %}
    tile_col + block_col + {{ j // 2 * 2 * side + j % 2 * 4 }}u + {{ x }} % {{ side // 4 }}u * 8u
    {%- else %}
    tile_col + block_col + {{ j * side }}u + {{ x }} % {{ side // 4 }}u * 4u
    {%- endif %}
    {%- endmacro %}
    {% if bias %}
    {% for j in range(fragments_n) %}
    var bias{{ j }}: vec4<f32>;
    {
        let n = {{ column(j, "lane") }};
        {{ "if (n < params.n) " if edge_n }}{
            bias{{ j }} = vec4<f32>(bias[n], bias[n + 1u], bias[n + 2u], bias[n + 3u]);
        }
    }
    {% endfor %}
    {% endif %}
    {# Indices in C of a thread's vectors in fragment row i. #}
    {% macro locate(i) %}
        {% for l in range(turns) %}
        {% set x = place(l) %}
        let m{{ l }} = tile_row + block_row + {{ i * side }}u + {{ x }} / {{ side // 4 }}u;
        {% for j in range(fragments_n) %}
        let n{{ l }}_{{ j }} = {{ column(j, x) }};
        let at{{ l }}_{{ j }} = (base_c + m{{ l }} * params.n + n{{ l }}_{{ j }}) / 4u;
        {% endfor %}
        {% endfor %}
    {% endmacro %}
    {# Reads the epilogue's operand: C with accumulate, else the factors. #}
    {% macro read_row(i) %}
    {% for l in range(turns) %}
    {% for j in range(fragments_n) %}
    var read{{ i }}_{{ l }}_{{ j }}: vec4<{{ T_out }}>;
    {% endfor %}
    {% endfor %}
    {
        {{ locate(i) }}
        {% for l in range(turns) %}
        {% for j in range(fragments_n) %}
        {{ inside(l, l ~ "_" ~ j) }}{
            read{{ i }}_{{ l }}_{{ j }} = {{ "c" if accumulate else "factors" }}[at{{ l }}_{{ j }}];
        }
        {% endfor %}
        {% endfor %}
    }
    {% endmacro %}
    {% set reads = accumulate or epilogue == "multiply" %}
    {# Reads all rows early, in flight during the exchange, if that takes at most 64 registers. #}
    {% set early = TM * TN // subgroup * (2 if T_out == "f16" else 4) <= 256 %}
    {% if reads and early %}
    {% for i in range(fragments_m) %}
    {{ read_row(i) }}
    {% endfor %}
    {% endif %}
    {% for i in range(fragments_m) %}
    {% for j in range(fragments_n) %}
    {
        {# naga 30 requires every argument of coopStore to be a name. #}
        let to = block_at;
        let values = c{{ i }}_{{ j }};
        coopStoreT(values, &block[to], line);
    }
    // The block is the subgroup's own. This orders workgroup memory: src/gpu/subgroup_barriers.rs.
    subgroupBarrier();
    {% for l in range(turns) %}
    {% set x = place(l) %}
    let v{{ i }}_{{ j }}_{{ l }} =
        block[block_at + {{ x }} / {{ side // 4 }}u * {{ block_stride }}u + {{ x }} % {{ side // 4 }}u];
    {% endfor %}
    subgroupBarrier();
    {% endfor %}
    {% endfor %}
    {% set gelus = [["c", "gelu_derivative"], ["activated", "gelu"]] %}
    {% set outputs = gelus if epilogue == "gelu" else [["c", ""]] %}
    {% for i in range(fragments_m) %}
    {
        {{ read_row(i) if reads and not early }}
        {{ locate(i) }}
        {% for l in range(turns) %}
        {% for j in range(0, fragments_n, 2 if eight else 1) %}
        {{ ("if (lane < " ~ vectors ~ "u) ") if subgroup > vectors }}{
        {{ inside(l, l ~ "_" ~ j) }}{
            {% set read = "vec4<f32>(read" ~ i ~ "_" ~ l ~ "_" ~ j ~ ")" %}
            let value = v{{ i }}_{{ j }}_{{ l }}{{ " + bias" ~ j if bias }}{{ " + " ~ read if accumulate }};
            {% if eight %}
            let right = v{{ i }}_{{ j + 1 }}_{{ l }}{{ " + bias" ~ (j + 1) if bias }};
            {% endif %}
            {% for output, function in outputs %}
            {% if eight %}
            {{ output }}[at{{ l }}_{{ j }} / 2u] = eight_f16({{ function }}(value), {{ function }}(right));
            {% else %}
            {% set factor = " * " ~ read if epilogue == "multiply" else "" %}
            {{ output }}[at{{ l }}_{{ j }}] = vec4<{{ T_out }}>({{ function }}(value){{ factor }});
            {% endif %}
            {% endfor %}
        }
        }
        {% endfor %}
        {% endfor %}
    }
    {% endfor %}
}
