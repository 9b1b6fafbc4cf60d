// Rows of a table by their number, and the table's gradient (src/ops/embedding.rs).
{% include "common" %}

{% if mode == "forward" %}
// One thread per {{ T }} of the result.
struct Params { len: u32, width: u32, vocabulary: u32, nan: f32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> table: array<{{ T }}>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> result: array<{{ T }}>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i >= p.len) { return; }
    let row = ids[i / p.width];
    var value = {{ T }}(p.nan);
    if (row < p.vocabulary) {
        value = table[row * p.width + i % p.width];
    }
    result[i] = value;
}

{% elif mode == "zero" %}
// One thread per element.
struct Params { len: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i < p.len) { result[i] = 0.0; }
}

{% elif mode == "sort" %}
// Sorts positions by (id, position): each one's place is how many come before it, counted by comparing it with all,
// which needs neither atomics nor passes over digits. A workgroup places 32 positions; 8 threads share each, four ids
// at a time. `runs` at the first place of an id holds how often it occurs; elsewhere, and for ids outside the table, 0.
struct Params { positions: u32, vocabulary: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> ids: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> order: array<u32>;
@group(0) @binding(2) var<storage, read_write> runs: array<u32>;

// How many are smaller; equal and earlier; equal.
var<workgroup> counts: array<vec3<u32>, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let position = workgroup_number(id, count) * 32u + thread / 8u;
    let lane = thread % 8u;
    let mine = min(position, p.positions - 1u);
    let own = ids[mine / 4u][mine % 4u];
    let none = vec4<u32>(0u);
    let one = vec4<u32>(1u);
    var smaller = none;
    var earlier = none;
    var equal = none;
    for (var i = lane; i * 4u < p.positions; i += 8u) {
        let others = ids[i];
        let at = vec4<u32>(0u, 1u, 2u, 3u) + 4u * i;
        let there = select(none, one, at < vec4<u32>(p.positions));
        let same = select(none, there, others == vec4<u32>(own));
        smaller += select(none, there, others < vec4<u32>(own));
        equal += same;
        earlier += select(none, same, at < vec4<u32>(position));
    }
    counts[thread] = vec3<u32>(smaller.x + smaller.y + smaller.z + smaller.w,
                               earlier.x + earlier.y + earlier.z + earlier.w,
                               equal.x + equal.y + equal.z + equal.w);
    for (var apart = 4u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) { counts[thread] += counts[thread + apart]; }
    }
    if (lane == 0u && position < p.positions) {
        let total = counts[thread];
        let place = total.x + total.y;
        order[place] = position;
        runs[place] = select(0u, total.z, total.y == 0u && own < p.vocabulary);
    }
}

{% elif mode == "add" %}
// Adds to each row of the table the gradients of its run of sorted positions. A workgroup has one place and
// {{ cols }} columns of {{ T }}; {{ lanes }} threads share a column, each taking every {{ lanes }}-th of the run.
// Every row has one workgroup per column that writes it: the one at the run's first place. The others have no run.
struct Params { width: u32, blocks: u32, positions: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read> runs: array<u32>;
@group(0) @binding(3) var<storage, read> upstream: array<{{ T }}>;
@group(0) @binding(4) var<storage, read_write> table: array<{{ T }}>;

var<workgroup> totals: array<{{ T }}, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let number = workgroup_number(id, count);
    let place = number / p.blocks;
    let column = (number % p.blocks) * {{ cols }}u + thread % {{ cols }}u;
    let lane = thread / {{ cols }}u;
    var run = 0u;
    if (place < p.positions && column < p.width) { run = runs[place]; }
    var total = {{ T }}(0.0);
    // Two at a time keep two rows on their way.
    var i = lane;
    for (; i + {{ lanes }}u < run; i += 2u * {{ lanes }}u) {
        let a = upstream[order[place + i] * p.width + column];
        let b = upstream[order[place + i + {{ lanes }}u] * p.width + column];
        total += a + b;
    }
    if (i < run) {
        total += upstream[order[place + i] * p.width + column];
    }
    totals[thread] = total;
    workgroupBarrier();
    if (lane == 0u && run > 0u) {
        for (var other = 1u; other < min(run, {{ lanes }}u); other += 1u) {
            total += totals[thread + other * {{ cols }}u];
        }
        table[ids[order[place]] * p.width + column] += total;
    }
}
{% endif %}
