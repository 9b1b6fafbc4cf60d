//! One row: an op at one size, forward alone or with backward.

use super::SEED;
use crate::ops::inputs::{AROUND_ZERO, Values, draw};
use crate::tensor::{DType, no_grad};
use crate::{Device, Result, Tensor};
use std::rc::Rc;

/// Runs once all that a row measures, and returns what it computed.
pub(in crate::bench) type Work = Box<dyn FnMut() -> Result<Vec<Tensor>>>;

/// Makes the work on a device, with the same values on each.
type Prepare = Box<dyn Fn(&Device) -> Result<Work>>;

/// An op at one size.
pub struct Row {
    pub op: &'static str,
    pub shape: String,
    /// How far a GPU may be from the CPU: |difference| over root mean square + |value|.
    pub tolerance: f64,
    /// Whether it stores f16, which not every GPU can.
    pub f16: bool,
    pub(super) prepare: Prepare,
}

pub(super) type Inputs = Vec<(Vec<usize>, Values)>;
type Apply = Rc<dyn Fn(&[Tensor]) -> Result<Tensor>>;

impl Row {
    pub(in crate::bench) fn new(
        op: &'static str,
        shape: String,
        prepare: impl Fn(&Device) -> Result<Work> + 'static,
    ) -> Row {
        // The longest sums have 50,304 terms. In f32 and in any order their rounding errors are about 1e-7 sqrt(50304)
        // = 2e-5 of a typical sum; the largest of many millions is a few times that.
        Row { op, shape, tolerance: 1e-4, f16: false, prepare: Box::new(prepare) }
    }

    pub(in crate::bench) fn prepare(&self, device: &Device) -> Result<Work> {
        (self.prepare)(device)
    }

    /// Computes without recording anything.
    pub(super) fn forward(
        op: &'static str,
        shape: String,
        inputs: Inputs,
        apply: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) -> Row {
        let apply: Apply = Rc::new(apply);
        Row::new(op, shape, move |device| {
            let (inputs, apply) = (draw(&inputs, device, SEED)?, apply.clone());
            Ok(Box::new(move || Ok(vec![no_grad(|| apply(&inputs))?])))
        })
    }

    /// What only reads and writes: two tensors into one, and one into one.
    pub(in crate::bench) fn streams(elements: usize) -> Vec<Row> {
        let x = || (vec![elements], AROUND_ZERO);
        vec![
            Row::forward("add", format!("{elements}"), vec![x(), x()], |x| x[0].add(&x[1])),
            Row::forward("scale", format!("{elements}"), vec![x()], |x| x[0].scale(0.37)),
        ]
    }

    /// Computes forward and backward. Gradients of the inputs that are `parameters` are added in place, as in training;
    /// those of the others are written anew.
    pub(super) fn both(
        op: &'static str,
        shape: String,
        inputs: Inputs,
        parameters: &'static [usize],
        apply: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) -> Row {
        let apply: Apply = Rc::new(apply);
        Row::new(op, shape, move |device| {
            let leaf = |x: Tensor| if x.dtype() == DType::F32 { x.requires_grad() } else { Ok(x) };
            let leaves: Vec<Tensor> = draw(&inputs, device, SEED)?.into_iter().map(leaf).collect::<Result<_>>()?;
            let (apply, mut grad_output) = (apply.clone(), None);
            Ok(Box::new(move || {
                // What a view of a leaf is given goes through an addition of its own, of `AROUND_THE_OP`.
                let given = leaves.iter().enumerate().map(|(i, x)| match parameters.contains(&i) {
                    true => Ok(x.clone()),
                    false if x.dtype() == DType::F32 => x.reshape(x.shape().clone()),
                    false => Ok(x.clone()),
                });
                let y = apply(&given.collect::<Result<Vec<_>>>()?)?;
                let grad_output = match &grad_output {
                    Some(grad_output) => grad_output,
                    None => {
                        let like_y = [(y.shape().to_vec(), Values::Uniform(-1.0, 1.0))];
                        grad_output.insert(draw(&like_y, &y.device(), SEED + 1)?.remove(0))
                    }
                };
                y.backward_with(grad_output)?;
                Ok(std::iter::once(y).chain(leaves.iter().filter_map(|x| x.grad().cloned())).collect())
            }))
        })
    }
}
