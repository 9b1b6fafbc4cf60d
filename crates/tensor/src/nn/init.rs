//! Initial values with PyTorch's names, formulas and defaults: f32 tensors on the CPU, drawn from a random key.
//! [`Parameter::assign`](super::Parameter::assign) copies them into a parameter; `Parameter::from` makes one.
//!
//! ```text
//! xavier_uniform   within gain sqrt(6 / (fan_in + fan_out)) of 0      (Glorot and Bengio 2010)
//! xavier_normal    std    gain sqrt(2 / (fan_in + fan_out))
//! kaiming_uniform  within gain sqrt(3 / fan) of 0                     (He et al. 2015)
//! kaiming_normal   std    gain / sqrt(fan)
//! ```
//! Fans assume a weight (outputs, inputs, ...), the layout of `torch.nn.Linear` and convolutions: fan_in = inputs x
//! kernel elements, fan_out = outputs x kernel elements. For a weight (inputs, outputs), swap them.

use crate::cpu::CHUNK;
use crate::ops::random::Key;
use crate::profile::MemoryKind;
use crate::tensor::{Spec, weights_device};
use crate::{DType, Device, Error, Result, Shape, Tensor};
use rayon::prelude::*;

/// The fan of a weight (outputs, inputs, ...) that scales its initial values, PyTorch's `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fan {
    /// fan_in: keeps the variance of activations in forward.
    #[default]
    In,
    /// fan_out: keeps the variance of gradients in backward.
    Out,
}

/// The activation after a layer, for [`Nonlinearity::gain`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Nonlinearity {
    /// No activation.
    Linear,
    Sigmoid,
    Tanh,
    Relu,
    /// With this negative slope.
    LeakyRelu(f32),
    Selu,
}

impl Nonlinearity {
    /// The factor by which initial values grow to keep the variance, PyTorch's `calculate_gain`.
    pub fn gain(self) -> f32 {
        match self {
            Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
            Nonlinearity::Tanh => 5.0 / 3.0,
            Nonlinearity::Relu => std::f32::consts::SQRT_2,
            Nonlinearity::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Nonlinearity::Selu => 0.75,
        }
    }
}

/// A tensor filled in chunks: `of_chunk` receives the index of a chunk's first element, and the chunk.
fn drawn(shape: Shape, of_chunk: impl Fn(usize, &mut [f32]) + Sync) -> Result<Tensor> {
    if let Some(device) = weights_device() {
        return Tensor::empty(Spec::new(shape, DType::F32), &device, MemoryKind::Parameters);
    }
    // What no memory holds is refused here.
    let tensor = Tensor::empty(Spec::new(shape, DType::F32), &Device::Cpu, MemoryKind::Other)?;
    tensor.fill_by(&|values: &mut [f32]| {
        values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| of_chunk(chunk * CHUNK, values));
    })?;
    Ok(tensor)
}

/// A tensor filled with one value.
///
/// # Errors
/// If memory runs out.
pub fn constant(shape: impl Into<Shape>, value: f32) -> Result<Tensor> {
    Tensor::full(value, shape, &Device::Cpu)
}

/// Normally distributed values (Box and Muller 1958).
///
/// # Errors
/// If memory runs out.
pub fn normal(shape: impl Into<Shape>, mean: f32, std: f32, key: Key) -> Result<Tensor> {
    let unit = |counter: usize| (key.bits(counter as u32) as f32 + 0.5) / 4_294_967_296.0;
    drawn(shape.into(), |begin, values| {
        for (pair, values) in values.chunks_mut(2).enumerate() {
            // Two uniform numbers make two normal ones; a chunk holds whole pairs.
            let first = begin + 2 * pair;
            let radius = (-2.0 * unit(first).min(1.0).ln()).sqrt();
            let angle = std::f32::consts::TAU * unit(first + 1);
            for (value, part) in values.iter_mut().zip([angle.cos(), angle.sin()]) {
                *value = mean + std * radius * part;
            }
        }
    })
}

/// Uniform values between `low` and `high`.
///
/// # Errors
/// If memory runs out.
pub fn uniform(shape: impl Into<Shape>, low: f32, high: f32, key: Key) -> Result<Tensor> {
    let (middle, bound) = ((low + high) / 2.0, (high - low) / 2.0);
    drawn(shape.into(), |begin, values| {
        for (i, value) in values.iter_mut().enumerate() {
            *value = middle + bound * (key.bits((begin + i) as u32) as f32 / 2_147_483_648.0 - 1.0);
        }
    })
}

/// fan_in and fan_out of a weight.
fn fans(shape: &Shape) -> Result<[f32; 2]> {
    let [outputs, inputs, kernel @ ..] = &shape[..] else {
        let message = format!("fan_in and fan_out need at least two dimensions, got {shape}");
        return Err(Error::Invalid(message));
    };
    let kernel: usize = kernel.iter().product();
    Ok([inputs * kernel, outputs * kernel].map(|fan| fan.max(1) as f32))
}

fn fan_of(shape: &Shape, fan: Fan) -> Result<f32> {
    let [fan_in, fan_out] = fans(shape)?;
    Ok(if fan == Fan::In { fan_in } else { fan_out })
}

/// Glorot initialization, uniform: keeps the variance of activations and gradients.
///
/// # Errors
/// If the shape has fewer than two dimensions, or memory runs out.
pub fn xavier_uniform(shape: impl Into<Shape>, gain: f32, key: Key) -> Result<Tensor> {
    let shape = shape.into();
    let [fan_in, fan_out] = fans(&shape)?;
    let bound = gain * (6.0 / (fan_in + fan_out)).sqrt();
    uniform(shape, -bound, bound, key)
}

/// Glorot initialization, normal: keeps the variance of activations and gradients.
///
/// # Errors
/// If the shape has fewer than two dimensions, or memory runs out.
pub fn xavier_normal(shape: impl Into<Shape>, gain: f32, key: Key) -> Result<Tensor> {
    let shape = shape.into();
    let [fan_in, fan_out] = fans(&shape)?;
    normal(shape, 0.0, gain * (2.0 / (fan_in + fan_out)).sqrt(), key)
}

/// He initialization, uniform: keeps the variance of activations ([`Fan::In`]) or gradients ([`Fan::Out`]) through a
/// nonlinearity with this gain.
///
/// # Errors
/// If the shape has fewer than two dimensions, or memory runs out.
pub fn kaiming_uniform(shape: impl Into<Shape>, fan: Fan, gain: f32, key: Key) -> Result<Tensor> {
    let shape = shape.into();
    let bound = gain * (3.0 / fan_of(&shape, fan)?).sqrt();
    uniform(shape, -bound, bound, key)
}

/// He initialization, normal: keeps the variance of activations ([`Fan::In`]) or gradients ([`Fan::Out`]) through a
/// nonlinearity with this gain.
///
/// # Errors
/// If the shape has fewer than two dimensions, or memory runs out.
pub fn kaiming_normal(shape: impl Into<Shape>, fan: Fan, gain: f32, key: Key) -> Result<Tensor> {
    let shape = shape.into();
    let std = gain / fan_of(&shape, fan)?.sqrt();
    normal(shape, 0.0, std, key)
}

/// Orthogonal initialization (Saxe et al. 2013): reshaped to (first dimension, rest), the rows (or the columns, if
/// there are fewer) are orthogonal with norm `gain`.
///
/// # Errors
/// If the shape has fewer than two dimensions, or memory runs out.
pub fn orthogonal(shape: impl Into<Shape>, gain: f32, key: Key) -> Result<Tensor> {
    let shape = shape.into();
    fans(&shape)?;
    let random = normal(shape.clone(), 0.0, 1.0, key)?;
    if weights_device().is_some() || random.is_empty() {
        return Ok(random);
    }
    let (rows, columns) = (shape[0], shape[1..].iter().product::<usize>());
    let (count, length) = (rows.min(columns), rows.max(columns));
    // Element `at` of the vector `number`.
    let place = |number: usize, at: usize| if rows <= columns { number * columns + at } else { at * columns + number };
    let mut values = random.to_f32()?;
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    for number in 0..count {
        let mut vector: Vec<f64> = (0..length).map(|at| f64::from(values[place(number, at)])).collect();
        // What is left of a vector after the others' parts is exact to rounding of the vector: twice is enough.
        for _ in 0..2 {
            for other in &vectors {
                let part: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
                vector.iter_mut().zip(other).for_each(|(a, b)| *a -= part * b);
            }
            let norm = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
            vector.iter_mut().for_each(|a| *a /= norm);
        }
        vector.iter().enumerate().for_each(|(at, a)| values[place(number, at)] = gain * *a as f32);
        vectors.push(vector);
    }
    Tensor::from_f32(&values, shape, &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { words: [5, 7], slice_start: 0 };

    /// Mean, standard deviation, and the largest magnitude.
    fn moments(tensor: Result<Tensor>) -> [f64; 3] {
        let values: Vec<f64> = tensor.unwrap().to_f32().unwrap().into_iter().map(f64::from).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        [mean, variance.sqrt(), values.iter().map(|v| v.abs()).max_by(f64::total_cmp).unwrap()]
    }

    fn assert_uniform(tensor: Result<Tensor>, bound: f64) {
        let [mean, std, most] = moments(tensor);
        // Of 51,200 draws: standard errors of 0.0026 and 0.0020 of the bound, and a largest that is 4e-5 below it.
        assert!(mean.abs() < 0.02 * bound, "mean {mean} of {bound}");
        assert!((std - bound / 3f64.sqrt()).abs() < 0.01 * bound, "std {std} of {bound}");
        assert!(most <= bound * (1.0 + 1e-6) && most > 0.999 * bound, "largest {most} of {bound}");
    }

    fn assert_normal(tensor: Result<Tensor>, std: f64) {
        let [mean, got, most] = moments(tensor);
        // Standard errors of 0.0044 and 0.0031 of it; the largest of 51,200 is beyond 4 of it.
        assert!(mean.abs() < 0.03 * std, "mean {mean} of {std}");
        assert!((got - std).abs() < 0.02 * std, "std {got} of {std}");
        assert!(most > 3.5 * std && most < 6.5 * std, "largest {most} of {std}");
    }

    /// The bounds are what PyTorch 2's formulas give for (64, 32, 5, 5): fans of 800 and 1600.
    #[test]
    fn values_have_the_bounds_and_moments_of_pytorch() {
        let shape = [64, 32, 5, 5];
        let leaky = Nonlinearity::LeakyRelu(5f32.sqrt()).gain();
        assert_uniform(xavier_uniform(shape, 1.0, KEY), 0.05);
        assert_uniform(xavier_uniform(shape, Nonlinearity::Tanh.gain(), KEY), 0.083_333_33);
        assert_normal(xavier_normal(shape, 1.0, KEY), 0.028_867_51);
        assert_uniform(kaiming_uniform(shape, Fan::In, Nonlinearity::Relu.gain(), KEY), 0.086_602_54);
        assert_uniform(kaiming_uniform(shape, Fan::Out, Nonlinearity::Relu.gain(), KEY), 0.061_237_24);
        // PyTorch's own for layers, within 1 / sqrt(fan_in).
        assert_uniform(kaiming_uniform(shape, Fan::In, leaky, KEY), 0.035_355_34);
        assert_normal(kaiming_normal(shape, Fan::In, Nonlinearity::Relu.gain(), KEY), 0.05);
        assert_normal(kaiming_normal(shape, Fan::Out, Nonlinearity::Selu.gain(), KEY), 0.018_75);
        assert_uniform(uniform(shape, -0.3, 0.3, KEY), 0.3);
        assert_normal(normal(shape, 0.0, 2.0, KEY), 2.0);
    }

    #[test]
    fn the_mean_may_be_another_than_0() {
        let [mean, std, most] = moments(uniform([51_200], 1.0, 3.0, KEY));
        assert!((mean - 2.0).abs() < 0.02 && (std - 1.0 / 3f64.sqrt()).abs() < 0.01 && most <= 3.0, "{mean} {std}");
        let [mean, std, _] = moments(normal([51_200], 5.0, 0.5, KEY));
        assert!((mean - 5.0).abs() < 0.02 && (std - 0.5).abs() < 0.01, "{mean} {std}");
        assert_eq!(moments(constant([7], 0.25)), [0.25, 0.0, 0.25]);
    }

    #[test]
    fn orthogonal_rows_or_columns_have_the_length_of_the_gain() {
        for shape in [&[7, 3][..], &[3, 7], &[5, 5], &[4, 3, 3, 2], &[1, 1]] {
            let q = orthogonal(shape, 2.0, KEY).unwrap();
            let q = q.reshape([shape[0], shape[1..].iter().product()]).unwrap();
            let wide = q.shape()[0] <= q.shape()[1];
            let product = q.matmul_transposed(&q, !wide, wide).unwrap();
            let n = product.shape()[0];
            let identity: Vec<f32> = (0..n * n).map(|i| if i % (n + 1) == 0 { 4.0 } else { 0.0 }).collect();
            crate::testing::assert_close(q.shape(), &product.to_f32().unwrap(), &identity, 2e-6, 0.0);
        }
    }

    #[test]
    fn a_vector_has_no_fans() {
        assert!(matches!(xavier_uniform([5], 1.0, KEY), Err(Error::Invalid(_))));
        assert!(matches!(kaiming_normal([], Fan::In, 1.0, KEY), Err(Error::Invalid(_))));
        assert!(matches!(orthogonal([5], 1.0, KEY), Err(Error::Invalid(_))));
        assert!(orthogonal([0, 5], 1.0, KEY).unwrap().is_empty());
    }
}
