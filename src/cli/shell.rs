//! `rustyflow completions` and `rustyflow man`: what shells and `man` want to know of the command line.

use super::{Cli, examples, output};
use crate::Error;
use crate::shell_words::quoted;
use anyhow::{Result, anyhow};
use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::env::{self, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use clap_mangen::Man;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

const NAME: &str = "rustyflow";
/// The environment variable by which a shell asks.
const VARIABLE: &str = "COMPLETE";

const SHELLS: Shells = Shells(&[&Bash, &Elvish, &Fish, &Powershell, &Zsh]);

/// Bash, whose script joins the words that it splits at `=` and `:`.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        env::Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Bash.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        name: &str,
        bin: &str,
        completer: &str,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let script = include_str!("completions.bash").replace("NAME", &name.replace('-', "_"));
        let script = script.replace("BIN", bin).replace("COMPLETER", &quoted(Path::new(completer)));
        out.write_all(script.replace("VARIABLE", variable).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        env::Bash.write_complete(command, args, folder, out)
    }
}

#[derive(clap::Args)]
#[command(after_help = examples::COMPLETIONS)]
pub struct CompletionsArgs {
    /// Shell
    shell: Shell,
}

#[derive(clap::Args)]
#[command(after_help = examples::MAN)]
pub struct ManArgs {
    /// Output folder, created if missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Prints the script that completes commands, flags and values: it asks this program, which knows the runs.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let shell = args.shell.to_string();
    let completer = SHELLS.completer(&shell).ok_or_else(|| anyhow!("{shell} has no completions"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, NAME, NAME, NAME, &mut script)?;
    Ok(output::now(&String::from_utf8(script)?)?)
}

/// Answers a shell that asks what can follow, and ends the process; returns where none does.
pub fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).shells(SHELLS).complete();
}

/// Writes a page for each command.
pub fn man(args: &ManArgs) -> Result<()> {
    let folder = &args.folder;
    fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(command, folder).map_err(|e| Error::io("write to", folder, e))?;
    let page = folder.join("rustyflow.1");
    Ok(output::line(format_args!("the pages are in {}: man -l {}", folder.display(), quoted(&page)))?)
}

/// The page of a command, and those of the commands below it.
fn write_pages(command: clap::Command, folder: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned() {
        write_pages(inner, folder)?;
    }
    let man = Man::new(command);
    let mut page = Vec::new();
    man.render(&mut page)?;
    fs::write(folder.join(man.get_filename()), with_headings(&String::from_utf8_lossy(&page)))
}

/// The text behind the options, which clap calls EXTRA, under the headings that man pages have.
fn with_headings(page: &str) -> String {
    page.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n").replace("\nExit codes: ", "\n.SH \"EXIT STATUS\"\n")
}
