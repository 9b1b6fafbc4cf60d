// D = rowsum(dy * y) (src/ops/attention/mod.rs), one thread per row and head; y and dy are stored as {{ T }}.
{{ interface }}

const HEAD_SIZE = {{ head_size }}u;
// The head in groups of four elements.
const GROUPS = {{ (head_size + 3) // 4 }}u;

{{ entry(256) }}
    let i = workgroup * 256u + thread;
    if (i >= params.batch * params.n_head * params.time) { return; }
    var sum = 0.0;
    {% if vector %}
    for (var d = 0u; d < GROUPS; d++) { sum += dot(vec4<f32>(y[i * GROUPS + d]), vec4<f32>(dy[i * GROUPS + d])); }
    {% else %}
    for (var d = 0u; d < HEAD_SIZE; d++) { sum += f32(y[i * HEAD_SIZE + d]) * f32(dy[i * HEAD_SIZE + d]); }
    {% endif %}
    // i numbers (batch, time, head), delta is (batch, head, time).
    let head = i % params.n_head;
    let row = i / params.n_head;
    delta[(row / params.time * params.n_head + head) * params.time + row % params.time] = sum;
}
