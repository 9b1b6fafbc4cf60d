// One update of all parameters (formulas: src/optim/update.rs). One thread per four elements. Gradients whose norm is
// no number change nothing but the count of skipped updates.
{{ interface }}

// The sum of the squared gradients{{ ", and what they are to be multiplied by" if mixed }}.

{{ for_each(4) }}
    {% if mixed %}
    if (squares[1] == 0.0) { return; }
    {% endif %}
    // By the bits of the exponent: a compiler may take it that no number is infinite or NaN.
    if ((bitcast<u32>(squares[0]) & 0x7f800000u) == 0x7f800000u) {
        if (i == 0u) { skipped[0] += params.counts; }
        return;
    }
    var clip = 1.0;
    if (params.grad_clip > 0.0) { clip = min(1.0, params.grad_clip / (sqrt(squares[0]) + 1e-6)); }
    {% if mixed %}
    clip *= squares[1];
    {% endif %}
    // Arenas and their decaying part end on whole vectors.
    let decay = select(0.0, params.weight_decay, i * 4u < params.decay_end);
    var value = values[i];
    var g = gradients[i] * clip;
    {% if rule == "adamw" %}
    value *= 1.0 - params.learning_rate * decay;
    {% else %}
    g += decay * value;
    {% endif %}
    {% if rule == "sgd" %}
    let m = params.beta1 * first[i] + g;
    first[i] = m;
    value -= params.learning_rate * m;
    {% else %}
    let m = params.beta1 * first[i] + (1.0 - params.beta1) * g;
    let v = params.beta2 * second[i] + (1.0 - params.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    value -= params.learning_rate * (m * params.correction1) / (sqrt(v * params.correction2) + params.eps);
    {% endif %}
    values[i] = value;
    {% if mixed %}
    halves[i] = vec4<f16>(value);
    {% endif %}
}
