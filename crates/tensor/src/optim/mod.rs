//! Optimizers over flat arenas: all parameters in one, all gradients in another, and so the moments. An update is one
//! launch per group of parameters, not one per tensor. An arena larger than the device's largest buffer is cut between
//! parameters into several buffers, with a launch each. Muon updates matrices, those of one shape in the same launches.

mod arena;
mod ema;
mod exchange;
mod group;
mod int8;
mod layerwise;
mod layout;
mod loss_scale;
mod muon;
mod newton_schulz;
mod offload;
mod optimizer;
mod schedule;
mod shard;
mod state;
#[cfg(feature = "testing")]
pub mod testing;
mod update;
mod values;

pub use arena::{ArenaOptions, ParameterArena};
pub use group::{Group, Kind};
pub use int8::MomentDtype;
pub use layerwise::LayerwiseStep;
pub use layout::{Entry, Segment};
pub use muon::AdjustLr;
pub use optimizer::{Optimizer, PreparedUpdate};
pub use schedule::{LearningRate, Schedule};
pub use shard::Division;
pub use shard::shards;
pub use state::{Moment, Moments, SavedMoments};
