//! f32 values and moments in host memory (Ren et al. 2021, "ZeRO-Offload"), for layerwise updates in mixed precision.
//! The device has the f16 copies that matmuls read, and the f32 values that other kernels read.
//!
//! ```text
//! device   f16 weights | f32 biases, norms, embeddings | gradients of a segment
//!               ^                    ^                           |  as soon as they are complete
//!               +------------+-------+                           v
//! host          f32 weights, moments  <-  update on the CPU  <-  gradients
//! ```
//! The CPU updates a segment while the device computes the gradients of the next ones. The device reads the new values
//! in the next step: no kernel of this step that reads the old ones is recorded after they are written, because the
//! gradients of a weight are complete only once no node of the tape needs it.

use super::arena::ParameterArena;
use super::layerwise::LayerwiseStep;
use super::optimizer::{Optimizer, slice};
use crate::profile::{MemoryKind, Span};
use crate::tensor::{Readback, Spec};
use crate::{DType, Device, Result, Tensor};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;

/// The most segments whose gradients are on their way while backward goes on: enough that the device does not wait for
/// the CPU's update of one, few enough that the host's copies stay small.
const MOST_ARRIVING: usize = 4;

/// The numbers of segments whose gradients are on their way to the host, in the order of backward.
#[derive(Default)]
pub(super) struct Arriving(VecDeque<(usize, Readback)>);

impl ParameterArena {
    /// Whether f32 values and moments lie in host memory.
    pub fn is_offloaded(&self) -> bool {
        self.resident.is_some()
    }

    /// Where f32 values and moments lie, and updates are computed.
    pub fn optimizer_device(&self) -> Device {
        self.values.arena.device()
    }

    /// Host memory of gradients on their way, bytes, at most.
    #[doc(hidden)]
    pub fn arriving_bytes(&self) -> usize {
        let mut sizes: Vec<usize> = self.segments.iter().map(|s| size_of::<f32>() * s.range.len()).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        if self.is_offloaded() { sizes.iter().take(MOST_ARRIVING + 1).sum() } else { 0 }
    }

    /// The f16 copies, if they lie where updates are computed.
    pub(super) fn halves_beside(&self) -> Option<&Tensor> {
        self.halves.as_ref().filter(|_| !self.is_offloaded())
    }

    /// Writes the device's copies of the values in this range of the arena.
    pub(super) fn copy_to_device(&self, range: &Range<usize>) -> Result<()> {
        if let Some(halves) = &self.halves {
            slice(halves, range).take_values(&self.value(range)?)?;
        }
        let Some(resident) = &self.resident else { return Ok(()) };
        let mut read_in_f32 = resident.cut(range).into_iter().filter(|(_, is_resident)| *is_resident);
        read_in_f32.try_for_each(|(part, _)| resident.part(&part)?.take_values(&self.value(&part)?))
    }
}

impl Optimizer {
    /// Updates a segment, or, if its moments are on the host, sends its gradients there and updates those segments
    /// whose gradients have arrived.
    pub(super) fn update_where_moments_are(
        &self,
        parameters: &ParameterArena,
        i: usize,
        gradients: Tensor,
        step: &mut LayerwiseStep,
    ) -> Result<()> {
        if !parameters.is_offloaded() {
            return self.update_segment(parameters, i, &gradients, step);
        }
        let device = parameters.device();
        if !device.has_values() {
            let there = Tensor::empty(gradients.spec().clone(), &device.host(), MemoryKind::Gradients)?;
            return self.update_segment(parameters, i, &there, step);
        }
        step.arriving.0.push_back((i, gradients.read_later()?));
        // Its memory is free for the gradients that follow. The read is a submit of its own: waiting for it waits for
        // nothing that comes later.
        drop(gradients);
        device.submit()?;
        self.update_arrived(parameters, step, MOST_ARRIVING)
    }

    /// Updates the segments whose gradients have arrived, and waits for all but `most`.
    pub(super) fn update_arrived(
        &self,
        parameters: &ParameterArena,
        step: &mut LayerwiseStep,
        most: usize,
    ) -> Result<()> {
        while let Some((_, readback)) = step.arriving.0.front_mut() {
            if !readback.has_arrived()? && step.arriving.0.len() <= most {
                break;
            }
            let Some((i, readback)) = step.arriving.0.pop_front() else { break };
            let bytes = readback.wait()?;
            parameters.device().profiler().span(Span::Offload, || -> Result<()> {
                let gradients = on_host(&bytes)?;
                drop(bytes);
                self.update_segment(parameters, i, &gradients, step)?;
                parameters.copy_to_device(&self.states[i].segment.range)
            })?;
        }
        Ok(())
    }
}

/// A tensor of these f32, copied by all threads.
fn on_host(bytes: &[u8]) -> Result<Tensor> {
    const PART: usize = 1 << 16;
    let values: &[f32] = bytemuck::cast_slice(bytes);
    let tensor = Tensor::empty(Spec::new([values.len()], DType::F32), &Device::Cpu, MemoryKind::Gradients)?;
    tensor.fill_by(&|out| {
        let parts = out.par_chunks_mut(PART).zip(values.par_chunks(PART));
        parts.for_each(|(out, values)| out.copy_from_slice(values));
    })?;
    Ok(tensor)
}
