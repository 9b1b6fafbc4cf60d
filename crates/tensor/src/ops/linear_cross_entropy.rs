//! Fused linear, softmax and cross-entropy of a language model's head: the loss of `h weight^T [+ bias]`, without the
//! tensor of all logits. Shapes: h (..., C), weight (V, C), bias (V), targets (...) -> loss ().
//!
//! Rows are processed in chunks. For each chunk, forward computes the logits, replaces them by their gradient
//! ([`FusedSoftmaxCrossEntropy`]), and multiplies that into the gradients of h and of the weight:
//! ```text
//! x = h weight^T    dx = (softmax(x) - onehot) / n    dh = dx weight    dweight = sum over chunks of dx^T h
//!       [+ bias]                                                      dbias = sum of the rows of dx
//! ```
//! In mixed precision h and weight are f16, and so are logits, dx and dh. dx is below 1 / n, too small for f16, so it
//! is multiplied by a loss scale (Micikevicius et al. 2018), which scales all gradients computed from it.
//!
//! Backward computes the last chunk's part of dweight and adds it directly to the accumulated gradient. The other
//! gradients are only multiplied by the loss gradient, and only if that may differ from 1. For V = 50,257 and 16 x 1024
//! tokens that saves two tensors of 3.3 GB. (The fused classifier of llm.c, and Liger Kernel, Hsu et al. 2024.)
//!
//! The fast GEMMs of a GPU require rows of whole vectors and prefer whole tiles. A weight with another number of rows,
//! such as GPT-2's 50,257, is copied with padding rows of zeros. The loss ignores the padding columns of the logits,
//! and their gradient is 0.

use super::cross_entropy::{
    CountValid, Criterion, FusedSoftmaxCrossEntropy, MeanLoss, RowLosses, Weighing, expect_targets,
};
use super::matmul::MatMul;
use super::reduce::SumRows;
use super::*;
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::profile::MemoryKind;
use crate::shader;
use crate::tensor::{Device, Edge, Grads, common_device, no_grad, record, run_as, run_into};
use rayon::prelude::*;
use std::ops::Range;

/// Logits held at a time. Large enough that the matmuls with the weight run at full speed and that reading and writing
/// dweight once a chunk costs little beside them.
const CHUNK_BYTES: usize = 64 << 20;
/// The same where a device binds 2 GiB at once, and so is large and fast: each chunk costs it less than its launches.
const LARGE_CHUNK_BYTES: usize = 512 << 20;
/// The same on the CPU: they pass from one kernel to the next through the cache that all cores share, and leave most of
/// it to the weight and its gradient.
const CPU_CHUNK_BYTES: usize = 8 << 20;
/// Rows of a chunk even if the vocabulary is huge: with fewer the matmuls become slow.
const MIN_ROWS: usize = 128;
/// Rows that the tiles of matmuls divide.
const WHOLE_TILES: usize = 128;
/// So many that the columns up to a whole tile are 1.5% of all at most.
const MANY_CLASSES: usize = 64 * WHOLE_TILES;
/// Chunks start at as many rows as make this many bytes for every width: GPUs ask it of where bindings start.
const ALIGN_BYTES: usize = 256;

/// The gradients of h, weight and bias for a loss gradient of 1, as far as forward has computed them.
struct LinearCrossEntropy {
    dh: Option<Tensor>,
    /// Of the rows in each buffer of the weight; none if it needs none.
    dweight: Vec<WeightGradient>,
    dbias: Option<Tensor>,
    /// How many inputs the weight is.
    parts: usize,
}

/// dweight = the sum of all chunks but the last, if there are others, + dx^T h of the last chunk; only its first V rows
/// if dx has padding columns.
struct WeightGradient {
    others: Option<Tensor>,
    dx: Tensor,
    h: Tensor,
    vocab: usize,
}

impl WeightGradient {
    fn product(accumulate: bool) -> MatMul {
        MatMul { trans_a: true, accumulate, ..MatMul::default() }
    }

    /// Adds the gradient of a chunk to the others'.
    fn add(others: &mut Option<Tensor>, dx: &Tensor, h: &Tensor) -> Result<()> {
        match others {
            Some(sum) => run_into(&WeightGradient::product(true), &[dx, h], &[&*sum]),
            None => {
                let product = WeightGradient::product(false);
                *others = Some(run_as(MemoryKind::Gradients, &product, &[dx, h])?.remove(0));
                Ok(())
            }
        }
    }
}

impl Op for LinearCrossEntropy {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dloss) = &grad_output[0] else { return Ok(()) };
        let dloss = (!grads.unit_seed()).then_some(dloss);
        self.give(dloss, grads)
    }
}

impl LinearCrossEntropy {
    /// Accumulates the gradients of h, weight and bias, multiplied by the loss gradient if it is not 1.
    fn give(&self, dloss: Option<&Tensor>, grads: &mut Grads) -> Result<()> {
        let give = |grads: &mut Grads, i: usize, gradient: &Tensor| {
            let Some(dloss) = dloss else { return grads.accumulate(i, gradient.clone()) };
            let out = grads.dtype(i, gradient);
            grads.accumulate_with(i, &[dloss, gradient], |accumulate| ScaleBy { accumulate, out })
        };
        if let Some(dh) = &self.dh {
            give(grads, 0, dh)?;
        }
        if let Some(dbias) = &self.dbias {
            give(grads, 1 + self.parts, dbias)?;
        }
        for (i, WeightGradient { others, dx, h, vocab }) in (1..).zip(&self.dweight) {
            let mut others = others.clone();
            if dloss.is_none() && dx.shape().last_dim() == *vocab {
                others.take_if(|sum| grads.adopt(i, sum));
                grads.accumulate_with(i, &[dx, h], WeightGradient::product)?;
            } else {
                WeightGradient::add(&mut others, dx, h)?;
            }
            others.map_or(Ok(()), |sum| give(grads, i, &sum.rows(0, *vocab)))?;
        }
        Ok(())
    }
}

/// y = factor * x, or y += factor * x. Inputs: factor (), x.
pub(super) struct ScaleBy {
    pub accumulate: bool,
    /// The type of y.
    pub out: DType,
}

impl Kernel for ScaleBy {
    fn name(&self) -> &'static str {
        "scale_by"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(inputs[1].shape.clone(), self.out)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let cost = streaming_cost(outputs[0].shape.elements(), inputs, outputs);
        let read = if self.accumulate { outputs[0].size_bytes() as f64 } else { 0.0 };
        Cost { flops: cost.flops, bytes: cost.bytes + read }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (factor, x) = (inputs[0].f32()[0], inputs[1].f32());
        outputs[0].f32().par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| {
            for (y, x) in y.iter_mut().zip(x) {
                *y = if self.accumulate { *y + factor * x } else { factor * x };
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let elements = inputs[1].shape.elements();
        Plan::one(Launch {
            shader: shader!(linear_cross_entropy),
            values: vec![
                ("accumulate", self.accumulate.into()),
                ("T_in", inputs[1].dtype.name().into()),
                ("T_out", self.out.name().into()),
            ],
            buffers: vec![
                buffer("factor", "f32", Operand::Input(0)),
                buffer("x", inputs[1].dtype.wgsl(4), Operand::Input(1)),
                buffer("y", self.out.wgsl(4), Operand::Output(0)),
            ],
            params: vec![param("len", elements)],
            workgroups: elements.div_ceil(1024),
        })
    }
}

/// How many of `rows` rows make a chunk: as large as allowed, all nearly equal.
fn chunk_rows(rows: usize, vocab: usize, dtype: DType, device: &Device) -> usize {
    let align = ALIGN_BYTES / dtype.size_bytes();
    let row_bytes = dtype.size_bytes() * vocab;
    let bound = device.limits().binding_bytes as usize;
    let bytes = match device.is_gpu() {
        true => (bound / 4).next_multiple_of(1 << 20).clamp(CHUNK_BYTES, LARGE_CHUNK_BYTES),
        false => CPU_CHUNK_BYTES,
    };
    let most = (bytes / row_bytes).max(MIN_ROWS).min(bound / row_bytes);
    let whole = |align: usize| (most / align * align).max(align);
    // Several chunks are whole tiles of the matmuls: those that overhang take a tenth longer.
    let align = if rows > whole(align) && most >= WHOLE_TILES { align.max(WHOLE_TILES) } else { align };
    let most = whole(align);
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(align)
}

/// How many columns the logits have: V, or on a GPU as many more as make GEMMs fast, where nothing would have to be as
/// long: no bias and no class weights. Rows are whole vectors then, and long rows whole tiles.
fn columns(vocab: usize, has_bias: bool, weighing: Weighing, device: &Device) -> usize {
    if !device.is_gpu() || has_bias || weighing.weighted {
        return vocab;
    }
    match vocab {
        MANY_CLASSES.. => vocab.next_multiple_of(WHOLE_TILES),
        _ if vocab.is_multiple_of(4) => vocab,
        _ => vocab.next_multiple_of(8),
    }
}

/// Whether GEMMs take a quantized weight for each chunk: on a GPU its values take the memory of one GEMM then. Not if
/// the logits need padding columns; nor on the CPU, whose chunks are small.
fn is_read_in_chunks(weight: &Tensor) -> bool {
    weight.device().is_gpu() && weight.shape().first().is_some_and(|vocab| vocab.is_multiple_of(8))
}

impl Tensor {
    /// `count` rows of the first dimension from `start` on, as a view without history.
    ///
    /// # Panics
    /// If `start` is not at a multiple of 256 bytes, or the rows are out of range.
    pub fn rows(&self, start: usize, count: usize) -> Tensor {
        let row: usize = self.shape()[1..].iter().product();
        let shape = [&[count], &self.shape()[1..]].concat();
        let spec = Spec::new(shape, self.dtype());
        let storage = self.storage().slice(start * row * spec.dtype.size_bytes(), spec.size_bytes());
        Tensor::from_parts(spec, storage, Edge::None)
    }

    /// The mean cross-entropy () of the logits `self weight^T` against u32 `targets` (...), for this tensor (..., C)
    /// and `weight` (V, C): [`Tensor::cross_entropy`] without a tensor of all logits. Gradients, but not the loss, are
    /// multiplied by the first element of `loss_scale` (f32), if given.
    ///
    /// # Errors
    /// If shapes, types or the criterion do not fit, or there are no rows.
    pub fn linear_cross_entropy(
        &self,
        weight: &Tensor,
        targets: &Tensor,
        criterion: Criterion,
        loss_scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.linear_cross_entropy_with_bias(weight, None, targets, criterion, loss_scale)
    }

    /// [`Tensor::linear_cross_entropy`] of `h weight^T + bias`, with the f32 bias (V) if there is one.
    ///
    /// # Errors
    /// Those of [`Tensor::linear_cross_entropy`], and if the bias is not f32 (V).
    pub fn linear_cross_entropy_with_bias(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        targets: &Tensor,
        criterion: Criterion,
        loss_scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        let classifier = Classifier::new("linear_cross_entropy", self, (weight, bias), targets, criterion, loss_scale)?;
        mean_loss(&classifier, self, targets, loss_scale)
    }
}

/// A checked head, and how its logits are computed.
struct Classifier {
    weight: Tensor,
    bias: Option<Tensor>,
    weighing: Weighing,
    /// The inputs that follow the others of kernels.
    class_weights: Vec<Tensor>,
    /// Rows of logits that are computed at a time.
    chunk: usize,
    /// Columns of the logits.
    columns: usize,
    /// Rows of the weight that GEMMs take at a time, if not all: of one in several buffers those in each; of a
    /// quantized one those whose values are in memory.
    slice: Option<usize>,
}

impl Classifier {
    /// # Errors
    /// If shapes, types or the criterion do not fit `h` and `targets`, or there are no rows.
    fn new(
        op: &'static str,
        h: &Tensor,
        (weight, bias): (&Tensor, Option<&Tensor>),
        targets: &Tensor,
        criterion: Criterion,
        loss_scale: Option<&Tensor>,
    ) -> Result<Classifier> {
        weight.expect_leaf(op)?;
        let weight = match weight.dtype().is_quantized() && !is_read_in_chunks(weight) {
            true => weight.to_dtype(h.dtype())?,
            false => weight.clone(),
        };
        if !weight.dtype().is_quantized() {
            expect_dtype(op, h.dtype(), &[weight.spec()])?;
        }
        if h.dtype() == DType::U32 {
            expect_f32(op, &[h.spec()])?;
        }
        let (rows, width) = (h.shape().rows(), h.shape().last_dim());
        let vocab = match weight.shape()[..] {
            [vocab, c] if c == width && vocab > 0 && rows > 0 && !h.shape().is_empty() => vocab,
            _ => {
                let got = format!("{} and {}", h.spec(), weight.spec());
                return Err(shape_error(op, "h (..., C) with at least one row and weight (V, C)", got));
            }
        };
        expect_targets(op, rows, targets.spec())?;
        if let Some(bias) = bias {
            expect_f32(op, &[bias.spec()])?;
            if bias.shape()[..] != [vocab] {
                return Err(shape_error(op, format!("a bias ({vocab})"), bias.shape()));
            }
        }
        if let Some(scale) = loss_scale {
            expect_f32(op, &[scale.spec()])?;
            if scale.is_empty() {
                return Err(shape_error(op, "a loss scale", scale.spec()));
            }
        }
        let (weighing, class_weights) = criterion.prepare(op, vocab)?;
        let operands = [h, &weight, targets].into_iter().chain(bias).chain(loss_scale).chain(&class_weights);
        common_device(op, &operands.collect::<Vec<_>>())?;
        let slice = sliced::rows(&weight, h.dtype(), bias.is_some());
        let columns = match weight.dtype().is_quantized() || slice.is_some() {
            true => vocab,
            false => columns(vocab, bias.is_some(), weighing, &h.device()),
        };
        let chunk = match weight.dtype().is_quantized() && slice.is_some() {
            false => chunk_rows(rows, columns, h.dtype(), &h.device()),
            true => sliced::chunk_rows(rows, vocab, h.dtype()),
        };
        Ok(Classifier { weight, bias: bias.cloned(), weighing, class_weights, chunk, columns, slice })
    }

    /// The inputs that may need gradients: h, the weight by the rows in each of its buffers, and the bias.
    fn inputs(&self, h: &Tensor) -> Vec<Tensor> {
        let weight = self.weight.row_parts().into_iter().map(|(_, part)| part);
        std::iter::once(h.clone()).chain(weight).chain(self.bias.clone()).collect()
    }

    /// The weight with a row of zeros for each padding column of the logits (columns, C).
    fn padded_weight(&self) -> Result<Tensor> {
        match self.columns - self.weight.shape()[0] {
            0 => Ok(self.weight.clone()),
            padding => no_grad(|| self.weight.pad(&[(0, padding), (0, 0)], 0.0)),
        }
    }

    /// The logits of a chunk: h (R, C), padded weight (columns, C) -> (R, columns).
    fn logits(&self, h: &Tensor, padded: &Tensor) -> Result<Tensor> {
        if let Some(slice) = self.slice {
            return sliced::logits(h, &self.weight, self.bias.as_ref(), slice);
        }
        let product = MatMul { trans_b: true, bias: self.bias.is_some(), out: h.dtype(), ..MatMul::default() };
        let inputs: Vec<&Tensor> = [h, padded].into_iter().chain(&self.bias).collect();
        Ok(run_as(MemoryKind::Scratch, &product, &inputs)?.remove(0))
    }

    /// Writes the losses (R) of a chunk's logits (R, columns).
    fn row_losses(&self, logits: &Tensor, targets: &Tensor, losses: &Tensor) -> Result<()> {
        let spec = Spec::new([losses.len(), 2], DType::F32);
        let max_and_sum = Tensor::empty(spec, &losses.device(), MemoryKind::Scratch)?;
        let kernel = RowLosses { vocab: self.weight.shape()[0], weighing: self.weighing };
        run_into(&kernel, &with(&[logits, targets], &self.class_weights), &[losses, &max_and_sum])
    }

    /// Writes the losses (R) of a chunk, and dx in place of its logits (R, columns).
    fn row_losses_and_gradient(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        factors: &[Tensor],
        losses: &Tensor,
    ) -> Result<()> {
        let kernel = FusedSoftmaxCrossEntropy {
            vocab: self.weight.shape()[0],
            columns: self.columns,
            logits: logits.dtype(),
            weighing: self.weighing,
            rows: factors.len() == 1,
        };
        let inputs: Vec<&Tensor> = std::iter::once(targets).chain(factors).collect();
        run_into(&kernel, &with(&inputs, &self.class_weights), &[losses, logits])
    }

    /// Writes dh = dx weight of a chunk: dx (R, columns), padded weight (columns, C) -> dh (R, C).
    fn input_gradient(&self, dx: &Tensor, padded: &Tensor, dh: &Tensor) -> Result<()> {
        match self.slice {
            None => run_into(&MatMul { out: dh.dtype(), ..MatMul::default() }, &[dx, padded], &[dh]),
            Some(slice) => sliced::gradient(dx, &self.weight, slice, dh),
        }
    }
}

/// The mean loss of the rows.
fn mean_loss(classifier: &Classifier, h: &Tensor, targets: &Tensor, loss_scale: Option<&Tensor>) -> Result<Tensor> {
    let (Classifier { weight, bias, class_weights, .. }, device) = (classifier, h.device());
    let loss_scale = match loss_scale {
        Some(scale) => scale.clone(),
        None => Tensor::full(1.0, [1], &device)?,
    };
    let targets = targets.view(Shape::from([h.shape().rows()]), Edge::None); // (R)
    let valid = run_as(MemoryKind::Scratch, &CountValid, &with(&[&targets], class_weights))?.remove(0);
    let needs = [h.needs_grad(), weight.needs_grad(), bias.as_ref().is_some_and(Tensor::needs_grad)];
    let (losses, gradients) = in_chunks(classifier, h, &targets, needs, &[&valid, &loss_scale])?;
    let loss = run_as(MemoryKind::Scratch, &MeanLoss, &with(&[&losses, &targets], class_weights))?.remove(0);
    let inputs = classifier.inputs(h);
    Ok(record(Box::new(gradients), &inputs.iter().collect::<Vec<_>>(), vec![loss]).remove(0))
}

/// The loss of each row, and the gradients of those of h, weight and bias that need one: of the mean loss, whose number
/// of rows and loss scale are the factors, or of a sum of losses, with the factor of each row.
fn in_chunks(
    classifier: &Classifier,
    h: &Tensor,
    targets: &Tensor,
    [h_needs_grad, weight_needs_grad, bias_needs_grad]: [bool; 3],
    factors: &[&Tensor],
) -> Result<(Tensor, LinearCrossEntropy)> {
    let (rows, device) = (h.shape().rows(), h.device());
    let empty = |shape: &Shape, dtype, kind| Tensor::empty(Spec::new(shape.clone(), dtype), &device, kind);
    let dh = || empty(h.shape(), h.dtype(), MemoryKind::Gradients);
    let dh = h_needs_grad.then(dh).transpose()?;
    let parts: Vec<Range<usize>> = classifier.weight.row_parts().into_iter().map(|(rows, _)| rows).collect();
    let (mut others, mut dweight, mut dbias) = (vec![None; parts.len()], Vec::new(), None);

    let flat = |t: &Tensor| t.view(Shape::from([rows, t.len() / rows]), Edge::None);
    let (h_rows, dh_rows) = (flat(h), dh.as_ref().map(flat)); // (R, C)
    let losses = empty(&Shape::from([rows]), DType::F32, MemoryKind::Scratch)?;
    let padded = classifier.padded_weight()?;
    for start in (0..rows).step_by(classifier.chunk) {
        let count = classifier.chunk.min(rows - start);
        let (h, targets, losses) = (h_rows.rows(start, count), targets.rows(start, count), losses.rows(start, count));
        let logits = classifier.logits(&h, &padded)?; // (count, columns)
        if dh.is_none() && !weight_needs_grad && !bias_needs_grad {
            classifier.row_losses(&logits, &targets, &losses)?;
            continue;
        }
        let factors = match factors {
            [of_rows] => vec![of_rows.rows(start, count)],
            of_mean => of_mean.iter().copied().cloned().collect(),
        };
        classifier.row_losses_and_gradient(&logits, &targets, &factors, &losses)?;
        let dx = logits;
        if let Some(dh) = &dh_rows {
            classifier.input_gradient(&dx, &padded, &dh.rows(start, count))?;
        }
        if bias_needs_grad {
            add_rows(&mut dbias, &dx, classifier.weight.shape()[0])?;
        }
        if !weight_needs_grad {
            continue;
        }
        for (others, part) in others.iter_mut().zip(&parts) {
            let dx = if parts.len() == 1 { dx.clone() } else { no_grad(|| dx.narrow(1, part.start, part.len()))? };
            if start + count < rows {
                WeightGradient::add(others, &dx, &h)?;
            } else {
                dweight.push(WeightGradient { others: others.take(), dx, h: h.clone(), vocab: part.len() });
            }
        }
    }
    Ok((losses, LinearCrossEntropy { dh, dweight, dbias, parts: parts.len() }))
}

/// Adds the rows of dx (rows, columns), as far as the first `len` columns, to `sum` (len).
fn add_rows(sum: &mut Option<Tensor>, dx: &Tensor, len: usize) -> Result<()> {
    let sums = |accumulate| SumRows { accumulate, len, outputs: 1 };
    match sum {
        Some(sum) => run_into(&sums(true), &[dx], &[sum])?,
        None => *sum = Some(run_as(MemoryKind::Gradients, &sums(false), &[dx])?.remove(0)),
    }
    Ok(())
}

/// The inputs of a kernel, and those that follow them.
fn with<'a>(inputs: &[&'a Tensor], more: &'a [Tensor]) -> Vec<&'a Tensor> {
    inputs.iter().copied().chain(more).collect()
}

mod log_probs;
mod sliced;
#[cfg(test)]
mod tests;
