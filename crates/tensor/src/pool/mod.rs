//! What every memory pool of the library shares: its sizes, the list of its free blocks, and their bound.

mod blocks;
mod free_list;
mod size_class;

pub(crate) use blocks::Blocks;
pub(crate) use free_list::FreeList;
#[cfg(feature = "gpu")]
pub(crate) use size_class::ALIGN;
pub(crate) use size_class::size_class;
