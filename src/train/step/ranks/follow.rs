//! Ranks other than 0, which follow the commands of rank 0.

use super::evaluate::evaluate;
use super::outer::Outer;
use super::team::{Make, check_alike};
use super::{Command, Place, RankTimes, join, moments, take_state};
use crate::comm::Background;
use crate::config::{Config, DeviceBatch};
use crate::data::{Position, Tokens};
use crate::models::ModelConfig;
use crate::optim::SavedMoments;
use crate::train::checkpoint::{CARRIED, OPTIMIZER};
use crate::train::setup::init::first_model;
use crate::train::step::carried;
use crate::train::step::replica::{Replica, loader};
use crate::train::step::update_rules::on_device;
use crate::{Device, Error, Result};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Initial data of a rank.
pub(super) struct Follower {
    pub make: Make,
    /// Idle time after which rank 0 sends a heartbeat.
    pub idle: Duration,
    /// Data that must be equal on all ranks.
    pub identity: Vec<u8>,
    pub config: Arc<Config>,
    pub shape: ModelConfig,
    /// Initial number of micro-batches per batch.
    pub splits: usize,
    pub device: Device,
    /// Tokens of the training and the validation split.
    pub tokens: Tokens,
    pub validation: Tokens,
}

/// [`run`] on a thread of a process whose first rank reports its errors.
pub(super) fn follow(follower: Follower) {
    // All ranks have heard of it.
    drop(run(follower));
}

/// Follows rank 0 until it says that the job is done. An error ends the job for all ranks.
///
/// # Errors
/// Whatever ends the job.
pub(super) fn run(mut follower: Follower) -> Result<()> {
    let make = std::mem::replace(&mut follower.make, Box::new(|| unreachable!("it is made once")));
    let comm = Arc::new(Background::start(make, Some(follower.idle))?);
    let device_batch = check_alike(&comm, std::mem::take(&mut follower.identity))?.device_batch;
    obey(follower, &comm, &device_batch).inspect_err(|error| match error {
        // All know of it.
        Error::Communication(_) => {}
        error => comm.abort(&error.to_string()),
    })
}

fn obey(follower: Follower, comm: &Arc<Background>, device_batch: &DeviceBatch) -> Result<()> {
    let waited: Arc<Mutex<Duration>> = Arc::default();
    let validation = follower.validation.clone();
    let mut replica = replica(follower, Place { rank: comm.rank(), ranks: comm.size() })?;
    let mut outer = None;
    let mut updating = Duration::ZERO;
    loop {
        let command = comm.receive()?;
        let wrong = |e: serde_json::Error| Error::Communication(format!("rank 0 sent a malformed command: {e}"));
        let next = || comm.broadcast(Vec::new());
        match serde_json::from_slice(&command).map_err(wrong)? {
            Command::Join => outer = join(&mut replica, comm, device_batch, &waited)?,
            Command::Load { position, updates } => {
                load(&mut replica, outer.as_mut(), updates, next)?;
                replica.start_loader(position)?;
            }
            Command::Align => take_state(&replica.parameters, &replica.optimizer, next)?,
            Command::Updates { step, learning_rates } => {
                for (step, learning_rate) in (step..).zip(learning_rates) {
                    let started = Instant::now();
                    replica.update(step, learning_rate)?;
                    updating += started.elapsed();
                    replica.device.end_step()?;
                }
                let started = Instant::now();
                outer.as_mut().map_or(Ok(()), |outer| outer.step(&replica.parameters))?;
                updating += started.elapsed();
            }
            Command::Evaluate => {
                // What it comes to is for rank 0, which alone may stop it.
                evaluate(comm, &replica, &validation, &AtomicBool::new(false))?;
            }
            Command::Moments => moments::send(comm, &replica)?,
            Command::Carried => {
                let known = replica.carried.as_ref().map_or(Ok(Vec::new()), carried::encode_now)?;
                comm.gather(known)?;
            }
            Command::Report => {
                let waited = *waited.lock().unwrap_or_else(PoisonError::into_inner);
                let notes = std::mem::take(&mut replica.notes);
                let times = RankTimes::new(comm, &replica, updating, waited, notes);
                comm.all_gather(serde_json::to_vec(&times).expect("plain values"))?;
            }
            Command::Stop => return Ok(()),
        }
    }
}

/// Receives weights, moments and recurrent states from rank 0.
fn load(
    replica: &mut Replica,
    outer: Option<&mut Outer>,
    updates: u64,
    mut next: impl FnMut() -> Result<Vec<u8>>,
) -> Result<()> {
    let Replica { parameters, optimizer, .. } = replica;
    parameters.take_stored(&mut next)?;
    let (file, known) = (next()?, next()?);
    let saved = (!file.is_empty()).then(|| SavedMoments::new(OPTIMIZER.as_ref(), &file)).transpose()?;
    match &saved {
        Some(saved) => {
            let Place { rank, ranks } = replica.place.of_moments(&replica.config);
            optimizer.restore(parameters, saved, updates, rank, ranks)?;
        }
        None => {
            optimizer.set_updates(updates);
            parameters.refresh_halves()?;
        }
    }
    outer.map_or(Ok(()), |outer| outer.load(parameters, saved.as_ref()))?;
    replica.carry_on_from(CARRIED.as_ref(), &known)
}

/// Creates model and optimizer; rank 0 sends their values.
fn replica(follower: Follower, place: Place) -> Result<Replica> {
    let Follower { config, shape, splits, device, tokens, .. } = follower;
    let trained = on_device(first_model(&config, &shape, None)?, &config, &device, place)?;
    let loader = loader(&config, shape.kind, tokens.clone(), Position::default())?;
    let mut replica = Replica::new(config, device, trained, tokens, loader, place)?;
    replica.micro_batches = splits;
    Ok(replica)
}
