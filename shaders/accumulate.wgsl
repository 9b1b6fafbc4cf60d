// Adds gradients: sum = sum + a, or sum = a + b. One thread per four elements.
{{ interface }}

{{ for_each(4) }}
    // The last vector may reach past the tensor. What lies there is not ours to change: in an arena it is padding
    // that must stay zero for the gradient norm.
    let lanes = vec4<u32>(0u, 1u, 2u, 3u) + i * 4u;
    {% if two_inputs %}
    let total = vec4<f32>(a[i]) + vec4<f32>(b[i]);
    {% else %}
    let total = vec4<f32>(sum[i]) + vec4<f32>(a[i]);
    {% endif %}
    sum[i] = select(sum[i], vec4<{{ T_sum }}>(total), lanes < vec4<u32>(params.len));
}
