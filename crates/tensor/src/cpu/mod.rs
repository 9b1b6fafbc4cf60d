//! The CPU's memory and threads. Kernels compute on plain slices and split their work with rayon.

mod buffer;
mod gemm;
mod lanes;
pub mod math;
mod panels;
mod pool;
mod scratch;
mod simd;
mod transpose;

pub use buffer::{CpuSlice, memory, reset_peak_memory};
pub use gemm::{Matrix, Tile, packed_tiles, product, tiles};
pub use lanes::{map_and_sum, maximum, minimum, product_of, sum_of};
pub use panels::{PANEL, Places, ROWS, pack_panel, packed_len, panel_product, panel_width};
pub use scratch::with_scratch;
pub use simd::vectorized;
pub use transpose::transpose;

use crate::profile::Profiler;

/// Elements per task: long enough to be worth a task, short enough to stay in the first-level cache.
pub const CHUNK: usize = 4096;

/// Sets how many threads CPU kernels use; 0 takes one per core. Only the first call has an effect, and only before
/// anything is computed or a model made. The calling thread is among them: it starts each kernel, and would otherwise
/// sleep until the others have done it.
pub fn set_threads(count: usize) {
    let count = if count == 0 { num_cpus::get() } else { count };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(count);
    // As the only one it would leave kernels that other threads start waiting for ever.
    let pool = if count > 1 { pool.use_current_thread() } else { pool };
    match pool.build_global() {
        Ok(()) if count == 1 => compute_here(),
        Ok(()) => {}
        Err(_) => tracing::debug!("the thread pool was already running"),
    }
}

/// Gives the calling thread a pool of its own in which it is the only one, so that it runs what it starts.
fn compute_here() {
    match rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build() {
        // It lasts as long as the thread.
        Ok(pool) => std::mem::forget(pool),
        Err(error) => tracing::debug!("kernels run on another thread: {error}"),
    }
}

/// Where CPU kernels book their times: one profile for the process, as there is one CPU.
pub fn profiler() -> &'static Profiler {
    static PROFILER: Profiler = Profiler::new();
    &PROFILER
}

/// How many threads CPU kernels use.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Memory that can be had without swapping, where the system says so in the way of Linux.
pub fn available_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;
    use std::thread;

    #[test]
    fn a_thread_with_a_pool_of_its_own_computes_alone() {
        let computed_here = || {
            let here = thread::current().id();
            (0..100).into_par_iter().map(|_| thread::current().id() == here).collect::<Vec<_>>()
        };
        let before_and_after = thread::spawn(move || {
            let before = computed_here();
            compute_here();
            (before, computed_here(), threads())
        });
        let (before, after, threads) = before_and_after.join().unwrap();
        assert_eq!((before, after, threads), (vec![false; 100], vec![true; 100], 1));
    }
}
