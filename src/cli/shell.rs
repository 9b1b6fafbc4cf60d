//! `rustyflow completions` and `rustyflow man`: what shells and `man` want to know of the command line.

use super::{Cli, examples, output};
use crate::Error;
use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = examples::COMPLETIONS)]
pub struct CompletionsArgs {
    /// Whose script to print
    shell: Shell,
}

#[derive(clap::Args)]
#[command(after_help = examples::MAN)]
pub struct ManArgs {
    /// The folder to write them to; it is made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Prints the script that completes commands and flags.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    // The generator panics where it cannot write, as into a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rustyflow", &mut script);
    Ok(output::now(&String::from_utf8(script)?)?)
}

/// Writes a page for each command.
pub fn man(args: &ManArgs) -> Result<()> {
    let folder = &args.folder;
    fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(|e| Error::io("write to", folder, e))?;
    Ok(output::line(format_args!(
        "the pages are in {}: man -l {}",
        folder.display(),
        folder.join("rustyflow.1").display()
    ))?)
}
