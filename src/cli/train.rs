//! `rustyflow train`.

use super::interrupt::{Interrupted, Interrupts};
use super::{configuration, device, output, progress, tui};
use crate::config::Layers;
use crate::train::{Event, Summary, TRAINING_LOG, TrainOptions, newest_unfinished_run, run_config, train};
use crate::{Device, Error};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    configuration: configuration::RunFlags,
    /// Steps to train (train.max_steps)
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    max_steps: Option<u64>,
    /// Or passes over the text (train.epochs)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    epochs: Option<f64>,
    /// What the run's folder is called (run.name)
    #[arg(long)]
    name: Option<String>,
    /// Go on with a run from its newest checkpoint: its folder, or `auto` for the newest unfinished run in run.dir
    #[arg(long, value_name = "RUN")]
    resume: Option<PathBuf>,
    /// Print one JSON object per event instead
    #[arg(long)]
    pub json: bool,
    /// Show the run on the whole terminal: curves, numbers, log and sample
    #[arg(long, conflicts_with = "json")]
    tui: bool,
    /// Write when each kernel, step and phase ran, for chrome://tracing or Perfetto, to this file or to trace.json in
    /// the run's folder
    #[arg(long, value_name = "FILE", require_equals = true)]
    trace: Option<Option<PathBuf>>,
}

/// Shows an event to whoever watches.
type Show = Box<dyn FnMut(&Event) -> std::io::Result<()>>;

pub fn run(args: Args, quiet: bool, interrupts: &Interrupts) -> Result<()> {
    let started = Instant::now();
    anyhow::ensure!(!(args.tui && quiet), "--tui cannot be used with --quiet");
    let flags = &args.configuration;
    let more = [
        ("--max-steps", "train.max_steps", configuration::text(args.max_steps)),
        ("--epochs", "train.epochs", configuration::text(args.epochs)),
        ("--name", "run.name", args.name.clone()),
    ];
    let run = match &args.resume {
        Some(word) if word.as_os_str() == "auto" => {
            Some(newest_unfinished_run(Path::new(&flags.resolve(None, &more)?.config.run.dir))?)
        }
        run => run.clone(),
    };
    // A run goes on with the values that it has.
    let run_config = run.as_deref().map(run_config).transpose()?;
    let mut resolved = flags.resolve(run_config.as_deref(), &more)?;
    configuration::warn(&resolved);
    let of_run = |path: &Path| Layers::new().file(path).and_then(Layers::build);
    let kept = run_config.as_deref().map(of_run).transpose()?.map(|run| run.config.device.matmul_f32);
    let device = device::open_for_run(&mut resolved, kept, true)?;
    let mut show = view(&args, quiet, &device);
    let mut shown = Ok(());
    if !args.json && !quiet && flags.config().is_none() && run.is_none() {
        shown = output::line("config     the built-in quickstart");
    }
    let options = TrainOptions {
        device,
        started,
        reopen: Some(&|| device::open(&resolved.config.device).map_err(|e| Error::DeviceLost(e.to_string()))),
        data_dir: &flags.data_dir,
        resume: run.as_deref(),
        stop: interrupts.stop(),
        training_log: Some(Path::new(TRAINING_LOG)),
        trace: args.trace.as_ref().map(Option::as_deref),
        on_event: &mut |event| {
            // From here on there is something to save.
            if let Event::Started(_) = event {
                interrupts.stop_after("\nstopping after this step; press Ctrl-C again to stop at once");
            }
            // A closed pipe must not end a run: the rest of it goes unseen.
            if shown.is_ok() {
                shown = show(event);
            }
        },
    };
    let summary = train(&resolved, options)?;
    if !args.json && shown.is_ok() {
        say_where(&summary, quiet)?;
    }
    if summary.interrupted { Err(Interrupted.into()) } else { Ok(()) }
}

/// What shows the run.
fn view(args: &Args, quiet: bool, device: &Device) -> Show {
    if args.json {
        return Box::new(|event| event.json().map_or(Ok(()), output::line));
    }
    if quiet {
        return Box::new(|_| Ok(()));
    }
    match args.tui.then(tui::terminal::obstacle) {
        Some(None) => {
            let mut view = tui::View::new(device);
            return Box::new(move |event| view.show(event));
        }
        Some(Some(why)) => output::note(format_args!("note: --tui {why}: going on without")),
        None => {}
    }
    let mut view = progress::View::new();
    Box::new(move |event| view.show(event))
}

/// Where the run is, and what to do with it.
fn say_where(summary: &Summary, quiet: bool) -> std::io::Result<()> {
    let folder = summary.folder.display();
    if quiet {
        return output::line(folder);
    }
    output::line(format_args!("\nrun folder    {folder}"))?;
    output::line(format_args!("timings       appended to {TRAINING_LOG}"))?;
    if summary.interrupted {
        output::line(format_args!("go on with    rustyflow train --resume {folder}"))?;
    }
    output::line(format_args!("next          rustyflow generate --model {folder} --prompt \"...\""))
}
