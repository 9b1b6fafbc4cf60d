//! Elementwise losses of two tensors of one shape: rows of a table of functions as in `ops/binary.rs`, where a is the
//! prediction and b the target.

use super::*;
use crate::cpu::math;
use crate::ops::binary::{Binary, Function, function, map};

fn apply(function: &'static Function, constant: f32, [x, target]: [&Tensor; 2], by: Reduction) -> Result<Tensor> {
    expect_f32(function.name, &[x.spec(), target.spec()])?;
    expect_same_shape(function.name, x, target)?;
    by.apply(Binary::apply(function, constant, [x, target])?)
}

/// Fails unless two tensors have the same shape: that of a target is rarely repeated on purpose.
pub(super) fn expect_same_shape(op: &'static str, x: &Tensor, target: &Tensor) -> Result<()> {
    if x.shape() != target.shape() {
        return Err(shape_error(op, format!("a target of shape {}", x.shape()), target.shape()));
    }
    Ok(())
}

static MSE: Function = function!(mse_loss(), linear: false:
    "(a - b) * (a - b)", "dy * 2.0 * (a - b)", "dy * 2.0 * (b - a)",
    |a, b, dy| (a - b) * (a - b), dy * 2.0 * (a - b), dy * 2.0 * (b - a));

static L1: Function = function!(l1_loss(), linear: false:
    "abs(a - b)", "dy * sign(a - b)", "dy * sign(b - a)",
    |a, b, dy| (a - b).abs(), dy * sign_of(a - b), dy * sign_of(b - a));

// With c = clamp(a - b, -delta, delta), (a - b - c / 2) c is both halves of the loss, and c its derivative.
static HUBER: Function = function!(huber_loss(delta), linear: false:
    "(a - b - 0.5 * clamp(a - b, vec4<f32>(-params.delta), vec4<f32>(params.delta)))
        * clamp(a - b, vec4<f32>(-params.delta), vec4<f32>(params.delta))",
    "dy * clamp(a - b, vec4<f32>(-params.delta), vec4<f32>(params.delta))",
    "dy * clamp(b - a, vec4<f32>(-params.delta), vec4<f32>(params.delta))",
    |a, b, dy| (a - b - 0.5 * within(a - b, delta)) * within(a - b, delta),
    dy * within(a - b, delta), dy * within(b - a, delta));

static SMOOTH_L1: Function = function!(smooth_l1_loss(beta), linear: false:
    "(a - b - 0.5 * params.beta * clamp((a - b) / params.beta, vec4<f32>(-1.0), vec4<f32>(1.0)))
        * clamp((a - b) / params.beta, vec4<f32>(-1.0), vec4<f32>(1.0))",
    "dy * clamp((a - b) / params.beta, vec4<f32>(-1.0), vec4<f32>(1.0))",
    "dy * clamp((b - a) / params.beta, vec4<f32>(-1.0), vec4<f32>(1.0))",
    |a, b, dy| (a - b - 0.5 * beta * within((a - b) / beta, 1.0)) * within((a - b) / beta, 1.0),
    dy * within((a - b) / beta, 1.0), dy * within((b - a) / beta, 1.0));

// As max(a, 0) - a b + log(1 + e^-|a|), in which nothing overflows.
static BCE: Function = function!(binary_cross_entropy_with_logits(), linear: false:
    "max(a, vec4<f32>(0.0)) - a * b + log(1.0 + exp(-abs(a)))", "dy * (1.0 / (1.0 + exp(-a)) - b)", "-dy * a",
    |a, b, dy| a.max(0.0) - a * b + (1.0 + math::exp(-a.abs())).ln(), dy * (math::sigmoid(a) - b), -dy * a);

// The limit of b log b at 0 is 0.
static KL_DIV: Function = function!(kl_div(), linear: false:
    "select(b * log(b), vec4<f32>(0.0), b == vec4<f32>(0.0)) - b * a", "-dy * b", "dy * (log(b) + 1.0 - a)",
    |a, b, dy| if b == 0.0 { 0.0 } else { b * b.ln() } - b * a, -dy * b, dy * (b.ln() + 1.0 - a));

static KL_DIV_OF_LOG: Function = function!(kl_div(), linear: false:
    "exp(b) * (b - a)", "-dy * exp(b)", "dy * exp(b) * (b - a + 1.0)",
    |a, b, dy| math::exp(b) * (b - a), -dy * math::exp(b), dy * math::exp(b) * (b - a + 1.0));

/// -1, 0 or 1.
#[inline(always)]
fn sign_of(x: f32) -> f32 {
    (x > 0.0) as u8 as f32 - (x < 0.0) as u8 as f32
}

/// x clamped to -bound..bound; NaN stays NaN.
#[inline(always)]
fn within(x: f32, bound: f32) -> f32 {
    if x > bound {
        bound
    } else if x < -bound {
        -bound
    } else {
        x
    }
}

/// Every row's name and method, for tests and benchmarks.
#[allow(clippy::type_complexity)] // A name for the type would be said here alone.
pub const METHODS: &[(&str, fn(&Tensor, &Tensor, Reduction) -> Result<Tensor>)] = &[
    ("mse_loss", Tensor::mse_loss),
    ("l1_loss", Tensor::l1_loss),
    ("huber_loss", |x, target, by| x.huber_loss(target, 0.7, by)),
    ("smooth_l1_loss", |x, target, by| x.smooth_l1_loss(target, 0.7, by)),
    ("binary_cross_entropy_with_logits", |x, target, by| x.binary_cross_entropy_with_logits(target, None, by)),
    ("kl_div", |x, target, by| x.kl_div(target, false, by)),
    ("kl_div", |x, target, by| x.kl_div(target, true, by)),
];

impl Tensor {
    /// Squared error against `target` of the same shape.
    ///
    /// # Errors
    /// If the shapes differ, or a tensor is not f32.
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        apply(&MSE, 0.0, [self, target], reduction)
    }

    /// Absolute error against `target` of the same shape. The gradient is 0 where the error is.
    ///
    /// # Errors
    /// If the shapes differ, or a tensor is not f32.
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        apply(&L1, 0.0, [self, target], reduction)
    }

    /// Huber loss against `target` of the same shape (Huber 1964): half the squared difference up to `delta`, beyond it
    /// `delta (|difference| - delta / 2)`.
    ///
    /// # Errors
    /// If the shapes differ, a tensor is not f32, or `delta` is not positive.
    pub fn huber_loss(&self, target: &Tensor, delta: f32, reduction: Reduction) -> Result<Tensor> {
        if delta.is_nan() || delta <= 0.0 {
            return Err(Error::Invalid(format!("huber_loss: delta must be above 0, not {delta}")));
        }
        apply(&HUBER, delta, [self, target], reduction)
    }

    /// Smooth L1 loss against `target` of the same shape (Girshick 2015): `difference^2 / (2 beta)` below `beta`, else
    /// `|difference| - beta / 2`. `beta` = 0 is [`Tensor::l1_loss`].
    ///
    /// # Errors
    /// If the shapes differ, a tensor is not f32, or `beta` is negative.
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f32, reduction: Reduction) -> Result<Tensor> {
        if beta.is_nan() || beta < 0.0 {
            return Err(Error::Invalid(format!("smooth_l1_loss: beta must be at least 0, not {beta}")));
        }
        let function = if beta == 0.0 { &L1 } else { &SMOOTH_L1 };
        apply(function, beta, [self, target], reduction)
    }

    /// Binary cross-entropy of these logits against `target` probabilities of the same shape. `positive_weight` is
    /// PyTorch's `pos_weight`, broadcast to that shape, for example one weight per class of the last dimension. It gets
    /// no gradient.
    ///
    /// # Errors
    /// If the shapes do not fit, a tensor is not f32, or the weight requires a gradient.
    pub fn binary_cross_entropy_with_logits(
        &self,
        target: &Tensor,
        positive_weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        match positive_weight {
            None => apply(&BCE, 0.0, [self, target], reduction),
            Some(weight) => reduction.apply(weighted_bce::apply(BCE.name, [self, target, weight])?),
        }
    }

    /// Elementwise Kullback-Leibler divergence of these log-probabilities from `target` probabilities
    /// (log-probabilities with `log_target`) of the same shape. For PyTorch's reduction "batchmean", divide the sum by
    /// the number of rows.
    ///
    /// # Errors
    /// If the shapes differ, or a tensor is not f32.
    pub fn kl_div(&self, target: &Tensor, log_target: bool, reduction: Reduction) -> Result<Tensor> {
        apply(if log_target { &KL_DIV_OF_LOG } else { &KL_DIV }, 0.0, [self, target], reduction)
    }
}
