//! The threads of a rank that write to its device what comes from all ranks: sums of gradients, while it computes
//! others, and what others have updated.

use crate::comm::{Background, Encoded, Pending, Sums, Wire};
use crate::profile::MemoryKind;
use crate::tensor::{DType, Spec};
use crate::{Error, Result, Tensor};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Each writes a tensor alone: to wake up others for a part of it takes as long as the part. So many fill the bus.
const THREADS: usize = 4;

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

    /// Begins to replace a tensor of f32 by its sum over all ranks. Never waits. All ranks call it for the same tensors
    /// in the same order.
    ///
    /// # Errors
    /// If the driver reported an error, or there is no memory to read into.
    pub fn sum(&self, values: &Tensor) -> Result<()> {
        let (wire, shared) = (self.wire, self.shared.clone());
        // Of a GPU half of the bytes are copied then.
        let dtype = if wire == Wire::F16 && values.device().has_f16() { DType::F16 } else { DType::F32 };
        let readback = values.to_dtype(dtype)?.read_later()?;
        // Now, and not with the next kernels or tensors: it is to be on its way while they are computed and copied.
        values.device().submit()?;
        let sums = self.comm.begin_all_reduce(move || {
            let bytes = readback.wait()?;
            shared.lock().arrived = Instant::now();
            match (wire, dtype) {
                (Wire::F16, DType::F32) => Ok(Encoded::new(bytemuck::pod_collect_to_vec(&bytes), wire)),
                _ => Encoded::of_bytes(bytes, wire),
            }
        });
        let to = values.clone();
        self.write_later(sums, move |sums| write(&sums, &to, wire));
        Ok(())
    }

    /// Lets a thread write what a call gives, once it is there. Never waits.
    pub fn write_later<T: Send + 'static>(
        &self,
        pending: Pending<T>,
        write: impl FnOnce(T) -> Result<()> + Send + 'static,
    ) {
        self.shared.lock().open += 1;
        let job = Box::new(move || write(pending.wait()?));
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

fn write(sums: &Sums, to: &Tensor, wire: Wire) -> Result<()> {
    match wire {
        Wire::F32 => to.write_parts(&sums.parts()),
        Wire::F16 if to.device().has_f16() => {
            let spec = Spec::new(to.shape().clone(), DType::F16);
            let halves = Tensor::empty(spec, &to.device(), MemoryKind::Other)?;
            halves.write_parts(&sums.parts())?;
            halves.cast_into(to)
        }
        Wire::F16 => to.write_bytes(bytemuck::cast_slice(&sums.to_f32())),
    }
}
