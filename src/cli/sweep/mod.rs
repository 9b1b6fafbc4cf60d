//! `rustyflow sweep`: a run for every combination of some values, one after another.

mod grid;
mod table;

use super::configuration::{self, TrainFlags};
use super::interrupt::{Interrupted, Interrupts};
use super::train::{Context, train_and_show};
use super::{device, examples, output};
use crate::config::{Layers, Resolved};
use crate::train::{Event, Summary, resolve_matmul_f32};
use crate::{Device, Error};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use table::{Row, Status};

#[derive(clap::Args)]
#[command(after_help = examples::SWEEP)]
pub struct Args {
    /// As of `train`; a --set may give several values, as KEY=A,B,C
    #[command(flatten)]
    flags: TrainFlags,
    /// The folder of the sweep, below which each run has its own [default: sweep in run.dir]. Called again with the
    /// same folder, a sweep resumes: finished runs are kept, an unfinished one is resumed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Continue after a failed run; a diverged run never ends a sweep
    #[arg(long)]
    continue_on_error: bool,
    /// Print one JSON object per run instead
    #[arg(long)]
    pub json: bool,
}

/// A run to be.
struct Planned {
    name: String,
    set: BTreeMap<String, String>,
    resolved: Resolved,
    folder: PathBuf,
}

pub fn run(args: &Args, interrupts: &Interrupts) -> Result<()> {
    let (dir, mut planned) = plan(args)?;
    let devices = open_devices(&mut planned)?;
    fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
    let mut rows = table::load(&dir)?;
    for (index, run) in planned.iter().enumerate() {
        let row = match kept(run, &rows)? {
            Some(row) => row,
            None => train(run, &devices, args, interrupts)?,
        };
        rows.retain(|other| other.name != row.name);
        let text = format!("[{}/{}] {}  {}", index + 1, planned.len(), row.name, row.outcome());
        if args.json {
            output::line(serde_json::to_value(&row)?)?
        } else {
            output::line(text)?
        }
        rows.push(row);
        table::sort(&mut rows);
        table::save(&dir, &rows)?;
    }
    if !args.json {
        table::print(&rows)?;
        output::line(format_args!("\nthe runs and sweep.json are in {}", dir.display()))?;
    }
    Ok(())
}

/// All runs, checked before the first begins, and where they go.
fn plan(args: &Args) -> Result<(PathBuf, Vec<Planned>)> {
    let (shared, axes) = grid::axes(&args.flags.run.set)?;
    let with = |more: Vec<String>| {
        let mut flags = args.flags.clone();
        flags.run.set = [&shared[..], &more].concat();
        flags.resolve(None)
    };
    let base = with(Vec::new())?;
    configuration::warn(&base);
    let dir = args.dir.clone().unwrap_or_else(|| Path::new(&base.config.run.dir).join("sweep"));
    let mut names = HashSet::new();
    let mut planned = Vec::new();
    for values in grid::combinations(&axes) {
        let name = grid::run_name(&axes, &values);
        if !names.insert(name.clone()) {
            bail!("two runs of the sweep would be called {name}: give each value once");
        }
        let set: BTreeMap<String, String> =
            axes.iter().zip(&values).map(|(axis, value)| (axis.key.clone(), value.to_string())).collect();
        let mut resolved = with(set.iter().map(|(key, value)| format!("{key}={value}")).collect())?;
        (resolved.config.run.dir, resolved.config.run.name) = (dir.display().to_string(), name.clone());
        planned.push(Planned { folder: dir.join(&name), name, set, resolved });
    }
    Ok((dir, planned))
}

/// The devices of all runs; the resolved `device.matmul_f32` goes into each.
fn open_devices(planned: &mut [Planned]) -> Result<Vec<Device>> {
    let (first, others) = planned.split_first_mut().expect("a sweep has runs");
    let devices = device::open_for_run(&mut first.resolved, None, true)?;
    others.iter_mut().for_each(|run| resolve_matmul_f32(&mut run.resolved, &devices[0]));
    Ok(devices)
}

/// The row of a run that needs no more training: it is finished, or diverged.
fn kept(run: &Planned, rows: &[Row]) -> Result<Option<Row>> {
    let config = run.folder.join("config.toml");
    if !config.is_file() {
        return Ok(None);
    }
    let before = Layers::new().file(&config)?.build()?.config;
    let changes = before.changes(&run.resolved.config)?;
    // What follows from the number of steps that `epochs` makes is written down once the text is loaded.
    let follows =
        |key: &str| ["train.warmup_steps", "train.eval_every"].contains(&key) && run.resolved.origin(key).is_default();
    if let Some(change) = changes.iter().find(|change| !follows(change.key)) {
        bail!(
            "{} is a run with {} = {}, this sweep has {}; name another --dir",
            run.folder.display(),
            change.key,
            change.before,
            change.after
        );
    }
    let ended = if run.folder.join("finished").exists() {
        (Status::Finished, None)
    } else {
        match rows.iter().find(|row| row.name == run.name && row.status == Status::Diverged) {
            Some(row) => (Status::Diverged, row.message.clone()),
            None => return Ok(None),
        }
    };
    Ok(Some(Row::read(&run.name, run.set.clone(), &run.folder, ended)))
}

/// Trains one run, or resumes it.
fn train(run: &Planned, devices: &[Device], args: &Args, interrupts: &Interrupts) -> Result<Row> {
    let bar = if output::is_quiet() { ProgressBar::hidden() } else { ProgressBar::no_length() };
    let style = ProgressStyle::with_template("{msg}  {wide_bar:.cyan/238} {pos}/{len} ETA {eta}");
    bar.set_style(style.expect("the template is valid"));
    bar.set_message(run.name.clone());
    let shown = bar.clone();
    let show = move |event: &Event| {
        match event {
            Event::Started(start) => shown.set_length(start.total_steps as u64),
            Event::Progress { step } => shown.set_position(*step as u64),
            Event::Note(text) => shown.suspend(|| output::note(format_args!("note: {text}"))),
            _ => {}
        }
        Ok(())
    };
    let resume = run.folder.join("config.toml").is_file().then_some(&*run.folder);
    let context = Context {
        devices,
        launch: None,
        data_dir: &args.flags.run.data_dir,
        started: Instant::now(),
        resume,
        interrupts,
        trace: None,
    };
    let result = train_and_show(&run.resolved, &context, Box::new(show));
    bar.finish_and_clear();
    let ended = match result {
        Ok((Summary { interrupted: true, .. }, _)) => {
            output::note("the same command continues this sweep");
            return Err(Interrupted.into());
        }
        Ok(_) => (Status::Finished, None),
        Err(error @ Error::Diverged { .. }) => (Status::Diverged, Some(error.to_string())),
        Err(error) if args.continue_on_error => (Status::Failed, Some(error.to_string())),
        Err(error) => bail!(
            "{}: {error}\nthe same command continues this sweep; --continue-on-error continues with the next run",
            run.name
        ),
    };
    Ok(Row::read(&run.name, run.set.clone(), &run.folder, ended))
}
