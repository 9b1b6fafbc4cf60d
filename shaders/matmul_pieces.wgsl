// What goes around the tiles of a matrix product (src/ops/matmul.rs): b is transposed before, pieces of k are added up after.
{{ "enable f16;" if "f16" in [T_in, T_out] }}
{% include "common" %}

{% if pass == "transpose" %}
// result (cols, rows) = x (rows, cols) transposed, in squares of 32 x 32 by way of workgroup memory, so that both reading
// and writing touch neighbours.
struct Params { rows: u32, cols: u32, down: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<{{ T_in }}>;
@group(0) @binding(1) var<storage, read_write> result: array<{{ T_in }}>;

var<workgroup> square: array<{{ T_in }}, 1056>; // 32 rows of 33: columns then lie in different banks

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let number = workgroup_number(id, count);
    // Neighbours in this order write neighbouring parts of the same rows.
    let row0 = number % p.down * 32u;
    let col0 = number / p.down * 32u;
    let i = thread % 32u;
    for (var j = thread / 32u; j < 32u; j += 8u) {
        if (row0 + j < p.rows && col0 + i < p.cols) { square[j * 33u + i] = x[(row0 + j) * p.cols + col0 + i]; }
    }
    workgroupBarrier();
    for (var j = thread / 32u; j < 32u; j += 8u) {
        if (row0 + i < p.rows && col0 + j < p.cols) { result[(col0 + j) * p.rows + row0 + i] = square[i * 33u + j]; }
    }
}
{% else %}
{% include "matmul_ends" %}
// Adds up the pieces that the splits of k left: C = sum over s of partial[s] [+ C] [+ bias]{{ ", and those of the sums after it" if sums }}. One thread per element.
struct Params { len: u32, n: u32, splits: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> partial: array<f32>;
{% if sums %}
@group(0) @binding(1) var<storage, read> partial_sums: array<f32>;
{% endif %}
{{ more_bindings(2 if sums else 1, T_out) }}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    {% if sums %}
    if (i >= p.len) {
        let n = i - p.len;
        if (n >= p.n) { return; }
        var sum = 0.0;
        for (var s = 0u; s < p.splits; s++) { sum += partial_sums[s * p.n + n]; }
        sums[n] = sum{{ " + sums[n]" if accumulate }};
        return;
    }
    {% else %}
    if (i >= p.len) { return; }
    {% endif %}
    var sum = 0.0;
    for (var s = 0u; s < p.splits; s++) { sum += partial[s * p.len + i]; }
    {{ finish("sum", "i", "i % p.n") }}
}
{% endif %}
