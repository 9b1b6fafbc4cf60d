// An elementwise function of a and b or a gradient of it, whose expression is a row of src/ops/binary.rs; b repeats
// every
// `len_b` elements. One thread per four elements of a.
{{ interface }}

// How much of the gradient of a maximum goes to the first of two.
fn wins(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(0.0), vec4<f32>(1.0), a > b) + select(vec4<f32>(0.0), vec4<f32>(0.5), a == b);
}

{{ for_each(4) }}
    let a = first[i];
    {% if vec_b %}
    let b = second[i % ((params.len_b + 3u) / 4u)];
    {% else %}
    let at = (i * 4u + vec4<u32>(0u, 1u, 2u, 3u)) % params.len_b;
    let b = vec4<f32>(second[at.x], second[at.y], second[at.z], second[at.w]);
    {% endif %}
    {% if gradient %}
    let dy = grad_output[i];
    {% endif %}
    result[i] = {{ expression }};
}
