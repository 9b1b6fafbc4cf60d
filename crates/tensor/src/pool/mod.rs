//! Shared by all memory pools of the library: size classes, free lists, and their bounds.

mod blocks;
mod free_list;
mod size_class;

pub(crate) use blocks::Blocks;
pub(crate) use free_list::FreeList;
pub(crate) use size_class::size_class;
#[cfg(feature = "gpu")]
pub(crate) use size_class::{ALIGN, size_class_within};
