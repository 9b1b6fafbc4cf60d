//! `rustyflow bench`: what a device can do.

use super::{device, output};
use crate::Error;
use crate::config::DeviceConfig;
use crate::train::{step_cases, time_step};
use anyhow::Result;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Time training steps on random tokens
    Step(StepArgs),
}

#[derive(clap::Args)]
pub struct StepArgs {
    /// seed, shakespeare-char, gpt2-124m, gpt2-350m, cpu-small or cpu-seed; may be repeated
    #[arg(long, required = true, value_name = "CASE", value_delimiter = ',')]
    case: Vec<String>,
    /// Steps per round
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Sequences per batch instead of the case's
    #[arg(long, value_name = "B")]
    batch_size: Option<usize>,
    /// Also print the table by kernel
    #[arg(long)]
    profile: bool,
    /// Print one JSON object per case instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(command: Command) -> Result<()> {
    let Command::Step(args) = command;
    let mut cases = Vec::new();
    for name in &args.case {
        let known = step_cases();
        let names: Vec<&str> = known.iter().map(|c| c.name).collect();
        let message = format!("--case {name}: there is {}", names.join(", "));
        let mut case = known.into_iter().find(|c| c.name == name).ok_or(Error::Invalid(message))?;
        case.batch_size = args.batch_size.unwrap_or(case.batch_size).max(1);
        cases.push(case);
    }
    for case in &cases {
        // A fresh device for each case, so that its peak memory is its own.
        let device = device::open_measured(&args.device.over(&DeviceConfig::default()))?;
        let t = time_step(case, &device, args.steps as usize, args.rounds as usize)?;
        if args.json {
            output::line(serde_json::to_value(&t)?)?;
            continue;
        }
        output::line(format_args!(
            "rustyflow {} f32 B={} T={}: {:.3} ms/step, {:.0} tok/s, {}loss {:.4}, host {:.1}%",
            t.case,
            t.batch_size,
            t.context,
            t.ms_per_step,
            t.tokens_per_s,
            t.gib.map_or(String::new(), |gib| format!("{gib:.2} GiB, ")),
            t.loss,
            100.0 * t.host_share
        ))?;
        if args.profile {
            output::line(t.report.text())?;
        }
    }
    Ok(())
}
