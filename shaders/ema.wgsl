// Averages of the weights (formulas: src/optim/ema.rs): one update of them, or their exchange with the weights. One
// thread per four elements.
{{ interface }}

{% if pass == "update" %}
{% include "gradient_scale" %}

{{ for_each(4) }}
    if (scale_overflows() || !norm_is_finite()) { return; }
    averages[i] += params.weight * (values[i] - averages[i]);
}
{% else %}
{{ for_each(4) }}
    let value = values[i];
    values[i] = averages[i];
    averages[i] = value;
}
{% endif %}
