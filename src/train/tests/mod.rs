//! Whole runs within the crate, which see what an application does not.

mod families;
mod layerwise;
mod preference;
mod recompute;
mod steady_memory;
