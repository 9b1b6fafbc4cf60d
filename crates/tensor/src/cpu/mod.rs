//! CPU memory and threads. Kernels work on slices and split their work with rayon.

mod buffer;
mod dots;
mod gemm;
mod lanes;
pub mod math;
mod panels;
mod pool;
mod scratch;
mod simd;
mod transpose;

pub use buffer::{CpuSlice, memory, reset_peak_memory};
pub use dots::{BLOCK, Dots, Numbers, WithDots, with_dots};
pub use gemm::{Matrix, Tile, packed_tiles, product, tiles};
pub use lanes::{map_and_sum, maximum, minimum, product_of, sum_of};
pub use panels::{PANEL, Places, ROWS, pack_panel, packed_len, panel_product, panel_width};
pub use scratch::with_scratch;
pub use simd::vectorized;
pub use transpose::transpose;

use crate::profile::Profiler;

/// Elements per task: enough to amortize a task, few enough for the L1 cache.
pub const CHUNK: usize = 4096;

/// Sets the number of CPU kernel threads; 0 for one per core. Only the first call has an effect, and only before
/// anything is computed or a model is created. The calling thread is one of them, because it would otherwise idle
/// during kernels.
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

/// Runs the calling thread's kernels on that thread alone.
fn compute_here() {
    match rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build() {
        // It lasts as long as the thread.
        Ok(pool) => std::mem::forget(pool),
        Err(error) => tracing::debug!("kernels run on another thread: {error}"),
    }
}

/// The profiler of CPU kernels, one per process.
pub fn profiler() -> &'static Profiler {
    static PROFILER: Profiler = Profiler::new();
    &PROFILER
}

/// Number of CPU kernel threads.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Memory available without swapping, bytes; `None` where the system does not report it (only Linux does).
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
