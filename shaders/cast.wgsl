// Converts between f32 and f16 (src/ops/cast.rs). One thread per four elements.
enable f16;
{% include "common" %}

struct Params { len: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<vec4<{{ from }}>>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4<{{ to }}>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i * 4u >= p.len) { return; }
    result[i] = vec4<{{ to }}>(x[i]);
}
