//! Rank 0, which sends commands to the other ranks and executes them too.

use super::evaluate::evaluate;
use super::outer::Outer;
use super::team::Begun;
use super::{Command, RankTimes, Share, Team, join, moments, state_of, wire};
use crate::comm::{Background, Memory};
use crate::config::DeviceBatch;
use crate::data::{Position, Tokens};
use crate::optim::{Moment, SavedMoments};
use crate::tensor::Bytes;
use crate::train::checkpoint::{CARRIED, OPTIMIZER};
use crate::train::evaluation::evaluate::Total;
use crate::train::step::carried;
use crate::train::step::replica::{Replica, Update};
use crate::{Error, Result, Tensor};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Leads the other ranks, if there are any.
pub(in crate::train) struct Leader {
    job: Option<Job>,
    /// Of ranks that train apart.
    outer: Option<Outer>,
    /// The step after which a round ends that has begun: for ranks that train together each update is one.
    round_end: Option<usize>,
    /// How long this rank has been in updates, and has waited in them.
    updating: Duration,
    waited: Arc<Mutex<Duration>>,
}

/// Checkpoint data of the other ranks, and of their outer step.
#[derive(Default)]
pub(in crate::train) struct Further {
    pub moments: Vec<(Moment, Bytes)>,
    /// Their parts of sharded weights.
    pub values: Vec<(Range<usize>, Bytes)>,
    /// Each rank's recurrent states, as a checkpoint file.
    pub carried: Vec<Vec<u8>>,
}

/// Several ranks.
struct Job {
    comm: Arc<Background>,
    threads: Vec<JoinHandle<()>>,
    /// Whether the devices round identically, so that equal updates give equal bits.
    are_alike: bool,
    /// Whether rank 0 has all that the others have.
    has_one_state: bool,
    /// Updates since all had the same bits.
    since_aligned: usize,
    /// As rank 0 has it, or as it is to be measured.
    device_batch: DeviceBatch,
}

/// Updates between alignments: ranks on unlike devices, whose weights drift by rounding, then copy those of rank 0.
const ALIGN_EVERY: usize = 50;

const EVENLY_DIVIDED: &str = "the devices differ, but have equal shares of a step: train.device_batch = \"auto\" \
                              divides it by speed";

impl Leader {
    /// Connects the ranks of a job, if there are several: the others create their models while this one creates its
    /// own, with which it [joins](Leader::join) them.
    ///
    /// # Errors
    /// Those of [`Team::begin`].
    pub fn begin(team: &Team) -> Result<Leader> {
        let mut leader =
            Leader { job: None, outer: None, round_end: None, updating: Duration::ZERO, waited: Arc::default() };
        if team.size() > 1 {
            let Begun { comm, threads, are_alike, device_batch } = team.begin()?;
            // From here on they hear that this one lives.
            comm.end();
            let has_one_state = team.config.train.sync_every == 0 && !team.config.train.shard_optimizer;
            leader.job = Some(Job { comm, threads, are_alike, has_one_state, since_aligned: 0, device_batch });
        }
        Ok(leader)
    }

    /// Makes this replica rank 0 of the job, and assigns shares to the others.
    ///
    /// # Errors
    /// If the sequences cannot be divided, a device cannot be measured, or a rank failed.
    pub fn join(&mut self, replica: &mut Replica) -> Result<()> {
        let Some(job) = &mut self.job else {
            let (config, kind) = (&replica.config, replica.model.config().kind);
            let is_apart = config.train.sync_every > 0;
            self.outer = is_apart.then(|| Outer::new(None, wire(config), 1.0, self.waited.clone()));
            replica.share = Share::all(config, kind, 1)?.remove(0);
            return Ok(());
        };
        job.send(&Command::Join)?;
        self.outer = join(replica, &job.comm, &job.device_batch, &self.waited)?;
        job.comm.end();
        if !job.are_alike && job.device_batch == DeviceBatch::default() {
            replica.notes.push(EVENLY_DIVIDED.into());
        }
        // Where each weight is computed by one rank, or by all from the same sums, the bits are the same.
        job.are_alike |= !job.has_one_state;
        Ok(())
    }

    /// Update number `step` of `total`, on every rank, at the learning rate that `rate` gives for it. Ranks that train
    /// apart meet after it, if it ends their round.
    ///
    /// # Errors
    /// Those of [`Replica::update`] on any rank.
    pub fn update(
        &mut self,
        replica: &mut Replica,
        step: usize,
        total: usize,
        rate: &dyn Fn(usize) -> f64,
    ) -> Result<Update> {
        let end = match self.round_end {
            Some(end) => end,
            None => self.begin_round(replica, step, total, rate)?,
        };
        let started = Instant::now();
        let update = replica.update(step, rate(step))?;
        if step + 1 == end {
            self.end_round(replica)?;
        }
        self.updating += started.elapsed();
        Ok(update)
    }

    /// Tells the others of the next updates: one, or as many as they make apart. Gives the step after the last.
    fn begin_round(
        &mut self,
        replica: &Replica,
        step: usize,
        total: usize,
        rate: &dyn Fn(usize) -> f64,
    ) -> Result<usize> {
        let end = match replica.config.train.sync_every {
            0 => step + 1,
            every => ((step / every + 1) * every).min(total.max(step + 1)),
        };
        if let Some(job) = &mut self.job {
            if job.since_aligned >= ALIGN_EVERY {
                job.align(replica)?;
            }
            job.send(&Command::Updates { step, learning_rates: (step..end).map(rate).collect() })?;
        }
        self.round_end = Some(end);
        Ok(end)
    }

    fn end_round(&mut self, replica: &Replica) -> Result<()> {
        self.round_end = None;
        if let Some(outer) = &mut self.outer {
            outer.step(&replica.parameters)?;
        }
        if let Some(job) = &mut self.job {
            job.comm.end();
            job.since_aligned += 1;
        }
        Ok(())
    }

    /// Meets the others before the round of ranks that train apart is over here, whose result is to be replaced.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn abandon_round(&mut self, replica: &Replica) -> Result<()> {
        if self.round_end.is_some() { self.end_round(replica) } else { Ok(()) }
    }

    /// Whether all ranks have equal weights (up to rounding), which they do except between synchronizations of local
    /// steps.
    pub fn is_between_rounds(&self) -> bool {
        self.round_end.is_none()
    }

    /// Has all ranks begin as this one, at a place in the text and after so many updates; with the moments of a
    /// checkpoint if there is one, and with what a recurrent model knew of the text then. Where the ranks divide the
    /// weights, `weights` are all that this one began with.
    ///
    /// # Errors
    /// If a file of the checkpoint cannot be read, or a rank failed.
    pub fn load(
        &mut self,
        replica: &mut Replica,
        weights: &[(String, Tensor)],
        position: Position,
        updates: u64,
        checkpoint: Option<&Path>,
    ) -> Result<()> {
        let known = carried::read(checkpoint, replica.model.config())?;
        replica.carry_on_from(&checkpoint.unwrap_or(Path::new("")).join(CARRIED), &known)?;
        if self.job.is_none() && self.outer.is_none() {
            return Ok(());
        }
        let path = checkpoint.map(|checkpoint| checkpoint.join(OPTIMIZER));
        let read = |path: &PathBuf| std::fs::read(path).map_err(|e| Error::io("read", path, e));
        let file = path.as_ref().map(read).transpose()?.unwrap_or_default();
        let saved = path.as_ref().map(|path| SavedMoments::new(path, &file)).transpose()?;
        if let Some(outer) = &mut self.outer {
            outer.load(&replica.parameters, saved.as_ref())?;
        }
        let Some(job) = &mut self.job else { return Ok(()) };
        job.send(&Command::Load { position, updates })?;
        for bytes in replica.parameters.stored_bytes(weights)? {
            job.comm.broadcast(bytes)?;
        }
        job.comm.broadcast(file)?;
        job.comm.broadcast(known)?;
        job.comm.end();
        job.since_aligned = 0;
        Ok(())
    }

    /// Copies rank 0's weights to all ranks, if their devices may round differently, as at the start of a resumed run.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn align(&mut self, replica: &Replica) -> Result<()> {
        self.job.as_mut().map_or(Ok(()), |job| job.align(replica))
    }

    /// Whether all ranks evaluate, each a part. Rank 0 does it alone where it alone has what is evaluated, averages of
    /// the weights, or where a part of the text is nothing without what comes before.
    pub fn evaluates_together(&self, replica: &Replica) -> bool {
        let averages = replica.config.train.ema_decay > 0.0;
        self.job.is_some() && !averages && replica.share.continued().is_none()
    }

    /// The loss over the validation split, of all ranks; `None` if `stop` was set before the end.
    ///
    /// # Errors
    /// If a device reported an error, or a rank failed.
    pub fn evaluate(&mut self, replica: &Replica, validation: &Tokens, stop: &AtomicBool) -> Result<Option<Total>> {
        let Some(job) = &mut self.job else { return Ok(None) };
        job.align(replica)?;
        job.send(&Command::Evaluate)?;
        let total = evaluate(&job.comm, replica, validation, stop)?;
        job.comm.end();
        Ok(total)
    }

    /// Checkpoint data that this rank lacks.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn further(&self, replica: &Replica) -> Result<Further> {
        let mut further = Further::default();
        if let Some(job) = self.job.as_ref().filter(|job| !job.has_one_state) {
            job.send(&Command::Moments)?;
            let received = moments::receive(&job.comm, self.outer.is_none())?;
            let (values, moments) = received.into_iter().partition(|(moment, _)| moment.is_trained());
            further.moments = moments;
            further.values = Vec::into_iter(values).map(|(moment, bytes)| (moment.range, bytes)).collect();
            job.comm.end();
        }
        if let Some(outer) = &self.outer {
            further.moments.push((Moment::outer(&replica.parameters), Bytes::owned(outer.momentum())));
        }
        if let Some(job) = self.job.as_ref().filter(|_| replica.carried.is_some()) {
            job.send(&Command::Carried)?;
            further.carried = job.comm.gather(Vec::new())?.split_off(1);
            job.comm.end();
        }
        Ok(further)
    }

    /// Time by activity of each rank; empty for a single rank.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn times(&mut self, replica: &Replica) -> Result<Vec<RankTimes>> {
        let Some(job) = &mut self.job else { return Ok(Vec::new()) };
        job.send(&Command::Report)?;
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        let times = job.gather(&RankTimes::new(&job.comm, replica, self.updating, waited, Vec::new()));
        job.comm.end();
        times
    }

    /// Stops the other ranks: at the end of the run (`None`), or with this reason.
    pub fn stop(&mut self, reason: Option<&str>) {
        let Some(job) = self.job.take() else { return };
        // Whatever keeps them from hearing it has ended them.
        match reason {
            None => drop(job.send(&Command::Stop)),
            Some(reason) => job.comm.abort(reason),
        }
        drop(job.comm);
        job.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.stop(Some("the run has ended"));
    }
}

impl Job {
    fn send(&self, command: &Command) -> Result<()> {
        self.comm.send(serde_json::to_vec(command).expect("plain values"))
    }

    fn align(&mut self, replica: &Replica) -> Result<()> {
        if self.are_alike || self.since_aligned == 0 {
            return Ok(());
        }
        self.send(&Command::Align)?;
        for tensor in state_of(&replica.parameters, &replica.optimizer) {
            self.comm.broadcast(tensor.to_bytes()?)?;
        }
        self.comm.end();
        self.since_aligned = 0;
        Ok(())
    }

    fn gather(&self, own: &RankTimes) -> Result<Vec<RankTimes>> {
        let all = self.comm.all_gather(serde_json::to_vec(own).expect("plain values"))?;
        let read = |bytes: Memory| serde_json::from_slice(&bytes).map_err(|e| Error::Communication(e.to_string()));
        all.into_iter().map(read).collect()
    }
}

impl RankTimes {
    pub(super) fn new(
        comm: &Background,
        replica: &Replica,
        updating: Duration,
        waited: Duration,
        notes: Vec<String>,
    ) -> RankTimes {
        RankTimes {
            rank: comm.rank(),
            device: replica.device.describe(),
            sequences: replica.share.len(),
            compute: updating.saturating_sub(waited).as_secs_f64(),
            waiting: waited.as_secs_f64(),
            communication: comm.busy().as_secs_f64(),
            memory: replica.device.memory().peak_bytes,
            weights: replica.parameters.value_bytes(),
            moments: replica.optimizer.moments().iter().map(|(_, tensor)| tensor.spec().size_bytes()).sum(),
            notes,
        }
    }
}
