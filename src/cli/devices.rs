//! `rustyflow devices`: every adapter with its limits, features and memory.

use super::output;
use super::{cache, device};
use crate::Device;
use crate::gpu::{AdapterChoice, AdapterInfo, Gpu};
use crate::ops::MatmulTuning;
use anyhow::{Context, Result};
use std::collections::HashSet;

#[derive(clap::Args)]
#[command(after_help = super::examples::DEVICES)]
pub struct Args {
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
    /// Autotune the matmul kernels of every hardware adapter anew
    #[arg(long)]
    measure: bool,
}

pub fn run(args: Args) -> Result<()> {
    let mut devices = Device::list();
    let cpu = devices.remove(0);
    let adapters: Vec<AdapterInfo> = devices.into_iter().filter_map(|device| device.adapter).collect();
    if args.measure {
        measure(&adapters)?;
    }
    if args.json {
        let cache = cache::folder();
        let tuning = |info: &AdapterInfo| cache.as_ref().and_then(|cache| MatmulTuning::load(cache, info));
        let [cores, threads] = cpu.cores.unwrap_or_default();
        let cpu = serde_json::json!({ "physical_cores": cores, "logical_cores": threads });
        let described = |info: &AdapterInfo| {
            let mut value = serde_json::to_value(info)?;
            value["matmul_gflops"] = serde_json::to_value(tuning(info).as_ref().map(MatmulTuning::tiles))?;
            Ok(value)
        };
        let adapters = adapters.iter().map(described).collect::<Result<Vec<_>>>()?;
        output::line(serde_json::json!({ "cpu": cpu, "adapters": adapters }))?;
        return Ok(());
    }
    output::line(&cpu)?;
    print(&adapters)
}

/// A few lines about each adapter.
pub fn print(adapters: &[AdapterInfo]) -> Result<()> {
    let cache = cache::folder();
    for a in adapters {
        output::line(a)?;
        if a.is_software() {
            output::line("         software: computes on the processor; only with --allow-software-gpu")?;
        } else if let Some(tuning) = cache.as_ref().and_then(|cache| MatmulTuning::load(cache, a)) {
            let highest = f64::from(tuning.highest()) / 1e3;
            output::line(format_args!("         matmul kernels autotuned: up to {highest:.1} TFLOP/s in f32"))?;
        } else {
            output::line("         matmul kernels not autotuned yet: `rustyflow train` does it once")?;
        }
    }
    if adapters.is_empty() {
        output::line("no GPU adapter: a GPU needs its vendor's Vulkan driver (Metal on macOS, DirectX 12 on Windows)")?;
    }
    Ok(())
}

/// Measures one adapter of each kind.
fn measure(adapters: &[AdapterInfo]) -> Result<()> {
    let cache =
        cache::folder().context("there is no folder to keep measurements in: name one in RUSTYFLOW_CACHE_DIR")?;
    let mut done = HashSet::new();
    let hardware: Vec<_> = adapters.iter().filter(|a| !a.is_software()).collect();
    if hardware.is_empty() {
        output::note("nothing to measure: there is no hardware adapter");
    }
    for info in hardware {
        if done.insert((&info.name, &info.backend, &info.driver)) {
            let choice =
                AdapterChoice { index: Some(info.index), cache: Some(cache.clone()), ..AdapterChoice::default() };
            device::autotune(Gpu::open(&choice)?, &cache)?;
        }
    }
    Ok(())
}
