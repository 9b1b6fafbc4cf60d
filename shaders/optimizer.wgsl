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
    let m = params.beta1 * momentum_buffer[i] + g;
    momentum_buffer[i] = m;
    value -= params.learning_rate * {{ "(g + params.beta1 * m)" if nesterov else "m" }};
    {% elif rule == "rmsprop" %}
    let v = params.beta2 * square_avg[i] + (1.0 - params.beta2) * g * g;
    square_avg[i] = v;
    var variance = v;
    {% if centered %}
    let mean = params.beta2 * grad_avg[i] + (1.0 - params.beta2) * g;
    grad_avg[i] = mean;
    variance = max(v - mean * mean, vec4<f32>(0.0));
    {% endif %}
    var step = g / (sqrt(variance) + params.eps);
    {% if has_momentum %}
    step += params.beta1 * momentum_buffer[i];
    momentum_buffer[i] = step;
    {% endif %}
    value -= params.learning_rate * step;
    {% elif rule == "lion" %}
    let m = exp_avg[i];
    value -= params.learning_rate * sign(params.beta1 * m + (1.0 - params.beta1) * g);
    exp_avg[i] = params.beta2 * m + (1.0 - params.beta2) * g;
    {% else %}
    let m = params.beta1 * exp_avg[i] + (1.0 - params.beta1) * g;
    let v = params.beta2 * exp_avg_sq[i] + (1.0 - params.beta2) * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    value -= params.learning_rate * (m * params.correction1) / (sqrt(v * params.correction2) + params.eps);
    {% endif %}
    values[i] = value;
    {% if has_halves %}
    halves[i] = vec4<f16>(value);
    {% endif %}
}
