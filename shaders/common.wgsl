// Workgroups are launched as a grid of x by y because no dimension may exceed 65,535; this is the number along the line.
fn workgroup_number(id: vec3<u32>, count: vec3<u32>) -> u32 {
    return id.y * count.x + id.x;
}

// 32 random bits of a counter under a key: two rounds of "lowbias32" (Wellons 2018). The same as src/ops/random.rs.
fn mix_bits(value: u32) -> u32 {
    var x = value;
    x = (x ^ (x >> 16u)) * 0x7feb352du;
    x = (x ^ (x >> 15u)) * 0x846ca68bu;
    return x ^ (x >> 16u);
}
fn random_bits(key: vec2<u32>, counter: u32) -> u32 {
    return mix_bits(mix_bits(counter ^ key.x) ^ key.y);
}

// Some drivers compute tanh from exp(x) and exp(-x), which overflow; beyond 10 it is 1 to the last bit of f32.
fn tanh4(x: vec4<f32>) -> vec4<f32> {
    return tanh(clamp(x, vec4<f32>(-10.0), vec4<f32>(10.0)));
}

// GELU in the tanh form and its derivative: src/ops/unary.rs.
fn gelu_tanh(x: vec4<f32>) -> vec4<f32> {
    return tanh4(0.7978846 * (x + 0.044715 * x * x * x));
}
fn gelu(x: vec4<f32>) -> vec4<f32> {
    return 0.5 * x * (1.0 + gelu_tanh(x));
}
fn gelu_derivative(x: vec4<f32>) -> vec4<f32> {
    let t = gelu_tanh(x);
    let inner = 0.7978846 * (1.0 + 3.0 * 0.044715 * x * x);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner;
}
