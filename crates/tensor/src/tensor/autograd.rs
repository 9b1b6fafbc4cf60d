//! Reverse-mode differentiation.
//!
//! Applying an [`Op`] to tensors of which one needs a gradient records a node: the op, what its backward needs
//! ([`Saves`]), and edges to the nodes its inputs came from. [`backward_from`] walks the nodes from the newest to the
//! oldest. Each takes the gradients of its outputs, computes those of its inputs, and frees what it had saved, so
//! activations go as the gradient passes them. Gradients of leaves are added in place.

use super::accumulate::{AddInto, Sum};
use super::context::no_grad;
use super::{DType, Gradient, Kernel, Shape, SparseGradient, Tensor, run, run_as, run_into};
use crate::profile::MemoryKind;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Something on the tape: the derivative of what was computed, by one kernel or by several.
pub trait Op: Send + Sync {
    /// Which inputs and outputs backward needs; all others may be freed right after forward.
    fn saves(&self) -> Saves;

    /// [`Op::saves`] where gradients of these inputs alone are wanted: beside what is frozen, some ops need less.
    fn saves_for(&self, _wanted: &dyn Fn(usize) -> bool) -> Saves {
        self.saves()
    }

    /// Hands each input gradient that is needed to `grads`, given what was saved and the gradients of the outputs.
    /// `grad_output[i]` is `None` where output `i` did not take part in the loss.
    ///
    /// # Errors
    /// Those of the kernels it runs.
    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()>;
}

/// Positions of the inputs and outputs that backward needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Saves {
    pub inputs: &'static [usize],
    pub outputs: &'static [usize],
}

/// What a node kept for its backward.
pub struct Saved {
    inputs: Vec<Option<Tensor>>,
    outputs: Vec<Option<Tensor>>,
}

impl Saved {
    /// Input `i`.
    ///
    /// # Errors
    /// [`Error::Autograd`] if [`Op::saves_for`] does not name it.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        kept(&self.inputs, "input", i)
    }

    /// Whether input `i` was saved.
    pub fn has_input(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(Option::is_some)
    }

    /// Output `i`.
    ///
    /// # Errors
    /// [`Error::Autograd`] if [`Op::saves_for`] does not name it.
    pub fn output(&self, i: usize) -> Result<&Tensor> {
        kept(&self.outputs, "output", i)
    }
}

fn kept<'a>(tensors: &'a [Option<Tensor>], what: &str, i: usize) -> Result<&'a Tensor> {
    let missing = || Error::Autograd(format!("an op's backward reads {what} {i}, which its `saves` does not name"));
    tensors.get(i).and_then(Option::as_ref).ok_or_else(missing)
}

/// Where a tensor came from.
#[derive(Clone)]
pub enum Edge {
    /// Data: no gradient flows here.
    None,
    /// A leaf; its gradient is added to this one.
    Leaf(Gradient),
    /// Output number `.1` of a node.
    Node(Arc<Node>, usize),
}

/// One application of an op.
pub struct Node {
    id: u64,
    outputs: usize,
    record: Mutex<Option<Record>>,
}

/// Frees the nodes that only this one has kept, one after the other: a long chain would need more stack than a thread
/// has if each freed the next.
impl Drop for Node {
    fn drop(&mut self) {
        let take = |node: &mut Node| node.record.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let mut records: Vec<Record> = take(self).into_iter().collect();
        while let Some(record) = records.pop() {
            for edge in record.edges {
                if let Edge::Node(node, _) = edge
                    && let Some(mut node) = Arc::into_inner(node)
                {
                    records.extend(take(&mut node));
                }
            }
        }
    }
}

/// What a node loses when it is differentiated.
struct Record {
    op: Box<dyn Op>,
    saved: Saved,
    edges: Vec<Edge>,
    /// What counts its uses of leaves.
    _leaves: Leaves,
}

/// The gradients of the leaves that a node has as inputs, which know of it as long as it is on the tape.
struct Leaves(Vec<Gradient>);

impl Leaves {
    fn of(edges: &[Edge]) -> Leaves {
        let leaves =
            edges.iter().filter_map(|edge| if let Edge::Leaf(gradient) = edge { Some(gradient) } else { None });
        Leaves(leaves.filter(|gradient| gradient.counts_uses()).cloned().inspect(Gradient::count_use).collect())
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.iter().for_each(Gradient::end_use);
    }
}

/// Runs an op on tensors of one device, and records it on the tape if an input needs a gradient: one tensor for each
/// spec of [`Kernel::output_specs`]. Every op of [`crate::ops`] is run by it, and so is one of an application.
///
/// # Errors
/// What [`Kernel::output_specs`] says of the inputs; [`Error::Shape`] of no inputs or no outputs;
/// [`Error::DeviceMismatch`]; of a [`Shader::checked`](crate::gpu::Shader::checked), [`Error::Wgsl`] if it does not
/// compile and [`Error::GpuLimit`] if the GPU cannot bind so much.
pub fn apply(op: impl Kernel + Op + 'static, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let outputs = run(&op, inputs)?;
    Ok(record(Box::new(op), inputs, outputs))
}

/// Puts outputs that were computed from `inputs` on the tape.
#[doc(hidden)]
pub fn record(op: Box<dyn Op>, inputs: &[&Tensor], outputs: Vec<Tensor>) -> Vec<Tensor> {
    if !inputs.iter().any(|t| t.needs_grad()) {
        return outputs;
    }
    record_node(op, inputs, outputs)
}

/// [`record`], whether or not an input needs a gradient.
pub(super) fn record_node(op: Box<dyn Op>, inputs: &[&Tensor], outputs: Vec<Tensor>) -> Vec<Tensor> {
    let saves = op.saves_for(&|i| !matches!(inputs[i].edge(), Edge::None));
    let keep = |tensors: &[&Tensor], which: &[usize]| {
        // Detached: an output that its own node kept alive would never be freed.
        tensors.iter().enumerate().map(|(i, t)| which.contains(&i).then(|| t.detach())).collect()
    };
    let saved =
        Saved { inputs: keep(inputs, saves.inputs), outputs: keep(&outputs.iter().collect::<Vec<_>>(), saves.outputs) };
    let edges: Vec<Edge> = inputs.iter().map(|t| t.edge().clone()).collect();
    let leaves = Leaves::of(&edges);
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let record = Mutex::new(Some(Record { op, saved, edges, _leaves: leaves }));
    let node = Arc::new(Node { id, outputs: outputs.len(), record });
    outputs
        .into_iter()
        .enumerate()
        .map(|(i, t)| Tensor::from_parts(t.spec().clone(), t.storage().clone(), Edge::Node(node.clone(), i)))
        .collect()
}

/// Gradients of nodes' outputs that wait for their node's turn, newest node last.
type PendingGrads = BTreeMap<u64, (Arc<Node>, Vec<Option<Tensor>>)>;

/// Where an op's backward puts the gradients of its inputs.
pub struct Grads<'a> {
    edges: &'a [Edge],
    pending: &'a mut PendingGrads,
    unit_seed: bool,
}

impl Grads<'_> {
    /// Runs a kernel into new tensors, whose memory counts as gradients.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn run(&self, kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        run_as(MemoryKind::Gradients, kernel, inputs)
    }

    /// The only output of [`Grads::run`].
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn run_one(&self, kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<Tensor> {
        Ok(self.run(kernel, inputs)?.remove(0))
    }

    /// Whether the gradient of the op's output is known to be 1: the op computed what [`Tensor::backward`] began with.
    pub fn unit_seed(&self) -> bool {
        self.unit_seed
    }

    /// Whether anybody needs the gradient of input `i`.
    pub fn needs_grad(&self, i: usize) -> bool {
        !matches!(self.edges.get(i), None | Some(Edge::None))
    }

    /// The type that the gradient of input `i`, this tensor, is collected in: that of the tensor, unless it is an f16
    /// copy of a parameter, whose gradient is f32.
    pub fn dtype(&self, i: usize, input: &Tensor) -> DType {
        match &self.edges[i] {
            Edge::Leaf(sum) => sum.dtype(),
            _ => input.dtype(),
        }
    }

    /// Adds `gradient` to the gradient of input `i`.
    ///
    /// # Errors
    /// [`Error::Autograd`] if there is no such input, or the gradient is of integers; those of the addition.
    pub fn accumulate(&mut self, i: usize, gradient: Tensor) -> Result<()> {
        let edges = self.edges;
        let Some(edge) = edges.get(i) else {
            let count = edges.len();
            return Err(Error::Autograd(format!("an op's backward gives a gradient of input {i}, and it has {count}")));
        };
        if gradient.dtype() == DType::U32 {
            let got = gradient.spec();
            return Err(Error::Autograd(format!("an op's backward gives {got} as the gradient of input {i}")));
        }
        self.accumulate_at(edge, gradient)
    }

    /// This tensor as input `i` stands on the tape: the gradient of what is computed from it goes where that of the
    /// input does.
    pub(super) fn attach(&self, i: usize, input: &Tensor) -> Tensor {
        Tensor::from_parts(input.spec().clone(), input.storage().clone(), self.edges[i].clone())
    }

    /// Adds `gradient` to that of `output`, which was computed during this backward: its node takes its turn next.
    ///
    /// # Errors
    /// Those of the addition.
    pub(super) fn continue_from(&mut self, output: &Tensor, gradient: Tensor) -> Result<()> {
        self.accumulate_at(output.edge(), gradient)
    }

    fn accumulate_at(&mut self, edge: &Edge, gradient: Tensor) -> Result<()> {
        match edge {
            Edge::None => Ok(()),
            Edge::Leaf(sum) => sum.add(&gradient),
            Edge::Node(node, output) => {
                let slot = slot(self.pending, node, *output);
                *slot = Some(match slot.take() {
                    None => gradient,
                    Some(sum) if sum.owns_its_memory() => {
                        run_into(&AddInto { into: sum.dtype() }, &[&gradient], &[&sum])?;
                        sum
                    }
                    Some(sum) if gradient.owns_its_memory() => {
                        run_into(&AddInto { into: gradient.dtype() }, &[&sum], &[&gradient])?;
                        gradient
                    }
                    Some(sum) => {
                        run_as(MemoryKind::Gradients, &Sum { into: sum.dtype() }, &[&sum, &gradient])?.remove(0)
                    }
                });
                Ok(())
            }
        }
    }

    /// Where gradients of single rows of input `i`, a table, collect, if not with all others.
    pub(crate) fn sparse(&self, i: usize) -> Option<SparseGradient> {
        if let Edge::Leaf(sum) = &self.edges[i] { sum.sparse() } else { None }
    }

    /// Lets the gradient of input `i` take over the memory of `gradient`, which nobody reads any more, as
    /// [`Grads::accumulate`] without a copy. False, and nothing is done, where it has memory already.
    pub(crate) fn adopt(&mut self, i: usize, gradient: &Tensor) -> bool {
        matches!(&self.edges[i], Edge::Leaf(sum) if sum.adopt(gradient))
    }

    /// Takes away what the gradient of input `i` has come to so far, if that is kept here: for a kernel that adds it in
    /// passing, and whose result is then to be given.
    pub fn take_partial(&mut self, i: usize) -> Option<Tensor> {
        let Edge::Node(node, output) = &self.edges[i] else { return None };
        slot(self.pending, node, *output).take()
    }

    /// Computes the gradient of input `i`, if wanted, as the only output of a kernel: `kernel(true)` must add to what
    /// the output holds, `kernel(false)` must overwrite it. Spares the extra pass that [`Grads::accumulate`] may need.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn accumulate_with<K: Kernel>(
        &mut self,
        i: usize,
        inputs: &[&Tensor],
        kernel: impl Fn(bool) -> K,
    ) -> Result<()> {
        match &self.edges[i] {
            Edge::None => Ok(()),
            Edge::Leaf(sum) => Gradient::add_outputs(&[sum], inputs, kernel),
            Edge::Node(node, output) => {
                if let Some(sum) = slot(self.pending, node, *output)
                    && sum.owns_its_memory()
                {
                    return run_into(&kernel(true), inputs, &[&*sum]);
                }
                let gradient = self.run(&kernel(false), inputs)?.remove(0);
                self.accumulate(i, gradient)
            }
        }
    }

    /// Computes the gradients of several inputs, if any is wanted, as the outputs of one kernel, which adds or
    /// overwrites as for [`Grads::accumulate_with`].
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn accumulate_all_with<K: Kernel>(
        &mut self,
        inputs_of: &[usize],
        inputs: &[&Tensor],
        kernel: impl Fn(bool) -> K,
    ) -> Result<()> {
        if !inputs_of.iter().any(|i| self.needs_grad(*i)) {
            return Ok(());
        }
        let leaves = inputs_of.iter().map(|i| if let Edge::Leaf(sum) = &self.edges[*i] { Some(sum) } else { None });
        if let Some(sums) = leaves.collect::<Option<Vec<&Gradient>>>() {
            return Gradient::add_outputs(&sums, inputs, kernel);
        }
        let gradients = self.run(&kernel(false), inputs)?;
        inputs_of.iter().zip(gradients).try_for_each(|(i, gradient)| self.accumulate(*i, gradient))
    }
}

fn slot<'a>(pending: &'a mut PendingGrads, node: &Arc<Node>, output: usize) -> &'a mut Option<Tensor> {
    let entry = pending.entry(node.id).or_insert_with(|| (node.clone(), vec![None; node.outputs]));
    &mut entry.1[output]
}

/// Adds the gradient of `sum(root * seed)` to every leaf that `root` was computed from; `seed` may be known to be
/// `ones`. `after_each` runs after every node.
#[doc(hidden)]
pub fn backward_from(
    root: &Tensor,
    seed: Tensor,
    ones: bool,
    after_each: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let Edge::Node(node, output) = root.edge() else {
        return Err(Error::Autograd("this tensor was not computed from anything that needs a gradient".into()));
    };
    let mut pending = PendingGrads::new();
    *slot(&mut pending, node, *output) = Some(seed);
    let root = node.id;
    while let Some((id, (node, grad_output))) = pending.pop_last() {
        let record = node.record.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(|| {
            Error::Autograd("this was differentiated before, and what forward saved is gone; run forward again".into())
        })?;
        drop(node);
        let mut grads = Grads { edges: &record.edges, pending: &mut pending, unit_seed: ones && id == root };
        let backward = || record.op.backward(&record.saved, &grad_output, &mut grads);
        no_grad(backward)?;
        drop((record, grad_output));
        after_each()?;
    }
    Ok(())
}

impl Tensor {
    /// Whether nothing else can see this tensor's memory, so that it may be changed in place.
    pub(crate) fn owns_its_memory(&self) -> bool {
        self.uniquely_owned() && self.storage().is_unique()
    }

    /// The same memory under another shape, as an op on the tape.
    pub(crate) fn record_view(&self, op: impl Op + 'static, shape: Shape) -> Tensor {
        record(Box::new(op), &[self], vec![self.view(shape, Edge::None)]).remove(0)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Tensor};

    /// Of 200 bytes of stack for each node, no thread would have enough.
    #[test]
    fn a_chain_of_any_length_is_freed_and_differentiated() {
        let leaf = Tensor::full(1.0, [1], &Device::Cpu).unwrap().requires_grad().unwrap();
        let chain = || (0..50_000).fold(leaf.clone(), |x, _| x.neg().unwrap());
        drop(chain());
        chain().backward().unwrap();
        assert_eq!(leaf.grad().unwrap().to_f32().unwrap(), [1.0]);
    }
}
