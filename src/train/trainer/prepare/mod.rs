//! Preparation before the first step, in four parts: load text, tokenizer and checkpoint; check the configuration
//! against them; open the run's folder; join the ranks. Errors should occur as early as possible.

mod check;
mod follow;
mod join;
mod load;
mod open;

pub(super) use follow::follow;
pub(super) use open::adapters;

use super::Trainer;
use crate::config::{Config, Resolved};
use crate::profile::{Phase, Span, WallClock};
use crate::train::run::events::Event;
use crate::train::run::log;
use crate::train::run::options::TrainOptions;
use crate::train::run::trace::RunTrace;
use crate::train::step::ranks::Place;
use crate::{Device, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// This process in a run: its options and observer.
struct Process<'a> {
    options: TrainOptions<'a>,
    clock: WallClock,
    trace: Option<RunTrace>,
    /// The file that gets a block with the run's timings.
    training_log: Option<PathBuf>,
    /// Of its first rank.
    place: Place,
}

impl<'a> Process<'a> {
    /// # Errors
    /// If the trace or the log cannot be written where they should be.
    fn begin(config: &Config, mut options: TrainOptions<'a>) -> Result<Process<'a>> {
        options.device.reset_peak_memory();
        let trace = RunTrace::begin(&options)?;
        let mut clock = WallClock::new(options.started, Phase::Device, trace.as_ref().map(RunTrace::recorder));
        let devices = devices(&options.device, options.others);
        clock.set_apart(Phase::Autotuning, autotuning(&devices));
        let place = Place::of_first(options.launch, devices.len());
        let training_log = training_log(config, &mut options)?;
        Ok(Process { options, clock, trace, training_log, place })
    }

    fn note(&mut self, text: String) {
        (self.options.on_event)(&Event::Note(text));
    }
}

impl<'a> Trainer<'a> {
    /// Loads or creates everything that a run needs. A resumed run is changed only if all of it succeeds.
    ///
    /// # Errors
    /// Those of [`train`](crate::train::train) that can be known before the first step.
    pub(in crate::train) fn prepare(resolved: &Resolved, options: TrainOptions<'a>) -> Result<Trainer<'a>> {
        let mut process = Process::begin(&resolved.config, options)?;
        let loaded = load::load(resolved, &mut process)?;
        let (checked, resumed) = check::check(loaded, &process)?;
        let opened = open::open(&checked, resumed, &mut process)?;
        join::join(checked, opened, process)
    }
}

/// The devices of a process, in the order of its ranks.
fn devices<'a>(first: &'a Device, others: &'a [Device]) -> Vec<&'a Device> {
    [first].into_iter().chain(others).collect()
}

/// How long autotuning these devices took before the run. Their profiles are taken.
fn autotuning(devices: &[&Device]) -> Duration {
    let seconds = devices.iter().filter_map(|device| device.profiler().take().spans.get(&Span::Autotune).copied());
    Duration::from_secs_f64(seconds.sum())
}

/// The file that gets the run's block: see [`log::place`].
fn training_log(config: &Config, options: &mut TrainOptions) -> Result<Option<PathBuf>> {
    let Some(wanted) = options.training_log else { return Ok(None) };
    let run = options.resume.map(|run| std::path::absolute(run).unwrap_or_else(|_| run.to_path_buf()));
    let runs = run.as_deref().and_then(Path::parent).unwrap_or(Path::new(&config.run.dir));
    let (path, note) = log::place(wanted, runs)?;
    note.into_iter().for_each(|note| (options.on_event)(&Event::Note(note)));
    Ok(Some(path))
}
