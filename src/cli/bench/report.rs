//! `rustyflow bench report`: one device in one file, to be sent in; and the table of such files.

use crate::Error;
use crate::bench::{HardwareReport, hardware_table};
use crate::cli::{device, examples, output};
use crate::config::DeviceConfig;
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = examples::BENCH_REPORT)]
pub struct Args {
    /// Write the report here instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure nothing, but print a table in Markdown of these reports
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "out")]
    table: Vec<PathBuf>,
    /// How long to time single kernels; those that come after that are left out
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=3600))]
    seconds: u32,
    #[command(flatten)]
    device: device::Flags,
}

impl Args {
    /// Whether it prints JSON.
    pub fn is_for_machines(&self) -> bool {
        self.table.is_empty() && self.out.is_none()
    }
}

pub fn run(args: &Args) -> Result<()> {
    if !args.table.is_empty() {
        let reports = args.table.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
        return Ok(output::now(&hardware_table(&reports))?);
    }
    // A path that cannot be written should fail before anything is measured.
    let file = super::create(args.out.as_ref())?;
    let device = device::open_autotuned(&args.device.over(&DeviceConfig::default()))?;
    let report = HardwareReport::measure(&device, Duration::from_secs(args.seconds.into()))?;
    let text = serde_json::to_string_pretty(&report)? + "\n";
    let (Some(path), Some(_)) = (&args.out, file) else { return Ok(output::now(&text)?) };
    fs::write(path, text).map_err(|e| Error::io("write", path, e))?;
    output::line(hardware_table(std::slice::from_ref(&report)))?;
    let (kernels, left_out) = (report.ops.len(), report.left_out.len());
    Ok(output::line(format_args!("{kernels} kernels timed, {left_out} left out: {}", path.display()))?)
}

fn read(path: &Path) -> Result<HardwareReport> {
    let text = fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    let invalid = |e| Error::Invalid(format!("{} is not a report of `rustyflow bench report`: {e}", path.display()));
    Ok(serde_json::from_str(&text).map_err(invalid)?)
}
