//! `rustyflow bench`: what a device can do.

use super::{device, output};
use crate::bench::{OpTiming, Sizes, measure_peaks, products, select, step_cases, time_row, time_step};
use crate::config::DeviceConfig;
use crate::train::describe;
use crate::{Device, Error};
use anyhow::{Result, bail};

#[derive(clap::Subcommand)]
pub enum Command {
    /// Time every kernel, beside what the device does at best
    Ops(OpsArgs),
    /// Time training steps on random tokens
    Step(StepArgs),
}

#[derive(clap::Args)]
pub struct OpsArgs {
    /// Only these ops, such as matmul or layer_norm
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    only: Vec<String>,
    /// Instead of the table, matrix products of these sizes, in the layouts nn, nt and tn
    #[arg(long, value_name = "MxNxK", value_delimiter = ',', value_parser = product_sizes)]
    shape: Vec<[usize; 3]>,
    /// gpt2-124m, or small; by default what suits the device
    #[arg(long, value_name = "SIZES", value_parser = sizes)]
    sizes: Option<Sizes>,
    /// Print one JSON object per kernel instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: device::Flags,
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
    match command {
        Command::Ops(args) => ops(&args),
        Command::Step(args) => step(&args),
    }
}

fn ops(args: &OpsArgs) -> Result<()> {
    // Before the device is opened and measured: what is misspelt should fail now.
    select(&Sizes::SMALL, &args.only)?;
    if !args.shape.is_empty() && args.only.iter().any(|op| op != "matmul") {
        bail!("--shape is about matrix products: give it alone, or with --only matmul");
    }
    let device = device::open_measured(&args.device.over(&DeviceConfig::default()))?;
    let sizes = args.sizes.unwrap_or_else(|| Sizes::for_device(&device));
    let rows = match &args.shape[..] {
        [] => select(&sizes, &args.only)?,
        shapes => shapes.iter().flat_map(|&[m, n, k]| products(m, n, k)).collect(),
    };
    let peaks = measure_peaks(&device, &sizes)?;
    if !args.json {
        let name = describe(&device);
        output::line(format_args!(
            "{name}: at best {:.3} TFLOP/s in f32 matrix products, {:.0} GB/s; sizes {}",
            peaks.tflops, peaks.gb_per_s, sizes.name
        ))?;
        output::line(format_args!(
            "{:<20} {:<30} {:<26} {:>9} {:>8} {:>8} {:<12} {:>10}",
            "op", "shape", "kernel", "ms", "TFLOP/s", "GB/s", "share", "difference"
        ))?;
    }
    let mut wrong = Vec::new();
    for row in &rows {
        let name = format!("{} {}", row.op, row.shape);
        if row.f16 && matches!(&device, Device::Gpu(gpu) if !gpu.limits().f16) {
            output::note(format_args!("{name}: left out, this GPU has no 16-bit floats"));
            continue;
        }
        let timings = time_row(row, &device, &peaks).map_err(|e| Error::Invalid(format!("bench ops: {name}: {e}")))?;
        if !timings.agrees {
            wrong.push(name);
        }
        for timing in &timings.kernels {
            if args.json {
                let mut object = serde_json::to_value(timing)?;
                object["device"] = describe(&device).into();
                object["peak_tflops"] = peaks.tflops.into();
                object["peak_gb_per_s"] = peaks.gb_per_s.into();
                output::line(object)?;
            } else {
                output::line(op_line(timing))?;
            }
        }
    }
    if !wrong.is_empty() {
        bail!("bench ops: not what the CPU computes: {}", wrong.join("; "));
    }
    Ok(())
}

fn op_line(t: &OpTiming) -> String {
    format!(
        "{:<20} {:<30} {:<26} {:>9.4} {:>8.3} {:>8.1} {:>3.0}% {:<7} {:>10}",
        t.op,
        t.shape,
        t.kernel,
        t.ms,
        t.tflops,
        t.gb_per_s,
        100.0 * t.share,
        t.bound,
        t.difference.map_or("-".to_string(), |d| format!("{d:.0e}")),
    )
}

/// "4096x4096x64".
fn product_sizes(text: &str) -> Result<[usize; 3], String> {
    let sizes: Option<Vec<usize>> = text.split('x').map(|n| n.parse().ok().filter(|&n| n > 0)).collect();
    match sizes.as_deref() {
        Some(&[m, n, k]) => Ok([m, n, k]),
        _ => Err("expected three sizes above zero, as 4096x4096x64".into()),
    }
}

fn sizes(name: &str) -> Result<Sizes, String> {
    let names = Sizes::ALL.map(|s| s.name).join(" or ");
    Sizes::ALL.into_iter().find(|s| s.name == name).ok_or(format!("expected {names}"))
}

fn step(args: &StepArgs) -> Result<()> {
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
