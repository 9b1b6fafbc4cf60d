//! Devices by name. Each is opened once and kept: tensors of one op must be on one opened device.

use crate::convert::as_python;
use crate::errors::OrRaise;
use crate::operators::forget_numbers;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rustyflow::config::DeviceKind;
use rustyflow::tensor::DeviceInfo;
use rustyflow::{Device, Error, set_threads};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// The GPUs that are open.
static GPUS: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// Starts the threads of the CPU's kernels, one for each core, if they do not run yet. The thread that calls this first
/// is among them, so small kernels that it computes wait for no other.
#[inline]
pub fn start_threads() {
    STARTED.call_once(|| set_threads(0));
}

static STARTED: Once = Once::new();

/// Whether this process was forked from one whose threads computed: they are not here, and what waits for them hangs.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Python calls this in a process that was forked.
#[pyfunction]
fn _after_fork() {
    FORKED.store(STARTED.is_completed(), Ordering::Relaxed);
}

/// Fails in a process that cannot compute because it was forked from one that had.
#[inline]
pub fn expect_threads() -> PyResult<()> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(PyRuntimeError::new_err(
            "this process was forked from one that had computed, without its threads: start processes by the method \
             \"spawn\" of multiprocessing",
        ));
    }
    Ok(())
}

/// The device of this name, as [`Device::open`] knows it.
pub fn open(name: &str) -> rustyflow::Result<Device> {
    start_threads();
    if name == "cpu" {
        return Ok(Device::Cpu);
    }
    let name = match name.parse() {
        Ok(DeviceKind::Gpu(None) | DeviceKind::Auto) => numbered(name)?,
        _ => name.to_string(),
    };
    if name == "cpu" {
        return Ok(Device::Cpu);
    }
    let mut open = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = open.iter().find(|device| device.to_string() == name) {
        return Ok(device.clone());
    }
    let device = Device::open(&name)?;
    open.push(device.clone());
    Ok(device)
}

/// The name with a number of what `gpu` or `auto` means: the first hardware GPU.
fn numbered(name: &str) -> rustyflow::Result<String> {
    let hardware = |info: &DeviceInfo| info.adapter.as_ref().is_some_and(|a| !a.is_software());
    match Device::list().into_iter().find(hardware) {
        Some(info) => Ok(info.name),
        None if name == "auto" => Ok("cpu".into()),
        // Says what there is instead.
        None => match Device::open(name) {
            Err(error) => Err(error),
            Ok(_) => Err(Error::Invalid(format!("{name} appeared while it was being opened; open it again"))),
        },
    }
}

/// The devices of this machine: the CPU, then every GPU, software ones last.
///
/// Each is a dict with "name" (what `Tensor.to` takes), "kind", "memory_bytes" and, of GPUs, "adapter".
#[pyfunction]
fn devices(py: Python) -> PyResult<Bound<PyAny>> {
    let list = py.detach(Device::list);
    as_python(py, &list)
}

/// Whether a device of this name can be opened: "cpu", "gpu", "gpu:1".
#[pyfunction]
#[pyo3(signature = (name = "gpu"))]
fn is_available(py: Python, name: &str) -> bool {
    py.detach(|| open(name).is_ok())
}

/// Waits until the device has computed all that it was given.
#[pyfunction]
#[pyo3(signature = (device = "cpu"))]
fn synchronize(py: Python, device: &str) -> PyResult<()> {
    py.detach(|| open(device)?.synchronize()).or_raise()
}

/// What a device has done and holds: kernels, submits, and "memory", a dict with "used_bytes", "peak_bytes" and more.
#[pyfunction]
#[pyo3(signature = (device = "cpu"))]
fn device_stats<'py>(py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
    let stats = py.detach(|| open(device).map(|device| device.stats())).or_raise()?;
    as_python(py, &stats)
}

/// How many threads compute on the CPU. Only before anything is computed does it have an effect.
#[pyfunction(name = "set_threads")]
fn set_threads_of_python(count: usize) {
    set_threads(count);
    start_threads();
}

/// Waits for every GPU and gives it back: Python calls this when it ends.
#[pyfunction]
fn _close(py: Python) {
    py.detach(|| {
        forget_numbers();
        let open = std::mem::take(&mut *GPUS.lock().unwrap_or_else(PoisonError::into_inner));
        for device in open {
            // Nobody is left to hear of an error.
            let _ = device.synchronize();
        }
    });
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(devices, m)?)?;
    m.add_function(wrap_pyfunction!(is_available, m)?)?;
    m.add_function(wrap_pyfunction!(synchronize, m)?)?;
    m.add_function(wrap_pyfunction!(device_stats, m)?)?;
    m.add_function(wrap_pyfunction!(set_threads_of_python, m)?)?;
    m.add_function(wrap_pyfunction!(_after_fork, m)?)?;
    m.add_function(wrap_pyfunction!(_close, m)?)
}
