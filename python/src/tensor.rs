//! `rustyflow.Tensor`: a handle to a tensor of the library, its properties, and its gradient.

use crate::arguments::dtype;
use crate::convert::{self, to_numpy};
use crate::device::{expect_threads, open};
use crate::errors::OrRaise;
use crate::operators::number;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rustyflow::{DType, Device, Result, Tensor};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An array on a device, with PyTorch's methods: "f32", "f16" or "u32" (ids), contiguous and row-major.
///
/// Operators and methods make new tensors and never change their operands. Shapes broadcast as in NumPy. What is
/// computed from a tensor that requires a gradient can be differentiated by `backward`.
///
/// `Tensor(data)` takes numbers, lists and NumPy arrays, which are copied: of floats it makes f32 (of float16 f16), of
/// whole numbers u32.
#[pyclass(frozen, name = "Tensor", module = "rustyflow", weakref)]
pub struct PyTensor(Mutex<Held>);

/// The tensor that an object stands for. Optimizers, `data` and `to_` exchange that of a parameter.
struct Held {
    tensor: Tensor,
    /// How often it was exchanged.
    version: u64,
}

impl PyTensor {
    #[inline]
    pub fn new(tensor: Tensor) -> PyTensor {
        PyTensor(Mutex::new(Held { tensor, version: 0 }))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tensor; handles share memory.
    #[inline]
    pub fn get(&self) -> Tensor {
        self.held().tensor.clone()
    }

    /// Another tensor for this object, and the number of the exchange.
    pub fn put(&self, tensor: Tensor) -> u64 {
        let mut held = self.held();
        held.tensor = tensor;
        held.version += 1;
        held.version
    }

    /// How often the tensor was exchanged.
    pub fn version(&self) -> u64 {
        self.held().version
    }

    /// Gives the tensor these values, where its own are.
    pub fn assign(&self, values: &Tensor) -> Result<()> {
        let tensor = self.get();
        let values = cast(&values.detach(), tensor.dtype())?;
        if values.shape() != tensor.shape() {
            let (expected, got) = (tensor.shape().to_string(), values.shape().to_string());
            return Err(rustyflow::Error::Shape { op: "assign", expected, got });
        }
        tensor.write_bytes(&values.to_bytes()?)
    }
}

/// Computes a tensor while other Python threads run.
#[inline]
pub fn compute(py: Python, f: impl FnOnce() -> Result<Tensor> + Send) -> PyResult<PyTensor> {
    expect_threads()?;
    py.detach(f).map(PyTensor::new).or_raise()
}

/// The same of two tensors.
pub fn compute_two(py: Python, f: impl FnOnce() -> Result<(Tensor, Tensor)> + Send) -> PyResult<(PyTensor, PyTensor)> {
    expect_threads()?;
    py.detach(f).map(|(a, b)| (PyTensor::new(a), PyTensor::new(b))).or_raise()
}

/// A tensor as another type of elements; ids become numbers too, which the library leaves to its callers.
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() != DType::U32 || dtype == DType::U32 {
        return x.to_dtype(dtype);
    }
    let numbers: Vec<f32> = x.to_u32()?.into_iter().map(|id| id as f32).collect();
    Tensor::from_f32(&numbers, x.shape().clone(), &x.device())?.to_dtype(dtype)
}

#[pymethods]
impl PyTensor {
    #[new]
    #[pyo3(signature = (data, dtype = None, device = None, requires_grad = false))]
    fn of_data(
        data: &Bound<PyAny>,
        dtype: Option<&str>,
        device: Option<&str>,
        requires_grad: bool,
    ) -> PyResult<PyTensor> {
        convert::tensor(data, dtype, device, requires_grad)
    }

    /// The length of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.get().shape().iter())
    }

    /// `x.size()` is the shape, `x.size(0)` the length of a dimension.
    #[pyo3(signature = (dim = None))]
    fn size<'py>(&self, py: Python<'py>, dim: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.get();
        match dim {
            None => Ok(self.shape(py)?.into_any()),
            Some(dim) => {
                let length = tensor.shape()[crate::arguments::dim(dim, tensor.shape().len())?];
                Ok(length.into_pyobject(py)?.into_any())
            }
        }
    }

    /// How many dimensions it has.
    #[getter]
    fn ndim(&self) -> usize {
        self.get().shape().len()
    }

    /// How many dimensions it has.
    fn dim(&self) -> usize {
        self.ndim()
    }

    /// How many elements it has.
    fn numel(&self) -> usize {
        self.get().len()
    }

    /// "f32", "f16" or "u32".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.get().dtype().name()
    }

    /// "cpu" or "gpu:0".
    #[getter]
    fn device(&self) -> String {
        self.get().device().to_string()
    }

    /// Whether a gradient reaches it: a parameter, or computed from one.
    #[getter]
    fn requires_grad(&self) -> bool {
        self.get().tracks_grad()
    }

    #[setter]
    fn set_requires_grad(&self, on: bool) -> PyResult<()> {
        let tensor = self.get();
        match (on, tensor.grad().is_some()) {
            (true, true) => {}
            (true, false) if tensor.tracks_grad() => {}
            (true, false) => drop(self.put(tensor.requires_grad().or_raise()?)),
            (false, _) if tensor.tracks_grad() && tensor.grad().is_none() => {
                return Err(PyRuntimeError::new_err("only a leaf can stop requiring a gradient; use detach()"));
            }
            (false, _) => drop(self.put(tensor.detach())),
        }
        Ok(())
    }

    /// Lets it collect a gradient from here on, or no longer; returns itself.
    #[pyo3(signature = (requires_grad = true))]
    fn requires_grad_<'py>(slf: &Bound<'py, Self>, requires_grad: bool) -> PyResult<Bound<'py, Self>> {
        slf.get().set_requires_grad(requires_grad)?;
        Ok(slf.clone())
    }

    /// Whether it was not computed from anything that requires a gradient.
    #[getter]
    fn is_leaf(&self) -> bool {
        let tensor = self.get();
        tensor.grad().is_some() || !tensor.tracks_grad()
    }

    /// The gradient collected so far, zeros at first; `None` of what collects none. Of the tensor's shape, f32.
    #[getter]
    fn grad(&self) -> Option<PyTensor> {
        self.get().grad().map(|gradient| PyTensor::new(gradient.clone()))
    }

    /// `x.grad = None` sets it to zero; `x.grad = values` to these.
    #[setter]
    fn set_grad(&self, py: Python, value: Option<&PyTensor>) -> PyResult<()> {
        let tensor = self.get();
        let Some(value) = value.map(PyTensor::get) else {
            tensor.zero_grad();
            return Ok(());
        };
        let Some(gradient) = tensor.grad() else {
            return Err(PyRuntimeError::new_err("this tensor collects no gradient; call requires_grad_() before"));
        };
        let gradient = PyTensor::new(gradient.clone());
        py.detach(|| gradient.assign(&value)).or_raise()
    }

    /// Sets the gradient collected so far to zero.
    fn zero_grad(&self) {
        self.get().zero_grad();
    }

    /// Adds the gradient of this scalar with respect to every parameter it was computed from to that parameter's
    /// `grad`. A tensor of another shape takes `gradient`, that of the loss with respect to it. Works once: what was
    /// kept for it is freed on the way.
    #[pyo3(signature = (gradient = None))]
    fn backward(&self, py: Python, gradient: Option<&PyTensor>) -> PyResult<()> {
        expect_threads()?;
        let (tensor, gradient) = (self.get(), gradient.map(PyTensor::get));
        py.detach(|| match gradient {
            None => tensor.backward(),
            Some(gradient) => tensor.backward_with(&gradient),
        })
        .or_raise()
    }

    /// The same memory without history: gradients stop here.
    fn detach(&self) -> PyTensor {
        PyTensor::new(self.get().detach())
    }

    /// The values without history. `p.data = values` writes values of the same shape where those of `p` are.
    #[getter]
    fn data(&self) -> PyTensor {
        self.detach()
    }

    #[setter]
    fn set_data(&self, py: Python, values: &PyTensor) -> PyResult<()> {
        let values = values.get();
        py.detach(|| self.assign(&values)).or_raise()
    }

    /// Writes values of the same shape, from any device, where its own are; returns itself.
    fn copy_<'py>(slf: &Bound<'py, Self>, py: Python, values: &PyTensor) -> PyResult<Bound<'py, Self>> {
        slf.get().set_data(py, values)?;
        Ok(slf.clone())
    }

    /// Writes one number where all values are; returns itself.
    fn fill_<'py>(slf: &Bound<'py, Self>, py: Python, value: f64) -> PyResult<Bound<'py, Self>> {
        let held = slf.get();
        py.detach(|| {
            let tensor = held.get();
            held.assign(&number(value, &tensor)?.expand(tensor.shape().clone())?)
        })
        .or_raise()?;
        Ok(slf.clone())
    }

    /// Writes zero where all values are, `p.grad.zero_()`; returns itself.
    fn zero_<'py>(slf: &Bound<'py, Self>, py: Python) -> PyResult<Bound<'py, Self>> {
        Self::fill_(slf, py, 0.0)
    }

    /// A copy of the values, which gradients flow through.
    fn clone(&self, py: Python) -> PyResult<PyTensor> {
        let tensor = self.get();
        match tensor.dtype() {
            DType::U32 => {
                compute(py, || Tensor::from_bytes(&tensor.to_bytes()?, tensor.spec().clone(), &tensor.device()))
            }
            _ => compute(py, || tensor.scale(1.0)),
        }
    }

    /// The tensor on a device ("cpu", "gpu:0") or of a type ("f16"); itself if it is that already. Gradients flow back.
    #[pyo3(signature = (*targets, device = None, dtype = None))]
    fn to(
        slf: &Bound<Self>,
        py: Python,
        targets: Vec<String>,
        device: Option<&str>,
        dtype: Option<&str>,
    ) -> PyResult<Py<PyTensor>> {
        let tensor = slf.get().get();
        let (mut to_device, mut to_dtype) = (device.map(str::to_string), dtype.map(self::dtype).transpose()?);
        for target in targets {
            match self::dtype(&target) {
                Ok(dtype) => to_dtype = Some(dtype),
                Err(_) => to_device = Some(target),
            }
        }
        let moved = py.detach(|| {
            let moved = to_device.map_or(Ok(tensor.clone()), |name| tensor.to_device(&open(&name)?))?;
            to_dtype.map_or(Ok(moved.clone()), |dtype| cast(&moved, dtype))
        });
        Py::new(py, PyTensor::new(moved.or_raise()?))
    }

    /// Moves a leaf to a device, where it then is; its gradient begins at zero there. Returns itself.
    fn to_<'py>(slf: &Bound<'py, Self>, py: Python, device: &str) -> PyResult<Bound<'py, Self>> {
        let tensor = slf.get().get();
        if tensor.tracks_grad() && tensor.grad().is_none() {
            return Err(PyRuntimeError::new_err("to_: only a leaf can be moved in place; use to()"));
        }
        let is_leaf = tensor.grad().is_some();
        let moved = py.detach(|| {
            let device = open(device)?;
            if tensor.device().same(&device) {
                return Ok(None);
            }
            let moved = tensor.detach().to_device(&device)?;
            if is_leaf { moved.requires_grad() } else { Ok(moved) }.map(Some)
        });
        if let Some(moved) = moved.or_raise()? {
            slf.get().put(moved);
        }
        Ok(slf.clone())
    }

    /// The tensor on the CPU.
    fn cpu(&self, py: Python) -> PyResult<PyTensor> {
        let tensor = self.get();
        compute(py, || tensor.to_device(&Device::Cpu))
    }

    /// The tensor as f32.
    fn float(&self, py: Python) -> PyResult<PyTensor> {
        let tensor = self.get();
        compute(py, || cast(&tensor, DType::F32))
    }

    /// The tensor as f16.
    fn half(&self, py: Python) -> PyResult<PyTensor> {
        let tensor = self.get();
        compute(py, || cast(&tensor, DType::F16))
    }

    /// The only element, as a number of Python. Waits for the device.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.get();
        if tensor.dtype() != DType::U32 {
            let value = py.detach(|| tensor.item()).or_raise()?;
            return Ok(f64::from(value).into_pyobject(py)?.into_any());
        }
        match py.detach(|| tensor.to_u32()).or_raise()?[..] {
            [value] => Ok(value.into_pyobject(py)?.into_any()),
            _ => Err(PyValueError::new_err(format!("item: expected one element, got {}", tensor.spec()))),
        }
    }

    /// The elements as a NumPy array of its own: a copy. Waits for the device.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_numpy(py, &self.get())
    }

    /// The elements as nested lists, or a number.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numpy(py)?.call_method0("tolist")
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(PyValueError::new_err("a tensor's elements are copied into an array; copy=False cannot be"));
        }
        let array = self.numpy(py)?;
        dtype.map_or(Ok(array.clone()), |dtype| array.call_method1("astype", (dtype,)))
    }

    /// DLPack of a copy on the CPU, for `numpy.from_dlpack` and `torch.from_dlpack`.
    #[pyo3(signature = (**arguments))]
    fn __dlpack__<'py>(&self, py: Python<'py>, arguments: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        self.expect_cpu("__dlpack__")?;
        self.numpy(py)?.call_method("__dlpack__", (), arguments)
    }

    /// (1, 0): the CPU.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        self.expect_cpu("__dlpack_device__")?;
        Ok((1, 0))
    }

    /// Of methods that PyTorch has and this has not: `x.add_(y)`.
    fn __getattr__(&self, name: &str) -> PyResult<Py<PyAny>> {
        let message = match name.strip_suffix('_').filter(|plain| !plain.is_empty() && !plain.ends_with('_')) {
            Some(plain) => format!(
                "a Tensor has no {name}: what is computed is another one; write x = x.{plain}(..) or x.copy_(y)"
            ),
            None => format!("a Tensor has no {name}"),
        };
        Err(PyAttributeError::new_err(message))
    }

    fn __len__(&self) -> PyResult<usize> {
        let length = self.get().shape().first().copied();
        length.ok_or_else(|| PyTypeError::new_err("a tensor of no dimensions has no length"))
    }

    fn __float__(&self, py: Python) -> PyResult<f64> {
        self.item(py)?.extract()
    }

    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<pyo3::types::PyInt>().call1((self.item(py)?,))
    }

    fn __bool__(&self, py: Python) -> PyResult<bool> {
        Ok(self.item(py)?.extract::<f64>()? != 0.0)
    }

    fn __hash__(slf: &Bound<Self>) -> isize {
        slf.as_ptr() as isize
    }

    fn __repr__(&self, py: Python) -> PyResult<String> {
        convert::repr(py, &self.get())
    }

    fn __format__(slf: &Bound<Self>, spec: &str) -> PyResult<String> {
        let py = slf.py();
        if slf.get().ndim() == 0 && !spec.is_empty() {
            return slf.get().item(py)?.call_method1("__format__", (spec,))?.extract();
        }
        slf.as_any().repr()?.call_method1("__format__", (spec,))?.extract()
    }

    /// Pickles and copies have the values, as arrays of NumPy have, and whether a gradient is collected.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let (py, tensor) = (slf.py(), slf.get().get());
        let state =
            (to_numpy(py, &tensor)?, tensor.dtype().name(), tensor.device().to_string(), tensor.grad().is_some());
        Ok((slf.get_type().into_any(), state.into_pyobject(py)?.into_any()))
    }
}

impl PyTensor {
    fn expect_cpu(&self, what: &str) -> PyResult<()> {
        match self.get().device() {
            Device::Cpu => Ok(()),
            device => Err(PyRuntimeError::new_err(format!("{what}: the tensor is on {device}; take x.cpu()"))),
        }
    }
}
