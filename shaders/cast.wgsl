// Converts between f32 and f16 (src/ops/cast.rs). One thread per four elements.
{{ interface }}

{{ for_each(4) }}
    result[i] = vec4<{{ to }}>(x[i]);
}
