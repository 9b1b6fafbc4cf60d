// Keys and values that are kept, and attention to them (src/ops/attention/cached.rs).
{{ interface }}

{% if pass == "append" %}
// One thread per number kept.

{{ for_each(1) }}
    let row = i / params.width;
    let kept = row / params.tokens * params.room + params.start + row % params.tokens;
    let number = qkv[(row + 1u) * params.packed - params.width + i % params.width];
    cache[kept * params.width + i % params.width] = f32(number);
}
{% else %}
// Split-KV: the keys of a query are cut into splits of {{ split_keys }}. In the pass "split" a workgroup has one of
// them, for one head: a score for each thread, then, for each column of the head, the values weighted by them; where
// the head is narrower than the workgroup, groups of threads share the keys. The pass "combine" weighs the splits of a
// head against each other.
{% if pass == "split" %}
// Where a split is `alone` it is the result. With `appends` there is one query for each sequence, whose key and value are put into the cache too.
// Of each split the largest score, the sum of exp(score - largest), and the values weighted by these:
// (B, n, heads, splits, 2 + head size).

const COLUMNS = {{ columns }}u;
const SPLIT_KEYS = {{ split_keys }}u;
const GROUPS = SPLIT_KEYS / COLUMNS;

var<workgroup> query: array<f32, SPLIT_KEYS>;
var<workgroup> weights: array<f32, SPLIT_KEYS>;
var<workgroup> reduced: array<f32, SPLIT_KEYS>;

{% set larger = "max(reduced[thread], reduced[thread + half])" %}
{% set added = "reduced[thread] + reduced[thread + half]" %}
{% for name, reduction in [["largest", larger], ["sum", added]] %}
fn {{ name }}(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    reduced[thread] = value;
    for (var half = SPLIT_KEYS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { reduced[thread] = {{ reduction }}; }
    }
    workgroupBarrier();
    return reduced[0];
}
{% endfor %}

{{ entry(split_keys) }}
    let row = workgroup / params.splits / params.n_head;
    let keys = params.start + row % params.queries + 1u;
    let first_key = keys - min(keys, params.window);
    let first = workgroup % params.splits * SPLIT_KEYS;
    // Beyond the last query, and where causality or the window leaves a split empty; all threads leave together.
    if (row >= params.rows || first >= keys || first + SPLIT_KEYS <= first_key) { return; }
    let width = params.n_kv_head * params.head_size;
    let query_head = workgroup / params.splits % params.n_head;
    let head = query_head / (params.n_head / params.n_kv_head) * params.head_size;
    let packed = params.n_head * params.head_size + 2u * width;
    let sequence = row / params.queries * params.room; // its first row in the cache
    if (thread < params.head_size) {
        query[thread] = params.scale * f32(qkv[row * packed + query_head * params.head_size + thread]);
    }
    workgroupBarrier();
    let inside = first + thread < keys && first + thread >= first_key;
    var score = -3.4e38;
    {% if appends %}
    // The last key is not in the cache yet: it is in qkv.
    let kept = params.start;
    let own = row * packed + params.n_head * params.head_size + head;
    if (first + thread == kept) {
        score = 0.0;
        for (var e = 0u; e < params.head_size; e++) { score += query[e] * f32(qkv[own + e]); }
    } else if (inside) {
    {% else %}
    let kept = keys;
    if (inside) {
    {% endif %}
        score = 0.0;
        let at = (sequence + first + thread) * 2u * width + head;
        for (var e = 0u; e < params.head_size; e++) { score += query[e] * cache[at + e]; }
    }
    let row_max = largest(score, thread);
    let weight = select(0.0, exp(score - row_max), inside);
    weights[thread] = weight;
    let row_sum = sum(weight, thread); // whose barriers make the weights visible
    let column = thread % COLUMNS;
    // Four at a time keep four loads in flight; beyond the last key weights are 0, and its value is as good as any.
    var values = vec4<f32>(0.0);
    if (column < params.head_size) {
        let at = width + head + column;
        for (var j = thread / COLUMNS; first + j < kept && j < SPLIT_KEYS; j += 4u * GROUPS) {
            let four = vec4<u32>(0u, 1u, 2u, 3u) * GROUPS + j;
            let rows = (sequence + min(first + four, vec4<u32>(kept - 1u))) * 2u * width + at;
            let key = min(four, vec4<u32>(SPLIT_KEYS - 1u));
            let seen = select(
                vec4<f32>(0.0),
                vec4<f32>(weights[key.x], weights[key.y], weights[key.z], weights[key.w]),
                {% if appends %}
                four < vec4<u32>(min(SPLIT_KEYS, kept - first)),
                {% else %}
                four < vec4<u32>(SPLIT_KEYS),
                {% endif %}
            );
            values += seen * vec4<f32>(cache[rows.x], cache[rows.y], cache[rows.z], cache[rows.w]);
        }
        {% if appends %}
        if (first + SPLIT_KEYS > kept && thread < COLUMNS) {
            values.x += weights[kept - first] * f32(qkv[own + width + column]);
            if (query_head % (params.n_head / params.n_kv_head) == 0u) {
                let place = (sequence + kept) * 2u * width + head + column;
                cache[place] = f32(qkv[own + column]);
                cache[place + width] = f32(qkv[own + width + column]);
            }
        }
        {% endif %}
    }
    {% if not alone %}
    let slot = workgroup * (2u + params.head_size);
    if (thread == 0u) {
        partials[slot] = row_max;
        partials[slot + 1u] = row_sum;
    }
    {% endif %}
    workgroupBarrier();
    var value = values.x + values.y + values.z + values.w;
    weights[thread] = value;
    workgroupBarrier();
    if (thread < params.head_size) {
        for (var group = 1u; group < GROUPS; group++) { value += weights[thread + group * COLUMNS]; }
        {% if alone %}
        y[workgroup * params.head_size + thread] = {{ T }}(value / row_sum);
        {% else %}
        partials[slot + 2u + thread] = value;
        {% endif %}
    }
}
{% else %}

// One thread per element of y.
{{ entry(64) }}
    let i = workgroup * 64u + thread;
    let head = i / params.head_size; // of all queries
    let row = head / params.n_head;
    if (row >= params.rows) { return; }
    let length = 2u + params.head_size;
    let splits = head * params.splits * length;
    let keys = params.start + row % params.queries + 1u;
    let first = splits + (keys - min(keys, params.window)) / {{ split_keys }}u * length; // the first split with a key
    let end = splits + (keys - 1u) / {{ split_keys }}u * length; // the last split with a key
    var row_max = -3.4e38;
    for (var at = first; at <= end; at += length) { row_max = max(row_max, partials[at]); }
    var row_sum = 0.0;
    var value = 0.0;
    for (var at = first; at <= end; at += length) {
        let weight = exp(partials[at] - row_max);
        row_sum += weight * partials[at + 1u];
        value += weight * partials[at + 2u + i % params.head_size];
    }
    y[i] = {{ T }}(value / row_sum);
}
{% endif %}
{% endif %}
