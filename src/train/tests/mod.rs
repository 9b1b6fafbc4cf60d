//! Whole runs within the crate, which see what an application does not.

mod families;
mod layerwise;
mod recompute;
mod steady_memory;
