//! Where the gradient of a leaf collects.

use super::accumulate::AddInto;
use super::gradient_bucket::GradientBucket;
use super::{DType, Kernel, Shape, Tensor, run_as, run_into};
use crate::profile::MemoryKind;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The sum of the gradients that a leaf got; clones share it. Setting it to zero costs nothing: that is put off until
/// someone reads it, and the next gradient replaces what is there.
#[derive(Clone)]
pub struct Gradient {
    memory: Memory,
    /// Where what reads single rows of a table collects their gradients instead, if it does.
    sparse: Arc<Mutex<Option<SparseGradient>>>,
}

#[derive(Clone)]
enum Memory {
    /// Its own, and whether it stands for zeros whatever it holds.
    Held { memory: Tensor, stale: Arc<AtomicBool> },
    /// That of a bucket while backward needs it.
    Bucket { bucket: Arc<GradientBucket>, member: usize, start: usize, shape: Shape },
    /// Of a matrix in several buffers, those of the rows in each, with their numbers; and all of it, if it has memory
    /// of its own.
    Parts { parts: Arc<[(Range<usize>, Gradient)]>, whole: Option<Tensor>, shape: Shape },
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
        if memory.is_in_parts() {
            let parts = memory.row_parts().into_iter().map(|(rows, part)| (rows, Gradient::new(part)));
            let (parts, shape) = (parts.collect(), memory.shape().clone());
            return Gradient { memory: Memory::Parts { parts, whole: Some(memory), shape }, sparse: Arc::default() };
        }
        Gradient { memory: Memory::Held { memory, stale: Arc::default() }, sparse: Arc::default() }
    }

    /// Of a matrix in several buffers: those of the rows in each, which are used up in backward.
    pub(crate) fn of_parts(parts: Vec<(Range<usize>, Gradient)>, shape: Shape) -> Gradient {
        Gradient { memory: Memory::Parts { parts: parts.into(), whole: None, shape }, sparse: Arc::default() }
    }

    /// Those of the rows in each buffer, with their numbers, if there are several.
    pub(super) fn parts(&self) -> Option<Vec<(Range<usize>, Gradient)>> {
        if let Memory::Parts { parts, .. } = &self.memory { Some(parts.to_vec()) } else { None }
    }

    /// One that lies in a bucket, from this element on, and is used up in backward: [`Gradient::sum`] has none.
    pub(crate) fn in_bucket(bucket: &Arc<GradientBucket>, start: usize, shape: Shape) -> Gradient {
        let member = bucket.add_member(start, shape.elements());
        Gradient { memory: Memory::Bucket { bucket: bucket.clone(), member, start, shape }, sparse: Arc::default() }
    }

    /// Whether it is the same sum as another.
    #[doc(hidden)]
    pub fn is(&self, other: &Gradient) -> bool {
        Arc::ptr_eq(&self.sparse, &other.sparse)
    }

    /// The shape of the leaf.
    pub(crate) fn shape(&self) -> &Shape {
        match &self.memory {
            Memory::Held { memory, .. } => memory.shape(),
            Memory::Bucket { shape, .. } | Memory::Parts { shape, .. } => shape,
        }
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
        self.set_stale(true);
    }

    /// Writes the zeros of one that is stale and has memory of its own.
    pub fn materialize(&self) {
        match &self.memory {
            Memory::Held { memory, stale } if stale.swap(false, Ordering::Relaxed) => memory.fill_zero(),
            Memory::Parts { parts, .. } => parts.iter().for_each(|(_, part)| part.materialize()),
            _ => {}
        }
    }

    /// What has come together; `None` of one that backward uses up.
    pub fn sum(&self) -> Option<&Tensor> {
        self.materialize();
        match &self.memory {
            Memory::Held { memory, .. } => Some(memory),
            Memory::Bucket { .. } => None,
            Memory::Parts { whole, .. } => whole.as_ref(),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match &self.memory {
            Memory::Held { memory, .. } => memory.dtype(),
            Memory::Bucket { .. } | Memory::Parts { .. } => DType::F32,
        }
    }

    /// Whether it has to know which nodes its leaf is an input of.
    pub(super) fn counts_uses(&self) -> bool {
        match &self.memory {
            Memory::Held { .. } => false,
            Memory::Bucket { .. } => true,
            Memory::Parts { parts, .. } => parts.iter().any(|(_, part)| part.counts_uses()),
        }
    }

    /// Counts a node that its leaf is an input of.
    pub(super) fn count_use(&self) {
        match &self.memory {
            Memory::Held { .. } => {}
            Memory::Bucket { bucket, member, .. } => bucket.count_use(*member),
            Memory::Parts { parts, .. } => parts.iter().for_each(|(_, part)| part.count_use()),
        }
    }

    /// The end of such a node.
    pub(super) fn end_use(&self) {
        match &self.memory {
            Memory::Held { .. } => {}
            Memory::Bucket { bucket, member, .. } => bucket.end_use(*member),
            Memory::Parts { parts, .. } => parts.iter().for_each(|(_, part)| part.end_use()),
        }
    }

    fn is_stale(&self) -> bool {
        match &self.memory {
            Memory::Held { stale, .. } => stale.load(Ordering::Relaxed),
            Memory::Bucket { bucket, member, .. } => !bucket.is_written(*member),
            Memory::Parts { parts, .. } => parts.iter().any(|(_, part)| part.is_stale()),
        }
    }

    fn set_stale(&self, stale: bool) {
        match &self.memory {
            Memory::Held { stale: is_stale, .. } => is_stale.store(stale, Ordering::Relaxed),
            Memory::Bucket { bucket, member, .. } => bucket.set_written(*member, !stale),
            Memory::Parts { parts, .. } => parts.iter().for_each(|(_, part)| part.set_stale(stale)),
        }
    }

    /// Its memory, which may be stale; that of a bucket is allocated if there is none.
    fn memory(&self) -> Result<Tensor> {
        match &self.memory {
            Memory::Held { memory, .. } => Ok(memory.clone()),
            Memory::Bucket { bucket, start, shape, .. } => Ok(bucket.memory()?.slice_flat(*start, shape.clone())),
            Memory::Parts { shape, .. } => Err(Error::Autograd(format!(
                "the gradient of a matrix {shape} in several buffers is added by ops that take its rows"
            ))),
        }
    }

    /// Takes over the memory of a tensor that nobody else reads, as what has come together, if it has none: true if so.
    pub(super) fn adopt(&self, gradient: &Tensor) -> bool {
        matches!(&self.memory, Memory::Bucket { bucket, .. } if bucket.adopt(gradient))
    }

    pub(super) fn add(&self, gradient: &Tensor) -> Result<()> {
        let memory = self.memory()?;
        if self.is_stale() {
            self.set_stale(false);
            memory.fill_zero();
        }
        run_into(&AddInto { into: self.dtype() }, &[gradient], &[&memory])
    }

    /// Adds the outputs of a kernel to these: `kernel(true)` must add to what they hold, `kernel(false)` must overwrite
    /// it.
    pub(crate) fn add_outputs<K: Kernel>(
        gradients: &[&Gradient],
        inputs: &[&Tensor],
        kernel: impl Fn(bool) -> K,
    ) -> Result<()> {
        let memory = gradients.iter().map(|gradient| gradient.memory()).collect::<Result<Vec<Tensor>>>()?;
        let memory: Vec<&Tensor> = memory.iter().collect();
        let stale: Vec<bool> = gradients.iter().map(|gradient| gradient.is_stale()).collect();
        let set_stale = |stale| gradients.iter().for_each(|gradient| gradient.set_stale(stale));
        // Before it runs: a hook that sees the kernel may look at the gradients.
        set_stale(false);
        if stale.contains(&false) {
            stale.iter().zip(&memory).filter(|(stale, _)| **stale).for_each(|(_, memory)| memory.fill_zero());
            return run_into(&kernel(true), inputs, &memory);
        }
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
