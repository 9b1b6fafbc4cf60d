//! A background thread that runs a rank's communication while the rank computes.
//!
//! Rank 0 leads: it sends commands, and the others rest in [`Background::receive`] until one comes. A command begins a
//! conversation, in which all ranks make the calls that belong to it, and which [`Background::end`] ends for rank 0:
//!
//! ```text
//! rank 0:  (set up) end        send  all_reduce ... end          send ...
//! others:  (set up) receive .........all_reduce ... receive .........
//! ```
//!
//! Outside of conversations the others are in `receive` or soon will be, so there and only there the thread of rank 0
//! sends heartbeats, which `receive` skips. They tell the others that rank 0 is idle and not frozen, and rank 0 that
//! none of the others is gone. The time from the start to the first `end` or `send` is a conversation too, for set-up.
//! The conversation of the last command is not ended: a heartbeat after it would miss the ranks that have gone.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::worker::{Job, Shared, Worker};
use super::{Communicator, Encoded, Memory, Sums};
use crate::{Error, Result};

/// A communicator on its own thread, which runs calls in the order of the requests.
///
/// Dropping it runs the pending calls and ends the thread, which drops the communicator. During a panic, dropping it
/// aborts the job instead.
pub struct Background {
    rank: usize,
    size: usize,
    /// `None` only while dropping: the thread ends when this end of the channel is gone.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// The pending result of a call.
#[must_use = "the result of a call comes by `wait`"]
pub struct Pending<T>(Receiver<Result<T>>);

impl<T> Pending<T> {
    /// Waits for the call's result.
    ///
    /// # Errors
    /// If the call failed.
    pub fn wait(self) -> Result<T> {
        self.0.recv().unwrap_or_else(|_| Err(thread_ended()))
    }
}

impl Background {
    /// Starts the thread, creates the communicator in it and waits for that. On rank 0, the thread sends a heartbeat
    /// whenever it was idle for `idle` outside of conversations. `idle` must be well below the timeout of the other
    /// ranks; `None` sends no heartbeats.
    ///
    /// # Errors
    /// If the thread cannot be started or `make` fails.
    pub fn start<C: Communicator + 'static>(
        make: impl FnOnce() -> Result<C> + Send + 'static,
        idle: Option<Duration>,
    ) -> Result<Background> {
        let (jobs, queue) = channel();
        let (ready, started) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("communicator".to_string())
            .spawn({
                let shared = shared.clone();
                move || match make() {
                    Ok(communicator) => {
                        // If nobody waits for this, the queue is closed too.
                        let _ = ready.send(Ok((communicator.rank(), communicator.size())));
                        Worker::new(Box::new(communicator), shared, idle).run(&queue);
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            })
            .map_err(|error| Error::Communication(format!("cannot start the communicator's thread: {error}")))?;
        let (rank, size) = started.recv().unwrap_or_else(|_| Err(thread_ended()))?;
        Ok(Background { rank, size, jobs: Some(jobs), thread: Some(thread), shared })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Starts an all-reduce ([`Communicator::all_reduce`]) of the result of `values`, which runs on the thread in order
    /// and may block, for example on a device. If it fails, the job is aborted, because the others would mistake this
    /// rank's next call for this one. [`Pending::wait`] returns the sums.
    pub fn begin_all_reduce(&self, values: impl FnOnce() -> Result<Encoded> + Send + 'static) -> Pending<Sums> {
        self.submit(move |worker| {
            let values = values().inspect_err(|error| worker.abort(error))?;
            worker.call(|communicator| communicator.all_reduce(values))
        })
    }

    /// Broadcasts the bytes of rank 0; those of the others are ignored.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.submit(move |worker| {
            worker.call(|communicator| communicator.broadcast(&mut bytes))?;
            Ok(bytes)
        })
        .wait()
    }

    /// Gathers the bytes of every rank on all ranks, in rank order.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`].
    pub fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Memory>> {
        self.begin_all_gather(|| Ok(Arc::new(bytes))).wait()
    }

    /// Starts an all-gather ([`Communicator::all_gather`]) of the result of `bytes`, which runs on the thread in order
    /// and may block. If it fails, the job is aborted, as by `begin_all_reduce`.
    pub fn begin_all_gather(&self, bytes: impl FnOnce() -> Result<Memory> + Send + 'static) -> Pending<Vec<Memory>> {
        self.submit(move |worker| {
            let bytes = bytes().inspect_err(|error| worker.abort(error))?;
            worker.call(|communicator| communicator.all_gather(bytes))
        })
    }

    /// Starts an exchange in which all ranks take part by other means than the communicator, once all have come to it.
    /// It runs on the thread in order and may block. If it fails, the job is aborted, as by `begin_all_reduce`.
    pub fn begin_exchange<T: Send + 'static>(
        &self,
        exchange: impl FnOnce(&mut dyn Communicator) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.submit(move |worker| {
            worker.call(|communicator| communicator.barrier())?;
            worker.call(exchange).map_err(|error| {
                worker.abort(&error);
                // The first reason of all ranks.
                worker.call(|communicator| communicator.barrier()).err().unwrap_or(error)
            })
        })
    }

    /// Gathers the bytes of every rank on rank 0, in rank order; empty on the others.
    ///
    /// # Errors
    /// As [`Communicator::gather`].
    pub fn gather(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.submit(move |worker| worker.call(|communicator| communicator.gather(&bytes))).wait()
    }

    /// Waits until every rank has called it, after all calls started before.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.submit(|worker| worker.call(|communicator| communicator.barrier())).wait()
    }

    /// Aborts the job on all ranks with this reason. Pending calls fail. Returns when the other ranks can see it:
    /// immediately, or after the running call.
    pub fn abort(&self, reason: &str) {
        self.shared.ask_abort(reason);
        // Any job will do: the thread looks at the reason before each. If it has ended, so has its rank.
        let _ = self
            .submit(|worker| {
                worker.heed_abort();
                Ok(())
            })
            .wait();
    }

    /// Sends a command from rank 0 to all others, which wait in [`receive`](Background::receive), and starts a
    /// conversation.
    ///
    /// # Errors
    /// If this is not rank 0, or another rank does not receive it.
    pub fn send(&self, command: Vec<u8>) -> Result<()> {
        self.check_leads(true, "send a command")?;
        self.submit(move |worker| worker.send(command)).wait()
    }

    /// Ends rank 0's conversation after its pending calls. The others call [`receive`](Background::receive) next. Does
    /// not communicate or wait, and has no effect on other ranks.
    pub fn end(&self) {
        // Nothing comes of it that is worth waiting for.
        drop(self.submit(|worker| {
            worker.end();
            Ok(())
        }));
    }

    /// Waits for the next command of rank 0, without a time limit as long as rank 0 sends heartbeats.
    ///
    /// # Errors
    /// If this is rank 0, neither a command nor a heartbeat arrives in time, or rank 0 makes another call.
    pub fn receive(&self) -> Result<Vec<u8>> {
        self.check_leads(false, "receive a command")?;
        self.submit(Worker::receive).wait()
    }

    /// Time that the thread has spent in calls, including waits for other ranks, but not in waits for commands or in
    /// heartbeats.
    pub fn busy(&self) -> Duration {
        self.shared.busy()
    }

    fn submit<T: Send + 'static>(&self, run: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static) -> Pending<T> {
        let (sender, receiver) = sync_channel(1);
        // Neither a thread that has ended nor a caller that does not wait is an error here: the first shows in `wait`.
        let job: Job = Box::new(move |worker| drop(sender.send(run(worker))));
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        Pending(receiver)
    }

    fn check_leads(&self, leads: bool, what: &str) -> Result<()> {
        if (self.rank == 0) == leads {
            return Ok(());
        }
        let who = if leads { "rank 0 alone" } else { "every rank but 0" };
        Err(Error::Invalid(format!("rank {} cannot {what}: that is for {who}", self.rank)))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("it panicked");
        }
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported where it happened.
            let _ = thread.join();
        }
    }
}

fn thread_ended() -> Error {
    Error::Communication("the communicator's thread has ended".to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::testing::{bits, input, sums_in_order};
    use crate::{Wire, threads};

    const MS: Duration = Duration::from_millis(1);

    fn background(size: usize, timeout: Duration, idle: Option<Duration>) -> Vec<Background> {
        let ranks = threads(size, Some(timeout), &[]).unwrap().into_iter();
        ranks.map(|comm| Background::start(move || Ok(comm), idle).unwrap()).collect()
    }

    fn on_all<T: Send>(ranks: Vec<Background>, run: impl Fn(&Background) -> T + Sync) -> Vec<T> {
        let run = &run;
        std::thread::scope(|scope| {
            let handles: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(&rank))).collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        })
    }

    fn values(values: Vec<f32>, wire: Wire) -> impl FnOnce() -> Result<Encoded> + Send + 'static {
        move || Ok(Encoded::new(values, wire))
    }

    #[test]
    fn an_all_reduce_runs_while_the_rank_does_something_else() {
        let waits = on_all(background(2, 5000 * MS, None), |rank| {
            let pending: Vec<_> =
                (0..4).map(|_| rank.begin_all_reduce(values(input(rank.rank(), 100_003, 0), Wire::F32))).collect();
            std::thread::sleep(1000 * MS);
            let busy = rank.busy();
            let start = Instant::now();
            for sums in pending {
                assert!(bits(&sums.wait().unwrap().to_f32()) == bits(&sums_in_order(2, 100_003, Wire::F32)));
            }
            assert!(rank.busy() == busy && busy > Duration::ZERO, "nothing was left to do: {busy:?}");
            start.elapsed()
        });
        // Comparing takes most of this.
        assert!(waits.iter().all(|wait| *wait < 700 * MS), "{waits:?}");
    }

    #[test]
    fn calls_are_made_in_order() {
        on_all(background(3, 5000 * MS, None), |rank| {
            let pending = rank.begin_all_reduce(values(vec![1.0; 10], Wire::F16));
            assert_eq!(rank.broadcast(vec![rank.rank() as u8]).unwrap(), [0]);
            let parts = [vec![], vec![1], vec![1, 1]];
            let all = rank.all_gather(vec![1; rank.rank()]).unwrap();
            assert!(all.iter().zip(&parts).all(|(bytes, part)| bytes[..] == part[..]) && all.len() == 3);
            let gathered = rank.gather(vec![1; rank.rank()]).unwrap();
            assert!(if rank.rank() == 0 { gathered == parts } else { gathered.is_empty() });
            rank.barrier().unwrap();
            assert_eq!(pending.wait().unwrap().to_f32(), [3.0; 10]);
        });
    }

    /// What rank 1 receives when rank 0 sets up, is idle for 1 s and then sends a command; 300 ms is the timeout.
    fn received_after_a_second(idle: Option<Duration>) -> Result<Vec<u8>> {
        let mut results = on_all(background(2, 300 * MS, idle), |rank| {
            rank.barrier()?;
            if rank.rank() == 1 {
                return rank.receive();
            }
            rank.end();
            std::thread::sleep(1000 * MS);
            rank.send(vec![1, 2, 3])?;
            Ok(vec![])
        });
        results.remove(1)
    }

    #[test]
    fn heartbeats_keep_a_waiting_rank_alive() {
        assert_eq!(received_after_a_second(Some(50 * MS)).unwrap(), [1, 2, 3]);
    }

    #[test]
    fn without_heartbeats_a_waiting_rank_gives_up() {
        let error = received_after_a_second(None).unwrap_err().to_string();
        assert_eq!(error, "rank 0 did not reach broadcast within 0.3 s");
    }

    #[test]
    fn no_heartbeat_comes_between_the_calls_of_a_conversation() {
        on_all(background(2, 2000 * MS, Some(MS)), |rank| {
            rank.barrier().unwrap();
            for turn in 0..10 {
                if rank.rank() == 0 {
                    rank.end();
                    std::thread::sleep(turn * MS);
                    rank.send(vec![turn as u8]).unwrap();
                } else {
                    assert_eq!(rank.receive().unwrap(), [turn as u8]);
                }
                if rank.rank() == 0 {
                    // Longer than `idle`: a heartbeat here would meet the all-reduce of rank 1.
                    std::thread::sleep(5 * MS);
                }
                assert_eq!(rank.begin_all_reduce(values(vec![1.0], Wire::F32)).wait().unwrap().to_f32(), [2.0]);
            }
        });
    }

    #[test]
    fn a_call_of_rank_0_outside_of_a_conversation_is_refused() {
        let ranks = background(1, 300 * MS, None);
        ranks[0].end();
        assert!(ranks[0].barrier().unwrap_err().to_string().contains("has to send first"));
        ranks[0].send(vec![]).unwrap();
        ranks[0].barrier().unwrap();
    }

    #[test]
    fn only_rank_0_sends_and_only_others_receive() {
        let ranks = background(2, 300 * MS, None);
        assert!(ranks[0].receive().is_err() && ranks[1].send(vec![]).is_err());
    }

    #[test]
    fn an_abort_ends_the_calls_of_all() {
        let errors = on_all(background(2, 5000 * MS, None), |rank| {
            if rank.rank() == 1 {
                rank.abort("no memory");
            }
            rank.begin_all_reduce(values(vec![1.0], Wire::F32)).wait().unwrap_err().to_string()
        });
        assert_eq!(errors, ["rank 1 aborted: no memory"; 2]);
    }

    #[test]
    fn an_abort_ends_a_receive_at_the_next_heartbeat() {
        on_all(background(2, 5000 * MS, Some(10 * MS)), |rank| {
            if rank.rank() == 0 {
                rank.end();
                std::thread::sleep(300 * MS);
                assert_eq!(rank.send(vec![]).unwrap_err().to_string(), "rank 1 aborted: interrupted");
                return;
            }
            std::thread::scope(|scope| {
                let receive = scope.spawn(|| rank.receive());
                std::thread::sleep(50 * MS);
                rank.abort("interrupted");
                assert_eq!(receive.join().unwrap().unwrap_err().to_string(), "rank 1 aborted: interrupted");
            });
        });
    }

    #[test]
    fn a_panic_of_the_rank_ends_the_others() {
        let mut ranks = background(2, 5000 * MS, None);
        let other = ranks.remove(1);
        std::thread::scope(|scope| {
            let panics = scope.spawn(move || {
                let _other = other;
                panic!("as this test wants");
            });
            assert_eq!(ranks[0].barrier().unwrap_err().to_string(), "rank 1 aborted: it panicked");
            assert!(panics.join().is_err());
        });
    }

    #[test]
    fn what_fails_to_be_made_fails_the_start() {
        let make = || -> Result<super::super::ThreadComm> { Err(Error::Communication("no network".to_string())) };
        assert_eq!(Background::start(make, None).err().unwrap().to_string(), "no network");
    }
}
