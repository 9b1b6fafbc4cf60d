// Softmax over the keys that a mask leaves a query (src/ops/attention/masked_softmax.rs). {{ lanes }} threads share a
// row, each taking every {{ lanes }}-th element; a workgroup holds 256 / {{ lanes }} rows.
{{ interface }}

// The score of what takes no part. No infinity is ever subtracted from another.
const LOWEST: f32 = -3.4e38;

var<workgroup> shared_values: array<f32, 256>;

{% for name, join in [["row_sum", "a + b"], ["row_max", "max(a, b)"]] %}
// Over the threads of one row. The first barrier: the last user of the memory has read it.
fn {{ name }}(value: f32, thread: u32, lane: u32) -> f32 {
    workgroupBarrier();
    shared_values[thread] = value;
    for (var apart = {{ lanes }}u / 2u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (lane < apart) {
            let a = shared_values[thread];
            let b = shared_values[thread + apart];
            shared_values[thread] = {{ join }};
        }
    }
    workgroupBarrier();
    return shared_values[thread - lane];
}
{% endfor %}

// Of the element number `at`, in column i; the row's part of the mask begins at `mask_row`.
fn score(at: u32, i: u32, mask_row: u32) -> f32 {
    var s = x[at];
    {% if mask == "add" %}
    s += mask_values[mask_row + i * params.step];
    {% elif mask == "keep" %}
    s = select(LOWEST, s, mask_values[mask_row + i * params.step] != 0.0);
    {% endif %}
    return select(s, LOWEST, s < LOWEST);
}

{{ entry(256) }}
    let lane = thread % {{ lanes }}u;
    let row = workgroup * (256u / {{ lanes }}u) + thread / {{ lanes }}u;
    let first = row * params.n;
    // Threads beyond the last row take part in the barriers with no elements.
    let n = select(0u, params.n, row < params.rows);
    {% if causal %}
    let seen = min(n, row % params.queries + 1u);
    {% else %}
    let seen = n;
    {% endif %}
    var mask_row = 0u;
    {% if mask %}
    var rest = row;
    {% for d in range(rank)|reverse %}
    mask_row += rest % params.size{{ d }} * params.a{{ d }} * params.width;
    rest /= params.size{{ d }};
    {% endfor %}
    {% endif %}
    var largest = LOWEST;
    for (var i = lane; i < seen; i += {{ lanes }}u) {
        largest = max(largest, score(first + i, i, mask_row));
    }
    largest = row_max(largest, thread, lane);
    var total = 0.0;
    for (var i = lane; i < seen; i += {{ lanes }}u) {
        let s = score(first + i, i, mask_row);
        total += select(exp(s - largest), 0.0, s == LOWEST);
    }
    total = row_sum(total, thread, lane);
    let share = select(1.0 / total, 0.0, total == 0.0);
    for (var i = lane; i < n; i += {{ lanes }}u) {
        var y = 0.0;
        if (i < seen) {
            let s = score(first + i, i, mask_row);
            y = select(exp(s - largest) * share, 0.0, s == LOWEST);
        }
        result[first + i] = y;
    }
}
