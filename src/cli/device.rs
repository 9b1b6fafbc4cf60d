//! Opens the device that was asked for, and says what was chosen and why. Nothing falls back silently.

use super::{cache, output};
use crate::comm::Launch;
use crate::config::{DeviceConfig, DeviceKind, Devices, MatmulF32, Resolved, current_word};
use crate::gpu::{AdapterChoice, Gpu, adapters};
use crate::ops::MatmulTuning;
use crate::{Device, cpu};
use anyhow::{Result, bail};
use std::path::Path;

/// The flags that every command which computes has.
#[derive(Clone, clap::Args)]
pub struct Flags {
    /// Where to compute: auto, cpu, gpu, or gpu:N as `rustyflow devices` numbers them; `train` takes several: gpu:all,
    /// gpu:0,1, gpu:0,cpu
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Devices>,

    /// Use the CPU if the GPU asked for cannot be opened
    #[arg(long)]
    pub allow_fallback: bool,

    /// Accept an adapter that computes on the CPU (lavapipe, llvmpipe, WARP)
    #[arg(long)]
    pub allow_software_gpu: bool,

    /// How a GPU multiplies matrices in f32: fma; split-fp16, on tensor cores; or auto, the faster if it is as precise
    #[arg(long, value_name = "HOW", value_parser = matmul_f32)]
    matmul_f32: Option<MatmulF32>,

    /// The former name of --matmul-f32
    #[arg(long, hide = true, value_name = "HOW", value_parser = f32_products, conflicts_with = "matmul_f32")]
    f32_products: Option<MatmulF32>,

    /// CPU threads; 0 takes one per physical core
    #[arg(long, value_name = "N")]
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
fn matmul_f32(word: &str) -> Result<MatmulF32, String> {
    let Some(current) = current_word("device.matmul_f32", word) else { return word.parse() };
    output::note(format_args!("warning: --matmul-f32 {word} is written {current} now: {FORMER}"));
    current.parse()
}

/// A value of --f32-products.
fn f32_products(word: &str) -> Result<MatmulF32, String> {
    output::note(format_args!("warning: --f32-products is called --matmul-f32 now: {FORMER}"));
    matmul_f32(word)
}

const FORMER: &str = "the next version will not read the former name";

/// The opened device, and why it was chosen if that was left open.
pub fn open(config: &DeviceConfig) -> Result<Device> {
    open_with(config, single(config)?, false)
}

/// As [`open`], for commands that compute for long: the matmul kernels of a GPU are autotuned first, if they never
/// were.
pub fn open_autotuned(config: &DeviceConfig) -> Result<Device> {
    open_with(config, single(config)?, true)
}

/// The device, where there can be one only.
fn single(config: &DeviceConfig) -> Result<DeviceKind> {
    let several = || anyhow::anyhow!("device {}: only `train` computes on several devices; give one", config.kind);
    config.kind.single().ok_or_else(several)
}

/// As [`open`] or [`open_autotuned`], for a run, which may compute on several devices: `device.matmul_f32` is definite
/// afterwards, and goes into the run's config.toml, so that no later measurement changes its bits. `kept` is the value
/// of a run that is resumed.
pub fn open_for_run(resolved: &mut Resolved, kept: Option<MatmulF32>, tune: bool) -> Result<Vec<Device>> {
    keep(resolved, kept);
    let kinds = expand(&resolved.config.device)?;
    let first = open_with(&resolved.config.device, kinds[0], tune)?;
    resolve_matmul_f32(resolved, &first);
    let others = kinds[1..].iter().map(|&kind| open_with(&resolved.config.device, kind, tune));
    std::iter::once(Ok(first)).chain(others).collect()
}

/// Where several processes of a job run on one machine, each takes a GPU of its own, unless it is told which.
pub fn choose_of_machine(config: &mut DeviceConfig, launch: Option<Launch>) {
    let (Some(launch), Some(DeviceKind::Auto | DeviceKind::Gpu(None))) = (launch, config.kind.single()) else { return };
    let gpus: Vec<usize> = adapters().into_iter().filter(|a| !a.is_software()).map(|a| a.index).collect();
    if !gpus.is_empty() && !names_adapter() {
        config.kind = DeviceKind::Gpu(Some(gpus[launch.local % gpus.len()])).into();
    }
}

/// The devices that are asked for, one by one.
fn expand(config: &DeviceConfig) -> Result<Vec<DeviceKind>> {
    let mut kinds = Vec::new();
    for &kind in config.kind.kinds() {
        if kind != DeviceKind::AllGpus {
            kinds.push(kind);
            continue;
        }
        let before = kinds.len();
        let usable = adapters().into_iter().filter(|adapter| config.allow_software || !adapter.is_software());
        kinds.extend(usable.map(|adapter| DeviceKind::Gpu(Some(adapter.index))));
        if kinds.len() == before {
            bail!("--device gpu:all: this machine has no GPU; `rustyflow devices` lists what it has");
        }
    }
    Ok(kinds)
}

/// Makes `device.matmul_f32` definite on a device that is open.
pub fn resolve_matmul_f32(resolved: &mut Resolved, device: &Device) {
    let (value, how) = effective_matmul_f32(device);
    resolved.resolve_matmul_f32(value, how);
}

/// A resumed run goes on with the value that it has, unless another one is asked for.
fn keep(resolved: &mut Resolved, kept: Option<MatmulF32>) {
    if let Some(kept) = kept.filter(|kept| *kept != MatmulF32::Auto) {
        resolved.resolve_matmul_f32(kept, "as the run began");
    }
}

/// How the device multiplies large f32 matrices, and why if that was left open.
fn effective_matmul_f32(device: &Device) -> (MatmulF32, &'static str) {
    let limits = device.limits();
    let how = match device.adapter() {
        None => "the CPU has no tensor cores",
        Some(_) if limits.coop_matrix == 0 => "this GPU shows no tensor cores",
        Some(_) if limits.matmul_throughput.is_some() => "by throughput and error, measured on this GPU",
        Some(_) => "by the name of this GPU, on which nothing was measured",
    };
    (if device.split_fp16() { MatmulF32::SplitFp16 } else { MatmulF32::Fma }, how)
}

fn open_with(config: &DeviceConfig, kind: DeviceKind, tune: bool) -> Result<Device> {
    check_threads(config.threads)?;
    cpu::set_threads(if config.threads == 0 { num_cpus::get_physical() } else { config.threads });
    let device = choose(config, kind, tune)?;
    if config.matmul_f32 == MatmulF32::SplitFp16 && !device.split_fp16() {
        let why = match device.adapter() {
            None => "the CPU has no tensor cores".to_string(),
            Some(adapter) => format!("{} shows no tensor cores", adapter.name),
        };
        output::note(format_args!("warning: device.matmul_f32 = \"split-fp16\" changes nothing: {why}"));
    }
    Ok(device)
}

/// Threads that outnumber the cores by far wait for each other until a step seems to hang.
fn check_threads(threads: usize) -> Result<()> {
    let cores = num_cpus::get();
    let most = (4 * cores).max(64);
    if threads <= most {
        return Ok(());
    }
    let why = format!("this machine has {cores} cores, on which more than {most} threads only wait for each other");
    bail!("device.threads is {threads}, and {why}; 0 takes one per core (--threads)")
}

fn choose(config: &DeviceConfig, kind: DeviceKind, tune: bool) -> Result<Device> {
    let open = |index| -> Result<Device> {
        let choice = AdapterChoice {
            index,
            allow_software: config.allow_software,
            default_limits: default_limits()?,
            memory_bytes: memory_bytes()?,
            cache: cache::folder(),
        };
        let gpu = open_gpu(&choice, tune)?;
        Ok(Device::Gpu(match config.matmul_f32 {
            MatmulF32::Auto => gpu,
            how => gpu.with_split_fp16(how == MatmulF32::SplitFp16),
        }))
    };
    match kind {
        DeviceKind::Cpu => Ok(Device::Cpu),
        DeviceKind::AllGpus => unreachable!("expanded before"),
        DeviceKind::Gpu(index) => or_fall_back(config, gpu_number(index).and_then(open)),
        // Whoever names an adapter wants that one.
        DeviceKind::Auto if names_adapter() => or_fall_back(config, gpu_number(None).and_then(open)),
        DeviceKind::Auto => match open(None) {
            Ok(device) => {
                if let Some(adapter) = device.adapter() {
                    say_once(format_args!("device auto: gpu:{}, {}", adapter.index, adapter.name));
                }
                Ok(device)
            }
            Err(error) => {
                let reason = error.to_string();
                let reason = reason.lines().next().unwrap_or_default().trim_start_matches("no usable GPU: ");
                say_once(format_args!("device auto: cpu, because there is no usable GPU ({reason})"));
                Ok(Device::Cpu)
            }
        },
    }
}

/// Says what `auto` came to: once, also where a device is opened again.
fn say_once(text: std::fmt::Arguments) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| output::note(text));
}

/// The opened GPU, with what autotuning measured on it, if it did.
fn open_gpu(choice: &AdapterChoice, tune: bool) -> crate::Result<Gpu> {
    let gpu = Gpu::open(choice)?;
    let Some(cache) = choice.cache.as_deref() else { return Ok(gpu) };
    if let Some(tuned) = MatmulTuning::load(cache, gpu.info()).and_then(|tuning| tuned(&gpu, &tuning)) {
        return Ok(tuned);
    }
    // A software adapter is not for training: the starting guess is as good as any.
    if !tune || gpu.info().is_software() {
        return Ok(gpu);
    }
    let measured = autotune(gpu, cache);
    let gpu = Gpu::open(choice)?;
    match measured {
        Ok(tuning) => Ok(tuned(&gpu, &tuning).unwrap_or(gpu)),
        Err(error) => {
            output::note(format_args!("warning: the matmul kernels are not autotuned: {error}"));
            Ok(gpu)
        }
    }
}

/// The GPU with these measurements; `None` if they lack a tile that it can run.
fn tuned(gpu: &Gpu, tuning: &MatmulTuning) -> Option<Gpu> {
    let tuned = gpu.clone().with_matmul_throughput(tuning.table(gpu.limits())?);
    Some(match tuning.prefers_split_fp16() {
        Some(on) => tuned.with_split_fp16(on),
        None => tuned,
    })
}

/// Autotunes the matmul kernels of a GPU and keeps the measurements in the cache folder. The handle is used up: its
/// pool now holds memory, and its statistics a peak, that the command itself never asked for.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    #[test]
    fn a_resumed_run_keeps_its_value_unless_another_is_asked_for() {
        let resumed = |asked: &str, kept| {
            let mut resolved = Layers::new().set(&format!("device.matmul_f32={asked}")).unwrap().build().unwrap();
            keep(&mut resolved, kept);
            // What the device has come to since.
            resolved.resolve_matmul_f32(MatmulF32::Fma, "measured anew");
            resolved.config.device.matmul_f32
        };
        assert_eq!(resumed("auto", Some(MatmulF32::SplitFp16)), MatmulF32::SplitFp16);
        assert_eq!(resumed("fma", Some(MatmulF32::SplitFp16)), MatmulF32::Fma);
        assert_eq!(resumed("split-fp16", Some(MatmulF32::Fma)), MatmulF32::SplitFp16);
        // A run of a version that wrote down `auto`, and a new one.
        assert_eq!(resumed("auto", Some(MatmulF32::Auto)), MatmulF32::Fma);
        assert_eq!(resumed("auto", None), MatmulF32::Fma);
    }

    #[test]
    fn measurements_decide_on_a_gpu_that_has_tensor_cores() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let has_coop = gpu.limits().coop_matrix > 0;
        for prefers in [true, false] {
            let tuning = MatmulTuning::for_tests(&gpu, prefers);
            let tuned = Device::Gpu(tuned(&gpu, &tuning).unwrap());
            let want = if prefers && has_coop { MatmulF32::SplitFp16 } else { MatmulF32::Fma };
            let (value, how) = effective_matmul_f32(&tuned);
            assert_eq!((value, how.contains("measured on this")), (want, has_coop), "{how}");
        }
        let (value, how) = effective_matmul_f32(&Device::Cpu);
        assert!(value == MatmulF32::Fma && how.contains("CPU"), "{how}");
    }
}
