//! `rustyflow verify-resume`: shows that a run which is interrupted and resumed is the same to the bit.

use super::interrupt::Interrupts;
use super::{configuration, device, output};
use crate::Device;
use crate::cache;
use crate::train::verify_resume;
use anyhow::{Result, bail};

#[derive(clap::Args)]
#[command(after_help = super::examples::VERIFY_RESUME)]
pub struct Args {
    #[command(flatten)]
    configuration: configuration::RunFlags,
    /// Steps before and after the interruption
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1 << 20))]
    steps: u32,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args, interrupts: &Interrupts) -> Result<()> {
    // Its two runs are removed again.
    interrupts.stop_after("\nstopping after this step; press Ctrl-C again to stop at once");
    let mut resolved = args.configuration.resolve(None, &[])?;
    configuration::warn(&resolved);
    let devices = device::open_for_run(&mut resolved, None, false)?;
    let (data_dir, cache) = (&args.configuration.data_dir, cache::user_folder());
    let steps = args.steps as usize;
    let verified = verify_resume(&resolved, steps, &devices, data_dir, cache.as_deref(), interrupts.stop())?;
    let steps = verified.steps;
    if args.json {
        output::line(serde_json::to_value(&verified)?)?;
    } else {
        let described: Vec<String> = devices.iter().map(Device::describe).collect();
        output::line(format_args!("device        {}", described.join(", ")))?;
        output::line(format_args!("compared      {} steps in one go, and {steps} + {steps} resumed", 2 * steps))?;
        output::line(format_args!(
            "these are     {} bytes of weights, {} bytes of optimizer state, {} lines of metrics",
            verified.weights_bytes, verified.optimizer_bytes, verified.metrics_lines
        ))?;
    }
    if let Some(folder) = verified.folder {
        let all = verified.differences;
        let more = if all.len() > 3 { format!(" and {} more", all.len() - 3) } else { String::new() };
        let first = all[..all.len().min(3)].join(", ");
        bail!("resuming changed the run: {first}{more} differ; both runs are in {}", folder.display());
    }
    if !args.json {
        output::line("result        identical to the bit")?;
    }
    Ok(())
}
