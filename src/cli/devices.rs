//! `rustyflow devices`: every adapter with its limits, features and memory.

use super::output;
use crate::Device;
use crate::cache;
use crate::gpu::AdapterInfo;
use crate::ops::MatmulTuning;
use crate::units;
use anyhow::Result;

#[derive(clap::Args)]
#[command(after_help = super::examples::DEVICES)]
pub struct Args {
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let mut devices = Device::list();
    let cpu = devices.remove(0);
    let adapters: Vec<AdapterInfo> = devices.into_iter().filter_map(|device| device.adapter).collect();
    if args.json {
        let cache = cache::user_folder();
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
    let cache = cache::user_folder();
    for a in adapters {
        output::line(a)?;
        if a.is_software() {
            output::line("         software: computes on the processor; only with --allow-software-gpu")?;
        } else if let Some(tuning) = cache.as_ref().and_then(|cache| MatmulTuning::load(cache, a)) {
            let highest = units::si(1e9 * f64::from(tuning.highest()), "FLOP/s");
            output::line(format_args!("         GEMMs autotuned: up to {highest} in f32"))?;
        } else {
            output::line("         GEMMs not autotuned yet: `rustyflow train` does it once, `bench tune` at length")?;
        }
    }
    if adapters.is_empty() {
        output::line("no GPU adapter: a GPU needs its vendor's Vulkan driver (Metal on macOS, DirectX 12 on Windows)")?;
    }
    Ok(())
}
