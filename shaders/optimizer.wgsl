// One update of all parameters (formulas: src/optim/update.rs). One thread per four elements. Gradients whose norm is
// no number change nothing but the count of skipped updates.
{{ interface }}

{% include "gradient_scale" %}
{% if int8 %}
{% include "int8_moments" %}

{{ entry(256) }}
    // The threads beyond the last block take part in the barriers.
    let inside = (workgroup * 256u + thread) * 4u < params.len;
    let i = select(0u, workgroup * 256u + thread, inside);
    let record = i / 64u * {{ moments | length * record_words }}u;
{% else %}

{{ for_each(4) }}
{% endif %}
    if (scale_overflows()) { return; }
    if (!norm_is_finite()) {
        if ({{ "workgroup + thread" if int8 else "i" }} == 0u) { skipped[0] += params.counts; }
        return;
    }
    // Arenas and their decaying part end on whole vectors.
    let decay = select(0.0, params.weight_decay, i * 4u < params.decay_end);
    var value = values[i];
    {% for moment in moments %}
    {% if int8 %}
    let {{ moment }}_part = record + {{ loop.index0 * record_words }}u;
    let {{ moment }}_table = {{ 1 if moment in ["exp_avg_sq", "square_avg"] else 0 }}u;
    var {{ moment }}_now = decoded(
        {{ moment }}_table, records[{{ moment }}_part + i % 64u], records[{{ moment }}_part + 64u]);
    {% else %}
    var {{ moment }}_now = {{ moment }}[i];
    {% endif %}
    {% endfor %}
    var g = gradients[i] * gradient_scale();
    {% if rule == "adamw" or rule == "lion" %}
    value *= 1.0 - params.learning_rate * decay;
    {% else %}
    g += decay * value;
    {% endif %}
    {% if rule == "sgd" %}
    momentum_buffer_now = params.beta1 * momentum_buffer_now + g;
    {% set along = "(g + params.beta1 * momentum_buffer_now)" if nesterov else "momentum_buffer_now" %}
    value -= params.learning_rate * {{ along }};
    {% elif rule == "rmsprop" %}
    square_avg_now = params.beta2 * square_avg_now + (1.0 - params.beta2) * g * g;
    var variance = square_avg_now;
    {% if "grad_avg" in moments %}
    grad_avg_now = params.beta2 * grad_avg_now + (1.0 - params.beta2) * g;
    variance = max(variance - grad_avg_now * grad_avg_now, vec4<f32>(0.0));
    {% endif %}
    var step = g / (sqrt(variance) + params.eps);
    {% if "momentum_buffer" in moments %}
    step += params.beta1 * momentum_buffer_now;
    momentum_buffer_now = step;
    {% endif %}
    value -= params.learning_rate * step;
    {% elif rule == "lion" %}
    value -= params.learning_rate * sign(params.beta1 * exp_avg_now + (1.0 - params.beta1) * g);
    exp_avg_now = params.beta2 * exp_avg_now + (1.0 - params.beta2) * g;
    {% else %}
    exp_avg_now = params.beta1 * exp_avg_now + (1.0 - params.beta1) * g;
    exp_avg_sq_now = params.beta2 * exp_avg_sq_now + (1.0 - params.beta2) * g * g;
    value -= params.learning_rate * (exp_avg_now * params.correction1)
        / (sqrt(exp_avg_sq_now * params.correction2) + params.eps);
    {% endif %}
    {% for moment in moments %}
    {% if int8 %}
    let {{ moment }}_absmax = largest_of_block({{ moment }}_now, thread);
    {% else %}
    {{ moment }}[i] = {{ moment }}_now;
    {% endif %}
    {% endfor %}
    {% if int8 %}
    if (!inside) { return; }
    {% for moment in moments %}
    records[{{ moment }}_part + i % 64u] = encoded({{ moment }}_table, {{ moment }}_now, {{ moment }}_absmax);
    if (i % 64u == 0u) { records[{{ moment }}_part + 64u] = bitcast<u32>({{ moment }}_absmax); }
    {% endfor %}
    {% endif %}
    values[i] = value;
    {% if has_halves %}
    halves[i] = vec4<f16>(value);
    {% endif %}
}
