//! Every rank but 0: it does what rank 0 says.

use super::reduce::DataParallel;
use super::team::{Make, check_alike};
use super::{Command, RankTimes, Share, take_state, wire};
use crate::comm::Background;
use crate::config::Config;
use crate::data::{Loader, Position, Tokens};
use crate::models::ModelConfig;
use crate::train::init::first_model;
use crate::train::replica::Replica;
use crate::train::update_rules::on_device;
use crate::{Device, Error, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a rank begins with.
pub(super) struct Follower {
    pub make: Make,
    /// How long its communicator may have nothing to do before rank 0 says that it lives.
    pub idle: Duration,
    /// What has to be the same on all ranks.
    pub identity: Vec<u8>,
    pub config: Arc<Config>,
    pub shape: ModelConfig,
    pub device: Device,
    pub share: Share,
    pub tokens: Tokens,
}

/// [`run`] in a thread of a process whose first rank tells of its errors.
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
    check_alike(&comm, std::mem::take(&mut follower.identity))?;
    obey(follower, &comm).inspect_err(|error| match error {
        // All know of it.
        Error::Communication(_) => {}
        error => comm.abort(&error.to_string()),
    })
}

fn obey(follower: Follower, comm: &Arc<Background>) -> Result<()> {
    let waited: Arc<Mutex<Duration>> = Arc::default();
    let mut replica = replica(follower, comm.clone(), waited.clone())?;
    let mut updating = Duration::ZERO;
    loop {
        let command = comm.receive()?;
        let wrong = |e: serde_json::Error| Error::Communication(format!("rank 0 sent what is no command: {e}"));
        let next = || comm.broadcast(Vec::new());
        match serde_json::from_slice(&command).map_err(wrong)? {
            Command::Load { position, updates } => {
                take_state(&replica.parameters, &replica.optimizer, next)?;
                replica.optimizer.set_updates(updates);
                replica.start_loader(position)?;
            }
            Command::Align => take_state(&replica.parameters, &replica.optimizer, next)?,
            Command::Update { step, learning_rate } => {
                let started = Instant::now();
                replica.update(step, learning_rate)?;
                updating += started.elapsed();
                replica.device.end_step()?;
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

/// The model and its optimizer, whose numbers rank 0 is about to send.
fn replica(follower: Follower, comm: Arc<Background>, waited: Arc<Mutex<Duration>>) -> Result<Replica> {
    let Follower { config, shape, device, share, tokens, .. } = follower;
    // Rank 0 alone evaluates, by averages if there are any.
    let mut own = Config::clone(&config);
    own.train.ema_decay = 0.0;
    let (model, parameters, optimizer) = on_device(first_model(&own, &shape)?, &own, &device)?;
    let (t, block_size) = (&config.train, config.model.block_size);
    let loader = Loader::new(tokens.clone(), t.batch_size, block_size, config.run.seed, Position::default())?;
    let hook = Box::new(DataParallel::new(comm, wire(&config), waited));
    Ok(Replica {
        config,
        device,
        model,
        parameters,
        optimizer,
        tokens,
        loader,
        share,
        micro_batches: 1,
        hook,
        notes: vec![],
    })
}
