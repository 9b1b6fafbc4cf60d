// The gradient norm of updates while backward runs (formulas: src/optim/layerwise.rs), one workgroup.
{{ interface }}

// By its bits: a compiler may take it that comparisons never meet a NaN.
fn is_finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }

{% if pass == "bound" %}
var<workgroup> partial: array<f32, 256>;

{{ entry(256) }}
    var sum = 0.0;
    for (var i = thread; i < params.parts; i += 256u) { sum += sums[i]; }
    partial[thread] = sum;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] += partial[thread + half]; }
    }
    if (thread > 0u) { return; }
    let total = so_far[0] + partial[0];
    so_far[0] = total;
    {% if mixed %}
    let unscale = 1.0 / scale[0];
    squares[1] = select(unscale, 0.0, !is_finite(total) && scale[0] > 1.0);
    {% else %}
    let unscale = 1.0;
    {% endif %}
    squares[0] = select(total, max(previous[0], total * unscale * unscale), is_finite(total));
}
{% else %}
{{ entry(1) }}
    let finite = is_finite(squares[0]);
    if (finite) {
        previous[0] = squares[0];
    } else {
        {% if mixed %}
        skipped[0] += select(0u, 1u, squares[1] != 0.0);
        {% else %}
        skipped[0] += 1u;
        {% endif %}
    }
}
{% endif %}
