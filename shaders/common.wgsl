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
