// The passes between the GEMMs of the Newton-Schulz iteration (formulas: src/optim/newton_schulz.rs). To normalize,
// `parts` workgroups share each matrix of `len` elements: each adds up the squares of a strided share, then each adds
// up all sums of its matrix, in a fixed order, and scales its share. The polynomial is one thread per element.
{{ interface }}

{% if pass == "squares" %}
var<workgroup> partial: array<f32, 256>;
{% endif %}

{% if pass == "polynomial" %}
{{ for_each(1) }}
    let row = i / params.side;
    let diagonal = select(0.0, params.a, i % params.side == row % params.side);
    polynomial[i] = diagonal + params.b * gram[i] + params.c * polynomial[i];
}
{% else %}
{{ entry(256) }}
    let matrix = workgroup / params.parts;
    let part = workgroup % params.parts;
    var sum = 0.0;
    {% if pass == "squares" %}
    for (var i = part * 256u + thread; i < params.len; i += params.parts * 256u) {
        let v = x[matrix * params.len + i];
        sum += v * v;
    }
    partial[thread] = sum;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] += partial[thread + half]; }
    }
    if (thread == 0u) { sums[workgroup] = partial[0]; }
    {% else %}
    for (var i = 0u; i < params.parts; i += 1u) { sum += sums[matrix * params.parts + i]; }
    let factor = 1.0 / max(sqrt(sum), params.eps);
    for (var i = part * 256u + thread; i < params.len; i += params.parts * 256u) {
        x[matrix * params.len + i] *= factor;
    }
    {% endif %}
}
{% endif %}
