// Elementwise functions of a and b and their gradients (formulas: src/ops/binary.rs); b repeats every `len_b` elements.
// One thread per four elements of a.
{{ interface }}

{{ for_each(4) }}
    let x = a[i];
    {% if vec_b %}
    let y = b[i % ((params.len_b + 3u) / 4u)];
    {% else %}
    let y = vec4<f32>(b[(i * 4u) % params.len_b], b[(i * 4u + 1u) % params.len_b], b[(i * 4u + 2u) % params.len_b],
                      b[(i * 4u + 3u) % params.len_b]);
    {% endif %}
    {% if part == "value" %}
    {% if op == "add" %}
    result[i] = x + y;
    {% elif op == "sub" %}
    result[i] = x - y;
    {% elif op == "mul" %}
    result[i] = x * y;
    {% elif op == "div" %}
    result[i] = x / y;
    {% elif op == "maximum" %}
    result[i] = select(y, x, x > y);
    {% endif %}
    {% else %}
    let dy = grad_output[i];
    {% if op == "maximum" %}
    let a_wins = select(vec4<f32>(0.0), vec4<f32>(1.0), x > y) + select(vec4<f32>(0.0), vec4<f32>(0.5), x == y);
    {% endif %}
    {% if part == "grad_a" %}
    {# Where the gradient is dy itself, nothing is launched. #}
    {% if op == "mul" %}
    result[i] = dy * y;
    {% elif op == "div" %}
    result[i] = dy / y;
    {% elif op == "maximum" %}
    result[i] = dy * a_wins;
    {% endif %}
    {% else %}
    {% if op == "sub" %}
    result[i] = -dy;
    {% elif op == "mul" %}
    result[i] = dy * x;
    {% elif op == "div" %}
    result[i] = -dy * x / (y * y);
    {% elif op == "maximum" %}
    result[i] = dy * (1.0 - a_wins);
    {% endif %}
    {% endif %}
    {% endif %}
}
