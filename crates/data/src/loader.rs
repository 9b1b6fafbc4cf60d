//! Batches of token windows for training.
//!
//! An epoch cuts the token stream into windows of `T = block_size` inputs, beginning at an offset drawn for that epoch,
//! so that windows do not start at the same places every time. The pieces before the offset and after the last whole
//! window are windows too, only shorter: they are padded with id 0 and [`IGNORE_INDEX`] targets. So every token that
//! has a successor is an input exactly once per epoch. The windows are shuffled, and batches run on across the end of
//! an epoch: no window is dropped. Of documents that are not one stream, the windows are rows of whole ones
//! (`rows.rs`), the same in every epoch.
//!
//! For models that carry a state from batch to batch, windows are not shuffled ([`Order::Continued`]).
//!
//! Offset and order depend on nothing but `(seed, epoch)`, so a loader started at any [`Position`] gives what an
//! uninterrupted one gives from there on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use super::continued::Continued;
use super::documents::Packing;
use super::random::SplitMix64;
use super::rows::{Row, Rows};
use super::tokens::Tokens;
use rustyflow_base::error::{Error, Result};

/// The target of a position that takes no part in the loss.
pub const IGNORE_INDEX: u32 = u32::MAX;

/// Batches made ahead of time. Making one copies `B * T` ids, which is far quicker than a training step, so a few
/// suffice to hide it.
const BATCHES_AHEAD: usize = 3;

/// Where a loader stands: the next window to hand out is number `window` of epoch `epoch`, both counted from 0.
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
    /// The token that follows each input, (B, T), row-major; [`IGNORE_INDEX`] where there is none.
    pub targets: Vec<u32>,
    /// Where in its row the document of each input begins, (B, T), row-major; `None` if rows are one text each.
    pub starts: Option<Vec<u32>>,
    /// Whether its rows do not go on where those of the batch before ended.
    pub begins: bool,
    /// Where the loader stands after this batch: start there to continue.
    pub position: Position,
}

/// In which order a text is handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Windows at random.
    Shuffled,
    /// Each row goes on where that of the batch before ended, until the epoch does ([`Continued`]).
    Continued,
}

/// An endless source of batches, made by a thread of its own that ends when the loader is dropped.
pub struct Loader {
    plan: Arc<Plan>,
    position: Position,
    /// `None` only while dropping: the thread ends when this end of the channel is gone.
    batches: Option<Receiver<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// A loader over `tokens` that begins at `start` (the default position for a new run).
    ///
    /// # Errors
    /// If there are fewer than 2 tokens, if a stream is shorter than one window and its target, if nothing of
    /// documents is to be predicted, or if a size is 0.
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

    /// Where it stands: the next batch is that of this position.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How many windows epoch number `epoch` has; it varies by one with the epoch's offset.
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

    /// Whether rows hold documents apart from each other.
    pub fn is_in_documents(&self) -> bool {
        matches!(self.plan.cut, Cut::Rows(_))
    }

    /// What a user should know of how documents became rows.
    pub fn note(&self) -> Option<String> {
        match &self.plan.cut {
            Cut::Stream { .. } | Cut::Continued(_) => None,
            Cut::Rows(rows) => Some(rows.note()),
        }
    }

    /// Epochs done at `position`, with the fraction of the current one.
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

/// What fixes how epochs are cut.
struct Plan {
    cut: Cut,
    block_size: usize,
    batch_size: usize,
    seed: u64,
}

/// What windows are cut from.
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
    /// The numbers of windows, counted from the start of the text; none where each goes on from another.
    order: Vec<u32>,
}

impl Epoch<'_> {
    /// The window that is handed out as number `place`; `None` at the epoch's end.
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
        Some(Row { ids, targets, starts: None })
    }
}

/// The body of the loader's thread: makes batches until nobody wants them.
fn produce(plan: &Plan, start: Position, sender: &SyncSender<Batch>) {
    let Position { mut epoch, mut window } = start;
    let mut order = plan.epoch(epoch);
    loop {
        let size = plan.batch_size * plan.block_size;
        let (mut ids, mut targets) = (Vec::with_capacity(size), Vec::with_capacity(size));
        let mut starts: Option<Vec<u32>> = None;
        let mut begins = !matches!(plan.cut, Cut::Continued(_)) || window == 0;
        for _ in 0..plan.batch_size {
            let row = order.window(window).unwrap_or_else(|| {
                epoch = epoch.wrapping_add(1);
                (window, begins) = (0, true);
                order = plan.epoch(epoch);
                order.window(window).expect("every epoch has a window")
            });
            ids.extend(row.ids);
            targets.extend(row.targets);
            if let Some(of_row) = row.starts {
                starts.get_or_insert_default().extend(of_row);
            }
            window += 1;
        }
        if sender.send(Batch { ids, targets, starts, begins, position: Position { epoch, window } }).is_err() {
            return;
        }
    }
}

/// Fails if no memory holds so many times the tokens of a batch.
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
mod tests {
    use super::*;

    /// Tokens 100, 101, ...: each value says where it stands.
    fn tokens(count: u32) -> Tokens {
        (100..100 + count).collect::<Vec<u32>>().into()
    }

    fn loader(count: u32, batch_size: usize, block_size: usize, seed: u64) -> Loader {
        Loader::new(tokens(count), Order::Shuffled, batch_size, block_size, seed, Position::default()).unwrap()
    }

    /// The (input, target) pairs of `windows` windows, without the ignored ones.
    fn pairs(loader: &mut Loader, windows: usize) -> Vec<(u32, u32)> {
        (0..windows)
            .flat_map(|_| {
                let batch = loader.next_batch();
                batch.ids.into_iter().zip(batch.targets)
            })
            .filter(|(_, target)| *target != IGNORE_INDEX)
            .collect()
    }

    #[test]
    fn every_pair_comes_exactly_once_per_epoch() {
        for count in [9, 16, 17, 100] {
            let mut loader = loader(count, 1, 8, 5);
            for epoch in 0..6 {
                let windows = loader.windows_in_epoch(epoch);
                let mut seen = pairs(&mut loader, windows);
                seen.sort_unstable();
                let expected: Vec<(u32, u32)> = (100..100 + count - 1).map(|t| (t, t + 1)).collect();
                assert_eq!(seen, expected, "{count} tokens, epoch {epoch}");
            }
        }
    }

    #[test]
    fn short_windows_are_padded_with_ignored_targets() {
        let mut loader = loader(12, 1, 8, 1);
        let mut padded = 0;
        for _ in 0..20 {
            let batch = loader.next_batch();
            let length = batch.targets.iter().position(|&t| t == IGNORE_INDEX).unwrap_or(8);
            padded += 8 - length;
            assert!(batch.ids[..length].iter().all(|&id| id >= 100));
            assert!(batch.ids[length..].iter().all(|&id| id == 0));
            assert!(batch.targets[length..].iter().all(|&t| t == IGNORE_INDEX));
        }
        assert!(padded > 0, "11 inputs in windows of 8 leave something to pad");
    }

    #[test]
    fn continued_rows_begin_anew_with_each_epoch_and_resume_anywhere() {
        let new = |start| Loader::new(tokens(50), Order::Continued, 4, 5, 1, start).unwrap();
        let mut loader = new(Position::default());
        assert_eq!((loader.windows_in_epoch(0), loader.batches_per_epoch()), (12, 3.0));
        let all: Vec<Batch> = (0..7).map(|_| loader.next_batch()).collect();
        assert_eq!(all.iter().map(|batch| batch.begins).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0].map(|i| i == 0));
        for (i, batch) in all.iter().enumerate() {
            assert_eq!(batch.ids, all[i % 3].ids, "every epoch is cut alike");
            if !batch.begins {
                let [last, first] = [&all[i - 1].targets[4..], &batch.ids[..]].map(|row| row.iter().step_by(5));
                // The last piece ends early.
                assert!(last.zip(first).take(3).all(|(target, id)| target == id));
            }
        }
        for done in 1..6 {
            assert_eq!(new(all[done].position).next_batch(), all[done + 1]);
        }
    }

    #[test]
    fn windows_start_elsewhere_in_each_epoch() {
        let loader = loader(1000, 1, 64, 3);
        let mut offsets: Vec<usize> = (0..8).map(|e| loader.plan.offset(&mut loader.plan.random(e))).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert!(offsets.len() >= 6, "{offsets:?}");
    }

    #[test]
    fn windows_come_in_random_order() {
        let mut loader = loader(1000, 4, 8, 3);
        let starts: Vec<u32> = (0..20).flat_map(|_| loader.next_batch().ids.into_iter().step_by(8)).collect();
        let rising = starts.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((20..60).contains(&rising), "{rising} of 79 steps go up");
    }

    #[test]
    fn the_same_seed_gives_the_same_batches() {
        let (mut left, mut right) = (loader(500, 3, 8, 7), loader(500, 3, 8, 7));
        for _ in 0..50 {
            assert_eq!(left.next_batch(), right.next_batch());
        }
    }

    #[test]
    fn two_seeds_give_different_batches() {
        assert_ne!(loader(500, 3, 8, 7).next_batch(), loader(500, 3, 8, 8).next_batch());
    }

    #[test]
    fn batches_run_across_the_end_of_an_epoch() {
        let mut loader = loader(30, 16, 8, 7);
        let batch = loader.next_batch();
        assert!(batch.position.epoch >= 2, "16 windows of 5 or fewer per epoch: {:?}", batch.position);
        assert_eq!(batch.ids.len(), 16 * 8);
    }

    #[test]
    fn starting_at_any_position_gives_what_the_uninterrupted_loader_gives() {
        let mut uninterrupted = loader(60, 3, 8, 11);
        let mut all = vec![];
        for _ in 0..20 {
            all.push(uninterrupted.next_batch());
        }
        for done in 0..all.len() - 1 {
            let mut resumed = Loader::new(tokens(60), Order::Shuffled, 3, 8, 11, all[done].position).unwrap();
            assert_eq!(resumed.next_batch(), all[done + 1], "after batch {done}");
        }
    }

    #[test]
    fn average_batches_per_epoch_is_that_of_the_epochs() {
        let loader = loader(1003, 4, 16, 2);
        let windows: usize = (0..4000).map(|epoch| loader.windows_in_epoch(epoch)).sum();
        let average = windows as f64 / 4000.0 / 4.0;
        // The count varies by one window, so the mean of 4000 is known to about 0.5 / sqrt(4000) windows.
        assert!((average - loader.batches_per_epoch()).abs() < 0.01, "{average} {}", loader.batches_per_epoch());
    }

    #[test]
    fn epochs_at_counts_fractions() {
        let loader = loader(1000, 1, 8, 2);
        let half = loader.windows_in_epoch(3) as u64 / 2;
        assert!((loader.epochs_at(Position { epoch: 3, window: half }) - 3.5).abs() < 0.01);
    }

    #[test]
    fn fewer_than_two_tokens_are_refused() {
        for count in [0, 1] {
            let error = Loader::new(tokens(count), Order::Shuffled, 1, 8, 0, Position::default()).err().unwrap();
            assert!(error.to_string().contains("at least 2"), "{error}");
        }
    }

    #[test]
    fn a_text_shorter_than_the_context_is_refused_with_both_lengths() {
        let error = Loader::new(tokens(8), Order::Shuffled, 1, 8, 0, Position::default()).err().unwrap().to_string();
        assert!(error.contains("8 tokens") && error.contains("at least 9") && error.contains("at most 7"), "{error}");
        assert!(Loader::new(tokens(9), Order::Shuffled, 1, 8, 0, Position::default()).is_ok());
    }

    #[test]
    fn a_position_outside_its_epoch_is_refused() {
        let start = Position { epoch: 0, window: 1000 };
        assert!(
            Loader::new(tokens(20), Order::Shuffled, 1, 8, 0, start).err().unwrap().to_string().contains("window 1000")
        );
    }

    #[test]
    fn sizes_of_zero_are_refused() {
        assert!(Loader::new(tokens(20), Order::Shuffled, 0, 8, 0, Position::default()).is_err());
        assert!(Loader::new(tokens(20), Order::Shuffled, 1, 0, 0, Position::default()).is_err());
    }
}
