//! `rustyflow bench tune`: autotunes the GEMMs of this adapter and caches the result.

use crate::Device;
use crate::bench::{Sizes, compare_tunings};
use crate::cli::{device, examples, output};
use crate::config::DeviceConfig;
use crate::ops::{Effort, TunedGemm};
use crate::units;
use anyhow::Result;
use serde_json::json;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = examples::BENCH_TUNE)]
pub struct Args {
    /// Seconds to measure, without compilation: half for the tiles, half for the comparison
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=3600))]
    seconds: u32,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: &Args) -> Result<()> {
    let half = Duration::from_secs(args.seconds.into()) / 2;
    let gpu = device::tune(&args.device.over(&DeviceConfig::default()), &Effort::lasting(half))?;
    let device = Device::Gpu(gpu.tuned.clone());
    let gemms = compare_tunings([&gpu.default, &gpu.tuned], &Sizes::for_device(&device), half)?;
    let [before, after] = [&gpu.default, &gpu.tuned].map(|gpu| gpu.limits().matmul_f32());
    if args.json {
        let tiles = gpu.tuning.tiles();
        let changed = json!({ "before": before, "after": after });
        let object = json!({ "device": device.describe(), "tiles": tiles, "matmul_f32": changed, "gemms": gemms });
        return Ok(output::line(object)?);
    }
    output::line(format_args!("{}: tiles measured, GFLOP/s (nn, nt, tn)", device.describe()))?;
    let rates = gpu.tuning.tiles().iter();
    let rates = rates.map(|(tile, t)| vec![tile.clone(), t.nn.to_string(), t.nt.to_string(), t.tn.to_string()]);
    output::line(output::table(&rates.collect::<Vec<_>>(), |column| column > 0))?;
    output::line(format_args!("\nlarge f32 GEMMs: {before} by default, {after} now\n"))?;
    output::line(output::table(&rows(&gemms), |column| column > 2))?;
    Ok(output::line(format_args!("\n{}", summary(&gemms)))?)
}

fn rows(gemms: &[TunedGemm]) -> Vec<Vec<String>> {
    let heads = ["gemm", "default tile", "chosen tile", "default us", "chosen us", "gain"].map(str::to_string);
    let row = |gemm: &TunedGemm| {
        let same = gemm.default_tile == gemm.chosen_tile;
        let times = [gemm.default_us, gemm.chosen_us].map(units::digits);
        let chosen = if same { "the same".to_string() } else { gemm.chosen_tile.clone() };
        let gain = if same { "-".to_string() } else { format!("{:+.1}%", 100.0 * (gemm.gain() - 1.0)) };
        [vec![gemm.case.clone(), gemm.default_tile.clone(), chosen], times.to_vec(), vec![gain]].concat()
    };
    std::iter::once(heads.to_vec()).chain(gemms.iter().map(row)).collect()
}

/// "3 of 17 GEMMs run on another tile: all together take 4.0% less time, and are kept for every later run".
fn summary(gemms: &[TunedGemm]) -> String {
    let changed = gemms.iter().filter(|gemm| gemm.default_tile != gemm.chosen_tile).count();
    let total = |us: fn(&TunedGemm) -> f64| gemms.iter().map(us).sum::<f64>();
    let (default, chosen) = (total(|gemm| gemm.default_us), total(|gemm| gemm.chosen_us));
    let saved = 100.0 * (1.0 - chosen / default);
    let than = if saved < 0.0 { "more" } else { "less" };
    format!(
        "{changed} of {} GEMMs run on another tile, and all together take {:.1}% {than} time; the measurements are \
         kept for every later start",
        gemms.len(),
        saved.abs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_changed_and_what_it_gained() {
        let gemm = |chosen: &str, chosen_us| TunedGemm {
            case: "nn 4x4x4".into(),
            default_tile: "a".into(),
            chosen_tile: chosen.into(),
            default_us: 10.0,
            chosen_us,
        };
        let gemms = [gemm("a", 10.0), gemm("b", 8.0)];
        let rows = rows(&gemms);
        assert_eq!(rows[1], ["nn 4x4x4", "a", "the same", "10.0", "10.0", "-"]);
        assert_eq!(rows[2], ["nn 4x4x4", "a", "b", "10.0", "8.00", "+25.0%"]);
        let shown = summary(&gemms);
        assert!(shown.starts_with("1 of 2 GEMMs") && shown.contains("take 10.0% less time"), "{shown}");
        let shown = summary(&[gemm("b", 11.0)]);
        assert!(shown.contains("take 10.0% more time"), "{shown}");
    }
}
