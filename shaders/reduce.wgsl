// Reduces the middle dimension of (outer, n, inner) (src/ops/reduce.rs), and spreads gradients back over it.
//
// Reducing: outputs are numbered along (outer, inner). A workgroup holds {{ cols }} outputs; {{ lanes }} threads
// share each, taking every {{ lanes }}-th row of their chunk of n, and are summed as a tree. The chunks of one output
// are separate workgroups, whose results (outer, chunks, inner) a second launch reduces. Where each result's part of inner is a
// multiple of four, and inner long enough, an "output" is a vector of four. With two results, inner is the one after the other.
{{ "enable f16;" if mode == "reduce" and T_in == "f16" }}
{% include "common" %}

{% if mode == "reduce" %}
struct Params { outputs: u32, n: u32, inner: u32, chunk: u32, chunks: u32, blocks: u32, factor: f32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<{{ T | replace("f32", T_in) }}>;
@group(0) @binding(1) var<storage, read_write> result: array<{{ T }}>;
{% if results == 2 %}
@group(0) @binding(2) var<storage, read_write> second: array<{{ T }}>;
{% endif %}

var<workgroup> totals: array<{{ T }}, 256>;

fn join(a: {{ T }}, b: {{ T }}) -> {{ T }} {
    {% if kind == "max" %}
    return max(a, b);
    {% else %}
    return a + b;
    {% endif %}
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    // Neighbouring threads take what is adjacent in memory: rows when inner is 1, else outputs.
    {% if inner_is_one %}
    let col = thread / {{ lanes }}u;
    let lane = thread % {{ lanes }}u;
    {% else %}
    let col = thread % {{ cols }}u;
    let lane = thread / {{ cols }}u;
    {% endif %}
    let number = workgroup_number(id, count);
    let chunk = number / p.blocks;
    let column = (number % p.blocks) * {{ cols }}u + col;
    let used = column < p.outputs && chunk < p.chunks;
    let outer = column / p.inner;
    let i = column % p.inner;

    let first = chunk * p.chunk;
    let last = min(first + p.chunk, p.n);
    let start = outer * p.n * p.inner + i;
    var total = {{ T }}(0.0);
    if (used) {
        {% if kind == "max" %}
        // An element of the chunk, not a constant: a maximum of what is all -infinity must be that.
        total = {{ T }}(x[start + first * p.inner]);
        {% endif %}
        // Eight sums at a time keep eight loads in flight.
        {% for j in range(8) %}
        var a{{ j }} = total;
        {% endfor %}
        let step = {{ lanes }}u * p.inner;
        var row = first + lane;
        for (; row + {{ 7 * lanes }}u < last; row += {{ 8 * lanes }}u) {
            let at = start + row * p.inner;
            {% for j in range(8) %}
            a{{ j }} = join(a{{ j }}, {{ T }}(x[at + {{ j }}u * step]));
            {% endfor %}
        }
        for (; row < last; row += {{ lanes }}u) {
            a0 = join(a0, {{ T }}(x[start + row * p.inner]));
        }
        total = join(join(join(a0, a1), join(a2, a3)), join(join(a4, a5), join(a6, a7)));
    }

    let mine = lane * {{ cols }}u + col;
    totals[mine] = total;
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) {
            totals[mine] = join(totals[mine], totals[mine + apart * {{ cols }}u]);
        }
    }
    if (used && lane == 0u) {
        let at = (outer * p.chunks + chunk) * p.inner + i;
        let value = p.factor * totals[mine];
        {% set add = "+=" if accumulate else "=" %}
        {% if results == 2 %}
        let half = p.inner / 2u;
        if (at < half) { result[at] {{ add }} value; } else { second[at - half] {{ add }} value; }
        {% else %}
        result[at] {{ add }} value;
        {% endif %}
    }
}

{% elif mode == "spread" %}
// dx = factor * dy of its output. One thread per element of dx.
struct Params { len: u32, n: u32, inner: u32, factor: f32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> upstream: array<f32>;
@group(0) @binding(1) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let at = workgroup_number(id, count) * 256u + thread;
    if (at >= p.len) { return; }
    result[at] = p.factor * upstream[at / p.inner / p.n * p.inner + at % p.inner];
}

{% elif mode == "max_backward" %}
// dx = dy at the first maximum of each output, else 0. One thread per element of dx; those that equal the maximum
// look for an earlier one, from the front, so that many equal ones find it soon.
struct Params { len: u32, n: u32, inner: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> maximum: array<f32>;
@group(0) @binding(2) var<storage, read> upstream: array<f32>;
@group(0) @binding(3) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let at = workgroup_number(id, count) * 256u + thread;
    if (at >= p.len) { return; }
    let i = at % p.inner;
    let outer = at / p.inner / p.n;
    let column = outer * p.inner + i;
    var gradient = 0.0;
    if (x[at] == maximum[column]) {
        var first = outer * p.n * p.inner + i;
        while (first < at && x[first] != maximum[column]) {
            first += p.inner;
        }
        if (first == at) { gradient = upstream[column]; }
    }
    result[at] = gradient;
}
{% endif %}
