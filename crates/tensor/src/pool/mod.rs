//! What every memory pool of the library shares: its sizes, and the list of its free blocks.

mod free_list;
mod size_class;

pub(crate) use free_list::FreeList;
#[cfg(feature = "gpu")]
pub(crate) use size_class::ALIGN;
pub(crate) use size_class::size_class;
