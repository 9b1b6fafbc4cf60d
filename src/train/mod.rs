//! Trains a model: prepares corpus, tokenizer and parameters, runs the steps, evaluates, saves, and reports.
//!
//! The host only hands out work. A step's loss is read back when it is to be logged, and then without waiting: its
//! number arrives while later steps are being computed.

mod awaited;
mod checkpoint;
mod checkpoints;
mod diagnosis;
mod evaluate;
mod events;
#[cfg(test)]
mod faults;
mod files;
mod guard;
mod lock;
mod log;
mod manifest;
mod precision;
mod prepare;
mod resume;
mod run_folder;
mod size;
mod state;
mod trainer;
mod verify;
mod writer;

pub use checkpoints::{Found, find_checkpoint};
pub use evaluate::{Evaluation, Windows, evaluate};
pub use events::{Event, Start, Step, Summary};
pub use log::TRAINING_LOG;
pub use precision::{check_precision, describe_precision, operands};
pub use resume::run_config;
pub use run_folder::{RunFolder, newest_run, newest_unfinished_run};
pub use size::check_size;
pub use state::{Best, DataHash, Evaluated, GuardState, TrainerState};
pub use verify::{Verified, verify_resume};

use crate::config::Resolved;
use crate::data::Tokenizer;
use crate::{Device, Error, Result};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use trainer::Trainer;

/// What a run needs besides its configuration.
pub struct Setting<'a> {
    pub device: Device,
    /// Opens the device again if it is lost; without it, that ends the run.
    pub reopen: Option<&'a dyn Fn() -> Result<Device>>,
    /// Where data sets are kept.
    pub data_dir: &'a Path,
    /// The folder of the run to go on with; `None` begins a new one.
    pub resume: Option<&'a Path>,
    /// Set to end the run after the step under way, saved and reported as usual.
    pub stop: &'a AtomicBool,
    /// The file that gets a block with the run's timings at its end.
    pub training_log: Option<&'a Path>,
    /// Told everything that happens.
    pub on_event: &'a mut dyn FnMut(&Event),
}

/// Trains as `resolved` says. A resumed run goes on from its newest checkpoint as if it had never stopped. So does one
/// whose device was lost, once, if it can be opened again.
///
/// # Errors
/// If a run cannot be resumed or may not be with this configuration, if the corpus, the tokenizer,
/// the model or the run's folder cannot be made, if the device reports an error, or if the run goes bad
/// and the guard does not or cannot go back.
pub fn train(resolved: &Resolved, setting: Setting) -> Result<Summary> {
    let Setting { device, reopen, data_dir, resume, stop, training_log, on_event } = setting;
    let mut folder = None;
    let first = {
        let on_event = &mut |event: &Event| {
            if let Event::Started(start) = event {
                folder = Some(start.folder.clone());
            }
            on_event(event);
        };
        run(resolved, Setting { device, reopen, data_dir, resume, stop, training_log, on_event })
    };
    match (first, reopen, &folder) {
        (Err(error @ Error::DeviceLost(_)), Some(open), Some(folder)) => {
            on_event(&Event::Note(format!("{error}: opening it again, to go on from the last checkpoint")));
            let (device, resume) = (open()?, Some(&**folder));
            run(resolved, Setting { device, reopen, data_dir, resume, stop, training_log, on_event })
        }
        (result, ..) => result,
    }
}

/// Prepares, trains and finishes, on one device.
fn run<'a>(resolved: &'a Resolved, setting: Setting<'a>) -> Result<Summary> {
    let mut trainer = Trainer::prepare(resolved, setting)?;
    trainer.run()?;
    trainer.finish()
}

/// The tokens of a prompt; an empty one means the start of a line, or the tokenizer's first token if it has no line
/// breaks.
///
/// # Errors
/// If the prompt has characters that the tokenizer does not know.
pub fn prompt_ids(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    if !prompt.is_empty() {
        return tokenizer.encode(prompt);
    }
    match tokenizer.encode("\n") {
        Ok(ids) if !ids.is_empty() => Ok(ids),
        _ => Ok(vec![0]),
    }
}
