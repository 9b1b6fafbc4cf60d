// Sum of squares in two passes. First: each workgroup sums a strided share of the vectors into one number. Second: one
// workgroup adds those numbers. The order is fixed by the sizes alone, so the same input gives the same bits.
{{ interface }}

var<workgroup> partial: array<f32, 256>;

{{ entry(256) }}
    let part = workgroup;
    var sum = 0.0;
    {% if first %}
    for (var i = part * 256u + thread; i * 4u < params.len; i += params.parts * 256u) {
        let v = select(vec4<f32>(0.0), x[i], vec4<u32>(0u, 1u, 2u, 3u) + i * 4u < vec4<u32>(params.len));
        sum += dot(v, v);
    }
    {% else %}
    for (var i = thread; i < params.len; i += 256u) { sum += x[i]; }
    {% endif %}
    partial[thread] = sum;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] += partial[thread + half]; }
    }
    if (thread == 0u) { sums[part] = partial[0]; }
}
