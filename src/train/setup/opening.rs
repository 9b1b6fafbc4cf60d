//! Opens the configured devices, and notes the choices and their reasons. Nothing falls back silently.

use super::memory_limit::memory_limit;
use crate::comm::Launch;
use crate::config::{DeviceConfig, DeviceKind, MatmulF32, Precision, Resolved};
use crate::gpu::{AdapterChoice, Gpu, adapters};
use crate::ops::{Effort, MatmulTuning};
use crate::profile::Span;
use crate::{Device, Error, Result, cpu};
use std::path::Path;
use std::time::Instant;

/// Prefix of the note on the device chosen by `auto`.
pub const AUTO: &str = "device auto: ";

/// Options for opening devices.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    /// Cache folder of compiled shaders and measurements; `None` disables it.
    pub cache: Option<&'a Path>,
    /// Receives notes on choices and reasons.
    pub note: &'a dyn Fn(&str),
}

impl Opening<'_> {
    /// Opens a device.
    ///
    /// # Errors
    /// If several are configured, or the device does not exist or does not open.
    pub fn open(&self, config: &DeviceConfig) -> Result<Device> {
        self.open_kind(config, single(config)?, false)
    }

    /// [`Opening::open`] for long computations: autotunes the GEMMs of a GPU first, if they are not yet.
    ///
    /// # Errors
    /// Those of [`Opening::open`].
    pub fn open_autotuned(&self, config: &DeviceConfig) -> Result<Device> {
        self.open_kind(config, single(config)?, true)
    }

    /// [`Opening::open_autotuned`] for a run, which may use several devices. Resolves `device.matmul_f32` for the run's
    /// config.toml, so that later measurements do not change its bits. `kept` is the value of a resumed run.
    ///
    /// # Errors
    /// If a device does not exist or does not open.
    pub fn open_for_run(&self, resolved: &mut Resolved, kept: Option<MatmulF32>, tune: bool) -> Result<Vec<Device>> {
        keep(resolved, kept);
        let kinds = expand(&resolved.config.device)?;
        let first = self.open_kind(&resolved.config.device, kinds[0], tune)?;
        resolve_matmul_f32(resolved, &first);
        let others = kinds[1..].iter().map(|&kind| self.open_kind(&resolved.config.device, kind, tune));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    /// Autotunes the GEMMs of a GPU, even if they already are, and caches the measurements for later starts. Also
    /// measures software adapters.
    ///
    /// # Errors
    /// If no GPU is configured or it does not open, there is no cache folder, or the driver reported an error.
    pub fn tune(&self, config: &DeviceConfig, effort: &Effort) -> Result<Tuned> {
        let Some(cache) = self.cache else {
            let message = "there is no cache folder for the measurements: set RUSTYFLOW_CACHE_DIR";
            return Err(invalid(message.into()));
        };
        let index = match single(config)? {
            DeviceKind::Gpu(index) => index,
            DeviceKind::Auto => None,
            DeviceKind::Cpu | DeviceKind::AllGpus => {
                let message = format!("device {}: only a GPU's kernels are tuned; name one, as gpu:0", config.kind);
                return Err(invalid(message));
            }
        };
        let choice = self.adapter_choice(config, gpu_number(index)?)?;
        let gpu = Gpu::open(&choice)?;
        (self.note)(&format!("autotuning the GEMMs of {}", gpu.info().name));
        let tuning = autotune(&gpu, cache, effort)?;
        let after = tuned(&gpu, &tuning).expect("every tile that fits was measured");
        let [default, tuned] = [gpu, after].map(|gpu| with_matmul_f32(gpu, config.matmul_f32));
        Ok(Tuned { default, tuned, tuning })
    }

    fn open_kind(&self, config: &DeviceConfig, kind: DeviceKind, tune: bool) -> Result<Device> {
        check_threads(config.threads)?;
        cpu::set_threads(if config.threads == 0 { num_cpus::get_physical() } else { config.threads });
        let device = self.choose(config, kind, tune)?;
        if config.matmul_f32 == MatmulF32::SplitFp16 && !device.split_fp16() {
            let why = match device.adapter() {
                None => "the CPU has no tensor cores".to_string(),
                Some(adapter) => format!("{} shows no tensor cores", adapter.name),
            };
            (self.note)(&format!("warning: device.matmul_f32 = \"split-fp16\" changes nothing: {why}"));
        }
        Ok(device)
    }

    fn choose(&self, config: &DeviceConfig, kind: DeviceKind, tune: bool) -> Result<Device> {
        let open = |index| -> Result<Device> {
            let gpu = self.open_gpu(&self.adapter_choice(config, index)?, config.precision, tune)?;
            Ok(Device::Gpu(with_matmul_f32(gpu, config.matmul_f32)))
        };
        match kind {
            DeviceKind::Cpu => Ok(Device::Cpu),
            DeviceKind::AllGpus => unreachable!("expanded before"),
            DeviceKind::Gpu(index) => self.or_fall_back(config, gpu_number(index).and_then(open)),
            // Whoever names an adapter wants that one.
            DeviceKind::Auto if names_adapter() => self.or_fall_back(config, gpu_number(None).and_then(open)),
            DeviceKind::Auto => match open(None) {
                Ok(device) => {
                    if let Some(adapter) = device.adapter() {
                        self.say_once(&format!("{AUTO}gpu:{} ({})", adapter.index, adapter.name));
                    }
                    Ok(device)
                }
                Err(error) => {
                    let told = error.to_string();
                    let told = told.lines().next().unwrap_or_default().trim_start_matches("no usable GPU: ");
                    let has_gpu = adapters().iter().any(|adapter| config.allow_software || !adapter.is_software());
                    let reason = if has_gpu { told } else { "no hardware GPU" };
                    self.say_once(&format!("{AUTO}cpu ({reason})"));
                    Ok(Device::Cpu)
                }
            },
        }
    }

    fn adapter_choice(&self, config: &DeviceConfig, index: Option<usize>) -> Result<AdapterChoice> {
        Ok(AdapterChoice {
            index,
            allow_software: config.allow_software,
            default_limits: default_limits()?,
            buffer_bytes: memory_limit("RUSTYFLOW_GPU_BUFFER")?,
            memory_bytes: memory_bytes()?,
            cache: self.cache.map(Path::to_path_buf),
        })
    }

    /// Says what `auto` came to: once, also where a device is opened again.
    fn say_once(&self, text: &str) {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| (self.note)(text));
    }

    /// The opened GPU, with what autotuning measured on it, if it did.
    fn open_gpu(&self, choice: &AdapterChoice, precision: Precision, tune: bool) -> Result<Gpu> {
        let gpu = Gpu::open(choice)?;
        let Some(cache) = choice.cache.as_deref() else { return Ok(gpu) };
        if let Some(tuned) = MatmulTuning::load(cache, gpu.info()).and_then(|tuning| tuned(&gpu, &tuning)) {
            return Ok(tuned);
        }
        // A software adapter is not for training: the starting guess is as good as any.
        if !tune || gpu.info().is_software() {
            return Ok(gpu);
        }
        // Mixed precision multiplies on tensor cores, for which nothing is measured.
        if precision == Precision::Mixed && gpu.limits().coop_matrix > 0 {
            return Ok(gpu);
        }
        let started = Instant::now();
        (self.note)(&format!("autotuning the GEMMs of {}, once: a few seconds", gpu.info().name));
        let gpu = match autotune(&gpu, cache, &Effort::FIRST_START) {
            Ok(tuning) => tuned(&gpu, &tuning).unwrap_or(gpu),
            Err(error) => {
                (self.note)(&format!("warning: the GEMMs are not autotuned: {error}"));
                // Anew, because what the driver has reported stays with the old one.
                Gpu::open(choice)?
            }
        };
        gpu.profiler().add_span(Span::Autotune, started, started.elapsed());
        Ok(gpu)
    }

    /// The CPU instead of a device that cannot be opened, if fallback is allowed.
    fn or_fall_back(&self, config: &DeviceConfig, opened: Result<Device>) -> Result<Device> {
        match opened {
            Err(error) if config.allow_fallback => {
                (self.note)(&format!("warning: computing on the CPU instead of {}: {error}", config.kind));
                Ok(Device::Cpu)
            }
            result => result,
        }
    }
}

/// A GPU with default tiles, and with the tiles autotuned by [`Opening::tune`].
pub struct Tuned {
    pub default: Gpu,
    pub tuned: Gpu,
    pub tuning: MatmulTuning,
}

/// Measures the matmul kernels of a GPU and keeps the result in the cache folder. The GPU's pool holds no more
/// afterwards than before, and its peak begins anew.
fn autotune(gpu: &Gpu, cache: &Path, effort: &Effort) -> Result<MatmulTuning> {
    let tuning = MatmulTuning::measure(gpu, effort)?;
    tuning.store(cache, gpu.info());
    gpu.trim()?;
    gpu.reset_peak_memory();
    Ok(tuning)
}

/// With large f32 GEMMs as `device.matmul_f32` says.
fn with_matmul_f32(gpu: Gpu, how: MatmulF32) -> Gpu {
    match how {
        MatmulF32::Auto => gpu,
        how => gpu.with_split_fp16(how == MatmulF32::SplitFp16),
    }
}

/// If several processes of a job run on one machine, each uses a different GPU, unless one is configured.
pub fn choose_of_machine(config: &mut DeviceConfig, launch: Option<Launch>) {
    let (Some(launch), Some(DeviceKind::Auto | DeviceKind::Gpu(None))) = (launch, config.kind.single()) else { return };
    let gpus: Vec<usize> = adapters().into_iter().filter(|a| !a.is_software()).map(|a| a.index).collect();
    if !gpus.is_empty() && !names_adapter() {
        config.kind = DeviceKind::Gpu(Some(gpus[launch.local % gpus.len()])).into();
    }
}

/// The device, where there can be one only.
fn single(config: &DeviceConfig) -> Result<DeviceKind> {
    let several = || invalid(format!("device {}: only `train` computes on several devices; give one", config.kind));
    config.kind.single().ok_or_else(several)
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
            let message = "device gpu:all: this machine has no GPU; `rustyflow devices` lists what it has";
            return Err(invalid(message.to_string()));
        }
    }
    Ok(kinds)
}

/// Resolves `device.matmul_f32` for an open device.
pub fn resolve_matmul_f32(resolved: &mut Resolved, device: &Device) {
    let (value, how) = effective_matmul_f32(device);
    resolved.resolve_matmul_f32(value, how);
}

/// Keeps the value of a resumed run, unless another is configured.
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

/// Threads that outnumber the cores by far wait for each other until a step seems to hang.
fn check_threads(threads: usize) -> Result<()> {
    let cores = num_cpus::get();
    let most = (4 * cores).max(64);
    if threads <= most {
        return Ok(());
    }
    let why = format!("this machine has {cores} cores, so more than {most} threads are not faster");
    Err(invalid(format!("device.threads is {threads}, and {why}; 0 takes one per core (--threads)")))
}

/// The GPU with these measurements; `None` if they lack a tile that it can run.
fn tuned(gpu: &Gpu, tuning: &MatmulTuning) -> Option<Gpu> {
    let tuned = gpu.clone().with_matmul_throughput(tuning.table(gpu.limits())?);
    Some(match tuning.prefers_split_fp16() {
        Some(on) => tuned.with_split_fp16(on),
        None => tuned,
    })
}

/// Whether the environment asks for WebGPU's default limits, to see that they suffice.
fn default_limits() -> Result<bool> {
    match std::env::var("RUSTYFLOW_GPU_LIMITS").as_deref() {
        Err(_) | Ok("") => Ok(false),
        Ok("default") => Ok(true),
        Ok(other) => {
            let message =
                format!("RUSTYFLOW_GPU_LIMITS={other}: expected \"default\", or nothing for the adapter's own limits");
            Err(invalid(message))
        }
    }
}

/// The most memory of a GPU that the environment allows.
fn memory_bytes() -> Result<Option<usize>> {
    Ok(memory_limit("RUSTYFLOW_GPU_MEMORY")?.map(|bytes| bytes as usize))
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
            Err(invalid(format!(
                "{VARIABLE}={wanted} names no adapter; this machine has {names}; unset it, or use --device cpu"
            )))
        }
    }
}

/// An error about the request.
fn invalid(message: String) -> Error {
    Error::Invalid(message)
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
