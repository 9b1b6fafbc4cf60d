// The passes of Muon around the iteration that makes matrices orthogonal (formulas: src/optim/muon.rs). The momentum is
// one thread per four elements; to gather matrices from the arenas and to scatter them is one thread per element.
{{ interface }}

{% include "gradient_scale" %}

{% if pass == "momentum" %}
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
    matrices[i] = params.momentum * first[at] + (1.0 - params.momentum) * g;
    {% else %}
    if (scale_overflows() || !norm_is_finite()) { return; }
    values[at] = values[at] * params.kept - params.rate * matrices[i];
    {% endif %}
}
{% endif %}
