//! `train.device_batch = "auto"`: divides the sequences of a step by the speed of the ranks.

use super::share::{Sequences, divided};
use crate::Result;
use crate::comm::Background;
use crate::train::step::replica::Replica;

/// Rounds of measuring: a GPU takes as long for few sequences as for one, so its speed depends on how many it has.
const ROUNDS: usize = 3;

/// All ranks time their parts of a step concurrently, first with about equal parts, then with those that the previous
/// round suggests. Returns the sequences of each rank, equal on all ranks.
///
/// # Errors
/// If a single sequence does not fit on a device, or a rank failed.
pub(super) fn measured(comm: &Background, replica: &mut Replica) -> Result<Vec<usize>> {
    let all = Sequences::new(&replica.config, replica.model.config().kind).divided();
    let mut parts = divided(&vec![1.0; comm.size()], all);
    for _ in 0..ROUNDS {
        let seconds = replica.seconds_of(parts[comm.rank()])?;
        let of_ranks = comm.all_gather(seconds.to_le_bytes().to_vec())?;
        let seconds = of_ranks.iter().map(|bytes| f64::from_le_bytes(bytes[..].try_into().unwrap_or([0; 8])));
        let speeds: Vec<f64> =
            parts.iter().zip(seconds).map(|(&part, seconds)| part as f64 / seconds.max(1e-6)).collect();
        parts = divided(&speeds, all);
    }
    Ok(parts)
}
