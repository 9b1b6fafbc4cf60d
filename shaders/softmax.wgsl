// Softmax over rows of n, its logarithm, and their derivatives (src/ops/softmax.rs). {{ lanes }} threads share a row,
// each taking every {{ lanes }}-th element; a workgroup holds 256 / {{ lanes }} rows.
{{ interface }}

var<workgroup> shared_values: array<f32, 256>;

// The sum over the threads of one row. The first barrier: the last user of the memory has read it.
fn row_sum(value: f32, thread: u32, lane: u32) -> f32 {
    workgroupBarrier();
    shared_values[thread] = value;
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) { shared_values[thread] += shared_values[thread + apart]; }
    }
    workgroupBarrier();
    return shared_values[thread - lane];
}

{% if not derivative %}
fn row_max(value: f32, thread: u32, lane: u32) -> f32 {
    workgroupBarrier();
    shared_values[thread] = value;
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) { shared_values[thread] = max(shared_values[thread], shared_values[thread + apart]); }
    }
    workgroupBarrier();
    return shared_values[thread - lane];
}
{% endif %}

{{ entry(256) }}
    let lane = thread % {{ lanes }}u;
    let row = workgroup * (256u / {{ lanes }}u) + thread / {{ lanes }}u;
    // Threads beyond the last row take part in the barriers with no elements.
    let first = row * params.n;
    let n = select(0u, params.n, row < params.rows);
    {% if derivative %}
    var product = 0.0;
    for (var i = lane; i < n; i += {{ lanes }}u) {
        product += f32(grad_output[first + i]){{ "" if log else " * f32(y[first + i])" }};
    }
    product = row_sum(product, thread, lane);
    for (var i = lane; i < n; i += {{ lanes }}u) {
        {% if log %}
        result[first + i] = {{ T }}(f32(grad_output[first + i]) - exp(f32(y[first + i])) * product);
        {% else %}
        result[first + i] = {{ T }}(f32(y[first + i]) * (f32(grad_output[first + i]) - product));
        {% endif %}
    }
    {% else %}
    // An element of the row, so that a row of nothing but -infinity gives NaN as in PyTorch.
    var largest = 0.0;
    if (n > 0u) { largest = f32(x[first]); }
    for (var i = lane; i < n; i += {{ lanes }}u) {
        largest = max(largest, f32(x[first + i]));
    }
    largest = row_max(largest, thread, lane);
    var total = 0.0;
    for (var i = lane; i < n; i += {{ lanes }}u) {
        total += exp(f32(x[first + i]) - largest);
    }
    {% if log %}
    let log_sum = log(row_sum(total, thread, lane));
    {% else %}
    let scale = 1.0 / row_sum(total, thread, lane);
    {% endif %}
    for (var i = lane; i < n; i += {{ lanes }}u) {
        {% if log %}
        result[first + i] = {{ T }}((f32(x[first + i]) - largest) - log_sum);
        {% else %}
        result[first + i] = {{ T }}(exp(f32(x[first + i]) - largest) * scale);
        {% endif %}
    }
    {% endif %}
}
