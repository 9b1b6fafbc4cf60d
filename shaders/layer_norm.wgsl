// Layer normalization of rows of C elements and its gradients (src/ops/layer_norm.rs), in units of {{ T }}. The result of the
// forward pass and its gradient are stored as {{ T_y }}, the residual and its gradient as {{ T_residual }}.
{{ "enable f16;" if "f16" in [T_y, T_residual] }}
{% set Y = T | replace("f32", T_y) %}
{% set R = T | replace("f32", T_residual) %}
{% include "common" %}

{% if mode == "weight" %}
// dweight{{ " and dbias" if has_bias }}: a workgroup has {{ cols }} columns of one chunk of rows; {{ lanes }} threads share a column, each taking
// every {{ lanes }}-th row. The sums of the chunks (chunks, C) are added by another launch.
struct Params { rows: u32, width: u32, chunk: u32, blocks: u32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> upstream: array<{{ Y }}>;
@group(0) @binding(1) var<storage, read> x: array<{{ T }}>;
@group(0) @binding(2) var<storage, read> means: array<f32>;
@group(0) @binding(3) var<storage, read> rstds: array<f32>;
@group(0) @binding(4) var<storage, read_write> sums: array<{{ T }}>;
{% if has_bias %}
@group(0) @binding(5) var<storage, read_write> bias_sums: array<{{ T }}>;
{% endif %}

var<workgroup> totals: array<{{ T }}, 256>;
{% if has_bias %}
var<workgroup> bias_totals: array<{{ T }}, 256>;
{% endif %}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let number = workgroup_number(id, count);
    let chunk = number / p.blocks;
    let column = (number % p.blocks) * {{ cols }}u + thread % {{ cols }}u;
    let lane = thread / {{ cols }}u;
    let last = select(0u, min((chunk + 1u) * p.chunk, p.rows), column < p.width);
    var total = {{ T }}(0.0);
    {% if has_bias %}
    var bias_total = {{ T }}(0.0);
    {% endif %}
    var row = chunk * p.chunk + lane;
    // Four at a time keep four loads of each in flight.
    for (; row + {{ 3 * lanes }}u < last; row += {{ 4 * lanes }}u) {
        {% for j in range(4) %}
        let row{{ j }} = row + {{ j * lanes }}u;
        let dy{{ j }} = {{ T }}(upstream[row{{ j }} * p.width + column]);
        let x{{ j }} = x[row{{ j }} * p.width + column];
        {% endfor %}
        {% for j in range(4) %}
        total += dy{{ j }} * ((x{{ j }} - means[row{{ j }}]) * rstds[row{{ j }}]);
        {% if has_bias %}
        bias_total += dy{{ j }};
        {% endif %}
        {% endfor %}
    }
    for (; row < last; row += {{ lanes }}u) {
        let i = row * p.width + column;
        let dy = {{ T }}(upstream[i]);
        total += dy * ((x[i] - means[row]) * rstds[row]);
        {% if has_bias %}
        bias_total += dy;
        {% endif %}
    }
    totals[thread] = total;
    {% if has_bias %}
    bias_totals[thread] = bias_total;
    {% endif %}
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) {
            totals[thread] += totals[thread + apart * {{ cols }}u];
            {% if has_bias %}
            bias_totals[thread] += bias_totals[thread + apart * {{ cols }}u];
            {% endif %}
        }
    }
    if (lane == 0u && chunk * p.chunk < last) {
        sums[chunk * p.width + column] = totals[thread];
        {% if has_bias %}
        bias_sums[chunk * p.width + column] = bias_totals[thread];
        {% endif %}
    }
}

{% else %}
// {{ lanes }} threads share a row, each taking every {{ lanes }}-th {{ T }}; a workgroup has 256 / {{ lanes }} rows.
struct Params {
    rows: u32, width: u32, per_element: f32, eps: f32,
    {% if dropout %}
    key0: u32, key1: u32, threshold: u32, scale: f32,
    {% endif %}
}
var<immediate> p: Params;

{% if mode == "forward" %}
{% set S = "f32" %}
@group(0) @binding(0) var<storage, read> x: array<{{ T }}>;
@group(0) @binding(1) var<storage, read> weight: array<{{ T }}>;
@group(0) @binding(2) var<storage, read_write> result: array<{{ Y }}>;
@group(0) @binding(3) var<storage, read_write> means: array<f32>;
@group(0) @binding(4) var<storage, read_write> rstds: array<f32>;
{% if residual %}
@group(0) @binding(5) var<storage, read> residual: array<{{ R }}>;
@group(0) @binding(6) var<storage, read_write> sum: array<{{ T }}>;
{% endif %}
{% if has_bias %}
@group(0) @binding({{ 7 if residual else 5 }}) var<storage, read> bias: array<{{ T }}>;
{% endif %}
{% else %}
{% set S = "vec2<f32>" %}
@group(0) @binding(0) var<storage, read> upstream: array<{{ Y }}>;
@group(0) @binding(1) var<storage, read> x: array<{{ T }}>;
@group(0) @binding(2) var<storage, read> weight: array<{{ T }}>;
@group(0) @binding(3) var<storage, read> means: array<f32>;
@group(0) @binding(4) var<storage, read> rstds: array<f32>;
@group(0) @binding(5) var<storage, read_write> result: array<{{ T }}>;
{% if plus %}
@group(0) @binding(6) var<storage, read> plus: array<{{ T }}>;
{% endif %}
{% if residual %}
@group(0) @binding({{ 7 if plus else 6 }}) var<storage, read_write> residual_result: array<{{ R }}>;
{% endif %}
{% endif %}

var<workgroup> totals: array<{{ S }}, 256>;

// The sum over the threads of one row. The first barrier: the last user of the memory has read it.
fn row_sum(value: {{ S }}, thread: u32, lane: u32) -> {{ S }} {
    workgroupBarrier();
    totals[thread] = value;
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) { totals[thread] += totals[thread + apart]; }
    }
    workgroupBarrier();
    return totals[thread - lane];
}

{% if dropout %}
// What dropout makes of the residual's {{ T }} of number i, or of its gradient: shaders/dropout.wgsl.
fn drop(x: {{ T }}, i: u32) -> {{ T }} {
    let key = vec2<u32>(p.key0, p.key1);
    {% if T == "f32" %}
    return select(0.0, x * p.scale, random_bits(key, i) >= p.threshold);
    {% else %}
    return select(vec4<f32>(0.0), x * p.scale, random_bits4(key, 4u * i) >= vec4<u32>(p.threshold));
    {% endif %}
}
{% endif %}

fn across(value: {{ T }}) -> f32 {
    {% if T == "f32" %}
    return value;
    {% else %}
    return (value.x + value.y) + (value.z + value.w);
    {% endif %}
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let lane = thread % {{ lanes }}u;
    let row = workgroup_number(id, count) * (256u / {{ lanes }}u) + thread / {{ lanes }}u;
    // Threads beyond the last row take part in the barriers with no elements.
    let first = row * p.width;
    let width = select(0u, p.width, row < p.rows);
    {% if mode == "forward" %}
    // What is normalized: x, or the sum that this very thread has written.
    {% set normalized = "sum" if residual else "x" %}
    var total = {{ T }}(0.0);
    for (var i = lane; i < width; i += {{ lanes }}u) {
        {% if dropout %}
        sum[first + i] = x[first + i] + drop({{ T }}(residual[first + i]), first + i);
        {% elif residual %}
        sum[first + i] = x[first + i] + {{ T }}(residual[first + i]);
        {% endif %}
        total += {{ normalized }}[first + i];
    }
    let mean = row_sum(across(total), thread, lane) * p.per_element;
    // The squares of the differences, not the difference of the squares, which would cancel when the mean is large.
    var squares = {{ T }}(0.0);
    for (var i = lane; i < width; i += {{ lanes }}u) {
        let difference = {{ normalized }}[first + i] - mean;
        squares += difference * difference;
    }
    let rstd = 1.0 / sqrt(row_sum(across(squares), thread, lane) * p.per_element + p.eps);
    for (var i = lane; i < width; i += {{ lanes }}u) {
        let normal = ({{ normalized }}[first + i] - mean) * rstd;
        result[first + i] = {{ Y }}(normal * weight[i]{% if has_bias %} + bias[i]{% endif %});
    }
    if (lane == 0u && row < p.rows) {
        means[row] = mean;
        rstds[row] = rstd;
    }
    {% else %}
    var mean = 0.0;
    var rstd = 0.0;
    if (row < p.rows) {
        mean = means[row];
        rstd = rstds[row];
    }
    var direct = {{ T }}(0.0);
    var along = {{ T }}(0.0);
    for (var i = lane; i < width; i += {{ lanes }}u) {
        let g = {{ T }}(upstream[first + i]) * weight[i];
        direct += g;
        along += g * ((x[first + i] - mean) * rstd);
    }
    let averages = row_sum(vec2<f32>(across(direct), across(along)), thread, lane) * p.per_element;
    for (var i = lane; i < width; i += {{ lanes }}u) {
        let g = {{ T }}(upstream[first + i]) * weight[i];
        let normal = (x[first + i] - mean) * rstd;
        {% if plus %}
        let dx = plus[first + i] + rstd * (g - averages.x - normal * averages.y);
        {% else %}
        let dx = rstd * (g - averages.x - normal * averages.y);
        {% endif %}
        {% if accumulate %}
        result[first + i] += dx;
        {% else %}
        result[first + i] = dx;
        {% endif %}
        {% if dropout %}
        residual_result[first + i] = {{ R }}(drop(dx, first + i));
        {% elif residual %}
        residual_result[first + i] = {{ R }}(dx);
        {% endif %}
    }
    {% endif %}
}
{% endif %}
