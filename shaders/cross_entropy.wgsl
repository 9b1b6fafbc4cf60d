// Softmax cross-entropy (formulas: src/ops/cross_entropy.rs).
//
// Passes over (rows, columns): LANES threads share a row, and ROWS rows a workgroup; thread `lane` of a row takes
// the elements (or groups of four) lane, lane + LANES, .. Passes over rows: one workgroup of 256 threads, each summing
// every 256th row, then a tree. All sums run in a fixed order. Logits and their gradient are stored as the type T.
{{ interface }}

const IGNORED = 0xffffffffu;
{% set backward = pass == "backward" or pass == "backward of rows" %}
{% set of_rows = pass == "backward of rows" or pass == "classifier of rows" %}
{% set general = weighted or (pass != "count" and pass != "mean" and smoothing) %}

{% if pass == "count" or pass == "mean" %}
{% if pass == "mean" %}
var<workgroup> sums: array<f32, 256>;
{% endif %}
{% set number = "f32" if weighted else "u32" %}
// Of rows with a target, or of their targets' weights.
var<workgroup> counts: array<{{ number }}, 256>;

{{ entry(256) }}
    var rows = {{ number }}(0);
    var sum = 0.0;
    for (var row = thread; row < params.rows; row += 256u) {
        {% if weighted %}
        if (targets[row] < params.vocab) { rows += class_weights[targets[row]]; }
        {% else %}
        rows += select(1u, 0u, targets[row] == IGNORED);
        {% endif %}
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
        {% if weighted %}
        loss[0] = sums[0] * select(1.0 / counts[0], 0.0, counts[0] == 0.0);
        {% else %}
        loss[0] = sums[0] / f32(max(counts[0], 1u));
        {% endif %}
        {% endif %}
    }
}
{% else %}

{% set element = "vec4<f32>" if vector else "f32" %}
{% set stored = element | replace("f32", T) %}
{# Where rows are padded to whole vectors they have more columns than there are classes. #}
{% set columns = "params.columns" if padded else "params.vocab" %}
{% macro load(i) -%}
{% set x = element ~ "(logits[first + " ~ i ~ "])" %}
{{ "of_classes(" ~ x ~ ", " ~ i ~ ", -3.4e38)" if padded else x }}
{%- endmacro %}
{# The part of a sum of weight * (the target's logit - element) that x, the i-th of its row, has. #}
{% macro spread_of(x, i) -%}
{% set difference = "(target_logit - " ~ x ~ ")" ~ (" * class_weights[" ~ i ~ "]" if weighted else "") %}
{{ "across(" ~ ("of_classes(" ~ difference ~ ", " ~ i ~ ", 0.0)" if padded else difference) ~ ")" }}
{%- endmacro %}
const LANES = {{ lanes }}u;
const ROWS = {{ threads }}u / LANES;

{% if pass == "rows" %}
// losses of each row, its maximum and the sum of exp(x - maximum).
{% elif not backward %}
// losses of each row, and the logits' gradient, times {{ "its factor" if of_rows else "the scale of the loss" }}, in
// their place.
{% else %}
// The logits' gradient, given the maximum and the sum of each row.
{% endif %}

{% if padded %}
// x, of the i-th vector of a row, and another value where there is no class.
fn of_classes(x: vec4<f32>, i: u32, other: f32) -> vec4<f32> {
    return select(vec4<f32>(other), x, vec4<u32>(0u, 1u, 2u, 3u) + i * 4u < vec4<u32>(params.vocab));
}
{% endif %}

{% if not backward %}
// Of every thread the maximum of its elements, and the sum of exp(element - maximum).
var<workgroup> row_maxes: array<f32, {{ threads }}>;
var<workgroup> row_sums: array<f32, {{ threads }}>;
{% if smoothing %}
// Of every thread the sum of weight * (the target's logit - element).
var<workgroup> row_spreads: array<f32, {{ threads }}>;
{% endif %}

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
    return f32(logits[row * ({{ columns }} / 4u) + i / 4u][i % 4u]);
    {% else %}
    return f32(logits[row * params.vocab + i]);
    {% endif %}
}
{% endif %}

{% if weighted %}
fn weight_of(label: u32) -> f32 {
    if (label >= params.vocab) { return 0.0; }
    {% if vector %}
    return class_weights[label / 4u][label % 4u];
    {% else %}
    return class_weights[label];
    {% endif %}
}
{% endif %}

{% if pass != "rows" %}
// The gradient of x, the i-th {{ element }} of its row{{ ", whose target keeps the weight own" if general }}.
fn gradient(
    x: {{ element }}, i: u32, label: u32, row_max: f32, inv_sum: f32, factor: f32{{ ", own: f32" if general }},
) -> {{ element }} {
    {% if vector %}
    let onehot = select(vec4<f32>(0.0), vec4<f32>(1.0), vec4<u32>(0u, 1u, 2u, 3u) + i * 4u == vec4<u32>(label));
    {% else %}
    let onehot = select(0.0, 1.0, i == label);
    {% endif %}
    {% if general %}
    {% set spread = " + params.share" ~ (" * class_weights[i]" if weighted else "") if smoothing else "" %}
    let dx = (exp(x - row_max) * inv_sum - (own * onehot{{ spread }})) * factor;
    return select({{ "of_classes(dx, i, 0.0)" if padded else "dx" }}, {{ element }}(0.0), label == IGNORED);
    {% else %}
    return select((exp(x - row_max) * inv_sum - onehot) * factor, {{ element }}(0.0), label == IGNORED);
    {% endif %}
}
{% endif %}

{{ entry(threads) }}
    let lane = thread % LANES;
    let row = workgroup * ROWS + thread / LANES;
    let inside = row < params.rows;
    // Past the last row a thread has no elements, but it must reach the barriers.
    let steps = select(0u, {{ columns }}{{ " / 4u" if vector }}, inside);
    let first = row * ({{ columns }}{{ " / 4u" if vector }});
    var label = IGNORED;
    if (inside) { label = targets[row]; }
    let broken = label != IGNORED && label >= params.vocab;
    let nan = bitcast<f32>(params.nan);
    {% if general %}
    let own = params.kept{{ " * weight_of(label)" if weighted }};
    let total = {{ "own" if weighted else "1.0" }}
        {{- " + params.share * weight_sum[0]" if weighted and smoothing }};
    {% endif %}

    {% if not backward %}
    var row_max = -3.4e38;
    var row_sum = 0.0;
    var next = lane;
    {% if smoothing %}
    var target_logit = 0.0;
    if (inside && label < params.vocab) { target_logit = logit(row, label); }
    var row_spread = 0.0;
    {% endif %}
    // Four at a time keep four loads in flight.
    for (; next + 3u * LANES < steps; next += 4u * LANES) {
        {% for j in range(4) %}
        let x{{ j }} = {{ load("next + " ~ j ~ "u * LANES") }};
        {% endfor %}
        let new_max = max(row_max, most(max(max(x0, x1), max(x2, x3))));
        row_sum = row_sum * exp(row_max - new_max)
            + across((exp(x0 - new_max) + exp(x1 - new_max)) + (exp(x2 - new_max) + exp(x3 - new_max)));
        row_max = new_max;
        {% if smoothing %}
        {% for j in range(4) %}
        row_spread += {{ spread_of("x" ~ j, "next + " ~ j ~ "u * LANES") }};
        {% endfor %}
        {% endif %}
    }
    for (; next < steps; next += LANES) {
        let x = {{ load("next") }};
        let new_max = max(row_max, most(x));
        row_sum = row_sum * exp(row_max - new_max) + across(exp(x - new_max));
        row_max = new_max;
        {% if smoothing %}
        row_spread += {{ spread_of("x", "next") }};
        {% endif %}
    }
    {% if not smoothing %}
    // Before the barriers, because the classifier overwrites it after them.
    var target_logit = 0.0;
    if (inside && label < params.vocab) { target_logit = logit(row, label); }
    {% endif %}
    row_maxes[thread] = row_max;
    row_sums[thread] = row_sum;
    {% if smoothing %}
    row_spreads[thread] = row_spread;
    {% endif %}
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let new_max = max(row_maxes[thread], row_maxes[thread + half]);
            row_sums[thread] = row_sums[thread] * exp(row_maxes[thread] - new_max)
                + row_sums[thread + half] * exp(row_maxes[thread + half] - new_max);
            row_maxes[thread] = new_max;
            {% if smoothing %}
            row_spreads[thread] += row_spreads[thread + half];
            {% endif %}
        }
    }
    workgroupBarrier();
    row_max = row_maxes[thread - lane];
    row_sum = row_sums[thread - lane];
    if (inside && lane == 0u) {
        {% if general %}
        let row_loss = total * (row_max - target_logit + log(row_sum))
            {{- " + params.share * row_spreads[thread]" if smoothing }};
        losses[row] = select(select(row_loss, nan, broken), 0.0, label == IGNORED);
        {% else %}
        losses[row] = select(select(row_max - target_logit + log(row_sum), nan, broken), 0.0, label == IGNORED);
        {% endif %}
        {% if pass == "rows" %}
        max_and_sum[row] = vec2<f32>(row_max, row_sum);
        {% endif %}
    }
    {% endif %}

    {% if pass != "rows" %}
    {% if backward %}
    var row_max = 0.0;
    var row_sum = 1.0;
    if (inside) {
        row_max = max_and_sum[row].x;
        row_sum = max_and_sum[row].y;
    }
    {% set scale = "grad_output" %}
    {% set result = "dlogits" %}
    {% else %}
    {% set scale = "factors" if of_rows else "loss_scale" %}
    {% set result = "logits" %}
    {% endif %}
    {% if of_rows %}
    var factor = select(0.0, {{ scale }}[row], inside);
    {% elif weighted %}
    var factor = {{ scale }}[0] * select(1.0 / valid[0], 0.0, valid[0] == 0.0);
    {% else %}
    var factor = {{ scale }}[0] / max(valid[0], 1.0);
    {% endif %}
    factor = select(factor, nan, broken);
    let inv_sum = {{ "total" if general else "1.0" }} / row_sum;
    var at = lane;
    for (; at + 3u * LANES < steps; at += 4u * LANES) {
        {% for j in range(4) %}
        let x{{ j }} = {{ load("at + " ~ j ~ "u * LANES") }};
        {% endfor %}
        {% for j in range(4) %}
        {{ result }}[first + at + {{ j }}u * LANES] = {{ stored }}(
            gradient(x{{ j }}, at + {{ j }}u * LANES, label, row_max, inv_sum, factor{{ ", own" if general }}),
        );
        {% endfor %}
    }
    for (; at < steps; at += LANES) {
        {{ result }}[first + at] = {{ stored }}(
            gradient({{ load("at") }}, at, label, row_max, inv_sum, factor{{ ", own" if general }}),
        );
    }
    {% endif %}
}
{% endif %}
