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
// A workgroup has one head of one query. It takes 128 keys at a time: a score for each thread, then, for each column of the
// head, the values weighted by them, with a running maximum and sum as in FlashAttention. Where the head is narrower than
// the workgroup, groups of threads share the keys.
struct Params { queries: u32, n_head: u32, head_size: u32, start: u32, scale: f32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> qkv: array<f32>; // (n, 3C)
@group(0) @binding(1) var<storage, read> cache: array<f32>; // (T, 2C): keys | values
@group(0) @binding(2) var<storage, read_write> y: array<f32>; // (n, C)

const COLUMNS = {{ columns }}u;
const GROUPS = 128u / COLUMNS;

var<workgroup> query: array<f32, 128>;
var<workgroup> weights: array<f32, 128>;
var<workgroup> reduced: array<f32, 128>;

fn largest(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    reduced[thread] = value;
    for (var half = 64u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { reduced[thread] = max(reduced[thread], reduced[thread + half]); }
    }
    workgroupBarrier();
    return reduced[0];
}

fn sum(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    reduced[thread] = value;
    for (var half = 64u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { reduced[thread] += reduced[thread + half]; }
    }
    workgroupBarrier();
    return reduced[0];
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let number = id.y * count.x + id.x;
    let row = number / p.n_head;
    // Workgroups beyond the last only fill up the grid; all threads of one leave together.
    if (row >= p.queries) { return; }
    let width = p.n_head * p.head_size;
    let head = number % p.n_head * p.head_size;
    if (thread < p.head_size) { query[thread] = p.scale * qkv[row * 3u * width + head + thread]; }
    workgroupBarrier();
    let keys = p.start + row + 1u;
    let column = thread % COLUMNS;
    var top = -3.4e38;
    var total = 0.0;
    var value = 0.0;
    for (var first = 0u; first < keys; first += 128u) {
        let key = first + thread;
        var score = -3.4e38;
        if (key < keys) {
            score = 0.0;
            let at = key * 2u * width + head;
            for (var e = 0u; e < p.head_size; e++) { score += query[e] * cache[at + e]; }
        }
        let new_top = max(top, largest(score, thread));
        let weight = select(0.0, exp(score - new_top), key < keys);
        weights[thread] = weight;
        let kept = exp(top - new_top);
        total = total * kept + sum(weight, thread); // whose barriers make the weights visible
        value *= kept;
        top = new_top;
        if (column < p.head_size) {
            let at = first * 2u * width + width + head + column;
            for (var j = thread / COLUMNS; j < min(128u, keys - first); j += GROUPS) {
                value += weights[j] * cache[at + j * 2u * width];
            }
        }
    }
    workgroupBarrier();
    weights[thread] = value;
    workgroupBarrier();
    if (thread < p.head_size) {
        for (var group = 1u; group < GROUPS; group++) { value += weights[thread + group * COLUMNS]; }
        y[row * width + head + thread] = value / total;
    }
}
{% endif %}
