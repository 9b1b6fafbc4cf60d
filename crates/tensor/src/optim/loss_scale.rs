//! Dynamic loss scaling (Micikevicius et al. 2018), decided on the device, with the constants of PyTorch's
//! `GradScaler`.
//!
//! In mixed precision gradients pass through f16, whose smallest number is 6e-8: the loss's gradient is multiplied by a
//! scale S, and the gradients that come out are divided by it again. If they are not finite, S was too large: the step
//! is skipped and S halved. After 2000 steps without that, S is doubled.

use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::profile::{Cost, MemoryKind};
use crate::tensor::{DType, Kernel, Spec, View, ViewMut, run_into};
use crate::{Device, Result, Tensor, shader};

const FIRST: f32 = 65_536.0;
const GROWTH: f32 = 2.0;
const BACKOFF: f32 = 0.5;
const GROWTH_INTERVAL: f32 = 2000.0;

/// The scale, and what decides on it.
pub(super) struct LossScale {
    /// S, the finite steps since S last changed, and the steps skipped so far: (3).
    pub state: Tensor,
}

impl LossScale {
    pub fn new(device: &Device) -> Result<LossScale> {
        let state = {
            let (bytes, spec) = (bytemuck::cast_slice(&[FIRST, 0.0, 0.0]), Spec::new([3], DType::F32));
            Tensor::from_bytes_as(MemoryKind::OptimizerState, bytes, spec, device)?
        };
        Ok(LossScale { state })
    }

    /// Memory for what [`LossScale::step`] writes.
    pub fn output(device: &Device) -> Result<Tensor> {
        Tensor::empty(Spec::new([2], DType::F32), device, MemoryKind::Other)
    }

    /// From sums that add up to that of the squared gradients times S: writes that without S to the first element of
    /// `numbers` (2), and to the second what gradients are to be multiplied by, 1/S or, if the step is to be skipped,
    /// 0.
    pub fn step(&self, squares: &Tensor, numbers: &Tensor) -> Result<()> {
        run_into(&Rescale, &[squares], &[&self.state, numbers])
    }
}

/// Changes the state (3) in place; a second output (2) as of [`LossScale::step`]. Input: squares (P).
struct Rescale;

impl Kernel for Rescale {
    fn name(&self) -> &'static str {
        "loss_scale"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok([3, 2].map(|len| Spec::new([len], DType::F32)).to_vec())
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: 8.0 + inputs[0].shape.elements() as f64, bytes: 32.0 + inputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [state, numbers] = outputs else { unreachable!("two outputs") };
        let squares = inputs[0].f32().iter().map(|&part| f64::from(part)).sum::<f64>() as f32;
        let [scale, good, skipped] = state.f32() else { unreachable!("three numbers") };
        let unscale = 1.0 / *scale;
        numbers.f32()[0] = squares * unscale * unscale;
        if squares.is_finite() {
            numbers.f32()[1] = unscale;
            *good += 1.0;
            if *good >= GROWTH_INTERVAL {
                (*scale, *good) = (*scale * GROWTH, 0.0);
            }
        } else if *scale > 1.0 {
            numbers.f32()[1] = 0.0;
            (*scale, *good, *skipped) = ((*scale * BACKOFF).max(1.0), 0.0, *skipped + 1.0);
        } else {
            numbers.f32()[1] = 1.0; // No scale can help: the update itself meets what is not finite, and counts it.
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        Plan::one(Launch {
            shader: shader!(loss_scale),
            values: vec![],
            buffers: vec![
                buffer("squares", "f32", Operand::Input(0)),
                buffer("state", "f32", Operand::Output(0)),
                buffer("numbers", "f32", Operand::Output(1)),
            ],
            params: vec![
                param("parts", inputs[0].shape.elements()),
                param("growth", GROWTH),
                param("backoff", BACKOFF),
                param("growth_interval", GROWTH_INTERVAL),
            ],
            workgroups: 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_skips_and_halves_and_many_good_steps_double() {
        for device in Device::for_tests() {
            let scale = LossScale::new(&device).unwrap();
            let step = |squares: f32| {
                let numbers = LossScale::output(&device).unwrap();
                scale.step(&Tensor::from_f32(&[squares], [1], &device).unwrap(), &numbers).unwrap();
                numbers.to_f32().unwrap()
            };
            let state = || scale.state.to_f32().unwrap();
            assert_eq!(step(4.0 * FIRST * FIRST), [4.0, 1.0 / FIRST], "{device}");
            assert_eq!(state(), [FIRST, 1.0, 0.0], "{device}");
            for (bad, skipped) in [(f32::INFINITY, 1.0), (f32::NAN, 2.0)] {
                assert_eq!(step(bad)[1], 0.0, "{device}");
                assert_eq!(state(), [FIRST / 2f32.powi(skipped as i32), 0.0, skipped], "{device}");
            }
            scale.state.write_bytes(bytemuck::cast_slice(&[1.0f32, GROWTH_INTERVAL - 2.0, 7.0])).unwrap();
            assert_eq!(step(9.0), [9.0, 1.0], "{device}");
            assert_eq!(state(), [1.0, GROWTH_INTERVAL - 1.0, 7.0], "{device}");
            step(9.0);
            assert_eq!(state(), [2.0, 0.0, 7.0], "{device}");
            scale.state.write_bytes(bytemuck::cast_slice(&[1.0f32, 5.0, 7.0])).unwrap();
            assert_eq!(step(f32::INFINITY)[1], 1.0, "{device}");
            assert_eq!(state(), [1.0, 5.0, 7.0], "{device}: no scale is to blame");
        }
    }
}
