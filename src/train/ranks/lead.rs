//! Rank 0: it tells the other ranks what to do, and does the same.

use super::reduce::DataParallel;
use super::team::Begun;
use super::{Command, RankTimes, Share, Team, state_of, wire};
use crate::comm::Background;
use crate::data::Position;
use crate::train::replica::{Replica, Update};
use crate::train::step_hook::{SingleDevice, StepHook};
use crate::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Leads the other ranks, if there are any.
pub(in crate::train) struct Leader {
    job: Option<Job>,
    /// How long this rank has been in updates, and has waited in them.
    updating: Duration,
    waited: Arc<Mutex<Duration>>,
}

/// Several ranks.
struct Job {
    comm: Arc<Background>,
    threads: Vec<JoinHandle<()>>,
    /// Whether the devices round alike, so that the same updates leave the same bits.
    are_alike: bool,
    /// Updates since all had the same bits.
    since_aligned: usize,
}

/// Updates after which ranks on different kinds of devices, whose weights drift apart by rounding, take those of rank
/// 0.
const ALIGN_EVERY: usize = 50;

/// What the ranks of this process begin with: who leads, and what rank 0 does between backward and the optimizer.
pub(in crate::train) struct Started {
    pub leader: Leader,
    pub hook: Box<dyn StepHook>,
    pub share: Share,
}

/// Brings the ranks of a job together, if there are several.
///
/// # Errors
/// Those of [`Team::begin`].
pub(in crate::train) fn start(team: &Team) -> Result<Started> {
    let waited = Arc::default();
    if team.size() == 1 {
        let leader = Leader { job: None, updating: Duration::ZERO, waited };
        let share = Share::all(team.config, 1)?.remove(0);
        return Ok(Started { leader, hook: Box::new(SingleDevice), share });
    }
    let Begun { comm, threads, share, are_alike } = team.begin()?;
    let hook = DataParallel::new(comm.clone(), wire(team.config), Arc::clone(&waited));
    let job = Job { comm, threads, are_alike, since_aligned: 0 };
    let leader = Leader { job: Some(job), updating: Duration::ZERO, waited };
    Ok(Started { leader, hook: Box::new(hook), share })
}

impl Leader {
    /// One update, on every rank.
    ///
    /// # Errors
    /// Those of [`Replica::update`] on any rank.
    pub fn update(&mut self, replica: &mut Replica, step: usize, learning_rate: f64) -> Result<Update> {
        let Some(job) = &mut self.job else { return replica.update(step, learning_rate) };
        if job.since_aligned >= ALIGN_EVERY {
            job.align(replica)?;
        }
        job.send(&Command::Update { step, learning_rate })?;
        let started = Instant::now();
        let update = replica.update(step, learning_rate);
        self.updating += started.elapsed();
        job.comm.end();
        job.since_aligned += 1;
        update
    }

    /// Has all ranks begin as this one, at a place in the text and after so many updates.
    ///
    /// # Errors
    /// If the ranks cannot go on together.
    pub fn load(&mut self, replica: &Replica, position: Position, updates: u64) -> Result<()> {
        let Some(job) = &mut self.job else { return Ok(()) };
        job.send(&Command::Load { position, updates })?;
        job.share_state(replica)
    }

    /// Gives all ranks the same bits, if their devices may have left others: a run that is resumed begins so.
    ///
    /// # Errors
    /// If the ranks cannot go on together.
    pub fn align(&mut self, replica: &Replica) -> Result<()> {
        self.job.as_mut().map_or(Ok(()), |job| job.align(replica))
    }

    /// What the time of each rank went into; nothing of one alone.
    ///
    /// # Errors
    /// If the ranks cannot go on together.
    pub fn times(&mut self, replica: &Replica) -> Result<Vec<RankTimes>> {
        let Some(job) = &mut self.job else { return Ok(Vec::new()) };
        job.send(&Command::Report)?;
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        let times = job.gather(&RankTimes::new(&job.comm, replica, self.updating, waited, Vec::new()));
        job.comm.end();
        times
    }

    /// Ends the other ranks: with the run if it is `None`, or for this reason.
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
        self.share_state(replica)
    }

    /// Sends weights and moments to the other ranks.
    fn share_state(&mut self, replica: &Replica) -> Result<()> {
        for tensor in state_of(&replica.parameters, &replica.optimizer) {
            self.comm.broadcast(tensor.to_bytes()?)?;
        }
        self.comm.end();
        self.since_aligned = 0;
        Ok(())
    }

    fn gather(&self, own: &RankTimes) -> Result<Vec<RankTimes>> {
        let all = self.comm.all_gather(serde_json::to_vec(own).expect("plain values"))?;
        let read = |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(|e| Error::Communication(e.to_string()));
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
            notes,
        }
    }
}
