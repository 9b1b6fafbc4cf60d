// D = rowsum(dy * y) (src/ops/attention/mod.rs) of each row and head; y and dy are stored as {{ T }}. Neighbouring
// threads share a row, so that they read what is adjacent in memory.
{{ interface }}

const LANES = {{ lanes }}u;
// {{ "The head in groups of four elements." if vector else "Elements of the head." }}
const WIDTH = {{ width }}u;
var<workgroup> parts: array<f32, 256>;

{{ entry(256) }}
    let lane = thread % LANES;
    let i = workgroup * {{ 256 // lanes }}u + thread / LANES;
    let used = i < params.batch * params.n_head * params.time;
    var part = 0.0;
    if (used) {
        for (var d = lane; d < WIDTH; d += LANES) {
            {% if vector %}
            part += dot(vec4<f32>(y[i * WIDTH + d]), vec4<f32>(dy[i * WIDTH + d]));
            {% else %}
            part += f32(y[i * WIDTH + d]) * f32(dy[i * WIDTH + d]);
            {% endif %}
        }
    }
    parts[thread] = part;
    workgroupBarrier();
    if (used && lane == 0u) {
        var sum = 0.0;
        for (var l = 0u; l < LANES; l++) { sum += parts[thread + l]; }
        // i numbers (batch, time, head), delta is (batch, head, time).
        let head = i % params.n_head;
        let row = i / params.n_head;
        delta[(row / params.time * params.n_head + head) * params.time + row % params.time] = sum;
    }
}
