// Causal attention without a T x T matrix in memory: FlashAttention-2 (Dao 2023). Formulas: src/ops/attention/mod.rs.
//
// Each pass is a chain of small GEMMs. A workgroup owns ROWS rows of one head (queries; in the pass "keys", keys) and
// walks over tiles of COLS columns. Its threads are a grid of TY x TX: of every tile of S, thread (ty, tx) computes the
// rows ty, ty + TY, ty + 2 TY, .. and the columns 4 tx .. 4 tx + 3; of the result it owns the same rows, and of each the
// groups of four elements tx, tx + TX, .. Tiles that causality empties are skipped; workgroups with most tiles start first.
// What the next product reads first is loaded before the barrier that frees the stage; what a pass needs after the next
// product, it parks in the tile rather than in registers. Queries, keys, values, results and their gradients are stored as
// {{ T }}; all arithmetic is f32.
{{ interface }}

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

{% if pass == "delta" %}
// delta = rowsum(dy * y), one thread per row and head.
{{ entry(256) }}
    let i = workgroup * 256u + thread;
    if (i >= params.batch_heads * params.time) { return; }
    var sum = 0.0;
    {% if vector %}
    for (var d = 0u; d < GROUPS; d++) { sum += dot(vec4<f32>(y[i * GROUPS + d]), vec4<f32>(dy[i * GROUPS + d])); }
    {% else %}
    for (var d = 0u; d < HEAD_SIZE; d++) { sum += f32(y[i * HEAD_SIZE + d]) * f32(dy[i * HEAD_SIZE + d]); }
    {% endif %}
    // i numbers (batch, time, head), delta is (batch, head, time).
    let head = i % params.n_head;
    let row = i / params.n_head;
    delta[(row / params.time * params.n_head + head) * params.time + row % params.time] = sum;
}
{% else %}

// What the products read: rows and columns of a chunk of the head, or columns with their whole head. Group d of line i lies
// at `swizzle(i, d)`, so that neighbouring threads, which read neighbouring lines, meet different banks. Column 4 t + c is
// line c TX + t, so that neighbouring threads do read neighbouring lines.
var<workgroup> stage: array<vec4<f32>, {{ stage }}>;
// The tile of P or dS, columns in groups of four; between two tiles the threads exchange row maxima through it.
var<workgroup> tile: array<vec4<f32>, ROWS * TX>;

fn swizzle(line: u32, d: u32) -> u32 {
    return line * SPAN + (d ^ (line / {{ 8 // span }}u & (SPAN - 1u)));
}
fn at_tile(row: u32, four: u32) -> u32 {
    return row * TX + (four ^ (row & 7u));
}

// The first row of this batch item among all (b T), this head, and both together (b n_head + head).
var<private> first_row: u32;
var<private> head: u32;
var<private> batch_head: u32;

// Four elements of a head; zeros beyond its end and beyond T.
{% for buffer in (["qkv"] if pass == "forward" else ["qkv", "dy", "result"]) %}
fn load_from_{{ buffer }}(line: u32, row: u32, group: u32) -> vec4<f32> {
    {% if edge %}
    if (row >= params.time || group >= GROUPS) { return vec4<f32>(0.0); }
    {% endif %}
    {% if vector %}
    return vec4<f32>({{ buffer }}[(line * params.n_head + head) * GROUPS + group]);
    {% else %}
    let at = (line * params.n_head + head) * HEAD_SIZE + group * 4u;
    let last = HEAD_SIZE - 1u - group * 4u;
    let lane = vec4<u32>(0u, 1u, 2u, 3u);
    let index = at + min(lane, vec4<u32>(last));
    let value = vec4<{{ T }}>({{ buffer }}[index.x], {{ buffer }}[index.y], {{ buffer }}[index.z], {{ buffer }}[index.w]);
    return select(vec4<f32>(0.0), vec4<f32>(value), lane <= vec4<u32>(last));
    {% endif %}
}
{% endfor %}
fn load_q(row: u32, group: u32) -> vec4<f32> { return load_from_qkv((first_row + row) * 3u, row, group); }
fn load_k(row: u32, group: u32) -> vec4<f32> { return load_from_qkv((first_row + row) * 3u + 1u, row, group); }
fn load_v(row: u32, group: u32) -> vec4<f32> { return load_from_qkv((first_row + row) * 3u + 2u, row, group); }
{% if pass != "forward" %}
fn load_dy(row: u32, group: u32) -> vec4<f32> { return load_from_dy(first_row + row, row, group); }
{% endif %}

fn store(line: u32, row: u32, group: u32, value: vec4<f32>) {
    {% if edge %}
    if (row >= params.time || group >= GROUPS) { return; }
    {% endif %}
    {% if vector %}
    result[(line * params.n_head + head) * GROUPS + group] = vec4<{{ T }}>(value);
    {% else %}
    let at = (line * params.n_head + head) * HEAD_SIZE + group * 4u;
    let left = HEAD_SIZE - group * 4u;
    result[at] = {{ T }}(value.x);
    if (left > 1u) { result[at + 1u] = {{ T }}(value.y); }
    if (left > 2u) { result[at + 2u] = {{ T }}(value.z); }
    if (left > 3u) { result[at + 3u] = {{ T }}(value.w); }
    {% endif %}
}

{% if pass != "forward" %}
fn in_slab(key: u32, four: u32) -> u32 {
    return (batch_head * params.time + key) * (params.slab_rows / 4u) + four - params.slab_begin / 4u;
}
fn load_slab(key: u32, four: u32) -> vec4<f32> {
    {% if edge %}
    if (key >= params.time) { return vec4<f32>(0.0); }
    {% endif %}
    return slab[in_slab(key, four)];
}
// A statistic of a query; 0 beyond T, where q and dy are 0 too, so that such a query adds nothing to any gradient.
fn lse_of(query: u32) -> f32 {
    {% if edge %}
    if (query >= params.time) { return 0.0; }
    {% endif %}
    return lse[batch_head * params.time + query];
}
fn delta_of(query: u32) -> f32 {
    {% if edge %}
    if (query >= params.time) { return 0.0; }
    {% endif %}
    return delta[batch_head * params.time + query];
}
{% endif %}

{% if dropout %}
// What dropout multiplies P by: 0, or 1/(1-p). `Key::row(..).bits(..)` of src/ops/random.rs: a key for each query, then a
// number for each element.
fn query_keys(queries: vec4<u32>) -> vec4<u32> {
    return mix_bits4((queries + (params.mask_row + batch_head * params.time)) ^ vec4<u32>(params.key0));
}
fn kept(query_keys: vec4<u32>, keys: vec4<u32>) -> vec4<f32> {
    return select(vec4<f32>(0.0), vec4<f32>(params.keep_scale), kept4(keys, query_keys, params.key1, params.drop_threshold));
}
{% endif %}

{# Loads `lines` x `width` vectors, spread over all threads, into v0, v1, ..; `value` is an expression of line and d. #}
{% macro fetch(v, lines, width, value) %}
{% for l in range((lines * width + threads - 1) // threads) %}
            { let x = thread + {{ l * threads }}u; let line = x / {{ width }}u; let d = x % {{ width }}u; {{ "if (x < " ~ (lines * width) ~ "u) " if (l + 1) * threads > lines * width }}{ {{ v }}{{ l }} = {{ value }}; } }
{% endfor %}
{% endmacro %}
{# Writes them to workgroup memory; `at` is an expression of x, line and d. #}
{% macro put(v, lines, width, at, memory="stage") %}
{% for l in range((lines * width + threads - 1) // threads) %}
            { let x = thread + {{ l * threads }}u; let line = x / {{ width }}u; let d = x % {{ width }}u; {{ "if (x < " ~ (lines * width) ~ "u) " if (l + 1) * threads > lines * width }}{ {{ memory }}[{{ at }}] = {{ v }}{{ l }}; } }
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
                {{ fetch("values_" ~ b, 4 * staged, groups, "load_" ~ b ~ "(col_base + (first + STAGED) * 4u + line, d)") }}
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
                {{ sum }}{{ r }}_{{ n }} = fma(vec4<f32>(w{{ r }}.{{ xyzw[c] }}), b{{ n }}_{{ c }}, {{ sum }}{{ r }}_{{ n }});
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

{# Reads accumulators from a third of the packed gradient. #}
{% macro load_part(sum, part) %}
    {% for r in range(rows_per_thread) %}
    {% for n in range(owned) %}
    {{ sum }}{{ r }}_{{ n }} = load_from_result((first_row + row{{ r }}) * 3u + {{ part }}u, row{{ r }}, {{ n }}u * TX + tx);
    {% endfor %}
    {% endfor %}
{% endmacro %}

{# Writes accumulators to a third of the packed gradient: 0, 1, 2 for q, k, v. #}
{% macro store_part(sum, part) %}
    {% for r in range(rows_per_thread) %}
    {% for n in range(owned) %}
    store((first_row + row{{ r }}) * 3u + {{ part }}u, row{{ r }}, {{ n }}u * TX + tx, {{ sum }}{{ r }}_{{ n }});
    {% endfor %}
    {% endfor %}
{% endmacro %}

{# The tile = w0, w1, .. #}
{% macro write_tile(w) %}
        {% for r in range(rows_per_thread) %}
        tile[at_tile(ty, tx) + {{ r }}u * TY * TX] = {{ w }}{{ r }};
        {% endfor %}
{% endmacro %}

{{ entry("THREADS") }}
    {% if pass == "forward" %}
    let first_block = 0u;
    let blocks = (params.time + ROWS - 1u) / ROWS;
    {% else %}
    let first_block = {{ "0u" if pass == "keys" else "params.slab_begin / ROWS" }};
    let blocks = (min(params.slab_begin + params.slab_rows, params.time) + ROWS - 1u) / ROWS - first_block;
    {% endif %}
    if (workgroup >= blocks * params.batch_heads) { return; }
    batch_head = workgroup % params.batch_heads;
    head = batch_head % params.n_head;
    first_row = batch_head / params.n_head * params.time;
    // 32 neighbours make a patch of 4 x 8 blocks of the tile: they read fewer lines than a strip would.
    let block = thread / 32u;
    let tx = block % (TX / 8u) * 8u + thread % 8u;
    let ty = block / (TX / 8u) * 4u + thread % 32u / 8u;
    {% if pass == "keys" %}
    let row_base = workgroup / params.batch_heads * ROWS;
    {% else %}
    let row_base = (first_block + blocks - 1u - workgroup / params.batch_heads) * ROWS;
    {% endif %}
    {% for r in range(rows_per_thread) %}
    let row{{ r }} = row_base + {{ r }}u * TY + ty;
    {% endfor %}
    const LANES = vec4<u32>(0u, 1u, 2u, 3u);

{% if pass == "forward" %}
    {# Maxima and sums of rows 4q .. 4q + 3 of a thread are the lanes of top{q} and total{q}. #}
    // Less than any score, and not infinite, because WGSL promises nothing about infinities.
    const MASKED = -1e30;
    // Where a row's maximum begins: above what is masked, so that a row of nothing but -infinity has no weights, and ends as NaN.
    const UNSEEN = -1e29;
    {% for q in range(rows_per_thread // 4) %}
    var top{{ q }} = vec4<f32>(UNSEEN);
    var total{{ q }} = vec4<f32>(0.0); // of this thread's columns only, until the end
    {% endfor %}
    {{ zeros("sum") }}
    for (var col_base = 0u; col_base < min(row_base + ROWS, params.time); col_base += COLS) {
        {{ declare("row_q", rows, chunk) }}
        {{ declare("col_k", cols, chunk) }}
        {{ declare("values_v", 4 * staged, groups) }}
        {{ fetch_product("q", "k") }}
        {{ product("s", "q", "k") }}
        let columns = LANES + (tx * 4u + col_base);
        {% for r in range(rows_per_thread) %}
        s{{ r }} *= params.scale;
        {% endfor %}
        if (col_base + COLS > row_base + 1u) {
            {% for r in range(rows_per_thread) %}
            s{{ r }} = select(vec4<f32>(MASKED), s{{ r }}, columns <= vec4<u32>(row{{ r }}));
            {% endfor %}
        }
        // Row maxima. The tile is free: all have passed the barriers of the product since they last read it.
        {% for q in range(rows_per_thread // 4) %}
        tile[({{ q }}u * TY + ty) * TX + tx] = vec4<f32>(
            {% for r in range(4 * q, 4 * q + 4) %}
            max(max(s{{ r }}.x, s{{ r }}.y), max(s{{ r }}.z, s{{ r }}.w)){{ "," if not loop.last }}
            {% endfor %}
        );
        {% endfor %}
        workgroupBarrier();
        {% for q in range(rows_per_thread // 4) %}
        var new_top{{ q }} = top{{ q }};
        for (var t = 0u; t < TX; t++) { new_top{{ q }} = max(new_top{{ q }}, tile[({{ q }}u * TY + ty) * TX + t]); }
        let shrink{{ q }} = exp(top{{ q }} - new_top{{ q }});
        top{{ q }} = new_top{{ q }};
        {% endfor %}
        {% for r in range(rows_per_thread) %}
        s{{ r }} = exp(s{{ r }} - top{{ r // 4 }}.{{ xyzw[r % 4] }});
        {% for n in range(owned) %}
        sum{{ r }}_{{ n }} *= shrink{{ r // 4 }}.{{ xyzw[r % 4] }};
        {% endfor %}
        {% endfor %}
        {% for q in range(rows_per_thread // 4) %}
        total{{ q }} = total{{ q }} * shrink{{ q }} + vec4<f32>(
            {% for r in range(4 * q, 4 * q + 4) %}
            s{{ r }}.x + s{{ r }}.y + s{{ r }}.z + s{{ r }}.w{{ "," if not loop.last }}
            {% endfor %}
        );
        {% endfor %}
        {% if dropout %}
        {% for r in range(rows_per_thread) %}
        {% if r % 4 == 0 %}
        let query_keys{{ r // 4 }} = query_keys(vec4<u32>({% for c in range(4) %}row{{ r + c }}{{ ", " if not loop.last }}{% endfor %}));
        {% endif %}
        s{{ r }} *= kept(vec4<u32>(query_keys{{ r // 4 }}.{{ xyzw[r % 4] }}), columns);
        {% endfor %}
        {% endif %}
        workgroupBarrier(); // all have read the maxima
        {{ write_tile("s") }}
        {{ fetch_values("v") }}
        {{ accumulate("sum", "v") }}
    }
    workgroupBarrier();
    {% for q in range(rows_per_thread // 4) %}
    tile[({{ q }}u * TY + ty) * TX + tx] = total{{ q }};
    {% endfor %}
    workgroupBarrier();
    {% for q in range(rows_per_thread // 4) %}
    var all{{ q }} = vec4<f32>(0.0);
    for (var t = 0u; t < TX; t++) { all{{ q }} += tile[({{ q }}u * TY + ty) * TX + t]; }
    let log_sum{{ q }} = top{{ q }} + log(all{{ q }});
    {% endfor %}
    {% for r in range(rows_per_thread) %}
    {% for n in range(owned) %}
    store(first_row + row{{ r }}, row{{ r }}, {{ n }}u * TX + tx, sum{{ r }}_{{ n }} / all{{ r // 4 }}.{{ xyzw[r % 4] }});
    {% endfor %}
    if (tx == 0u && row{{ r }} < params.time) {
        lse[batch_head * params.time + row{{ r }}] = log_sum{{ r // 4 }}.{{ xyzw[r % 4] }};
    }
    {% endfor %}

{% elif pass == "keys" %}
    // Rows are keys, columns are the queries of the slab: tiles of S^T. dV = P^T dO, dK = dS^T Q, added to those of the
    // slabs before.
    {{ zeros("dk") }}
    {{ zeros("dv") }}
    if (row_base < params.slab_begin) {
        {{ load_part("dk", 1) }}
        {{ load_part("dv", 2) }}
    }
    let slab_end = min(params.slab_begin + params.slab_rows, params.time);
    for (var col_base = max(row_base / COLS * COLS, params.slab_begin); col_base < slab_end; col_base += COLS) {
        {{ declare("row_v", rows, chunk) }}
        {{ declare("col_dy", cols, chunk) }}
        {{ declare("values_dy", 4 * staged, groups) }}
        {{ declare("values_q", 4 * staged, groups) }}
        {
        {{ declare("row_k", rows, chunk) }}
        {{ declare("col_q", cols, chunk) }}
        {{ fetch_product("k", "q") }}
        {{ product("s", "k", "q") }}
        {
            let columns = LANES + (tx * 4u + col_base);
            let log_sum = vec4<f32>(lse_of(columns.x), lse_of(columns.y), lse_of(columns.z), lse_of(columns.w));
            {% for r in range(rows_per_thread) %}
            s{{ r }} = exp(s{{ r }} * params.scale - log_sum);
            {% endfor %}
            if (col_base + 1u < row_base + ROWS) {
                {% for r in range(rows_per_thread) %}
                s{{ r }} = select(vec4<f32>(0.0), s{{ r }}, columns >= vec4<u32>(row{{ r }}));
                {% endfor %}
            }
        }
        {{ write_tile("s") }}
        }
        {{ fetch_product("v", "dy") }}
        {{ product("ds", "v", "dy") }}
        // ds is dP so far. Each thread finds its own part of P in the tile, and leaves there what dropout keeps of it.
        {
            let columns = LANES + (tx * 4u + col_base);
            {% if dropout %}
            let query_keys = query_keys(columns);
            {% endif %}
            let delta_d = vec4<f32>(delta_of(columns.x), delta_of(columns.y), delta_of(columns.z), delta_of(columns.w));
            {% for r in range(rows_per_thread) %}
            {
                let at = at_tile(ty, tx) + {{ r }}u * TY * TX;
                let probability = tile[at];
                {% if dropout %}
                let keep = kept(query_keys, vec4<u32>(row{{ r }}));
                tile[at] = probability * keep;
                ds{{ r }} = probability * (keep * ds{{ r }} - delta_d) * params.scale;
                {% else %}
                ds{{ r }} = probability * (ds{{ r }} - delta_d) * params.scale;
                {% endif %}
            }
            {% endfor %}
        }
        {% for r in range(rows_per_thread) %}
        {{ "if (row" ~ r ~ " < params.time) " if edge }}{ slab[in_slab(row{{ r }}, col_base / 4u + tx)] = ds{{ r }}; }
        {% endfor %}
        {{ fetch_values("dy") }}
        {{ accumulate("dv", "dy") }}
        {{ fetch_values("q") }}
        workgroupBarrier(); // all have read P
        {{ write_tile("ds") }}
        {{ accumulate("dk", "q") }}
    }
    {{ store_part("dk", 1) }}
    {{ store_part("dv", 2) }}

{% else %}
    // Rows are queries of the slab, columns are keys. dQ = dS K, where dS comes from the slab as tiles of dS^T: a thread has
    // the rows 4 ty .. 4 ty + 3 and those 4 TY further on.
    const FOURS = ROWS / 4u;
    {{ zeros("dq") }}
    for (var col_base = 0u; col_base < min(row_base + ROWS, params.time); col_base += COLS) {
        {{ declare("part", cols, rows // 4) }}
        {{ declare("values_k", 4 * staged, groups) }}
        {{ fetch("part", cols, rows // 4, "load_slab(col_base + line, row_base / 4u + d)") }}
        {{ fetch_values("k") }}
        workgroupBarrier(); // all are done with the tile
        {{ put("part", cols, rows // 4, "x", "tile") }}
        for (var first = 0u; first < TX; first += STAGED) {
            workgroupBarrier(); // all are done with what the stage held
            {{ put("values_k", 4 * staged, groups, "x") }}
            workgroupBarrier();
            {% if staged < cols // 4 %}
            if (first + STAGED < TX) {
                {{ fetch("values_k", 4 * staged, groups, "load_k(col_base + (first + STAGED) * 4u + line, d)") }}
            }
            {% endif %}
            for (var k4 = 0u; k4 < 4u * STAGED; k4 += 4u) {
                {% for k in range(4) %}
                {
                let k = k4 + {{ k }}u;
                {% for q in range(rows_per_thread // 4) %}
                let w{{ q }} = tile[(first * 4u + k) * FOURS + {{ q }}u * TY + ty];
                {% endfor %}
                {% for n in range(owned) %}
                let b{{ n }} = stage[k * GROUPS + min({{ n }}u * TX + tx, GROUPS - 1u)];
                {% for r in range(rows_per_thread) %}
                dq{{ r }}_{{ n }} = fma(vec4<f32>(w{{ r // 4 }}.{{ xyzw[r % 4] }}), b{{ n }}, dq{{ r }}_{{ n }});
                {% endfor %}
                {% endfor %}
                }
                {% endfor %}
            }
        }
    }
    {% for r in range(rows_per_thread) %}
    {
        let row = row_base + ({{ r // 4 }}u * TY + ty) * 4u + {{ r % 4 }}u;
        {% for n in range(owned) %}
        store((first_row + row) * 3u, row, {{ n }}u * TX + tx, dq{{ r }}_{{ n }});
        {% endfor %}
    }
    {% endfor %}
{% endif %}
}
{% endif %}
