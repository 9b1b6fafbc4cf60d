//! The command line: one file per subcommand. The only place that knows clap and anyhow.

mod bench;
mod cache;
mod configuration;
mod data;
mod device;
mod devices;
mod eval;
mod generate;
mod model;
mod output;
mod progress;
mod train;
mod verify_resume;

use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Train a GPT on the GPU you own, whoever made it, or on the CPU.
#[derive(Parser)]
#[command(name = "rustyflow", version, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "First run:  rustyflow train            trains a small model on the sample corpus, then writes a story
            rustyflow generate --prompt \"One morning\""
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Say more: -v what is done, -vv also shaders and caches (RUST_LOG refines it)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model; without --config, a small one on the sample corpus
    Train(train::Args),
    /// Check that an interrupted and resumed run is the same to the bit
    VerifyResume(verify_resume::Args),
    /// Measure loss, perplexity and bits per byte over a whole text
    Eval(eval::Args),
    /// Continue a text
    Generate(generate::Args),
    /// List every GPU adapter with its limits and features
    Devices(devices::Args),
    /// Measure what a device can do
    #[command(subcommand)]
    Bench(bench::Command),
    /// Fetch data sets
    #[command(subcommand)]
    Data(data::Command),
}

/// Runs the command that the process was called with.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging(cli.verbose);
    let result = match cli.command {
        Command::Train(args) => train::run(args, &stop_on_signal()),
        Command::VerifyResume(args) => verify_resume::run(args, &stop_on_signal()),
        Command::Eval(args) => eval::run(args),
        Command::Generate(args) => generate::run(args, &stop_on_signal()),
        Command::Devices(args) => devices::run(args),
        Command::Bench(command) => bench::run(command),
        Command::Data(command) => data::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Without the causes: every message of the library includes its own.
            output::note(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("expected a whole number above zero".into())
}

/// Logs go to standard error: warnings always, more with -v or RUST_LOG.
fn start_logging(verbose: u8) {
    let level = ["warn", "rustyflow=info,warn", "rustyflow=debug,warn"][usize::from(verbose.min(2))];
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    let targets = verbose > 1 || std::env::var_os("RUST_LOG").is_some(); // which that speaks of
    logs.with_target(targets).without_time().init();
}

/// A flag that Ctrl-C (or SIGTERM) sets, for commands that end well when they see it; the second time the process ends
/// at once.
fn stop_on_signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let handler = move || {
        if flag.swap(true, Ordering::Relaxed) {
            // As a shell reports a process that Ctrl-C ended.
            std::process::exit(130);
        }
        output::note("\nstopping after this step; press Ctrl-C again to stop at once");
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C will end the run without saving: {error}");
    }
    stop
}
