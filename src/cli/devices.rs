//! `rustyflow devices`: every adapter with its limits, features and memory.

use super::output;
use crate::gpu::adapters;
use crate::profile::size_text;
use anyhow::Result;

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let (adapters, cores, threads) = (adapters(), num_cpus::get_physical(), num_cpus::get());
    if args.json {
        let cpu = serde_json::json!({ "physical_cores": cores, "logical_cores": threads });
        output::line(serde_json::json!({ "cpu": cpu, "adapters": adapters }))?;
        return Ok(());
    }
    output::line(format_args!("cpu      {cores} physical cores, {threads} logical"))?;
    for a in &adapters {
        let [low, high] = a.subgroup_size;
        let subgroups = if low == high { low.to_string() } else { format!("{low} to {high}") };
        output::line(format_args!("gpu:{}    {} ({}, {}, driver {})", a.index, a.name, a.kind, a.backend, a.driver))?;
        let memory = a.memory_bytes.map_or("memory not known".to_string(), |m| format!("{} of memory", size_text(m)));
        output::line(format_args!(
            "         {memory}; largest buffer {}, binding {}; workgroups of {} threads with {}; subgroups of {subgroups}",
            size_text(a.max_buffer_bytes),
            size_text(a.max_binding_bytes),
            a.max_workgroup_threads,
            size_text(u64::from(a.workgroup_memory_bytes)),
        ))?;
        output::line(format_args!("         {}", a.features.join(", ")))?;
        if let Some(why) = &a.unusable {
            output::line(format_args!("         cannot be used: {why}"))?;
        } else if a.is_software() {
            output::line("         software: computes on the processor; only with --allow-software-gpu")?;
        }
    }
    if adapters.is_empty() {
        output::line("no GPU adapter: a GPU needs its vendor's Vulkan driver (Metal on macOS, DirectX 12 on Windows)")?;
    }
    Ok(())
}
