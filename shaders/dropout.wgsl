// y = x / (1 - p) where a random number of the element's position reaches the threshold, else 0 (src/ops/dropout.rs).
// One thread per four elements; the gradient is the same kernel.
{% include "common" %}

struct Params { len: u32, key0: u32, key1: u32, threshold: u32, scale: f32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i * 4u >= p.len) { return; }
    let bits = random_bits4(vec2<u32>(p.key0, p.key1), 4u * i);
    // A choice, not a product with 0: dropped infinities must not become NaN.
    result[i] = select(vec4<f32>(0.0), x[i] * p.scale, bits >= vec4<u32>(p.threshold));
}
