//! Joins the ranks, with initial weights, moments and position.

use super::Process;
use super::check::Checked;
use super::open::{Opened, Run};
use crate::Result;
use crate::config::{DeviceBatch, Resolved};
use crate::profile::Phase;
use crate::train::checkpoint::{CONFIG, Writer};
use crate::train::run::folder::RunFolder;
use crate::train::run::throughput::Throughput;
use crate::train::setup::schedule::learning_rate;
use crate::train::step::replica::Replica;
use crate::train::trainer::Trainer;
use crate::train::trainer::guard::Monitor;
use std::collections::VecDeque;
use std::time::Duration;

/// # Errors
/// If a rank cannot begin where the others do.
pub(super) fn join<'a>(checked: Checked, opened: Opened, mut process: Process<'a>) -> Result<Trainer<'a>> {
    let Opened { mut leader, record, run } = opened;
    let Run { folder, sinks, config_text, model, parameters, optimizer, undivided, checkpoint } = run;
    let Checked { text, train, validation, coverage, loader, splits, state, precompile, .. } = checked;
    let device = process.options.device.clone();
    device.profiler().take();
    let learning_rate = learning_rate(&checked.config, state.total_steps);
    let room = checked.config.model.block_size;
    let question = validation.first_prompt(room).or_else(|| train.first_prompt(room));
    let began_at = (state.step, loader.epochs_at(state.position));
    let trained = (model, parameters, optimizer);
    let mut replica = Replica::new(checked.config, device, trained, train, loader, process.place)?;
    replica.micro_batches = splits;
    if process.place.ranks > 1 {
        process.clock.enter(Phase::Ranks);
    }
    leader.join(&mut replica)?;
    let measured = measured_shares(checked.resolved, &replica, &folder, &mut process)?;
    let checkpoint_path = checkpoint.as_ref().map(|checkpoint| &*checkpoint.path);
    leader.load(&mut replica, &undivided, state.position, state.step as u64, checkpoint_path)?;
    drop(undivided);
    process.clock.enter(Phase::Unaccounted);
    let Process { options, clock, trace, training_log, .. } = process;
    Ok(Trainer {
        config: replica.config.clone(),
        config_text: measured.unwrap_or(config_text),
        saved: checkpoint.map(|checkpoint| checkpoint.state.comparable()),
        epoch_began: (began_at.1.fract() == 0.0).then_some(Duration::ZERO),
        folder,
        sinks,
        record,
        text,
        question,
        validation,
        coverage,
        replica,
        leader,
        learning_rate,
        began_at,
        epoch_seconds: Vec::new(),
        in_flight: VecDeque::new(),
        monitor: Monitor::default(),
        unconfirmed: VecDeque::new(),
        training_log,
        out_of_patience: false,
        preparing: None,
        precompile: Some(precompile),
        start_up: None,
        writer: Writer::default(),
        throughput: Throughput::default(),
        tokens: 0,
        unfinished_at: Duration::ZERO,
        stalled: Duration::ZERO,
        clock,
        trace,
        state,
        options,
    })
}

/// Where the devices were measured to share the sequences of a step, says how, in the run's configuration too. Returns
/// its text.
fn measured_shares(
    mut resolved: Resolved,
    replica: &Replica,
    folder: &RunFolder,
    process: &mut Process,
) -> Result<Option<String>> {
    let DeviceBatch::Parts(parts) = &replica.config.train.device_batch else { return Ok(None) };
    if resolved.config.train.device_batch != DeviceBatch::AUTO {
        return Ok(None);
    }
    resolved.resolve_device_batch(parts.clone(), "by the speed of each device, measured at the start");
    let config_text = resolved.to_toml();
    folder.write(CONFIG, &config_text)?;
    process.note(format!("the devices compute {parts:?} of the sequences of a step, as fast as each is"));
    Ok(Some(config_text))
}
