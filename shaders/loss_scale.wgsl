// Unscales the squared norm of the gradients, decides whether the step is skipped, and adapts the scale of the loss
// (src/optim/loss_scale.rs). One thread.
{{ interface }}
// The scale, the finite steps since it changed, the steps skipped.
// The squared norm without the scale, and the factor of the gradients.

{{ entry(1) }}
    let scale = state[0];
    let unscale = 1.0 / scale;
    numbers[0] = squares[0] * unscale * unscale;
    // By its bits: a compiler may take it that comparisons never meet a NaN.
    if ((bitcast<u32>(squares[0]) & 0x7f800000u) != 0x7f800000u) {
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
