//! Batches of a data set, made ahead of time by threads.
//!
//! Batch number k of a run through some epochs is made by thread k modulo their number, each of which has its own
//! queue: the order of the batches depends on nothing but the seed and the epoch. A thread also uploads its batches, so
//! that a GPU gets the next one while it computes with this one.

use super::dataset::{Array, Dataset, collate};
use super::worker::Worker;
use crate::ops::random::splitmix64;
use crate::{Device, Error, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// How batches are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Samples of a batch.
    pub batch_size: usize,
    /// Whether samples come in an order that is drawn anew for each epoch, from this seed and the epoch's number.
    pub shuffle: Option<u64>,
    /// Whether the last batch of an epoch is left out if it has fewer samples than the others.
    pub drop_last: bool,
    /// Threads that make batches. With none they are made by whoever asks for one.
    pub workers: usize,
    /// Batches that each thread makes ahead, beside the one that it is making.
    pub prefetch: usize,
}

impl LoaderOptions {
    /// Batches of so many samples in their own order, the last perhaps smaller, made by one thread.
    pub fn of(batch_size: usize) -> LoaderOptions {
        LoaderOptions { batch_size, shuffle: None, drop_last: false, workers: 1, prefetch: 2 }
    }

    /// The same in random order.
    pub fn shuffled(self, seed: u64) -> LoaderOptions {
        LoaderOptions { shuffle: Some(seed), ..self }
    }

    /// The same without smaller batches.
    pub fn drop_last(self) -> LoaderOptions {
        LoaderOptions { drop_last: true, ..self }
    }

    /// The same with so many threads.
    pub fn workers(self, workers: usize) -> LoaderOptions {
        LoaderOptions { workers, ..self }
    }
}

/// A batch on the device.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Those of the samples along a new first dimension.
    pub tensors: Vec<Tensor>,
    /// The samples that it is made of.
    pub indices: Vec<usize>,
    pub epoch: u64,
    /// From 0 in each epoch.
    pub number: usize,
}

impl Batch {
    /// Its tensors, of which there are so many.
    ///
    /// # Errors
    /// If a sample has more or fewer arrays.
    pub fn take<const N: usize>(self) -> Result<[Tensor; N]> {
        let count = self.tensors.len();
        let got = format!("{count} of a sample");
        self.tensors.try_into().map_err(|_| Error::Shape { op: "batch", expected: format!("{N} tensors"), got })
    }
}

/// Makes batches of a data set.
pub struct DataLoader {
    plan: Arc<Plan>,
}

impl DataLoader {
    /// Batches of this data set on this device.
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

    /// Batches of an epoch.
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

    /// The batches of several epochs, one after the other without a pause.
    ///
    /// # Errors
    /// If no thread could be started.
    pub fn epochs(&self, epochs: Range<u64>) -> Result<Batches> {
        self.epochs_from(epochs, 0)
    }

    /// [`DataLoader::epochs`] without so many of its first batches, which are not made: to go on where a run was.
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

/// Batches in their order. It ends after an error. Dropped, it ends its threads, for which it waits until each has made
/// the batch that it is making.
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

/// What all threads know.
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

    /// The next batch of `todo`; `order` is what the last call left.
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
