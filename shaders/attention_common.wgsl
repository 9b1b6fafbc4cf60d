{# Sizes, workgroup memory, loads, stores and GEMMs of tiles that attention_forward and attention_backward share. #}
{% set groups = (head_size + 3) // 4 %}
{% set tx_count = cols // 4 %}
{% set ty_count = rows // rows_per_thread %}
{% set threads = tx_count * ty_count %}
{% set chunks = (groups + span - 1) // span %}
{% set chunk = (groups + chunks - 1) // chunks %}
{% set owned = (groups + tx_count - 1) // tx_count %}
{% set xyzw = ["x", "y", "z", "w"] %}
{% set element = "vec4<" ~ T ~ ">" if vector else T %}

const HEAD_SIZE = {{ head_size }}u;
// The head in groups of four elements, and how many of them are staged at a time.
const GROUPS = {{ groups }}u;
const CHUNKS = {{ chunks }}u;
const CHUNK = {{ chunk }}u;
// The room of a staged line: 4 or 8.
const SPAN = {{ span }}u;
const ROWS = {{ rows }}u;
const COLS = {{ cols }}u;
const TX = {{ tx_count }}u;
const TY = {{ ty_count }}u;
const THREADS = {{ threads }}u;
// Groups of four columns whose values are staged at a time: as many as the stage holds.
const STAGED = {{ staged }}u;

// What the matmuls read: rows and columns of a chunk of the head, or columns with their whole head. Group d of line i
// lies at `swizzle(i, d)`, so that neighbouring threads, which read neighbouring lines, meet different banks. Column
// 4 t + c is line c TX + t, so that neighbouring threads do read neighbouring lines.
var<workgroup> stage: array<vec4<f32>, {{ stage }}>;
// The tile of P or dS, columns in groups of four; between two tiles the threads exchange row maxima through it.
var<workgroup> tile: array<vec4<f32>, ROWS * TX>;

fn swizzle(line: u32, d: u32) -> u32 {
    return line * SPAN + (d ^ (line / {{ 8 // span }}u & (SPAN - 1u)));
}
fn at_tile(row: u32, four: u32) -> u32 {
    return row * TX + (four ^ (row & 7u));
}

{% include "attention_blocks" %}
// Set by `locate_block` and `each_query_head`, which say what they are.
var<private> first_row: u32;
var<private> head: u32;
var<private> kv_head: u32;
var<private> batch_head: u32;

// The number, among the heads of all rows, of a row's `head` of packed queries, keys and values.
fn packed(row: u32, head: u32) -> u32 {
    return (first_row + row) * (params.n_head + 2u * params.n_kv_head) + head;
}

// Four elements of head number `line`; zeros beyond its end and beyond T.
{% for buffer in (["qkv"] if pass == "forward" else ["qkv", "dy", "result"]) %}
fn load_from_{{ buffer }}(line: u32, row: u32, group: u32) -> vec4<f32> {
    {% if edge %}
    if (row >= params.time || group >= GROUPS) { return vec4<f32>(0.0); }
    {% endif %}
    {% if vector %}
    return vec4<f32>({{ buffer }}[line * GROUPS + group]);
    {% else %}
    let at = line * HEAD_SIZE + group * 4u;
    let last = HEAD_SIZE - 1u - group * 4u;
    let lane = vec4<u32>(0u, 1u, 2u, 3u);
    let index = at + min(lane, vec4<u32>(last));
    let value = vec4<{{ T }}>(
        {{ buffer }}[index.x],
        {{ buffer }}[index.y],
        {{ buffer }}[index.z],
        {{ buffer }}[index.w],
    );
    return select(vec4<f32>(0.0), vec4<f32>(value), lane <= vec4<u32>(last));
    {% endif %}
}
{% endfor %}
fn at_q(row: u32) -> u32 { return packed(row, head); }
fn at_k(row: u32) -> u32 { return packed(row, params.n_head + kv_head); }
fn at_v(row: u32) -> u32 { return packed(row, params.n_head + params.n_kv_head + kv_head); }
fn at_y(row: u32) -> u32 { return (first_row + row) * params.n_head + head; }
{% for name in ["q", "k", "v"] %}
fn load_{{ name }}(row: u32, group: u32) -> vec4<f32> { return load_from_qkv(at_{{ name }}(row), row, group); }
{% endfor %}
{% if pass != "forward" %}
fn load_dy(row: u32, group: u32) -> vec4<f32> { return load_from_dy(at_y(row), row, group); }
{% endif %}

fn store(line: u32, row: u32, group: u32, value: vec4<f32>) {
    {% if edge %}
    if (row >= params.time || group >= GROUPS) { return; }
    {% endif %}
    {% if vector %}
    result[line * GROUPS + group] = vec4<{{ T }}>(value);
    {% else %}
    let at = line * HEAD_SIZE + group * 4u;
    let left = HEAD_SIZE - group * 4u;
    result[at] = {{ T }}(value.x);
    if (left > 1u) { result[at + 1u] = {{ T }}(value.y); }
    if (left > 2u) { result[at + 2u] = {{ T }}(value.z); }
    if (left > 3u) { result[at + 3u] = {{ T }}(value.w); }
    {% endif %}
}

{% if dropout %}
// What dropout multiplies P by: 0, or 1/(1-p). `Key::row(..).mask_bits(..)` of src/ops/random.rs: a key for each query,
// then a number for each element.
fn query_keys(queries: vec4<u32>) -> vec4<u32> {
    return mix_bits4((queries + (params.mask_row + batch_head * params.time)) ^ vec4<u32>(params.key0));
}
fn kept(query_keys: vec4<u32>, keys: vec4<u32>) -> vec4<f32> {
    return select(
        vec4<f32>(0.0),
        vec4<f32>(params.keep_scale),
        mask_bits4(keys, query_keys, params.key1) >= vec4<u32>(params.drop_threshold),
    );
}
{% endif %}

{# Loads `lines` x `width` vectors, spread over all threads, into v0, v1, ..; `value` is an expression of line and d. #}
{% macro fetch(v, lines, width, value) %}
{% for l in range((lines * width + threads - 1) // threads) %}
            {
                let x = thread + {{ l * threads }}u;
                let line = x / {{ width }}u;
                let d = x % {{ width }}u;
                {{ "if (x < " ~ (lines * width) ~ "u) " if (l + 1) * threads > lines * width }}{
                    {{ v }}{{ l }} = {{ value }};
                }
            }
{% endfor %}
{% endmacro %}
{# Writes them to workgroup memory; `at` is an expression of x, line and d. #}
{% macro put(v, lines, width, at, memory="stage") %}
{% for l in range((lines * width + threads - 1) // threads) %}
            {
                let x = thread + {{ l * threads }}u;
                let line = x / {{ width }}u;
                let d = x % {{ width }}u;
                {{ "if (x < " ~ (lines * width) ~ "u) " if (l + 1) * threads > lines * width }}{
                    {{ memory }}[{{ at }}] = {{ v }}{{ l }};
                }
            }
{% endfor %}
{% endmacro %}
{% macro declare(v, lines, width) %}
{% for l in range((lines * width + threads - 1) // threads) %}
            var {{ v }}{{ l }}: vec4<f32>;
{% endfor %}
{% endmacro %}

{# Starts to load what the product of a and b reads first. #}
{% macro fetch_product(a, b) %}
        {
            let first = 0u;
            {{ fetch("row_" ~ a, rows, chunk, "load_" ~ a ~ "(row_base + line, first + d)") }}
            {{ fetch("col_" ~ b, cols, chunk, "load_" ~ b ~ "(col_base + line % TX * 4u + line / TX, first + d)") }}
        }
{% endmacro %}

{# s0, s1, .. = a b^T of a tile: rows of a from row_base, rows of b from col_base. `fetch_product` went before. #}
{% macro product(s, a, b) %}
        {% for r in range(rows_per_thread) %}
        var {{ s }}{{ r }} = vec4<f32>(0.0);
        {% endfor %}
        for (var chunk = 0u; chunk < CHUNKS; chunk++) {
            workgroupBarrier(); // all are done with what the stage held
            {{ put("row_" ~ a, rows, chunk, "swizzle(line, d)") }}
            {{ put("col_" ~ b, cols, chunk, "swizzle(ROWS + line, d)") }}
            workgroupBarrier();
            {% if chunks > 1 %}
            if (chunk + 1u < CHUNKS) {
                let first = (chunk + 1u) * CHUNK;
                {{ fetch("row_" ~ a, rows, chunk, "load_" ~ a ~ "(row_base + line, first + d)") }}
                {{ fetch("col_" ~ b, cols, chunk, "load_" ~ b ~ "(col_base + line % TX * 4u + line / TX, first + d)") }}
            }
            {% endif %}
            {% for d in range(chunk) %}
            {
                // Lines of one thread are multiples of 8 apart, so that the swizzle is the same for all of them.
                let from_a = swizzle(ty, {{ d }}u);
                let from_b = swizzle(ROWS + tx, {{ d }}u);
                {% for c in range(4) %}
                let b_{{ c }} = stage[from_b + {{ c }}u * TX * SPAN];
                {% endfor %}
                {% for c in xyzw %}
                let b_{{ c }} = vec4<f32>(b_0.{{ c }}, b_1.{{ c }}, b_2.{{ c }}, b_3.{{ c }});
                {% endfor %}
                {% for r in range(rows_per_thread) %}
                let a{{ r }} = stage[from_a + {{ r }}u * TY * SPAN];
                {% for c in xyzw %}
                {{ s }}{{ r }} = fma(vec4<f32>(a{{ r }}.{{ c }}), b_{{ c }}, {{ s }}{{ r }});
                {% endfor %}
                {% endfor %}
            }
            {% endfor %}
        }
{% endmacro %}

{# Starts to load the values that `accumulate` reads first. #}
{% macro fetch_values(b) %}
        {
            let first = 0u;
            {{ fetch("values_" ~ b, 4 * staged, groups, "load_" ~ b ~ "(col_base + first * 4u + line, d)") }}
        }
{% endmacro %}

{# sum += tile * b, rows of b from col_base; `fetch_values` went before. The barriers show all threads the tile. #}
{% macro accumulate(sum, b) %}
{% set unrolled = [4, staged] | min %}
        for (var first = 0u; first < TX; first += STAGED) {
            workgroupBarrier(); // all are done with what the stage held
            {{ put("values_" ~ b, 4 * staged, groups, "x") }}
            workgroupBarrier();
            {% if staged < cols // 4 %}
            if (first + STAGED < TX) {
                {% set row = "col_base + (first + STAGED) * 4u + line" %}
                {{ fetch("values_" ~ b, 4 * staged, groups, "load_" ~ b ~ "(" ~ row ~ ", d)") }}
            }
            {% endif %}
            for (var k4 = 0u; k4 < STAGED; k4 += {{ unrolled }}u) {
                {% for k in range(unrolled) %}
                {
                let k = k4 + {{ k }}u;
                let at_w = at_tile(ty, first + k);
                {% for r in range(rows_per_thread) %}
                let w{{ r }} = tile[at_w + {{ r }}u * TY * TX];
                {% endfor %}
                {% for n in range(owned) %}
                // A thread without a group of its own here repeats the last one and does not store it.
                let at{{ n }} = k * 4u * GROUPS + min({{ n }}u * TX + tx, GROUPS - 1u);
                {% endfor %}
                {% for c in range(4) %}
                {% for n in range(owned) %}
                let b{{ n }}_{{ c }} = stage[at{{ n }} + {{ c }}u * GROUPS];
                {% endfor %}
                {% for r in range(rows_per_thread) %}
                {% for n in range(owned) %}
                {% set target = sum ~ r ~ "_" ~ n %}
                {{ target }} = fma(vec4<f32>(w{{ r }}.{{ xyzw[c] }}), b{{ n }}_{{ c }}, {{ target }});
                {% endfor %}
                {% endfor %}
                {% endfor %}
                }
                {% endfor %}
            }
        }
{% endmacro %}

{# The accumulators of a result. #}
{% macro zeros(sum) %}
    {% for r in range(rows_per_thread) %}
    {% for n in range(owned) %}
    var {{ sum }}{{ r }}_{{ n }} = vec4<f32>(0.0);
    {% endfor %}
    {% endfor %}
{% endmacro %}

{# The tile = w0, w1, .. #}
{% macro write_tile(w) %}
        {% for r in range(rows_per_thread) %}
        tile[at_tile(ty, tx) + {{ r }}u * TY * TX] = {{ w }}{{ r }};
        {% endfor %}
{% endmacro %}

{# Where this thread works. #}
{% macro locate() %}
    {{ locate_block("") }}
    // 32 neighbours make a patch of 4 x 8 blocks of the tile: they read fewer lines than a strip would.
    let block = thread / 32u;
    let tx = block % (TX / 8u) * 8u + thread % 8u;
    let ty = block / (TX / 8u) * 4u + thread % 32u / 8u;
    {% for r in range(rows_per_thread) %}
    let row{{ r }} = row_base + {{ r }}u * TY + ty;
    {% endfor %}
    const LANES = vec4<u32>(0u, 1u, 2u, 3u);
{% endmacro %}
