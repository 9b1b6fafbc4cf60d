//! Batches of a data set, prefetched by threads.
//!
//! Batch k is prepared by thread k modulo the number of threads, and each thread has its own queue, so the order of
//! batches depends on seed and epoch alone. Threads also upload their batches, concurrently with the GPU's work.

use super::dataset::{Array, Dataset, collate};
use super::worker::Worker;
use crate::ops::random::splitmix64;
use crate::{Device, Error, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Options of a [`DataLoader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Samples per batch.
    pub batch_size: usize,
    /// Seed for shuffling, drawn anew for each epoch; `None` keeps the order of the data set.
    pub shuffle: Option<u64>,
    /// Whether to drop an incomplete last batch of each epoch.
    pub drop_last: bool,
    /// Worker threads; 0 prepares batches on the calling thread.
    pub workers: usize,
    /// Finished batches that each thread queues.
    pub prefetch: usize,
}

impl LoaderOptions {
    /// Batches of this size in the order of the data set, prepared by one thread; the last may be smaller.
    pub fn of(batch_size: usize) -> LoaderOptions {
        LoaderOptions { batch_size, shuffle: None, drop_last: false, workers: 1, prefetch: 2 }
    }

    /// Shuffles the samples of each epoch.
    pub fn shuffled(self, seed: u64) -> LoaderOptions {
        LoaderOptions { shuffle: Some(seed), ..self }
    }

    /// Drops an incomplete last batch.
    pub fn drop_last(self) -> LoaderOptions {
        LoaderOptions { drop_last: true, ..self }
    }

    /// Sets the number of worker threads.
    pub fn workers(self, workers: usize) -> LoaderOptions {
        LoaderOptions { workers, ..self }
    }
}

/// A batch on the device.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The samples' tensors, stacked along a new first dimension.
    pub tensors: Vec<Tensor>,
    /// Indices of its samples.
    pub indices: Vec<usize>,
    pub epoch: u64,
    /// Its index in the epoch.
    pub number: usize,
}

impl Batch {
    /// The tensors as an array of N.
    ///
    /// # Errors
    /// If samples have another number of arrays.
    pub fn take<const N: usize>(self) -> Result<[Tensor; N]> {
        let count = self.tensors.len();
        let got = format!("{count} of a sample");
        self.tensors.try_into().map_err(|_| Error::Shape { op: "batch", expected: format!("{N} tensors"), got })
    }
}

/// Loads batches of a data set.
pub struct DataLoader {
    plan: Arc<Plan>,
}

impl DataLoader {
    /// A loader of this data set to this device.
    ///
    /// # Errors
    /// If the batch size is 0, the data set is empty, or an epoch has no batch.
    pub fn new(dataset: impl Dataset + 'static, options: LoaderOptions, device: &Device) -> Result<DataLoader> {
        let samples = dataset.len();
        if options.batch_size == 0 {
            return Err(Error::Invalid("a batch must have at least one sample, batch_size is 0".into()));
        }
        let plan = Plan { dataset: Box::new(dataset), samples, options, device: device.clone() };
        if plan.batches() == 0 {
            let size = options.batch_size;
            return Err(Error::Invalid(format!("the data set has {samples} samples, too few for a batch of {size}")));
        }
        Ok(DataLoader { plan: Arc::new(plan) })
    }

    /// The data set.
    pub fn dataset(&self) -> &dyn Dataset {
        &*self.plan.dataset
    }

    /// Number of batches per epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.plan.batches()
    }

    /// The batches of one epoch.
    ///
    /// # Errors
    /// If no thread could be started.
    pub fn epoch(&self, epoch: u64) -> Result<Batches> {
        self.epochs(epoch..epoch.saturating_add(1))
    }

    /// The batches of several epochs, prefetched across epochs.
    ///
    /// # Errors
    /// If no thread could be started.
    pub fn epochs(&self, epochs: Range<u64>) -> Result<Batches> {
        self.epochs_from(epochs, 0)
    }

    /// [`DataLoader::epochs`] that skips the first `done` batches without preparing them, to resume a run.
    ///
    /// # Errors
    /// If no thread could be started.
    pub fn epochs_from(&self, epochs: Range<u64>, done: u64) -> Result<Batches> {
        let count = epochs.end.saturating_sub(epochs.start).saturating_mul(self.plan.batches() as u64);
        let todo = Todo { first_epoch: epochs.start, next: done, end: count };
        let workers = self.plan.options.workers as u64;
        let started = (0..workers).map(|worker| {
            let own = Todo { next: done + worker, ..todo.clone() };
            Worker::start(self.plan.clone(), own, workers)
        });
        let workers = started.collect::<Result<Vec<_>>>()?;
        Ok(Batches { plan: self.plan.clone(), todo, turn: 0, workers, order: None })
    }
}

/// An iterator over batches, which ends after an error. Dropping it stops its threads and waits for their current
/// batch.
pub struct Batches {
    plan: Arc<Plan>,
    todo: Todo,
    /// The thread that makes the next batch.
    turn: usize,
    workers: Vec<Worker>,
    order: Option<Order>,
}

impl Iterator for Batches {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        if self.todo.is_empty() {
            return None;
        }
        let batch = match self.workers.is_empty() {
            true => self.plan.make(&self.todo, &mut self.order),
            false => self.workers[self.turn].next_batch(),
        };
        self.turn = (self.turn + 1) % self.workers.len().max(1);
        self.todo.next += 1;
        if batch.is_err() {
            self.todo.next = self.todo.end;
        }
        Some(batch)
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // All at once, so that it waits for the slowest alone.
        self.workers.iter_mut().for_each(Worker::close);
    }
}

/// Which batches are still to be made, counted from the first of an epoch.
#[derive(Debug, Clone)]
pub(super) struct Todo {
    pub first_epoch: u64,
    pub next: u64,
    pub end: u64,
}

impl Todo {
    pub fn is_empty(&self) -> bool {
        self.next >= self.end
    }
}

/// The samples of an epoch in their order.
pub(super) struct Order {
    epoch: u64,
    indices: Vec<usize>,
}

/// The loader's data shared by all threads.
pub(super) struct Plan {
    dataset: Box<dyn Dataset>,
    samples: usize,
    pub options: LoaderOptions,
    device: Device,
}

impl Plan {
    fn batches(&self) -> usize {
        let LoaderOptions { batch_size, drop_last, .. } = self.options;
        if drop_last { self.samples / batch_size } else { self.samples.div_ceil(batch_size) }
    }

    /// Prepares the next batch of `todo`; `order` is cached between calls.
    pub fn make(&self, todo: &Todo, order: &mut Option<Order>) -> Result<Batch> {
        let batches = self.batches() as u64;
        let (epoch, number) = (todo.first_epoch + todo.next / batches, (todo.next % batches) as usize);
        if order.as_ref().is_none_or(|order| order.epoch != epoch) {
            *order = Some(self.order(epoch));
        }
        let size = self.options.batch_size;
        let all = order.as_ref().map_or(&[][..], |order| &order.indices);
        let indices = all[number * size..self.samples.min((number + 1) * size)].to_vec();
        let arrays = collate(&*self.dataset, &indices)?;
        let tensors = arrays.iter().map(|array: &Array| array.to_tensor(&self.device)).collect::<Result<_>>()?;
        Ok(Batch { tensors, indices, epoch, number })
    }

    fn order(&self, epoch: u64) -> Order {
        let mut indices: Vec<usize> = (0..self.samples).collect();
        if let Some(seed) = self.options.shuffle {
            // Seeds and epochs next to each other begin unrelated sequences.
            let mut state = seed;
            let mut state = splitmix64(&mut state) ^ epoch;
            // Every order is equally likely (Fisher and Yates).
            for last in (1..indices.len()).rev() {
                let drawn = u128::from(splitmix64(&mut state)) * (last as u128 + 1);
                indices.swap(last, (drawn >> 64) as usize);
            }
        }
        Order { epoch, indices }
    }
}

#[cfg(test)]
#[path = "loader_tests.rs"]
mod tests;
