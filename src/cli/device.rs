//! Opens the device that was asked for, and says what was chosen and why. Nothing falls back silently.

use super::{cache, output};
use crate::config::{DeviceConfig, DeviceKind, F32Products};
use crate::gpu::{AdapterChoice, Gpu, adapters};
use crate::ops::MatmulTuning;
use crate::{Device, cpu};
use anyhow::{Result, bail};
use std::path::Path;

/// The flags that every command which computes has.
#[derive(clap::Args)]
pub struct Flags {
    /// Where to compute: auto, cpu, gpu, or gpu:N as `rustyflow devices` numbers them
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceKind>,

    /// Use the CPU if the GPU asked for cannot be opened
    #[arg(long)]
    pub allow_fallback: bool,

    /// Accept an adapter that computes on the CPU (lavapipe, llvmpipe, WARP)
    #[arg(long)]
    pub allow_software_gpu: bool,

    /// How a GPU multiplies matrices in f32: fma; halves, on its matrix units; or auto, whichever is known to be faster
    #[arg(long, value_name = "HOW")]
    pub f32_products: Option<F32Products>,

    /// CPU threads; 0 takes one per physical core
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

impl Flags {
    /// The device section of a configuration with these flags on top.
    pub fn over(&self, config: &DeviceConfig) -> DeviceConfig {
        DeviceConfig {
            kind: self.device.unwrap_or(config.kind),
            allow_fallback: self.allow_fallback || config.allow_fallback,
            allow_software: self.allow_software_gpu || config.allow_software,
            f32_products: self.f32_products.unwrap_or(config.f32_products),
            threads: self.threads.unwrap_or(config.threads),
            ..config.clone()
        }
    }
}

/// The opened device, and why it was chosen if that was left open.
pub fn open(config: &DeviceConfig) -> Result<Device> {
    open_with(config, false)
}

/// As [`open`], for commands that compute for long: the matmul kernels of a GPU are autotuned first, if they never were.
pub fn open_autotuned(config: &DeviceConfig) -> Result<Device> {
    open_with(config, true)
}

fn open_with(config: &DeviceConfig, tune: bool) -> Result<Device> {
    cpu::set_threads(if config.threads == 0 { num_cpus::get_physical() } else { config.threads });
    let device = choose(config, tune)?;
    if config.f32_products == F32Products::Halves && !device.split_fp16() {
        let why = match device.adapter() {
            None => "the CPU has no matrix units".to_string(),
            Some(adapter) => format!("{} shows no matrix units", adapter.name),
        };
        output::note(format_args!("warning: device.f32_products = \"halves\" changes nothing: {why}"));
    }
    Ok(device)
}

fn choose(config: &DeviceConfig, tune: bool) -> Result<Device> {
    let open = |index| -> Result<Device> {
        let choice = AdapterChoice {
            index,
            allow_software: config.allow_software,
            default_limits: default_limits()?,
            memory_bytes: memory_bytes()?,
            cache: cache::folder(),
        };
        let gpu = open_gpu(&choice, tune)?;
        Ok(Device::Gpu(match config.f32_products {
            F32Products::Auto => gpu,
            how => gpu.with_split_fp16(how == F32Products::Halves),
        }))
    };
    match config.kind {
        DeviceKind::Cpu => Ok(Device::Cpu),
        DeviceKind::Gpu(index) => or_fall_back(config, gpu_number(index).and_then(open)),
        // Whoever names an adapter wants that one.
        DeviceKind::Auto if names_adapter() => or_fall_back(config, gpu_number(None).and_then(open)),
        DeviceKind::Auto => match open(None) {
            Ok(device) => {
                if let Some(adapter) = device.adapter() {
                    output::note(format_args!("device auto: gpu:{}, {}", adapter.index, adapter.name));
                }
                Ok(device)
            }
            Err(error) => {
                let reason = error.to_string();
                let reason = reason.lines().next().unwrap_or_default().trim_start_matches("no usable GPU: ");
                output::note(format_args!("device auto: cpu, because there is no usable GPU ({reason})"));
                Ok(Device::Cpu)
            }
        },
    }
}

/// The opened GPU, with the throughput that was measured on it, if it was.
fn open_gpu(choice: &AdapterChoice, tune: bool) -> crate::Result<Gpu> {
    let gpu = Gpu::open(choice)?;
    let Some(cache) = choice.cache.as_deref() else { return Ok(gpu) };
    let limits = gpu.limits().clone();
    let known = MatmulTuning::load(cache, gpu.info()).and_then(|tuning| tuning.table(&limits));
    if let Some(gflops) = known {
        return Ok(gpu.with_matmul_throughput(gflops));
    }
    // A software adapter is not for training: the starting guess is as good as any.
    if !tune || gpu.info().is_software() {
        return Ok(gpu);
    }
    let measured = autotune(gpu, cache);
    let gpu = Gpu::open(choice)?;
    match measured {
        Ok(tuning) => Ok(match tuning.table(&limits) {
            Some(gflops) => gpu.with_matmul_throughput(gflops),
            None => gpu,
        }),
        Err(error) => {
            output::note(format_args!("warning: the matmul kernels are not autotuned: {error}"));
            Ok(gpu)
        }
    }
}

/// Autotunes the matmul kernels of a GPU and keeps the measurements in the cache folder. The handle is used up: its pool now
/// holds memory, and its statistics a peak, that the command itself never asked for.
pub fn autotune(gpu: Gpu, cache: &Path) -> crate::Result<MatmulTuning> {
    output::note(format_args!("autotuning the matmul kernels of {}, once: a few seconds", gpu.info().name));
    let tuning = MatmulTuning::measure(&gpu)?;
    tuning.store(cache, gpu.info());
    Ok(tuning)
}

/// The CPU in place of a device that cannot be opened, if that is allowed.
fn or_fall_back(config: &DeviceConfig, opened: Result<Device>) -> Result<Device> {
    match opened {
        Err(error) if config.allow_fallback => {
            output::note(format_args!("warning: computing on the CPU instead of {}: {error}", config.kind));
            Ok(Device::Cpu)
        }
        result => result,
    }
}

/// Whether the environment asks for WebGPU's default limits, to see that they suffice.
fn default_limits() -> Result<bool> {
    match std::env::var("RUSTYFLOW_GPU_LIMITS").as_deref() {
        Err(_) | Ok("") => Ok(false),
        Ok("default") => Ok(true),
        Ok(other) => {
            bail!("RUSTYFLOW_GPU_LIMITS={other}: expected \"default\", or nothing for the adapter's own limits")
        }
    }
}

/// The most memory of a GPU that the environment allows, which is given in MiB.
fn memory_bytes() -> Result<Option<usize>> {
    const VARIABLE: &str = "RUSTYFLOW_GPU_MEMORY";
    let text = std::env::var(VARIABLE).unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<u32>() {
        Ok(mib) if mib > 0 => Ok(Some((mib as usize) << 20)),
        _ => bail!("{VARIABLE}={text}: expected a whole number of MiB above 0, or nothing for all of the GPU's memory"),
    }
}

/// Names an adapter, for every command, by its number or a part of its name.
const VARIABLE: &str = "RUSTYFLOW_GPU_DEVICE";

fn names_adapter() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|wanted| !wanted.is_empty())
}

/// The number given, or that of the adapter which the environment names, if it does.
fn gpu_number(given: Option<usize>) -> Result<Option<usize>> {
    if given.is_some() || !names_adapter() {
        return Ok(given);
    }
    let wanted = std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy().trim().to_string();
    if let Ok(index) = wanted.parse() {
        return Ok(Some(index));
    }
    let all = adapters();
    let matching = all.iter().find(|a| a.name.to_lowercase().contains(&wanted.to_lowercase()));
    match matching {
        Some(adapter) => Ok(Some(adapter.index)),
        None => {
            let names: Vec<String> = all.iter().map(|a| format!("{} = {}", a.index, a.name)).collect();
            let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
            bail!("{VARIABLE}={wanted} names no adapter; this machine has {names}; unset it, or use --device cpu")
        }
    }
}
