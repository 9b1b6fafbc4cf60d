// {{ "RMS" if rms else "Layer" }} normalization of rows of C elements and its gradients (src/ops/layer_norm.rs), in
// units of {{ T }}. The result of the forward pass and its gradient are stored as {{ T_y }}, the branch and its
// gradient as {{ T_branch }}.
{% set Y = T | replace("f32", T_y) %}
{% set R = T | replace("f32", T_branch) %}
{% set at_once = 256 // lanes %}
{{ interface }}

// {{ lanes }} threads share a row, each taking every {{ lanes }}-th {{ T }}; a workgroup works on {{ at_once }} rows at
// once.
{% if mode == "backward" %}
// A workgroup has a chunk of rows, {{ at_once }} after {{ at_once }}.
{% if held and parameters %}
// Each thread sums dweight{{ " and dbias" if parameters == 2 }} of its columns over its rows; then those of the rows at
// once are added up.
{% elif parameters %}
// Rows are too long for a thread to hold what it has of one: a second pass over the chunk adds up
// dweight{{ " and dbias" if parameters == 2 }}.
{% endif %}
{% endif %}
{% set mean_of_total = "0.0" if rms else "row_sum(across(total), thread, lane) * params.per_element" %}
{# Of the gradient: what centering takes away. #}
{% set centering = "" if rms else " - averages.x" %}
{% if mode == "forward" %}
{% set S = "f32" %}
{% else %}
{% set S = "vec2<f32>" %}
{% if parameters and held and at_once > 1 %}
var<workgroup> column_totals: array<{{ T }}, {{ 256 * parameters }}>;
{% endif %}
{% endif %}

{# Threads that share a row and a subgroup: they exchange their sums without a barrier. #}
{% set near = [lanes, subgroup] | min %}
{% if near < lanes %}
var<workgroup> totals: array<{{ S }}, {{ 256 // near if subgroup else 256 }}>;
{% endif %}

{% if near < lanes %}
// The sum over the threads of one row. The first barrier: the last user of the memory has read it.
{% else %}
// The sum over the threads of one row.
{% endif %}
fn row_sum(value: {{ S }}, thread: u32, lane: u32) -> {{ S }} {
    {% if subgroup %}
    var sum = value;
    {% for apart in [64, 32, 16, 8, 4, 2, 1] if apart < near %}
    sum += subgroupShuffleXor(sum, {{ apart }}u);
    {% endfor %}
    {% if near < lanes %}
    workgroupBarrier();
    if (thread % {{ near }}u == 0u) { totals[thread / {{ near }}u] = sum; }
    workgroupBarrier();
    let first = (thread - lane) / {{ near }}u;
    sum = totals[first];
    for (var i = 1u; i < {{ lanes // near }}u; i++) { sum += totals[first + i]; }
    {% endif %}
    return sum;
    {% else %}
    workgroupBarrier();
    totals[thread] = value;
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) { totals[thread] += totals[thread + apart]; }
    }
    workgroupBarrier();
    return totals[thread - lane];
    {% endif %}
}

{% if dropout %}
// What dropout makes of the branch's {{ T }} of number i, or of its gradient: shaders/dropout.wgsl.
fn drop(x: {{ T }}, i: u32) -> {{ T }} {
    {% if T == "f32" %}
    let bits = mask_bits4_from(params.first + i, params.key0, params.key1);
    return select(0.0, x * params.scale, bits.x >= params.threshold);
    {% else %}
    return select(
        vec4<f32>(0.0),
        x * params.scale,
        mask_bits4_from(params.first + 4u * i, params.key0, params.key1) >= vec4<u32>(params.threshold),
    );
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
// Writes dx and the branch's gradient.
fn write(dx: {{ T }}, i: u32) {
    result[i] = dx;
    {% if dropout %}
    branch_grad[i] = {{ R }}(drop(dx, i));
    {% elif branch %}
    branch_grad[i] = {{ R }}(dx);
    {% endif %}
}
{% endif %}

{{ entry(256) }}
    let lane = thread % {{ lanes }}u;
    {% if mode == "forward" %}
    let row = workgroup * {{ at_once }}u + thread / {{ lanes }}u;
    // Threads beyond the last row take part in the barriers with no elements.
    let first = row * params.width;
    let width = select(0u, params.width, row < params.rows);
    {% if held %}
    {% for j in range(held) %}
    let column{{ j }} = lane + {{ j * lanes }}u;
    var x{{ j }} = {{ T }}(0.0);
    {% if branch %}
    var branch{{ j }} = {{ T }}(0.0);
    {% endif %}
    if (column{{ j }} < width) {
        x{{ j }} = x[first + column{{ j }}];
        {% if branch %}
        branch{{ j }} = {{ T }}(branch[first + column{{ j }}]);
        {% endif %}
    }
    {% endfor %}
    var total = {{ T }}(0.0);
    {% for j in range(held) %}
    {% if branch %}
    if (column{{ j }} < width) {
        x{{ j }} += {{ "drop(branch" ~ j ~ ", first + column" ~ j ~ ")" if dropout else "branch" ~ j }};
        sum[first + column{{ j }}] = x{{ j }};
    }
    {% endif %}
    total += x{{ j }};
    {% endfor %}
    let mean = {{ mean_of_total }};
    // The squares of the differences, not the difference of the squares, which would cancel when the mean is large.
    var squares = {{ T }}(0.0);
    {% for j in range(held) %}
    if (column{{ j }} < width) { squares += (x{{ j }} - mean) * (x{{ j }} - mean); }
    {% endfor %}
    let rstd = 1.0 / sqrt(row_sum(across(squares), thread, lane) * params.per_element + params.eps);
    {% for j in range(held) %}
    if (column{{ j }} < width) {
        {% set shift = " + bias[column" ~ j ~ "]" if has_bias else "" %}
        result[first + column{{ j }}] = {{ Y }}((x{{ j }} - mean) * rstd * weight[column{{ j }}]{{ shift }});
    }
    {% endfor %}
    {% else %}
    // What is normalized: x, or the sum that this very thread has written.
    {% set normalized = "sum" if branch else "x" %}
    var total = {{ T }}(0.0);
    for (var i = lane; i < width; i += {{ lanes }}u) {
        {% if dropout %}
        sum[first + i] = x[first + i] + drop({{ T }}(branch[first + i]), first + i);
        {% elif branch %}
        sum[first + i] = x[first + i] + {{ T }}(branch[first + i]);
        {% endif %}
        total += {{ normalized }}[first + i];
    }
    let mean = {{ mean_of_total }};
    // The squares of the differences, not the difference of the squares, which would cancel when the mean is large.
    var squares = {{ T }}(0.0);
    for (var i = lane; i < width; i += {{ lanes }}u) {
        let difference = {{ normalized }}[first + i] - mean;
        squares += difference * difference;
    }
    let rstd = 1.0 / sqrt(row_sum(across(squares), thread, lane) * params.per_element + params.eps);
    for (var i = lane; i < width; i += {{ lanes }}u) {
        let normal = ({{ normalized }}[first + i] - mean) * rstd;
        result[first + i] = {{ Y }}(normal * weight[i]{% if has_bias %} + bias[i]{% endif %});
    }
    {% endif %}
    if (lane == 0u && row < params.rows) {
        statistics[row] = mean;
        statistics[params.rows + row] = rstd;
    }
    {% else %}
    {% for j in range(held) %}
    let column{{ j }} = lane + {{ j * lanes }}u;
    var weight{{ j }} = {{ T }}(0.0);
    if (column{{ j }} < params.width) { weight{{ j }} = weight[column{{ j }}]; }
    {% if parameters %}
    var dweight{{ j }} = {{ T }}(0.0);
    {% endif %}
    {% if parameters == 2 %}
    var dbias{{ j }} = {{ T }}(0.0);
    {% endif %}
    {% endfor %}
    let start = workgroup * params.chunk;
    let end = min(start + params.chunk, params.rows);
    for (var at = start; at < end; at += {{ at_once }}u) {
        let row = at + thread / {{ lanes }}u;
        // Threads beyond the last row take part in the barriers with no elements.
        let first = row * params.width;
        let width = select(0u, params.width, row < params.rows);
        var mean = 0.0;
        var rstd = 0.0;
        if (row < params.rows) {
            mean = statistics[row];
            rstd = statistics[params.rows + row];
        }
        var sum_g = {{ T }}(0.0);
        var sum_gx = {{ T }}(0.0);
        {% if held %}
        // All that is read of the row is on its way before any of it is used.
        {% for j in range(held) %}
        var dy{{ j }} = {{ T }}(0.0);
        var x{{ j }} = {{ T }}(0.0);
        if (column{{ j }} < width) {
            dy{{ j }} = {{ T }}(grad_output[first + column{{ j }}]);
            x{{ j }} = x[first + column{{ j }}];
        }
        {% endfor %}
        {% if extra_grad %}
        {% for j in range(held) %}
        var extra_grad{{ j }} = {{ T }}(0.0);
        if (column{{ j }} < width) { extra_grad{{ j }} = extra_grad[first + column{{ j }}]; }
        {% endfor %}
        {% endif %}
        {% for j in range(held) %}
        let g{{ j }} = dy{{ j }} * weight{{ j }};
        let normal{{ j }} = (x{{ j }} - mean) * rstd;
        sum_g += g{{ j }};
        sum_gx += g{{ j }} * normal{{ j }};
        {% if parameters %}
        dweight{{ j }} += dy{{ j }} * normal{{ j }};
        {% endif %}
        {% if parameters == 2 %}
        dbias{{ j }} += dy{{ j }};
        {% endif %}
        {% endfor %}
        let averages = row_sum(vec2<f32>(across(sum_g), across(sum_gx)), thread, lane) * params.per_element;
        {% for j in range(held) %}
        if (column{{ j }} < width) {
            write(
                {{ "extra_grad" ~ j ~ " + " if extra_grad }}rstd
                    * (g{{ j }}{{ centering }} - normal{{ j }} * averages.y),
                first + column{{ j }},
            );
        }
        {% endfor %}
        {% else %}
        for (var i = lane; i < width; i += {{ lanes }}u) {
            let g = {{ T }}(grad_output[first + i]) * weight[i];
            sum_g += g;
            sum_gx += g * ((x[first + i] - mean) * rstd);
        }
        let averages = row_sum(vec2<f32>(across(sum_g), across(sum_gx)), thread, lane) * params.per_element;
        for (var i = lane; i < width; i += {{ lanes }}u) {
            let g = {{ T }}(grad_output[first + i]) * weight[i];
            let normal = (x[first + i] - mean) * rstd;
            write(
                {{ "extra_grad[first + i] + " if extra_grad }}rstd * (g{{ centering }} - normal * averages.y),
                first + i,
            );
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
    if (thread < {{ lanes }}u && column{{ j }} < params.width && workgroup < params.chunks) {
        sums[workgroup * {{ parameters }}u * params.width + column{{ j }}] =
            {{ "column_totals[thread]" if at_once > 1 else "dweight" ~ j }};
        {% if parameters == 2 %}
        sums[(workgroup * 2u + 1u) * params.width + column{{ j }}] =
            {{ "column_totals[thread + 256u]" if at_once > 1 else "dbias" ~ j }};
        {% endif %}
    }
    {% endfor %}
    {% elif parameters %}
    for (var i = select(params.width, thread, workgroup < params.chunks); i < params.width; i += 256u) {
        var dweight = {{ T }}(0.0);
        {% if parameters == 2 %}
        var dbias = {{ T }}(0.0);
        {% endif %}
        for (var row = start; row < end; row++) {
            let dy = {{ T }}(grad_output[row * params.width + i]);
            dweight += dy * ((x[row * params.width + i] - statistics[row]) * statistics[params.rows + row]);
            {% if parameters == 2 %}
            dbias += dy;
            {% endif %}
        }
        sums[workgroup * {{ parameters }}u * params.width + i] = dweight;
        {% if parameters == 2 %}
        sums[(workgroup * 2u + 1u) * params.width + i] = dbias;
        {% endif %}
    }
    {% endif %}
    {% endif %}
}
