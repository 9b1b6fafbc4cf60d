//! Sums the gradients of all ranks, bucket by bucket, while backward still computes others.
//!
//! A bucket is a range of the arena of gradients. In the first update each rank counts the kernels of its last backward
//! pass that write to each bucket; from then on a bucket is complete when as many have run, and goes its way:
//!
//! ```text
//! the rank's thread         records and submits a copy to the host, and goes on with backward
//! the communicator's        waits for the copy, sums it with those of the other ranks
//! the writer's              waits for the sums, writes them to the arena
//! ```
//! Of two ranks the communicator's hands over what the other has, and the writer's adds it on the device.
//!
//! The rows of the token embeddings that a step reads are sent apart, after all buckets (`token_rows.rs`).
//!
//! All ranks send their buckets in the order in which rank 0 completed them first, and sums are in the order of the
//! ranks, so that the result does not depend on timing.
//!
//! An attempt at an update is the same calls on all ranks, whatever becomes of it:
//!
//! ```text
//! buckets, in their order | rows of the token embeddings | loss | vote
//! ```
//! A rank that runs out of memory sends zeros for the rest, waits until everything is written, and votes against the
//! update. Then no rank updates: all compute the step again and overwrite the sums. Before the first update, the order
//! is unknown; ranks vote when they agree on it, before sending anything.

use super::EXCHANGED;
use super::ballot::Ballot;
use super::token_rows::{StepRows, TokenRows};
use super::writer::{Turn, Writer};
use crate::comm::{Encoded, Wire};
use crate::optim::{Optimizer, ParameterArena};
use crate::step::GradientSync;
use crate::tensor::{Readback, with_hook};
use crate::{Device, Error, Result, Tensor};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Buckets that are submitted together. A GPU stops for a tenth of a millisecond at the end of each submit, and for
/// four tenths if a copy waits for it.
const GROUP: usize = 4;

/// Parameters of a rank's part that are sent at a time.
const PIECE: usize = 1 << 21;

/// The gradients of one rank of several.
pub(super) struct DataParallel {
    ballot: Ballot,
    /// The buckets, in the order in which they are sent; `None` before the first update.
    order: Option<Vec<usize>>,
    state: Rc<RefCell<State>>,
    writer: Writer,
    rows: Option<TokenRows>,
    /// Pending transfers of this attempt besides buckets: pieces of the rows, and the loss.
    rows_sent: usize,
    loss_sent: bool,
}

/// State of the buckets in a backward pass.
#[derive(Default)]
struct State {
    /// Each bucket's part of the arena.
    buckets: Vec<Tensor>,
    /// Kernels that write to each bucket in the last backward pass; `None` before a pass of that size was counted. Then
    /// all buckets are sent after it.
    expected: Option<Vec<usize>>,
    /// Those that have run, and the number of the last.
    written: Vec<usize>,
    last: Vec<usize>,
    kernels: usize,
    /// How many are on their way: the first of the order.
    sent: usize,
    error: Option<Error>,
}

impl DataParallel {
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(ballot: Ballot, wire: Wire, rows: Option<TokenRows>) -> Result<DataParallel> {
        let writer = Writer::start(ballot.comm.clone(), wire)?;
        let state = Rc::default();
        Ok(DataParallel { ballot, order: None, state, writer, rows, rows_sent: 0, loss_sent: false })
    }

    /// Gives this rank's part of the parameters to the others, and takes theirs: piece by piece, one of which is copied
    /// from the device while others are sent and written. Where the device has no memory to copy all pieces at once,
    /// the others wait until some are sent.
    fn gather_parts(&mut self, parameters: &ParameterArena, parts: &[Range<usize>]) -> Result<()> {
        let pieces = parts.iter().map(|part| parameters.exchanged(part, PIECE));
        let pieces = pieces.collect::<Result<Vec<Vec<Tensor>>>>()?;
        let rank = self.ballot.comm.rank();
        let (mut unread, device) = (&pieces[rank][..], parameters.values().device());
        let mut own = begin_reads(&mut unread, &device)?;
        let started = Instant::now();
        for i in 0..pieces.iter().map(Vec::len).max().unwrap_or_default() {
            if own.is_empty() && !unread.is_empty() {
                // What the pieces before were copied to is free then.
                self.writer.finish()?;
                own = begin_reads(&mut unread, &device)?;
            }
            let read = own.pop_front();
            let all = self.ballot.comm.begin_all_gather(move || match read {
                Some(read) => Ok(Arc::new(read.wait()?)),
                None => Ok(Arc::new(Vec::new())),
            });
            let others = pieces.iter().enumerate().filter(|(of, _)| *of != rank);
            let others: Vec<(usize, Tensor)> = others.filter_map(|(of, p)| Some((of, p.get(i)?.clone()))).collect();
            self.writer.write_later(all, move |all| others.iter().try_for_each(|(of, to)| to.write_bytes(&all[*of])));
        }
        self.writer.finish()?;
        self.ballot.add_waited(started);
        Ok(())
    }

    /// Cuts the arena into buckets, once.
    fn prepare(&self, parameters: &ParameterArena) -> Result<()> {
        let mut state = self.state.borrow_mut();
        if state.buckets.is_empty() {
            let arena = parameters.gradients()?;
            let whole = || std::iter::once(0..arena.len()).collect();
            let parts = self.rows.as_ref().map_or_else(whole, |rows| rows.others(arena.len()));
            let buckets = parts.iter().flat_map(|part| parameters.in_buffers(part, EXCHANGED));
            state.buckets = buckets.map(|Range { start, end }| arena.slice_flat(start, [end - start].into())).collect();
        }
        let count = state.buckets.len();
        (state.written, state.last, state.kernels) = (vec![0; count], vec![0; count], 0);
        Ok(())
    }

    /// After the first backward pass: takes the order in which rank 0 completed its buckets. False, and no order, if
    /// the pass failed on some rank, such as this one if it `failed`.
    fn agree(&mut self, failed: bool) -> Result<bool> {
        let state = self.state.borrow();
        let mut order: Vec<usize> = (0..state.buckets.len()).collect();
        order.sort_by_key(|&bucket| (state.last[bucket], bucket));
        let count = order.len() as u64;
        let own = std::iter::once(count).chain(order.into_iter().map(|bucket| bucket as u64));
        let own: Vec<u64> = own.filter(|_| !failed).collect();
        let all = self.ballot.comm.all_gather(bytemuck::cast_slice(&own).into())?;
        let all: Vec<Vec<u64>> = all.iter().map(|words| bytemuck::pod_collect_to_vec(words)).collect();
        if all.iter().any(Vec::is_empty) {
            return Ok(false);
        }
        if let Some(rank) = all.iter().position(|words| words.len() != own.len()) {
            let (own, theirs) = (count, all[rank].len() - 1);
            return Err(Error::Communication(format!("{own} buckets of gradients here, {theirs} on rank {rank}")));
        }
        self.order = Some(all[0][1..].iter().map(|&bucket| bucket as usize).collect());
        Ok(true)
    }
}

impl State {
    /// Counts a kernel's outputs; sends complete buckets.
    fn look(&mut self, order: Option<&[usize]>, outputs: &[&Tensor], writer: &Writer) {
        self.kernels += 1;
        let sent = order.map_or(&[][..], |order| &order[..self.sent]);
        for (i, bucket) in self.buckets.iter().enumerate() {
            if !outputs.iter().any(|output| output.overlaps(bucket)) {
                continue;
            }
            self.written[i] += 1;
            self.last[i] = self.kernels;
            if sent.contains(&i) && self.expected.as_ref().is_some_and(|expected| self.written[i] > expected[i]) {
                let text = "a gradient was completed later than in the first update: train.batch_size or the text \
                            changes what backward computes; report this";
                self.error.get_or_insert(Error::Communication(text.into()));
            }
        }
        let (Some(order), Some(expected), None) = (order, &self.expected, &self.error) else { return };
        let is_complete = |&&bucket: &&usize| self.written[bucket] >= expected[bucket];
        let complete = order[self.sent..].iter().take_while(is_complete).count();
        if complete > 0 {
            self.error = self.send(order, complete, writer).err();
        }
    }

    /// Lets the next buckets go their way. Never waits.
    fn send(&mut self, order: &[usize], count: usize, writer: &Writer) -> Result<()> {
        for &bucket in &order[self.sent..][..count] {
            // Nothing is computed beside the last.
            let turn = if self.sent + 1 == order.len() { Turn::Last } else { Turn::Among };
            writer.sum(&self.buckets[bucket], turn)?;
            self.sent += 1;
            if is_due(self.sent, order.len()) {
                self.buckets[bucket].device().submit()?;
            }
        }
        Ok(())
    }
}

/// Begins to copy tensors of this device to the host, as many as there is memory for, and leaves the others.
///
/// # Errors
/// If there is no memory for the first, or the driver reported an error.
fn begin_reads(tensors: &mut &[Tensor], device: &Device) -> Result<VecDeque<Readback>> {
    let mut reads = VecDeque::new();
    while let [tensor, rest @ ..] = *tensors {
        match tensor.read_by_copy_queue(tensor.dtype()) {
            Ok((_, read)) => reads.push_back(read),
            Err(Error::OutOfMemory { .. }) if !reads.is_empty() => break,
            Err(error) => return Err(error),
        }
        *tensors = rest;
    }
    device.submit()?;
    Ok(reads)
}

/// Whether what is recorded is to be submitted after so many buckets. The last two go alone: for them all wait.
fn is_due(sent: usize, of: usize) -> bool {
    sent + 2 > of || sent.is_multiple_of(GROUP)
}

impl GradientSync for DataParallel {
    fn begin(&mut self, ids: &[&[u32]]) -> Result<()> {
        let mut state = self.state.borrow_mut();
        (state.sent, state.error) = (0, None);
        (self.rows_sent, self.loss_sent) = (0, false);
        self.rows.as_mut().map_or(Ok(()), |rows| rows.begin(ids))
    }

    fn last_backward(&mut self, parameters: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.prepare(parameters)?;
        let (state, order, writer) = (self.state.clone(), self.order.clone(), self.writer.clone());
        let look = move |_, _: &[&Tensor], outputs: &[&Tensor]| {
            state.borrow_mut().look(order.as_deref(), outputs, &writer);
        };
        let computed = with_hook(Box::new(look), backward);
        match self.state.borrow_mut().error.take() {
            Some(error @ Error::OutOfMemory { .. }) => computed.and(Err(error)),
            // Whatever else has happened, this ends the run.
            Some(error) => Err(error),
            None => computed,
        }
    }

    fn synchronize(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        if self.order.is_none() && !self.agree(false)? {
            self.rows.iter_mut().for_each(TokenRows::abort);
            return Ok(None);
        }
        // What got no gradient is zero.
        parameters.gradients()?;
        let order = self.order.as_deref().expect("agreed");
        let mut state = self.state.borrow_mut();
        if state.expected.is_none() {
            state.expected = Some(state.written.clone());
        }
        let rest = order.len() - state.sent;
        state.send(order, rest, &self.writer)?;
        let rows = self.rows.as_mut().map_or(Ok(None), TokenRows::end)?;
        for piece in rows.iter().flat_map(StepRows::pieces) {
            self.writer.sum(&piece, Turn::Last)?;
            self.rows_sent += 1;
        }
        let loss_here = loss.read_later()?;
        loss.device().submit()?;
        let loss_sum = self.ballot.comm.begin_all_reduce(move || Encoded::of_bytes(loss_here.wait()?, Wire::F32));
        self.loss_sent = true;
        let arrived = self.writer.finish()?;
        rows.map_or(Ok(()), |rows| rows.add())?;
        let loss = Tensor::from_f32(&loss_sum.wait()?.to_f32(), loss.shape().clone(), &loss.device())?;
        // What was summed before is hidden behind the computation.
        self.ballot.add_waited(arrived);
        Ok(Some(loss))
    }

    fn vote(&mut self) -> Result<bool> {
        self.ballot.vote(false)
    }

    fn abort(&mut self) -> Result<()> {
        self.rows.iter_mut().for_each(TokenRows::abort);
        // The next passes are smaller, and may run other kernels.
        self.state.borrow_mut().expected = None;
        let Some(order) = &self.order else { return self.agree(true).map(drop) };
        let state = self.state.borrow();
        order[state.sent..].iter().for_each(|&bucket| self.writer.sum_zeros(state.buckets[bucket].len()));
        let rows = self.rows.iter().flat_map(TokenRows::pieces);
        rows.skip(self.rows_sent).for_each(|len| self.writer.sum_zeros(len));
        if !self.loss_sent {
            drop(self.ballot.comm.begin_all_reduce(|| Encoded::zeros(1, Wire::F32)));
        }
        match self.writer.finish() {
            // Nobody uses what could not be written.
            Ok(_) | Err(Error::OutOfMemory { .. }) => self.ballot.vote(true).map(drop),
            Err(error) => Err(error),
        }
    }

    fn gather(&mut self, parameters: &ParameterArena, optimizer: &Optimizer) -> Result<()> {
        let parts = self.ballot.parts(optimizer.part(), parameters.trainable_len())?.to_vec();
        if parts.is_empty() {
            return Ok(());
        }
        self.gather_parts(parameters, &parts)?;
        parameters.refresh_halves()
    }
}
