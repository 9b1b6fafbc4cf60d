//! Where the gradient of a leaf collects.

use super::accumulate::AddInto;
use super::{DType, Kernel, Tensor, run_as, run_into};
use crate::Result;
use crate::profile::MemoryKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The sum of the gradients that a leaf got; clones share it. Setting it to zero costs nothing: that is put off until
/// someone reads it, and the next gradient replaces what is there.
#[derive(Clone)]
pub struct Gradient {
    memory: Tensor,
    /// Whether the memory stands for zeros whatever it holds.
    stale: Arc<AtomicBool>,
    /// Where what reads single rows of a table collects their gradients instead, if it does.
    sparse: Arc<Mutex<Option<SparseGradient>>>,
}

/// Gradients of some rows of a table, apart from the gradient of the whole: as many as are read in a step. Clones share
/// them.
#[derive(Clone)]
pub struct SparseGradient {
    row_of: Tensor,
    rows: usize,
    sum: Arc<Mutex<Option<Tensor>>>,
}

impl SparseGradient {
    /// Of `rows` rows. `row_of`, u32 (V), names for each row of the table the one here; what is not below `rows` has
    /// none, and its gradients are lost.
    #[doc(hidden)]
    pub fn new(row_of: Tensor, rows: usize) -> SparseGradient {
        SparseGradient { row_of, rows, sum: Arc::default() }
    }

    pub(crate) fn row_of(&self) -> &Tensor {
        &self.row_of
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Takes away what has come together, (rows, C), if anything has.
    pub fn take(&self) -> Option<Tensor> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Adds the output of a kernel: `kernel(true)` must add to what it holds, `kernel(false)` must overwrite it.
    pub(crate) fn add<K: Kernel>(&self, inputs: &[&Tensor], kernel: impl Fn(bool) -> K) -> Result<()> {
        let mut sum = self.sum.lock().unwrap_or_else(PoisonError::into_inner);
        match &*sum {
            Some(sum) => run_into(&kernel(true), inputs, &[sum]),
            None => {
                *sum = Some(run_as(MemoryKind::Gradients, &kernel(false), inputs)?.remove(0));
                Ok(())
            }
        }
    }
}

impl Gradient {
    /// One that begins with the values of this tensor, and has its memory.
    pub fn new(memory: Tensor) -> Gradient {
        Gradient { memory, stale: Arc::default(), sparse: Arc::default() }
    }

    /// Whether it is the same sum as another.
    #[doc(hidden)]
    pub fn is(&self, other: &Gradient) -> bool {
        Arc::ptr_eq(&self.stale, &other.stale)
    }

    /// The memory that it collects in, which may be stale.
    pub fn memory(&self) -> &Tensor {
        &self.memory
    }

    /// From here on gradients of single rows of this table collect there; with `None` here again.
    #[doc(hidden)]
    pub fn collect_rows(&self, sparse: Option<SparseGradient>) {
        *self.sparse.lock().unwrap_or_else(PoisonError::into_inner) = sparse;
    }

    /// Where gradients of single rows collect, if not here.
    pub(crate) fn sparse(&self) -> Option<SparseGradient> {
        self.sparse.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    pub(crate) fn add_outputs<K: Kernel>(
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
