//! Whole runs within the crate, which see what an application does not.

mod families;
mod recompute;
mod steady_memory;
