//! Where the gradient of a leaf collects.

use super::accumulate::AddInto;
use super::{DType, Kernel, Tensor, run_into};
use crate::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The sum of the gradients that a leaf got; clones share it. Setting it to zero costs nothing: that is put off until
/// someone reads it, and the next gradient replaces what is there.
#[derive(Clone)]
pub struct Gradient {
    memory: Tensor,
    /// Whether the memory stands for zeros whatever it holds.
    stale: Arc<AtomicBool>,
}

impl Gradient {
    /// One that begins with the values of this tensor, and has its memory.
    pub fn new(memory: Tensor) -> Gradient {
        Gradient { memory, stale: Arc::default() }
    }

    /// Makes it all zeros, without writing them yet.
    pub fn zero_lazily(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    /// Writes the zeros of one that is stale.
    pub fn materialize(&self) {
        if self.stale.swap(false, Ordering::Relaxed) {
            self.memory.fill_zero();
        }
    }

    /// What has come together.
    pub fn sum(&self) -> &Tensor {
        self.materialize();
        &self.memory
    }

    pub(super) fn dtype(&self) -> DType {
        self.memory.dtype()
    }

    pub(super) fn add(&self, gradient: &Tensor) -> Result<()> {
        run_into(&AddInto { into: self.dtype() }, &[gradient], &[self.sum()])
    }

    /// Adds the outputs of a kernel to these: `kernel(true)` must add to what they hold, `kernel(false)` must overwrite
    /// it.
    pub(super) fn add_outputs<K: Kernel>(
        gradients: &[&Gradient],
        inputs: &[&Tensor],
        kernel: impl Fn(bool) -> K,
    ) -> Result<()> {
        let (stale, memory): (Vec<bool>, Vec<&Tensor>) =
            gradients.iter().map(|gradient| (gradient.stale.load(Ordering::Relaxed), &gradient.memory)).unzip();
        if stale.contains(&false) {
            gradients.iter().for_each(|gradient| gradient.materialize());
            return run_into(&kernel(true), inputs, &memory);
        }
        let set_stale = |stale| gradients.iter().for_each(|gradient| gradient.stale.store(stale, Ordering::Relaxed));
        // Before it runs: a hook that sees the kernel may look at the gradients.
        set_stale(false);
        run_into(&kernel(false), inputs, &memory).inspect_err(|_| set_stale(true))
    }
}

#[cfg(test)]
mod tests {
    use crate::tensor::Edge;
    use crate::{Device, Tensor};

    #[test]
    fn a_stale_gradient_counts_as_zeros_whatever_comes_next() {
        for device in Device::for_tests() {
            let leaf = |values: &[f32], shape: &[usize]| {
                Tensor::from_f32(values, shape, &device).unwrap().requires_grad().unwrap()
            };
            let (weight, bias) = (leaf(&[1.0, 2.0, 3.0, 4.0], &[2, 2]), leaf(&[7.0, 8.0], &[2]));
            let x = Tensor::from_f32(&[5.0, 6.0], [1, 2], &device).unwrap();
            let zero = |leaf: &Tensor| match leaf.edge() {
                Edge::Leaf(gradient) => gradient.zero_lazily(),
                _ => unreachable!("a leaf"),
            };
            let expect = |of_weight: [f32; 4], of_bias: [f32; 2]| {
                assert_eq!(weight.grad().unwrap().to_f32().unwrap(), of_weight, "{device}");
                assert_eq!(bias.grad().unwrap().to_f32().unwrap(), of_bias, "{device}");
            };
            let backward = || {
                let y = x.linear(&weight, false, Some(&bias)).unwrap();
                y.sum(0).unwrap().sum(0).unwrap().backward().unwrap();
            };
            backward();
            expect([5.0, 5.0, 6.0, 6.0], [1.0; 2]);
            zero(&weight);
            zero(&bias);
            backward();
            expect([5.0, 5.0, 6.0, 6.0], [1.0; 2]);
            // Of two that one kernel computes, one.
            zero(&bias);
            backward();
            expect([10.0, 10.0, 12.0, 12.0], [1.0; 2]);
            // Given a gradient instead of computing it there; and nothing at all.
            zero(&weight);
            zero(&bias);
            weight.reshape([4]).unwrap().sum(0).unwrap().backward().unwrap();
            expect([1.0; 4], [0.0; 2]);
        }
    }
}
