//! Memory of gradients that are used up in backward: those of neighbouring parameters share a bucket, which is
//! allocated for the first and can be taken as soon as all are complete.
//!
//! A gradient is complete when no node of the tape is left that its leaf was an input of, and some have added to it. A
//! recomputed segment records its nodes twice; those of the first run, which are dropped, add nothing.

use super::{DType, Device, Spec, Tensor};
use crate::profile::MemoryKind;
use crate::{Error, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The gradients of some parameters, one after the other in f32.
pub(crate) struct GradientBucket {
    len: usize,
    device: Device,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    memory: Option<Tensor>,
    members: Vec<Member>,
    /// Whether the sums of this step were taken.
    taken: bool,
}

/// One of the gradients.
#[derive(Default, Clone)]
struct Member {
    /// Elements from the start of the bucket.
    start: usize,
    len: usize,
    /// Nodes on the tape that its leaf is an input of.
    uses: usize,
    /// Whether something was added to it in this step.
    written: bool,
}

impl Member {
    fn is_complete(&self) -> bool {
        self.written && self.uses == 0
    }
}

impl GradientBucket {
    /// Of so many elements in all, without gradients yet.
    pub fn new(len: usize, device: &Device) -> GradientBucket {
        GradientBucket { len, device: device.clone(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a gradient of `len` elements at `start`, and returns its number.
    pub(super) fn add_member(&self, start: usize, len: usize) -> usize {
        let mut state = self.state();
        state.members.push(Member { start, len, ..Member::default() });
        state.members.len() - 1
    }

    pub(super) fn count_use(&self, member: usize) {
        self.state().members[member].uses += 1;
    }

    pub(super) fn end_use(&self, member: usize) {
        self.state().members[member].uses -= 1;
    }

    pub(super) fn is_written(&self, member: usize) -> bool {
        self.state().members[member].written
    }

    pub(super) fn set_written(&self, member: usize, written: bool) {
        self.state().members[member].written = written;
    }

    /// The memory of the bucket, allocated if it has none.
    ///
    /// # Errors
    /// If the device runs out of memory, or the sums of this step were taken before.
    pub(super) fn memory(&self) -> Result<Tensor> {
        let mut state = self.state();
        if state.taken {
            let text =
                "a weight got a gradient after its layerwise update, as one does that several recomputed segments use";
            return Err(Error::Autograd(text.into()));
        }
        if let Some(memory) = &state.memory {
            return Ok(memory.clone());
        }
        let memory = Tensor::empty(Spec::new([self.len], DType::F32), &self.device, MemoryKind::Gradients)?;
        // Padding between gradients must be zero.
        if state.members.iter().map(|member| member.len).sum::<usize>() < self.len {
            memory.fill_zero();
        }
        state.memory = Some(memory.clone());
        Ok(memory)
    }

    /// Lets this tensor be the memory of the bucket, if it has none and the gradient is its only one: true if so.
    pub(super) fn adopt(&self, gradient: &Tensor) -> bool {
        let mut state = self.state();
        let is_free = !state.taken && state.memory.is_none() && state.members.len() == 1;
        if !is_free || gradient.len() != self.len || gradient.dtype() != DType::F32 {
            return false;
        }
        state.memory = Some(gradient.slice_flat(0, [self.len].into()));
        state.members[0].written = true;
        true
    }

    /// Takes the sums if all gradients are complete.
    pub fn take_complete(&self) -> Option<Tensor> {
        let mut state = self.state();
        if state.taken || !state.members.iter().all(Member::is_complete) {
            return None;
        }
        state.taken = true;
        state.memory.take()
    }

    /// Takes the sums that were not taken in this step, complete or not.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn take_rest(&self) -> Result<Option<Tensor>> {
        if self.state().taken {
            return Ok(None);
        }
        let memory = self.memory()?;
        let mut state = self.state();
        state.taken = true;
        state.memory = None;
        for Member { start, len, .. } in state.members.iter().filter(|member| !member.written) {
            memory.slice_flat(*start, [*len].into()).fill_zero();
        }
        Ok(Some(memory))
    }

    /// Before a step: nothing was added.
    pub fn reset(&self) {
        let mut state = self.state();
        state.members.iter_mut().for_each(|member| member.written = false);
        (state.memory, state.taken) = (None, false);
    }
}
