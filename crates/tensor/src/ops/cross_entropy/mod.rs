//! Cross-entropy of logits against target ids, averaged over the rows that have a target.
//! Shapes: logits (..., V), targets (...) -> loss ().
//!
//! ```text
//! m_r = max_j x_rj    s_r = sum_j exp(x_rj - m_r)
//! loss = 1/n sum_r (m_r - x_r[t_r] + log s_r)    dx_rj = (exp(x_rj - m_r) / s_r - [j = t_r]) / n * dloss
//! ```
//! (m and s stay apart, because m + log s would drown log s in the rounding of a large m,) over the n rows whose target
//! is not [`IGNORED`]; with n = 0 the loss and the gradient are 0. An invalid target (not below V and not `IGNORED`)
//! makes the loss and its row of the gradient NaN: nothing is read out of bounds, and the mistake shows in the first
//! step.
//!
//! With label smoothing e or class weights w (V; default ones) of sum S ([`Criterion`]):
//! ```text
//! own_r = (1 - e) w[t_r]    share = e / V    total_r = own_r + share S    n = sum_r w[t_r]
//! loss = 1/n sum_r (total_r (m_r - x_r[t_r] + log s_r) + share sum_j w_j (x_r[t_r] - x_rj))
//! dx_rj = (total_r exp(x_rj - m_r) / s_r - own_r [j = t_r] - share w_j) / n * dloss
//! ```
//! which is PyTorch's `label_smoothing` and `weight`. Differences from the target's logit keep precision when all
//! logits are far from 0. If all targets have weight 0, loss and gradient are 0.

mod criterion;
mod rows;

pub use criterion::Criterion;
pub(super) use criterion::Weighing;

use super::*;
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::{Grads, Shape};
use rows::{Classes, classify, count_valid, gradients, mean_loss, over_valid, row_losses};

/// The target id of a row that is left out of the loss, like PyTorch's `ignore_index`.
pub const IGNORED: u32 = u32::MAX;

// If classes are weighted, the inputs of all these kernels end in the class weights (V) and their sum ().

/// Outputs: loss (), max_and_sum (rows, 2) of m and s, n (). Inputs: logits (..., V), targets (...).
struct CrossEntropy {
    weighing: Weighing,
}

/// dlogits (..., V). Inputs: logits, targets, max_and_sum, n, dloss; of `rows` whose losses are not averaged, dlosses
/// (rows) in place of the last two.
struct CrossEntropyBackward {
    weighing: Weighing,
    rows: bool,
}

/// n (): how many rows have a target, or the sum of the targets' weights. Input: targets.
pub(super) struct CountValid;

/// Losses (rows) and max_and_sum (rows, 2). Inputs: logits (rows, V or more columns), targets (rows).
pub(super) struct RowLosses {
    /// V: further columns of the logits are padding.
    pub vocab: usize,
    pub weighing: Weighing,
}

/// Losses (rows), and loss_scale * dlogits / dloss in place of the logits (rows, columns), which are the second output,
/// read and overwritten. Inputs: targets (rows), n, and loss_scale (1); of rows whose losses are not averaged, what
/// each gradient is multiplied by (rows) in place of the last two.
pub(super) struct FusedSoftmaxCrossEntropy {
    pub vocab: usize,
    /// V plus padding columns, whose gradient is 0.
    pub columns: usize,
    /// The type of the logits.
    pub logits: DType,
    pub weighing: Weighing,
    /// Whether losses are not averaged.
    pub rows: bool,
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

/// Threads per workgroup, some or all of which share a row.
const THREADS: usize = 256;

/// A pass of the shader over rows of logits, with up to `most` threads for a row; `weights` says which input the class
/// weights are, if there are any.
struct RowPass {
    pass: &'static str,
    most: usize,
    rows: usize,
    vocab: usize,
    /// Of a row of logits: as many as classes, or with some that are none up to a whole vector.
    columns: usize,
    logits: DType,
    weighing: Weighing,
    weights: usize,
}

impl RowPass {
    fn launch(self, operands: &[(&'static str, Operand)]) -> Launch {
        let RowPass { pass, most, rows, vocab, columns, logits, weighing, weights } = self;
        let Weighing { smoothing, weighted } = weighing;
        let (vector, padded) = (columns.is_multiple_of(4), columns > vocab);
        debug_assert!(!padded || vector && !weighted, "{columns} columns of {vocab} classes");
        let steps = if vector { columns / 4 } else { columns };
        // About four elements a thread at least: a row of 65 would waste most of a workgroup.
        let lanes = steps.div_ceil(4).next_power_of_two().clamp(8, most);
        let threads = lanes.max(THREADS);
        let values = vec![
            ("pass", pass.into()),
            ("T", logits.name().into()),
            ("vector", vector.into()),
            ("padded", padded.into()),
            ("lanes", lanes.into()),
            ("threads", threads.into()),
            ("weighted", weighted.into()),
            ("smoothing", (smoothing > 0.0).into()),
        ];
        let element = |name| match name {
            "targets" => "u32",
            "max_and_sum" => "vec2<f32>",
            "logits" | "dlogits" => logits.wgsl(if vector { 4 } else { 1 }),
            "class_weights" if vector => "vec4<f32>",
            _ => "f32",
        };
        let class_weights = weighted.then_some(("class_weights", Operand::Input(weights)));
        let weight_sum = (weighted && smoothing > 0.0).then_some(("weight_sum", Operand::Input(weights + 1)));
        let operands = operands.iter().copied().chain(class_weights).chain(weight_sum);
        let buffers = operands.map(|(name, operand)| buffer(name, element(name), operand)).collect();
        let mut params = vec![
            param("rows", rows),
            param("vocab", vocab),
            // As bits, because a WGSL constant may not be a NaN.
            param("nan", f32::NAN.to_bits()),
        ];
        params.extend(padded.then(|| param("columns", columns)));
        if !weighing.is_plain() {
            let (kept, share) = weighing.shares(vocab);
            params.extend([param("kept", kept), param("share", share)]);
        }
        let workgroups = (rows * lanes).div_ceil(threads);
        Launch { shader: shader!(cross_entropy), values, buffers, params, workgroups }
    }
}

/// A pass of one workgroup over what there is of each row: "count" or "mean". `class_weights` are (vocab).
fn over_rows(
    pass: &'static str,
    rows: usize,
    operands: &[(&'static str, Operand)],
    class_weights: Option<(Operand, usize)>,
) -> Launch {
    let element = |name| if name == "targets" { "u32" } else { "f32" };
    let weighted = class_weights.is_some();
    let (weights, vocab) = class_weights.unzip();
    let weights = weights.map(|operand| ("class_weights", operand));
    let operands = operands.iter().copied().chain(weights);
    let buffers = operands.map(|(name, operand)| buffer(name, element(name), operand)).collect();
    let params = [param("rows", rows)].into_iter().chain(vocab.map(|vocab| param("vocab", vocab))).collect();
    let values = vec![("pass", pass.into()), ("weighted", weighted.into())];
    Launch { shader: shader!(cross_entropy), values, buffers, params, workgroups: 1 }
}

/// The class weights as an operand of such a pass, and their number, if this input is there.
fn weights_operand(inputs: &[&Spec], i: usize) -> Option<(Operand, usize)> {
    inputs.get(i).map(|weights| (Operand::Input(i), weights.shape.elements()))
}

/// How rows are weighed on the CPU; `None` for the plain loss.
fn classes<'a>(weighing: Weighing, inputs: &[View<'a>]) -> Option<Classes<'a>> {
    (!weighing.is_plain()).then(|| Classes::new(weighing, inputs))
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
        let classes = classes(self.weighing, &inputs[2..]);
        let vocab = inputs[0].spec.shape.last_dim();
        row_losses(inputs[0].f32(), vocab, targets, &mut losses, max_and_sum.f32(), classes);
        valid.f32()[0] = count_valid(targets, inputs.get(2).map(View::f32));
        loss.f32()[0] = mean_loss(&losses, valid.f32()[0], self.weighing.weighted);
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output, ReadScratch, Scratch};
        let (rows, vocab) = (inputs[0].shape.rows(), inputs[0].shape.last_dim());
        let (logits, targets) = (("logits", Input(0)), ("targets", Input(1)));
        let rows_of = [logits, targets, ("losses", Scratch(0)), ("max_and_sum", Output(1))];
        let mean_of = [("losses", ReadScratch(0)), targets, ("loss", Output(0)), ("valid", Output(2))];
        let (logits, weighing) = (DType::F32, self.weighing);
        let pass = RowPass { pass: "rows", most: THREADS, rows, vocab, columns: vocab, logits, weighing, weights: 2 };
        Plan {
            scratch: vec![4 * rows], // losses
            launches: vec![pass.launch(&rows_of), over_rows("mean", rows, &mean_of, weights_operand(inputs, 2))],
        }
    }
}

impl Op for CrossEntropy {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1, 2, 3], outputs: &[1, 2] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dloss) = &grad_output[0] else { return Ok(()) };
        let mut inputs = vec![saved.input(0)?, saved.input(1)?, saved.output(1)?, saved.output(2)?, dloss];
        if self.weighing.weighted {
            inputs.extend([saved.input(2)?, saved.input(3)?]);
        }
        let kernel = CrossEntropyBackward { weighing: self.weighing, rows: false };
        grads.accumulate(0, grads.run_one(&kernel, &inputs)?)
    }
}

impl Op for RowLosses {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1, 2, 3], outputs: &[1] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dlosses) = &grad_output[0] else { return Ok(()) };
        let mut inputs = vec![saved.input(0)?, saved.input(1)?, saved.output(1)?, dlosses];
        if self.weighing.weighted {
            inputs.extend([saved.input(2)?, saved.input(3)?]);
        }
        let kernel = CrossEntropyBackward { weighing: self.weighing, rows: true };
        grads.accumulate(0, grads.run_one(&kernel, &inputs)?)
    }
}

impl Op for MeanLoss {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0], outputs: &[1] }
    }

    /// dloss / n for every row, 0 if n is.
    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dloss) = &grad_output[0] else { return Ok(()) };
        let valid = saved.output(1)?;
        let zero = Tensor::zeros(Shape::default(), DType::F32, &dloss.device())?;
        let each = valid.ne(&zero)?.where_cond(&dloss.div(valid)?, &zero)?;
        grads.accumulate(0, each.expand(saved.input(0)?.shape().clone())?)
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
        let [logits, targets, max_and_sum, others @ ..] = inputs else { unreachable!("four inputs or more") };
        let (logits, targets, max_and_sum) = (logits.f32(), targets.u32(), max_and_sum.f32());
        if self.rows {
            let (dlosses, classes) = (others[0].f32(), classes(self.weighing, &others[1..]));
            return gradients(logits, targets, max_and_sum, |row| dlosses[row], classes, &mut outputs[0]);
        }
        let [valid, dloss] = [0, 1].map(|i: usize| others[i].f32()[0]);
        let factor = over_valid(f64::from(dloss), valid, self.weighing.weighted) as f32;
        gradients(logits, targets, max_and_sum, |_| factor, classes(self.weighing, &others[2..]), &mut outputs[0]);
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let of_rows = [("logits", Input(0)), ("targets", Input(1)), ("max_and_sum", Input(2))];
        let (pass, weights, given) = match self.rows {
            true => ("backward of rows", 4, vec![("grad_output", Input(3))]),
            false => ("backward", 5, vec![("valid", Input(3)), ("grad_output", Input(4))]),
        };
        let operands = [&of_rows[..], &given, &[("dlogits", Output(0))]].concat();
        let (rows, vocab) = (inputs[0].shape.rows(), inputs[0].shape.last_dim());
        let (logits, weighing) = (DType::F32, self.weighing);
        let pass = RowPass { pass, most: THREADS, rows, vocab, columns: vocab, logits, weighing, weights };
        Plan::one(pass.launch(&operands))
    }
}

impl Kernel for CountValid {
    fn name(&self) -> &'static str {
        "count_targets"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_dtype(self.name(), DType::U32, &inputs[..1])?;
        Ok(vec![scalar()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(0, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        outputs[0].f32()[0] = count_valid(inputs[0].u32(), inputs.get(1).map(View::f32));
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let operands = [("targets", Operand::Input(0)), ("valid", Operand::Output(0))];
        Plan::one(over_rows("count", inputs[0].shape.elements(), &operands, weights_operand(inputs, 1)))
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
        let weights = inputs.get(2).map(View::f32);
        valid.f32()[0] = count_valid(inputs[1].u32(), weights);
        loss.f32()[0] = mean_loss(inputs[0].f32(), valid.f32()[0], weights.is_some());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let operands = [("losses", Input(0)), ("targets", Input(1)), ("loss", Output(0)), ("valid", Output(1))];
        Plan::one(over_rows("mean", inputs[0].shape.elements(), &operands, weights_operand(inputs, 2)))
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
        let classes = classes(self.weighing, &inputs[2..]);
        row_losses(inputs[0].f32(), self.vocab, inputs[1].u32(), losses.f32(), max_and_sum.f32(), classes);
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let (logits, targets) = (("logits", Input(0)), ("targets", Input(1)));
        let operands = [logits, targets, ("losses", Output(0)), ("max_and_sum", Output(1))];
        let (rows, columns) = (inputs[0].shape.rows(), inputs[0].shape.last_dim());
        let (logits, &RowLosses { vocab, weighing }) = (inputs[0].dtype, self);
        let pass = RowPass { pass: "rows", most: THREADS, rows, vocab, columns, logits, weighing, weights: 2 };
        Plan::one(pass.launch(&operands))
    }
}

impl Kernel for FusedSoftmaxCrossEntropy {
    fn name(&self) -> &'static str {
        "classifier"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let rows = inputs[0].shape.elements();
        expect_targets(self.name(), rows, inputs[0])?;
        Ok(vec![Spec::new([rows], DType::F32), Spec::new([rows, self.columns], self.logits)])
    }

    fn cost(&self, _: &[&Spec], outputs: &[&Spec]) -> Cost {
        let logits = outputs[1];
        Cost { flops: 8.0 * logits.shape.elements() as f64, bytes: 2.0 * logits.size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [losses, logits] = outputs else { unreachable!("two outputs") };
        let (shape, targets) = ([self.vocab, self.columns], inputs[0].u32());
        if self.rows {
            let (factors, classes) = (inputs[1].f32(), classes(self.weighing, &inputs[2..]));
            return classify(logits.f32(), shape, targets, losses.f32(), |row| factors[row], classes);
        }
        let scale = f64::from(inputs[2].f32()[0]);
        let factor = over_valid(scale, inputs[1].f32()[0], self.weighing.weighted) as f32;
        classify(logits.f32(), shape, targets, losses.f32(), |_| factor, classes(self.weighing, &inputs[3..]));
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        use Operand::{Input, Output};
        let (pass, weights, given) = match self.rows {
            true => ("classifier of rows", 2, vec![("factors", Input(1))]),
            false => ("classifier", 3, vec![("valid", Input(1)), ("loss_scale", Input(2))]),
        };
        let operands = [&[("targets", Input(0))][..], &given, &[("losses", Output(0)), ("logits", Output(1))]].concat();
        // A row is read twice. With as many threads to it as there can be, few rows are in work at once, and the second
        // time it comes from the cache.
        let most = 1 << limits.workgroup_threads.clamp(256, 1024).ilog2();
        let &FusedSoftmaxCrossEntropy { vocab, columns, logits, weighing, .. } = self;
        let rows = inputs[0].shape.elements();
        let pass = RowPass { pass, most, rows, vocab, columns, logits, weighing, weights };
        Plan::one(pass.launch(&operands))
    }
}

impl Tensor {
    /// The mean cross-entropy () of logits (..., V) against u32 `targets` (...), over the rows whose target is not
    /// [`IGNORED`]; 0 without such rows, NaN if a target is neither below V nor `IGNORED`.
    ///
    /// # Errors
    /// If the logits are not f32, the targets not u32, there are not as many targets as rows of logits, or the
    /// criterion does not fit.
    pub fn cross_entropy(&self, targets: &Tensor, criterion: Criterion) -> Result<Tensor> {
        let (weighing, weights) = criterion.prepare("cross_entropy", self.shape().last_dim())?;
        let inputs = [self, targets].into_iter().chain(&weights).collect::<Vec<_>>();
        apply_one(CrossEntropy { weighing }, &inputs)
    }
}
