//! Batches of token windows for training.
//!
//! An epoch cuts the token stream into windows of `T = block_size` inputs, starting at a random offset per epoch, so
//! that windows vary. The parts before the offset and after the last full window are shorter windows, padded with id 0
//! and [`IGNORE_INDEX`] targets. Every token with a successor is therefore an input exactly once per epoch. Windows are
//! shuffled, and batches continue across epochs: no window is dropped. For packed documents, windows are rows of whole
//! documents (`rows.rs`), the same in every epoch.
//!
//! For recurrent models, windows are not shuffled ([`Order::Continued`]).
//!
//! Offset and order depend only on `(seed, epoch)`, so a loader started at any [`Position`] returns the same batches as
//! an uninterrupted one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use super::continued::Continued;
use super::documents::Packing;
use super::random::SplitMix64;
use super::rows::{Answer, Row, Rows};
use super::tokens::Tokens;
use rustyflow_base::error::{Error, Result};

/// The target of a position that is masked in the loss.
pub const IGNORE_INDEX: u32 = u32::MAX;

/// Batches made ahead of time. Making one copies `B * T` ids, which is far quicker than a training step, so a few
/// suffice to hide it.
const BATCHES_AHEAD: usize = 3;

/// Position of a loader: its next window is `window` of epoch `epoch`, both counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    pub epoch: u64,
    pub window: u64,
}

/// One training batch of `B` windows of `T` tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Inputs, (B, T), row-major.
    pub ids: Vec<u32>,
    /// The next token of each input, (B, T), row-major; [`IGNORE_INDEX`] if there is none.
    pub targets: Vec<u32>,
    /// Start of each input's document in its row, (B, T), row-major; `None` if a row is one text.
    pub starts: Option<Vec<u32>>,
    /// The documents with a label, with their places among all (B T).
    pub answers: Vec<Answer>,
    /// Whether its rows do not continue those of the previous batch.
    pub begins: bool,
    /// Position after this batch: start there to resume.
    pub position: Position,
}

/// Order of the windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Shuffled windows.
    Shuffled,
    /// Each row continues that of the previous batch, until the end of the epoch ([`Continued`]).
    Continued,
}

/// An endless source of batches, prepared by a thread that ends when the loader is dropped.
pub struct Loader {
    plan: Arc<Plan>,
    position: Position,
    /// `None` only while dropping: the thread ends when this end of the channel is gone.
    batches: Option<Receiver<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// A loader over `tokens` that starts at `start` (the default position for a new run).
    ///
    /// # Errors
    /// If there are fewer than 2 tokens, a stream is shorter than one window and its target, all document tokens are
    /// masked, or a size is 0.
    pub fn new(
        tokens: Tokens,
        order: Order,
        batch_size: usize,
        block_size: usize,
        seed: u64,
        start: Position,
    ) -> Result<Loader> {
        if batch_size == 0 || block_size == 0 {
            return Err(Error::Invalid(format!(
                "batch_size and block_size must be at least 1, got {batch_size} and {block_size}"
            )));
        }
        // As many ids, and as many targets, are in memory for several batches at once.
        check_memory(batch_size, block_size, 2 * BATCHES_AHEAD)?;
        check_length(tokens.len())?;
        let cut = match tokens.packing() {
            _ if order == Order::Continued => Cut::Continued(Continued::new(tokens, batch_size, block_size)?),
            Packing::Stream => Cut::Stream { inputs: tokens.len() - 1, tokens },
            _ => Cut::Rows(Rows::new(tokens, block_size)?),
        };
        if let Cut::Stream { tokens, .. } = &cut
            && tokens.len() <= block_size
        {
            return Err(Error::Invalid(format!(
                "the text has {} tokens, but a context (block_size) of {block_size} needs at least {}: \
                 use more text or set model.block_size to at most {}",
                tokens.len(),
                block_size + 1,
                tokens.len() - 1
            )));
        }
        let plan = Arc::new(Plan { cut, block_size, batch_size, seed });
        let most = plan.windows_at(0) as u64 + 1;
        if most > u64::from(u32::MAX) {
            return Err(Error::Invalid(format!(
                "the text has about {most} windows of model.block_size = {block_size} tokens, at most {} can be \
                 shuffled: set it higher",
                u32::MAX
            )));
        }
        // A position saved with other data or another block_size may lie past the end of its epoch.
        let windows = plan.windows_in_epoch(start.epoch);
        if start.window > windows as u64 {
            return Err(Error::Invalid(format!(
                "cannot start at window {} of epoch {}: that epoch has {windows} windows \
                 (the text, the tokenizer or block_size changed)",
                start.window, start.epoch
            )));
        }
        let (sender, batches) = sync_channel(BATCHES_AHEAD);
        let thread = std::thread::Builder::new()
            .name("loader".to_string())
            .spawn({
                let plan = plan.clone();
                move || produce(&plan, start, &sender)
            })
            .map_err(|error| Error::Invalid(format!("cannot start the loader's thread: {error}")))?;
        Ok(Loader { plan, position: start, batches: Some(batches), thread: Some(thread) })
    }

    /// The next batch; waits only if the thread has fallen behind.
    pub fn next_batch(&mut self) -> Batch {
        let batches = self.batches.as_ref().expect("the channel is taken away only by drop");
        let batch = batches.recv().expect("the thread ends only when the loader is dropped");
        self.position = batch.position;
        batch
    }

    /// The position of the next batch.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Number of windows of epoch `epoch`; it varies by one with the epoch's offset.
    pub fn windows_in_epoch(&self, epoch: u64) -> usize {
        self.plan.windows_in_epoch(epoch)
    }

    /// Batches per epoch on average over epochs.
    pub fn batches_per_epoch(&self) -> f64 {
        // Windows are the cells, T wide and with a uniformly random phase, that meet the n inputs: (n + T - 1) / T.
        let Plan { cut, block_size, batch_size, .. } = &*self.plan;
        let windows = match cut {
            Cut::Stream { inputs, .. } => (inputs + block_size - 1) as f64 / *block_size as f64,
            Cut::Rows(rows) => rows.len() as f64,
            Cut::Continued(text) => text.rows() as f64,
        };
        windows / *batch_size as f64
    }

    /// Whether rows hold separate documents.
    pub fn is_in_documents(&self) -> bool {
        matches!(self.plan.cut, Cut::Rows(_))
    }

    /// A note for the user on the packing of documents.
    pub fn note(&self) -> Option<String> {
        match &self.plan.cut {
            Cut::Stream { .. } | Cut::Continued(_) => None,
            Cut::Rows(rows) => Some(rows.note()),
        }
    }

    /// Epochs completed at `position`, with the fraction of the current one.
    pub fn epochs_at(&self, position: Position) -> f64 {
        position.epoch as f64 + position.window as f64 / self.windows_in_epoch(position.epoch) as f64
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Closing the channel first wakes a thread that is waiting to send, so the join cannot hang.
        drop(self.batches.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Parameters of the windows of an epoch.
struct Plan {
    cut: Cut,
    block_size: usize,
    batch_size: usize,
    seed: u64,
}

/// Source of the windows.
enum Cut {
    Stream {
        tokens: Tokens,
        /// Tokens that have a successor: one fewer than there are tokens.
        inputs: usize,
    },
    Rows(Rows),
    Continued(Continued),
}

impl Plan {
    /// The generator of an epoch. Its first number draws the offset, the following ones the order.
    fn random(&self, epoch: u64) -> SplitMix64 {
        // Mixing the seed before adding the epoch keeps (seed, epoch + 1) and (seed + 1, epoch) apart.
        SplitMix64(SplitMix64(self.seed).next().wrapping_add(epoch))
    }

    /// How many inputs come before the first whole window, below `block_size`.
    fn offset(&self, random: &mut SplitMix64) -> usize {
        random.below(self.block_size as u64) as usize
    }

    fn windows_at(&self, offset: usize) -> usize {
        match &self.cut {
            Cut::Stream { inputs, .. } => usize::from(offset > 0) + (inputs - offset).div_ceil(self.block_size),
            Cut::Rows(rows) => rows.len(),
            Cut::Continued(text) => text.rows(),
        }
    }

    fn windows_in_epoch(&self, epoch: u64) -> usize {
        self.windows_at(self.offset(&mut self.random(epoch)))
    }

    /// An epoch's windows in the order in which they are handed out.
    fn epoch(&self, epoch: u64) -> Epoch<'_> {
        let mut random = self.random(epoch);
        let offset = self.offset(&mut random);
        // Numbers of 4 bytes, and not ranges: of a corpus larger than memory there are millions.
        let mut order: Vec<u32> = match self.cut {
            Cut::Continued(_) => Vec::new(),
            _ => (0..self.windows_at(offset) as u32).collect(),
        };
        random.shuffle(&mut order);
        Epoch { plan: self, offset, order }
    }
}

/// The order of one epoch.
struct Epoch<'a> {
    plan: &'a Plan,
    offset: usize,
    /// Window indices in order; empty if rows continue.
    order: Vec<u32>,
}

impl Epoch<'_> {
    /// The `place`-th window; `None` at the end of the epoch.
    fn window(&self, place: u64) -> Option<Row> {
        let place = usize::try_from(place).ok()?;
        let number = || self.order.get(place).map(|number| *number as usize);
        let (tokens, inputs, number) = match &self.plan.cut {
            Cut::Continued(text) => return (place < text.rows()).then(|| text.row(place)),
            Cut::Rows(rows) => return number().map(|number| rows.row(number)),
            Cut::Stream { tokens, inputs } => (tokens, *inputs, number()?),
        };
        let block_size = self.plan.block_size;
        let (start, end) = if self.offset > 0 && number == 0 {
            (0, self.offset)
        } else {
            let start = self.offset + (number - usize::from(self.offset > 0)) * block_size;
            (start, (start + block_size).min(inputs))
        };
        let (mut ids, mut targets) = (vec![0; block_size], vec![IGNORE_INDEX; block_size]);
        tokens.copy(start, &mut ids[..end - start]);
        tokens.copy_targets(start + 1, &mut targets[..end - start]);
        Some(Row { ids, targets, starts: None, answers: vec![] })
    }
}

/// The body of the loader's thread: makes batches until nobody wants them.
fn produce(plan: &Plan, start: Position, sender: &SyncSender<Batch>) {
    let Position { mut epoch, mut window } = start;
    let mut order = plan.epoch(epoch);
    loop {
        let size = plan.batch_size * plan.block_size;
        let (mut ids, mut targets) = (Vec::with_capacity(size), Vec::with_capacity(size));
        let (mut starts, mut answers): (Option<Vec<u32>>, _) = (None, vec![]);
        let mut begins = !matches!(plan.cut, Cut::Continued(_)) || window == 0;
        for _ in 0..plan.batch_size {
            let row = order.window(window).unwrap_or_else(|| {
                epoch = epoch.wrapping_add(1);
                (window, begins) = (0, true);
                order = plan.epoch(epoch);
                order.window(window).expect("every epoch has a window")
            });
            answers.extend(row.answers.into_iter().map(|answer| answer.from(ids.len())));
            ids.extend(row.ids);
            targets.extend(row.targets);
            if let Some(of_row) = row.starts {
                starts.get_or_insert_default().extend(of_row);
            }
            window += 1;
        }
        if sender.send(Batch { ids, targets, starts, answers, begins, position: Position { epoch, window } }).is_err() {
            return;
        }
    }
}

/// An error if a batch cannot fit in memory.
pub(super) fn check_memory(batch_size: usize, block_size: usize, times: usize) -> Result<()> {
    let ids = batch_size.checked_mul(block_size).and_then(|ids| ids.checked_mul(times));
    if ids.is_none_or(|ids| Vec::<u32>::new().try_reserve_exact(ids).is_err()) {
        return Err(Error::Invalid(format!("no memory holds batches of {batch_size} x {block_size} tokens")));
    }
    Ok(())
}

pub(super) fn check_length(tokens: usize) -> Result<()> {
    if tokens < 2 {
        return Err(Error::Invalid(format!(
            "the text has {tokens} token(s), but at least 2 are needed: one to read and one to predict"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
