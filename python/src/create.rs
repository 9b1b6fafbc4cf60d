//! Functions that make tensors of nothing but a shape, and the switch of the tape.

use crate::arguments::{dtype as dtype_of, integers, shape};
use crate::convert;
use crate::device::open;
use crate::errors::OrRaise;
use crate::tensor::PyTensor;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustyflow::tensor::{grad_enabled, set_grad_enabled};
use rustyflow::{Device, Result, Shape, Tensor};

/// A tensor of numbers, lists or a NumPy array, which are copied.
#[pyfunction]
#[pyo3(signature = (data, dtype = None, device = None, requires_grad = false))]
fn tensor(data: &Bound<PyAny>, dtype: Option<&str>, device: Option<&str>, requires_grad: bool) -> PyResult<PyTensor> {
    convert::tensor(data, dtype, device, requires_grad)
}

/// What `make` makes of a shape on a device.
pub fn made(
    py: Python,
    given: &Bound<PyTuple>,
    device: &str,
    requires_grad: bool,
    make: impl FnOnce(Shape, &Device) -> Result<Tensor> + Send,
) -> PyResult<PyTensor> {
    let shape = shape(&integers(given)?)?;
    let tensor = py.detach(|| {
        let tensor = make(shape, &open(device)?)?;
        if requires_grad { tensor.requires_grad() } else { Ok(tensor) }
    });
    tensor.map(PyTensor::new).or_raise()
}

/// Zeros of this shape: `zeros(2, 3)` or `zeros((2, 3))`.
#[pyfunction]
#[pyo3(signature = (*shape, dtype = "f32", device = "cpu", requires_grad = false))]
fn zeros(py: Python, shape: &Bound<PyTuple>, dtype: &str, device: &str, requires_grad: bool) -> PyResult<PyTensor> {
    let dtype = dtype_of(dtype)?;
    made(py, shape, device, requires_grad, |shape, device| Tensor::zeros(shape, dtype, device))
}

/// Ones of this shape, f32.
#[pyfunction]
#[pyo3(signature = (*shape, device = "cpu", requires_grad = false))]
fn ones(py: Python, shape: &Bound<PyTuple>, device: &str, requires_grad: bool) -> PyResult<PyTensor> {
    made(py, shape, device, requires_grad, |shape, device| Tensor::full(1.0, shape, device))
}

/// One value everywhere, f32: `full((2, 3), 0.5)`.
#[pyfunction]
#[pyo3(signature = (shape, fill_value, device = "cpu", requires_grad = false))]
fn full(py: Python, shape: &Bound<PyAny>, fill_value: f32, device: &str, requires_grad: bool) -> PyResult<PyTensor> {
    let shape = PyTuple::new(py, [shape])?;
    made(py, &shape, device, requires_grad, |shape, device| Tensor::full(fill_value, shape, device))
}

/// Ids from `start` up to, not including, `end`: u32. `arange(5)` is 0 to 4.
#[pyfunction]
#[pyo3(signature = (start, end = None, step = 1, device = "cpu"))]
fn arange(py: Python, start: u32, end: Option<u32>, step: usize, device: &str) -> PyResult<PyTensor> {
    let (start, end) = end.map_or((0, start), |end| (start, end));
    if step == 0 {
        return Err(pyo3::exceptions::PyValueError::new_err("arange: the step must be above 0"));
    }
    let ids: Vec<u32> = (start..end).step_by(step).collect();
    py.detach(|| Tensor::from_u32(&ids, [ids.len()], &open(device)?)).map(PyTensor::new).or_raise()
}

/// Whether what this thread computes is recorded for `backward`.
#[pyfunction]
fn is_grad_enabled() -> bool {
    grad_enabled()
}

/// Switches recording on or off for this thread, and says what it was.
#[pyfunction]
fn _set_grad_enabled(on: bool) -> bool {
    set_grad_enabled(on)
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(tensor, m)?)?;
    m.add_function(wrap_pyfunction!(zeros, m)?)?;
    m.add_function(wrap_pyfunction!(ones, m)?)?;
    m.add_function(wrap_pyfunction!(full, m)?)?;
    m.add_function(wrap_pyfunction!(arange, m)?)?;
    m.add_function(wrap_pyfunction!(is_grad_enabled, m)?)?;
    m.add_function(wrap_pyfunction!(_set_grad_enabled, m)?)
}
