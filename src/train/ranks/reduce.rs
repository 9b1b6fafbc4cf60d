//! Sums the gradients of all ranks, bucket by bucket, while backward still computes others.
//!
//! A bucket is a range of the arena of gradients. In the first update each rank counts the kernels of its last backward
//! pass that write to each bucket; from then on a bucket is complete when as many have run, is copied to the host, and
//! is summed by the communicator's thread. All ranks send their buckets in the order in which rank 0 completed them
//! first, and sums are in the order of the ranks, so that the result does not depend on timing.

use super::BUCKET;
use crate::comm::{Background, Encoded, Pending, Sums, Wire};
use crate::optim::{Optimizer, ParameterArena};
use crate::profile::MemoryKind;
use crate::tensor::{DType, Readback, Spec, with_hook};
use crate::train::step_hook::StepHook;
use crate::{Error, Result, Tensor};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Parameters of a rank's part that are sent at a time.
const PIECE: usize = 1 << 21;

/// The gradients of one rank of several.
pub(super) struct DataParallel {
    comm: Arc<Background>,
    wire: Wire,
    /// The buckets, in the order in which they are sent; `None` before the first update.
    order: Option<Vec<usize>>,
    state: Rc<RefCell<State>>,
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
    /// Those that are being sent, in their order, and which they are.
    sent: Vec<Sending>,
    is_sent: Vec<bool>,
    error: Option<Error>,
}

/// A bucket on its way.
enum Sending {
    /// To the host, in this type.
    Reading(Readback, DType),
    /// To the other ranks and back.
    Summing(Pending<Sums>),
    Taken,
}

impl DataParallel {
    pub fn new(comm: Arc<Background>, wire: Wire, waited: Arc<Mutex<Duration>>) -> DataParallel {
        DataParallel { comm, wire, order: None, state: Rc::default(), parts: Vec::new(), waited }
    }

    /// Gives this rank's part of the parameters to the others, and takes theirs: piece by piece, one of which is copied
    /// from the device while another is sent.
    fn gather_parts(&mut self, parameters: &ParameterArena, own: &Range<usize>) -> Result<()> {
        if self.parts.is_empty() {
            let words = [own.start as u64, own.end as u64];
            let all = self.comm.all_gather(bytemuck::cast_slice(&words).into())?;
            let part = |bytes: Vec<u8>| match bytemuck::pod_collect_to_vec::<u8, u64>(&bytes)[..] {
                [start, end] => Ok(start as usize..end as usize),
                _ => Err(Error::Communication("a rank sent what is no part of the parameters".into())),
            };
            self.parts = all.into_iter().map(part).collect::<Result<_>>()?;
        }
        let piece = |part: &Range<usize>, i: usize| {
            let at = |i: usize| (part.start + i * PIECE).min(part.end);
            let Range { start, end } = at(i)..at(i + 1);
            (start < end).then(|| parameters.values().slice_flat(start, [end - start].into()))
        };
        let pieces = self.parts.iter().map(|part| part.len().div_ceil(PIECE)).max().unwrap_or_default();
        let read = (0..pieces).map(|i| piece(own, i).map(|values| values.read_later()).transpose());
        let read = read.collect::<Result<Vec<Option<Readback>>>>()?;
        parameters.values().device().submit()?;
        let (rank, started) = (self.comm.rank(), Instant::now());
        let take = |i: usize, pending: Pending<Vec<Vec<u8>>>| -> Result<()> {
            let others = self.parts.iter().zip(pending.wait()?).enumerate().filter(|(of, _)| *of != rank);
            others.filter_map(|(_, (part, bytes))| Some(piece(part, i)?.write_bytes(&bytes))).collect()
        };
        let mut last = None;
        for (i, read) in read.into_iter().enumerate() {
            let bytes = read.map_or(Ok(Vec::new()), |read| Ok::<_, Error>(read.wait()?.to_vec()))?;
            let pending = self.comm.begin_all_gather(bytes);
            if let Some((i, before)) = last.replace((i, pending)) {
                take(i, before)?;
            }
        }
        last.map_or(Ok(()), |(i, pending)| take(i, pending))?;
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += started.elapsed();
        Ok(())
    }

    /// Cuts the arena into buckets, once.
    fn prepare(&self, parameters: &ParameterArena) {
        let mut state = self.state.borrow_mut();
        if state.buckets.is_empty() {
            let arena = parameters.gradients();
            let cut = |start: usize| start..(start + BUCKET).min(arena.len());
            let buckets = (0..arena.len()).step_by(BUCKET).map(cut);
            state.buckets = buckets.map(|Range { start, end }| arena.slice_flat(start, [end - start].into())).collect();
            state.is_sent = vec![false; state.buckets.len()];
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
    fn look(&mut self, order: Option<&[usize]>, outputs: &[&Tensor], comm: &Background, wire: Wire) {
        self.kernels += 1;
        for (i, bucket) in self.buckets.iter().enumerate() {
            if !outputs.iter().any(|output| output.overlaps(bucket)) {
                continue;
            }
            self.written[i] += 1;
            self.last[i] = self.kernels;
            if self.is_sent[i] && self.written[i] > self.expected[i] {
                let text = "a gradient was completed later than in the first update: train.batch_size or the text \
                            changes what backward computes; report this";
                self.error.get_or_insert(Error::Communication(text.into()));
            }
        }
        let Some(order) = order else { return };
        let is_complete = |&&bucket: &&usize| self.written[bucket] >= self.expected[bucket];
        let complete = order[self.sent.len()..].iter().take_while(is_complete).count();
        if complete > 0
            && let Err(error) = self.send(order, complete, wire).and_then(|()| self.sum_arrived(comm, wire))
        {
            self.error.get_or_insert(error);
        }
    }

    /// Begins to copy the next buckets to the host, from which they go on while backward computes others.
    fn send(&mut self, order: &[usize], count: usize, wire: Wire) -> Result<()> {
        for &bucket in &order[self.sent.len()..][..count] {
            let values = &self.buckets[bucket];
            // Of a GPU half of the bytes are copied then.
            let dtype = if wire == Wire::F16 && values.device().has_f16() { DType::F16 } else { DType::F32 };
            self.sent.push(Sending::Reading(values.to_dtype(dtype)?.read_later()?, dtype));
            self.is_sent[bucket] = true;
        }
        self.buckets[0].device().submit()
    }

    /// Begins to sum what has arrived on the host. Never waits.
    fn sum_arrived(&mut self, comm: &Background, wire: Wire) -> Result<()> {
        for sending in self.sent.iter_mut() {
            let Sending::Reading(readback, _) = sending else { continue };
            if !readback.has_arrived()? {
                break;
            }
            sending.sum(comm, wire)?;
        }
        Ok(())
    }
}

impl Sending {
    /// Begins to sum it, waiting until it is on the host.
    fn sum(&mut self, comm: &Background, wire: Wire) -> Result<()> {
        *self = match std::mem::replace(self, Sending::Taken) {
            Sending::Reading(readback, dtype) => {
                let bytes = readback.wait()?;
                let values = match (wire, dtype) {
                    (Wire::F16, DType::F32) => Encoded::new(bytemuck::pod_collect_to_vec(&bytes), wire),
                    _ => Encoded::of_bytes(bytes, wire)?,
                };
                Sending::Summing(comm.begin_all_reduce(values))
            }
            sending => sending,
        };
        Ok(())
    }
}

impl StepHook for DataParallel {
    fn last_backward(&mut self, parameters: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.prepare(parameters);
        let (state, comm, wire, order) = (self.state.clone(), self.comm.clone(), self.wire, self.order.clone());
        let look = move |_, _: &[&Tensor], outputs: &[&Tensor]| {
            state.borrow_mut().look(order.as_deref(), outputs, &comm, wire);
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
        let rest = order.len() - state.sent.len();
        state.send(order, rest, self.wire)?;
        let loss_here = loss.read_later()?;
        loss.device().submit()?;
        let mut waited = Duration::ZERO;
        for i in 0..order.len() {
            state.sent[i].sum(&self.comm, self.wire)?;
            // The communicator has one to sum while another is written back.
            if i > 0 {
                waited += state.take(order, i - 1, self.wire)?;
            }
        }
        let loss_sum = self.comm.begin_all_reduce(Encoded::of_bytes(loss_here.wait()?, Wire::F32)?);
        waited += state.take(order, order.len() - 1, self.wire)?;
        let started = Instant::now();
        let loss = Tensor::from_f32(&loss_sum.wait()?.to_f32(), loss.shape().clone(), &loss.device())?;
        waited += started.elapsed();
        state.sent.clear();
        state.is_sent.fill(false);
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += waited;
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

impl State {
    /// Writes the sums of a bucket to the arena, and says how long they were waited for.
    fn take(&mut self, order: &[usize], place: usize, wire: Wire) -> Result<Duration> {
        let Sending::Summing(pending) = std::mem::replace(&mut self.sent[place], Sending::Taken) else {
            unreachable!("it was begun before")
        };
        let started = Instant::now();
        let sums = pending.wait()?;
        let waited = started.elapsed();
        let bucket = &self.buckets[order[place]];
        match wire {
            Wire::F32 => bucket.write_parts(&sums.parts())?,
            Wire::F16 if bucket.device().has_f16() => {
                let spec = Spec::new(bucket.shape().clone(), DType::F16);
                let halves = Tensor::empty(spec, &bucket.device(), MemoryKind::Other)?;
                halves.write_parts(&sums.parts())?;
                halves.cast_into(bucket)?;
            }
            Wire::F16 => bucket.write_bytes(bytemuck::cast_slice(&sums.to_f32()))?,
        }
        Ok(waited)
    }
}
