//! Losses: functions of a prediction and a target, by the names of `torch.nn.functional`.

use crate::tensor::{PyTensor, compute};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustyflow::ops::{Criterion, IGNORED, Reduction};
use rustyflow::{Result, Tensor};

/// "mean", "sum" or "none".
fn reduction(name: &str) -> PyResult<Reduction> {
    match name {
        "mean" => Ok(Reduction::Mean),
        "sum" => Ok(Reduction::Sum),
        "none" => Ok(Reduction::None),
        _ => Err(PyValueError::new_err(format!("reduction is \"mean\", \"sum\" or \"none\", not {name:?}"))),
    }
}

/// Losses of a prediction and a target of one shape, without further arguments.
macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (input, target, reduction = "mean"))]
        fn $name(py: Python, input: &PyTensor, target: &PyTensor, reduction: &str) -> PyResult<PyTensor> {
            let (x, target, by) = (input.get(), target.get(), self::reduction(reduction)?);
            compute(py, || x.$name(&target, by))
        })*
    };
}

losses! {
    /// The squared differences of `input` and `target`, of one shape: their mean (), their sum (), or all of them.
    mse_loss;
    /// The absolute differences of `input` and `target`, of one shape.
    l1_loss;
}

/// Half the squared differences, and beyond `delta` what grows by `delta`.
#[pyfunction]
#[pyo3(signature = (input, target, reduction = "mean", delta = 1.0))]
fn huber_loss(py: Python, input: &PyTensor, target: &PyTensor, reduction: &str, delta: f32) -> PyResult<PyTensor> {
    let (x, target, by) = (input.get(), target.get(), self::reduction(reduction)?);
    compute(py, || x.huber_loss(&target, delta, by))
}

/// Squared differences over `2 beta` below `beta`, and absolute ones less `beta / 2` beyond.
#[pyfunction]
#[pyo3(signature = (input, target, reduction = "mean", beta = 1.0))]
fn smooth_l1_loss(py: Python, input: &PyTensor, target: &PyTensor, reduction: &str, beta: f32) -> PyResult<PyTensor> {
    let (x, target, by) = (input.get(), target.get(), self::reduction(reduction)?);
    compute(py, || x.smooth_l1_loss(&target, beta, by))
}

/// The cross-entropy of the sigmoid of logits `input` against probabilities `target` of the same shape; `pos_weight` is
/// what a positive counts.
#[pyfunction]
#[pyo3(signature = (input, target, reduction = "mean", pos_weight = None))]
fn binary_cross_entropy_with_logits(
    py: Python,
    input: &PyTensor,
    target: &PyTensor,
    reduction: &str,
    pos_weight: Option<&PyTensor>,
) -> PyResult<PyTensor> {
    let (x, target, by) = (input.get(), target.get(), self::reduction(reduction)?);
    let weight = pos_weight.map(PyTensor::get);
    compute(py, || x.binary_cross_entropy_with_logits(&target, weight.as_ref(), by))
}

/// The divergence of log-probabilities `input` from probabilities `target`, or with `log_target` log-probabilities.
#[pyfunction]
#[pyo3(signature = (input, target, reduction = "mean", log_target = false))]
fn kl_div(py: Python, input: &PyTensor, target: &PyTensor, reduction: &str, log_target: bool) -> PyResult<PyTensor> {
    let (x, target) = (input.get(), target.get());
    if reduction == "batchmean" {
        let rows = x.shape().first().copied().unwrap_or(1);
        return compute(py, || x.kl_div(&target, log_target, Reduction::Sum)?.scale(1.0 / rows as f32));
    }
    let by = self::reduction(reduction)?;
    compute(py, || x.kl_div(&target, log_target, by))
}

/// Of pairs of rows (..., C): 1 - cos where `target` (...) is 1, and by how much cos is above `margin` where it is -1.
#[pyfunction]
#[pyo3(signature = (input1, input2, target, margin = 0.0, reduction = "mean"))]
fn cosine_embedding_loss(
    py: Python,
    input1: &PyTensor,
    input2: &PyTensor,
    target: &PyTensor,
    margin: f32,
    reduction: &str,
) -> PyResult<PyTensor> {
    let (a, b, target, by) = (input1.get(), input2.get(), target.get(), self::reduction(reduction)?);
    compute(py, || a.cosine_embedding_loss(&b, &target, margin, by))
}

/// Targets with the ids of PyTorch's `ignore_index` as the library's.
fn targets_of(targets: &Tensor, ignore_index: Option<u32>) -> Result<Tensor> {
    let Some(ignored) = ignore_index.filter(|id| *id != IGNORED) else { return Ok(targets.clone()) };
    let ids: Vec<u32> = targets.to_u32()?.into_iter().map(|id| if id == ignored { IGNORED } else { id }).collect();
    Tensor::from_u32(&ids, targets.shape().clone(), &targets.device())
}

/// The negative log-likelihood of classes `target` (...), u32, by log-probabilities `input` (..., C).
#[pyfunction]
#[pyo3(signature = (input, target, weight = None, reduction = "mean", ignore_index = None))]
fn nll_loss(
    py: Python,
    input: &PyTensor,
    target: &PyTensor,
    weight: Option<&PyTensor>,
    reduction: &str,
    ignore_index: Option<u32>,
) -> PyResult<PyTensor> {
    let (x, target, weight, by) = (input.get(), target.get(), weight.map(PyTensor::get), self::reduction(reduction)?);
    compute(py, || x.nll_loss(&targets_of(&target, ignore_index)?, weight.as_ref(), by))
}

/// The cross-entropy of logits `input` (..., C) against classes `target` (...), u32. The classes are the last
/// dimension. `weight` (C) is what each class counts; `label_smoothing` of a target's 1 is spread over all classes.
#[pyfunction]
#[pyo3(signature = (input, target, weight = None, reduction = "mean", label_smoothing = 0.0, ignore_index = None))]
fn cross_entropy(
    py: Python,
    input: &PyTensor,
    target: &PyTensor,
    weight: Option<&PyTensor>,
    reduction: &str,
    label_smoothing: f32,
    ignore_index: Option<u32>,
) -> PyResult<PyTensor> {
    let (x, target, weight, by) = (input.get(), target.get(), weight.map(PyTensor::get), self::reduction(reduction)?);
    compute(py, || {
        let criterion = Criterion { label_smoothing, class_weights: weight.as_ref() };
        x.cross_entropy_loss(&targets_of(&target, ignore_index)?, criterion, by)
    })
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add("IGNORED", IGNORED)?;
    m.add_function(wrap_pyfunction!(mse_loss, m)?)?;
    m.add_function(wrap_pyfunction!(l1_loss, m)?)?;
    m.add_function(wrap_pyfunction!(huber_loss, m)?)?;
    m.add_function(wrap_pyfunction!(smooth_l1_loss, m)?)?;
    m.add_function(wrap_pyfunction!(binary_cross_entropy_with_logits, m)?)?;
    m.add_function(wrap_pyfunction!(kl_div, m)?)?;
    m.add_function(wrap_pyfunction!(cosine_embedding_loss, m)?)?;
    m.add_function(wrap_pyfunction!(nll_loss, m)?)?;
    m.add_function(wrap_pyfunction!(cross_entropy, m)?)
}
