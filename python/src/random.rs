//! Random tensors and keys, all from one seed. The same calls after the same `manual_seed` draw the same numbers, on
//! every device.

use crate::create::made;
use crate::device::open;
use crate::errors::OrRaise;
use crate::tensor::PyTensor;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustyflow::nn::init;
use rustyflow::ops::random::{Key, splitmix64};
use rustyflow::{DType, Tensor};
use std::sync::{Mutex, PoisonError};

/// The state that keys are drawn from; 0 until `manual_seed`.
static STATE: Mutex<u64> = Mutex::new(0);

/// A stream of random numbers that no other draw has.
pub fn next_key() -> Key {
    Key::new(splitmix64(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Begins the random numbers of this process anew, from this seed.
#[pyfunction]
fn manual_seed(seed: u64) {
    *STATE.lock().unwrap_or_else(PoisonError::into_inner) = seed;
}

/// From the normal distribution of mean 0 and deviation 1.
#[pyfunction]
#[pyo3(signature = (*shape, device = "cpu", requires_grad = false))]
fn randn(py: Python, shape: &Bound<PyTuple>, device: &str, requires_grad: bool) -> PyResult<PyTensor> {
    made(py, shape, device, requires_grad, |shape, device| init::normal(shape, 0.0, 1.0, next_key())?.to_device(device))
}

/// Uniform from 0 to 1.
#[pyfunction]
#[pyo3(signature = (*shape, device = "cpu", requires_grad = false))]
fn rand(py: Python, shape: &Bound<PyTuple>, device: &str, requires_grad: bool) -> PyResult<PyTensor> {
    made(py, shape, device, requires_grad, |shape, device| {
        init::uniform(shape, 0.0, 1.0, next_key())?.to_device(device)
    })
}

/// Ids from `low` up to, not including, `high`: `randint(0, 27, (32,))`. u32.
#[pyfunction]
#[pyo3(signature = (low, high, size, device = "cpu"))]
fn randint(py: Python, low: u32, high: u32, size: &Bound<PyAny>, device: &str) -> PyResult<PyTensor> {
    if high <= low {
        return Err(PyValueError::new_err(format!("randint: there is no number from {low} up to {high}")));
    }
    let size = PyTuple::new(py, [size])?;
    made(py, &size, device, false, |shape, device| {
        // What no memory holds is refused here.
        Tensor::zeros(shape.clone(), DType::U32, device)?;
        let (key, span) = (next_key(), u64::from(high - low));
        let draw = |i: usize| low + ((u64::from(key.row((i >> 32) as u32).bits(i as u32)) * span) >> 32) as u32;
        let ids: Vec<u32> = (0..shape.elements()).map(draw).collect();
        Tensor::from_u32(&ids, shape, device)
    })
}

/// The ids from 0 to `n` - 1 in random order. u32.
#[pyfunction]
#[pyo3(signature = (n, device = "cpu"))]
fn randperm(py: Python, n: u32, device: &str) -> PyResult<PyTensor> {
    let made = py.detach(|| {
        let (key, mut ids) = (next_key(), (0..n).collect::<Vec<u32>>());
        for last in (1..ids.len()).rev() {
            let other = (u64::from(key.bits(last as u32)) * (last as u64 + 1)) >> 32;
            ids.swap(last, other as usize);
        }
        Tensor::from_u32(&ids, [ids.len()], &open(device)?)
    });
    made.map(PyTensor::new).or_raise()
}

/// Draws ids by their probabilities: of (n) or (B, n) weights of at least 0, `num_samples` ids of each row. u32.
#[pyfunction]
#[pyo3(signature = (weights, num_samples = 1))]
fn multinomial(py: Python, weights: &PyTensor, num_samples: usize) -> PyResult<PyTensor> {
    let weights = weights.get();
    let made = py.detach(|| {
        let (shape, values, key) = (weights.shape(), weights.to_f32()?, next_key());
        let classes = shape.last_dim();
        let wrong = |why: &str| rustyflow::Error::Invalid(format!("multinomial: {why}, in {}", weights.spec()));
        if shape.is_empty() || classes == 0 {
            return Err(wrong("expected rows of weights"));
        }
        let mut ids = Vec::with_capacity(shape.rows() * num_samples);
        for (row, weights) in values.chunks(classes).enumerate() {
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            if !(total > 0.0 && total.is_finite()) || weights.iter().any(|weight| *weight < 0.0) {
                return Err(wrong("weights must be at least 0, finite and not all 0"));
            }
            for draw in 0..num_samples {
                let place = f64::from(key.row(row as u32).bits(draw as u32)) / 4_294_967_296.0 * total;
                let mut sum = 0.0;
                let reached = weights.iter().position(|weight| {
                    sum += f64::from(*weight);
                    sum > place
                });
                let last = || weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
                ids.push(reached.unwrap_or_else(last) as u32);
            }
        }
        let mut drawn = shape.to_vec();
        drawn[shape.len() - 1] = num_samples;
        Tensor::from_u32(&ids, drawn, &weights.device())
    });
    made.map(PyTensor::new).or_raise()
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(manual_seed, m)?)?;
    m.add_function(wrap_pyfunction!(randn, m)?)?;
    m.add_function(wrap_pyfunction!(rand, m)?)?;
    m.add_function(wrap_pyfunction!(randint, m)?)?;
    m.add_function(wrap_pyfunction!(randperm, m)?)?;
    m.add_function(wrap_pyfunction!(multinomial, m)?)
}
