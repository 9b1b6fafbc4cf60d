//! Cross-entropy of logits against target ids, averaged over the rows that have a target.
//! Shapes: logits (..., V), targets (...) -> loss ().
//!
//! ```text
//! m_r = max_j x_rj    s_r = sum_j exp(x_rj - m_r)
//! loss = 1/n sum_r (m_r - x_r[t_r] + log s_r)    dx_rj = (exp(x_rj - m_r) / s_r - [j = t_r]) / n * dloss
//! ```
//! (m and s stay apart, because m + log s would drown log s in the rounding of a large m,) over the n rows whose target
//! is not [`IGNORED`]; with n = 0 the loss and the gradient are 0. A target that is neither below V nor `IGNORED` makes
//! the loss and its row of the gradient NaN: nothing is read out of bounds, and the mistake shows in the first step.

use super::*;
use crate::cpu::{map_and_sum, math, maximum, sum_of, vectorized};
use crate::gpu::{Buffer, Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::{Grads, Shape};
use rayon::prelude::*;

/// The target of a row that has none.
pub const IGNORED: u32 = u32::MAX;

/// Outputs: loss (), max_and_sum (rows, 2) of m and s, n (). Inputs: logits (..., V), targets (...).
struct CrossEntropy;

/// dlogits (..., V). Inputs: logits, targets, max_and_sum, n, dloss.
struct CrossEntropyBackward;

/// n (): how many rows have a target. Input: targets.
pub(super) struct CountValid;

/// Losses (rows) and max_and_sum (rows, 2). Inputs: logits (rows, V), targets (rows).
pub(super) struct RowLosses;

/// Losses (rows), and loss_scale * dlogits / dloss in place of the logits (rows, V), which are the second output, read
/// and overwritten. Inputs: targets (rows), n, and loss_scale (1).
pub(super) struct FusedSoftmaxCrossEntropy {
    pub vocab: usize,
    /// The type of the logits.
    pub logits: DType,
}

/// loss (): the sum of losses (rows) over n; and n (). Inputs: losses, targets (rows).
pub(super) struct MeanLoss;

fn scalar() -> Spec {
    Spec::new(Shape::default(), DType::F32)
}

/// Fails unless `targets` are ids, one for each of `rows` rows.
pub(super) fn expect_targets(op: &'static str, rows: usize, targets: &Spec) -> Result<()> {
    expect_dtype(op, DType::U32, &[targets])?;
    if targets.shape.elements() != rows {
        return Err(shape_error(op, format!("a target for each of {rows} rows"), targets));
    }
    Ok(())
}

/// Threads of a workgroup, of which some or all share a row.
const THREADS: usize = 256;

/// A launch of the shader, with up to `most` threads for a row: `workgroups` is 1 for the passes over rows.
fn launch(
    most: usize,
    pass: &'static str,
    rows: usize,
    vocab: usize,
    logits: DType,
    operands: &[(&'static str, Operand)],
) -> Launch {
    let vector = vocab.is_multiple_of(4);
    let steps = if vector { vocab / 4 } else { vocab };
    // About four elements a thread at least: a row of 65 would waste most of a workgroup.
    let lanes = steps.div_ceil(4).next_power_of_two().clamp(8, most);
    let threads = lanes.max(THREADS);
    let (values, workgroups) = match pass {
        "count" | "mean" => (vec![("pass", pass.into()), ("T", logits.name().into())], 1),
        _ => {
            let values = vec![
                ("pass", pass.into()),
                ("T", logits.name().into()),
                ("vector", vector.into()),
                ("lanes", lanes.into()),
                ("threads", threads.into()),
            ];
            (values, (rows * lanes).div_ceil(threads))
        }
    };
    let element = |name| match name {
        "targets" => "u32",
        "max_and_sum" => "vec2<f32>",
        "logits" | "dlogits" => logits.wgsl(if vector { 4 } else { 1 }),
        _ => "f32",
    };
    let buffers: Vec<Buffer> = operands.iter().map(|&(name, operand)| buffer(name, element(name), operand)).collect();
    let params = vec![
        param("rows", rows),
        param("vocab", vocab),
        // As bits, because a WGSL constant may not be a NaN.
        param("nan", f32::NAN.to_bits()),
    ];
    Launch { shader: shader!("cross_entropy"), values, buffers, params, workgroups }
}

/// A row's m, which is finite even if all of the row is -infinity.
#[inline(always)]
fn finite_max(x: &[f32]) -> f32 {
    maximum(x).max(f32::MIN)
}

/// A row's m and s.
#[inline(always)]
fn max_and_sum_of(x: &[f32]) -> [f32; 2] {
    let row_max = finite_max(x);
    let sum = sum_of(
        [x],
        #[inline(always)]
        |[x]| math::exp(x - row_max),
    );
    [row_max, sum]
}

/// x = e^(x - m); m and s.
#[inline(always)]
fn exponentiate(x: &mut [f32]) -> [f32; 2] {
    let row_max = finite_max(x);
    let sum = map_and_sum(
        x,
        #[inline(always)]
        |x| math::exp(x - row_max),
    );
    [row_max, sum]
}

/// The loss of a row whose target has the logit `target_logit`, if there is such a logit.
fn row_loss(target_logit: Option<f32>, target: u32, [row_max, sum]: [f32; 2]) -> f32 {
    match (target, target_logit) {
        (IGNORED, _) => 0.0,
        (_, Some(x)) => row_max - x + sum.ln(),
        (_, None) => f32::NAN,
    }
}

/// x = (e / s - onehot) * factor, where x holds e = e^(x - m).
#[inline(always)]
fn row_gradient(x: &mut [f32], target: u32, sum: f32, factor: f32) {
    if target == IGNORED {
        return x.fill(0.0);
    }
    let factor = if (target as usize) < x.len() { factor } else { f32::NAN };
    let inv_sum = 1.0 / sum;
    let target_grad = x.get(target as usize).map(|e| (e * inv_sum - 1.0) * factor);
    for x in x.iter_mut() {
        *x = *x * inv_sum * factor;
    }
    if let (Some(x), Some(target_grad)) = (x.get_mut(target as usize), target_grad) {
        *x = target_grad;
    }
}

fn count_valid(targets: &[u32]) -> f32 {
    targets.iter().filter(|&&t| t != IGNORED).count() as f32
}

fn mean_loss(losses: &[f32], valid: f32) -> f32 {
    (losses.iter().map(|&x| f64::from(x)).sum::<f64>() / f64::from(valid.max(1.0))) as f32
}

fn row_losses(logits: &[f32], targets: &[u32], losses: &mut [f32], max_and_sum: &mut [f32]) {
    let vocab = logits.len() / targets.len().max(1);
    let rows = losses.par_iter_mut().zip(max_and_sum.par_chunks_mut(2)).zip(targets).enumerate();
    rows.with_min_len(CHUNK.div_ceil(vocab.max(1))).for_each(|(row, ((loss, max_and_sum), &target))| {
        let x = &logits[row * vocab..][..vocab];
        let of_row = vectorized(
            #[inline(always)]
            || max_and_sum_of(x),
        );
        *loss = row_loss(x.get(target as usize).copied(), target, of_row);
        max_and_sum.copy_from_slice(&of_row);
    });
}

impl Kernel for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), &inputs[..1])?;
        let logits = &inputs[0].shape;
        if logits.is_empty() || logits.last_dim() == 0 {
            return Err(shape_error(self.name(), "logits (..., V)", inputs[0]));
        }
        expect_targets(self.name(), logits.rows(), inputs[1])?;
        Ok(vec![scalar(), Spec::new([logits.rows(), 2], DType::F32), scalar()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(4 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [loss, max_and_sum, valid] = outputs else { unreachable!("three outputs") };
        let targets = inputs[1].u32();
        let mut losses = vec![0.0; targets.len()];
        row_losses(inputs[0].f32(), targets, &mut losses, max_and_sum.f32());
        valid.f32()[0] = count_valid(targets);
        loss.f32()[0] = mean_loss(&losses, valid.f32()[0]);
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output, ReadScratch, Scratch};
        let (rows, vocab) = (inputs[0].shape.rows(), inputs[0].shape.last_dim());
        let (logits, targets) = (("logits", Input(0)), ("targets", Input(1)));
        let rows_of = [logits, targets, ("losses", Scratch(0)), ("max_and_sum", Output(1))];
        let mean_of = [("losses", ReadScratch(0)), targets, ("loss", Output(0)), ("valid", Output(2))];
        Plan {
            scratch: vec![4 * rows], // losses
            launches: vec![
                launch(THREADS, "rows", rows, vocab, DType::F32, &rows_of),
                launch(THREADS, "mean", rows, vocab, DType::F32, &mean_of),
            ],
        }
    }
}

impl Op for CrossEntropy {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1], outputs: &[1, 2] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dloss) = &grad_output[0] else { return Ok(()) };
        let inputs = [saved.input(0), saved.input(1), saved.output(1), saved.output(2), dloss];
        grads.accumulate(0, grads.run_one(&CrossEntropyBackward, &inputs)?)
    }
}

impl Kernel for CrossEntropyBackward {
    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(4 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [logits, targets, max_and_sum, valid, dloss] = inputs else { unreachable!("five inputs") };
        let (targets, max_and_sum, vocab) = (targets.u32(), max_and_sum.f32(), logits.spec.shape.last_dim());
        let factor = dloss.f32()[0] / valid.f32()[0].max(1.0);
        let rows = outputs[0].f32().par_chunks_mut(vocab).zip(logits.f32().par_chunks(vocab)).enumerate();
        rows.with_min_len(CHUNK.div_ceil(vocab)).for_each(|(row, (dx, x))| {
            let (row_max, sum) = (max_and_sum[2 * row], max_and_sum[2 * row + 1]);
            vectorized(
                #[inline(always)]
                || {
                    for (dx, x) in dx.iter_mut().zip(x) {
                        *dx = math::exp(x - row_max);
                    }
                    row_gradient(dx, targets[row], sum, factor);
                },
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let operands = [
            ("logits", Input(0)),
            ("targets", Input(1)),
            ("max_and_sum", Input(2)),
            ("valid", Input(3)),
            ("grad_output", Input(4)),
            ("dlogits", Output(0)),
        ];
        let (rows, vocab) = (inputs[0].shape.rows(), inputs[0].shape.last_dim());
        Plan::one(launch(THREADS, "backward", rows, vocab, DType::F32, &operands))
    }
}

impl Kernel for CountValid {
    fn name(&self) -> &'static str {
        "count_targets"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_dtype(self.name(), DType::U32, inputs)?;
        Ok(vec![scalar()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(0, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        outputs[0].f32()[0] = count_valid(inputs[0].u32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let operands = [("targets", Operand::Input(0)), ("valid", Operand::Output(0))];
        Plan::one(launch(THREADS, "count", inputs[0].shape.elements(), 1, DType::F32, &operands))
    }
}

impl Kernel for MeanLoss {
    fn name(&self) -> &'static str {
        "mean_loss"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), &inputs[..1])?;
        expect_targets(self.name(), inputs[0].shape.elements(), inputs[1])?;
        Ok(vec![scalar(), scalar()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [loss, valid] = outputs else { unreachable!("two outputs") };
        valid.f32()[0] = count_valid(inputs[1].u32());
        loss.f32()[0] = mean_loss(inputs[0].f32(), valid.f32()[0]);
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let operands = [("losses", Input(0)), ("targets", Input(1)), ("loss", Output(0)), ("valid", Output(1))];
        Plan::one(launch(THREADS, "mean", inputs[0].shape.elements(), 1, DType::F32, &operands))
    }
}

impl Kernel for RowLosses {
    fn name(&self) -> &'static str {
        "row_losses"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let rows = inputs[0].shape.rows();
        expect_targets(self.name(), rows, inputs[1])?;
        Ok(vec![Spec::new([rows], DType::F32), Spec::new([rows, 2], DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(4 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [losses, max_and_sum] = outputs else { unreachable!("two outputs") };
        row_losses(inputs[0].f32(), inputs[1].u32(), losses.f32(), max_and_sum.f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let (logits, targets) = (("logits", Input(0)), ("targets", Input(1)));
        let operands = [logits, targets, ("losses", Output(0)), ("max_and_sum", Output(1))];
        let (rows, vocab) = (inputs[0].shape.rows(), inputs[0].shape.last_dim());
        Plan::one(launch(THREADS, "rows", rows, vocab, inputs[0].dtype, &operands))
    }
}

impl Kernel for FusedSoftmaxCrossEntropy {
    fn name(&self) -> &'static str {
        "classifier"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let rows = inputs[0].shape.elements();
        expect_targets(self.name(), rows, inputs[0])?;
        Ok(vec![Spec::new([rows], DType::F32), Spec::new([rows, self.vocab], self.logits)])
    }

    fn cost(&self, _: &[&Spec], outputs: &[&Spec]) -> Cost {
        let logits = outputs[1];
        Cost { flops: 8.0 * logits.shape.elements() as f64, bytes: 2.0 * logits.size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [losses, logits] = outputs else { unreachable!("two outputs") };
        let targets = inputs[0].u32();
        let factor = inputs[2].f32()[0] / inputs[1].f32()[0].max(1.0);
        let rows = logits.f32().par_chunks_mut(self.vocab).zip(losses.f32()).zip(targets);
        rows.with_min_len(CHUNK.div_ceil(self.vocab)).for_each(|((x, loss), &target)| {
            let target_logit = x.get(target as usize).copied();
            vectorized(
                #[inline(always)]
                || {
                    let max_and_sum = exponentiate(x);
                    *loss = row_loss(target_logit, target, max_and_sum);
                    row_gradient(x, target, max_and_sum[1], factor);
                },
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        use Operand::{Input, Output};
        let operands = [
            ("targets", Input(0)),
            ("valid", Input(1)),
            ("loss_scale", Input(2)),
            ("losses", Output(0)),
            ("logits", Output(1)),
        ];
        // A row is read twice. With as many threads to it as there can be, few rows are in work at once, and the second
        // time it comes from the cache.
        let most = 1 << limits.workgroup_threads.clamp(256, 1024).ilog2();
        Plan::one(launch(most, "classifier", inputs[0].shape.elements(), self.vocab, self.logits, &operands))
    }
}

impl Tensor {
    /// The mean cross-entropy () of logits (..., V) against u32 `targets` (...), over the rows whose target is not
    /// [`IGNORED`]; 0 if there is none, NaN if a target is neither below V nor `IGNORED`.
    ///
    /// # Errors
    /// If the logits are not f32, the targets not u32, or there are not as many targets as rows of logits.
    pub fn cross_entropy(&self, targets: &Tensor) -> Result<Tensor> {
        apply_one(CrossEntropy, &[self, targets])
    }
}
