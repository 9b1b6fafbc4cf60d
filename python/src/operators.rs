//! Operators: `a + b`, `a @ b`, `a < b`, `a += b`. The other side may be a tensor, a number, or what NumPy makes an
//! array of.

use crate::convert::of_array;
use crate::device::expect_threads;
use crate::errors::OrRaise;
use crate::tensor::{PyTensor, compute};
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};
use rustyflow::tensor::grad_enabled;
use rustyflow::{DType, Result, Shape, Tensor};
use std::sync::{Mutex, PoisonError};

/// What stands on the other side of an operator.
pub enum Operand<'py> {
    Tensor(Tensor),
    Number(f64),
    Array(Bound<'py, PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Operand<'py> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Operand<'py>> {
        if let Ok(tensor) = given.cast::<PyTensor>() {
            return Ok(Operand::Tensor(tensor.get().get()));
        }
        if given.is_instance_of::<PyFloat>() || given.is_instance_of::<PyInt>() {
            return Ok(Operand::Number(given.extract()?));
        }
        if given.hasattr("__array__")? {
            return Ok(Operand::Array(given.to_owned()));
        }
        Err(PyTypeError::new_err("expected a tensor or a number"))
    }
}

impl Operand<'_> {
    /// As a tensor beside `x`: a number is one of no dimensions.
    pub fn beside(self, x: &Tensor) -> PyResult<Tensor> {
        match self {
            Operand::Tensor(tensor) => Ok(tensor),
            Operand::Number(value) => number(value, x).or_raise(),
            Operand::Array(array) => of_array(&array, None, &x.device()),
        }
    }
}

/// Numbers that operators met last, as tensors: programs use few, and each would cost a kernel each time.
static NUMBERS: Mutex<Vec<(u64, Tensor)>> = Mutex::new(Vec::new());

/// As many are kept.
const KEPT: usize = 16;

/// Gives back what is kept on devices.
pub fn forget_numbers() {
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// A number as a tensor of no dimensions that computes with `x`: u32 beside ids, else f32.
pub fn number(value: f64, x: &Tensor) -> Result<Tensor> {
    let device = x.device();
    if x.dtype() == DType::U32 && value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value) {
        return Tensor::from_u32(&[value as u32], [], &device);
    }
    let is_it = |(bits, kept): &(u64, Tensor)| *bits == value.to_bits() && kept.device().same(&device);
    let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, kept)) = numbers.iter().find(|kept| is_it(kept)) {
        return Ok(kept.clone());
    }
    let tensor = Tensor::full(value as f32, [], &device)?;
    if numbers.len() == KEPT {
        numbers.remove(0);
    }
    numbers.push((value.to_bits(), tensor.clone()));
    Ok(tensor)
}

fn add(py: Python, x: Tensor, other: Operand) -> PyResult<PyTensor> {
    let other = other.beside(&x)?;
    compute(py, || x.add(&other))
}

fn sub(py: Python, x: Tensor, other: Operand) -> PyResult<PyTensor> {
    let other = other.beside(&x)?;
    compute(py, || x.sub(&other))
}

fn mul(py: Python, x: Tensor, other: Operand) -> PyResult<PyTensor> {
    match other {
        Operand::Number(factor) => compute(py, || x.scale(factor as f32)),
        other => {
            let other = other.beside(&x)?;
            compute(py, || x.mul(&other))
        }
    }
}

fn div(py: Python, x: Tensor, other: Operand) -> PyResult<PyTensor> {
    let other = other.beside(&x)?;
    compute(py, || x.div(&other))
}

fn pow(py: Python, x: Tensor, other: Operand) -> PyResult<PyTensor> {
    match other {
        Operand::Number(2.0) => compute(py, || x.mul(&x)),
        Operand::Number(exponent) => compute(py, || x.powf(exponent as f32)),
        other => {
            let other = other.beside(&x)?;
            compute(py, || x.pow(&other))
        }
    }
}

/// PyTorch's `matmul`: of vectors, matrices and batches of them, whose leading dimensions are broadcast.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.shape().len(), b.shape().len()) {
        (1, 1) => matmul(a, &b.reshape([b.len(), 1])?)?.reshape([]),
        (1, _) => {
            let y = matmul(&a.reshape([1, a.len()])?, b)?;
            let (rank, mut shape) = (y.shape().len(), y.shape().to_vec());
            shape.remove(rank - 2);
            y.reshape(shape)
        }
        (_, 1) => {
            let y = matmul(a, &b.reshape([b.len(), 1])?)?;
            y.reshape(y.shape()[..y.shape().len() - 1].to_vec())
        }
        (_, 0..=2) => a.matmul(b),
        (ranks_a, ranks_b) => {
            let [of_a, of_b] = [&a.shape()[..ranks_a.max(2) - 2], &b.shape()[..ranks_b - 2]];
            let batch = broadcast(of_a, of_b);
            let whole = |x: &Tensor| {
                let matrix = &x.shape()[x.shape().len() - 2..];
                let count = Shape::from(batch.clone()).elements();
                x.expand([&batch[..], matrix].concat())?.reshape([&[count], matrix].concat())
            };
            let same = |x: &Tensor, leading: &[usize]| leading == &batch[..] && x.shape().len() == 3;
            let [a, b] =
                [(a, of_a), (b, of_b)].map(|(x, leading)| if same(x, leading) { Ok(x.clone()) } else { whole(x) });
            let y = a?.matmul(&b?)?;
            let matrix = &y.shape()[1..];
            y.reshape([&batch[..], matrix].concat())
        }
    }
}

/// 1 where a mask is not 0, else 0.
pub fn is_set(x: &Tensor) -> Result<Tensor> {
    x.ne(&number(0.0, x)?)
}

/// The shape that two are repeated to; where they do not fit, the ops say so.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let length = |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(rank).map_or(1, |its| shape[its]);
    let longer = |dim| if length(a, dim) == 1 { length(b, dim) } else { length(a, dim) };
    (0..rank).map(longer).collect()
}

#[pymethods]
impl PyTensor {
    /// NumPy leaves operators with a tensor on one side to the tensor.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }

    fn __add__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        add(py, self.get(), other)
    }

    fn __radd__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        add(py, self.get(), other)
    }

    fn __sub__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        sub(py, self.get(), other)
    }

    fn __rsub__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        let x = self.get();
        let other = other.beside(&x)?;
        compute(py, || other.sub(&x))
    }

    fn __mul__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        mul(py, self.get(), other)
    }

    fn __rmul__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        mul(py, self.get(), other)
    }

    fn __truediv__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        div(py, self.get(), other)
    }

    fn __rtruediv__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        let x = self.get();
        let other = other.beside(&x)?;
        compute(py, || other.div(&x))
    }

    fn __pow__(&self, py: Python, other: Operand, modulo: Option<Bound<PyAny>>) -> PyResult<PyTensor> {
        match modulo {
            None => pow(py, self.get(), other),
            Some(_) => Err(PyTypeError::new_err("pow of a tensor takes no modulo")),
        }
    }

    fn __rpow__(&self, py: Python, other: Operand, _modulo: Option<Bound<PyAny>>) -> PyResult<PyTensor> {
        let x = self.get();
        let other = other.beside(&x)?;
        compute(py, || other.pow(&x))
    }

    fn __neg__(&self, py: Python) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.neg())
    }

    fn __pos__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __abs__(&self, py: Python) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.abs())
    }

    fn __matmul__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        self.matmul(py, other)
    }

    fn __rmatmul__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        let x = self.get();
        let other = other.beside(&x)?;
        compute(py, || matmul(&other, &x))
    }

    /// The matrix product: (..., M, K) by (..., K, N), with leading dimensions broadcast; vectors as in PyTorch.
    fn matmul(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        let x = self.get();
        let other = other.beside(&x)?;
        compute(py, || matmul(&x, &other))
    }

    /// Of masks: 1 where both are not 0.
    fn __and__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        let x = self.get();
        let other = other.beside(&x)?;
        compute(py, || is_set(&x)?.mul(&is_set(&other)?))
    }

    /// Of masks: 1 where one or both are not 0.
    fn __or__(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
        let x = self.get();
        let other = other.beside(&x)?;
        compute(py, || is_set(&x)?.maximum(&is_set(&other)?))
    }

    /// Of a mask: 1 where it is 0.
    fn __invert__(&self, py: Python) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.eq(&number(0.0, &x)?))
    }

    /// Whether an element equals a number: `3 in ids`.
    fn __contains__(&self, py: Python, value: f64) -> PyResult<bool> {
        let x = self.get();
        expect_threads()?;
        py.detach(|| Ok(x.eq(&number(value, &x)?)?.to_f32()?.contains(&1.0))).or_raise()
    }

    fn __richcmp__(&self, py: Python, other: Operand, op: CompareOp) -> PyResult<PyTensor> {
        let x = self.get();
        let other = other.beside(&x)?;
        compute(py, || match op {
            CompareOp::Eq => x.eq(&other),
            CompareOp::Ne => x.ne(&other),
            CompareOp::Lt => x.lt(&other),
            CompareOp::Le => x.le(&other),
            CompareOp::Gt => x.gt(&other),
            CompareOp::Ge => x.ge(&other),
        })
    }

    fn __iadd__(&self, py: Python, other: Operand) -> PyResult<()> {
        let sum = add(py, self.get(), other)?;
        self.become_(py, &sum)
    }

    fn __isub__(&self, py: Python, other: Operand) -> PyResult<()> {
        let difference = sub(py, self.get(), other)?;
        self.become_(py, &difference)
    }

    fn __imul__(&self, py: Python, other: Operand) -> PyResult<()> {
        let product = mul(py, self.get(), other)?;
        self.become_(py, &product)
    }

    fn __itruediv__(&self, py: Python, other: Operand) -> PyResult<()> {
        let quotient = div(py, self.get(), other)?;
        self.become_(py, &quotient)
    }
}

impl PyTensor {
    /// `x += y` lets this object stand for the result; a parameter gets its values, and only where nothing is recorded.
    pub fn become_(&self, py: Python, result: &PyTensor) -> PyResult<()> {
        let result = result.get();
        if self.get().grad().is_none() {
            self.put(result);
            return Ok(());
        }
        if grad_enabled() {
            return Err(PyRuntimeError::new_err("a leaf that requires a gradient is changed only within no_grad()"));
        }
        py.detach(|| self.assign(&result)).or_raise()
    }
}
