// Layer normalization of rows of C elements and its gradients (src/ops/layer_norm.rs), in units of {{ T }}. The result of the
// forward pass and its gradient are stored as {{ T_y }}, the residual and its gradient as {{ T_residual }}.
{{ "enable f16;" if "f16" in [T_y, T_residual] }}
{% set Y = T | replace("f32", T_y) %}
{% set R = T | replace("f32", T_residual) %}
{% set at_once = 256 // lanes %}
{% include "common" %}

// {{ lanes }} threads share a row, each taking every {{ lanes }}-th {{ T }}; a workgroup works on {{ at_once }} rows at once.
{% if mode == "backward" %}
// A workgroup has a chunk of rows, {{ at_once }} after {{ at_once }}.
{% if held and parameters %}
// Each thread sums dweight{{ " and dbias" if parameters == 2 }} of its columns over its rows; then those of the rows at once are added up.
{% elif parameters %}
// Rows are too long for a thread to hold what it has of one: a second pass over the chunk adds up dweight{{ " and dbias" if parameters == 2 }}.
{% endif %}
{% endif %}
struct Params {
    rows: u32, width: u32, per_element: f32,
    {% if mode == "forward" %}
    eps: f32,
    {% else %}
    chunk: u32, chunks: u32,
    {% endif %}
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
// (2, rows): means, rstds.
@group(0) @binding(3) var<storage, read_write> statistics: array<f32>;
{% if residual %}
@group(0) @binding(4) var<storage, read> residual: array<{{ R }}>;
@group(0) @binding(5) var<storage, read_write> sum: array<{{ T }}>;
{% endif %}
{% if has_bias %}
@group(0) @binding({{ 6 if residual else 4 }}) var<storage, read> bias: array<{{ T }}>;
{% endif %}
{% else %}
{% set S = "vec2<f32>" %}
@group(0) @binding(0) var<storage, read> upstream: array<{{ Y }}>;
@group(0) @binding(1) var<storage, read> x: array<{{ T }}>;
@group(0) @binding(2) var<storage, read> weight: array<{{ T }}>;
@group(0) @binding(3) var<storage, read> statistics: array<f32>;
@group(0) @binding(4) var<storage, read_write> result: array<{{ T }}>;
{% if plus %}
@group(0) @binding(5) var<storage, read> plus: array<{{ T }}>;
{% endif %}
{% if residual %}
@group(0) @binding({{ 6 if plus else 5 }}) var<storage, read_write> residual_result: array<{{ R }}>;
{% endif %}
{% if parameters %}
// (chunks, parameters, width).
@group(0) @binding({{ 5 + (1 if plus else 0) + (1 if residual else 0) }}) var<storage, read_write> sums: array<{{ T }}>;
{% if held and at_once > 1 %}
var<workgroup> column_totals: array<{{ T }}, {{ 256 * parameters }}>;
{% endif %}
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

{% if mode == "backward" %}
// Writes dx and the residual's gradient.
fn write(dx: {{ T }}, i: u32) {
    result[i] = dx;
    {% if dropout %}
    residual_result[i] = {{ R }}(drop(dx, i));
    {% elif residual %}
    residual_result[i] = {{ R }}(dx);
    {% endif %}
}
{% endif %}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let number = workgroup_number(id, count);
    let lane = thread % {{ lanes }}u;
    {% if mode == "forward" %}
    let row = number * {{ at_once }}u + thread / {{ lanes }}u;
    // Threads beyond the last row take part in the barriers with no elements.
    let first = row * p.width;
    let width = select(0u, p.width, row < p.rows);
    {% if held %}
    {% for j in range(held) %}
    let column{{ j }} = lane + {{ j * lanes }}u;
    var x{{ j }} = {{ T }}(0.0);
    {% if residual %}
    var residual{{ j }} = {{ T }}(0.0);
    {% endif %}
    if (column{{ j }} < width) {
        x{{ j }} = x[first + column{{ j }}];
        {% if residual %}
        residual{{ j }} = {{ T }}(residual[first + column{{ j }}]);
        {% endif %}
    }
    {% endfor %}
    var total = {{ T }}(0.0);
    {% for j in range(held) %}
    {% if residual %}
    if (column{{ j }} < width) {
        x{{ j }} += {{ "drop(residual" ~ j ~ ", first + column" ~ j ~ ")" if dropout else "residual" ~ j }};
        sum[first + column{{ j }}] = x{{ j }};
    }
    {% endif %}
    total += x{{ j }};
    {% endfor %}
    let mean = row_sum(across(total), thread, lane) * p.per_element;
    // The squares of the differences, not the difference of the squares, which would cancel when the mean is large.
    var squares = {{ T }}(0.0);
    {% for j in range(held) %}
    if (column{{ j }} < width) { squares += (x{{ j }} - mean) * (x{{ j }} - mean); }
    {% endfor %}
    let rstd = 1.0 / sqrt(row_sum(across(squares), thread, lane) * p.per_element + p.eps);
    {% for j in range(held) %}
    if (column{{ j }} < width) {
        result[first + column{{ j }}] = {{ Y }}((x{{ j }} - mean) * rstd * weight[column{{ j }}]{{ " + bias[column" ~ j ~ "]" if has_bias }});
    }
    {% endfor %}
    {% else %}
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
    {% endif %}
    if (lane == 0u && row < p.rows) {
        statistics[row] = mean;
        statistics[p.rows + row] = rstd;
    }
    {% else %}
    {% for j in range(held) %}
    let column{{ j }} = lane + {{ j * lanes }}u;
    var weight{{ j }} = {{ T }}(0.0);
    if (column{{ j }} < p.width) { weight{{ j }} = weight[column{{ j }}]; }
    {% if parameters %}
    var dweight{{ j }} = {{ T }}(0.0);
    {% endif %}
    {% if parameters == 2 %}
    var dbias{{ j }} = {{ T }}(0.0);
    {% endif %}
    {% endfor %}
    let start = number * p.chunk;
    let end = min(start + p.chunk, p.rows);
    for (var at = start; at < end; at += {{ at_once }}u) {
        let row = at + thread / {{ lanes }}u;
        // Threads beyond the last row take part in the barriers with no elements.
        let first = row * p.width;
        let width = select(0u, p.width, row < p.rows);
        var mean = 0.0;
        var rstd = 0.0;
        if (row < p.rows) {
            mean = statistics[row];
            rstd = statistics[p.rows + row];
        }
        var direct = {{ T }}(0.0);
        var along = {{ T }}(0.0);
        {% if held %}
        // All that is read of the row is on its way before any of it is used.
        {% for j in range(held) %}
        var dy{{ j }} = {{ T }}(0.0);
        var x{{ j }} = {{ T }}(0.0);
        if (column{{ j }} < width) {
            dy{{ j }} = {{ T }}(upstream[first + column{{ j }}]);
            x{{ j }} = x[first + column{{ j }}];
        }
        {% endfor %}
        {% if plus %}
        {% for j in range(held) %}
        var plus{{ j }} = {{ T }}(0.0);
        if (column{{ j }} < width) { plus{{ j }} = plus[first + column{{ j }}]; }
        {% endfor %}
        {% endif %}
        {% for j in range(held) %}
        let g{{ j }} = dy{{ j }} * weight{{ j }};
        let normal{{ j }} = (x{{ j }} - mean) * rstd;
        direct += g{{ j }};
        along += g{{ j }} * normal{{ j }};
        {% if parameters %}
        dweight{{ j }} += dy{{ j }} * normal{{ j }};
        {% endif %}
        {% if parameters == 2 %}
        dbias{{ j }} += dy{{ j }};
        {% endif %}
        {% endfor %}
        let averages = row_sum(vec2<f32>(across(direct), across(along)), thread, lane) * p.per_element;
        {% for j in range(held) %}
        if (column{{ j }} < width) {
            write({{ "plus" ~ j ~ " + " if plus }}rstd * (g{{ j }} - averages.x - normal{{ j }} * averages.y), first + column{{ j }});
        }
        {% endfor %}
        {% else %}
        for (var i = lane; i < width; i += {{ lanes }}u) {
            let g = {{ T }}(upstream[first + i]) * weight[i];
            direct += g;
            along += g * ((x[first + i] - mean) * rstd);
        }
        let averages = row_sum(vec2<f32>(across(direct), across(along)), thread, lane) * p.per_element;
        for (var i = lane; i < width; i += {{ lanes }}u) {
            let g = {{ T }}(upstream[first + i]) * weight[i];
            let normal = (x[first + i] - mean) * rstd;
            write({{ "plus[first + i] + " if plus }}rstd * (g - averages.x - normal * averages.y), first + i);
        }
        {% endif %}
    }
    {% if parameters and held %}
    // The rows at once: 256, 128, ... {{ 2 * lanes }} threads are added up in pairs, until one row is left.
    {% for j in range(held) %}
    {% if at_once > 1 %}
    {% if j > 0 %}
    workgroupBarrier();
    {% endif %}
    column_totals[thread] = dweight{{ j }};
    {% if parameters == 2 %}
    column_totals[thread + 256u] = dbias{{ j }};
    {% endif %}
    for (var apart = 128u; apart >= {{ lanes }}u; apart /= 2u) {
        workgroupBarrier();
        if (thread < apart) {
            column_totals[thread] += column_totals[thread + apart];
            {% if parameters == 2 %}
            column_totals[thread + 256u] += column_totals[thread + 256u + apart];
            {% endif %}
        }
    }
    {% endif %}
    if (thread < {{ lanes }}u && column{{ j }} < p.width && number < p.chunks) {
        sums[number * {{ parameters }}u * p.width + column{{ j }}] = {{ "column_totals[thread]" if at_once > 1 else "dweight" ~ j }};
        {% if parameters == 2 %}
        sums[(number * 2u + 1u) * p.width + column{{ j }}] = {{ "column_totals[thread + 256u]" if at_once > 1 else "dbias" ~ j }};
        {% endif %}
    }
    {% endfor %}
    {% elif parameters %}
    for (var i = select(p.width, thread, number < p.chunks); i < p.width; i += 256u) {
        var dweight = {{ T }}(0.0);
        {% if parameters == 2 %}
        var dbias = {{ T }}(0.0);
        {% endif %}
        for (var row = start; row < end; row++) {
            let dy = {{ T }}(upstream[row * p.width + i]);
            dweight += dy * ((x[row * p.width + i] - statistics[row]) * statistics[p.rows + row]);
            {% if parameters == 2 %}
            dbias += dy;
            {% endif %}
        }
        sums[number * {{ parameters }}u * p.width + i] = dweight;
        {% if parameters == 2 %}
        sums[(number * 2u + 1u) * p.width + i] = dbias;
        {% endif %}
    }
    {% endif %}
    {% endif %}
}
