// C = A B [+ C] [+ bias] of {{ rows }} rows of A, then the epilogue (src/ops/matmul/matvec.rs). What takes time is to
// read B once: a workgroup computes {{ "some outputs, " if trans_b }}{{ "a few columns, " if not trans_b }}and its
// threads share k.
{% if norm %}
// A is the {{ norm }} norm of the residual stream x{{ " + branch, which the first workgroup writes too" if branch }}
// (src/ops/norm_linear.rs): every workgroup computes it, which takes less time than a launch.
{% endif %}
{{ interface }}
{% include "matmul_epilogue" %}
{% if quantized %}
{% include "quantized" %}
{% endif %}

{% set V = "vec4<f32>" if vector else "f32" %}
{# What lies along k in A and, if it is transposed, in B. #}
{% set A = "vec4<f32>" if vector and trans_b else "f32" %}
// Threads that share an output, or a vector of them, and how many of those a workgroup has.
const SHARE = {{ share }}u;
const OUTPUTS = {{ 256 // share }}u;

{% if trans_b %}
// B is (N, K): what threads add up lies along k, and the elements of a vector belong to one output.
var<workgroup> totals: array<f32, 256>;
{% else %}
// B is (K, N): the elements of a vector belong to neighbouring outputs.
var<workgroup> totals: array<{{ V }}, 256>;
{% endif %}

{% if norm %}
var<workgroup> normal: array<{{ A }}, {{ rows * steps }}>;
var<workgroup> reduced: array<f32, 256>;

// The sum over all threads and, of vectors, their elements.
fn row_sum(value: {{ A }}, thread: u32) -> f32 {
    workgroupBarrier();
    reduced[thread] = {{ "dot(value, vec4<f32>(1.0))" if A != "f32" else "value" }};
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { reduced[thread] += reduced[thread + half]; }
    }
    workgroupBarrier();
    return reduced[0];
}
{% endif %}

{{ entry(256) }}
    {% if quantized and b_type == "nf4" %}
    load_nf4(thread);
    {% endif %}
    {% if norm %}
    {% for r in range(rows) %}
    {
        var total = {{ A }}(0.0);
        for (var k = thread; k < params.steps; k += 256u) {
            let at = {{ r }}u * params.steps + k;
            let value = x[at]{{ " + " ~ A ~ "(branch[at])" if branch }};
            {% if branch %}
            if (workgroup == 0u) { stream[at] = value; }
            {% endif %}
            normal[at] = value;
            total += {{ "value" if norm == "layer" else "value * value" }};
        }
        {% if norm == "layer" %}
        let mean = {{ A }}(row_sum(total, thread) * params.per_element);
        total = {{ A }}(0.0);
        for (var k = thread; k < params.steps; k += 256u) {
            let centred = normal[{{ r }}u * params.steps + k] - mean;
            normal[{{ r }}u * params.steps + k] = centred;
            total += centred * centred;
        }
        {% endif %}
        let rstd = 1.0 / sqrt(row_sum(total, thread) * params.per_element + params.eps);
        for (var k = thread; k < params.steps; k += 256u) {
            let at = {{ r }}u * params.steps + k;
            normal[at] = normal[at] * rstd * norm_weight[k]{{ " + norm_bias[k]" if norm_bias }};
        }
    }
    {% endfor %}
    workgroupBarrier();
    {% endif %}
    {% if trans_b %}
    let lane = thread % SHARE;
    let output = workgroup * OUTPUTS + thread / SHARE;
    let first = min(output, params.outputs - 1u) * params.steps;
    {% else %}
    let lane = thread / OUTPUTS;
    let output = workgroup * OUTPUTS + thread % OUTPUTS;
    let column = min(output, params.outputs - 1u);
    {% endif %}
    {% for r in range(rows) %}
    var sum{{ r }} = {{ V }}(0.0);
    {% endfor %}
    // Four at a time keep four loads in flight; beyond the last step they count as 0.
    for (var step = lane; step < params.steps; step += 4u * SHARE) {
        {% for j in range(4) %}
        let at{{ j }} = min(step + {{ j }}u * SHARE, params.steps - 1u);
        {% set index = "first + at" ~ j if trans_b else "at" ~ j ~ " * params.outputs + column" %}
        {% set value = "weights(" ~ index ~ ")" if quantized else V ~ "(b[" ~ index ~ "])" %}
        let b{{ j }} = select({{ V }}(0.0), {{ value }}, step + {{ j }}u * SHARE < params.steps);
        {% endfor %}
        {% for r in range(rows) %}
        {% for j in range(4) %}
        {% set a = ("normal[" if norm else "a[") ~ r ~ "u * params.steps + at" ~ j ~ "]" %}
        sum{{ r }} += {{ V ~ "(" ~ a ~ ")" if trans_b else "f32(" ~ a ~ ")" }} * b{{ j }};
        {% endfor %}
        {% endfor %}
    }
    {% for r in range(rows) %}
    workgroupBarrier();
    {% if trans_b %}
    totals[thread] = {{ "dot(sum" ~ r ~ ", vec4<f32>(1.0))" if vector else "sum" ~ r }};
    for (var half = SHARE / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { totals[thread] += totals[thread + half]; }
    }
    if (lane == 0u && output < params.outputs) {
        let total = totals[thread];
        let i = {{ r }}u * params.n + output;
        {{ finish("total", "i", "output") }}
    }
    {% else %}
    totals[thread] = sum{{ r }};
    for (var half = 128u; half >= OUTPUTS; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { totals[thread] += totals[thread + half]; }
    }
    if (thread < OUTPUTS && output < params.outputs) {
        {% for e in range(4 if vector else 1) %}
        {
            let total = totals[thread]{{ "[" ~ e ~ "]" if vector }};
            let n = output{{ " * 4u + " ~ e ~ "u" if vector }};
            let i = {{ r }}u * params.n + n;
            {{ finish("total", "i", "n") }}
        }
        {% endfor %}
    }
    {% endif %}
    {% endfor %}
}
