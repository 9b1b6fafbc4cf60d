//! Compares every op of the table of cases, forward and backward, with what the CPU computes; and times copies.

use crate::ops::cases::{Case, all};
use crate::ops::random::splitmix64;
use crate::testing::worst_error;
use crate::{DType, Device, Result, Tensor};
use serde::Serialize;
use std::time::Instant;

/// What came of the comparison.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OpCheck {
    /// Cases that were compared.
    pub cases: usize,
    /// Those that this device cannot compute, because they store f16.
    pub left_out: usize,
    /// What is further off than rounding explains: the case, which of its results, and how many times that.
    pub differences: Vec<String>,
}

/// What an input is: a leaf, to whose gradient an op's backward adds in place, or an intermediate result, whose
/// gradient it writes anew.
#[derive(Clone, Copy)]
enum Input {
    Leaf,
    Intermediate,
}

/// Computes every case on `device` and on the CPU; `progress` gets the number of cases done and of all. On the CPU
/// itself the two ways to compute a gradient are compared.
///
/// # Errors
/// If the device reported an error.
pub fn verify_ops(device: &Device, mut progress: impl FnMut(usize, usize)) -> Result<OpCheck> {
    let cases = all();
    let mut check = OpCheck::default();
    for (done, case) in cases.iter().enumerate() {
        progress(done, cases.len());
        if case.f16 && device.is_gpu() && !device.has_f16() {
            check.left_out += 1;
            continue;
        }
        check.cases += 1;
        let want = compute(case, &Device::Cpu, Input::Leaf)?;
        let kinds = if device.is_gpu() { &[Input::Leaf, Input::Intermediate][..] } else { &[Input::Intermediate] };
        for &kind in kinds {
            check.differences.extend(differences(case, &compute(case, device, kind)?, &want));
        }
    }
    progress(cases.len(), cases.len());
    Ok(check)
}

/// The output, and the gradient of each input that has one.
fn compute(case: &Case, device: &Device, kind: Input) -> Result<Vec<Vec<f32>>> {
    let leaf = |x: &Tensor| if x.dtype() == DType::F32 { x.requires_grad() } else { Ok(x.clone()) };
    let inputs = case.draw(device, 7)?.iter().map(leaf).collect::<Result<Vec<_>>>()?;
    let given = inputs.iter().map(|x| match kind {
        Input::Intermediate if x.dtype() == DType::F32 => x.scale(1.0),
        _ => Ok(x.clone()),
    });
    let y = (case.apply)(&given.collect::<Result<Vec<_>>>()?)?;
    let mut state = 11;
    let grad: Vec<f32> =
        (0..y.len()).map(|_| (splitmix64(&mut state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect();
    y.backward_with(&Tensor::from_f32(&grad, y.shape().clone(), device)?)?;
    let gradients = inputs.iter().filter_map(Tensor::grad).map(|gradient| gradient.to_f32());
    [y.to_f32()].into_iter().chain(gradients).collect()
}

fn differences(case: &Case, got: &[Vec<f32>], want: &[Vec<f32>]) -> Vec<String> {
    if got.len() != want.len() {
        return vec![format!("{}: {} results, not {}", case.name, got.len(), want.len())];
    }
    let (atol, rtol) = (f64::from(case.atol), f64::from(case.rtol));
    let worst = got.iter().zip(want).map(|(got, want)| worst_error(got, want, |_, want| atol + rtol * want.abs()));
    let named = worst.enumerate().filter(|(_, error)| *error > 1.0).map(|(i, error)| {
        let what = if i == 0 { "the output".to_string() } else { format!("gradient {i}") };
        format!("{}: {what} is off by {error:.1} times what rounding explains", case.name)
    });
    named.collect()
}

/// 10^9 bytes per second from the host to the device and back.
///
/// # Errors
/// If the device reported an error.
pub fn measure_copies(device: &Device) -> Result<[f64; 2]> {
    const BYTES: usize = 64 << 20;
    const TIMES: usize = 4;
    let values = vec![1.0f32; BYTES / 4];
    let tensor = Tensor::from_f32(&values, [values.len()], device)?;
    device.synchronize()?;
    let rate = |copy: &dyn Fn() -> Result<()>| -> Result<f64> {
        copy()?;
        let started = Instant::now();
        (0..TIMES).try_for_each(|_| copy())?;
        Ok((TIMES * BYTES) as f64 / started.elapsed().as_secs_f64() / 1e9)
    };
    let up = rate(&|| {
        tensor.write_bytes(bytemuck::cast_slice(&values))?;
        device.synchronize()
    })?;
    let down = rate(&|| tensor.to_bytes().map(drop))?;
    Ok([up, down])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_beyond_rounding_is_named() {
        let cases = all();
        let case = &cases[0];
        let right = vec![vec![1.0, 2.0], vec![3.0]];
        assert_eq!(differences(case, &right, &right), [""; 0]);
        let wrong = vec![vec![1.0, 2.0], vec![3.1]];
        assert!(differences(case, &wrong, &right)[0].contains("gradient 1 is off by"));
        assert!(differences(case, &[vec![1.0, f32::NAN], vec![3.0]], &right)[0].contains("the output is off by inf"));
        assert_eq!(differences(case, &right[..1], &right).len(), 1);
    }
}
