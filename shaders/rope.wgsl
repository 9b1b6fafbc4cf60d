// Rotary position embedding of packed queries and keys{{ ", normalized before" if norm }}, and its gradient
// (src/ops/rope.rs), in units of {{ vector }} elements that are stored as {{ T }}. {{ lanes }} threads share a head,
// each with one unit of either half.
{% set F = "f32" if vector == 1 else "vec4<f32>" %}
{% set E = F | replace("f32", T) %}
{% set K = F | replace("f32", C) %}
{{ interface }}

const HALF = {{ half }}u;
const LANES = {{ lanes }}u;
// Heads at once.
const HEADS = {{ 256 // lanes }}u;

{% if norm %}
var<workgroup> totals: array<f32, 256>;

// The sum over the threads of one head. The first barrier: the last user of the memory has read it.
fn head_sum(value: f32, thread: u32, lane: u32) -> f32 {
    workgroupBarrier();
    totals[thread] = value;
    for (var apart = LANES / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) { totals[thread] += totals[thread + apart]; }
    }
    workgroupBarrier();
    return totals[thread - lane];
}

fn across(value: {{ F }}) -> f32 {
    {% if vector == 1 %}
    return value;
    {% else %}
    return (value.x + value.y) + (value.z + value.w);
    {% endif %}
}
{% endif %}

{% if pass == "forward" %}
{{ entry(256) }}
    let packed = params.n_head + 2u * params.n_kv_head;
    let lane = thread % LANES;
    let number = workgroup * HEADS + thread / LANES;
    let row = number / packed;
    let head = number % packed;
    // Threads beyond the last head or the end of one take part in the barriers.
    let inside = row < params.rows && lane < HALF;
    let at = number * 2u * HALF + lane;
    var a = {{ F }}(0.0);
    var b = {{ F }}(0.0);
    if (inside) {
        a = {{ F }}(x[at]);
        b = {{ F }}(x[at + HALF]);
    }
    {% if norm %}
    let squares = head_sum(across(a * a + b * b), thread, lane);
    let rstd = 1.0 / sqrt(squares * params.per_element + params.eps);
    {% endif %}
    if (!inside) { return; }
    if (head < params.n_head + params.n_kv_head) {
        {% if norm %}
        if (head < params.n_head) {
            a *= rstd * q_weight[lane];
            b *= rstd * q_weight[lane + HALF];
        } else {
            a *= rstd * k_weight[lane];
            b *= rstd * k_weight[lane + HALF];
        }
        {% endif %}
        let angle = (params.start + row % params.time) * 2u * HALF + lane;
        let cosine = table[angle];
        let sine = params.sign * table[angle + HALF];
        let turned = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = turned;
    }
    result[at] = {{ E }}(a);
    result[at + HALF] = {{ E }}(b);
    {% if append %}
    if (head >= params.n_head) {
        let kept_row = row / params.time * params.room + params.start + row % params.time;
        let kept = (kept_row * 2u * params.n_kv_head + head - params.n_head) * 2u * HALF + lane;
        cache[kept] = {{ K }}(a);
        cache[kept + HALF] = {{ K }}(b);
    }
    {% endif %}
}
{% else %}
// A workgroup has a chunk of tokens. Each thread sums the gradients of its part of both weights over its heads; then
// those of the heads at once are added up.
var<workgroup> columns: array<{{ F }}, 256>;

{{ entry(256) }}
    let packed = params.n_head + 2u * params.n_kv_head;
    let lane = thread % LANES;
    let start = workgroup * params.chunk;
    let end = min(start + params.chunk, params.rows) * packed;
    {% for kind in ["q", "k"] %}
    {% for side in ["a", "b"] %}
    var d{{ kind }}_{{ side }} = {{ F }}(0.0);
    {% endfor %}
    {% endfor %}
    for (var first = start * packed; first < end; first += HEADS) {
        let number = first + thread / LANES;
        let row = number / packed;
        let head = number % packed;
        let inside = number < end && lane < HALF;
        let at = number * 2u * HALF + lane;
        var a = {{ F }}(0.0);
        var b = {{ F }}(0.0);
        var dy_a = {{ F }}(0.0);
        var dy_b = {{ F }}(0.0);
        var dz_a = {{ F }}(0.0);
        var dz_b = {{ F }}(0.0);
        var weight_a = {{ F }}(0.0);
        var weight_b = {{ F }}(0.0);
        if (inside) {
            dy_a = {{ F }}(grad_output[at]);
            dy_b = {{ F }}(grad_output[at + HALF]);
            if (head < params.n_head + params.n_kv_head) {
                a = {{ F }}(x[at]);
                b = {{ F }}(x[at + HALF]);
                let angle = (params.start + row % params.time) * 2u * HALF + lane;
                dz_a = dy_a * table[angle] + dy_b * table[angle + HALF];
                dz_b = dy_b * table[angle] - dy_a * table[angle + HALF];
                if (head < params.n_head) {
                    weight_a = q_weight[lane];
                    weight_b = q_weight[lane + HALF];
                } else {
                    weight_a = k_weight[lane];
                    weight_b = k_weight[lane + HALF];
                }
            }
        }
        let rstd = 1.0 / sqrt(head_sum(across(a * a + b * b), thread, lane) * params.per_element + params.eps);
        let n_a = a * rstd;
        let n_b = b * rstd;
        let dn_a = dz_a * weight_a;
        let dn_b = dz_b * weight_b;
        let average = head_sum(across(dn_a * n_a + dn_b * n_b), thread, lane) * params.per_element;
        if (head < params.n_head) {
            dq_a += dz_a * n_a;
            dq_b += dz_b * n_b;
        } else {
            dk_a += dz_a * n_a;
            dk_b += dz_b * n_b;
        }
        if (inside) {
            if (head < params.n_head + params.n_kv_head) {
                result[at] = {{ E }}(rstd * (dn_a - n_a * average));
                result[at + HALF] = {{ E }}(rstd * (dn_b - n_b * average));
            } else {
                result[at] = {{ E }}(dy_a);
                result[at + HALF] = {{ E }}(dy_b);
            }
        }
    }
    {% for kind in ["q", "k"] %}
    {% for side in ["a", "b"] %}
    workgroupBarrier();
    columns[thread] = d{{ kind }}_{{ side }};
    for (var apart = 128u; apart >= LANES; apart /= 2u) {
        workgroupBarrier();
        if (thread < apart) { columns[thread] += columns[thread + apart]; }
    }
    if (thread < HALF) {
        {% set quarter = (2 if kind == "k" else 0) + (1 if side == "b" else 0) %}
        sums[(workgroup * 4u + {{ quarter }}u) * HALF + thread] = columns[thread];
    }
    {% endfor %}
    {% endfor %}
}
{% endif %}
