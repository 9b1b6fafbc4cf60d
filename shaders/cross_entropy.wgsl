// Softmax cross-entropy (formulas: src/ops/cross_entropy.rs).
//
// Passes over (rows, vocab): LANES threads share a row, and ROWS rows a workgroup; thread `lane` of a row takes
// the elements (or groups of four) lane, lane + LANES, .. Passes over rows: one workgroup of 256 threads, each summing
// every 256th row, then a tree. All sums run in a fixed order. Logits and their gradient are stored as {{ T }}.
{{ interface }}

const IGNORED = 0xffffffffu;

{% if pass == "count" or pass == "mean" %}
{% if pass == "mean" %}
var<workgroup> sums: array<f32, 256>;
{% endif %}
var<workgroup> counts: array<u32, 256>;

{{ entry(256) }}
    var rows = 0u;
    var sum = 0.0;
    for (var row = thread; row < params.rows; row += 256u) {
        rows += select(1u, 0u, targets[row] == IGNORED);
        {% if pass == "mean" %}
        sum += losses[row];
        {% endif %}
    }
    counts[thread] = rows;
    {% if pass == "mean" %}
    sums[thread] = sum;
    {% endif %}
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            counts[thread] += counts[thread + half];
            {% if pass == "mean" %}
            sums[thread] += sums[thread + half];
            {% endif %}
        }
    }
    if (thread == 0u) {
        valid[0] = f32(counts[0]);
        {% if pass == "mean" %}
        loss[0] = sums[0] / f32(max(counts[0], 1u));
        {% endif %}
    }
}
{% else %}

{% set element = "vec4<f32>" if vector else "f32" %}
{% set stored = element | replace("f32", T) %}
const LANES = {{ lanes }}u;
const ROWS = {{ threads }}u / LANES;

{% if pass == "rows" %}
// losses of each row, and its norm: the maximum and the sum of exp(x - maximum).
{% elif pass == "classifier" %}
// losses of each row, and the logits' gradient, times the scale of the loss, in their place.
{% else %}
// The logits' gradient, given the norm of each row.
{% endif %}

{% if pass != "backward" %}
// Of every thread the maximum of its elements, and the sum of exp(element - maximum).
var<workgroup> tops: array<f32, {{ threads }}>;
var<workgroup> totals: array<f32, {{ threads }}>;

// The largest of the elements, and their sum.
fn most(x: {{ element }}) -> f32 {
    {% if vector %}
    return max(max(x.x, x.y), max(x.z, x.w));
    {% else %}
    return x;
    {% endif %}
}
fn across(x: {{ element }}) -> f32 {
    {% if vector %}
    return x.x + x.y + x.z + x.w;
    {% else %}
    return x;
    {% endif %}
}

fn logit(row: u32, i: u32) -> f32 {
    {% if vector %}
    return f32(logits[row * (params.vocab / 4u) + i / 4u][i % 4u]);
    {% else %}
    return f32(logits[row * params.vocab + i]);
    {% endif %}
}
{% endif %}

{% if pass != "rows" %}
// The gradient of x, the i-th {{ element }} of its row.
fn gradient(x: {{ element }}, i: u32, label: u32, top: f32, share: f32, factor: f32) -> {{ element }} {
    {% if vector %}
    let onehot = select(vec4<f32>(0.0), vec4<f32>(1.0), vec4<u32>(0u, 1u, 2u, 3u) + i * 4u == vec4<u32>(label));
    {% else %}
    let onehot = select(0.0, 1.0, i == label);
    {% endif %}
    return select((exp(x - top) * share - onehot) * factor, {{ element }}(0.0), label == IGNORED);
}
{% endif %}

{{ entry(threads) }}
    let lane = thread % LANES;
    let row = workgroup * ROWS + thread / LANES;
    let inside = row < params.rows;
    // Past the last row a thread has no elements, but it must reach the barriers.
    let steps = select(0u, params.vocab{{ " / 4u" if vector }}, inside);
    let first = row * (params.vocab{{ " / 4u" if vector }});
    var label = IGNORED;
    if (inside) { label = targets[row]; }
    let broken = label != IGNORED && label >= params.vocab;
    let nan = bitcast<f32>(params.nan);

    {% if pass != "backward" %}
    var top = -3.4e38;
    var total = 0.0;
    var next = lane;
    // Four at a time keep four loads in flight.
    for (; next + 3u * LANES < steps; next += 4u * LANES) {
        {% for j in range(4) %}
        let x{{ j }} = {{ element }}(logits[first + next + {{ j }}u * LANES]);
        {% endfor %}
        let new_top = max(top, most(max(max(x0, x1), max(x2, x3))));
        total = total * exp(top - new_top)
            + across((exp(x0 - new_top) + exp(x1 - new_top)) + (exp(x2 - new_top) + exp(x3 - new_top)));
        top = new_top;
    }
    for (; next < steps; next += LANES) {
        let x = {{ element }}(logits[first + next]);
        let new_top = max(top, most(x));
        total = total * exp(top - new_top) + across(exp(x - new_top));
        top = new_top;
    }
    // Before the barriers, because the classifier overwrites it after them.
    var own = 0.0;
    if (inside && label < params.vocab) { own = logit(row, label); }
    tops[thread] = top;
    totals[thread] = total;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let new_top = max(tops[thread], tops[thread + half]);
            totals[thread] = totals[thread] * exp(tops[thread] - new_top)
                + totals[thread + half] * exp(tops[thread + half] - new_top);
            tops[thread] = new_top;
        }
    }
    workgroupBarrier();
    top = tops[thread - lane];
    total = totals[thread - lane];
    if (inside && lane == 0u) {
        losses[row] = select(select(top - own + log(total), nan, broken), 0.0, label == IGNORED);
        {% if pass == "rows" %}
        norm[row] = vec2<f32>(top, total);
        {% endif %}
    }
    {% endif %}

    {% if pass != "rows" %}
    {% if pass == "backward" %}
    var top = 0.0;
    var total = 1.0;
    if (inside) {
        top = norm[row].x;
        total = norm[row].y;
    }
    var factor = grad_output[0] / max(valid[0], 1.0);
    {% set result = "dlogits" %}
    {% else %}
    var factor = loss_scale[0] / max(valid[0], 1.0);
    {% set result = "logits" %}
    {% endif %}
    factor = select(factor, nan, broken);
    let share = 1.0 / total;
    var at = lane;
    for (; at + 3u * LANES < steps; at += 4u * LANES) {
        {% for j in range(4) %}
        let x{{ j }} = {{ element }}(logits[first + at + {{ j }}u * LANES]);
        {% endfor %}
        {% for j in range(4) %}
        {{ result }}[first + at + {{ j }}u * LANES] = {{ stored }}(gradient(x{{ j }}, at + {{ j }}u * LANES, label, top, share, factor));
        {% endfor %}
    }
    for (; at < steps; at += LANES) {
        {{ result }}[first + at] = {{ stored }}(gradient({{ element }}(logits[first + at]), at, label, top, share, factor));
    }
    {% endif %}
}
{% endif %}
