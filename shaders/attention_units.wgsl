// Causal attention of f16 on the GPU's matrix units, added up in f32: FlashAttention-2 (Dao 2023) where the products of tiles
// are those of {{ side }} x {{ side }} matrices that a subgroup's threads hold together. Formulas: src/ops/attention/mod.rs.
//
// A workgroup owns ROWS rows of one head (queries; in the pass "keys", keys), each of its subgroups PIECES times {{ side }} of them,
// and walks over tiles of COLS columns, staged in workgroup memory. Single elements of these matrices cannot be read, so a
// product leaves the units by way of `scores`, {{ side }} rows of each subgroup at a time; its threads, LANES to a row, make
// weights of them, and these return as the left side of the next product by way of `weights`.
enable f16;
enable wgpu_cooperative_matrix;
{{ interface }}

{% set groups = head_size // 4 %}
{% set depth = head_size // side %}
{% set across = cols // side %}
{% set fours = cols // 4 %}
{% set lanes = subgroup // side %}
{% set own = fours // lanes %}
{% set threads = subgroups * subgroup %}
{% set rows = subgroups * pieces * side %}
{# Vectors from one row to the next of what is staged: padded against conflicts of banks. #}
{% set head_line = groups + 2 %}
{% set line = fours + 2 %}
{# Of the statistics of a tile's columns, so many are loaded by a thread. #}
{% set turns = (cols + threads - 1) // threads %}
{% set mat = "coop_mat" ~ side ~ "x" ~ side %}

// The head in groups of four elements.
const GROUPS = {{ groups }}u;
const ROWS = {{ rows }}u;
const COLS = {{ cols }}u;
const THREADS = {{ threads }}u;
// Threads that share a row of scores: each has every LANES-th group of four columns.
const LANES = {{ lanes }}u;
const HEAD_LINE = {{ head_line }}u;
const LINE = {{ line }}u;
const XYZW = vec4<u32>(0u, 1u, 2u, 3u);

{% set tiles = {"forward": ["k", "v"], "keys": ["q", "dy"], "queries": ["k"]}[pass] %}
{% for name in tiles %}
var<workgroup> tile_{{ name }}: array<vec4<f16>, COLS * HEAD_LINE>;
{% endfor %}
var<workgroup> scores: array<vec4<f32>, {{ subgroups * side * line }}>;
{% if pass == "queries" %}
// dS^T of a tile: columns by rows.
const PART_LINE = ROWS / 4u + 2u;
var<workgroup> part: array<vec4<f16>, COLS * PART_LINE>;
{% else %}
var<workgroup> weights: array<vec4<f16>, {{ subgroups * pieces * side * line }}>;
{% endif %}
{% if pass == "forward" %}
// Something of each thread for the others of its row.
var<workgroup> of_rows: array<f32, {{ pieces * threads }}>;
// Whether a score of this tile is too large for its row's reference. As wide as the alignment that the units need of the
// arrays, which may come after it.
var<workgroup> grow: vec4<u32>;
{% elif pass == "keys" %}
var<workgroup> tile_lse: array<vec4<f32>, COLS / 4u>;
var<workgroup> tile_delta: array<vec4<f32>, COLS / 4u>;
{% endif %}

// Where a group of four elements of a row of q, k and v lies in qkv, and of dy in dy.
fn at_qkv(row: u32, third: u32, head: u32, group: u32) -> u32 { return ((row * 3u + third) * params.n_head + head) * GROUPS + group; }
fn at_dy(row: u32, head: u32, group: u32) -> u32 { return (row * params.n_head + head) * GROUPS + group; }

{# Four elements of a row of q, k, v or dy. #}
{% macro load(what, row, group) %}
{% if what == "dy" %}
dy[at_dy(first_row + {{ row }}, head, {{ group }})]
{%- else %}
qkv[at_qkv(first_row + {{ row }}, {{ {"q": 0, "k": 1, "v": 2}[what] }}u, head, {{ group }})]
{%- endif %}
{% endmacro %}

{# Loads a tile of `width` vectors a line into v0, v1, ..; `value` and `condition` are expressions of l (the line) and d. #}
{% macro fetch(v, lines, width, value, condition) %}
{% for i in range((lines * width + threads - 1) // threads) %}
        { let x = thread + {{ i * threads }}u; let l = x / {{ width }}u; let d = x % {{ width }}u; {{ v }}{{ i }} = vec4<f16>(); {{ "if (x < " ~ (lines * width) ~ "u) { " if (i + 1) * threads > lines * width }}{{ "if (" ~ condition ~ ") " if condition }}{ {{ v }}{{ i }} = {{ value }}; } {{ "} " if (i + 1) * threads > lines * width }}}
{% endfor %}
{% endmacro %}
{% macro declare(v, lines, width) %}
{% for i in range((lines * width + threads - 1) // threads) %}
    var {{ v }}{{ i }}: vec4<f16>;
{% endfor %}
{% endmacro %}
{# Writes it to workgroup memory. #}
{% macro put(v, lines, width, memory, stride) %}
{% for i in range((lines * width + threads - 1) // threads) %}
        { let x = thread + {{ i * threads }}u; let l = x / {{ width }}u; let d = x % {{ width }}u; {{ "if (x < " ~ (lines * width) ~ "u) " if (i + 1) * threads > lines * width }}{ {{ memory }}[l * {{ stride }} + d] = {{ v }}{{ i }}; } }
{% endfor %}
{% endmacro %}

{# Starts to load the tile that begins with column `from`; zeros beyond T. #}
{% macro fetch_tile(from) %}
        {
        let next = {{ from }};
        {% set in_time = "next + l < params.time" if edge else "" %}
        {% for name in tiles %}
        {{ fetch(name, cols, groups, load(name, "next + l", "d"), in_time) }}
        {% endfor %}
        {% if pass == "keys" %}
        // Beyond T, where q and dy are 0 too, 0: such a query adds nothing to any gradient.
        {% for i in range(turns) %}
        {
            let x = thread + {{ i * threads }}u;
            lse{{ i }} = 0.0;
            delta{{ i }} = 0.0;
            if (x < COLS{{ " && next + x < params.time" if edge }}) {
                lse{{ i }} = lse[batch_head * params.time + next + x];
                delta{{ i }} = delta[batch_head * params.time + next + x];
            }
        }
        {% endfor %}
        {% elif pass == "queries" %}
        // Of a key only queries from its own on were written.
        {{ fetch("part", cols, rows // 4, "slab[(batch_head * params.time + next + l) * (params.slab_rows / 4u) + (row_base - params.slab_begin) / 4u + d]", "row_base + d * 4u + 3u >= next + l" ~ (" && " ~ in_time if edge else "")) }}
        {% endif %}
        }
{% endmacro %}

{# Reads the subgroup's rows of q, k or v, as left sides {name}{piece}_{depth}, by way of `weights`. #}
{% macro load_rows(name) %}
    {% for i in range(pieces) %}
    {% for d in range(depth) %}
    var {{ name }}{{ i }}_{{ d }}: {{ mat }}<f16, A>;
    {% endfor %}
    {% endfor %}
    {% for first in range(0, groups, fours) %}
    {% set width = [fours, groups - first] | min %}
    for (var x = lane; x < {{ pieces * side * width }}u; x += {{ subgroup }}u) {
        let row = unit_row + x / {{ width }}u;
        var value: vec4<f16>;
        {{ "if (row < params.time) " if edge }}{ value = {{ load(name, "row", first ~ "u + x % " ~ width ~ "u") }}; }
        weights[weights_at + x / {{ width }}u * LINE + x % {{ width }}u] = value;
    }
    workgroupBarrier();
    {% for i in range(pieces) %}
    {% for d in range(width * 4 // side) %}
    {{ name }}{{ i }}_{{ first * 4 // side + d }} = coopLoadT<{{ mat }}<f16, A>>(&weights[weights_at + {{ i * side * line + d * side // 4 }}u], LINE);
    {% endfor %}
    {% endfor %}
    workgroupBarrier();
    {% endfor %}
{% endmacro %}

{# {s}{piece}_{column} = the subgroup's rows `a` times the staged rows `b`, transposed. #}
{% macro product(s, a, b) %}
        {% for i in range(pieces) %}
        {% for j in range(across) %}
        var {{ s }}{{ i }}_{{ j }}: {{ mat }}<f32, C>;
        {% endfor %}
        {% endfor %}
        {% for d in range(depth) %}
        {% for j in range(across) %}
        {
            let right = coopLoad<{{ mat }}<f16, B>>(&tile_{{ b }}[{{ j * side }}u * HEAD_LINE + {{ d * side // 4 }}u], HEAD_LINE);
            {% for i in range(pieces) %}
            {{ s }}{{ i }}_{{ j }} = coopMultiplyAdd({{ a }}{{ i }}_{{ d }}, right, {{ s }}{{ i }}_{{ j }});
            {% endfor %}
        }
        {% endfor %}
        {% endfor %}
{% endmacro %}

{# {sum}{piece}_{depth} += the subgroup's weights times the staged rows `b`. #}
{% macro accumulate(sum, b) %}
        {% for k in range(across) %}
        {
            {% for i in range(pieces) %}
            let left{{ i }} = coopLoadT<{{ mat }}<f16, A>>(&weights[weights_at + {{ i * side * line + k * side // 4 }}u], LINE);
            {% endfor %}
            {% for d in range(depth) %}
            {
                let right = coopLoadT<{{ mat }}<f16, B>>(&tile_{{ b }}[{{ k * side }}u * HEAD_LINE + {{ d * side // 4 }}u], HEAD_LINE);
                {% for i in range(pieces) %}
                {{ sum }}{{ i }}_{{ d }} = coopMultiplyAdd(left{{ i }}, right, {{ sum }}{{ i }}_{{ d }});
                {% endfor %}
            }
            {% endfor %}
        }
        {% endfor %}
{% endmacro %}

{# The accumulators of a result. #}
{% macro zeros(sum) %}
    {% for i in range(pieces) %}
    {% for d in range(depth) %}
    var {{ sum }}{{ i }}_{{ d }}: {{ mat }}<f32, C>;
    {% endfor %}
    {% endfor %}
{% endmacro %}

{# Writes neighbouring matrices {s}{first}, .. to `scores`. naga wants every argument of a store to be a name. #}
{% macro to_scores(s, first, count) %}
        {% for j in range(count) %}
        {
            let values = {{ s }}{{ first + j }};
            let to = scores_at + {{ j * side // 4 }}u;
            let stride = LINE;
            coopStoreT(values, &scores[to], stride);
        }
        {% endfor %}
{% endmacro %}

{# Writes the accumulators {sum} to `result`, times the factor of their row; `at` begins the call that says where. #}
{% macro store_rows(sum, at, factor="") %}
    {% for i in range(pieces) %}
    {% for first in range(0, depth, across) %}
    {% set count = [across, depth - first] | min %}
    {{ to_scores(sum ~ i ~ "_", first, count) }}
    workgroupBarrier();
    for (var x = lane; x < {{ side * count * side // 4 }}u; x += {{ subgroup }}u) {
        let l = x / {{ count * side // 4 }}u;
        let d = x % {{ count * side // 4 }}u;
        let row = unit_row + {{ i * side }}u + l;
        {{ "if (row < params.time) " if edge }}{
            result[{{ at }}{{ first * side // 4 }}u + d)] = vec4<f16>(scores[scores_at + l * LINE + d]{{ " * of_rows[" ~ i * threads ~ "u + unit * " ~ subgroup ~ "u + l * LANES]" if factor }});
        }
    }
    workgroupBarrier();
    {% endfor %}
    {% endfor %}
{% endmacro %}

{# Reads accumulators back from a third of the packed gradient. #}
{% macro load_part(sum, third) %}
    {% for i in range(pieces) %}
    {% for first in range(0, depth, across) %}
    {% set count = [across, depth - first] | min %}
    for (var x = lane; x < {{ side * count * side // 4 }}u; x += {{ subgroup }}u) {
        let l = x / {{ count * side // 4 }}u;
        let d = x % {{ count * side // 4 }}u;
        let row = unit_row + {{ i * side }}u + l;
        var value: vec4<f32>;
        {{ "if (row < params.time) " if edge }}{ value = vec4<f32>(result[at_qkv(first_row + row, {{ third }}u, head, {{ first * side // 4 }}u + d)]); }
        scores[scores_at + l * LINE + d] = value;
    }
    workgroupBarrier();
    {% for j in range(count) %}
    {{ sum }}{{ i }}_{{ first + j }} = coopLoadT<{{ mat }}<f32, C>>(&scores[scores_at + {{ j * side // 4 }}u], LINE);
    {% endfor %}
    workgroupBarrier();
    {% endfor %}
    {% endfor %}
{% endmacro %}

{{ entry("THREADS") }}
    {% if pass == "forward" %}
    let first_block = 0u;
    let blocks = (params.time + ROWS - 1u) / ROWS;
    {% else %}
    let first_block = {{ "0u" if pass == "keys" else "params.slab_begin / ROWS" }};
    let slab_end = min(params.slab_begin + params.slab_rows, params.time);
    let blocks = (slab_end + ROWS - 1u) / ROWS - first_block;
    {% endif %}
    if (workgroup >= blocks * params.batch_heads) { return; }
    let batch_head = workgroup % params.batch_heads;
    // This head of all, and the first row of this batch item among all (b T).
    let head = batch_head % params.n_head;
    let first_row = batch_head / params.n_head * params.time;
    // Workgroups with most tiles start first.
    {% if pass == "keys" %}
    let row_base = workgroup / params.batch_heads * ROWS;
    {% else %}
    let row_base = (first_block + blocks - 1u - workgroup / params.batch_heads) * ROWS;
    {% endif %}
    let unit = thread / {{ subgroup }}u;
    let lane = thread % {{ subgroup }}u;
    // The subgroup's first row, and where its parts of the workgroup's memory begin.
    let unit_row = row_base + unit * {{ pieces * side }}u;
    let scores_at = unit * {{ side }}u * LINE;
    {% if pass != "queries" %}
    let weights_at = unit * {{ pieces * side }}u * LINE;
    // This thread's place in `scores`: a row, and the first of its groups of four columns.
    let my_row = lane / LANES;
    let my_four = lane % LANES;
    let my_score = scores_at + my_row * LINE + my_four;
    let my_weight = weights_at + my_row * LINE + my_four;
    {% endif %}

{% if pass == "forward" %}
    // A row's weights are exp(S - reference): its first tile's maximum, until a score exceeds that by SLACK, so that sums
    // in the units' matrices need to be scaled down almost never. exp(SLACK) is well within f16.
    const SLACK = 10.0;
    // Less than any score, and not infinite, because WGSL promises nothing about infinities.
    const MASKED = -1e30;
    // Where a row's reference begins: above what is masked, so that a row of nothing but -infinity has no weights, and ends as NaN.
    const UNSEEN = -1e29;
    {% for i in range(pieces) %}
    var reference{{ i }} = UNSEEN;
    var total{{ i }} = 0.0; // of this thread's columns only, until the end
    {% endfor %}
    if (thread == 0u) { grow = vec4<u32>(); }
    {{ load_rows("q") }}
    {{ zeros("sum") }}
    let tiles = (min(row_base + ROWS, params.time) + COLS - 1u) / COLS;
    {{ declare("k", cols, groups) }}
    {{ declare("v", cols, groups) }}
    {{ fetch_tile("0u") }}
    for (var tile = 0u; tile < tiles; tile += 1u) {
        let col_base = tile * COLS;
        workgroupBarrier(); // all are done with the tile before
        {{ put("k", cols, groups, "tile_k", "HEAD_LINE") }}
        {{ put("v", cols, groups, "tile_v", "HEAD_LINE") }}
        workgroupBarrier();
        if (tile + 1u < tiles) {
            {{ fetch_tile("col_base + COLS") }}
        }
        {{ product("s", "q", "k") }}
        let diagonal = col_base + COLS > row_base + 1u;
        {% for i in range(pieces) %}
        {{ "workgroupBarrier(); // all have read the piece before" if i > 0 }}
        {{ to_scores("s" ~ i ~ "_", 0, across) }}
        workgroupBarrier();
        let row{{ i }} = unit_row + {{ i * side }}u + my_row;
        {% for c in range(own) %}
        var score{{ i }}_{{ c }} = scores[my_score + {{ c }}u * LANES] * params.scale;
        {% endfor %}
        if (diagonal) {
            {% for c in range(own) %}
            score{{ i }}_{{ c }} = select(vec4<f32>(MASKED), score{{ i }}_{{ c }}, XYZW + (col_base + (my_four + {{ c }}u * LANES) * 4u) <= vec4<u32>(row{{ i }}));
            {% endfor %}
        }
        var highest{{ i }} = score{{ i }}_0;
        {% for c in range(1, own) %}
        highest{{ i }} = max(highest{{ i }}, score{{ i }}_{{ c }});
        {% endfor %}
        let high{{ i }} = max(max(highest{{ i }}.x, highest{{ i }}.y), max(highest{{ i }}.z, highest{{ i }}.w));
        if (high{{ i }} > reference{{ i }} + SLACK) { grow = vec4<u32>(1u); }
        {% endfor %}
        if (workgroupUniformLoad(&grow).x != 0u) {
            if (thread == 0u) { grow = vec4<u32>(); }
            {% for i in range(pieces) %}
            of_rows[{{ i * threads }}u + thread] = high{{ i }};
            {% endfor %}
            workgroupBarrier();
            {% for i in range(pieces) %}
            {
                var higher = reference{{ i }};
                for (var l = 0u; l < LANES; l++) { higher = max(higher, of_rows[{{ i * threads }}u + thread - my_four + l]); }
                let shrink = exp(reference{{ i }} - higher);
                reference{{ i }} = higher;
                total{{ i }} *= shrink;
                {% for first in range(0, depth, across) %}
                {% set count = [across, depth - first] | min %}
                {{ to_scores("sum" ~ i ~ "_", first, count) }}
                workgroupBarrier();
                for (var c = my_four; c < {{ count * side // 4 }}u; c += LANES) { scores[scores_at + my_row * LINE + c] *= shrink; }
                workgroupBarrier();
                {% for j in range(count) %}
                sum{{ i }}_{{ first + j }} = coopLoadT<{{ mat }}<f32, C>>(&scores[scores_at + {{ j * side // 4 }}u], LINE);
                {% endfor %}
                workgroupBarrier();
                {% endfor %}
            }
            {% endfor %}
        }
        {% for i in range(pieces) %}
        {% if dropout %}
        let query_key{{ i }} = vec4<u32>(mix_bits((row{{ i }} + params.mask_row + batch_head * params.time) ^ params.key0));
        {% endif %}
        {% for c in range(own) %}
        {
            let weight = exp(score{{ i }}_{{ c }} - reference{{ i }});
            total{{ i }} += weight.x + weight.y + weight.z + weight.w;
            {% if dropout %}
            let kept = kept4(XYZW + (col_base + (my_four + {{ c }}u * LANES) * 4u), query_key{{ i }}, params.key1, params.drop_threshold);
            weights[my_weight + {{ i * side * line }}u + {{ c }}u * LANES] = vec4<f16>(select(vec4<f32>(), weight, kept));
            {% else %}
            weights[my_weight + {{ i * side * line }}u + {{ c }}u * LANES] = vec4<f16>(weight);
            {% endif %}
        }
        {% endfor %}
        {% endfor %}
        workgroupBarrier();
        {{ accumulate("sum", "v") }}
    }
    {% for i in range(pieces) %}
    of_rows[{{ i * threads }}u + thread] = total{{ i }};
    {% endfor %}
    workgroupBarrier();
    {% for i in range(pieces) %}
    var all{{ i }} = 0.0;
    for (var l = 0u; l < LANES; l++) { all{{ i }} += of_rows[{{ i * threads }}u + thread - my_four + l]; }
    {
        let row = unit_row + {{ i * side }}u + my_row;
        if (my_four == 0u && row < params.time) { lse[batch_head * params.time + row] = reference{{ i }} + log(all{{ i }}); }
    }
    {% endfor %}
    workgroupBarrier();
    {% for i in range(pieces) %}
    of_rows[{{ i * threads }}u + thread] = {{ "params.keep_scale" if dropout else "1.0" }} / all{{ i }};
    {% endfor %}
    {{ store_rows("sum", "at_dy(first_row + row, head, ", "of its row") }}

{% elif pass == "keys" %}
    // Rows are keys, columns are the queries of the slab: tiles of S^T. dV = P^T dO, dK = dS^T Q, added to those of the
    // slabs before.
    {{ load_rows("k") }}
    {{ load_rows("v") }}
    {{ zeros("dk") }}
    {{ zeros("dv") }}
    if (row_base < params.slab_begin) {
        {{ load_part("dk", 1) }}
        {{ load_part("dv", 2) }}
    }
    {{ declare("q", cols, groups) }}
    {{ declare("dy", cols, groups) }}
    {% for i in range(turns) %}
    var lse{{ i }}: f32;
    var delta{{ i }}: f32;
    {% endfor %}
    let first = max(row_base / COLS * COLS, params.slab_begin);
    {{ fetch_tile("first") }}
    for (var col_base = first; col_base < slab_end; col_base += COLS) {
        workgroupBarrier(); // all are done with the tile before
        {{ put("q", cols, groups, "tile_q", "HEAD_LINE") }}
        {{ put("dy", cols, groups, "tile_dy", "HEAD_LINE") }}
        {% for i in range(turns) %}
        {
            let x = thread + {{ i * threads }}u;
            if (x < COLS) {
                tile_lse[x / 4u][x % 4u] = lse{{ i }};
                tile_delta[x / 4u][x % 4u] = delta{{ i }};
            }
        }
        {% endfor %}
        workgroupBarrier();
        if (col_base + COLS < slab_end) {
            {{ fetch_tile("col_base + COLS") }}
        }
        {{ product("s", "k", "q") }}
        {{ product("dp", "v", "dy") }}
        let diagonal = col_base + 1u < row_base + ROWS;
        {% for i in range(pieces) %}
        let row{{ i }} = unit_row + {{ i * side }}u + my_row;
        {{ to_scores("s" ~ i ~ "_", 0, across) }}
        workgroupBarrier();
        {% for c in range(own) %}
        var weight{{ i }}_{{ c }} = exp(scores[my_score + {{ c }}u * LANES] * params.scale - tile_lse[my_four + {{ c }}u * LANES]);
        {% endfor %}
        if (diagonal) {
            {% for c in range(own) %}
            weight{{ i }}_{{ c }} = select(vec4<f32>(), weight{{ i }}_{{ c }}, XYZW + (col_base + (my_four + {{ c }}u * LANES) * 4u) >= vec4<u32>(row{{ i }}));
            {% endfor %}
        }
        {% for c in range(own) %}
        {% if dropout %}
        let keep{{ i }}_{{ c }} = select(vec4<f32>(), vec4<f32>(params.keep_scale), kept4(
            vec4<u32>(row{{ i }}),
            mix_bits4((XYZW + (col_base + (my_four + {{ c }}u * LANES) * 4u + params.mask_row + batch_head * params.time)) ^ vec4<u32>(params.key0)),
            params.key1,
            params.drop_threshold,
        ));
        weights[my_weight + {{ i * side * line }}u + {{ c }}u * LANES] = vec4<f16>(weight{{ i }}_{{ c }} * keep{{ i }}_{{ c }});
        {% else %}
        weights[my_weight + {{ i * side * line }}u + {{ c }}u * LANES] = vec4<f16>(weight{{ i }}_{{ c }});
        {% endif %}
        {% endfor %}
        workgroupBarrier();
        {% endfor %}
        {{ accumulate("dv", "dy") }}
        {% for i in range(pieces) %}
        {{ to_scores("dp" ~ i ~ "_", 0, across) }}
        workgroupBarrier();
        {% for c in range(own) %}
        {
            let dp = scores[my_score + {{ c }}u * LANES];
            let ds = weight{{ i }}_{{ c }} * ({{ "keep" ~ i ~ "_" ~ c ~ " * " if dropout }}dp - tile_delta[my_four + {{ c }}u * LANES]) * params.scale;
            weights[my_weight + {{ i * side * line }}u + {{ c }}u * LANES] = vec4<f16>(ds);
        }
        {% endfor %}
        workgroupBarrier();
        {% endfor %}
        for (var x = lane; x < {{ pieces * side * fours }}u; x += {{ subgroup }}u) {
            let row = unit_row + x / {{ fours }}u;
            {{ "if (row < params.time) " if edge }}{
                slab[(batch_head * params.time + row) * (params.slab_rows / 4u) + (col_base - params.slab_begin) / 4u + x % {{ fours }}u] = weights[weights_at + x / {{ fours }}u * LINE + x % {{ fours }}u];
            }
        }
        {{ accumulate("dk", "q") }}
    }
    workgroupBarrier();
    {{ store_rows("dk", "at_qkv(first_row + row, 1u, head, ") }}
    {{ store_rows("dv", "at_qkv(first_row + row, 2u, head, ") }}

{% else %}
    // Rows are queries of the slab, columns are keys. dQ = dS K, where dS comes from the slab as tiles of dS^T.
    {{ zeros("dq") }}
    {{ declare("k", cols, groups) }}
    {{ declare("part", cols, rows // 4) }}
    {{ fetch_tile("0u") }}
    let end = min(row_base + ROWS, params.time);
    for (var col_base = 0u; col_base < end; col_base += COLS) {
        workgroupBarrier(); // all are done with the tile before
        {{ put("k", cols, groups, "tile_k", "HEAD_LINE") }}
        {{ put("part", cols, rows // 4, "part", "PART_LINE") }}
        workgroupBarrier();
        if (col_base + COLS < end) {
            {{ fetch_tile("col_base + COLS") }}
        }
        {% for k in range(across) %}
        {
            {% for i in range(pieces) %}
            let from{{ i }} = {{ k * side }}u * PART_LINE + unit * {{ pieces * side // 4 }}u + {{ i * side // 4 }}u;
            let left{{ i }} = coopLoad<{{ mat }}<f16, A>>(&part[from{{ i }}], PART_LINE);
            {% endfor %}
            {% for d in range(depth) %}
            {
                let right = coopLoadT<{{ mat }}<f16, B>>(&tile_k[{{ k * side }}u * HEAD_LINE + {{ d * side // 4 }}u], HEAD_LINE);
                {% for i in range(pieces) %}
                dq{{ i }}_{{ d }} = coopMultiplyAdd(left{{ i }}, right, dq{{ i }}_{{ d }});
                {% endfor %}
            }
            {% endfor %}
        }
        {% endfor %}
    }
    workgroupBarrier();
    {{ store_rows("dq", "at_qkv(first_row + row, 0u, head, ") }}
{% endif %}
}
