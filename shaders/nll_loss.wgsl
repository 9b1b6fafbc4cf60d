// Negative log-likelihoods of rows and their gradient (formulas: src/ops/losses/classes.rs). One thread per row, or per
// element of the gradient.
{{ interface }}

const IGNORED = 0xffffffffu;

{{ for_each(1) }}
    {% if backward %}
    let row = i / params.classes;
    {% else %}
    let row = i;
    {% endif %}
    let label = targets[row];
    var loss = bitcast<f32>(params.nan);
    if (label == IGNORED) {
        loss = 0.0;
    } else if (label < params.classes) {
        {% if backward %}
        loss = select(0.0, -grad_output[row], label == i % params.classes);
        {% else %}
        loss = -x[row * params.classes + label];
        {% endif %}
        {% if weighted %}
        loss *= class_weights[label];
        {% endif %}
    }
    result[i] = loss;
}
