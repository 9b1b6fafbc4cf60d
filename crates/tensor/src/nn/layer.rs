//! Layers that map one tensor to one tensor, and sequences of layers.

use super::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm, Conv1d, Conv2d, ConvTranspose2d, Dropout, Dropout2d, DropoutLayer,
    Embedding, GroupNorm, LayerNorm, Linear, MaxPool2d, Module, Norm, Parameter, RmsNorm, join,
};
use crate::{DType, Error, Result, Tensor};

/// A module that maps one tensor to one tensor.
pub trait Layer: Module + Send + Sync {
    /// # Errors
    /// If the shape or the type does not fit.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;
}

/// Implements [`Layer`] for types whose own `forward` takes only x.
macro_rules! layers {
    ($($layer:ident)*) => {
        $(impl Layer for $layer {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                $layer::forward(self, x)
            }
        })*
    };
}

layers! {
    AdaptiveAvgPool2d AvgPool2d BatchNorm Conv1d Conv2d ConvTranspose2d Dropout2d DropoutLayer Embedding GroupNorm
    MaxPool2d
}

/// Without dropout in its LoRA adapters.
impl Layer for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Linear::forward(self, x, &Dropout::off())
    }
}

impl Layer for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Norm::forward(self, x, DType::F32)
    }
}

impl Layer for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Norm::forward(self, x, DType::F32)
    }
}

/// An activation function as a layer, elementwise unless noted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Relu,
    /// The tanh approximation.
    Gelu,
    Silu,
    Sigmoid,
    Tanh,
    /// With this negative slope.
    LeakyRelu(f32),
    /// With this alpha.
    Elu(f32),
    Softplus,
    Hardswish,
    /// Over the last dimension.
    Softmax,
    /// Over the last dimension.
    LogSoftmax,
}

impl Module for Activation {
    fn visit_parameters(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Parameter)) {}
}

impl Layer for Activation {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match *self {
            Activation::Relu => x.relu(),
            Activation::Gelu => x.gelu(),
            Activation::Silu => x.silu(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Tanh => x.tanh(),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
            Activation::Elu(alpha) => x.elu(alpha),
            Activation::Softplus => x.softplus(),
            Activation::Hardswish => x.hardswish(),
            Activation::Softmax => x.softmax(),
            Activation::LogSoftmax => x.log_softmax(),
        }
    }
}

/// `torch.nn.Flatten`: flattens all dimensions from this one on: `Flatten(1)` maps (N, C, H, W) to (N, C H W).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flatten(pub usize);

impl Module for Flatten {
    fn visit_parameters(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Parameter)) {}
}

impl Layer for Flatten {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some((kept, joined)) = x.shape().split_at_checked(self.0).filter(|(_, joined)| !joined.is_empty()) else {
            let (expected, got) = (format!("a dimension {}", self.0), x.shape().to_string());
            return Err(Error::Shape { op: "flatten", expected, got });
        };
        // Lengths beside one that is 0 may wrap.
        let joined = joined.iter().fold(1, |product: usize, dim| product.wrapping_mul(*dim));
        x.reshape([kept, &[joined]].concat())
    }
}

/// `torch.nn.Sequential`: applies layers in order. Parameter names start with the layer's index: "0.weight".
#[derive(Default)]
pub struct Sequential {
    pub layers: Vec<Box<dyn Layer>>,
}

impl Sequential {
    pub fn new(layers: Vec<Box<dyn Layer>>) -> Sequential {
        Sequential { layers }
    }

    /// Appends a layer.
    #[must_use]
    pub fn then(mut self, layer: impl Layer + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Module for Sequential {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        for (number, layer) in self.layers.iter_mut().enumerate() {
            layer.visit_parameters(&join(prefix, &number.to_string()), visit);
        }
    }

    fn visit_buffers(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Tensor)) {
        for (number, layer) in self.layers.iter_mut().enumerate() {
            layer.visit_buffers(&join(prefix, &number.to_string()), visit);
        }
    }

    fn visit_counts(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut u64)) {
        for (number, layer) in self.layers.iter_mut().enumerate() {
            layer.visit_counts(&join(prefix, &number.to_string()), visit);
        }
    }

    fn set_training(&mut self, training: bool) {
        self.layers.iter_mut().for_each(|layer| layer.set_training(training));
    }
}

impl Layer for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{init, init_keys};
    use crate::ops::{ConvOptions, PoolOptions};
    use crate::{Device, Shape};

    #[test]
    fn a_sequence_names_its_layers_by_number_and_passes_modes_on() {
        let mut keys = init_keys(1);
        let options = ConvOptions { padding: [1; 2], ..ConvOptions::default() };
        let mut net = Sequential::default()
            .then(Conv2d::new([1, 4], [3, 3], options, true, &mut keys).unwrap())
            .then(BatchNorm::new(4).unwrap())
            .then(Activation::Relu)
            .then(Sequential::new(vec![Box::new(Dropout2d::new(0.5, 1)), Box::new(BatchNorm::new(4).unwrap())]))
            .then(MaxPool2d(PoolOptions::new([2; 2])))
            .then(AdaptiveAvgPool2d([2; 2]))
            .then(Flatten(1))
            .then(LayerNorm::new(16, true).unwrap())
            .then(DropoutLayer::new(0.5, 2))
            .then(Linear::outputs_first(16, &[3], true, 0.1, keys()).unwrap())
            .then(RmsNorm::new(3, 1e-6).unwrap())
            .then(Activation::LogSoftmax);
        let names: Vec<String> = net.parameters().into_iter().map(|(name, _)| name).collect();
        let of = |layer: &str| ["weight", "bias"].map(|name| format!("{layer}.{name}"));
        let want = ["0", "1", "3.1", "7", "9"].map(of).concat();
        assert_eq!(names, [&want[..], &["10.weight".to_string()]].concat());
        for device in Device::for_tests() {
            net.to_device(&device).unwrap();
            let x = init::normal([2, 1, 8, 6], 0.0, 1.0, keys()).unwrap().to_device(&device).unwrap();
            net.set_training(true);
            let [first, second] = [0, 1].map(|_| net.forward(&x).unwrap());
            assert_eq!(first.shape(), &Shape::from([2, 3]));
            assert_ne!(first.to_f32().unwrap(), second.to_f32().unwrap(), "{device}: dropout");
            net.set_training(false);
            let mut means = Vec::new();
            let mut note = |net: &mut Sequential| {
                net.visit_buffers("net", &mut |name, buffer| means.push((name.to_string(), buffer.to_f32().unwrap())));
                means.split_off(0)
            };
            let before = note(&mut net);
            assert_eq!(before[3].0, "net.3.1.running_var");
            let [first, second] = [0, 1].map(|_| net.forward(&x).unwrap().to_f32().unwrap());
            assert_eq!(first, second, "{device}: no dropout");
            assert_eq!(before, note(&mut net), "{device}: running averages");
        }
    }

    #[test]
    fn flattening_joins_what_is_there() {
        let x = Tensor::zeros([2, 3, 4, 5], DType::F32, &Device::Cpu).unwrap();
        let shape = |from: usize| Flatten(from).forward(&x).map(|y| y.shape().to_vec());
        assert_eq!(
            [0, 1, 2, 3].map(|from| shape(from).unwrap()),
            [vec![120], vec![2, 60], vec![2, 3, 20], vec![2, 3, 4, 5]]
        );
        assert!(matches!(shape(4), Err(Error::Shape { op: "flatten", .. })));
        assert!(matches!(shape(usize::MAX), Err(Error::Shape { op: "flatten", .. })));
        let empty = Tensor::zeros([2, 0, 5], DType::F32, &Device::Cpu).unwrap();
        assert_eq!(Flatten(1).forward(&empty).unwrap().shape()[..], [2, 0]);
    }

    #[test]
    fn activations_are_the_functions_of_their_names() {
        let x = Tensor::from_f32(&[-1.5, 0.5, 2.0], [1, 3], &Device::Cpu).unwrap();
        let pairs = [
            (Activation::Relu, x.relu()),
            (Activation::Gelu, x.gelu()),
            (Activation::Silu, x.silu()),
            (Activation::Sigmoid, x.sigmoid()),
            (Activation::Tanh, x.tanh()),
            (Activation::LeakyRelu(0.2), x.leaky_relu(0.2)),
            (Activation::Elu(0.7), x.elu(0.7)),
            (Activation::Softplus, x.softplus()),
            (Activation::Hardswish, x.hardswish()),
            (Activation::Softmax, x.softmax()),
            (Activation::LogSoftmax, x.log_softmax()),
        ];
        for (activation, want) in pairs {
            let got = activation.forward(&x).unwrap().to_f32().unwrap();
            assert_eq!(got, want.unwrap().to_f32().unwrap(), "{activation:?}");
        }
    }
}
