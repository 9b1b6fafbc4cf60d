//! Softmax of scores (..., Tq, Tk) over the keys that a mask leaves a query, whose shape is broadcast to that of the
//! scores.
//!
//! y_ij = e^(s_ij - m_i) / sum_k e^(s_ik - m_i) over the keys that take part, 0 for the others; s is x, or x plus the
//! mask, and a key whose s is -infinity takes no part. A query without any key has a row of zeros, not of NaN. dx is
//! that of any softmax, and so is the gradient of a mask that is added, before it is summed to its shape.

use super::dot_product::AttentionMask;
use super::*;
use crate::cpu::{map_and_sum, math, vectorized};
use crate::ops::axes::{Axis, axis_params, for_each_run};
use crate::ops::broadcast::{broadcast_axes, broadcast_shape};
use crate::ops::reduce::sum_to;
use crate::ops::softmax::SoftmaxBackward;
use crate::tensor::Grads;
use rayon::prelude::*;

/// What is done with the mask.
#[derive(Debug, Clone, Copy, PartialEq)]
enum MaskKind {
    None,
    /// Added to the scores.
    Additive,
    /// Keys take part where it is not 0.
    Keep,
}

/// Inputs: the scores, and the mask if there is one.
struct MaskedSoftmax {
    mask: MaskKind,
    /// Query i sees keys up to number i.
    causal: bool,
    mask_shape: Shape,
}

/// The score of what takes no part: what is lower counts as this, so that no infinity is subtracted from another.
const LOWEST: f32 = -3.4e38;

pub(super) fn masked_softmax(scores: &Tensor, mask: Option<AttentionMask>, causal: bool) -> Result<Tensor> {
    let (kind, mask) = match mask {
        None => (MaskKind::None, None),
        Some(AttentionMask::Additive(mask)) => (MaskKind::Additive, Some(mask.clone())),
        Some(AttentionMask::Keep(mask)) => (MaskKind::Keep, Some(mask.detach())),
    };
    let mask_shape = mask.as_ref().map(|mask| mask.shape().clone()).unwrap_or_default();
    let inputs: Vec<&Tensor> = [scores].into_iter().chain(&mask).collect();
    apply_one(MaskedSoftmax { mask: kind, causal, mask_shape }, &inputs)
}

impl MaskedSoftmax {
    /// How the rows of the mask are repeated to those of the scores.
    fn row_axes(&self, scores: &Shape) -> Vec<Axis<1>> {
        let rows = |shape: &Shape| Shape::from(&shape[..shape.len().saturating_sub(1)]);
        broadcast_axes(&rows(scores), [&rows(&self.mask_shape)])
    }

    /// How many keys a query sees of `keys`, by the number of its row.
    fn seen(&self, row: usize, queries: usize, keys: usize) -> usize {
        if self.causal { keys.min(row % queries + 1) } else { keys }
    }
}

impl Kernel for MaskedSoftmax {
    fn name(&self) -> &'static str {
        "masked_softmax"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), inputs)?;
        let scores = &inputs[0].shape;
        if self.mask != MaskKind::None && broadcast_shape(self.name(), [scores, &self.mask_shape])? != *scores {
            let expected = format!("a mask that broadcasts to {scores}");
            return Err(shape_error(self.name(), expected, &self.mask_shape));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // The mask's sum, maximum, subtraction, exponential, sum, product.
        streaming_cost(6 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let shape = &inputs[0].spec.shape;
        let keys = shape.last_dim();
        if shape.elements() == 0 {
            return;
        }
        let queries = shape[shape.len() - 2];
        let (x, mask) = (inputs[0].f32(), inputs.get(1).map(View::f32));
        let (axes, width) = (self.row_axes(shape), self.mask_shape.last_dim());
        outputs[0].f32().par_chunks_mut(keys).zip(x.par_chunks(keys)).enumerate().for_each(|(row, (y, x))| {
            let mut mask_row = 0;
            for_each_run(&axes, 0, row, &mut [()], |[place], _| mask_row = place * width);
            let seen = self.seen(row, queries, keys);
            let (y, unseen) = y.split_at_mut(seen);
            unseen.fill(0.0);
            y.copy_from_slice(&x[..seen]);
            if let Some(mask) = mask {
                let mask = &mask[mask_row..][..width];
                // A row of one is repeated.
                let of_key = |j: usize| if width == 1 { mask[0] } else { mask[j] };
                for (j, y) in y.iter_mut().enumerate() {
                    *y = match self.mask {
                        MaskKind::Keep if of_key(j) == 0.0 => LOWEST,
                        MaskKind::Keep | MaskKind::None => *y,
                        MaskKind::Additive => *y + of_key(j),
                    };
                }
            }
            vectorized(
                #[inline(always)]
                || normalize(y),
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let shape = &inputs[0].shape;
        if shape.elements() == 0 {
            return Plan::default();
        }
        let (rows, keys, queries) = (shape.rows(), shape.last_dim(), shape[shape.len() - 2]);
        // Four elements or more per thread.
        let lanes = keys.div_ceil(4).next_power_of_two().min(256);
        let axes = self.row_axes(shape);
        let mask = match self.mask {
            MaskKind::None => "",
            MaskKind::Additive => "add",
            MaskKind::Keep => "keep",
        };
        let mut buffers = vec![buffer("x", "f32", Operand::Input(0))];
        buffers.extend((!mask.is_empty()).then_some(buffer("mask_values", "f32", Operand::Input(1))));
        buffers.push(buffer("result", "f32", Operand::Output(0)));
        let width = self.mask_shape.last_dim();
        let sizes = [("rows", rows), ("n", keys), ("queries", queries), ("width", width)];
        let step = param("step", if width == 1 { 0usize } else { 1 });
        let sizes = sizes.map(|(name, size)| param(name, size)).into_iter().chain([step]);
        Plan::one(Launch {
            shader: shader!(masked_softmax),
            values: vec![
                ("lanes", (lanes as u32).into()),
                ("mask", mask.into()),
                ("causal", self.causal.into()),
                ("rank", axes.len().into()),
            ],
            buffers,
            params: sizes.chain(axis_params(&axes)).collect(),
            workgroups: rows.div_ceil(256 / lanes),
        })
    }
}

/// y = the softmax of the scores y of which those that are [`LOWEST`] or lower take no part.
#[inline(always)]
fn normalize(y: &mut [f32]) {
    let mut largest = LOWEST;
    for y in y.iter_mut() {
        *y = if *y < LOWEST { LOWEST } else { *y };
        largest = if *y > largest { *y } else { largest };
    }
    let sum = map_and_sum(
        y,
        #[inline(always)]
        |y| if y == LOWEST { 0.0 } else { math::exp(y - largest) },
    );
    let share = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    for y in y.iter_mut() {
        *y *= share;
    }
}

impl Op for MaskedSoftmax {
    fn saves(&self) -> Saves {
        Saves { inputs: &[], outputs: &[0] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let dx = grads.run_one(&SoftmaxBackward { log: false }, &[saved.output(0)?, dy])?;
        if self.mask != MaskKind::None && grads.needs_grad(1) {
            grads.accumulate(1, sum_to(dx.clone(), &self.mask_shape)?)?;
        }
        grads.accumulate(0, dx)
    }
}
