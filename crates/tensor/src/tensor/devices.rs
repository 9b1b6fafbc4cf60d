//! The devices of a machine: which there are, opening one by its name, what one has done, and the profile of any code.

use super::Device;
use crate::cpu;
use crate::device_kind::DeviceKind;
use crate::gpu::{AdapterChoice, AdapterInfo, Gpu, adapters};
use crate::profile::{MemoryStats, Profile, Report};
use crate::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// A device that [`Device::open`] can open.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceInfo {
    /// What [`Device::open`] takes: "cpu", "gpu:0".
    pub name: String,
    /// "cpu", or that of the adapter: "discrete", "integrated", "virtual", "software", "other".
    pub kind: &'static str,
    /// Its memory, bytes: of the CPU what is available now, of a GPU what it has; `None` if the system does not say.
    pub memory_bytes: Option<u64>,
    /// Physical and logical cores of the CPU.
    pub cores: Option<[usize; 2]>,
    /// Of a GPU, its limits and features.
    pub adapter: Option<AdapterInfo>,
}

impl fmt::Display for DeviceInfo {
    /// A line for the CPU, three for a GPU.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match (&self.adapter, self.cores) {
            (Some(adapter), _) => adapter.fmt(f),
            (None, Some([physical, logical])) => write!(f, "cpu      {physical} physical cores, {logical} logical"),
            (None, None) => write!(f, "{}", self.name),
        }
    }
}

/// What a device has done and holds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DeviceStats {
    pub memory: MemoryStats,
    /// Kernels run on the CPU, or recorded for the GPU, since the process began.
    pub kernels: u64,
    /// Submits to the GPU; 0 of the CPU.
    pub submits: u64,
}

impl Device {
    /// The CPU, then every GPU in the order of their numbers, software ones last.
    pub fn list() -> Vec<DeviceInfo> {
        let cpu = DeviceInfo {
            name: "cpu".into(),
            kind: "cpu",
            memory_bytes: cpu::available_memory_bytes(),
            cores: Some([num_cpus::get_physical(), num_cpus::get()]),
            adapter: None,
        };
        let gpu = |adapter: AdapterInfo| DeviceInfo {
            name: format!("gpu:{}", adapter.index),
            kind: adapter.kind,
            memory_bytes: adapter.memory_bytes,
            cores: None,
            adapter: Some(adapter),
        };
        [cpu].into_iter().chain(adapters().into_iter().map(gpu)).collect()
    }

    /// The first hardware GPU, or the CPU where there is none: what `rustyflow --device auto` takes.
    ///
    /// # Errors
    /// If there is a hardware GPU and it does not open: nothing falls back silently.
    pub fn best() -> Result<Device> {
        let hardware = adapters().into_iter().find(|adapter| !adapter.is_software());
        hardware.map_or(Ok(Device::Cpu), |adapter| open_gpu(Some(adapter.index), false))
    }

    /// The device of this name, as the command takes it: `cpu`, `gpu` (the first hardware GPU), `gpu:1` (as
    /// [`Device::list`] numbers them, a software one too, because it is named), `auto` ([`Device::best`]).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is none of these, [`Error::NoAdapter`] if there is no such GPU.
    pub fn open(name: &str) -> Result<Device> {
        match name.parse() {
            Ok(DeviceKind::Cpu) => Ok(Device::Cpu),
            Ok(DeviceKind::Gpu(index)) => open_gpu(index, index.is_some()),
            Ok(DeviceKind::Auto) => Device::best(),
            Ok(DeviceKind::AllGpus) | Err(_) => Err(Error::Invalid(format!(
                "expected one device, auto, cpu, gpu or gpu:N (such as gpu:1); got `{name}`"
            ))),
        }
    }

    /// What it has done and holds. The CPU's are those of the process.
    pub fn stats(&self) -> DeviceStats {
        let (kernels, submits) = match self {
            Device::Cpu => (super::kernel::cpu_kernels(), 0),
            Device::Gpu(gpu) => gpu.counts(),
            Device::DryRun(_) => (0, 0),
        };
        DeviceStats { memory: self.memory(), kernels, submits }
    }

    /// Runs `body`, and says where its time on this device went: the report prints as a table of kernels. Every kernel
    /// is timed by itself, and the device is waited for before and after. What others measure on it meanwhile is in the
    /// report too; a measurement that was under way goes on with what `body` did.
    ///
    /// # Errors
    /// Those of `body`, or if the driver reported an error.
    pub fn profile<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<(T, Report)> {
        let profiling = self.begin_profile()?;
        let result = body();
        let report = profiling.end();
        Ok((result?, report?))
    }

    /// [`Device::profile`] of what is computed until [`Profiling::end`].
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn begin_profile(&self) -> Result<Profiling> {
        self.synchronize()?;
        let before = Some(self.profiler().take());
        self.time_kernels(true);
        Ok(Profiling { device: self.clone(), before, started: Instant::now() })
    }
}

/// A measurement of a device that is under way. Dropped, it ends without a report.
pub struct Profiling {
    device: Device,
    /// What others had measured.
    before: Option<Profile>,
    started: Instant,
}

impl Profiling {
    /// Waits for the device, and says where its time went since the measurement began.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn end(mut self) -> Result<Report> {
        let device = self.device.clone();
        let result = device.synchronize();
        let seconds = self.started.elapsed().as_secs_f64();
        let measured = self.stop();
        result.map(|()| Report::new(&measured, device.is_gpu(), seconds, 0.0, device.memory()))
    }

    /// Gives back what others had measured, with what was measured since.
    fn stop(&mut self) -> Profile {
        let Some(before) = self.before.take() else { return Profile::default() };
        self.device.time_kernels(false);
        let measured = self.device.profiler().take();
        self.device.profiler().restore(before.joined(measured.clone()));
        measured
    }
}

impl Drop for Profiling {
    fn drop(&mut self) {
        self.stop();
    }
}

fn open_gpu(index: Option<usize>, allow_software: bool) -> Result<Device> {
    Gpu::open(&AdapterChoice { index, allow_software, ..AdapterChoice::default() }).map(Device::Gpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use crate::profile::MemoryKind;

    #[test]
    fn every_device_that_is_listed_opens_by_its_name() {
        let list = Device::list();
        assert_eq!((list[0].name.as_str(), list[0].kind, list[0].adapter.is_none()), ("cpu", "cpu", true));
        assert!(list[0].to_string().contains("physical cores"));
        for info in &list {
            let device = Device::open(&info.name).unwrap();
            assert_eq!((device.to_string(), device.adapter().cloned()), (info.name.clone(), info.adapter.clone()));
            assert!(info.to_string().starts_with(&info.name), "{info}");
        }
        let has_gpu = list.iter().any(|info| info.adapter.is_some());
        assert_eq!(has_gpu, crate::gpu::gpu_for_tests().is_some());
    }

    #[test]
    fn the_best_is_hardware_or_the_cpu() {
        let hardware = Device::list().into_iter().find(|info| info.adapter.as_ref().is_some_and(|a| !a.is_software()));
        let expected = hardware.map_or("cpu".to_string(), |info| info.name);
        assert_eq!(Device::best().unwrap().to_string(), expected);
        assert_eq!(Device::open("auto").unwrap().to_string(), expected);
        assert_eq!(Device::open("gpu").is_ok(), expected != "cpu");
    }

    #[test]
    fn a_name_that_is_no_device_is_refused() {
        for name in ["", "tpu", "gpu:", "gpu:x", "gpu:-1", "gpu:all", "gpu:0,1", "CPU", "cpu "] {
            let error = Device::open(name).unwrap_err();
            assert!(matches!(&error, Error::Invalid(what) if what.contains(&format!("`{name}`"))), "{error}");
        }
        assert!(matches!(Device::open(&format!("gpu:{}", usize::MAX)), Err(Error::NoAdapter { .. })));
    }

    #[test]
    fn stats_count_kernels_and_memory() {
        for device in Device::for_tests() {
            let x = Tensor::full(1.0, [1000], &device).unwrap();
            let before = device.stats();
            let y = x.neg().unwrap().neg().unwrap();
            device.synchronize().unwrap();
            let after = device.stats();
            // Other tests use the CPU meanwhile.
            assert!(after.kernels >= before.kernels + 2 && after.memory.allocations >= before.memory.allocations + 2);
            assert_eq!(after.submits > before.submits, device.is_gpu());
            if device.is_gpu() {
                let memory = after.memory;
                assert_eq!((after.kernels, memory.allocations), (before.kernels + 2, before.memory.allocations + 2));
                assert!(memory.used_by_kind[MemoryKind::Activations] >= 4 * y.len());
                assert_eq!(memory.used_by_kind.total(), memory.used_bytes);
                assert_eq!(memory.cached_bytes(), memory.reserved_bytes - memory.used_bytes);
            }
        }
    }

    #[test]
    fn a_profile_has_what_ran_within_and_leaves_it_to_the_measurement_around() {
        for device in Device::for_tests() {
            let x = Tensor::full(1.0, [1000], &device).unwrap();
            device.profiler().take();
            x.neg().unwrap();
            let (y, report) = device.profile(|| x.exp()?.to_f32()).unwrap();
            assert!((y[0] - 1f32.exp()).abs() < 1e-6);
            let kernel = |name| report.kernels.iter().find(|row| row.name == name);
            let profile = device.profiler().take();
            // Without timestamps there are no times, and the counts alone.
            let timed = !device.is_gpu() || profile.kernels.contains_key("exp");
            assert_eq!(kernel("exp").is_some(), timed, "{device}: {report}");
            assert_eq!(report.to_string().contains("exp"), timed, "{report}");
            if device.is_gpu() {
                assert!(kernel("neg").is_none(), "{device}: {report}");
                assert!(["neg", "exp"].iter().all(|name| profile.recorded.contains_key(name)), "{device}");
            }
            let failed = device.profile(|| x.narrow(9, 0, 1));
            assert!(matches!(failed, Err(Error::Shape { .. })));
        }
    }
}
