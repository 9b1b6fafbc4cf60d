//! The command line: one file per subcommand. The only place that knows clap and anyhow.

mod argument;
mod bench;
mod chat;
mod complete;
mod config;
mod configuration;
mod data;
mod device;
mod devices;
mod doctor;
mod eval;
mod examples;
mod export;
mod fetch;
mod generate;
mod hub;
mod interrupt;
mod loading;
mod merge;
mod model;
mod named;
mod output;
mod plan;
mod progress;
mod reproduce;
mod runs;
mod sampling;
#[cfg(feature = "serve")]
mod serve;
mod shell;
mod sweep;
mod train;
mod tui;
mod unknown_flag;
mod verify_resume;

use clap::{Parser, Subcommand};
use interrupt::{Interrupted, Interrupts};
use std::process::ExitCode;

/// Train and fine-tune GPT-2, Llama, Qwen and LSTM language models on a GPU or the CPU.
#[derive(Parser)]
#[command(name = "rustyflow", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Examples:
  rustyflow train                              a small model on the sample corpus
  rustyflow train notes/                       your own text: a folder or a file
  rustyflow generate --prompt \"One morning\"   text from the newest run's model

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 or 143 stopped by Ctrl-C or SIGTERM")]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Print more: -v each phase, -vv also shaders and caches (RUST_LOG refines it)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,

    /// Print only results and errors: no notes, warnings or progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model: a small one on the sample corpus, or yours
    Train(train::Args),
    /// Estimate a run before it starts: memory, time, the largest batch
    Plan(plan::Args),
    /// Train once for each combination of values, and compare the runs
    Sweep(sweep::Args),
    /// Rerun a published recipe and check its final loss
    Reproduce(reproduce::Args),
    /// Check that a resumed run equals an uninterrupted one, to the bit
    VerifyResume(verify_resume::Args),
    /// Measure a model's loss, perplexity and bits per byte on a text, or its accuracy on questions
    Eval(eval::Args),
    /// Generate text from a prompt
    Generate(generate::Args),
    /// Chat with a model in the terminal
    Chat(chat::Args),
    /// Serve a model over HTTP with OpenAI's protocol, and a chat page
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    /// Download a model from Hugging Face's hub into the cache that transformers uses
    Fetch(fetch::Args),
    /// Convert a model: to GGUF for llama.cpp, or to safetensors for transformers
    Export(export::Args),
    /// Merge a LoRA adapter into its model's weights
    Merge(merge::Args),
    /// List, show, compare and remove runs
    #[command(subcommand)]
    Runs(runs::Command),
    /// List the GPUs with their limits and features
    Devices(devices::Args),
    /// Check this machine: every kernel against the CPU, transfer rates, disk space
    Doctor(doctor::Args),
    /// Benchmark a device: kernels, training steps, generation
    #[command(subcommand)]
    Bench(bench::Command),
    /// Download, prepare and describe data sets
    #[command(subcommand)]
    Data(data::Command),
    /// Show and write configurations
    #[command(subcommand)]
    Config(config::Command),
    /// Print the completion script of a shell
    Completions(shell::CompletionsArgs),
    /// Write the manual pages
    Man(shell::ManArgs),
}

impl Command {
    /// Whether it prints JSON.
    fn is_for_machines(&self) -> bool {
        match self {
            Command::Train(args) => args.json,
            Command::Plan(args) => args.json,
            Command::Sweep(args) => args.json,
            Command::Reproduce(args) => args.json,
            Command::VerifyResume(args) => args.json,
            Command::Eval(args) => args.json,
            Command::Generate(args) => args.json,
            Command::Chat(args) => args.json,
            Command::Fetch(args) => args.json,
            Command::Export(args) => args.written.json,
            Command::Merge(args) => args.written.json,
            Command::Runs(command) => command.is_for_machines(),
            Command::Devices(args) => args.json,
            Command::Doctor(args) => args.json,
            Command::Bench(command) => command.is_for_machines(),
            Command::Data(command) => command.is_for_machines(),
            Command::Config(command) => command.is_for_machines(),
            #[cfg(feature = "serve")]
            Command::Serve(_) => false,
            Command::Completions(_) | Command::Man(_) => false,
        }
    }
}

/// Runs the command that the process was called with.
pub fn main() -> ExitCode {
    shell::answer();
    quiet_drivers();
    let args: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return unknown_flag::report(&error, &args),
    };
    if cli.quiet {
        output::be_quiet();
    }
    start_logging(cli.verbose);
    loading::watch();
    let interrupts = Interrupts::watch();
    let for_machines = cli.command.is_for_machines();
    let result = match cli.command {
        Command::Train(args) => train::run(args, cli.quiet, &interrupts),
        Command::Plan(args) => plan::run(&args),
        Command::Sweep(args) => sweep::run(&args, &interrupts),
        Command::Reproduce(args) => reproduce::run(&args, &interrupts),
        Command::VerifyResume(args) => verify_resume::run(args, &interrupts),
        Command::Eval(args) => eval::run(args),
        Command::Generate(args) => generate::run(args, &interrupts),
        Command::Chat(args) => chat::run(args, &interrupts),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args, &interrupts),
        Command::Fetch(args) => fetch::run(args),
        Command::Export(args) => export::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Runs(command) => runs::run(command),
        Command::Devices(args) => devices::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(command) => bench::run(command),
        Command::Data(command) => data::run(command),
        Command::Config(command) => config::run(command),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => interrupts.exit_code(),
        Err(error) if error.is::<train::ToldByRank0>() || error.is::<plan::DoesNotFit>() => ExitCode::FAILURE,
        Err(error) => {
            // Without the causes: every message of the library includes its own.
            output::error(format_args!("error: {error}"));
            // Whoever reads lines of JSON gets this one too; that it cannot be written is said by the exit code.
            if for_machines {
                let _ = output::line(serde_json::json!({ "kind": "error", "message": error.to_string() }));
            }
            if is_called_wrongly(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Whether what is wrong stands on the command line: the message of such an error begins with the flag.
fn is_called_wrongly(error: &anyhow::Error) -> bool {
    error.to_string().starts_with("--")
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("expected an integer above zero".into())
}

/// Mesa's drivers complain about a missing folder for sockets, of which a command that shows no window has no use.
fn quiet_drivers() {
    const SOCKETS: &str = "XDG_RUNTIME_DIR";
    if cfg!(target_os = "linux") && std::env::var_os(SOCKETS).is_none() {
        // SAFETY: there is no other thread yet that could read the environment.
        unsafe { std::env::set_var(SOCKETS, std::env::temp_dir()) };
    }
}

/// Logs go to standard error: warnings always, more with -v or RUST_LOG.
fn start_logging(verbose: u8) {
    let levels = ["warn", "rustyflow=info,warn", "rustyflow=debug,warn"];
    let level = if output::is_quiet() { "error" } else { levels[usize::from(verbose.min(2))] };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| output::Notes);
    let logs = logs.with_ansi(output::has_colours(&std::io::stderr()));
    let targets = verbose > 1 || std::env::var_os("RUST_LOG").is_some(); // which that speaks of
    logs.with_target(targets).without_time().init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Every command that does something, by its full name.
    fn visit(command: &clap::Command, name: &str, check: &mut dyn FnMut(&str, &clap::Command)) {
        if !command.has_subcommands() {
            check(name, command);
        }
        command.get_subcommands().for_each(|sub| visit(sub, &format!("{name} {}", sub.get_name()), check));
    }

    /// The words of a line as a shell splits it, up to a comment or a redirection.
    fn words(line: &str) -> Vec<String> {
        let line = ["   ", " > ", " < "].iter().fold(line, |line, end| line.split(end).next().unwrap());
        let quoted = line.split('"').enumerate();
        let parts = quoted.flat_map(|(i, part)| match i % 2 {
            0 => part.split_whitespace().map(String::from).collect(),
            _ => vec![part.to_string()],
        });
        parts.collect()
    }

    #[test]
    fn the_help_of_every_command_has_examples_that_it_takes() {
        let mut seen = 0;
        visit(&Cli::command(), "rustyflow", &mut |name, command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().filter(|line| line.starts_with("  rustyflow ")).collect();
            assert!(help.starts_with("Examples:\n") && !lines.is_empty(), "{name}: {help}");
            // Where help is wrapped; a broken line breaks its column of explanations.
            help.lines().for_each(|line| assert!(line.chars().count() <= 100, "{name}: {line}"));
            for line in lines {
                assert!(line.trim_start().starts_with(name), "{name}: {line}");
                let parsed = Cli::try_parse_from(words(line.trim_start()));
                assert!(parsed.is_ok(), "{line}: {}", parsed.err().unwrap());
                seen += 1;
            }
        });
        assert!(seen > 20, "{seen}");
    }
}
