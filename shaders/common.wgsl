// 32 random bits of a counter under a key: two rounds of "lowbias32" (Wellons 2018). The same as src/ops/random.rs.
fn mix_bits(value: u32) -> u32 {
    var x = value;
    x = (x ^ (x >> 16u)) * 0x7feb352du;
    x = (x ^ (x >> 15u)) * 0x846ca68bu;
    return x ^ (x >> 16u);
}
fn mix_bits4(value: vec4<u32>) -> vec4<u32> {
    var x = value;
    x = (x ^ (x >> vec4<u32>(16u))) * 0x7feb352du;
    x = (x ^ (x >> vec4<u32>(15u))) * 0x846ca68bu;
    return x ^ (x >> vec4<u32>(16u));
}
fn random_bits(key: vec2<u32>, counter: u32) -> u32 {
    return mix_bits(mix_bits(counter ^ key.x) ^ key.y);
}

// What dropout is made of: `Key::mask_bits` of src/ops/random.rs under a key (x, y), where x may differ. That of row r
// is mix_bits(r ^ x).
fn mask_bits4(counters: vec4<u32>, x: vec4<u32>, y: u32) -> vec4<u32> {
    return mix_bits4(counters * (y | 1u) + x);
}
// Of four counters in a row.
fn mask_bits4_from(first: u32, x: u32, y: u32) -> vec4<u32> {
    return mask_bits4(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(x), y);
}

// Of the two halves of split-fp16 the high one: x rounded to the 11 bits of significand that f16 has. By bit
// operations: a compiler may simplify x - f32(f16(x)) to 0.
fn high_half(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>((bitcast<vec4<u32>>(x) + vec4<u32>(0x1000u)) & vec4<u32>(0xffffe000u));
}

// GELU in the tanh form and its derivative: src/ops/unary.rs. As 1 + tanh(z) = 2 sigmoid(2 z), with one exponential and
// no cancellation. This is exp(-2 z) as a power of two, cut off where for any x of f16, and those of f32 that matter,
// the sigmoid is as good as 0.
fn gelu_exponential(x: vec4<f32>) -> vec4<f32> {
    return exp2(min(x * (-2.3022082 - 0.10294324 * (x * x)), vec4<f32>(120.0)));
}
fn gelu(x: vec4<f32>) -> vec4<f32> {
    return x * (1.0 / (1.0 + gelu_exponential(x)));
}
fn gelu_derivative(x: vec4<f32>) -> vec4<f32> {
    let e = gelu_exponential(x);
    let s = 1.0 / (1.0 + e);
    // 1 - s = s e
    return s * (1.0 + x * (s * e) * (1.5957691 + 0.21406442 * (x * x)));
}

// a^b as in C: negative a only with whole b; anything to the power of 0 is 1, and so is 1 to any power.
fn power(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let zero = vec4<f32>(0.0);
    let whole = b == floor(b);
    let odd = whole & (b * 0.5 != floor(b * 0.5));
    let magnitude = pow(abs(a), b);
    var y = select(magnitude, -magnitude, (a < zero) & odd);
    // The square root of a negative number is NaN, which WGSL has no way to write.
    y = select(y, sqrt(a), (a < zero) & !whole);
    y = select(y, select(zero, 1.0 / abs(a), b < zero), a == zero);
    return select(y, vec4<f32>(1.0), (b == zero) | (a == vec4<f32>(1.0)));
}
// The derivatives of a^b with respect to a, 0 where b is, and to b, 0 where a is.
fn power_by_base(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return select(b * power(a, b - 1.0), vec4<f32>(0.0), b == vec4<f32>(0.0));
}
fn power_by_exponent(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let zero = vec4<f32>(0.0);
    return select(power(a, b) * log(a), zero, (a == zero) & (b >= zero));
}
