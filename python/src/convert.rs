//! Between Python's numbers, NumPy's arrays and tensors. Elements are copied both ways: a tensor's memory belongs to
//! the kernels, which never see it change.

use crate::arguments::dtype as dtype_of;
use crate::device::open;
use crate::errors::OrRaise;
use crate::tensor::PyTensor;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyTuple};
use rustyflow::tensor::Spec;
use rustyflow::{DType, Device, Tensor};
use serde::Serialize;

/// The module `numpy`.
pub fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Ok(NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind))?.bind(py))
}

/// NumPy's name of a type.
fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        // Quantized weights, which no function here returns, have values in f32.
        DType::F32 | DType::Q8_0 | DType::Q4_0 | DType::Nf4 => "<f4",
        DType::F16 => "<f2",
        DType::U32 => "<u4",
    }
}

/// `Tensor(data, ..)`.
pub fn tensor(
    data: &Bound<PyAny>,
    dtype: Option<&str>,
    device: Option<&str>,
    requires_grad: bool,
) -> PyResult<PyTensor> {
    let py = data.py();
    let dtype = dtype.map(dtype_of).transpose()?;
    let tensor = match data.cast::<PyTensor>() {
        Ok(given) => {
            let given = given.get().get().detach();
            let device = device.map_or(Ok(given.device()), open).or_raise()?;
            py.detach(|| given.to_device(&device)?.to_dtype(dtype.unwrap_or(given.dtype()))).or_raise()?
        }
        Err(_) => of_array(data, dtype, &open(device.unwrap_or("cpu")).or_raise()?)?,
    };
    Ok(PyTensor::new(if requires_grad { tensor.requires_grad().or_raise()? } else { tensor }))
}

/// A tensor of what NumPy makes an array of.
pub fn of_array(data: &Bound<PyAny>, dtype: Option<DType>, device: &Device) -> PyResult<Tensor> {
    let py = data.py();
    let array = numpy(py)?.call_method1("asarray", (data,))?;
    let given = array.getattr("dtype")?;
    let (kind, size): (char, usize) = (given.getattr("kind")?.extract()?, given.getattr("itemsize")?.extract()?);
    let empty = array.getattr("size")?.extract::<usize>()? == 0;
    let natural = match kind {
        'f' if size == 2 => DType::F16,
        'f' | 'b' => DType::F32,
        'i' | 'u' => DType::U32,
        _ => return Err(PyTypeError::new_err(format!("an array of {given} makes no tensor; make it one of numbers"))),
    };
    let dtype = dtype.unwrap_or(natural);
    if dtype == DType::U32 && !empty {
        if kind == 'f' {
            return Err(PyTypeError::new_err("floats make no u32 tensor; round them to whole numbers first"));
        }
        let ends = ["min", "max"].map(|end| array.call_method0(end)?.call_method0("item")?.extract::<i128>());
        let [least, most] = ends;
        let (least, most) = (least?, most?);
        if least < 0 || most > i128::from(u32::MAX) {
            let message = format!(
                "whole numbers become u32, from 0 to {}, and here are {least} to {most}; give dtype=\"f32\", or floats",
                u32::MAX
            );
            return Err(PyValueError::new_err(message));
        }
    }
    let array = array.call_method1("astype", (numpy_name(dtype),))?;
    let bytes = array.call_method0("tobytes")?;
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    let bytes = bytes.cast::<PyBytes>()?.as_bytes();
    py.detach(|| Tensor::from_bytes(bytes, Spec::new(shape, dtype), device)).or_raise()
}

/// A NumPy array with a copy of the elements.
pub fn to_numpy<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let bytes = py.detach(|| tensor.to_bytes()).or_raise()?;
    let shape = PyTuple::new(py, tensor.shape().iter())?;
    let memory = PyByteArray::new(py, &bytes);
    numpy(py)?.call_method1("ndarray", (shape, numpy_name(tensor.dtype()), memory))
}

/// `tensor([[1., 2.]], device='gpu:0')`.
pub fn repr(py: Python, tensor: &Tensor) -> PyResult<String> {
    let prefix = "tensor(";
    let options = PyDict::new(py);
    options.set_item("separator", ", ")?;
    options.set_item("prefix", prefix)?;
    options.set_item("threshold", 1000)?;
    options.set_item("precision", 4)?;
    let values: String = numpy(py)?.call_method("array2string", (to_numpy(py, tensor)?,), Some(&options))?.extract()?;
    let mut notes = String::new();
    if tensor.is_empty() {
        notes += &format!(", shape={}", tensor.shape());
    }
    if tensor.dtype() != DType::F32 {
        notes += &format!(", dtype={}", tensor.dtype().name());
    }
    if tensor.device().is_gpu() {
        notes += &format!(", device='{}'", tensor.device());
    }
    if tensor.tracks_grad() {
        notes += ", requires_grad=True";
    }
    Ok(format!("{prefix}{values}{notes})"))
}

/// What has a form in JSON, as dicts, lists and numbers of Python.
pub fn as_python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}
