// SwiGLU of rows of two halves, gates and values, and its gradient (src/ops/swiglu.rs), in units of {{ vector }}
// elements that are stored as {{ T }}.
{% set F = "f32" if vector == 1 else "vec4<f32>" %}
{% set E = F | replace("f32", T) %}
{{ interface }}

{{ for_each(vector) }}
    let at = i / params.width * params.width + i;
    let gate = {{ F }}(u[at]);
    let value = {{ F }}(u[at + params.width]);
    // Beyond 80 the sigmoid is 1 or 0 to the last bit, and exp would overflow.
    let s = 1.0 / (1.0 + exp(-clamp(gate, {{ F }}(-80.0), {{ F }}(80.0))));
    {% if pass == "forward" %}
    result[i] = {{ E }}(gate * s * value);
    {% else %}
    let dh = {{ F }}(grad_output[i]);
    result[at] = {{ E }}(dh * value * s * (1.0 + gate * (1.0 - s)));
    result[at + params.width] = {{ E }}(dh * gate * s);
    {% endif %}
}
