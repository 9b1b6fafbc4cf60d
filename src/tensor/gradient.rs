//! Where the gradient of a leaf collects.

use super::accumulate::AddInto;
use super::{DType, Kernel, Tensor, run_into};
use crate::Result;
use std::cell::Cell;
use std::rc::Rc;

/// The sum of the gradients that a leaf got; clones share it. To forget it costs nothing: the next gradient replaces it.
#[derive(Clone)]
pub struct Gradient {
    memory: Tensor,
    /// Whether the memory holds nothing that counts.
    forgotten: Rc<Cell<bool>>,
}

impl Gradient {
    /// One that begins with the values of this tensor, and has its memory.
    pub fn new(memory: Tensor) -> Gradient {
        Gradient { memory, forgotten: Rc::default() }
    }

    /// Makes it all zeros.
    pub fn forget(&self) {
        self.forgotten.set(true);
    }

    /// Writes the zeros of one that was forgotten.
    pub fn settle(&self) {
        if self.forgotten.take() {
            self.memory.fill_zero();
        }
    }

    /// What has come together.
    pub fn sum(&self) -> &Tensor {
        self.settle();
        &self.memory
    }

    pub(super) fn dtype(&self) -> DType {
        self.memory.dtype()
    }

    pub(super) fn add(&self, gradient: &Tensor) -> Result<()> {
        run_into(&AddInto { into: self.dtype() }, &[gradient], &[self.sum()])
    }

    /// Adds the outputs of a kernel to these: `kernel(true)` must add to what they hold, `kernel(false)` must overwrite it.
    pub(super) fn add_outputs<K: Kernel>(
        gradients: &[&Gradient],
        inputs: &[&Tensor],
        kernel: impl Fn(bool) -> K,
    ) -> Result<()> {
        let (anew, memory): (Vec<bool>, Vec<&Tensor>) =
            gradients.iter().map(|gradient| (gradient.forgotten.get(), &gradient.memory)).unzip();
        if anew.contains(&false) {
            gradients.iter().for_each(|gradient| gradient.settle());
            return run_into(&kernel(true), inputs, &memory);
        }
        // Before it runs: who watches kernels may look at the gradients.
        gradients.iter().for_each(|gradient| gradient.forgotten.set(false));
        let result = run_into(&kernel(false), inputs, &memory);
        if result.is_err() {
            gradients.iter().for_each(|gradient| gradient.forgotten.set(true));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use crate::tensor::Edge;
    use crate::{Device, Tensor};

    #[test]
    fn what_was_forgotten_counts_as_zeros_whatever_comes_next() {
        for device in Device::for_tests() {
            let leaf = |values: &[f32], shape: &[usize]| {
                Tensor::from_f32(values, shape, &device).unwrap().requires_grad().unwrap()
            };
            let (weight, bias) = (leaf(&[1.0, 2.0, 3.0, 4.0], &[2, 2]), leaf(&[7.0, 8.0], &[2]));
            let x = Tensor::from_f32(&[5.0, 6.0], [1, 2], &device).unwrap();
            let forget = |leaf: &Tensor| match leaf.edge() {
                Edge::Leaf(gradient) => gradient.forget(),
                _ => unreachable!("a leaf"),
            };
            let expect = |of_weight: [f32; 4], of_bias: [f32; 2]| {
                assert_eq!(weight.grad().unwrap().to_f32().unwrap(), of_weight, "{device}");
                assert_eq!(bias.grad().unwrap().to_f32().unwrap(), of_bias, "{device}");
            };
            let backward = || {
                let y = x.linear(&weight, Some(&bias)).unwrap();
                y.sum(0).unwrap().sum(0).unwrap().backward().unwrap();
            };
            backward();
            expect([5.0, 5.0, 6.0, 6.0], [1.0; 2]);
            forget(&weight);
            forget(&bias);
            backward();
            expect([5.0, 5.0, 6.0, 6.0], [1.0; 2]);
            // Of two that one kernel computes, one.
            forget(&bias);
            backward();
            expect([10.0, 10.0, 12.0, 12.0], [1.0; 2]);
            // Given a gradient instead of computing it there; and nothing at all.
            forget(&weight);
            forget(&bias);
            weight.reshape([4]).unwrap().sum(0).unwrap().backward().unwrap();
            expect([1.0; 4], [0.0; 2]);
        }
    }
}
