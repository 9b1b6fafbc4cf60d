//! Optimizers over flat arenas: all parameters in one buffer, all gradients in another, and so the moments, so that an
//! update is one launch however many tensors a model has; or one for each group of parameters that are updated alike.
//! Muon updates matrices, those of one shape in the same launches.

mod arena;
mod ema;
mod exchange;
mod layout;
mod loss_scale;
mod muon;
mod newton_schulz;
mod optimizer;
mod schedule;
mod shard;
mod state;
#[cfg(feature = "testing")]
pub mod testing;
mod update;
mod values;

pub use arena::ParameterArena;
pub use layout::{Entry, Segment};
pub use muon::AdjustLr;
pub use optimizer::PreparedUpdate;
pub use optimizer::{Group, Kind, Optimizer};
pub use schedule::{LearningRate, Schedule};
pub use shard::Division;
pub use shard::shards;
pub use state::{Moment, Moments, SavedMoments};
