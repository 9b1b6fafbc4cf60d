// y = factor[0] * x, or y = y + factor[0] * x. One thread per four elements.
{{ "enable f16;" if "f16" in [T_in, T_out] }}
{% include "common" %}

struct Params { len: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> factor: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<{{ T_in }}>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<{{ T_out }}>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i * 4u >= p.len) { return; }
    // What lies past the tensor in the last vector is padding of an arena and must stay as it is.
    let lanes = vec4<u32>(0u, 1u, 2u, 3u) + i * 4u;
    let value = {{ "vec4<f32>(y[i]) + " if accumulate }}factor[0] * vec4<f32>(x[i]);
    y[i] = select(y[i], vec4<{{ T_out }}>(value), lanes < vec4<u32>(p.len));
}
