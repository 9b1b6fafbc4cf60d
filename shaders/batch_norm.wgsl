// Batch and group norms (src/ops/batch_norm/): reductions of planes and of the sets of planes that are normalized
// together, and passes over single elements, in units of {{ vector }}.
{{ interface }}

{% set T = "f32" if vector == 1 else "vec4<f32>" %}
{# The number of the set that a plane belongs to. #}
{% set set_of_plane = "plane / params.channels_of_set" if by_group else "plane % params.channels" %}
{% set in_groups = 256 // lanes %}
{% if pass in ["moments", "combine", "sums", "averages"] %}
// {{ lanes }} threads share each reduction, and end with its sum, which they add up as a tree.
var<workgroup> totals: array<vec2<f32>, 256>;

fn total(value: vec2<f32>, thread: u32, lane: u32) -> vec2<f32> {
    workgroupBarrier();
    totals[thread] = value;
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) { totals[thread] += totals[thread + apart]; }
    }
    workgroupBarrier();
    return totals[thread - lane];
}

{{ entry(256) }}
    let lane = thread % {{ lanes }}u;
    let row = workgroup * {{ in_groups }}u + thread / {{ lanes }}u;
    {% if pass == "moments" or pass == "sums" %}
    let plane = row;
    // Threads of no plane take none of its elements: all reach the barriers.
    let end = select(0u, params.size, plane < params.planes);
    let first = plane * params.size;
    {% if pass == "moments" %}
    var sum = 0.0;
    for (var i = lane; i < end; i += {{ lanes }}u) { sum += x[first + i]; }
    let mean = total(vec2<f32>(sum, 0.0), thread, lane).x / f32(params.size);
    var squares = 0.0;
    for (var i = lane; i < end; i += {{ lanes }}u) {
        let from_mean = x[first + i] - mean;
        squares += from_mean * from_mean;
    }
    let square = total(vec2<f32>(squares, 0.0), thread, lane).x;
    if (lane == 0u && plane < params.planes) { moments[plane] = vec2<f32>(mean, square); }
    {% else %}
    let of_set = {{ set_of_plane }};
    var sum = vec2<f32>(0.0);
    for (var i = lane; i < end; i += {{ lanes }}u) {
        let dy = grad_output[first + i];
        sum += vec2<f32>(dy * (x[first + i] - mean[of_set]), dy);
    }
    let all = total(sum, thread, lane);
    if (lane == 0u && plane < params.planes) {
        let at = (plane / params.channels * 2u) * params.channels + plane % params.channels;
        sums[at] = all.x / sqrt(variance[of_set] + params.eps);
        sums[at + params.channels] = all.y;
    }
    {% endif %}
    {% else %}
    let end = select(0u, params.of_set, row < params.sets);
    let first = row{{ " * params.channels_of_set" if by_group }};
    {% if pass == "combine" %}
    var sum = 0.0;
    for (var i = lane; i < end; i += {{ lanes }}u) { sum += moments[first + i * params.apart].x; }
    let mean_of_set = total(vec2<f32>(sum, 0.0), thread, lane).x / f32(params.of_set);
    var squares = 0.0;
    for (var i = lane; i < end; i += {{ lanes }}u) {
        let of_plane = moments[first + i * params.apart];
        let from_mean = of_plane.x - mean_of_set;
        squares += of_plane.y + f32(params.size) * from_mean * from_mean;
    }
    let square = total(vec2<f32>(squares, 0.0), thread, lane).x;
    if (lane == 0u && row < params.sets) {
        mean[row] = mean_of_set;
        variance[row] = square * params.per_element;
    }
    {% else %}
    var sum = vec2<f32>(0.0);
    for (var i = lane; i < end; i += {{ lanes }}u) {
        let plane = first + i * params.apart;
        let channel = plane % params.channels;
        let at = (plane / params.channels * 2u) * params.channels + channel;
        sum += weight[channel] * vec2<f32>(sums[at], sums[at + params.channels]);
    }
    let all = total(sum, thread, lane) * params.per_element;
    if (lane == 0u && row < params.sets) { averages[row] = all; }
    {% endif %}
    {% endif %}
}
{% elif pass == "running" %}
{{ for_each(1) }}
    running_mean[i] = params.keep * running_mean[i] + params.of_mean * mean[i];
    running_variance[i] = params.keep * running_variance[i] + params.of_variance * variance[i];
}
{% else %}
{{ for_each(vector) }}
    let plane = i / params.size;
    let channel = plane % params.channels;
    let of_set = {{ set_of_plane }};
    let rstd = 1.0 / sqrt(variance[of_set] + params.eps);
    {% if pass == "normalize" %}
    result[i] = (x[i] - mean[of_set]) * rstd * weight[channel] + bias[channel];
    {% elif of_x %}
    let average = averages[of_set];
    let normal = (x[i] - mean[of_set]) * rstd;
    result[i] = rstd * (grad_output[i] * weight[channel] - average.y - normal * average.x);
    {% else %}
    result[i] = rstd * grad_output[i] * weight[channel];
    {% endif %}
}
{% endif %}
