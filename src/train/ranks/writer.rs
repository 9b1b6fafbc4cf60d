//! The threads of a rank that write to its device what comes from all ranks: sums of gradients, while it computes
//! others, and what others have updated. Of more than two ranks the host makes the sums.

use crate::comm::{Background, Encoded, Memory, Pending, Sums, Wire};
use crate::optim::ParameterArena;
use crate::profile::MemoryKind;
use crate::tensor::{DType, Spec};
use crate::{Error, Result, Tensor};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// So many fill the bus.
const THREADS: usize = 4;

/// When a sum is written: while others are on their way, by a thread alone, for to wake up others takes as long as
/// their part; or as the last, by all threads that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Among,
    Last,
}

/// Sums tensors over all ranks, by way of the host. Its threads end with the last clone.
#[derive(Clone)]
pub(super) struct Writer {
    comm: Arc<Background>,
    wire: Wire,
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

/// Waits for what is on its way, and writes it.
type Job = Box<dyn FnOnce() -> Result<()> + Send>;

struct Shared {
    state: Mutex<State>,
    finished: Condvar,
}

struct State {
    /// Jobs that are not done.
    open: usize,
    /// The first error since [`Writer::finish`].
    result: Result<()>,
    /// When the last of what is to be summed was on the host.
    arrived: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If there are none to be had.
    pub fn start(comm: Arc<Background>, wire: Wire) -> Result<Writer> {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let state = State { open: 0, result: Ok(()), arrived: Instant::now() };
        let shared = Arc::new(Shared { state: Mutex::new(state), finished: Condvar::new() });
        for _ in 0..THREADS {
            let (queue, shared) = (queue.clone(), shared.clone());
            let thread = std::thread::Builder::new().name("writer of sums".to_string());
            let started = thread.spawn(move || write_all(&queue, &shared));
            started
                .map_err(|error| Error::Communication(format!("cannot start a thread that writes sums: {error}")))?;
        }
        Ok(Writer { comm, wire, jobs, shared })
    }

    /// Records what replaces a tensor of f32 by its sum over all ranks, which begins when that is submitted. Never
    /// waits. All ranks call it for the same tensors in the same order.
    ///
    /// # Errors
    /// If the driver reported an error, or there is no memory to read into.
    pub fn sum(&self, values: &Tensor, turn: Turn) -> Result<()> {
        let (wire, shared) = (self.wire, self.shared.clone());
        // Of a GPU half of the bytes are copied then.
        let dtype = if wire == Wire::F16 && values.device().has_f16() { DType::F16 } else { DType::F32 };
        let (own, readback) = values.read_aside(dtype)?;
        let encoded = move || {
            let bytes = readback.wait()?;
            shared.lock().arrived = Instant::now();
            match (wire, dtype) {
                (Wire::F16, DType::F32) => Ok(Encoded::new(bytemuck::pod_collect_to_vec(&bytes), wire)),
                _ => Encoded::of_bytes(bytes, wire),
            }
        };
        let to = values.clone();
        if let (2, rank) = (self.comm.size(), self.comm.rank()) {
            let all = self.comm.begin_all_gather(move || Ok(encoded()?.memory()));
            self.write_in_parts(all, to.len(), turn, move |all, range| add_other(all, rank, (&own, &to), range, wire));
        } else {
            let sums = self.comm.begin_all_reduce(encoded);
            self.write_in_parts(sums, to.len(), turn, move |sums, range| write(sums, &to, range, wire));
        }
        Ok(())
    }

    /// Lets threads write the parts of a tensor of so many elements from what a call gives, once it is there.
    fn write_in_parts<T: Send + Sync + 'static>(
        &self,
        pending: Pending<T>,
        len: usize,
        turn: Turn,
        write: impl Fn(&T, Range<usize>) -> Result<()> + Send + Sync + 'static,
    ) {
        let (writer, write) = (self.clone(), Arc::new(write));
        self.write_later(pending, move |arrived| {
            let arrived = Arc::new(arrived);
            let mut ranges = ranges(len, if turn == Turn::Last { THREADS } else { 1 }).into_iter();
            let own = ranges.next();
            for range in ranges {
                let (arrived, write) = (arrived.clone(), write.clone());
                writer.begin(Box::new(move || write(&arrived, range)));
            }
            own.map_or(Ok(()), |range| write(&arrived, range))
        });
    }

    /// Lets a thread write what a call gives, once it is there. Never waits.
    pub fn write_later<T: Send + 'static>(
        &self,
        pending: Pending<T>,
        write: impl FnOnce(T) -> Result<()> + Send + 'static,
    ) {
        self.begin(Box::new(move || write(pending.wait()?)));
    }

    fn begin(&self, job: Job) {
        self.shared.lock().open += 1;
        self.jobs.send(job).expect("the threads last as long as this");
    }

    /// Waits until everything is written, and says when the last values of sums had arrived from the device.
    ///
    /// # Errors
    /// The first that a call or a write gave.
    pub fn finish(&self) -> Result<Instant> {
        let is_open = |state: &mut State| state.open > 0;
        let state = self.shared.finished.wait_while(self.shared.lock(), is_open);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut state.result, Ok(()))?;
        Ok(state.arrived)
    }
}

/// What each thread does: the next job of the queue, until it is closed.
fn write_all(queue: &Mutex<Receiver<Job>>, shared: &Shared) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let written = job();
        let mut state = shared.lock();
        state.open -= 1;
        if state.result.is_ok() {
            state.result = written;
        }
        if state.open == 0 {
            shared.finished.notify_all();
        }
    }
}

/// So many elements in parts, as many as asked for or fewer, each of which begins where a tensor may.
fn ranges(len: usize, parts: usize) -> Vec<Range<usize>> {
    let part = ParameterArena::padded(len.div_ceil(parts)).max(1);
    (0..len).step_by(part).map(|start| start..(start + part).min(len)).collect()
}

/// Adds to a part of a flat tensor what the other of two ranks has, on the device: a sum of two is the same bits in any
/// order. `own` are the values as they were sent, and `to` is where the sums go.
fn add_other(
    all: &[Memory],
    rank: usize,
    (own, to): (&Tensor, &Tensor),
    range: Range<usize>,
    wire: Wire,
) -> Result<()> {
    if all.len() != 2 || all.iter().any(|values| values.len() != to.len() * wire.width()) {
        return Err(Error::Communication("the ranks have sent gradients of different lengths".into()));
    }
    let bytes = |rank: usize| &all[rank][range.start * wire.width()..range.end * wire.width()];
    let part = |tensor: &Tensor| tensor.slice_flat(range.start, [range.len()].into());
    match (wire, own.dtype()) {
        // Its device has no f16.
        (Wire::F16, DType::F32) => {
            let [mut sum, other] = [0, 1].map(|rank| wire.decoded(&[bytes(rank)]));
            sum.iter_mut().zip(&other).for_each(|(sum, other)| *sum += other);
            part(to).write_bytes(bytemuck::cast_slice(&sum))
        }
        (Wire::F16, _) => part(own).add_bytes_into(bytes(1 - rank), &part(to)),
        (Wire::F32, _) => part(to).add_bytes(bytes(1 - rank)),
    }
}

/// Writes sums to their part of a flat tensor.
fn write(sums: &Sums, to: &Tensor, range: Range<usize>, wire: Wire) -> Result<()> {
    let (to, sums) = (to.slice_flat(range.start, [range.len()].into()), sums.part(range));
    match wire {
        Wire::F32 => to.write_parts(&sums),
        Wire::F16 if to.device().has_f16() => {
            let spec = Spec::new(to.shape().clone(), DType::F16);
            let halves = Tensor::empty(spec, &to.device(), MemoryKind::Other)?;
            halves.write_parts(&sums)?;
            halves.cast_into(&to)
        }
        Wire::F16 => to.write_bytes(bytemuck::cast_slice(&wire.decoded(&sums))),
    }
}
