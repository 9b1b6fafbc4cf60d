// Sum of squares in two passes. First: each workgroup sums a strided share of the vectors into one number. Second: one
// workgroup adds those numbers. The order is fixed by the sizes alone, so the same input gives the same bits.
{% include "common" %}

struct Params { len: u32, parts: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<{{ "vec4<f32>" if first else "f32" }}>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;

var<workgroup> partial: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let part = workgroup_number(id, count);
    var sum = 0.0;
    {% if first %}
    for (var i = part * 256u + thread; i * 4u < p.len; i += p.parts * 256u) {
        let v = select(vec4<f32>(0.0), x[i], vec4<u32>(0u, 1u, 2u, 3u) + i * 4u < vec4<u32>(p.len));
        sum += dot(v, v);
    }
    {% else %}
    for (var i = thread; i < p.len; i += 256u) { sum += x[i]; }
    {% endif %}
    partial[thread] = sum;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] += partial[thread + half]; }
    }
    if (thread == 0u) { sums[part] = partial[0]; }
}
