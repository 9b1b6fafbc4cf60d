// {{ "Rows" if rows else "The values" }} of a quantized matrix as {{ T }} (src/ops/quantized.rs). One thread per four
// elements.
{{ interface }}
{% include "quantized" %}

{{ entry(256) }}
    {% if b_type == "nf4" %}
    load_nf4(thread);
    {% endif %}
    let i = workgroup * 256u + thread;
    if (i >= params.len) { return; }
    {% if rows %}
    let id = ids[i / params.width];
    let value = weights(min(id, params.vocabulary - 1u) * params.width + i % params.width);
    result[i] = select(vec4<f32>(params.nan), value, id < params.vocabulary);
    {% else %}
    result[i] = vec4<{{ T }}>(weights(params.first + i));
    {% endif %}
}
