// One update of all parameters (formulas: src/optim/update.rs). One thread per four elements. Gradients whose norm is no
// number change nothing but the count of skipped updates.
{{ "enable f16;" if mixed }}
{% include "common" %}

struct Params {
    len: u32, decay_end: u32,
    learning_rate: f32, beta1: f32, beta2: f32, eps: f32, weight_decay: f32,
    correction1: f32, correction2: f32, grad_clip: f32, counts: u32,
}
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> gradients: array<vec4<f32>>;
// The sum of the squared gradients{{ ", and what they are to be multiplied by" if mixed }}.
@group(0) @binding(1) var<storage, read> squares: array<f32>;
@group(0) @binding(2) var<storage, read_write> values: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> first: array<vec4<f32>>;
{% if rule != "sgd" %}
@group(0) @binding(4) var<storage, read_write> second: array<vec4<f32>>;
{% endif %}
@group(0) @binding({{ 4 if rule == "sgd" else 5 }}) var<storage, read_write> skipped: array<u32>;
{% if mixed %}
@group(0) @binding({{ 5 if rule == "sgd" else 6 }}) var<storage, read_write> halves: array<vec4<f16>>;
{% endif %}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i * 4u >= p.len) { return; }
    {% if mixed %}
    if (squares[1] == 0.0) { return; }
    {% endif %}
    // By the bits of the exponent: a compiler may take it that no number is infinite or NaN.
    if ((bitcast<u32>(squares[0]) & 0x7f800000u) == 0x7f800000u) {
        if (i == 0u) { skipped[0] += p.counts; }
        return;
    }
    var clip = 1.0;
    if (p.grad_clip > 0.0) { clip = min(1.0, p.grad_clip / (sqrt(squares[0]) + 1e-6)); }
    {% if mixed %}
    clip *= squares[1];
    {% endif %}
    // Arenas and their decaying part end on whole vectors.
    let decay = select(0.0, p.weight_decay, i * 4u < p.decay_end);
    var value = values[i];
    var g = gradients[i] * clip;
    {% if rule == "adamw" %}
    value *= 1.0 - p.learning_rate * decay;
    {% else %}
    g += decay * value;
    {% endif %}
    {% if rule == "sgd" %}
    let m = p.beta1 * first[i] + g;
    first[i] = m;
    value -= p.learning_rate * m;
    {% else %}
    let m = p.beta1 * first[i] + (1.0 - p.beta1) * g;
    let v = p.beta2 * second[i] + (1.0 - p.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    value -= p.learning_rate * (m * p.correction1) / (sqrt(v * p.correction2) + p.eps);
    {% endif %}
    values[i] = value;
    {% if mixed %}
    halves[i] = vec4<f16>(value);
    {% endif %}
}
