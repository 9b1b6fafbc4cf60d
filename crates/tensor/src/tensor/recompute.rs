//! Activations that are computed again in backward instead of kept: less memory for more arithmetic (Chen et al. 2016,
//! "Training Deep Nets with Sublinear Memory Cost"; PyTorch's `checkpoint`).
//!
//! Backward runs the segment once more, with the tape on and attached to where the inputs came from. Then it goes on
//! through these new nodes, as if they had been on the tape all along: the same kernels run in the same order and add
//! to the same gradients, so the bits are those of a segment that was kept.

use super::Tensor;
use super::autograd::{Edge, Grads, Op, Saved, Saves, record_node};
use super::context::{grad_enabled, with_grad};
use crate::Result;

/// A segment of the tape that is not kept.
struct Recompute<F> {
    segment: F,
    /// Without history.
    inputs: Vec<Tensor>,
}

/// What `segment` computes from `inputs`, and what else it tells. If any of that can be differentiated, only the inputs
/// are kept; each run of the segment must compute the same.
///
/// # Errors
/// Those of the segment.
pub(crate) fn recompute<T>(
    inputs: &[&Tensor],
    segment: impl Fn(&[Tensor]) -> Result<(Vec<Tensor>, T)> + Send + Sync + 'static,
) -> Result<(Vec<Tensor>, T)> {
    let attached: Vec<Tensor> = inputs.iter().map(|input| (*input).clone()).collect();
    // On the tape, which tells whether a parameter of the segment needs a gradient; then that tape is dropped.
    let (outputs, told) = segment(&attached)?;
    if !grad_enabled() || outputs.iter().all(|output| matches!(output.edge(), Edge::None)) {
        return Ok((outputs, told));
    }
    let op = Recompute { segment, inputs: inputs.iter().map(|input| input.detach()).collect() };
    let outputs = outputs.iter().map(Tensor::detach).collect();
    Ok((record_node(Box::new(op), inputs, outputs), told))
}

impl<T, F: Fn(&[Tensor]) -> Result<(Vec<Tensor>, T)> + Send + Sync> Op for Recompute<F> {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let inputs: Vec<Tensor> = self.inputs.iter().enumerate().map(|(i, input)| grads.attach(i, input)).collect();
        let (outputs, _) = with_grad(|| (self.segment)(&inputs))?;
        outputs.iter().zip(grad_output).try_for_each(|(output, gradient)| match gradient {
            Some(gradient) => grads.continue_from(output, gradient.clone()),
            None => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::no_grad;
    use crate::{DType, Device};

    fn leaf(values: [f32; 4], device: &Device) -> Tensor {
        Tensor::from_f32(&values, [4], device).unwrap().requires_grad().unwrap()
    }

    fn constant(device: &Device) -> Tensor {
        leaf([0.5, -1.0, 2.0, 4.0], device).detach()
    }

    /// The gradients of `weight` and of the first input, of what `network` makes of a segment's outputs.
    fn gradients(kept: bool, device: &Device, x: &Tensor) -> (Vec<f32>, Option<Vec<f32>>) {
        let weight = leaf([3.0, 1.0, -1.0, 2.0], device);
        let of_segment = weight.clone();
        // Both outputs depend on both inputs, and one input is used twice.
        let segment = move |inputs: &[Tensor]| {
            let product = inputs[0].mul(&of_segment)?;
            Ok((vec![product.add(&inputs[1])?.tanh()?, product.mul(&inputs[0])?], ()))
        };
        let scaled = x.scale(0.25).unwrap();
        let inputs = [&scaled, &constant(device)];
        let (outputs, ()) = match kept {
            true => segment(&inputs.map(Tensor::clone)).unwrap(),
            false => recompute(&inputs, segment).unwrap(),
        };
        // The first input goes around the segment as well.
        let y = outputs[0].mul(&outputs[1]).unwrap().add(&scaled).unwrap();
        y.sum(0).unwrap().backward().unwrap();
        (weight.grad().unwrap().to_f32().unwrap(), x.grad().map(|gradient| gradient.to_f32().unwrap()))
    }

    #[test]
    fn gradients_are_those_of_a_segment_that_was_kept() {
        for device in Device::for_tests() {
            for requires_grad in [true, false] {
                let x = || {
                    let x = leaf([1.0, 2.0, -3.0, 0.5], &device);
                    if requires_grad { x } else { x.detach() }
                };
                let (kept, recomputed) = (gradients(true, &device, &x()), gradients(false, &device, &x()));
                assert_eq!(kept, recomputed, "{device}, {requires_grad}");
                assert!(kept.0.iter().all(|gradient| *gradient != 0.0));
            }
        }
    }

    #[test]
    fn segments_may_hold_segments_and_pass_inputs_on() {
        for device in Device::for_tests() {
            let x = leaf([1.0, 2.0, -3.0, 0.5], &device);
            let inner = |inputs: &[Tensor]| Ok((vec![inputs[0].mul(&inputs[0])?, inputs[0].clone()], ()));
            let outer = move |inputs: &[Tensor]| {
                let (outputs, ()) = recompute(&[&inputs[0]], inner)?;
                Ok((vec![outputs[0].mul(&outputs[1])?, inputs[0].clone()], ()))
            };
            let (outputs, ()) = recompute(&[&x], outer).unwrap();
            outputs[0].add(&outputs[1]).unwrap().sum(0).unwrap().backward().unwrap();
            // Of x^3 + x.
            assert_eq!(x.grad().unwrap().to_f32().unwrap(), [4.0, 13.0, 28.0, 1.75], "{device}");
        }
    }

    #[test]
    fn what_needs_no_gradient_is_not_recorded() {
        let device = Device::Cpu;
        let square = |inputs: &[Tensor]| Ok((vec![inputs[0].mul(&inputs[0])?], 7));
        let (outputs, told) = recompute(&[&constant(&device)], square).unwrap();
        assert!(matches!(outputs[0].edge(), Edge::None) && told == 7);
        let x = leaf([1.0; 4], &device);
        let (outputs, _) = no_grad(|| recompute(&[&x], square)).unwrap();
        assert!(matches!(outputs[0].edge(), Edge::None) && outputs[0].dtype() == DType::F32);
    }
}
