//! `rustyflow train`.

use super::{device, output, progress};
use crate::config::{Layers, QUICKSTART, Resolved, process_environment};
use crate::train::{Event, Setting, TRAINING_LOG, newest_unfinished_run, run_config, train};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

#[derive(clap::Args)]
pub struct Args {
    /// A TOML file, or a flat .env file; without it, a small model on the sample corpus
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Go on with a run from its newest checkpoint: its folder, or `auto` for the newest unfinished run in run.dir
    #[arg(long, value_name = "RUN")]
    resume: Option<PathBuf>,
    /// Set any key, as in --set train.learning_rate=3e-4; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The same seed gives the same run on the same device
    #[arg(long)]
    seed: Option<u64>,
    /// Where data sets are kept
    #[arg(long, default_value = "data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Print one JSON object per event instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: device::Flags,
}

/// Shows an event to whoever watches.
type Show = Box<dyn FnMut(&Event) -> std::io::Result<()>>;

pub fn run(args: Args, stop: &AtomicBool) -> Result<()> {
    let run = match &args.resume {
        Some(word) if word.as_os_str() == "auto" => {
            Some(newest_unfinished_run(Path::new(&resolve(&args, None)?.config.run.dir))?)
        }
        run => run.clone(),
    };
    let resolved = resolve(&args, run.as_deref())?;
    let device = device::open_measured(&resolved.config.device)?;
    let mut show: Show = if args.json {
        Box::new(|event| event.json().map_or(Ok(()), output::line))
    } else {
        let mut view = progress::View::new();
        Box::new(move |event| view.show(event))
    };
    let mut shown = Ok(());
    let setting = Setting {
        device,
        data_dir: &args.data_dir,
        resume: run.as_deref(),
        stop,
        on_event: &mut |event| {
            // A closed pipe must not end a run: the rest of it goes unseen.
            if shown.is_ok() {
                shown = show(event);
            }
        },
    };
    let summary = train(&resolved, setting)?;
    if !args.json && shown.is_ok() {
        let folder = summary.folder.display();
        output::line(format_args!("\nrun folder    {folder}"))?;
        output::line(format_args!("timings       appended to {TRAINING_LOG}"))?;
        if summary.interrupted {
            output::line(format_args!("go on with    rustyflow train --resume {folder}"))?;
        }
        output::line(format_args!("next          rustyflow generate --model {folder} --prompt \"...\""))?;
    }
    Ok(())
}

/// The configuration in force: defaults < file < environment < --set < flags.
fn resolve(args: &Args, resumed: Option<&Path>) -> Result<Resolved> {
    let mut layers = match (&args.config, resumed) {
        (Some(path), _) => Layers::new().file(path)?,
        // A run goes on with the values that it has.
        (None, Some(run)) => Layers::new().file(&run_config(run)?)?,
        (None, None) => Layers::new().toml_str("the built-in quickstart", QUICKSTART)?,
    };
    layers = layers.environment(process_environment())?;
    for assignment in &args.set {
        layers = layers.set(assignment)?;
    }
    if let Some(seed) = args.seed {
        layers = layers.flag("--seed", "run.seed", seed)?;
    }
    if let Some(kind) = args.device.device {
        layers = layers.flag("--device", "device.kind", kind)?;
    }
    if let Some(threads) = args.device.threads {
        layers = layers.flag("--threads", "device.threads", threads)?;
    }
    if args.device.allow_fallback {
        layers = layers.flag("--allow-fallback", "device.allow_fallback", true)?;
    }
    if args.device.allow_software_gpu {
        layers = layers.flag("--allow-software-gpu", "device.allow_software", true)?;
    }
    Ok(layers.build()?)
}
