// An elementwise function of a and b, or a gradient of it, whose expression is a row of src/ops/binary.rs or
// compare.rs. One thread per four elements of the result. Either b repeats every `len_b` elements, or all operands are
// walked by strides (src/ops/broadcast.rs). What is f16 is computed in f32.
{{ interface }}

// How much of the gradient of a maximum goes to the first of two.
fn wins(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(0.0), vec4<f32>(1.0), a > b) + select(vec4<f32>(0.0), vec4<f32>(0.5), a == b);
}

{{ for_each(4) }}
    {% if strided %}
    var rest = i * 4u + vec4<u32>(0u, 1u, 2u, 3u);
    {% for name in ["a", "b", "c"][:operands] %}
    var {{ name }}_at = vec4<u32>(0u);
    {% endfor %}
    {% for d in range(rank)|reverse %}
    let index{{ d }} = rest % params.size{{ d }};
    rest /= params.size{{ d }};
    {% for name in ["a", "b", "c"][:operands] %}
    {{ name }}_at += index{{ d }} * params.{{ name }}{{ d }};
    {% endfor %}
    {% endfor %}
    {% for name in ["a", "b", "c"][:operands] %}
    let {{ name }} = vec4<{{ T }}>(
        {{ T }}({{ name }}_values[{{ name }}_at.x]), {{ T }}({{ name }}_values[{{ name }}_at.y]),
        {{ T }}({{ name }}_values[{{ name }}_at.z]), {{ T }}({{ name }}_values[{{ name }}_at.w]));
    {% endfor %}
    {% else %}
    let a = vec4<{{ T }}>(a_values[i]);
    {% if vec_b %}
    let b = vec4<{{ T }}>(b_values[i % ((params.len_b + 3u) / 4u)]);
    {% else %}
    let at = (i * 4u + vec4<u32>(0u, 1u, 2u, 3u)) % params.len_b;
    let b = vec4<{{ T }}>(
        {{ T }}(b_values[at.x]), {{ T }}(b_values[at.y]), {{ T }}(b_values[at.z]), {{ T }}(b_values[at.w]));
    {% endif %}
    {% endif %}
    {% if gradient %}
    let dy = vec4<f32>(grad_output[i]);
    {% endif %}
    result[i] = vec4<{{ T_out }}>({{ expression }});
}
