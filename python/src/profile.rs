//! `with rf.profile("gpu:0"):` times every kernel.

use crate::convert::as_python;
use crate::device::open;
use crate::errors::OrRaise;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use rustyflow::profile::Report;
use rustyflow::tensor::Profiling;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    running: Option<Profiling>,
    report: Option<Report>,
}

/// Times every kernel of a device within `with profile(device) as p:` and prints a table of them at the end, unless
/// `show` is False. `str(p)` is the table, `p.kernels` the rows.
#[pyclass(frozen, name = "profile", module = "rustyflow")]
pub struct Profile {
    device: String,
    show: bool,
    state: Mutex<State>,
}

impl Profile {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Profile {
    #[new]
    #[pyo3(signature = (device = "cpu", show = true))]
    fn new(device: &str, show: bool) -> Profile {
        Profile { device: device.to_string(), show, state: Mutex::default() }
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let profile = slf.get();
        let begun = slf.py().detach(|| open(&profile.device)?.begin_profile()).or_raise()?;
        if profile.state().running.replace(begun).is_some() {
            return Err(PyRuntimeError::new_err("this profile runs already"));
        }
        Ok(slf.clone())
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python, _exception: &Bound<PyTuple>) -> PyResult<()> {
        let Some(running) = self.state().running.take() else {
            return Err(PyRuntimeError::new_err("this profile does not run"));
        };
        let report = py.detach(|| running.end()).or_raise()?;
        let text = report.to_string();
        self.state().report = Some(report);
        if self.show {
            // Python's own, which notebooks and tests redirect.
            py.import("builtins")?.call_method1("print", (text,))?;
        }
        Ok(())
    }

    /// A dict for each kernel: "name", "calls", "seconds", "ms_per_call", "share", "tflops", "gb_per_s".
    #[getter]
    fn kernels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.state().report {
            Some(report) => as_python(py, &report.kernels),
            None => Ok(PyList::empty(py).into_any()),
        }
    }

    fn __str__(&self) -> String {
        self.state().report.as_ref().map_or("a profile that has not ended".into(), Report::to_string)
    }

    fn __repr__(&self) -> String {
        format!("profile({:?})", self.device)
    }
}
