//! `rustyflow.bench`: what a device can do.

use crate::convert::as_python;
use crate::errors::OrRaise;
use pyo3::prelude::*;
use rustyflow::bench::{Sizes, measure_peaks, select, step_cases, time_row, time_step};
use rustyflow::{DType, Device, Error, Result};

/// Times of ops: a dict for each of their kernels.
#[pyfunction]
fn _bench_ops<'py>(
    py: Python<'py>,
    only: Vec<String>,
    sizes: Option<&str>,
    device: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let timings = py.detach(|| -> Result<Vec<_>> {
        let device = crate::device::open(device)?;
        let named = |name: &str| {
            let names: Vec<&str> = Sizes::ALL.iter().map(|sizes| sizes.name).collect();
            let wrong = || Error::Invalid(format!("sizes {name:?}: there is {}", names.join(", ")));
            Sizes::ALL.into_iter().find(|sizes| sizes.name == name).ok_or_else(wrong)
        };
        let sizes = sizes.map_or_else(|| Ok(Sizes::for_device(&device)), named)?;
        let rows = select(&sizes, &only)?;
        let peaks = measure_peaks(&device, &sizes)?;
        let mut timings = Vec::new();
        for row in rows.iter().filter(|row| !row.f16 || device.has_f16()) {
            timings.extend(time_row(row, &device, &peaks)?);
        }
        Ok(timings)
    });
    as_python(py, &timings.or_raise()?)
}

/// The time of a training step on random tokens, in f32: a dict.
#[pyfunction]
fn _bench_step<'py>(
    py: Python<'py>,
    case: &str,
    steps: usize,
    rounds: usize,
    device: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let timing = py.detach(|| -> Result<_> {
        let device: Device = crate::device::open(device)?;
        let cases = step_cases();
        let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
        let wrong = || Error::Invalid(format!("case {case:?}: there is {}", names.join(", ")));
        let found = cases.iter().find(|known| known.name == case).ok_or_else(wrong)?;
        time_step(found, &device, DType::F32, steps.max(1), rounds.max(1))
    });
    as_python(py, &timing.or_raise()?)
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(_bench_ops, m)?)?;
    m.add_function(wrap_pyfunction!(_bench_step, m)?)
}
