// Adds up the squared norm of the gradients, unscales it, decides whether the step is skipped, and adapts the scale of
// the loss (src/optim/loss_scale.rs).
{{ interface }}
// The scale, the finite steps since it changed, the steps skipped.
// The squared norm without the scale, and the factor of the gradients.

var<workgroup> partial: array<f32, 256>;

{{ entry(256) }}
    var sum = 0.0;
    for (var i = thread; i < params.parts; i += 256u) { sum += squares[i]; }
    partial[thread] = sum;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] += partial[thread + half]; }
    }
    if (thread > 0u) { return; }
    let total = partial[0];
    let scale = state[0];
    let unscale = 1.0 / scale;
    numbers[0] = total * unscale * unscale;
    // By its bits: a compiler may take it that comparisons never meet a NaN.
    if ((bitcast<u32>(total) & 0x7f800000u) != 0x7f800000u) {
        numbers[1] = unscale;
        state[1] += 1.0;
        if (state[1] >= params.growth_interval) {
            state[0] = scale * params.growth;
            state[1] = 0.0;
        }
    } else if (scale <= 1.0) {
        numbers[1] = 1.0; // No scale can help: the update itself meets what is not finite, and counts it.
    } else {
        numbers[1] = 0.0;
        state[0] = max(scale * params.backoff, 1.0);
        state[1] = 0.0;
        state[2] += 1.0;
    }
}
