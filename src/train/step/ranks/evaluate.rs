//! The validation loss on all ranks: windows are divided like the sequences of a step, so that no rank needs more
//! memory or waits longer than in training.

use crate::comm::Background;
use crate::data::{Row, Tokens, eval_windows};
use crate::tensor::Readback;
use crate::train::evaluation::evaluate::{Total, loss};
use crate::train::evaluation::preference::TOTALS;
use crate::train::step::replica::Replica;
use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Mean losses on their way from the device, and how many tokens each is of.
type Losses = Vec<(Readback, usize)>;

/// Collective call that sums the losses of all ranks in rank order; `None` if `stop` of rank 0 was set before the end.
///
/// # Errors
/// If the split has fewer than two tokens, a device reported an error, or a rank failed.
pub(super) fn evaluate(
    comm: &Background,
    replica: &Replica,
    validation: &Tokens,
    stop: &AtomicBool,
) -> Result<Option<Total>> {
    let (train, context) = (&replica.config.train, replica.config.model.block_size);
    let most = if train.eval_batches == 0 { usize::MAX } else { train.eval_batches.saturating_mul(train.batch_size) };
    let mut rows = eval_windows(validation, context, context)?.take(most);
    let (mut total, mut before) = (Total::default(), None);
    loop {
        let step: Vec<Row> = rows.by_ref().take(train.batch_size * train.grad_accum_steps).collect();
        // Others are computed while these are on their way.
        if let Some(before) = before.replace(losses(replica, &step)?)
            && !exchange(comm, before, replica.preference.is_some(), stop, &mut total)?
        {
            return Ok(None);
        }
        if step.is_empty() {
            return Ok(Some(total));
        }
    }
}

/// This rank's losses of a step's windows, of which there may be too few for all ranks.
fn losses(replica: &Replica, step: &[Row]) -> Result<Losses> {
    let mut losses = Losses::new();
    for piece in replica.share.pieces(replica.micro_batches) {
        let first = piece.batch * replica.config.train.batch_size;
        let [start, end] = [piece.rows.start, piece.rows.end].map(|row| (first + row).min(step.len()));
        if start < end {
            losses.push(loss(&*replica.model, &step[start..end], None, replica.preference.as_ref())?);
        }
    }
    Ok(losses)
}

/// Adds the losses of all ranks. False if rank 0 stops.
fn exchange(
    comm: &Background,
    own: Losses,
    of_preferences: bool,
    stop: &AtomicBool,
    total: &mut Total,
) -> Result<bool> {
    // Numbers of 32 bits, and a count of 64.
    let numbers = size_of::<f32>() * if of_preferences { TOTALS } else { 1 };
    let mut bytes = vec![u8::from(stop.load(Ordering::Relaxed))];
    for (loss, count) in own {
        bytes.extend_from_slice(&loss.wait()?);
        bytes.extend_from_slice(&(count as u64).to_le_bytes());
    }
    let all = comm.all_gather(bytes)?;
    for (rank, bytes) in all.iter().enumerate() {
        let wrong = || Error::Communication(format!("rank {rank} sent malformed losses"));
        let (_, entries) = bytes.split_first().ok_or_else(wrong)?;
        if !entries.len().is_multiple_of(numbers + 8) {
            return Err(wrong());
        }
        for entry in entries.chunks_exact(numbers + 8) {
            let (loss, count) = entry.split_at(numbers);
            total.add(loss, bytemuck::pod_read_unaligned::<u64>(count) as usize);
        }
    }
    Ok(all[0].starts_with(&[0]))
}
