//! Optimizers over flat arenas: all parameters in one buffer, all gradients in another, and so the moments, so that an
//! update is one launch however many tensors a model has.

mod arena;
mod loss_scale;
mod schedule;
mod state;
#[cfg(test)]
mod testing;
mod update;

pub use arena::{Entry, ParameterArena};
pub use schedule::{LearningRate, Schedule};
pub use state::Moments;
pub use update::{Kind, Optimizer};
