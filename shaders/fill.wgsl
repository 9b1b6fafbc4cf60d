// Sets every element to one value. One thread per element.
{% include "common" %}

struct Params { len: u32, value: f32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i < p.len) { x[i] = p.value; }
}
