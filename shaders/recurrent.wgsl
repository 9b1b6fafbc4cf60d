// A step of a recurrent layer and its gradients (src/ops/recurrent/cell.rs), and copies of parts of the states. One
// thread per element of h (B, H), in all gates.
{{ interface }}

{% if pass == "copy" %}
{{ for_each(1) }}
    result[params.to_at + i] = x[params.from_at + i];
}
{% else %}
// Some drivers compute tanh from exp(x) and exp(-x), which overflow; beyond 10 it is 1 to the last bit of f32.
fn tanh1(x: f32) -> f32 { return tanh(clamp(x, -10.0, 10.0)); }
{% if pass == "forward" and cell != "rnn" %}
// Beyond 80 the sigmoid is 1 or 0 to the last bit, and exp would overflow.
fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp(-clamp(x, -80.0, 80.0))); }
{% endif %}

{{ for_each(1) }}
    let n = params.hidden;
    let row = i / n;
    let column = i % n;
    let in_y = (params.step_at + row * n) * params.directions + params.direction * n + column;
    {% set G = {"rnn": 1, "lstm": 4, "gru": 3}[cell] %}
    {% set S = {"rnn": 1, "lstm": 4, "gru": 4}[cell] %}
    // The first gate of this element: in rows of gates of all steps or of this one, and in what is kept.
    let gate_of_step = row * {{ G }}u * n + column;
    let gate = params.step_at * {{ G }}u + gate_of_step;
    let kept = (params.slot_at + row * n) * {{ S }}u + column;
    {% if pass == "forward" %}
    {% for k in range(G) %}
    let a{{ k }} = x_gates[gate + {{ k }}u * n];
    let u{{ k }} = h_gates[gate_of_step + {{ k }}u * n];
    {% endfor %}
    let before = h[i];
    h_prev[params.slot_at + i] = before;
    {% if cell == "rnn" %}
    let after = tanh1(a0 + u0);
    kept_gates[kept] = after;
    {% elif cell == "lstm" %}
    let input = sigmoid(a0 + u0);
    let forget = sigmoid(a1 + u1);
    let candidate = tanh1(a2 + u2);
    let output = sigmoid(a3 + u3);
    let c_before = c[i];
    c_prev[params.slot_at + i] = c_before;
    let c_after = forget * c_before + input * candidate;
    c[i] = c_after;
    let after = output * tanh1(c_after);
    kept_gates[kept] = input;
    kept_gates[kept + n] = forget;
    kept_gates[kept + 2u * n] = candidate;
    kept_gates[kept + 3u * n] = output;
    {% else %}
    let reset = sigmoid(a0 + u0);
    let update = sigmoid(a1 + u1);
    let candidate = tanh1(a2 + reset * u2);
    let after = (1.0 - update) * candidate + update * before;
    kept_gates[kept] = reset;
    kept_gates[kept + n] = update;
    kept_gates[kept + 2u * n] = candidate;
    kept_gates[kept + 3u * n] = u2;
    {% endif %}
    h[i] = after;
    y[in_y] = after;
    {% else %}
    {% for k in range(S) %}
    let gate{{ k }} = kept_gates[kept + {{ k }}u * n];
    {% endfor %}
    let d = dh[i] + dy[in_y];
    {% if cell == "rnn" %}
    let d0 = d * (1.0 - gate0 * gate0);
    {% elif cell == "lstm" %}
    let before = c_prev[params.slot_at + i];
    let tanh_c = tanh1(gate1 * before + gate0 * gate2);
    let dc_after = dc[i] + d * gate3 * (1.0 - tanh_c * tanh_c);
    dc[i] = dc_after * gate1;
    let d0 = dc_after * gate2 * gate0 * (1.0 - gate0);
    let d1 = dc_after * before * gate1 * (1.0 - gate1);
    let d2 = dc_after * gate0 * (1.0 - gate2 * gate2);
    let d3 = d * tanh_c * gate3 * (1.0 - gate3);
    {% else %}
    let new_grad = d * (1.0 - gate1) * (1.0 - gate2 * gate2);
    let d0 = new_grad * gate3 * gate0 * (1.0 - gate0);
    let d1 = d * (h_prev[params.slot_at + i] - gate2) * gate1 * (1.0 - gate1);
    let d2 = new_grad * gate0;
    dh[i] = d * gate1;
    {% endif %}
    {% for k in range(G) %}
    {% if cell == "gru" %}
    x_grad[gate + {{ k }}u * n] = {{ "new_grad" if k == 2 else "d" ~ k }};
    h_grad[gate + {{ k }}u * n] = d{{ k }};
    {% else %}
    x_grad[gate + {{ k }}u * n] = d{{ k }};
    {% endif %}
    step_grad[gate_of_step + {{ k }}u * n] = d{{ k }};
    {% endfor %}
    {% endif %}
}
{% endif %}
