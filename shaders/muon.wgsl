// The passes of Muon around the iteration that makes matrices orthogonal (formulas: src/optim/muon.rs). The momentum is
// one thread per four elements; to gather matrices from the arenas and to scatter them is one thread per element.
{{ interface }}

{% include "gradient_scale" %}

{% if int8 %}
{% include "int8_moments" %}
{% endif %}

{% if pass == "momentum" and int8 %}
{{ entry(256) }}
    // The threads beyond the last block take part in the barriers.
    let inside = (workgroup * 256u + thread) * 4u < params.len;
    let i = select(0u, workgroup * 256u + thread, inside);
    if (scale_overflows()) { return; }
    if (!norm_is_finite()) {
        if (workgroup + thread == 0u) { skipped[0] += params.counts; }
        return;
    }
    let part = i / 64u * {{ record_words }}u;
    let g = gradients[i] * gradient_scale();
    let m = params.momentum * decoded(0u, first[part + i % 64u], first[part + 64u]) + (1.0 - params.momentum) * g;
    let absmax = largest_of_block(m, thread);
    if (!inside) { return; }
    first[part + i % 64u] = encoded(0u, m, absmax);
    if (i % 64u == 0u) { first[part + 64u] = bitcast<u32>(absmax); }
}
{% elif pass == "momentum" %}
{{ for_each(4) }}
    if (scale_overflows()) { return; }
    if (!norm_is_finite()) {
        if (i == 0u) { skipped[0] += params.counts; }
        return;
    }
    let g = gradients[i] * gradient_scale();
    first[i] = params.momentum * first[i] + (1.0 - params.momentum) * g;
}
{% else %}
{{ for_each(1) }}
    let row = i / params.cols;
    let matrix = row / params.rows;
    let at = table[2u * matrix] + row % params.rows * table[2u * matrix + 1u] + i % params.cols;
    {% if pass == "gather" %}
    let g = gradients[at] * gradient_scale();
    {% if int8 %}
    let of_moment = at + params.before;
    let part = of_moment / 256u * {{ record_words }}u;
    let code = (first[part + of_moment % 256u / 4u] >> (8u * (of_moment % 4u))) & 255u;
    let m = number_of_code(0u, code) * bitcast<f32>(first[part + 64u]);
    {% else %}
    let m = first[at];
    {% endif %}
    matrices[i] = params.momentum * m + (1.0 - params.momentum) * g;
    {% else %}
    if (scale_overflows() || !norm_is_finite()) { return; }
    values[at] = values[at] * params.kept - params.rate * matrices[i];
    {% endif %}
}
{% endif %}
