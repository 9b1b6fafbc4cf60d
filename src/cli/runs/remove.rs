//! `rustyflow runs rm`.

use super::Folder;
use crate::Error;
use crate::cli::{complete, output};
use crate::train::{check_unused, remove_run};
use crate::units;
use anyhow::Result;
use std::io::{IsTerminal, stdin};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// The runs: their folders, or their names in the folder of runs
    #[arg(value_name = "RUN", required = true, add = complete::runs())]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    folder: Folder,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub fn run(args: Args) -> Result<()> {
    // All of them are looked at before the first is removed.
    let runs = args.runs.iter().map(|name| args.folder.find(name)).collect::<Result<Vec<PathBuf>>>()?;
    runs.iter().try_for_each(|run| check_unused(run))?;
    if !args.yes && !is_wanted(&runs)? {
        return Ok(output::line("nothing is removed")?);
    }
    for run in &runs {
        let bytes = remove_run(run)?;
        output::line(format_args!("removed {}, {} freed", run.display(), units::bytes(bytes)))?;
    }
    Ok(())
}

/// Asks whoever sits at the terminal.
fn is_wanted(runs: &[PathBuf]) -> Result<bool> {
    let names: Vec<String> = runs.iter().map(|run| run.display().to_string()).collect();
    if !stdin().is_terminal() {
        let text = format!("cannot ask whether to remove {}: confirm with --yes", names.join(", "));
        return Err(Error::Invalid(text).into());
    }
    output::now(&format!("remove {} with all checkpoints? [y/N] ", names.join(", ")))?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
