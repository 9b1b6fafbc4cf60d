//! Threads of a rank that write received data to its device: gradient sums, concurrently with backward, and parameters
//! updated by other ranks. With more than two ranks, the host computes the sums.

use crate::comm::{Background, Encoded, Memory, Pending, Sums, Wire};
use crate::error::panic_message;
use crate::optim::ParameterArena;
use crate::profile::MemoryKind;
use crate::tensor::{DType, Spec};
use crate::{Error, Result, Tensor};
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    jobs: Arc<Jobs>,
}

/// Waits for a transfer and writes it.
type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// The end of the queue that jobs are added at; the threads end when it is gone.
struct Jobs(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Whenever there is a job to take, or there will be none.
    added: Condvar,
    finished: Condvar,
}

struct State {
    /// Parts of what has arrived come before what has not: memory that several ranks share has few places, and what has
    /// arrived holds one until all of its parts are written.
    queue: VecDeque<Job>,
    is_closed: bool,
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

    /// The next job, once there is one; `None` when the queue is closed and empty.
    fn next(&self) -> Option<Job> {
        let is_empty = |state: &mut State| state.queue.is_empty() && !state.is_closed;
        let state = self.added.wait_while(self.lock(), is_empty);
        state.unwrap_or_else(PoisonError::into_inner).queue.pop_front()
    }

    /// Runs jobs until the queue is closed.
    fn write_all(&self) {
        while let Some(job) = self.next() {
            // A thread that ended here would leave the job open for ever.
            let written = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| {
                Err(Error::Panicked { thread: "a thread that writes sums", message: panic_message(&*panic) })
            });
            let mut state = self.lock();
            state.open -= 1;
            if state.result.is_ok() {
                state.result = written;
            }
            if state.open == 0 {
                self.finished.notify_all();
            }
        }
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.added.notify_all();
    }
}

impl Writer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn start(comm: Arc<Background>, wire: Wire) -> Result<Writer> {
        let (queue, arrived) = (VecDeque::new(), Instant::now());
        let state = State { queue, is_closed: false, open: 0, result: Ok(()), arrived };
        let (added, finished) = Default::default();
        let shared = Arc::new(Shared { state: Mutex::new(state), added, finished });
        let jobs = Arc::new(Jobs(shared.clone()));
        for _ in 0..THREADS {
            let shared = shared.clone();
            #[cfg(test)]
            let countdown = crate::testing::faults::Countdown::own();
            let thread = std::thread::Builder::new().name("writer of sums".to_string());
            let started = thread.spawn(move || {
                #[cfg(test)]
                countdown.share();
                shared.write_all();
            });
            started
                .map_err(|error| Error::Communication(format!("cannot start the thread that writes sums: {error}")))?;
        }
        Ok(Writer { comm, wire, jobs })
    }

    /// Records the replacement of an f32 tensor by its sum over all ranks, which starts when the copy is submitted.
    /// Does not wait. All ranks must call it for the same tensors in the same order.
    ///
    /// # Errors
    /// If the driver reported an error, or there is no memory to read into.
    pub fn sum(&self, values: &Tensor, turn: Turn) -> Result<()> {
        let (wire, shared) = (self.wire, self.jobs.0.clone());
        // Of a GPU half of the bytes are copied then.
        let dtype = if wire == Wire::F16 && values.device().has_f16() { DType::F16 } else { DType::F32 };
        let (own, readback) = values.read_by_copy_queue(dtype)?;
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
                writer.begin(VecDeque::push_front, Box::new(move || write(&arrived, range)));
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
        self.begin(VecDeque::push_back, Box::new(move || write(pending.wait()?)));
    }

    /// Joins a sum of `len` elements with zeros and drops the result, for a failed rank for which the others wait. Does
    /// not wait or allocate device memory.
    pub fn sum_zeros(&self, len: usize) {
        let wire = self.wire;
        let zeros = move || Encoded::zeros(len, wire);
        if self.comm.size() == 2 {
            self.write_later(self.comm.begin_all_gather(move || Ok(zeros()?.memory())), |_| Ok(()));
        } else {
            self.write_later(self.comm.begin_all_reduce(zeros), |_| Ok(()));
        }
    }

    fn begin(&self, add: impl FnOnce(&mut VecDeque<Job>, Job), job: Job) {
        let Jobs(shared) = &*self.jobs;
        let mut state = shared.lock();
        state.open += 1;
        add(&mut state.queue, job);
        drop(state);
        shared.added.notify_one();
    }

    /// Waits until everything is written; returns when the last values arrived from the device.
    ///
    /// # Errors
    /// The first error of a call or a write.
    pub fn finish(&self) -> Result<Instant> {
        let Jobs(shared) = &*self.jobs;
        let state = shared.finished.wait_while(shared.lock(), |state| state.open > 0);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut state.result, Ok(()))?;
        Ok(state.arrived)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::comm::{Communicator, threads};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn writer(comm: impl Communicator + 'static) -> Writer {
        let comm = Arc::new(Background::start(move || Ok(comm), None).unwrap());
        Writer::start(comm, Wire::F32).unwrap()
    }

    /// What `finish` gives, or that it did not return in 10 seconds.
    fn finished(writer: Writer) -> std::result::Result<Instant, String> {
        let (done, result) = channel();
        std::thread::spawn(move || done.send(writer.finish()));
        let result = result.recv_timeout(Duration::from_secs(10)).map_err(|_| "it hangs".to_string())?;
        result.map_err(|error| error.to_string())
    }

    /// More than there are places in shared memory and threads that write, of which each is written in parts.
    #[cfg(target_os = "linux")]
    #[test]
    fn any_number_of_last_sums_is_written_through_shared_memory() {
        const LEN: usize = 4096;
        for (ranks, sums) in [(2, 7), (2, 8), (2, 20), (3, 8), (3, 20)] {
            let comms = crate::comm::testing::over_shared_memory(ranks, 4 * LEN, Duration::from_secs(3));
            let results: Vec<std::result::Result<Vec<Tensor>, String>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..)
                    .zip(comms)
                    .map(|(rank, comm)| {
                        scope.spawn(move || {
                            let writer = writer(comm);
                            let values = |i: usize| vec![(rank + i) as f32; LEN];
                            let of_rank = |i: usize| Tensor::from_f32(&values(i), [LEN], &Device::Cpu).unwrap();
                            let tensors: Vec<Tensor> = (0..sums).map(of_rank).collect();
                            // All are asked for before the first is made, as where their copies wait for a submit.
                            let (open, gate) = channel::<()>();
                            drop(writer.comm.begin_all_gather(move || {
                                let _ = gate.recv();
                                Ok(Arc::new(Vec::new()))
                            }));
                            tensors.iter().for_each(|tensor| writer.sum(tensor, Turn::Last).unwrap());
                            drop(open);
                            finished(writer).map(|_| tensors)
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for result in results {
                for (i, tensor) in result.unwrap().iter().enumerate() {
                    let expected: f32 = (0..ranks).map(|rank| (rank + i) as f32).sum();
                    assert_eq!(tensor.to_f32().unwrap(), vec![expected; LEN], "{ranks} ranks, sum {i} of {sums}");
                }
            }
        }
    }

    #[test]
    fn a_panic_in_a_job_is_an_error_and_the_writer_goes_on() {
        let writer = writer(threads(1, None, &[]).unwrap().remove(0));
        for _ in 0..2 * THREADS {
            writer.begin(VecDeque::push_back, Box::new(|| panic!("out of {}", "luck")));
            let error = finished(writer.clone()).unwrap_err();
            assert!(error.contains("panicked") && error.contains("out of luck"), "{error}");
        }
        let tensor = Tensor::from_f32(&[1.0, 2.0], [2], &Device::Cpu).unwrap();
        writer.sum(&tensor, Turn::Last).unwrap();
        finished(writer).unwrap();
    }
}
