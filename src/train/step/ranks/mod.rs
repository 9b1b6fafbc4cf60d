//! Training on several devices: each is a rank, with the whole model and its share of the sequences of every step (data
//! parallelism). Gradients are summed over all ranks before each update (`reduce.rs`), so that all ranks make the same
//! update, equal to one device with gradient accumulation.
//!
//! With `train.sync_every`, ranks make local updates and synchronize after this number of them (`outer.rs`).
//!
//! Rank 0 leads (`lead.rs`): it owns the run's folder, makes all decisions, saves, and sends commands to the others
//! (`follow.rs`), so ranks cannot diverge in decisions.

mod ballot;
mod card_sync;
mod cards;
mod dry;
mod evaluate;
mod exchange_buffers;
mod follow;
mod lead;
mod moments;
mod outer;
mod pace;
mod reduce;
mod share;
mod team;
#[cfg(test)]
mod tests;
mod token_rows;
mod writer;

pub(in crate::train) use dry::DryRanks;
pub(in crate::train) use lead::{Further, Leader};
pub(in crate::train) use share::{Piece, Sequences, Share};
pub(in crate::train) use team::Team;

use crate::comm::{Background, Launch, Wire};
use crate::config::{Config, DeviceBatch, WireDtype};
use crate::optim::{Optimizer, ParameterArena};
use crate::step::GradientSync;
use crate::train::step::replica::Replica;
use crate::units;
use crate::{DType, Device, Result, Tensor};
use ballot::Ballot;
use card_sync::CardSync;
use outer::Outer;
use reduce::DataParallel;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use token_rows::TokenRows;

/// Commands of rank 0.
#[derive(Debug, Serialize, Deserialize)]
enum Command {
    /// Take your share of a step, which may have to be measured on all.
    Join,
    /// Begin with a batch of this place in the text, with the weights and the files of moments and of what is known of
    /// the text that follow, after so many updates.
    Load {
        position: crate::data::Position,
        updates: u64,
    },
    /// The updates from this number on, the first being 0. Ranks that train apart meet after the last.
    Updates {
        step: usize,
        learning_rates: Vec<f64>,
    },
    /// Compute your part of the loss over the validation split.
    Evaluate,
    /// Send what your optimizer remembers.
    Moments,
    /// Send what your model, a recurrent one, knows of the text.
    Carried,
    /// Take the weights and moments that follow: devices of other kinds round differently.
    Align,
    /// Tell what your time went into.
    Report,
    Stop,
}

/// Where a rank's time went, in seconds, since it began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    pub rank: usize,
    /// "gpu:1 NVIDIA H200 (vulkan)"
    pub device: String,
    /// Sequences of a step that it computes.
    pub sequences: usize,
    /// In updates without what follows.
    pub compute: f64,
    /// Of waiting for the others: for slower ranks, and for what is not hidden behind the computation.
    pub waiting: f64,
    /// In which its gradients were on their way, also while it computed.
    pub communication: f64,
    /// The most that the device held, in bytes.
    pub memory: usize,
    /// Bytes of the weights that it has, f16 copies included.
    pub weights: usize,
    /// Bytes of what its optimizer remembers.
    pub moments: usize,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// Numbers that are exchanged at a time: so many that a sum is no matter of latency, so few that the first gradients
/// are on their way early.
pub(in crate::train) const BUCKET: usize = 1 << 22;

/// Numbers that ranks exchange at a time: [`BUCKET`]; in tests so few that the gradients of small models have several.
const EXCHANGED: usize = if cfg!(test) { 1 << 11 } else { BUCKET };

/// Which rank of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::train) struct Place {
    pub rank: usize,
    pub ranks: usize,
}

impl Place {
    pub const ALONE: Place = Place { rank: 0, ranks: 1 };

    /// Of a process's first rank, where each process of the launch has so many devices.
    pub fn of_first(launch: Option<Launch>, devices: usize) -> Place {
        let (process, processes) = launch.map_or((0, 1), |launch| (launch.process, launch.processes));
        Place { rank: process * devices, ranks: processes * devices }
    }

    /// Whose moments are its own, of those that have moments of their own.
    pub fn of_moments(self, config: &Config) -> Place {
        if config.train.sync_every > 0 { self } else { Place::ALONE }
    }
}

/// "cpu", or "2 x NVIDIA H200 (vulkan) + cpu" of several devices, as `name` calls each.
pub(in crate::train) fn named(device: &Device, others: &[Device], name: fn(&Device) -> String) -> String {
    let names: Vec<String> = [device].into_iter().chain(others).map(name).collect();
    let alike = names.chunk_by(|a, b| a == b).map(|alike| match alike {
        [name] => name.clone(),
        names => format!("{} x {}", names.len(), names[0]),
    });
    alike.collect::<Vec<_>>().join(" + ")
}

/// A line for each rank, under a heading: what its time went into. Nothing of a rank alone.
pub fn rank_table(ranks: &[RankTimes]) -> String {
    let Some(first) = ranks.first() else { return String::new() };
    let width = ranks.iter().map(|rank| rank.device.len()).fold("device".len(), usize::max);
    let columns = "sequences  compute s  waiting s  communication s      memory  of it weights  of it moments";
    let mut text = format!("\n  rank  {:<width$}  {columns}\n", "device");
    for times in ranks {
        let RankTimes { rank, device, sequences, compute, waiting, communication, memory, weights, moments, .. } =
            times;
        let [memory, weights, moments] = [*memory, *weights, *moments].map(|bytes| units::bytes(bytes as u64));
        text += &format!(
            "  {rank:>4}  {device:<width$}  {sequences:>9}  {compute:>9.2}  {waiting:>9.2}  {communication:>15.2}  \
             {memory:>10}  {weights:>13}  {moments:>13}\n"
        );
    }
    let share = 100.0 * first.waiting / (first.compute + first.waiting).max(1e-9);
    text + &format!("  rank 0 waited for the others {share:.1}% of its updates\n")
}

/// Type of transferred gradients.
fn wire(config: &Config) -> Wire {
    match config.train.reduce_dtype {
        WireDtype::F32 => Wire::F32,
        WireDtype::F16 => Wire::F16,
    }
}

/// The same on a device.
fn exchanged_dtype(config: &Config) -> DType {
    match config.train.reduce_dtype {
        WireDtype::F32 => DType::F32,
        WireDtype::F16 => DType::F16,
    }
}

/// Makes a replica one of several: gives it its share of a step, which may have to be measured on all, and what it does
/// between backward and the optimizer; where it trains apart from the others, when they meet.
///
/// # Errors
/// If the sequences cannot be divided, a device cannot be measured, or the ranks cannot go on together.
fn join(
    replica: &mut Replica,
    comm: &Arc<Background>,
    device_batch: &DeviceBatch,
    waited: &Arc<Mutex<Duration>>,
) -> Result<Option<Outer>> {
    let mut config = Config::clone(&replica.config);
    config.train.device_batch = device_batch.clone();
    if matches!(device_batch, DeviceBatch::Measured(_)) {
        config.train.device_batch = DeviceBatch::Parts(pace::measured(comm, replica)?);
    }
    replica.share = Share::all(&config, replica.model.config().kind, comm.size())?.remove(comm.rank());
    replica.config = Arc::new(config);
    let (config, waited) = (&replica.config, Arc::clone(waited));
    if config.train.sync_every == 0 {
        let (sync, note) = synchronization(replica, Ballot::new(comm.clone(), waited))?;
        replica.sync = sync;
        replica.notes.extend(note.filter(|_| comm.rank() == 0));
        return Ok(None);
    }
    let weight = replica.share.len() as f32 / (config.train.batch_size * config.train.grad_accum_steps) as f32;
    Ok(Some(Outer::new(Some(comm.clone()), wire(config), weight, waited)))
}

/// How a rank's gradients are summed: by exchanges between the ranks' cards, or through host memory. Then what a user
/// should know.
fn synchronization(replica: &Replica, ballot: Ballot) -> Result<(Box<dyn GradientSync>, Option<String>)> {
    let (config, parameters) = (&replica.config, &replica.parameters);
    let dtype = exchanged_dtype(config);
    let bytes = CardSync::bytes(parameters, dtype);
    let (windows, note) = cards::connect(config, &ballot.comm, &replica.device, bytes, dtype)?;
    if let Some(windows) = windows {
        return Ok((Box::new(CardSync::new(ballot, windows, dtype, parameters)?), note));
    }
    let rows = TokenRows::of(config, &*replica.model, parameters);
    Ok((Box::new(DataParallel::new(ballot, wire(config), rows)?), note))
}

/// All that must be the same on every rank: the values of the parameters, and what the optimizer remembers.
fn state_of<'a>(parameters: &'a ParameterArena, optimizer: &'a Optimizer) -> Vec<&'a Tensor> {
    let moments = optimizer.moments().into_iter().map(|(_, tensor)| tensor);
    parameters.stored().chain(moments).collect()
}

/// Writes the state that `next` gives, tensor by tensor.
fn take_state(
    parameters: &ParameterArena,
    optimizer: &Optimizer,
    mut next: impl FnMut() -> Result<Vec<u8>>,
) -> Result<()> {
    state_of(parameters, optimizer).into_iter().try_for_each(|tensor| tensor.write_bytes(&next()?))?;
    parameters.refresh_halves()
}
