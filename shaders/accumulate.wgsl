// Adds gradients: sum = sum + a, or sum = a + b. One thread per four elements.
{{ "enable f16;" if "f16" in [T_in, T_sum] }}
{% include "common" %}

struct Params { len: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> a: array<vec4<{{ T_in }}>>;
{% if two_inputs %}
@group(0) @binding(1) var<storage, read> b: array<vec4<{{ T_in }}>>;
@group(0) @binding(2) var<storage, read_write> sum: array<vec4<{{ T_sum }}>>;
{% else %}
@group(0) @binding(1) var<storage, read_write> sum: array<vec4<{{ T_sum }}>>;
{% endif %}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i * 4u >= p.len) { return; }
    // The last vector may reach past the tensor. What lies there is not ours to change: in an arena it is padding
    // that must stay zero for the gradient norm.
    let lanes = vec4<u32>(0u, 1u, 2u, 3u) + i * 4u;
    {% if two_inputs %}
    let total = vec4<f32>(a[i]) + vec4<f32>(b[i]);
    {% else %}
    let total = vec4<f32>(sum[i]) + vec4<f32>(a[i]);
    {% endif %}
    sum[i] = select(sum[i], vec4<{{ T_sum }}>(total), lanes < vec4<u32>(p.len));
}
