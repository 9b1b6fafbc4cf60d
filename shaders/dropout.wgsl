// y = x / (1 - p) where a random number of the element's position reaches the threshold, else 0 (src/ops/dropout.rs).
// One thread per four elements; the gradient is the same kernel.
{{ interface }}

{{ for_each(4) }}
    let bits = mask_bits4_from(params.first + 4u * i, params.key0, params.key1);
    // A choice, not a product with 0: dropped infinities must not become NaN.
    result[i] = select(vec4<f32>(0.0), x[i] * params.scale, bits >= vec4<u32>(params.threshold));
}
