//! Updates while backward runs: the parameters of a segment are updated as soon as their gradients are complete, and
//! the memory of those is free for the next (Lv et al. 2023, "Full Parameter Fine-tuning for Large Language Models with
//! Limited Resources"; PyTorch's "optimizer step in backward"). Gradients then take the memory of a few segments.
//!
//! The norm of all gradients is not known before the last is there, so they are clipped by a bound n of it:
//!
//! ```text
//! n = max(norm of the step before, norm of the gradients of this step so far)
//! g <- g min(1, clip / (n + 1e-6))
//! ```
//! The norm of a step whose gradients are finite is kept for the next, and saved with the moments. Once a gradient is
//! not finite, the segments before it have been updated, those after it are not, and the step counts as skipped. In
//! mixed precision, the scale of the loss is adapted after the last segment.

use super::arena::ParameterArena;
use super::loss_scale::LossScale;
use super::muon::Workspace;
use super::offload::Arriving;
use super::optimizer::{Optimizer, Scope, sums_of_squares};
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::profile::{Cost, MemoryKind};
use crate::tensor::{DType, Kernel, Spec, View, ViewMut, run_into};
use crate::{Device, Error, Result, Tensor, shader};

/// What layerwise updates remember from step to step.
pub(super) struct Layerwise {
    /// The sum of the squared gradients of the last finite step, 0 before the first: (1).
    pub previous: Tensor,
}

impl Layerwise {
    pub fn new(device: &Device) -> Result<Layerwise> {
        let spec = Spec::new([1], DType::F32);
        let previous = Tensor::from_bytes_as(MemoryKind::OptimizerState, &[0; 4], spec, device)?;
        Ok(Layerwise { previous })
    }
}

/// A step that updates segments while backward runs.
pub struct LayerwiseStep {
    /// The sum of the squared gradients so far, times the square of the loss scale: (1).
    so_far: Tensor,
    /// Where the scale of the loss writes it without that.
    rescaled: Option<Tensor>,
    /// Of Muon, from its first segment on.
    workspace: Option<Workspace>,
    learning_rate: f64,
    /// Gradients on their way to the host.
    pub(super) arriving: Arriving,
    /// Whether a segment was updated, so that the step cannot be undone.
    has_updated: bool,
}

impl LayerwiseStep {
    pub fn has_updated(&self) -> bool {
        self.has_updated
    }
}

impl Optimizer {
    /// Whether its parameters are updated while backward runs.
    pub fn is_layerwise(&self) -> bool {
        self.layerwise.is_some()
    }

    /// Begins a step of layerwise updates.
    ///
    /// # Errors
    /// If the optimizer was made for other parameters, or the device runs out of memory.
    #[doc(hidden)]
    pub fn begin_layerwise(&self, parameters: &ParameterArena, learning_rate: f64) -> Result<LayerwiseStep> {
        self.expect_made_for(parameters)?;
        let device = parameters.optimizer_device();
        let so_far = Tensor::empty(Spec::new([1], DType::F32), &device, MemoryKind::Other)?;
        so_far.fill_zero();
        let rescaled = self.loss_scale.as_ref().map(|_| LossScale::output(&device)).transpose()?;
        let arriving = Arriving::default();
        Ok(LayerwiseStep { so_far, rescaled, workspace: None, learning_rate, arriving, has_updated: false })
    }

    /// Updates the segments whose gradients are complete.
    ///
    /// # Errors
    /// If the device runs out of memory, or the driver reported an error.
    #[doc(hidden)]
    pub fn update_complete(&self, parameters: &ParameterArena, step: &mut LayerwiseStep) -> Result<()> {
        for (i, bucket) in buckets(parameters)?.iter().enumerate() {
            if let Some(gradients) = bucket.take_complete() {
                self.update_where_moments_are(parameters, i, gradients, step)?;
            }
        }
        Ok(())
    }

    /// Updates the segments that are left when backward ends.
    ///
    /// # Errors
    /// Those of [`Optimizer::update_complete`].
    #[doc(hidden)]
    pub fn update_rest(&self, parameters: &ParameterArena, step: &mut LayerwiseStep) -> Result<()> {
        for (i, bucket) in buckets(parameters)?.iter().enumerate() {
            if let Some(gradients) = bucket.take_rest()? {
                self.update_where_moments_are(parameters, i, gradients, step)?;
            }
        }
        self.update_arrived(parameters, step, 0)
    }

    /// Ends a step. It allocates nothing but what copying the loss scale to another device takes. Returns what
    /// [`Optimizer::step`] does.
    ///
    /// # Errors
    /// If the device runs out of memory, or the driver reported an error.
    #[doc(hidden)]
    pub fn finish_layerwise(&mut self, step: LayerwiseStep) -> Result<Tensor> {
        self.steps += 1;
        let squares = match (&self.loss_scale, step.rescaled) {
            (Some(scale), Some(rescaled)) => {
                scale.step(&step.so_far, &rescaled)?;
                self.copy_loss_scale()?;
                rescaled
            }
            _ => step.so_far,
        };
        let previous = &self.remembered()?.previous;
        run_into(&Keep { mixed: self.loss_scale.is_some() }, &[&squares], &[previous, &self.skipped])?;
        Ok(squares)
    }

    fn remembered(&self) -> Result<&Layerwise> {
        self.layerwise.as_ref().ok_or_else(|| Error::Invalid(NOT_LAYERWISE.into()))
    }

    pub(super) fn update_segment(
        &self,
        parameters: &ParameterArena,
        i: usize,
        gradients: &Tensor,
        step: &mut LayerwiseStep,
    ) -> Result<()> {
        let previous = &self.remembered()?.previous;
        let range = &self.states[i].segment.range;
        let scope = Scope { gradients, start: range.start };
        let sums = sums_of_squares(parameters, range, &scope)?;
        let (mixed, device) = (self.loss_scale.is_some(), parameters.optimizer_device());
        let spec = Spec::new([1 + usize::from(mixed)], DType::F32);
        let squares = Tensor::empty(spec, &device, MemoryKind::Other)?;
        let scale = self.loss_scale.as_ref().map(|scale| &scale.state);
        let inputs: Vec<&Tensor> = [&sums, previous].into_iter().chain(scale).collect();
        run_into(&Bound { mixed }, &inputs, &[&step.so_far, &squares])?;
        if self.states[i].muon.is_some() && step.workspace.is_none() {
            step.workspace = Workspace::new(self.states.iter().filter_map(|state| state.muon.as_ref()), &device)?;
        }
        step.has_updated = true;
        let (number, learning_rate, workspace) = (self.steps + 1, step.learning_rate, step.workspace.as_ref());
        self.update_state(i, parameters, scope, (&squares, false), (number, learning_rate), workspace)
    }
}

const NOT_LAYERWISE: &str = "the optimizer was made for updates after backward";

fn buckets(parameters: &ParameterArena) -> Result<&[std::sync::Arc<crate::tensor::GradientBucket>]> {
    parameters.buckets().ok_or_else(|| Error::Invalid(NOT_LAYERWISE.into()))
}

/// Adds the sums of a segment to those so far, and writes what its gradients are clipped by. Inputs: sums (P), the sum
/// of the step before (1), and mixed the state of the loss scale (3). Outputs: the sum so far (1), changed in place;
/// the bound (1), and mixed what gradients are multiplied by: (2).
struct Bound {
    mixed: bool,
}

impl Kernel for Bound {
    fn name(&self) -> &'static str {
        "layerwise_norm"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok([1, 1 + usize::from(self.mixed)].map(|len| Spec::new([len], DType::F32)).to_vec())
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: 8.0 + inputs[0].shape.elements() as f64, bytes: 32.0 + inputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [so_far, squares] = outputs else { unreachable!("two outputs") };
        let total = so_far.f32()[0] + inputs[0].f32().iter().map(|&sum| f64::from(sum)).sum::<f64>() as f32;
        so_far.f32()[0] = total;
        let scale = if self.mixed { inputs[2].f32()[0] } else { 1.0 };
        let (unscale, squares) = (1.0 / scale, squares.f32());
        let finite = total.is_finite();
        // Not `max` of the two, which passes over NaN.
        squares[0] = if finite { inputs[1].f32()[0].max(total * unscale * unscale) } else { total };
        if let [_, factor] = squares {
            *factor = if !finite && scale > 1.0 { 0.0 } else { unscale };
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let mut buffers = vec![buffer("sums", "f32", Operand::Input(0)), buffer("previous", "f32", Operand::Input(1))];
        buffers.extend(self.mixed.then_some(buffer("scale", "f32", Operand::Input(2))));
        buffers.extend([buffer("so_far", "f32", Operand::Output(0)), buffer("squares", "f32", Operand::Output(1))]);
        Plan::one(Launch {
            shader: shader!(layerwise_norm),
            values: vec![("pass", "bound".into()), ("mixed", self.mixed.into())],
            buffers,
            params: vec![param("parts", inputs[0].shape.elements())],
            workgroups: 1,
        })
    }
}

/// Keeps the norm of a step for the next if it is finite, else counts the step as skipped, unless the scale of the loss
/// does. Input: the sum of the squared gradients (1), mixed with what they were multiplied by (2). Outputs, changed in
/// place: the sum of the step before (1), the count (1) of u32.
struct Keep {
    mixed: bool,
}

impl Kernel for Keep {
    fn name(&self) -> &'static str {
        "layerwise_norm"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok([DType::F32, DType::U32].map(|dtype| Spec::new([1], dtype)).to_vec())
    }

    fn cost(&self, _: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: 1.0, bytes: 16.0 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [previous, skipped] = outputs else { unreachable!("two outputs") };
        let squares = inputs[0].f32();
        if squares[0].is_finite() {
            previous.f32()[0] = squares[0];
        } else if !self.mixed || squares[1] != 0.0 {
            skipped.u32()[0] += 1;
        }
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        Plan::one(Launch {
            shader: shader!(layerwise_norm),
            values: vec![("pass", "keep".into()), ("mixed", self.mixed.into())],
            buffers: vec![
                buffer("squares", "f32", Operand::Input(0)),
                buffer("previous", "f32", Operand::Output(0)),
                buffer("skipped", "u32", Operand::Output(1)),
            ],
            params: vec![],
            workgroups: 1,
        })
    }
}

#[cfg(test)]
mod tests;
