// y = factor[0] * x, or y = y + factor[0] * x. One thread per four elements.
{{ interface }}

{{ for_each(4) }}
    // What lies past the tensor in the last vector is padding of an arena and must stay as it is.
    let lanes = vec4<u32>(0u, 1u, 2u, 3u) + i * 4u;
    let value = {{ "vec4<f32>(y[i]) + " if accumulate }}factor[0] * vec4<f32>(x[i]);
    y[i] = select(y[i], vec4<{{ T_out }}>(value), lanes < vec4<u32>(params.len));
}
