// One update of all parameters (formulas: src/optim/update.rs). One thread per four elements. Gradients whose norm is
// no number change nothing but the count of skipped updates.
{{ interface }}

{% include "gradient_scale" %}

{{ for_each(4) }}
    if (scale_overflows()) { return; }
    if (!norm_is_finite()) {
        if (i == 0u) { skipped[0] += params.counts; }
        return;
    }
    // Arenas and their decaying part end on whole vectors.
    let decay = select(0.0, params.weight_decay, i * 4u < params.decay_end);
    var value = values[i];
    var g = gradients[i] * gradient_scale();
    {% if rule == "adamw" or rule == "lion" %}
    value *= 1.0 - params.learning_rate * decay;
    {% else %}
    g += decay * value;
    {% endif %}
    {% if rule == "sgd" %}
    let m = params.beta1 * first[i] + g;
    first[i] = m;
    value -= params.learning_rate * m;
    {% elif rule == "lion" %}
    let m = first[i];
    value -= params.learning_rate * sign(params.beta1 * m + (1.0 - params.beta1) * g);
    first[i] = params.beta2 * m + (1.0 - params.beta2) * g;
    {% else %}
    let m = params.beta1 * first[i] + (1.0 - params.beta1) * g;
    let v = params.beta2 * second[i] + (1.0 - params.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    value -= params.learning_rate * (m * params.correction1) / (sqrt(v * params.correction2) + params.eps);
    {% endif %}
    values[i] = value;
    {% if has_halves %}
    halves[i] = vec4<f16>(value);
    {% endif %}
}
