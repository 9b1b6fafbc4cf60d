//! Opens the device that was asked for, and says what was chosen and why. Nothing falls back silently.

use crate::config::{DeviceConfig, DeviceKind};
use crate::gpu::{AdapterChoice, Gpu, adapters};
use crate::{Device, cpu};
use anyhow::{Result, bail};

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
            threads: self.threads.unwrap_or(config.threads),
            ..config.clone()
        }
    }
}

/// The opened device, and why it was chosen if that was left open.
pub fn open(config: &DeviceConfig) -> Result<Device> {
    cpu::set_threads(if config.threads == 0 { num_cpus::get_physical() } else { config.threads });
    let open = |index| -> Result<Device> {
        let index = match index {
            Some(index) => Some(index),
            None => index_from_environment()?,
        };
        Ok(Device::Gpu(Gpu::open(&AdapterChoice { index, allow_software: config.allow_software })?))
    };
    match config.kind {
        DeviceKind::Cpu => Ok(Device::Cpu),
        DeviceKind::Gpu(index) => match open(index) {
            Err(error) if config.allow_fallback => {
                eprintln!("warning: training on the CPU instead of {}: {error:#}", config.kind);
                Ok(Device::Cpu)
            }
            result => result,
        },
        DeviceKind::Auto => match open(None) {
            Ok(Device::Gpu(gpu)) => {
                eprintln!("device auto: {} (gpu:{}), the first GPU", gpu.info().name, gpu.info().index);
                Ok(Device::Gpu(gpu))
            }
            Ok(Device::Cpu) => Ok(Device::Cpu),
            Err(error) => {
                let reason = error.to_string();
                let reason = reason.lines().next().unwrap_or_default().trim_start_matches("no usable GPU: ");
                eprintln!("device auto: cpu, because there is no usable GPU ({reason})");
                Ok(Device::Cpu)
            }
        },
    }
}

/// The adapter that RUSTYFLOW_GPU_DEVICE names by its number or a part of its name.
fn index_from_environment() -> Result<Option<usize>> {
    const VARIABLE: &str = "RUSTYFLOW_GPU_DEVICE";
    let Ok(wanted) = std::env::var(VARIABLE) else { return Ok(None) };
    let wanted = wanted.trim();
    if wanted.is_empty() {
        return Ok(None);
    }
    if let Ok(index) = wanted.parse() {
        return Ok(Some(index));
    }
    let all = adapters();
    let matching = all.iter().find(|a| a.name.to_lowercase().contains(&wanted.to_lowercase()));
    match matching {
        Some(adapter) => Ok(Some(adapter.index)),
        None => {
            let names: Vec<String> = all.iter().map(|a| format!("{} = {}", a.index, a.name)).collect();
            bail!("{VARIABLE}={wanted} names no adapter; there are: {}", names.join(", "))
        }
    }
}
