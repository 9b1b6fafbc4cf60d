// Weights of a quantized matrix (src/tensor/quantized.rs) in the buffer of words `b`: type {{ b_type }}.
{% if b_type == "nf4" %}
const NF4 = array<f32, 16>(
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0);
var<workgroup> nf4: array<f32, 16>;

// The first thing that a shader does: its threads look numbers up in workgroup memory.
fn load_nf4(thread: u32) {
    if (thread < 16u) {
        var numbers = NF4;
        nf4[thread] = numbers[thread];
    }
    workgroupBarrier();
}
{% endif %}

{% if b_type != "nf4" %}
// The f16 in the lower bits, finite, as f32; unpack2x16float is no part of every device. f32's exponents begin 112
// lower, and its smallest numbers may count as 0.
fn widened(bits: u32) -> f32 {
    let normal = bitcast<f32>((bits & 0x7fffu) << 13u) * 0x1p112;
    let magnitude = select(normal, f32(bits & 0x3ffu) * 0x1p-24, (bits & 0x7c00u) == 0u);
    return select(magnitude, -magnitude, (bits & 0x8000u) != 0u);
}
{% endif %}

// Elements 4 i to 4 i + 3.
fn weights(i: u32) -> vec4<f32> {
    {% if b_type == "nf4" %}
    let block = i / 16u;
    let number = (b[params.scales + block / 4u] >> (8u * (block % 4u))) & 255u;
    let coarse = bitcast<f32>(b[params.coarse + block / 256u]);
    let scale = bitcast<f32>(b[params.mean + 1u + number]) * coarse + bitcast<f32>(b[params.mean]);
    {% else %}
    let scale = widened(b[params.scales + i / 16u] >> (2u * (i & 8u)));
    {% endif %}
    {% if b_type == "q8_0" %}
    return scale * vec4<f32>(unpack4xI8(b[i]));
    {% else %}
    let codes = (vec4<u32>(b[i / 2u] >> (16u * (i % 2u))) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    {% if b_type == "q4_0" %}
    return scale * (vec4<f32>(codes) - 8.0);
    {% else %}
    return scale * vec4<f32>(nf4[codes.x], nf4[codes.y], nf4[codes.z], nf4[codes.w]);
    {% endif %}
    {% endif %}
}
