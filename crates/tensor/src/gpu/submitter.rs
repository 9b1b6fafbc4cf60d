//! A thread that encodes and submits recorded batches while more is recorded. Recording and encoding each take a few
//! microseconds per kernel, as long as the GPU runs a small one.
//!
//! - wgpu (30.0) panics if another thread polls or submits between the two looks that a poll with a timeout takes at
//!   the queue. So what is done is counted by callbacks, and polls are those without a timeout.
//! - glibc's allocator makes two threads wait for each other if one frees what the other has allocated. So batches go
//!   back to where they were recorded.

use super::encoder::Encoder;
use super::recorder::Batch;
use crate::error::panic_message;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most queued batches; more would hold the memory of large uploads.
const MOST_WAITING: usize = 8;

pub(super) struct Submitter {
    /// `None` once the thread is to end, and once it has.
    batches: Option<Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

struct Shared {
    encoder: Mutex<Encoder>,
    progress: Mutex<Progress>,
    changed: Condvar,
    /// How many submits are done, of all that were made, as far as polls have seen it.
    done: Arc<AtomicU64>,
    /// The bits of what [`Encoder::flops_per_second`] was after the last submit; 0 if it was not known.
    flops_per_second: AtomicU64,
}

/// Progress of the batches.
#[derive(Default)]
struct Progress {
    /// How many were handed over, and how many of those are submitted.
    handed: u64,
    submitted: u64,
    /// Submits that may not be done yet, and how many there were before them.
    submissions: VecDeque<wgpu::SubmissionIndex>,
    before: u64,
    /// Batches that are submitted, to be dropped by those who recorded them.
    spent: Vec<Batch>,
    /// How the thread has panicked: nothing more will be submitted.
    failure: Option<String>,
}

impl Progress {
    /// Batches and submits that may not be done yet.
    fn ahead(&self) -> usize {
        self.waiting() + self.submissions.len()
    }

    /// Batches that are not submitted yet.
    fn waiting(&self) -> usize {
        (self.handed - self.submitted) as usize
    }

    /// Forgets so many submits, the oldest first; the last of them.
    fn forget(&mut self, count: usize) -> Option<wgpu::SubmissionIndex> {
        self.before += count as u64;
        self.submissions.drain(..count).next_back()
    }
}

impl Shared {
    fn encoder(&self) -> MutexGuard<'_, Encoder> {
        self.encoder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits batches until there will be no more, or it panics: then `lose` is told how.
    fn submit_all(&self, batches: &Receiver<Batch>, lose: impl FnOnce(String)) {
        while let Ok(batch) = batches.recv() {
            let mut step = Step { shared: self, batch, index: None };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.submit(&mut step))) {
                let message = format!("the thread that submits to it panicked: {}", panic_message(&*panic));
                lose(message.clone());
                self.progress().failure = Some(message);
                return;
            }
        }
    }

    fn submit(&self, step: &mut Step) {
        let mut encoder = self.encoder();
        step.index = Some(encoder.submit(&mut step.batch));
        let done = self.done.clone();
        encoder.when_done(move || {
            done.fetch_add(1, Ordering::Relaxed);
        });
        // What fails will fail again for whoever asks for the profile.
        let _ = encoder.collect();
        let rate = encoder.flops_per_second().unwrap_or_default();
        self.flops_per_second.store(rate.to_bits(), Ordering::Relaxed);
    }
}

/// A batch in work; dropped when it is submitted, or never will be.
struct Step<'a> {
    shared: &'a Shared,
    batch: Batch,
    index: Option<wgpu::SubmissionIndex>,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let mut progress = self.shared.progress();
        progress.submitted += 1;
        progress.submissions.extend(self.index.take());
        progress.spent.push(std::mem::take(&mut self.batch));
        self.shared.changed.notify_all();
    }
}

impl Submitter {
    /// Starts the thread, which calls `lose` with a message should it panic, before anybody else hears of it.
    pub fn new(encoder: Encoder, lose: impl FnOnce(String) + Send + 'static) -> Submitter {
        let (batches, received) = mpsc::channel();
        let encoder = Mutex::new(encoder);
        let (progress, changed, done, flops_per_second) = Default::default();
        let shared = Arc::new(Shared { encoder, progress, changed, done, flops_per_second });
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("submit".into());
        let thread = thread.spawn(move || own.submit_all(&received, lose)).expect("the system has a thread left");
        Submitter { batches: Some(batches), thread: Some(thread), shared }
    }

    /// Lets the thread submit a batch, after those before it; one that is announced is when this returns. Waits while
    /// there are many.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if the thread has panicked.
    pub fn hand_over(&self, batch: Batch) -> Result<()> {
        let mut progress = self.wait_until(|progress| progress.waiting() < MOST_WAITING)?;
        progress.handed += 1;
        let (number, spent) = (progress.handed, std::mem::take(&mut progress.spent));
        drop(progress);
        drop(spent);
        let is_announced = batch.is_announced;
        // Whoever waits is told if the thread has failed.
        let _ = self.batches.as_ref().expect("the thread runs").send(batch);
        if is_announced { self.wait_for(number) } else { Ok(()) }
    }

    /// Waits until all queued batches are submitted.
    ///
    /// # Errors
    /// Those of [`Submitter::hand_over`].
    pub fn drain(&self) -> Result<()> {
        let handed = self.shared.progress().handed;
        self.wait_for(handed)
    }

    fn wait_for(&self, number: u64) -> Result<()> {
        let spent = std::mem::take(&mut self.wait_until(|progress| progress.submitted >= number)?.spent);
        drop(spent);
        Ok(())
    }

    /// Batches and submits that may not be done yet; `poll` is to look what is done, which the thread does by itself
    /// while it has something to submit.
    ///
    /// # Errors
    /// Those of `poll`.
    pub fn ahead(&self, poll: impl FnOnce() -> Result<()>) -> Result<usize> {
        if self.shared.progress().waiting() == 0 {
            poll()?;
        }
        let mut progress = self.shared.progress();
        let done = self.shared.done.load(Ordering::Relaxed).saturating_sub(progress.before);
        let done = progress.submissions.len().min(done as usize);
        progress.forget(done);
        Ok(progress.ahead())
    }

    /// Lets go of the oldest batches and submits until so many are ahead, and waits for them by `wait`.
    ///
    /// # Errors
    /// Those of `wait`, and of [`Submitter::hand_over`].
    pub fn throttle(&self, most: usize, wait: impl Fn(wgpu::SubmissionIndex) -> Result<()>) -> Result<()> {
        // Once no more than so many batches wait, what is too much are submits.
        let mut progress = self.wait_until(|progress| progress.waiting() <= most)?;
        let excess = progress.ahead().saturating_sub(most);
        let last = progress.forget(excess);
        drop(progress);
        last.map_or(Ok(()), wait)
    }

    /// Forgets all submits: they are done.
    pub fn all_done(&self) {
        let mut progress = self.shared.progress();
        let all = progress.submissions.len();
        progress.forget(all);
    }

    fn wait_until(&self, is_so: impl Fn(&Progress) -> bool) -> Result<MutexGuard<'_, Progress>> {
        let is_awaited = |progress: &mut Progress| progress.failure.is_none() && !is_so(progress);
        let progress = self.shared.changed.wait_while(self.shared.progress(), is_awaited);
        let progress = progress.unwrap_or_else(PoisonError::into_inner);
        match &progress.failure {
            Some(message) => Err(Error::DeviceLost(message.clone())),
            None => Ok(progress),
        }
    }

    /// Who encodes, once it has time.
    pub fn encoder(&self) -> MutexGuard<'_, Encoder> {
        self.shared.encoder()
    }

    /// FLOP/s of the last large submit.
    pub fn flops_per_second(&self) -> Option<f64> {
        Some(f64::from_bits(self.shared.flops_per_second.load(Ordering::Relaxed))).filter(|rate| *rate > 0.0)
    }

    /// Lets the thread end, once it has submitted what was handed over. Nothing can be handed over afterwards.
    pub fn finish(&mut self) {
        self.batches = None;
        // A panic was reported when it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
