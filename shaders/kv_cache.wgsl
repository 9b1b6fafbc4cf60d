// Keys and values that are kept, and attention to them (src/ops/attention/cached.rs).
{{ interface }}

{% if pass == "append" %}
// One thread per number kept.

{{ for_each(1) }}
    let c = params.width / 2u;
    cache[params.start * params.width + i] = qkv[i / params.width * 3u * c + c + i % params.width];
}
{% else %}
// The keys of a query are cut into pieces of {{ piece }}. In the pass "piece" a workgroup has one of them, for one head: a score for each
// thread, then, for each column of the head, the values weighted by them; where the head is narrower than the workgroup, groups of
// threads share the keys. The pass "join" weighs the pieces of a head against each other.
{% if pass == "piece" %}
// Of each piece the largest score, the sum of exp(score - largest), and the values weighted by these: (n, heads, pieces, 2 + head size).

const COLUMNS = {{ columns }}u;
const PIECE = {{ piece }}u;
const GROUPS = PIECE / COLUMNS;

var<workgroup> query: array<f32, PIECE>;
var<workgroup> weights: array<f32, PIECE>;
var<workgroup> reduced: array<f32, PIECE>;

{% for name, joined in [["largest", "max(reduced[thread], reduced[thread + half])"], ["sum", "reduced[thread] + reduced[thread + half]"]] %}
fn {{ name }}(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    reduced[thread] = value;
    for (var half = PIECE / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { reduced[thread] = {{ joined }}; }
    }
    workgroupBarrier();
    return reduced[0];
}
{% endfor %}

{{ entry(piece) }}
    let row = workgroup / params.pieces / params.n_head;
    let keys = params.start + row + 1u;
    let first = workgroup % params.pieces * PIECE;
    // Beyond the last query, and where causality leaves a piece empty; all threads leave together.
    if (row >= params.queries || first >= keys) { return; }
    let width = params.n_head * params.head_size;
    let head = workgroup / params.pieces % params.n_head * params.head_size;
    if (thread < params.head_size) { query[thread] = params.scale * qkv[row * 3u * width + head + thread]; }
    workgroupBarrier();
    let inside = first + thread < keys;
    var score = -3.4e38;
    if (inside) {
        score = 0.0;
        let at = (first + thread) * 2u * width + head;
        for (var e = 0u; e < params.head_size; e++) { score += query[e] * cache[at + e]; }
    }
    let top = largest(score, thread);
    let weight = select(0.0, exp(score - top), inside);
    weights[thread] = weight;
    let total = sum(weight, thread); // whose barriers make the weights visible
    let column = thread % COLUMNS;
    // Four at a time keep four loads in flight; beyond the last key weights are 0, and its value is as good as any.
    var values = vec4<f32>(0.0);
    if (column < params.head_size) {
        let at = width + head + column;
        for (var j = thread / COLUMNS; first + j < keys && j < PIECE; j += 4u * GROUPS) {
            let four = vec4<u32>(0u, 1u, 2u, 3u) * GROUPS + j;
            let rows = min(first + four, vec4<u32>(keys - 1u)) * 2u * width + at;
            let own = min(four, vec4<u32>(PIECE - 1u));
            let seen = select(vec4<f32>(0.0), vec4<f32>(weights[own.x], weights[own.y], weights[own.z], weights[own.w]), four < vec4<u32>(PIECE));
            values += seen * vec4<f32>(cache[rows.x], cache[rows.y], cache[rows.z], cache[rows.w]);
        }
    }
    let part = workgroup * (2u + params.head_size);
    if (thread == 0u) {
        parts[part] = top;
        parts[part + 1u] = total;
    }
    workgroupBarrier();
    var value = values.x + values.y + values.z + values.w;
    weights[thread] = value;
    workgroupBarrier();
    if (thread < params.head_size) {
        for (var group = 1u; group < GROUPS; group++) { value += weights[thread + group * COLUMNS]; }
        parts[part + 2u + thread] = value;
    }
}
{% else %}

// One thread per element of y.
{{ entry(64) }}
    let i = workgroup * 64u + thread;
    let head = i / params.head_size; // of all queries
    let row = head / params.n_head;
    if (row >= params.queries) { return; }
    let length = 2u + params.head_size;
    let part = head * params.pieces * length;
    let end = part + (params.start + row) / {{ piece }}u * length; // the last piece with a key
    var top = -3.4e38;
    for (var at = part; at <= end; at += length) { top = max(top, parts[at]); }
    var total = 0.0;
    var value = 0.0;
    for (var at = part; at <= end; at += length) {
        let weight = exp(parts[at] - top);
        total += weight * parts[at + 1u];
        value += weight * parts[at + 2u + i % params.head_size];
    }
    y[i] = value / total;
}
{% endif %}
{% endif %}
