//! An exponential moving average of the weights (Polyak and Juditsky 1992), for evaluation.
//!
//! ```text
//! d = min(decay, (1 + t) / (10 + t))       t: updates so far, the first is 1; as TensorFlow's ExponentialMovingAverage
//! a <- a + (1 - d) (p - a)                 a = p before the first update
//! ```
//! At first the averages follow the weights closely, so that the weights that a run begins with are soon forgotten. An
//! update that is skipped (`update.rs`) changes no average. The averages are of what is trained; to evaluate them they
//! change places with the weights, so that the model needs no second set of tensors.

use super::arena::ParameterArena;
use super::optimizer::slice;
use super::update::{Factor, GradientScale};
use crate::cpu::{CHUNK, vectorized};
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::profile::{Cost, MemoryKind};
use crate::tensor::{DType, Kernel, Spec, View, ViewMut, run_into};
use crate::{Result, Tensor, shader};
use rayon::prelude::*;
use std::ops::Range;

/// The averages of all weights that are trained.
pub(super) struct Ema {
    decay: f64,
    /// As the arena of the values, up to where it is trained.
    pub averages: Tensor,
}

impl Ema {
    /// The averages before the first update: the weights themselves.
    ///
    /// # Errors
    /// If the device has no memory left, or ranks divide the weights.
    pub fn new(parameters: &ParameterArena, decay: f64) -> Result<Ema> {
        let (len, cuts, device) = (parameters.trainable_len(), &parameters.cuts, parameters.optimizer_device());
        let averages = Tensor::zeros_in_segments(cuts, len, DType::F32, &device, MemoryKind::OptimizerState)?;
        let ema = Ema { decay, averages };
        ema.take_values(parameters)?;
        Ok(ema)
    }

    /// Sets the averages to the values in the arena.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn take_values(&self, parameters: &ParameterArena) -> Result<()> {
        self.ranges(parameters).iter().try_for_each(|range| parameters.value(range)?.cast_into(&self.part(range)))
    }

    /// After update number `t`, the first being 1: with the norm of its gradients, which says whether it was skipped.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn update(&self, parameters: &ParameterArena, squares: &Tensor, scale: GradientScale, t: u64) -> Result<()> {
        let t = t as f64;
        let decay = self.decay.min((1.0 + t) / (10.0 + t));
        let kernel = Update { weight: (1.0 - decay) as f32, scale };
        self.ranges(parameters)
            .iter()
            .try_for_each(|range| run_into(&kernel, &[&parameters.value(range)?, squares], &[&self.part(range)]))
    }

    /// Exchanges weights and averages.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn swap(&self, parameters: &ParameterArena) -> Result<()> {
        self.ranges(parameters).iter().try_for_each(|range| {
            let kernel = Swap { len: range.len() };
            run_into(&kernel, &[], &[&parameters.value(range)?, &self.part(range)])?;
            parameters.copy_values(range)
        })
    }

    /// The ranges of the averages that one launch each binds.
    fn ranges(&self, parameters: &ParameterArena) -> Vec<Range<usize>> {
        parameters.bindable_ranges(&(0..self.averages.len()))
    }

    fn part(&self, range: &Range<usize>) -> Tensor {
        slice(&self.averages, range)
    }
}

/// a <- a + weight (p - a), unless the update was skipped. Inputs: p (N), the norm of the gradients. Output, changed in
/// place: a (N).
struct Update {
    weight: f32,
    scale: GradientScale,
}

impl Kernel for Update {
    fn name(&self) -> &'static str {
        "ema"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        let len = inputs[0].shape.elements() as f64;
        Cost { flops: 3.0 * len, bytes: 12.0 * len }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        if !matches!(self.scale.factor(inputs[1].f32()), Factor::Is(_)) {
            return;
        }
        let chunks = outputs[0].f32().par_chunks_mut(CHUNK).zip(inputs[0].f32().par_chunks(CHUNK));
        chunks.for_each(|(averages, values)| {
            vectorized(
                #[inline(always)]
                || averages.iter_mut().zip(values).for_each(|(a, p)| *a += self.weight * (p - *a)),
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        Plan::one(Launch {
            shader: shader!(ema),
            values: vec![("pass", "update".into()), ("mixed", self.scale.mixed.into())],
            buffers: vec![
                buffer("values", "vec4<f32>", Operand::Input(0)),
                GradientScale::buffer(1),
                buffer("averages", "vec4<f32>", Operand::Output(0)),
            ],
            params: vec![param("len", len), param("weight", self.weight), self.scale.param()],
            workgroups: len.div_ceil(1024),
        })
    }
}

/// Exchanges its outputs, weights and averages (N).
struct Swap {
    len: usize,
}

impl Kernel for Swap {
    fn name(&self) -> &'static str {
        "ema_swap"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([self.len], DType::F32); 2])
    }

    fn cost(&self, _: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: 0.0, bytes: 16.0 * self.len as f64 }
    }

    fn cpu(&self, _: &[View], outputs: &mut [ViewMut]) {
        let [values, averages] = outputs else { unreachable!("two outputs") };
        let chunks = values.f32().par_chunks_mut(CHUNK).zip(averages.f32().par_chunks_mut(CHUNK));
        chunks.for_each(|(values, averages)| values.swap_with_slice(averages));
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        Plan::one(Launch {
            shader: shader!(ema),
            values: vec![("pass", "swap".into())],
            buffers: vec![
                buffer("values", "vec4<f32>", Operand::Output(0)),
                buffer("averages", "vec4<f32>", Operand::Output(1)),
            ],
            params: vec![param("len", self.len)],
            workgroups: self.len.div_ceil(1024),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::nn::Module;
    use crate::optim::testing::{KINDS, Net, optimizer};
    use crate::optim::{Group, Optimizer, ParameterArena};
    use crate::tensor::DryRun;
    use crate::testing::worst_error;
    use crate::{DType, Device, Tensor};

    fn step(arena: &ParameterArena, optimizer: &mut Optimizer, gradient: impl Fn(usize) -> f32) {
        let gradients: Vec<f32> = (0..arena.trainable_len()).map(gradient).collect();
        arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&gradients)).unwrap();
        let squares = optimizer.step(arena, 0.1).unwrap();
        optimizer.average(arena, &squares).unwrap();
    }

    fn bits(tensor: &Tensor) -> Vec<u8> {
        tensor.to_bytes().unwrap()
    }

    #[test]
    fn averages_are_those_of_plain_arithmetic() {
        for (device, kind) in Device::for_tests().iter().flat_map(|device| KINDS.map(|kind| (device.clone(), kind))) {
            let (arena, mut optimizer) = optimizer(&mut Net::new(1), &device, kind);
            optimizer.keep_averages(&arena, 0.4).unwrap();
            let mut expected: Vec<f64> = arena.values().to_f32().unwrap().into_iter().map(f64::from).collect();
            // From the fourth on (1 + t) / (10 + t) is more than 0.35, from the sixth on more than 0.4.
            for (t, decay) in (1..).zip([2.0 / 11.0, 3.0 / 12.0, 4.0 / 13.0, 5.0 / 14.0, 6.0 / 15.0, 0.4, 0.4]) {
                step(&arena, &mut optimizer, |i| ((i * 7 + t * 13) % 11) as f32 - 5.0);
                let values = arena.values().to_f32().unwrap();
                for (average, value) in expected.iter_mut().zip(values) {
                    *average = decay * *average + (1.0 - decay) * f64::from(value);
                }
            }
            let (got, want) = (optimizer.averages().unwrap().to_f32().unwrap(), expected);
            let want: Vec<f32> = want.into_iter().map(|average| average as f32).collect();
            // Seven steps in f32.
            assert!(worst_error(&got, &want, |_, _| 1.0) < 1e-6, "{device} {kind:?}");
            assert!(worst_error(&got, &arena.values().to_f32().unwrap(), |_, _| 1.0) > 1e-3, "they lag behind");
        }
    }

    #[test]
    fn an_update_that_is_skipped_changes_no_average() {
        for device in Device::for_tests() {
            let precisions = [DType::F32, DType::F16].into_iter().filter(|p| *p == DType::F32 || device.has_f16());
            for operands in precisions {
                let mut net = Net::new(1);
                let arena = ParameterArena::new(&mut net, &device, operands).unwrap();
                let mut optimizer = Optimizer::new(&arena, KINDS[0], 0.1, 1.0).unwrap();
                optimizer.keep_averages(&arena, 0.9).unwrap();
                step(&arena, &mut optimizer, |i| i as f32);
                let before = bits(optimizer.averages().unwrap());
                // Mixed, the first is an overflow of the scaled loss.
                step(&arena, &mut optimizer, |_| f32::NAN);
                assert!(bits(optimizer.averages().unwrap()) == before, "{device} {operands:?}");
                step(&arena, &mut optimizer, |i| i as f32);
                assert!(bits(optimizer.averages().unwrap()) != before, "{device} {operands:?}");
            }
        }
    }

    #[test]
    fn the_model_computes_with_averages_until_they_are_swapped_back() {
        for device in Device::for_tests().into_iter().filter(|device| device.has_f16() || !device.is_gpu()) {
            for operands in [DType::F32, DType::F16] {
                let mut net = Net::new(1);
                net.norm.visit_parameters("", &mut |_, parameter| parameter.freeze());
                let arena = ParameterArena::new(&mut net, &device, operands).unwrap();
                let group = |_| Group::new(KINDS[0], 0.1);
                let mut optimizer = Optimizer::with_groups(&arena, &group, 1.0).unwrap();
                optimizer.keep_averages(&arena, 0.9).unwrap();
                (1..4).for_each(|t| step(&arena, &mut optimizer, |i| ((i * t) % 7) as f32 - 3.0));
                let state = || {
                    let halves = arena.halves.as_ref().map(bits);
                    (bits(arena.values()), bits(optimizer.averages().unwrap()), halves)
                };
                let (values, averages, halves) = state();
                optimizer.swap_averages(&arena).unwrap();
                let trained = 4 * arena.trainable_len();
                let swapped = state();
                assert!(swapped.0[..trained] == averages && swapped.1 == values[..trained], "{device} {operands:?}");
                assert!(swapped.0[trained..] == values[trained..], "what is frozen stays");
                if let Some(halves) = swapped.2 {
                    let halves: Vec<half::f16> = bytemuck::pod_collect_to_vec(&halves);
                    let values = arena.values().to_f32().unwrap();
                    assert!(halves.iter().zip(values).all(|(h, v)| *h == half::f16::from_f32(v)), "{device}");
                }
                optimizer.swap_averages(&arena).unwrap();
                assert!(state() == (values, averages, halves), "{device} {operands:?}");
            }
        }
    }

    #[test]
    fn what_a_device_cannot_bind_at_once_is_averaged_in_parts() {
        let limits = crate::gpu::Limits { binding_bytes: 4 << 14, ..crate::gpu::Limits::WEBGPU_DEFAULT };
        let dry_run = DryRun::new(limits);
        let (arena, mut optimizer) = optimizer(&mut Net::of_width(1, 200), &Device::DryRun(dry_run.clone()), KINDS[0]);
        optimizer.keep_averages(&arena, 0.9).unwrap();
        dry_run.take_plans();
        let squares = optimizer.step(&arena, 0.1).unwrap();
        optimizer.average(&arena, &squares).unwrap();
        optimizer.swap_averages(&arena).unwrap();
        let plans = dry_run.take_plans();
        let count = |name| plans.iter().filter(|(kernel, _)| *kernel == name).count();
        assert_eq!(["adamw", "ema", "ema_swap"].map(count), [arena.trainable_len().div_ceil(1 << 14); 3]);
    }
}
