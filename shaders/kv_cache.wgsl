// Keys and values that are kept, and attention to them (src/ops/attention/cached.rs).
{% include "common" %}

{% if pass == "remember" %}
// One thread per number kept.
struct Params { len: u32, width: u32, start: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> qkv: array<f32>; // (n, 3C)
@group(0) @binding(1) var<storage, read_write> cache: array<f32>; // (T, width = 2C)

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i >= p.len) { return; }
    let c = p.width / 2u;
    cache[p.start * p.width + i] = qkv[i / p.width * 3u * c + c + i % p.width];
}
{% else %}
// The keys of a query are cut into pieces of 128. In the pass "piece" a workgroup has one of them, for one head: a score for each
// thread, then, for each column of the head, the values weighted by them; where the head is narrower than the workgroup, groups of
// threads share the keys. The pass "join" weighs the pieces of a head against each other.
struct Params { queries: u32, n_head: u32, head_size: u32, start: u32, scale: f32, pieces: u32 }
var<immediate> p: Params;

{% if pass == "piece" %}
@group(0) @binding(0) var<storage, read> qkv: array<f32>; // (n, 3C)
@group(0) @binding(1) var<storage, read> cache: array<f32>; // (T, 2C): keys | values
// Of each piece the largest score, the sum of exp(score - largest), and the values weighted by these: (n, heads, pieces, 2 + head size).
@group(0) @binding(2) var<storage, read_write> parts: array<f32>;

const COLUMNS = {{ columns }}u;
const GROUPS = 128u / COLUMNS;

var<workgroup> query: array<f32, 128>;
var<workgroup> weights: array<f32, 128>;
var<workgroup> reduced: array<f32, 128>;

{% for name, joined in [["largest", "max(reduced[thread], reduced[thread + half])"], ["sum", "reduced[thread] + reduced[thread + half]"]] %}
fn {{ name }}(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    reduced[thread] = value;
    for (var half = 64u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { reduced[thread] = {{ joined }}; }
    }
    workgroupBarrier();
    return reduced[0];
}
{% endfor %}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    // Not by `workgroup_number`: of what a function returns naga does not know that it is the same for all threads.
    let number = id.y * count.x + id.x;
    let row = number / p.pieces / p.n_head;
    let keys = p.start + row + 1u;
    let first = number % p.pieces * 128u;
    // Beyond the last query, and where causality leaves a piece empty; all threads leave together.
    if (row >= p.queries || first >= keys) { return; }
    let width = p.n_head * p.head_size;
    let head = number / p.pieces % p.n_head * p.head_size;
    if (thread < p.head_size) { query[thread] = p.scale * qkv[row * 3u * width + head + thread]; }
    workgroupBarrier();
    let inside = first + thread < keys;
    var score = -3.4e38;
    if (inside) {
        score = 0.0;
        let at = (first + thread) * 2u * width + head;
        for (var e = 0u; e < p.head_size; e++) { score += query[e] * cache[at + e]; }
    }
    let top = largest(score, thread);
    let weight = select(0.0, exp(score - top), inside);
    weights[thread] = weight;
    let total = sum(weight, thread); // whose barriers make the weights visible
    let column = thread % COLUMNS;
    // Four at a time keep four loads in flight; beyond the last key weights are 0, and its value is as good as any.
    var values = vec4<f32>(0.0);
    if (column < p.head_size) {
        let at = width + head + column;
        for (var j = thread / COLUMNS; first + j < keys && j < 128u; j += 4u * GROUPS) {
            let four = vec4<u32>(0u, 1u, 2u, 3u) * GROUPS + j;
            let rows = min(first + four, vec4<u32>(keys - 1u)) * 2u * width + at;
            let own = min(four, vec4<u32>(127u));
            let seen = select(vec4<f32>(0.0), vec4<f32>(weights[own.x], weights[own.y], weights[own.z], weights[own.w]), four < vec4<u32>(128u));
            values += seen * vec4<f32>(cache[rows.x], cache[rows.y], cache[rows.z], cache[rows.w]);
        }
    }
    let part = number * (2u + p.head_size);
    if (thread == 0u) {
        parts[part] = top;
        parts[part + 1u] = total;
    }
    workgroupBarrier();
    var value = values.x + values.y + values.z + values.w;
    weights[thread] = value;
    workgroupBarrier();
    if (thread < p.head_size) {
        for (var group = 1u; group < GROUPS; group++) { value += weights[thread + group * COLUMNS]; }
        parts[part + 2u + thread] = value;
    }
}
{% else %}
@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>; // (n, C)

// One thread per element of y.
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 64u + thread;
    let head = i / p.head_size; // of all queries
    let row = head / p.n_head;
    if (row >= p.queries) { return; }
    let length = 2u + p.head_size;
    let part = head * p.pieces * length;
    let end = part + (p.start + row) / 128u * length; // the last piece with a key
    var top = -3.4e38;
    for (var at = part; at <= end; at += length) { top = max(top, parts[at]); }
    var total = 0.0;
    var value = 0.0;
    for (var at = part; at <= end; at += length) {
        let weight = exp(parts[at] - top);
        total += weight * parts[at + 1u];
        value += weight * parts[at + 2u + i % p.head_size];
    }
    y[i] = value / total;
}
{% endif %}
{% endif %}
