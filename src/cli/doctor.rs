//! `rustyflow doctor`: whether this machine can be trusted to train.

use super::{configuration, device, devices, examples, output};
use crate::bench::{OpCheck, Peaks, Sizes, measure_copies, measure_peaks, verify_ops};
use crate::cache;
use crate::gpu::{AdapterInfo, adapters};
use crate::units;
use crate::{Device, cpu};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = examples::DOCTOR)]
pub struct Args {
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    device: device::Flags,
}

/// What is written to a disk that is nearly full may be lost: less than the checkpoints of a small model.
const LEAST_FREE_BYTES: u64 = 1 << 30;

pub fn run(args: &Args) -> Result<()> {
    let config = configuration::of_environment()?;
    let say = |text: std::fmt::Arguments| if args.json { Ok(()) } else { output::line(text) };
    let (adapters, cores, threads) = (adapters(), num_cpus::get_physical(), num_cpus::get());
    let (version, os, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    say(format_args!("rustyflow {version} on {os} {arch}\n"))?;
    say(format_args!("cpu      {cores} physical cores, {threads} logical"))?;
    if !args.json {
        devices::print(&adapters)?;
    }
    let device = device::open_autotuned(&args.device.over(&config.device))?;
    say(format_args!("\nchecked  {}", device.describe()))?;
    let check = verify(&device)?;
    say(format_args!("kernels  {}", kernels_text(&check, &device)))?;
    let copies = device.is_gpu().then(|| measure_copies(&device)).transpose()?;
    if let Some([up, down]) = copies {
        say(format_args!("copies   {} to the device, {} back", gb_per_s(up), gb_per_s(down)))?;
    }
    let rates = [Some(device.clone()), device.is_gpu().then_some(Device::Cpu)].into_iter().flatten();
    let rates: Vec<(String, crate::Result<Peaks>)> =
        rates.map(|device| (device.describe(), measure_peaks(&device, &Sizes::for_device(&device)))).collect();
    for (name, peaks) in &rates {
        say(format_args!("rates    {name}: {}", rates_text(peaks)))?;
    }
    let memory = cpu::available_memory_bytes();
    say(format_args!("memory   {} to spare", memory.map_or("not known".into(), units::bytes)))?;
    let folders = folders(&config.run.dir);
    for (what, path, free) in &folders {
        let free = free.map_or("not known".into(), |free| format!("{} free", units::bytes(free)));
        say(format_args!("disk     {what} {}: {free}", path.display()))?;
    }
    let problems = problems(&check, &folders);
    if args.json {
        let object = json!({
            "version": version, "os": os, "arch": arch,
            "cpu": { "physical_cores": cores, "logical_cores": threads }, "adapters": adapters,
            "device": device.describe(), "kernels": check, "copies_gb_per_s": copies,
            "rates": rates.iter().map(rate_json).collect::<Vec<_>>(), "memory_bytes": memory,
            "disks": folders.iter().map(|(what, path, free)| json!({ "what": what, "path": path, "free": free }))
                .collect::<Vec<_>>(),
            "trusted": problems.is_empty(), "problems": problems,
        });
        output::line(object)?;
    }
    let name = named(&device, &adapters);
    if !problems.is_empty() {
        bail!("self-test failed on {name}: {}", problems.join("; "));
    }
    Ok(say(format_args!("\nself-test passed on {name}"))?)
}

/// Compares every kernel with the CPU's, with a bar on a terminal.
fn verify(device: &Device) -> Result<OpCheck> {
    let style = ProgressStyle::with_template("kernels  {wide_bar:.cyan/238} {pos}/{len} ETA {eta}");
    let bar = ProgressBar::no_length().with_style(style.expect("the template is valid"));
    let check = verify_ops(device, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    Ok(check?)
}

fn kernels_text(check: &OpCheck, device: &Device) -> String {
    let OpCheck { cases, left_out, differences } = check;
    let left_out = if *left_out > 0 { format!("; {left_out} skipped: no f16 support") } else { String::new() };
    match (differences.first(), device.is_gpu()) {
        (None, true) => format!("{cases} cases agree with the CPU, forward and backward{left_out}"),
        (None, false) => format!("{cases} cases are consistent; --device gpu compares a GPU with the CPU"),
        (Some(first), _) => format!("{} results of {cases} cases are wrong: {first}{left_out}", differences.len()),
    }
}

fn tflops(rate: f64) -> String {
    units::si(1e12 * rate, "FLOP/s")
}

fn gb_per_s(rate: f64) -> String {
    units::si(1e9 * rate, "B/s")
}

fn rates_text(peaks: &crate::Result<Peaks>) -> String {
    match peaks {
        Ok(peaks) => {
            let f16 = peaks.f16_tflops.map_or(String::new(), |rate| format!(", {} in f16", tflops(rate)));
            format!("GEMMs {} in f32{f16}; memory {}", tflops(peaks.tflops), gb_per_s(peaks.gb_per_s))
        }
        Err(error) => format!("not measured: {error}"),
    }
}

fn rate_json((name, peaks): &(String, crate::Result<Peaks>)) -> Value {
    match peaks {
        Ok(peaks) => json!({ "device": name, "peaks": peaks }),
        Err(error) => json!({ "device": name, "peaks": null, "why": error.to_string() }),
    }
}

/// Where runs and caches are written, and the bytes that are free there.
fn folders(run_dir: &str) -> Vec<(&'static str, PathBuf, Option<u64>)> {
    let folders = [("runs in", Some(PathBuf::from(run_dir))), ("caches in", cache::user_folder())];
    let with_space = |(what, path): (&'static str, Option<PathBuf>)| {
        let path = path?;
        let free = free_bytes(&path);
        Some((what, path, free))
    };
    folders.into_iter().filter_map(with_space).collect()
}

/// Of the file system of a folder, which need not exist yet.
fn free_bytes(path: &Path) -> Option<u64> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find(|ancestor| ancestor.exists()).and_then(|ancestor| fs4::available_space(ancestor).ok())
}

/// Why not to train here; nothing if there is no reason.
fn problems(check: &OpCheck, folders: &[(&'static str, PathBuf, Option<u64>)]) -> Vec<String> {
    let wrong = check
        .differences
        .first()
        .map(|first| format!("{} results differ from the CPU's, the first {first}", check.differences.len()));
    let full = folders.iter().filter(|(_, _, free)| free.is_some_and(|free| free < LEAST_FREE_BYTES));
    let full = full.map(|(what, path, free)| {
        format!("{what} {} there are {} free", path.display(), units::bytes(free.unwrap_or_default()))
    });
    wrong.into_iter().chain(full).collect()
}

/// The device, and whether it is one for training.
fn named(device: &Device, adapters: &[AdapterInfo]) -> String {
    let hardware = adapters.iter().any(|adapter| !adapter.is_software());
    match device.adapter() {
        Some(adapter) if adapter.is_software() => format!("{}, a software adapter", device.describe()),
        None if hardware => format!("{}; the GPU is not tested (--device gpu)", device.describe()),
        _ => device.describe(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_kernel_or_a_full_disk_is_a_reason_not_to_train() {
        let disk = |free| vec![("runs in", PathBuf::from("runs"), free)];
        let check = OpCheck { cases: 1, ..OpCheck::default() };
        assert_eq!(problems(&check, &disk(Some(2 << 30))), [""; 0]);
        assert_eq!(problems(&check, &disk(None)), [""; 0]);
        assert!(problems(&check, &disk(Some(5 << 20)))[0].contains("runs in runs there are 5.00 MiB free"));
        let wrong = OpCheck { differences: vec!["matmul: the output is off".into()], ..check };
        assert!(problems(&wrong, &[])[0].contains("the first matmul"));
    }
}
