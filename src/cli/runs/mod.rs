//! `rustyflow runs`: what was trained.

mod compare;
mod list;
mod remove;
mod show;

use super::{configuration, examples, named};
use crate::Error;
use crate::report::{RunRecord, RunSummary, State};
use crate::train::check_unused;
use crate::units;
use anyhow::Result;
use std::path::{Path, PathBuf};

#[derive(clap::Subcommand)]
pub enum Command {
    /// List the runs in a folder, the newest first
    #[command(after_help = examples::RUNS_LIST)]
    List(list::Args),
    /// Show a run's results and plot its losses
    #[command(after_help = examples::RUNS_SHOW)]
    Show(show::Args),
    /// Compare runs side by side
    #[command(after_help = examples::RUNS_COMPARE)]
    Compare(compare::Args),
    /// Remove runs with their checkpoints
    #[command(after_help = examples::RUNS_RM)]
    Rm(remove::Args),
}

impl Command {
    /// Whether it prints JSON.
    pub fn is_for_machines(&self) -> bool {
        match self {
            Command::List(args) => args.json,
            Command::Show(args) => args.json,
            Command::Compare(args) => args.json,
            Command::Rm(_) => false,
        }
    }
}

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Rm(args) => remove::run(args),
    }
}

/// Where runs are.
#[derive(clap::Args)]
struct Folder {
    /// The folder of runs [default: run.dir, runs]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Folder {
    fn path(&self) -> Result<PathBuf> {
        match &self.dir {
            Some(dir) => Ok(dir.clone()),
            None => configuration::run_dir(),
        }
    }

    /// The folder of the run that a path or a name in this folder means.
    fn find(&self, name: &Path) -> Result<PathBuf> {
        named::find_run(name, &self.path()?)
    }

    fn read(&self, name: &Path) -> Result<RunRecord> {
        Ok(read(&self.find(name)?)?)
    }
}

/// A run as it is now.
fn read(folder: &Path) -> crate::Result<RunRecord> {
    // Asked first: a run that ends meanwhile is then shown as it was, not as one that was interrupted.
    let is_running = check_unused(folder).is_err();
    let run = RunRecord::read(folder)?;
    Ok(if is_running { RunRecord { state: State::Running, ..run } } else { run })
}

/// Writes a page, and says where it is.
fn write_page(path: &Path, page: &str) -> crate::Result<()> {
    std::fs::write(path, page).map_err(|e| Error::io("write", path, e))
}

/// "135M", or of adapters "2.44M of 135M".
fn parameters(run: &RunSummary) -> String {
    let shown = |count: Option<u64>| or_dash(count, |count| units::count(count as f64));
    match run.trained_parameters.filter(|trained| Some(*trained) != run.parameters) {
        Some(trained) => format!("{} of {}", shown(Some(trained)), shown(run.parameters)),
        None => shown(run.parameters),
    }
}

/// A number if it is known, else a dash.
fn or_dash<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or("-".to_string(), show)
}
