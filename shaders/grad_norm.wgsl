// Sums of squares: each workgroup sums a strided share of the vectors into one number. The order is fixed by the sizes
// alone, so the same input gives the same bits.
{{ interface }}

var<workgroup> partial: array<f32, 256>;

fn square(i: u32) -> f32 {
    let v = x[i];
    return dot(v, v);
}

{{ entry(256) }}
    let stride = params.parts * 256u;
    let whole = params.len / 4u;
    var i = workgroup * 256u + thread;
    var sum = 0.0;
    // Four loads at a time are in flight.
    for (; i + 3u * stride < whole; i += 4u * stride) {
        sum += (square(i) + square(i + stride)) + (square(i + 2u * stride) + square(i + 3u * stride));
    }
    for (; i < whole; i += stride) { sum += square(i); }
    if (i == whole && params.len % 4u > 0u) {
        // The last elements are no whole vector.
        let v = select(vec4<f32>(0.0), x[i], vec4<u32>(0u, 1u, 2u, 3u) + i * 4u < vec4<u32>(params.len));
        sum += dot(v, v);
    }
    partial[thread] = sum;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] += partial[thread + half]; }
    }
    if (thread == 0u) { sums[workgroup] = partial[0]; }
}
