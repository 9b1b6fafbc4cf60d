//! `rustyflow plan`, and `train --dry-run`: what a run would take.

use super::configuration::{self, TrainFlags};
use super::output::{self, short};
use super::{cache, device, examples};
use crate::Device;
use crate::bench::{Sizes, measure_roofline};
use crate::config::{MatmulF32, Resolved};
use crate::profile::size_text;
use crate::train::{Rates, RunPlan, operands, plan_run};
use anyhow::Result;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = examples::PLAN)]
pub struct Args {
    #[command(flatten)]
    flags: TrainFlags,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let mut resolved = args.flags.resolve(None)?;
    configuration::warn(&resolved);
    show(&mut resolved, None, &args.flags, args.json)
}

/// Prints the plan of a run; `kept` is the `device.matmul_f32` of one that is resumed.
pub fn show(resolved: &mut Resolved, kept: Option<MatmulF32>, flags: &TrainFlags, json: bool) -> Result<()> {
    // The first of several stands for all.
    let device = device::open_for_run(resolved, kept, true)?.swap_remove(0);
    let mut plan = plan_run(resolved, &device, &flags.run.data_dir, cache::folder().as_deref())?;
    if let Some(rates) = rates(&plan, resolved, &device) {
        plan.estimate(&rates);
    }
    if json { Ok(output::line(serde_json::to_value(&plan)?)?) } else { print(&plan) }
}

/// What the device does, from an earlier run or else measured.
fn rates(plan: &RunPlan, resolved: &Resolved, device: &Device) -> Option<Rates> {
    plan.earlier_rates(&resolved.config, device).or_else(|| {
        let operands = operands(resolved.config.device.precision);
        let measured = measure_roofline(device, &Sizes::for_device(device), operands);
        let say = |e| output::note(format_args!("no time is given: what the device does cannot be measured: {e}"));
        measured.map(Rates::Peaks).map_err(say).ok()
    })
}

fn print(plan: &RunPlan) -> Result<()> {
    let (m, memory) = (&plan.model, &plan.memory);
    let mib = |bytes: u64| size_text(bytes);
    output::line(format_args!("device     {}", plan.device))?;
    output::line(format_args!(
        "model      {} parameters: {} layers, {} heads, width {}, context {}, vocabulary {}",
        short(plan.parameters as f64),
        m.n_layer,
        m.n_head,
        m.n_embd,
        m.block_size,
        m.vocab_size
    ))?;
    if let Some(adapters) = plan.adapters {
        output::line(format_args!(
            "adapters   {} parameters are trained, the model is frozen",
            short(adapters as f64)
        ))?;
    }
    let available = memory
        .available
        .map_or("which does not say how much it has".into(), |bytes| format!("which has {}", mib(bytes)));
    output::line(format_args!("memory     {} at most on the device, {available}", mib(memory.peak)))?;
    for (name, bytes) in [
        ("weights", memory.weights),
        ("f16 copies", memory.f16_copies),
        ("gradients", memory.gradients),
        ("moments", memory.moments),
        ("activations", memory.activations),
        ("workspace", memory.workspace),
        ("other", memory.other),
    ] {
        if bytes > 0 {
            output::line(format_args!("             {name:<12}{:>12}", mib(bytes)))?;
        }
    }
    let host = plan.host_available_bytes.map_or(String::new(), |bytes| format!(" of {} to spare", mib(bytes)));
    output::line(format_args!("machine    {}{host}, while a checkpoint is written", mib(plan.host_bytes)))?;
    match (&plan.does_not_fit, plan.largest_batch_size) {
        (Some(why), _) => output::line(format_args!("fits       no: {why}"))?,
        (None, _) => output::line("fits       yes")?,
    }
    let largest = match plan.largest_batch_size {
        Some(0) => "; none fits".into(),
        Some(largest) => format!("; at most {largest} fits"),
        None => String::new(),
    };
    output::line(format_args!("batch      {}{largest}", plan.batch_size))?;
    let recomputed = match plan.recompute_flops_per_step {
        0.0 => String::new(),
        flops => format!(", and {} more that recomputes blocks", short(flops)),
    };
    let flops = short(plan.flops_per_step);
    output::line(format_args!("step       {} tokens, {flops} FLOP{recomputed}", plan.tokens_per_step))?;
    output::line(format_args!(
        "run        {} steps, {:.2} epochs of {} tokens, {} FLOP",
        plan.steps,
        plan.epochs,
        short(plan.train_tokens as f64),
        short(plan.flops)
    ))?;
    if let Some(time) = &plan.time {
        let span = Duration::from_secs_f64(time.seconds.clamp(1.0, 1e12));
        let rest = indicatif::HumanDuration(span);
        output::line(format_args!(
            "time       {:.1} ms a step, {} tokens/s: {rest} in all{}",
            time.ms_per_step,
            short(time.tokens_per_s),
            ends(span)
        ))?;
        output::line(format_args!("           from {}", time.source))?;
    }
    Ok(())
}

/// ", so it ends on 2026-03-01 at 14:35 if it begins now".
fn ends(span: Duration) -> String {
    let end = jiff::SignedDuration::try_from(span).ok().and_then(|span| jiff::Zoned::now().checked_add(span).ok());
    end.map_or(String::new(), |end| format!(", so it ends {} if it begins now", end.strftime("%Y-%m-%d at %H:%M")))
}
