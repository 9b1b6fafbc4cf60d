//! Convolutions and pooling with PyTorch's parameter names, shapes and initial values.

use super::init::uniform;
use super::{Module, Parameter, join};
use crate::ops::random::Key;
use crate::ops::{ConvOptions, PoolOptions};
use crate::{Result, Tensor};

/// A weight and a bias, both uniform within 1 / sqrt(fan_in), like PyTorch's `kaiming_uniform_` with a = sqrt(5).
/// fan_in is the product of all dimensions of the weight but the first.
struct Parameters {
    weight: Parameter,
    bias: Option<Parameter>,
}

impl Parameters {
    fn new(shape: &[usize], bias: Option<usize>, mut keys: impl FnMut() -> Key) -> Result<Parameters> {
        let fan_in: usize = shape[1..].iter().fold(1, |product: usize, dim| product.saturating_mul(*dim));
        let bound = 1.0 / (fan_in.max(1) as f32).sqrt();
        let weight = uniform(shape, -bound, bound, keys())?.into();
        let bias = bias.map(|channels| uniform([channels], -bound, bound, keys())).transpose()?;
        Ok(Parameters { weight, bias: bias.map(Parameter::from) })
    }
}

impl Module for Parameters {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit(&join(prefix, "weight"), &mut self.weight);
        if let Some(bias) = &mut self.bias {
            visit(&join(prefix, "bias"), bias);
        }
    }
}

/// `torch.nn.Conv2d`: (B, C, H, W) to (B, C', H', W').
pub struct Conv2d {
    /// (C', C / groups, KH, KW) and (C')
    parameters: Parameters,
    options: ConvOptions,
}

impl Conv2d {
    /// A kernel of (height, width). Weights and bias are uniform as in PyTorch.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(
        [inputs, outputs]: [usize; 2],
        kernel: [usize; 2],
        options: ConvOptions,
        bias: bool,
        keys: impl FnMut() -> Key,
    ) -> Result<Conv2d> {
        let shape = [outputs, inputs / options.groups.max(1), kernel[0], kernel[1]];
        Ok(Conv2d { parameters: Parameters::new(&shape, bias.then_some(outputs), keys)?, options })
    }

    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.conv2d(&self.parameters.weight, self.parameters.bias.as_deref(), self.options)
    }
}

impl Module for Conv2d {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.parameters.visit_parameters(prefix, visit);
    }
}

/// `torch.nn.Conv1d`: (B, C, L) to (B, C', L').
pub struct Conv1d {
    /// (C', C / groups, K) and (C')
    parameters: Parameters,
    options: ConvOptions,
}

impl Conv1d {
    /// Uses the second (width) value of each option. Weights and bias are uniform as in PyTorch.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        options: ConvOptions,
        bias: bool,
        keys: impl FnMut() -> Key,
    ) -> Result<Conv1d> {
        let shape = [outputs, inputs / options.groups.max(1), kernel];
        Ok(Conv1d { parameters: Parameters::new(&shape, bias.then_some(outputs), keys)?, options })
    }

    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.conv1d(&self.parameters.weight, self.parameters.bias.as_deref(), self.options)
    }
}

impl Module for Conv1d {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.parameters.visit_parameters(prefix, visit);
    }
}

/// `torch.nn.ConvTranspose2d`: (B, C, H, W) to (B, C', H', W').
pub struct ConvTranspose2d {
    /// (C, C' / groups, KH, KW) and (C')
    parameters: Parameters,
    options: ConvOptions,
    output_padding: [usize; 2],
}

impl ConvTranspose2d {
    /// A kernel of (height, width). Weights and bias are uniform as in PyTorch.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(
        [inputs, outputs]: [usize; 2],
        kernel: [usize; 2],
        options: ConvOptions,
        output_padding: [usize; 2],
        bias: bool,
        keys: impl FnMut() -> Key,
    ) -> Result<ConvTranspose2d> {
        let shape = [inputs, outputs / options.groups.max(1), kernel[0], kernel[1]];
        let parameters = Parameters::new(&shape, bias.then_some(outputs), keys)?;
        Ok(ConvTranspose2d { parameters, options, output_padding })
    }

    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Parameters { weight, bias } = &self.parameters;
        x.conv_transpose2d(weight, bias.as_deref(), self.options, self.output_padding)
    }
}

impl Module for ConvTranspose2d {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.parameters.visit_parameters(prefix, visit);
    }
}

/// `torch.nn.MaxPool2d`: (B, C, H, W) to (B, C, H', W').
#[derive(Debug, Clone, Copy)]
pub struct MaxPool2d(pub PoolOptions);

impl MaxPool2d {
    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.max_pool2d(self.0)
    }
}

/// `torch.nn.AvgPool2d`: (B, C, H, W) to (B, C, H', W').
#[derive(Debug, Clone, Copy)]
pub struct AvgPool2d(pub PoolOptions);

impl AvgPool2d {
    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.avg_pool2d(self.0)
    }
}

/// `torch.nn.AdaptiveAvgPool2d`: (B, C, H, W) to (B, C) of this height and width.
#[derive(Debug, Clone, Copy)]
pub struct AdaptiveAvgPool2d(pub [usize; 2]);

impl AdaptiveAvgPool2d {
    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.adaptive_avg_pool2d(self.0)
    }
}

/// Pooling has no parameters.
impl Module for MaxPool2d {
    fn visit_parameters(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Parameter)) {}
}

impl Module for AvgPool2d {
    fn visit_parameters(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Parameter)) {}
}

impl Module for AdaptiveAvgPool2d {
    fn visit_parameters(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Parameter)) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::init_keys;
    use crate::{Device, Shape};

    fn described(module: &mut dyn Module) -> Vec<(String, Shape)> {
        module.parameters().into_iter().map(|(name, value)| (name, value.shape().clone())).collect()
    }

    #[test]
    fn parameters_have_the_names_shapes_and_range_of_pytorch() {
        let options = ConvOptions { groups: 2, ..ConvOptions::default() };
        let mut conv = Conv2d::new([4, 6], [3, 5], options, true, init_keys(1)).unwrap();
        let named = |name: &str, shape: &[usize]| (name.to_string(), Shape::from(shape));
        assert_eq!(described(&mut conv), [named("weight", &[6, 2, 3, 5]), named("bias", &[6])]);
        let values: Vec<f32> = conv.parameters().iter().flat_map(|(_, value)| value.to_f32().unwrap()).collect();
        let bound = 1.0 / 30.0f32.sqrt();
        assert!(values.iter().all(|value| value.abs() <= bound), "{values:?}");
        assert!(values.iter().any(|value| value.abs() > 0.9 * bound), "{values:?}");
        let mut conv = Conv1d::new([4, 6], 3, options, false, init_keys(1)).unwrap();
        assert_eq!(described(&mut conv), [named("weight", &[6, 2, 3])]);
        let mut conv = ConvTranspose2d::new([4, 6], [3, 5], options, [0; 2], true, init_keys(1)).unwrap();
        assert_eq!(described(&mut conv), [named("weight", &[4, 3, 3, 5]), named("bias", &[6])]);
    }

    #[test]
    fn layers_fit_each_other() {
        let options = ConvOptions { stride: [2; 2], padding: [1; 2], ..ConvOptions::default() };
        let conv = Conv2d::new([3, 5], [3, 3], options, true, init_keys(1)).unwrap();
        let back = ConvTranspose2d::new([5, 3], [3, 3], options, [1; 2], true, init_keys(2)).unwrap();
        let x = Tensor::full(1.0, [2, 3, 8, 6], &Device::Cpu).unwrap();
        let y = conv.forward(&x).unwrap();
        assert_eq!((&y.shape()[..], back.forward(&y).unwrap().shape()), (&[2, 5, 4, 3][..], x.shape()));
        let pooled = [PoolOptions::new([2, 3])]
            .map(|options| [MaxPool2d(options).forward(&y).unwrap(), AvgPool2d(options).forward(&y).unwrap()]);
        assert!(pooled.iter().flatten().all(|pooled| pooled.shape()[..] == [2, 5, 2, 1]));
        let sequences = Conv1d::new([3, 4], 3, ConvOptions::default(), true, init_keys(1)).unwrap();
        assert_eq!(sequences.forward(&x.reshape([2, 3, 48]).unwrap()).unwrap().shape()[..], [2, 4, 46]);
    }
}
