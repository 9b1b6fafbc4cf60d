//! The flags about the device, and opening what was asked for, with notes for the user.

use super::{complete, output};
use crate::cache;
use crate::config::{DeviceConfig, Devices, MatmulF32, Resolved, current_word};
use crate::ops::Effort;
use crate::train::{AUTO, Opening, Tuned};
use crate::{Device, Result};
use std::cell::RefCell;
use std::path::Path;

/// Where the help of a command shows them.
pub const HEADING: &str = "Device options";

/// The flags that every command which computes has.
#[derive(Clone, clap::Args)]
pub struct Flags {
    /// auto, cpu, gpu, or gpu:N as `rustyflow devices` numbers them; `train` takes several: gpu:all,
    /// gpu:0,1, gpu:0,cpu
    #[arg(long, value_name = "DEVICE", help_heading = HEADING, add = complete::devices())]
    pub device: Option<Devices>,

    /// Use the CPU if the GPU asked for cannot be opened
    #[arg(long, help_heading = HEADING)]
    pub allow_fallback: bool,

    /// Accept an adapter that computes on the CPU (lavapipe, llvmpipe, WARP)
    #[arg(long, help_heading = HEADING)]
    pub allow_software_gpu: bool,

    /// f32 matmuls on a GPU: fma; split-fp16, on tensor cores; auto, the faster if it is as precise
    #[arg(long, value_name = "HOW", value_parser = matmul_f32, help_heading = HEADING, add = complete::matmul_f32())]
    matmul_f32: Option<MatmulF32>,

    /// The former name of --matmul-f32
    #[arg(long, hide = true, value_name = "HOW", value_parser = f32_products, conflicts_with = "matmul_f32")]
    f32_products: Option<MatmulF32>,

    /// CPU threads; 0 takes one per physical core
    #[arg(long, value_name = "N", help_heading = HEADING)]
    pub threads: Option<usize>,
}

impl Flags {
    /// The device section of a configuration with these flags on top.
    pub fn over(&self, config: &DeviceConfig) -> DeviceConfig {
        DeviceConfig {
            kind: self.device.clone().unwrap_or_else(|| config.kind.clone()),
            allow_fallback: self.allow_fallback || config.allow_fallback,
            allow_software: self.allow_software_gpu || config.allow_software,
            matmul_f32: self.matmul_f32().unwrap_or(config.matmul_f32),
            threads: self.threads.unwrap_or(config.threads),
            ..config.clone()
        }
    }

    /// By either name of the flag.
    pub fn matmul_f32(&self) -> Option<MatmulF32> {
        self.matmul_f32.or(self.f32_products)
    }
}

/// A value of --matmul-f32, which may be a former word.
fn matmul_f32(word: &str) -> std::result::Result<MatmulF32, String> {
    let Some(current) = current_word("device.matmul_f32", word) else { return word.parse() };
    output::note(format_args!("warning: --matmul-f32 {word} is written {current} now: {FORMER}"));
    current.parse()
}

/// A value of --f32-products.
fn f32_products(word: &str) -> std::result::Result<MatmulF32, String> {
    output::note(format_args!("warning: --f32-products is called --matmul-f32 now: {FORMER}"));
    matmul_f32(word)
}

const FORMER: &str = "the next version will not read the former name";

/// As [`Opening::open`].
pub fn open(config: &DeviceConfig) -> Result<Device> {
    opening(cache::user_folder().as_deref()).open(config)
}

/// As [`Opening::open_autotuned`].
pub fn open_autotuned(config: &DeviceConfig) -> Result<Device> {
    opening(cache::user_folder().as_deref()).open_autotuned(config)
}

/// As [`Opening::open_for_run`].
pub fn open_for_run(resolved: &mut Resolved, kept: Option<MatmulF32>, tune: bool) -> Result<Vec<Device>> {
    opening(cache::user_folder().as_deref()).open_for_run(resolved, kept, tune)
}

/// As [`open_for_run`]. What `auto` came to is not noted: it is the second value, for whoever names the device anyway.
pub fn open_for_shown_run(resolved: &mut Resolved, kept: Option<MatmulF32>) -> Result<(Vec<Device>, Option<String>)> {
    let chosen = RefCell::new(None);
    let note = |text: &str| match text.strip_prefix(AUTO) {
        Some(device) => drop(chosen.borrow_mut().replace(device.to_string())),
        None => output::note(text),
    };
    let devices = Opening { cache: cache::user_folder().as_deref(), note: &note }.open_for_run(resolved, kept, true)?;
    Ok((devices, chosen.into_inner()))
}

/// As [`Opening::tune`].
pub fn tune(config: &DeviceConfig, effort: &Effort) -> Result<Tuned> {
    opening(cache::user_folder().as_deref()).tune(config, effort)
}

/// What was chosen and why is told on standard error.
fn opening(cache: Option<&Path>) -> Opening<'_> {
    Opening { cache, note: &|text| output::note(text) }
}
