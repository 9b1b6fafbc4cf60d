// What an update multiplies gradients by (src/optim/update.rs). `squares` is the sum of the squared gradients; mixed,
// its second element what they are multiplied by before they are clipped, 0 for no update.
fn scale_overflows() -> bool {
    return {{ "squares[1] == 0.0" if mixed else "false" }};
}
// By the bits of the exponent: a compiler may take it that no number is infinite or NaN.
fn norm_is_finite() -> bool {
    return (bitcast<u32>(squares[0]) & 0x7f800000u) != 0x7f800000u;
}
fn gradient_scale() -> f32 {
    var scale = 1.0;
    if (params.grad_clip > 0.0) { scale = min(1.0, params.grad_clip / (sqrt(squares[0]) + 1e-6)); }
    {% if mixed %}
    scale *= squares[1];
    {% endif %}
    return scale;
}
