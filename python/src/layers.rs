//! What layers compute, as functions of tensors by the names of `torch.nn.functional`. The modules of `rustyflow.nn`
//! are Python and call these.

use crate::arguments::Pair;
use crate::errors::OrRaise;
use crate::operators::matmul;
use crate::random::next_key;
use crate::tensor::{PyTensor, compute};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustyflow::ops::{AttentionMask, AttentionOptions, ConvOptions, PoolOptions, RecurrentRef};
use rustyflow::{DType, Result, Tensor};

/// `x weight^T + bias`: (..., K) by (N, K), plus (N), is (..., N).
#[pyfunction]
#[pyo3(signature = (x, weight, bias = None))]
fn linear(py: Python, x: &PyTensor, weight: &PyTensor, bias: Option<&PyTensor>) -> PyResult<PyTensor> {
    let (x, weight, bias) = (x.get(), weight.get(), bias.map(PyTensor::get));
    compute(py, || match x.shape().len() {
        1 => matmul(&weight, &x).and_then(|y| bias.as_ref().map_or(Ok(y.clone()), |bias| y.add(bias))),
        _ => x.linear(&weight, true, bias.as_ref()),
    })
}

/// The rows of a table `weight` (V, C) that `ids` (...), u32, name: (..., C).
#[pyfunction]
fn embedding(py: Python, ids: &PyTensor, weight: &PyTensor) -> PyResult<PyTensor> {
    let (ids, weight) = (ids.get(), weight.get());
    compute(py, || weight.embedding(&ids))
}

/// Rows (..., C) with mean 0 and variance 1, times `weight` (C), plus `bias` (C).
#[pyfunction]
#[pyo3(signature = (x, weight, bias = None, eps = 1e-5))]
fn layer_norm(py: Python, x: &PyTensor, weight: &PyTensor, bias: Option<&PyTensor>, eps: f32) -> PyResult<PyTensor> {
    let (x, weight, bias) = (x.get(), weight.get(), bias.map(PyTensor::get));
    compute(py, || x.layer_norm(&weight, bias.as_ref(), eps))
}

/// Rows (..., C) over the root of their mean square, times `weight` (C).
#[pyfunction]
#[pyo3(signature = (x, weight, eps = 1e-6))]
fn rms_norm(py: Python, x: &PyTensor, weight: &PyTensor, eps: f32) -> PyResult<PyTensor> {
    let (x, weight) = (x.get(), weight.get());
    compute(py, || x.rms_norm_to(DType::F32, &weight, eps))
}

/// (N, C, ...) by the statistics of each channel: those of the batch in `training`, when `running_mean` and
/// `running_var` (C) follow them, else the running ones.
#[pyfunction]
#[pyo3(signature = (x, running_mean, running_var, weight, bias, training = false, momentum = 0.1, eps = 1e-5))]
#[allow(clippy::too_many_arguments)] // PyTorch's.
fn batch_norm(
    py: Python,
    x: &PyTensor,
    running_mean: &PyTensor,
    running_var: &PyTensor,
    weight: &PyTensor,
    bias: &PyTensor,
    training: bool,
    momentum: f32,
    eps: f32,
) -> PyResult<PyTensor> {
    let (x, mean, var, weight, bias) = (x.get(), running_mean.get(), running_var.get(), weight.get(), bias.get());
    compute(py, || x.batch_norm([&mean, &var], &weight, &bias, training.then_some(momentum), eps))
}

/// (N, C, ...) by the statistics of each of `num_groups` parts of the channels, times `weight` (C), plus `bias` (C).
#[pyfunction]
#[pyo3(signature = (x, num_groups, weight, bias, eps = 1e-5))]
fn group_norm(
    py: Python,
    x: &PyTensor,
    num_groups: usize,
    weight: &PyTensor,
    bias: &PyTensor,
    eps: f32,
) -> PyResult<PyTensor> {
    let (x, weight, bias) = (x.get(), weight.get(), bias.get());
    compute(py, || x.group_norm(num_groups, &weight, &bias, eps))
}

/// Elements set to 0 with probability `p`, and the others divided by `1 - p`; in evaluation x itself.
#[pyfunction]
#[pyo3(signature = (x, p = 0.5, training = true))]
fn dropout(py: Python, x: &PyTensor, p: f32, training: bool) -> PyResult<PyTensor> {
    let x = x.get();
    let p = if training { p } else { 0.0 };
    compute(py, || x.dropout(p, next_key()))
}

/// Images (B, C, H, W) convolved with `weight` (C', C / groups, KH, KW), plus `bias` (C'): (B, C', H', W'). Stride,
/// padding and dilation are a number or a pair.
#[pyfunction]
#[pyo3(signature = (
    x, weight, bias = None, stride = Pair::ONE, padding = Pair::ZERO, dilation = Pair::ONE, groups = 1
))]
#[allow(clippy::too_many_arguments)] // PyTorch's.
fn conv2d(
    py: Python,
    x: &PyTensor,
    weight: &PyTensor,
    bias: Option<&PyTensor>,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: usize,
) -> PyResult<PyTensor> {
    let options = ConvOptions { stride: stride.0, padding: padding.0, dilation: dilation.0, groups };
    let (x, weight, bias) = (x.get(), weight.get(), bias.map(PyTensor::get));
    compute(py, || x.conv2d(&weight, bias.as_ref(), options))
}

/// The transpose of the convolution with `weight` (C, C' / groups, KH, KW): (B, C, H, W) to (B, C', H', W').
#[pyfunction]
#[pyo3(signature = (x, weight, bias = None, stride = Pair::ONE, padding = Pair::ZERO, output_padding = Pair::ZERO,
    groups = 1, dilation = Pair::ONE))]
#[allow(clippy::too_many_arguments)] // PyTorch's.
fn conv_transpose2d(
    py: Python,
    x: &PyTensor,
    weight: &PyTensor,
    bias: Option<&PyTensor>,
    stride: Pair,
    padding: Pair,
    output_padding: Pair,
    groups: usize,
    dilation: Pair,
) -> PyResult<PyTensor> {
    let options = ConvOptions { stride: stride.0, padding: padding.0, dilation: dilation.0, groups };
    let (x, weight, bias) = (x.get(), weight.get(), bias.map(PyTensor::get));
    compute(py, || x.conv_transpose2d(&weight, bias.as_ref(), options, output_padding.0))
}

/// Sequences (B, C, L) convolved with `weight` (C', C / groups, K), plus `bias` (C'): (B, C', L').
#[pyfunction]
#[pyo3(signature = (x, weight, bias = None, stride = 1, padding = 0, dilation = 1, groups = 1))]
#[allow(clippy::too_many_arguments)] // PyTorch's.
fn conv1d(
    py: Python,
    x: &PyTensor,
    weight: &PyTensor,
    bias: Option<&PyTensor>,
    stride: usize,
    padding: usize,
    dilation: usize,
    groups: usize,
) -> PyResult<PyTensor> {
    let options = ConvOptions { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups };
    let (x, weight, bias) = (x.get(), weight.get(), bias.map(PyTensor::get));
    compute(py, || {
        let as_image = |x: &Tensor| {
            let &[a, b, length] = &x.shape()[..] else {
                let (expected, got) = ("three dimensions".to_string(), x.shape().to_string());
                return Err(rustyflow::Error::Shape { op: "conv1d", expected, got });
            };
            x.reshape([a, b, 1, length])
        };
        let y = as_image(&x)?.conv2d(&as_image(&weight)?, bias.as_ref(), options)?;
        let shape = y.shape();
        y.reshape([shape[0], shape[1], shape[3]])
    })
}

fn pool_options(kernel_size: Pair, stride: Option<Pair>, padding: Pair) -> PoolOptions {
    let windows = PoolOptions::new(kernel_size.0);
    PoolOptions { stride: stride.map_or(windows.stride, |stride| stride.0), padding: padding.0, ..windows }
}

/// The largest element of each window of (B, C, H, W).
#[pyfunction]
#[pyo3(signature = (x, kernel_size, stride = None, padding = Pair::ZERO))]
fn max_pool2d(py: Python, x: &PyTensor, kernel_size: Pair, stride: Option<Pair>, padding: Pair) -> PyResult<PyTensor> {
    let (x, options) = (x.get(), pool_options(kernel_size, stride, padding));
    compute(py, || x.max_pool2d(options))
}

/// The average of each window of (B, C, H, W).
#[pyfunction]
#[pyo3(signature = (x, kernel_size, stride = None, padding = Pair::ZERO))]
fn avg_pool2d(py: Python, x: &PyTensor, kernel_size: Pair, stride: Option<Pair>, padding: Pair) -> PyResult<PyTensor> {
    let (x, options) = (x.get(), pool_options(kernel_size, stride, padding));
    compute(py, || x.avg_pool2d(options))
}

/// The averages of windows that cover (B, C, H, W) evenly, so many in height and width.
#[pyfunction]
fn adaptive_avg_pool2d(py: Python, x: &PyTensor, output_size: Pair) -> PyResult<PyTensor> {
    let (x, to) = (x.get(), output_size.0);
    compute(py, || x.adaptive_avg_pool2d(to))
}

/// The mean of `value` (..., S, E) by the attention of `query` (..., T, D) to `key` (..., S, D): (..., T, E).
/// `attn_mask` is added to the scores; with `keep` it says which keys a query sees, where it is not 0.
#[pyfunction]
#[pyo3(signature = (query, key, value, attn_mask = None, dropout_p = 0.0, is_causal = false, scale = None,
    keep = false))]
#[allow(clippy::too_many_arguments)] // PyTorch's.
fn scaled_dot_product_attention(
    py: Python,
    query: &PyTensor,
    key: &PyTensor,
    value: &PyTensor,
    attn_mask: Option<&PyTensor>,
    dropout_p: f32,
    is_causal: bool,
    scale: Option<f32>,
    keep: bool,
) -> PyResult<PyTensor> {
    let (query, key, value, mask) = (query.get(), key.get(), value.get(), attn_mask.map(PyTensor::get));
    compute(py, || {
        let mask =
            mask.as_ref().map(|mask| if keep { AttentionMask::Keep(mask) } else { AttentionMask::Additive(mask) });
        let dropout = (dropout_p != 0.0).then(|| (dropout_p, next_key()));
        let options = AttentionOptions { mask, causal: is_causal, scale, dropout };
        query.scaled_dot_product_attention(&key, &value, options)
    })
}

/// One layer of a recurrent network, `kind` "rnn", "lstm" or "gru", over x (T, B, I): y (T, B, D H) and the states
/// (L D, B, H), of which those of `layer` are replaced. `weights` has for each direction the matrices (G H, I) and
/// (G H, H), and with biases two (G H).
#[pyfunction]
fn _recurrent(
    py: Python,
    kind: &str,
    layer: usize,
    x: &PyTensor,
    weights: Vec<Vec<Py<PyTensor>>>,
    states: Vec<Py<PyTensor>>,
) -> PyResult<(PyTensor, Vec<PyTensor>)> {
    let x = x.get();
    let tensors = |given: &[Py<PyTensor>]| given.iter().map(|tensor| tensor.get().get()).collect::<Vec<Tensor>>();
    let (weights, states): (Vec<_>, Vec<_>) = (weights.iter().map(|given| tensors(given)).collect(), tensors(&states));
    let counts = |wanted: usize| states.len() == wanted && weights.iter().all(|given| [2, 4].contains(&given.len()));
    if !counts(if kind == "lstm" { 2 } else { 1 }) {
        return Err(PyValueError::new_err(format!("{kind}: two or four weights for each direction, and its states")));
    }
    let computed = py.detach(|| -> Result<(Tensor, Vec<Tensor>)> {
        let mut directions = Vec::with_capacity(weights.len());
        for given in &weights {
            let bias = if given.len() == 4 { Some([&given[2], &given[3]]) } else { None };
            directions.push(RecurrentRef { weight_ih: &given[0], weight_hh: &given[1], bias });
        }
        match kind {
            "rnn" => x.rnn(layer, &directions, &states[0]).map(|(y, h)| (y, vec![h])),
            "gru" => x.gru(layer, &directions, &states[0]).map(|(y, h)| (y, vec![h])),
            "lstm" => x.lstm(layer, &directions, [&states[0], &states[1]]).map(|(y, states)| (y, states.to_vec())),
            _ => Err(rustyflow::Error::Invalid(format!("{kind:?} is no recurrent layer"))),
        }
    });
    let (y, states) = computed.or_raise()?;
    Ok((PyTensor::new(y), states.into_iter().map(PyTensor::new).collect()))
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(linear, m)?)?;
    m.add_function(wrap_pyfunction!(embedding, m)?)?;
    m.add_function(wrap_pyfunction!(layer_norm, m)?)?;
    m.add_function(wrap_pyfunction!(rms_norm, m)?)?;
    m.add_function(wrap_pyfunction!(batch_norm, m)?)?;
    m.add_function(wrap_pyfunction!(group_norm, m)?)?;
    m.add_function(wrap_pyfunction!(dropout, m)?)?;
    m.add_function(wrap_pyfunction!(conv1d, m)?)?;
    m.add_function(wrap_pyfunction!(conv2d, m)?)?;
    m.add_function(wrap_pyfunction!(conv_transpose2d, m)?)?;
    m.add_function(wrap_pyfunction!(max_pool2d, m)?)?;
    m.add_function(wrap_pyfunction!(avg_pool2d, m)?)?;
    m.add_function(wrap_pyfunction!(adaptive_avg_pool2d, m)?)?;
    m.add_function(wrap_pyfunction!(scaled_dot_product_attention, m)?)?;
    m.add_function(wrap_pyfunction!(_recurrent, m)?)
}
