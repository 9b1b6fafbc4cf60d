// Elementwise functions of a and b and their gradients (formulas: src/ops/binary.rs); b repeats every `len_b` elements.
// One thread per four elements of a.
{% include "common" %}

struct Params { len: u32, len_b: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<{{ "vec4<f32>" if vec_b else "f32" }}>;
{% if part == "value" %}
@group(0) @binding(2) var<storage, read_write> result: array<vec4<f32>>;
{% else %}
@group(0) @binding(2) var<storage, read> upstream: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> result: array<vec4<f32>>;
{% endif %}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = workgroup_number(id, count) * 256u + thread;
    if (i * 4u >= p.len) { return; }
    let x = a[i];
    {% if vec_b %}
    let y = b[i % ((p.len_b + 3u) / 4u)];
    {% else %}
    let y = vec4<f32>(b[(i * 4u) % p.len_b], b[(i * 4u + 1u) % p.len_b], b[(i * 4u + 2u) % p.len_b],
                      b[(i * 4u + 3u) % p.len_b]);
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
    let dy = upstream[i];
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
