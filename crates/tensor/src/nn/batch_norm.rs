//! Batch and group norms with PyTorch's parameter and buffer names.

use super::init::constant;
use super::{Module, Parameter, join};
use crate::{Result, Tensor};

/// `torch.nn.BatchNorm1d` of (N, C) or (N, C, L), and `BatchNorm2d` of (N, C, H, W): normalizes by batch statistics in
/// training, by running averages in evaluation ([`Module::set_training`]).
pub struct BatchNorm {
    /// (C)
    pub weight: Parameter,
    /// (C)
    pub bias: Parameter,
    /// (C), a buffer, like `running_var`.
    pub running_mean: Tensor,
    pub running_var: Tensor,
    /// Weight of the new batch in the running averages, as in PyTorch.
    pub momentum: f32,
    training: bool,
}

impl BatchNorm {
    /// Added to the variance.
    pub const EPS: f32 = 1e-5;

    /// Weight one, bias zero, running mean zero and variance one, momentum 0.1; in training.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(channels: usize) -> Result<BatchNorm> {
        let [ones, zeros] = [1.0, 0.0].map(|value| move || constant([channels], value));
        let (weight, bias) = (ones()?.into(), zeros()?.into());
        Ok(BatchNorm { weight, bias, running_mean: zeros()?, running_var: ones()?, momentum: 0.1, training: true })
    }

    /// (N, C, ...) -> (N, C, ...). In training, updates the running averages.
    ///
    /// # Errors
    /// If the shape does not fit, or, in training, a channel has fewer than two elements.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let running = [&self.running_mean, &self.running_var];
        x.batch_norm(running, &self.weight, &self.bias, self.training.then_some(self.momentum), BatchNorm::EPS)
    }
}

impl Module for BatchNorm {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit(&join(prefix, "weight"), &mut self.weight);
        visit(&join(prefix, "bias"), &mut self.bias);
    }

    fn visit_buffers(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Tensor)) {
        visit(&join(prefix, "running_mean"), &mut self.running_mean);
        visit(&join(prefix, "running_var"), &mut self.running_var);
    }

    fn set_training(&mut self, training: bool) {
        self.training = training;
    }
}

/// `torch.nn.GroupNorm` of (N, C, ...).
pub struct GroupNorm {
    pub groups: usize,
    /// (C)
    pub weight: Parameter,
    /// (C)
    pub bias: Parameter,
}

impl GroupNorm {
    /// Added to the variance.
    pub const EPS: f32 = 1e-5;

    /// Weight one, bias zero.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(groups: usize, channels: usize) -> Result<GroupNorm> {
        let (weight, bias) = (constant([channels], 1.0)?.into(), constant([channels], 0.0)?.into());
        Ok(GroupNorm { groups, weight, bias })
    }

    /// (N, C, ...) -> (N, C, ...).
    ///
    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.group_norm(self.groups, &self.weight, &self.bias, GroupNorm::EPS)
    }
}

impl Module for GroupNorm {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit(&join(prefix, "weight"), &mut self.weight);
        visit(&join(prefix, "bias"), &mut self.bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::ParameterArena;
    use crate::{DType, Device};

    #[test]
    fn buffers_go_where_the_parameters_go_and_follow_batches() {
        for device in Device::for_tests() {
            let mut norm = BatchNorm::new(2).unwrap();
            let arena = ParameterArena::new(&mut norm, &device, DType::F32).unwrap();
            assert_eq!(arena.trainable_len(), 512, "buffers are not trained");
            let mut names = Vec::new();
            norm.visit_buffers("bn1", &mut |name, buffer| {
                names.push(name.to_string());
                assert!(buffer.device().same(&device), "{name}");
            });
            assert_eq!(names, ["bn1.running_mean", "bn1.running_var"]);
            let x = Tensor::from_f32(&[1.0, 0.0, 3.0, 4.0], [2, 2], &device).unwrap();
            norm.set_training(false);
            norm.forward(&x).unwrap();
            assert_eq!(norm.running_mean.to_f32().unwrap(), [0.0, 0.0]);
            norm.set_training(true);
            norm.forward(&x).unwrap();
            let mean = norm.running_mean.to_f32().unwrap();
            crate::testing::assert_close(&device, &mean, &[0.2f32, 0.2], 1e-6, 0.0);
            norm.to_device(&Device::Cpu).unwrap();
            assert!(norm.running_var.device().same(&Device::Cpu) && norm.weight.device().same(&Device::Cpu));
        }
    }
}
