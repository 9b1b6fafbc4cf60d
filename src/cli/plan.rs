//! `rustyflow plan`, and `train --dry-run`: estimated memory and time of a run.

use super::configuration::{self, TrainFlags};
use super::output;
use super::progress::shape_words;
use super::{device, examples};
use crate::Device;
use crate::bench::{Sizes, measure_exchange, measure_roofline};
use crate::cache;
use crate::comm::Launch;
use crate::config::{MatmulF32, Resolved};
use crate::train::{Cluster, ClusterPlan, PlannedRanks, Rates, RunPlan, Saving, Speed, operands, plan_run};
use crate::units;
use anyhow::Result;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = examples::PLAN)]
pub struct Args {
    #[command(flatten)]
    flags: TrainFlags,
    /// Also estimate the speed on up to N devices, one rank each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: Option<u16>,
    /// Bandwidth of each rank, in both directions: 25Gbps, 100Mbps [default: all ranks in one
    /// machine]
    #[arg(long, value_name = "RATE", value_parser = bytes_per_s, requires = "ranks")]
    network: Option<f64>,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

/// A run that cannot be, which the plan has said.
#[derive(Debug)]
pub struct DoesNotFit;

impl std::fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("the run does not fit")
    }
}

impl std::error::Error for DoesNotFit {}

/// Bytes a second of a rate such as "25Gbps".
fn bytes_per_s(text: &str) -> Result<f64, String> {
    let lower = text.to_ascii_lowercase();
    let units = [("tbps", 1e12), ("gbps", 1e9), ("mbps", 1e6), ("kbps", 1e3)];
    let split = units.iter().find_map(|(unit, bits)| Some((lower.strip_suffix(unit)?.trim(), bits)));
    let rate = split.and_then(|(number, bits)| Some(number.parse::<f64>().ok()? * bits / 8.0));
    let rate = rate.filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "give a number with Kbps, Mbps, Gbps or Tbps, as in 25Gbps".into())
}

/// The ranks that a plan is for.
pub enum Ranks {
    /// Those of the run: its devices, in each process of a launcher.
    Run(Option<Launch>),
    /// So many, whose speed is estimated, with this bandwidth in bytes a second between machines of one rank each.
    Estimated { count: usize, network: Option<f64> },
}

impl Ranks {
    fn planned(&self, devices: &[Device]) -> PlannedRanks {
        match *self {
            Ranks::Run(launch) => {
                let (processes, on_machine) = launch.map_or((1, 1), |launch| (launch.processes, launch.on_machine));
                let on_cpu = devices.iter().filter(|device| !device.is_gpu()).count();
                PlannedRanks {
                    count: devices.len().saturating_mul(processes),
                    on_machine: on_cpu.saturating_mul(on_machine),
                    in_processes: launch.is_some(),
                }
            }
            Ranks::Estimated { count, network: None } => PlannedRanks { count, on_machine: count, in_processes: false },
            Ranks::Estimated { count, network: Some(_) } => PlannedRanks { count, on_machine: 1, in_processes: true },
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    let mut resolved = args.flags.resolve(None)?;
    configuration::warn(&resolved);
    let ranks = match args.ranks {
        None => Ranks::Run(None),
        Some(count) => Ranks::Estimated { count: count.into(), network: args.network },
    };
    show(&mut resolved, None, &args.flags, ranks, args.json)
}

/// Prints the plan of a run; `kept` is the `device.matmul_f32` of one that is resumed.
pub fn show(
    resolved: &mut Resolved,
    kept: Option<MatmulF32>,
    flags: &TrainFlags,
    ranks: Ranks,
    json: bool,
) -> Result<()> {
    // The first of several stands for all.
    let mut devices = device::open_for_run(resolved, kept, true)?;
    let planned = ranks.planned(&devices);
    let device = devices.swap_remove(0);
    let mut plan = plan_run(resolved, &device, planned, &flags.run.data_dir, cache::user_folder().as_deref())?;
    *resolved = plan.resolved.clone();
    let rates = if plan.does_not_fit.is_none() { rates(&plan, resolved, &device) } else { None };
    if let Some(rates) = &rates {
        plan.estimate(rates);
    }
    let cluster = match ranks {
        Ranks::Run(_) => None,
        Ranks::Estimated { count: ranks, network: network_bytes_per_s } => {
            let host_seconds_per_byte = measure_exchange(&device)?;
            let peaks = match &rates {
                Some(Rates::Peaks(peaks)) => Some(peaks),
                _ => None,
            };
            let cluster = Cluster { ranks, network_bytes_per_s, host_seconds_per_byte };
            plan.on_cluster(&resolved.config, cluster, &device, peaks)?
        }
    };
    if json {
        let mut value = serde_json::to_value(&plan)?;
        if let Some(cluster) = &cluster {
            value["cluster"] = serde_json::to_value(cluster)?;
        }
        output::line(value)?;
    } else {
        print(&plan)?;
        cluster.map_or(Ok(()), |cluster| print_cluster(&cluster))?;
    }
    if plan.does_not_fit.is_some() { Err(DoesNotFit.into()) } else { Ok(()) }
}

/// What the device does, from an earlier run or else measured.
fn rates(plan: &RunPlan, resolved: &Resolved, device: &Device) -> Option<Rates> {
    plan.earlier_rates(&resolved.config, device).or_else(|| {
        let operands = operands(resolved.config.device.precision);
        let measured = measure_roofline(device, &Sizes::for_device(device), operands);
        let say = |e| output::note(format_args!("no time estimate: cannot measure the device's peaks: {e}"));
        measured.map(Rates::Peaks).map_err(say).ok()
    })
}

fn print(plan: &RunPlan) -> Result<()> {
    let m = &plan.model;
    plan.notes.iter().for_each(|note| output::note(format_args!("note: {note}")));
    output::line(format_args!("device     {}", plan.device))?;
    output::line(format_args!(
        "model      {} parameters: {}, vocabulary {}",
        units::count(plan.parameters as f64),
        shape_words(m),
        m.vocab_size
    ))?;
    if let Some(adapters) = plan.adapters {
        output::line(format_args!(
            "adapters   {} parameters are trained, all others are frozen",
            units::count(adapters as f64)
        ))?;
    }
    print_memory(plan)?;
    print_savings(plan)?;
    match (&plan.does_not_fit, plan.passes) {
        (Some(why), _) => output::line(format_args!("fits       no: {why}"))?,
        (None, 1) => output::line("fits       yes")?,
        (None, passes) => output::line(format_args!("fits       each batch in {passes} passes"))?,
    }
    let largest = match plan.largest_batch_size {
        Some(0) => "; none fits".into(),
        Some(largest) => format!("; at most {largest} fits in one pass"),
        None => String::new(),
    };
    output::line(format_args!("batch      {} x {} tokens{largest}", plan.batch_size, plan.block_size))?;
    let recomputed = match plan.recompute_flops_per_step {
        0.0 => String::new(),
        flops => format!(", and {} more that recomputes blocks", units::si(flops, "FLOP")),
    };
    let flops = units::si(plan.flops_per_step, "FLOP");
    output::line(format_args!("step       {} tokens, {flops}{recomputed}", plan.tokens_per_step))?;
    output::line(format_args!(
        "run        {} steps, {:.2} epochs of {} tokens, {}",
        plan.steps,
        plan.epochs,
        units::count(plan.train_tokens as f64),
        units::si(plan.flops, "FLOP")
    ))?;
    if let Some(time) = &plan.time {
        let span = Duration::from_secs_f64(time.seconds.clamp(1.0, 1e12));
        let step = 1e-3 * time.ms_per_step;
        output::line(format_args!(
            "time       {} a step, {}: {} in all{}",
            if step < 60.0 { units::si(step, "s") } else { units::duration(step) },
            units::tokens_per_s(Some(time.tokens_per_s)),
            units::duration(span.as_secs_f64()),
            ends(span)
        ))?;
        output::line(format_args!("           from {}", time.source))?;
    }
    Ok(())
}

/// The most memory of a device, by what it holds, and that of the machine.
fn print_memory(plan: &RunPlan) -> Result<()> {
    let memory = &plan.memory;
    let available =
        memory.available.map_or("capacity unknown".into(), |bytes| format!("{} available", units::bytes(bytes)));
    let on = if plan.ranks > 1 { format!("each of {} devices", plan.ranks) } else { "the device".into() };
    output::line(format_args!("memory     {} peak on {on}, {available}", units::bytes(memory.peak)))?;
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
            output::line(format_args!("             {name:<12}{:>12}", units::bytes(bytes)))?;
        }
    }
    let available = plan.host_available_bytes.map(|bytes| format!(" of {} available", units::bytes(bytes)));
    let host = units::bytes(plan.host_bytes) + &available.unwrap_or_default();
    output::line(format_args!("host       {host}, peak while a checkpoint is written"))?;
    Ok(())
}

/// What would save memory.
fn print_savings(plan: &RunPlan) -> Result<()> {
    let width = plan.savings.iter().map(|saving| saving.change.len()).max().unwrap_or(0);
    for (i, Saving { change, bytes }) in plan.savings.iter().enumerate() {
        let (label, plus) = if i == 0 { ("savings", "with") } else { ("", "and") };
        output::line(format_args!("{label:<11}{plus:<4} {change:<width$}  {:>10}", units::bytes(*bytes)))?;
    }
    Ok(())
}

fn print_cluster(plan: &ClusterPlan) -> Result<()> {
    let Cluster { network_bytes_per_s, host_seconds_per_byte, .. } = plan.cluster;
    let network = network_bytes_per_s.map_or("ranks in one machine".into(), |rate| {
        format!("a network of {} to each rank", units::si(rate * 8.0, "bit/s"))
    });
    let sent = units::bytes(plan.exchanged_bytes as u64);
    output::line(format_args!(
        "\nranks      {network}; {sent} sent and received per exchange; host copies at {}",
        units::si(1.0 / host_seconds_per_byte, "B/s")
    ))?;
    let apart = format!("apart for {} steps", plan.sync_every);
    output::line(format_args!("                                     an all-reduce a step       {apart}"))?;
    output::line(format_args!(
        "           ranks  rows  compute ms   step ms  waiting  speed-up    step ms  waiting  speed-up"
    ))?;
    let first = &plan.rows[0];
    for row in &plan.rows {
        let of = |speed: &Speed, one: &Speed| {
            let (waiting, faster) = (100.0 * speed.communication, speed.tokens_per_s / one.tokens_per_s);
            format!("{:>8}  {waiting:>6.1}%  {faster:>7.2}x", units::digits(speed.ms_per_step))
        };
        let (together, apart) = (of(&row.together, &first.together), of(&row.apart, &first.apart));
        let (ranks, rows, compute) = (row.ranks, row.sequences, units::digits(row.compute_ms));
        output::line(format_args!("           {ranks:>5}  {rows:>4}  {compute:>10}  {together}   {apart}"))?;
    }
    let [together, apart] = plan.pays_to;
    output::line(format_args!(
        "           doubling gives at least 1.3x up to {together} ranks with all-reduce, {apart} apart"
    ))?;
    Ok(())
}

/// ", ending 2026-03-01 at 14:35 if started now".
fn ends(span: Duration) -> String {
    let end = jiff::SignedDuration::try_from(span).ok().and_then(|span| jiff::Zoned::now().checked_add(span).ok());
    end.map_or(String::new(), |end| format!(", ending {} if started now", end.strftime("%Y-%m-%d at %H:%M")))
}
