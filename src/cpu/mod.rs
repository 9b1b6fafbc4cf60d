//! The CPU's memory and threads. Kernels compute on plain slices and split their work with rayon.

mod buffer;
pub mod math;

pub use buffer::CpuSlice;

/// Elements per task: long enough to be worth a task, short enough to stay in the first-level cache.
pub const CHUNK: usize = 4096;

/// Sets how many threads CPU kernels use; 0 takes one per core. Only the first call has an effect.
pub fn set_threads(count: usize) {
    if rayon::ThreadPoolBuilder::new().num_threads(count).build_global().is_err() {
        tracing::debug!("the thread pool was already running");
    }
}

/// How many threads CPU kernels use.
pub fn threads() -> usize {
    rayon::current_num_threads()
}
