//! A run from preparation to summary.

use super::{Trainer, prepare};
use crate::config::Resolved;
use crate::train::run::events::{Event, Summary};
use crate::train::run::options::TrainOptions;
use crate::{Error, Result};
use std::time::Instant;

/// Trains as `resolved` says. A resumed run continues from its newest checkpoint as if it had never stopped. So does
/// one whose device was lost, once, if it can be opened again.
///
/// # Errors
/// If a run cannot be resumed with this configuration, the corpus, tokenizer, model or run folder cannot be created, or
/// the device reports an error; or [`Error::Diverged`].
pub fn train(resolved: &Resolved, options: TrainOptions) -> Result<Summary> {
    let TrainOptions { on_event, reopen, .. } = options;
    let mut folder = None;
    let first = {
        let on_event = &mut |event: &Event| {
            if let Event::Started(start) = event {
                folder = Some(start.folder.clone());
            }
            on_event(event);
        };
        let device = options.device.clone();
        run(resolved, TrainOptions { device, on_event, ..options })
    };
    match (first, reopen, &folder) {
        (Err(error @ Error::DeviceLost(_)), Some(open), Some(folder)) => {
            on_event(&Event::Note(format!("{error}: reopening it, to resume from the last checkpoint")));
            let (started, device, resume) = (Instant::now(), open()?, Some(&**folder));
            run(resolved, TrainOptions { device, started, resume, on_event, ..options })
        }
        (result, ..) => result,
    }
}

/// Joins a job whose rank 0 is in another process: `options.launch` is not the first process.
///
/// # Errors
/// If the text, configuration or program differ from rank 0's, the devices cannot be used, or the job fails.
pub fn follow(resolved: &Resolved, options: TrainOptions) -> Result<()> {
    prepare::follow(resolved, options)
}

/// Prepares, trains and finishes, on one device.
fn run<'a>(resolved: &Resolved, options: TrainOptions<'a>) -> Result<Summary> {
    let mut trainer = Trainer::prepare(resolved, options)?;
    if let Err(error) = trainer.run() {
        trainer.fail(&error)?;
        return Err(error);
    }
    trainer.finish()
}
