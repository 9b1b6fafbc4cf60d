//! `rustyflow train`.

use super::interrupt::{Interrupted, Interrupts};
use super::{complete, configuration, device, named, output, plan, progress, tui};
use crate::cache;
use crate::comm::Launch;
use crate::config::{Layers, Resolved};
use crate::shell_words::quoted;
use crate::train::{
    AUTO, Event, Summary, TrainOptions, choose_of_machine, follow, newest_unfinished_run, run_config, train,
};
use crate::{Device, Error};
use anyhow::Result;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = super::examples::TRAIN)]
pub struct Args {
    #[command(flatten)]
    flags: configuration::TrainFlags,
    /// Continue a run from its newest checkpoint: its folder, its name in run.dir, or `auto` for the newest unfinished
    /// one
    #[arg(long, value_name = "RUN", add = complete::runs_to_resume())]
    resume: Option<PathBuf>,
    /// Print the plan of the run, as `rustyflow plan`, and stop
    #[arg(long)]
    dry_run: bool,
    /// Print the profiling report at the end; it is also in the run's profile.txt
    #[arg(long)]
    profile: bool,
    /// Print one JSON object per event instead
    #[arg(long)]
    pub json: bool,
    /// Show the run on the whole terminal: curves, numbers, log and sample
    #[arg(long, conflicts_with = "json")]
    tui: bool,
    /// Write a Perfetto trace (ui.perfetto.dev) of kernels, steps and phases [default file: trace.pftrace
    /// in the run's folder]
    #[arg(long, value_name = "FILE", require_equals = true)]
    trace: Option<Option<PathBuf>>,
}

/// Shows an event to whoever watches.
pub type Show = Box<dyn FnMut(&Event) -> io::Result<()>>;

/// What a run takes from its command.
pub struct Context<'a> {
    /// One for each rank; the first leads.
    pub devices: &'a [Device],
    pub data_dir: &'a Path,
    /// When the command began.
    pub started: Instant,
    /// The run to resume.
    pub resume: Option<&'a Path>,
    pub interrupts: &'a Interrupts,
    /// Where this process is one of several of a job.
    pub launch: Option<Launch>,
    /// Where its trace is to go: see [`TrainOptions::trace`].
    pub trace: Option<Option<&'a Path>>,
}

/// Trains and shows every event. The second value is an error if that could not go on.
pub fn train_and_show(
    resolved: &Resolved,
    context: &Context,
    mut show: Show,
) -> Result<(Summary, io::Result<()>), Error> {
    let mut shown = Ok(());
    let cache = cache::user_folder();
    let (first, others) = context.devices.split_first().expect("one device at least");
    let reopen = || device::open(&resolved.config.device).map_err(|e| Error::DeviceLost(e.to_string()));
    let options = TrainOptions {
        device: first.clone(),
        others,
        launch: context.launch,
        started: context.started,
        // Of several devices the others have lost a part of the gradients: that ends the job.
        reopen: if others.is_empty() { Some(&reopen) } else { None },
        data_dir: context.data_dir,
        cache_dir: cache.as_deref(),
        resume: context.resume,
        stop: context.interrupts.stop(),
        training_log: Some(Path::new(&resolved.config.log.file)).filter(|path| path.as_os_str() != ""),
        trace: context.trace,
        on_event: &mut |event| {
            // From here on there is something to save.
            if let Event::Started(_) = event {
                context.interrupts.stop_after("\nstopping after this step; press Ctrl-C again to stop at once");
            }
            // A closed pipe must not end a run: the rest of it goes unseen.
            if shown.is_ok() {
                shown = show(event);
            }
        },
    };
    let summary = train(resolved, options)?;
    Ok((summary, shown))
}

/// Shows every event as a line of JSON.
pub fn show_json() -> Show {
    Box::new(|event| event.json().map_or(Ok(()), output::line))
}

/// Shows a run as it goes, with the profiling report at its end or without; `auto` is what the device of that name came
/// to.
pub fn show_progress(profile: bool, auto: Option<String>) -> Show {
    let mut view = progress::View::new(profile, auto);
    Box::new(move |event| view.show(event))
}

pub fn run(args: Args, quiet: bool, interrupts: &Interrupts) -> Result<()> {
    let started = Instant::now();
    anyhow::ensure!(!(args.tui && quiet), "--tui cannot be used with --quiet");
    let flags = &args.flags;
    let run = match &args.resume {
        None => None,
        Some(word) if word.as_os_str() == "auto" => Some(newest_unfinished_run(&flags.run.run_dir()?)?),
        Some(name) => Some(named::run_to_resume(name, &flags.run.run_dir()?)?),
    };
    // A resumed run keeps its settings.
    let run_config = run.as_deref().map(run_config).transpose()?;
    let mut resolved = flags.resolve(run_config.as_deref())?;
    configuration::warn(&resolved);
    let of_run = |path: &Path| Layers::new().file(path).and_then(Layers::build);
    let kept = run_config.as_deref().map(of_run).transpose()?.map(|run| run.config.device.matmul_f32);
    let launch = Launch::of_process()?;
    choose_of_machine(&mut resolved.config.device, launch);
    if args.dry_run {
        if launch.is_some_and(|launch| launch.process > 0) {
            return Ok(());
        }
        return plan::show(&mut resolved, kept, flags, plan::Ranks::Run(launch), args.json);
    }
    let is_shown = !args.json && !quiet;
    let (devices, auto) = device::open_for_shown_run(&mut resolved, kept)?;
    if let Some(device) = auto.as_ref().filter(|_| !is_shown) {
        output::note(format_args!("{AUTO}{device}"));
    }
    if let Some(launch) = launch.filter(|launch| launch.process > 0) {
        return take_part(&resolved, &devices, &flags.run.data_dir, launch, interrupts);
    }
    let show: Show = match (args.json, quiet) {
        (true, _) => show_json(),
        (false, true) => Box::new(|_| Ok(())),
        (false, false) => {
            let is_built_in = flags.run.is_quickstart()? && run.is_none();
            let mut show = view(&args, &devices[0], auto);
            Box::new(move |event| {
                if is_built_in && matches!(event, Event::Started(_)) {
                    output::line("config     the built-in quickstart")?;
                }
                show(event)
            })
        }
    };
    let data_dir = &flags.run.data_dir;
    let trace = args.trace.as_ref().map(Option::as_deref);
    let context = Context { devices: &devices, data_dir, started, resume: run.as_deref(), interrupts, launch, trace };
    let (summary, shown) = train_and_show(&resolved, &context, show)?;
    if !args.json && shown.is_ok() {
        say_where(&summary, quiet)?;
    }
    if summary.interrupted { Err(Interrupted.into()) } else { Ok(()) }
}

/// An error that another process tells the user of.
#[derive(Debug)]
pub struct ToldByRank0;

impl std::fmt::Display for ToldByRank0 {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("rank 0 tells what happened")
    }
}

impl std::error::Error for ToldByRank0 {}

/// Follows rank 0, which shows the run and has its folder.
fn take_part(
    resolved: &Resolved,
    devices: &[Device],
    data_dir: &Path,
    launch: Launch,
    interrupts: &Interrupts,
) -> Result<()> {
    let cache = cache::user_folder();
    // A signal is for rank 0, which saves and then ends all.
    interrupts.stop_after("stopping once rank 0 has saved");
    let options = TrainOptions {
        device: devices[0].clone(),
        others: &devices[1..],
        launch: Some(launch),
        started: Instant::now(),
        reopen: None,
        data_dir,
        cache_dir: cache.as_deref(),
        resume: None,
        stop: interrupts.stop(),
        training_log: None,
        trace: None,
        on_event: &mut |_| {},
    };
    follow(resolved, options).map_err(|error| match error {
        // Rank 0 says it.
        Error::Communication(_) => ToldByRank0.into(),
        error => error.into(),
    })
}

/// What shows the run to a person.
fn view(args: &Args, device: &Device, auto: Option<String>) -> Show {
    match args.tui.then(tui::terminal::obstacle) {
        Some(None) => {
            let mut view = tui::View::new(device, args.profile, auto);
            return Box::new(move |event| view.show(event));
        }
        Some(Some(why)) => output::note(format_args!("note: --tui {why}: continuing without")),
        None => {}
    }
    show_progress(args.profile, auto)
}

/// What to do with the run; of a quiet one, where it is.
fn say_where(summary: &Summary, quiet: bool) -> std::io::Result<()> {
    if quiet {
        return output::line(summary.folder.display());
    }
    let folder = quoted(&summary.folder);
    let next = match summary.interrupted {
        true if summary.can_resume => format!("train --resume {folder}"),
        true => format!("train --init {folder}"),
        false if summary.is_chat => format!("chat --model {folder}"),
        false => format!("generate --model {folder} --prompt \"...\""),
    };
    output::line(format_args!("next    rustyflow {next}"))
}
