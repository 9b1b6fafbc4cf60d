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

use super::BUCKET;
use super::token_rows::{StepRows, TokenRows};
use super::writer::{Turn, Writer};
use crate::comm::{Background, Encoded, Memory, Wire};
use crate::data::Batch;
use crate::optim::{Optimizer, ParameterArena};
use crate::tensor::{Readback, with_hook};
use crate::train::step_hook::StepHook;
use crate::{Error, Result, Tensor};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Buckets that are submitted together. A GPU stops for a tenth of a millisecond at the end of each submit, and for
/// four tenths if a copy waits for it.
const GROUP: usize = 4;

/// Parameters of a rank's part that are sent at a time.
const PIECE: usize = 1 << 21;

/// The gradients of one rank of several.
pub(super) struct DataParallel {
    comm: Arc<Background>,
    /// The buckets, in the order in which they are sent; `None` before the first update.
    order: Option<Vec<usize>>,
    state: Rc<RefCell<State>>,
    writer: Writer,
    rows: Option<TokenRows>,
    /// The part of the parameters that each rank updates, once that is known.
    parts: Vec<Range<usize>>,
    /// How long the rank has waited for sums.
    waited: Arc<Mutex<Duration>>,
}

/// What is known of the buckets in a backward pass.
#[derive(Default)]
struct State {
    /// Each bucket's part of the arena.
    buckets: Vec<Tensor>,
    /// Kernels that write to each bucket in the last backward pass.
    expected: Vec<usize>,
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
    /// If there is no thread to be had.
    pub fn new(
        comm: Arc<Background>,
        wire: Wire,
        rows: Option<TokenRows>,
        waited: Arc<Mutex<Duration>>,
    ) -> Result<DataParallel> {
        let writer = Writer::start(comm.clone(), wire)?;
        Ok(DataParallel { comm, order: None, state: Rc::default(), writer, rows, parts: Vec::new(), waited })
    }

    /// Gives this rank's part of the parameters to the others, and takes theirs: piece by piece, one of which is copied
    /// from the device while others are sent and written.
    fn gather_parts(&mut self, parameters: &ParameterArena, own: &Range<usize>) -> Result<()> {
        if self.parts.is_empty() {
            let words = [own.start as u64, own.end as u64];
            let all = self.comm.all_gather(bytemuck::cast_slice(&words).into())?;
            let part = |bytes: Memory| match bytemuck::pod_collect_to_vec::<u8, u64>(&bytes)[..] {
                [start, end] => Ok(start as usize..end as usize),
                _ => Err(Error::Communication("a rank sent what is no part of the parameters".into())),
            };
            self.parts = all.into_iter().map(part).collect::<Result<_>>()?;
        }
        let pieces = self.parts.iter().map(|part| parameters.exchanged(part, PIECE));
        let pieces = pieces.collect::<Result<Vec<Vec<Tensor>>>>()?;
        let rank = self.comm.rank();
        let read = |piece: &Tensor| piece.read_aside(piece.dtype()).map(|(_, read)| read);
        let mut own = pieces[rank].iter().map(read).collect::<Result<Vec<Readback>>>()?.into_iter();
        parameters.values().device().submit()?;
        let started = Instant::now();
        for i in 0..pieces.iter().map(Vec::len).max().unwrap_or_default() {
            let read = own.next();
            let all = self.comm.begin_all_gather(move || match read {
                Some(read) => Ok(Arc::new(read.wait()?)),
                None => Ok(Arc::new(Vec::new())),
            });
            let others = pieces.iter().enumerate().filter(|(of, _)| *of != rank);
            let others: Vec<(usize, Tensor)> = others.filter_map(|(of, p)| Some((of, p.get(i)?.clone()))).collect();
            self.writer.write_later(all, move |all| others.iter().try_for_each(|(of, to)| to.write_bytes(&all[*of])));
        }
        self.writer.finish()?;
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += started.elapsed();
        Ok(())
    }

    /// Cuts the arena into buckets, once.
    fn prepare(&self, parameters: &ParameterArena) {
        let mut state = self.state.borrow_mut();
        if state.buckets.is_empty() {
            let arena = parameters.gradients();
            let cut = |Range { start, end }: Range<usize>| {
                (start..end).step_by(BUCKET).map(move |start| start..(start + BUCKET).min(end))
            };
            let whole = || std::iter::once(0..arena.len()).collect();
            let parts = self.rows.as_ref().map_or_else(whole, |rows| rows.others(arena.len()));
            let buckets = parts.into_iter().flat_map(cut);
            state.buckets = buckets.map(|Range { start, end }| arena.slice_flat(start, [end - start].into())).collect();
        }
        let count = state.buckets.len();
        (state.written, state.last, state.kernels) = (vec![0; count], vec![0; count], 0);
    }

    /// After the first backward pass: the order of rank 0, and how many kernels write to each bucket here.
    fn agree(&mut self) -> Result<()> {
        let mut state = self.state.borrow_mut();
        state.expected = state.written.clone();
        let mut order: Vec<usize> = (0..state.buckets.len()).collect();
        order.sort_by_key(|&bucket| (state.last[bucket], bucket));
        let words: Vec<u64> = order.iter().map(|&bucket| bucket as u64).collect();
        let words: Vec<u64> = bytemuck::pod_collect_to_vec(&self.comm.broadcast(bytemuck::cast_slice(&words).into())?);
        if words.len() != order.len() {
            let (own, theirs) = (order.len(), words.len());
            return Err(Error::Communication(format!("{own} buckets of gradients here, {theirs} on rank 0")));
        }
        self.order = Some(words.into_iter().map(|bucket| bucket as usize).collect());
        Ok(())
    }
}

impl State {
    /// Counts a kernel's outputs; sends what is complete.
    fn look(&mut self, order: Option<&[usize]>, outputs: &[&Tensor], writer: &Writer) {
        self.kernels += 1;
        let sent = order.map_or(&[][..], |order| &order[..self.sent]);
        for (i, bucket) in self.buckets.iter().enumerate() {
            if !outputs.iter().any(|output| output.overlaps(bucket)) {
                continue;
            }
            self.written[i] += 1;
            self.last[i] = self.kernels;
            if sent.contains(&i) && self.written[i] > self.expected[i] {
                let text = "a gradient was completed later than in the first update: train.batch_size or the text \
                            changes what backward computes; report this";
                self.error.get_or_insert(Error::Communication(text.into()));
            }
        }
        let Some(order) = order else { return };
        let is_complete = |&&bucket: &&usize| self.written[bucket] >= self.expected[bucket];
        let complete = order[self.sent..].iter().take_while(is_complete).count();
        if complete > 0
            && let Err(error) = self.send(order, complete, writer)
        {
            self.error.get_or_insert(error);
        }
    }

    /// Lets the next buckets go their way. Never waits.
    fn send(&mut self, order: &[usize], count: usize, writer: &Writer) -> Result<()> {
        for &bucket in &order[self.sent..][..count] {
            self.sent += 1;
            // Nothing is computed beside the last.
            let turn = if self.sent == order.len() { Turn::Last } else { Turn::Among };
            writer.sum(&self.buckets[bucket], turn)?;
            if is_due(self.sent, order.len()) {
                self.buckets[bucket].device().submit()?;
            }
        }
        Ok(())
    }
}

/// Whether what is recorded is to be submitted after so many buckets. The last two go alone: for them all wait.
fn is_due(sent: usize, of: usize) -> bool {
    sent + 2 > of || sent.is_multiple_of(GROUP)
}

impl StepHook for DataParallel {
    fn before_backward(&mut self, batches: &[Batch]) -> Result<()> {
        self.rows.as_mut().map_or(Ok(()), |rows| rows.begin(batches))
    }

    fn last_backward(&mut self, parameters: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.prepare(parameters);
        let (state, order, writer) = (self.state.clone(), self.order.clone(), self.writer.clone());
        let look = move |_, _: &[&Tensor], outputs: &[&Tensor]| {
            state.borrow_mut().look(order.as_deref(), outputs, &writer);
        };
        with_hook(Box::new(look), backward)?;
        self.state.borrow_mut().error.take().map_or(Ok(()), Err)
    }

    fn after_backward(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Tensor> {
        if self.order.is_none() {
            self.agree()?;
        }
        // What got no gradient is zero.
        parameters.gradients();
        let order = self.order.as_deref().expect("agreed");
        let mut state = self.state.borrow_mut();
        let rest = order.len() - state.sent;
        state.send(order, rest, &self.writer)?;
        let rows = self.rows.as_mut().map_or(Ok(None), TokenRows::end)?;
        rows.iter().flat_map(StepRows::pieces).try_for_each(|piece| self.writer.sum(&piece, Turn::Last))?;
        let loss_here = loss.read_later()?;
        loss.device().submit()?;
        let loss_sum = self.comm.begin_all_reduce(move || Encoded::of_bytes(loss_here.wait()?, Wire::F32));
        let arrived = self.writer.finish()?;
        rows.map_or(Ok(()), |rows| rows.add())?;
        let loss = Tensor::from_f32(&loss_sum.wait()?.to_f32(), loss.shape().clone(), &loss.device())?;
        state.sent = 0;
        // What was summed before is hidden behind the computation.
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += arrived.elapsed();
        Ok(loss)
    }

    fn after_update(&mut self, parameters: &ParameterArena, optimizer: &Optimizer) -> Result<()> {
        if optimizer.part().len() == parameters.trainable_len() {
            return Ok(());
        }
        self.gather_parts(parameters, optimizer.part())?;
        parameters.refresh_halves()
    }

    fn is_alone(&self) -> bool {
        false
    }
}
