// Unscales the squared norm of the gradients, decides whether the step is skipped, and adapts the scale of the loss
// (src/optim/loss_scale.rs). One thread.
struct Params { growth: f32, backoff: f32, growth_interval: f32 }
var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> squares: array<f32>;
// The scale, the finite steps since it changed, the steps skipped.
@group(0) @binding(1) var<storage, read_write> state: array<f32>;
// The squared norm without the scale, and the factor of the gradients.
@group(0) @binding(2) var<storage, read_write> numbers: array<f32>;

@compute @workgroup_size(1)
fn main() {
    let scale = state[0];
    let unscale = 1.0 / scale;
    numbers[0] = squares[0] * unscale * unscale;
    // By its bits: a compiler may take it that comparisons never meet a NaN.
    if ((bitcast<u32>(squares[0]) & 0x7f800000u) != 0x7f800000u) {
        numbers[1] = unscale;
        state[1] += 1.0;
        if (state[1] >= p.growth_interval) {
            state[0] = scale * p.growth;
            state[1] = 0.0;
        }
    } else if (scale <= 1.0) {
        numbers[1] = 1.0; // No scale can help: the update itself meets what is not finite, and counts it.
    } else {
        numbers[1] = 0.0;
        state[0] = max(scale * p.backoff, 1.0);
        state[1] = 0.0;
        state[2] += 1.0;
    }
}
