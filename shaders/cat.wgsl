// Copies one of several tensors to its place between the others (src/ops/movement/cat.rs). One thread per {{ type }} of
// it.
{{ interface }}

{{ for_each(1) }}
    result[i / params.width * params.result_width + params.start + i % params.width] = x[i];
}
