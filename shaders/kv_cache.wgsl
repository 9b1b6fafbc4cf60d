// Keys and values that are kept, and attention to them (src/ops/attention/cached.rs).
{{ interface }}

{% set F = "f32" if vector == 1 else "vec4<f32>" %}
{% set E = F | replace("f32", T) %}
{% set K = F | replace("f32", C) %}
{% if pass == "append" %}
// One thread per number kept.

{{ for_each(1) }}
    let row = i / params.width;
    let kept = row / params.tokens * params.room + params.start + row % params.tokens;
    let number = qkv[(row + 1u) * params.packed - params.width + i % params.width];
    cache[kept * params.width + i % params.width] = {{ C }}(number);
}
{% else %}
// Split-KV: the keys of a query are cut into splits of {{ split_keys }}. In the pass "split" a workgroup has one of
// them, for one head: a score for each thread, then, for each column of the head, the values weighted by them; where
// the head is narrower than the workgroup, groups of threads share the keys. The pass "combine" weighs the splits of a
// head against each other. In a ragged batch every sequence has one query and its own number of cached tokens; it is
// idle, with a result of 0, where that is no row of the cache.
{% macro cached_tokens() %}
    {% if ragged %}
    let start = starts[min(row, params.rows - 1u)];
    let keys = select(0u, start + 1u, start < params.room);
    {% else %}
    let start = params.start;
    let keys = start + row % params.queries + 1u;
    {% endif %}
{% endmacro %}
{% if pass == "split" %}
// Where a split is `alone` it is the result. With `appends` there is one query for each sequence, whose key and value
// are put into the cache too.
// Of each split the largest score, the sum of exp(score - largest), and the values weighted by these:
// (B, n, heads, splits, 2 + head size). Everything else is in units of {{ vector }} elements.

const COLUMNS = {{ columns }}u;
const SPLIT_KEYS = {{ split_keys }}u;
const GROUPS = SPLIT_KEYS / COLUMNS;

var<workgroup> query: array<{{ F }}, COLUMNS>;
var<workgroup> weights: array<f32, SPLIT_KEYS>;
var<workgroup> reduced: array<f32, SPLIT_KEYS>;
var<workgroup> gathered: array<{{ F }}, SPLIT_KEYS>;

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
    {{ cached_tokens() }}
    let first_key = keys - min(keys, params.window);
    let first = workgroup % params.splits * SPLIT_KEYS;
    let size = params.head_size / {{ vector }}u;
    {% if ragged and alone %}
    if (keys == 0u && row < params.rows && thread < size) { y[workgroup * size + thread] = {{ E }}(0.0); }
    {% endif %}
    // Beyond the last query, and where causality or the window leaves a split empty; all threads leave together.
    if (row >= params.rows || first >= keys || first + SPLIT_KEYS <= first_key) { return; }
    let width = params.n_kv_head * size;
    let query_head = workgroup / params.splits % params.n_head;
    let head = query_head / (params.n_head / params.n_kv_head) * size;
    let packed = params.n_head * size + 2u * width;
    let sequence = row / params.queries * params.room; // its first row in the cache
    if (thread < size) {
        query[thread] = params.scale * {{ F }}(qkv[row * packed + query_head * size + thread]);
    }
    workgroupBarrier();
    let inside = first + thread < keys && first + thread >= first_key;
    var products = {{ F }}(0.0);
    {% if appends %}
    // The last key is not in the cache yet: it is in qkv.
    let kept = start;
    let own = row * packed + params.n_head * size + head;
    if (first + thread == kept) {
        for (var e = 0u; e < size; e++) { products += query[e] * {{ F }}(qkv[own + e]); }
    } else if (inside) {
    {% else %}
    let kept = keys;
    if (inside) {
    {% endif %}
        let at = (sequence + first + thread) * 2u * width + head;
        for (var e = 0u; e < size; e++) { products += query[e] * {{ F }}(cache[at + e]); }
    }
    {% set total = "products" if vector == 1 else "(products.x + products.y) + (products.z + products.w)" %}
    let row_max = largest(select(-3.4e38, {{ total }}, inside), thread);
    let weight = select(0.0, exp({{ total }} - row_max), inside);
    weights[thread] = weight;
    let row_sum = sum(weight, thread); // whose barriers make the weights visible
    let column = thread % COLUMNS;
    var value = {{ F }}(0.0);
    if (column < size) {
        let at = width + head + column;
        // Four loads in flight; beyond the last key weights are 0, and its value is as good as any.
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
            let v = array({{ F }}(cache[rows.x]), {{ F }}(cache[rows.y]), {{ F }}(cache[rows.z]), {{ F }}(cache[rows.w]));
            value += (seen.x * v[0] + seen.y * v[1]) + (seen.z * v[2] + seen.w * v[3]);
        }
        {% if appends %}
        if (first + SPLIT_KEYS > kept && thread < COLUMNS) {
            value += weights[kept - first] * {{ F }}(qkv[own + width + column]);
            if (query_head % (params.n_head / params.n_kv_head) == 0u) {
                let place = (sequence + kept) * 2u * width + head + column;
                cache[place] = {{ K }}(qkv[own + column]);
                cache[place + width] = {{ K }}(qkv[own + width + column]);
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
    gathered[thread] = value;
    workgroupBarrier();
    if (thread < size) {
        for (var group = 1u; group < GROUPS; group++) { value += gathered[thread + group * COLUMNS]; }
        {% if alone %}
        y[workgroup * size + thread] = {{ E }}(value / row_sum);
        {% elif vector == 1 %}
        partials[slot + 2u + thread] = value;
        {% else %}
        {% for part in ["x", "y", "z", "w"] %}
        partials[slot + 2u + 4u * thread + {{ loop.index0 }}u] = value.{{ part }};
        {% endfor %}
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
    {{ cached_tokens() }}
    {% if ragged %}
    if (keys == 0u) {
        y[i] = {{ T }}(0.0);
        return;
    }
    {% endif %}
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
