//! What the machine of a rank takes to exchange gradients, without a network.

use super::measure_copies;
use crate::comm::{Communicator, Encoded, ThreadComm, Wire, threads};
use crate::{Device, Result};
use std::time::Instant;

/// Seconds that a byte of f32 takes from the device to the host, in a sum over two ranks, the fastest of a few rounds,
/// and back.
///
/// # Errors
/// Those of [`measure_copies`].
pub fn measure_exchange(device: &Device) -> Result<f64> {
    const VALUES: usize = 1 << 22;
    const ROUNDS: usize = 5;
    let bytes = (size_of::<f32>() * VALUES) as f64;
    let ranks = threads(2, None, &[])?;
    let sums = std::thread::scope(|scope| {
        let rank = |mut comm: ThreadComm| {
            scope.spawn(move || {
                let (values, mut best) = (Encoded::new(vec![1.0; VALUES], Wire::F32), f64::INFINITY);
                for _ in 0..ROUNDS {
                    let started = Instant::now();
                    comm.all_reduce(values.clone())?;
                    best = best.min(started.elapsed().as_secs_f64());
                }
                Ok(best)
            })
        };
        let ranks: Vec<_> = ranks.into_iter().map(rank).collect();
        let ended = ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        ended.collect::<Result<Vec<f64>>>()
    })?;
    let [up, down] = measure_copies(device)?;
    Ok(sums.into_iter().fold(0.0, f64::max) / bytes + 1e-9 / up + 1e-9 / down)
}
