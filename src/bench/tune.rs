//! What autotuning changed and gained, GEMM by GEMM of a training step.

use super::table::{Sizes, step_gemms};
use crate::gpu::{Gpu, Limits};
use crate::ops::{GemmCase, TunedGemm, compare_tiles};
use crate::{DType, Result};
use std::time::Duration;

/// Times all GEMMs of a training step of these sizes that a GPU can bind, of every type that it has, in about so much
/// time: by its default choices of tiles, and by others.
///
/// # Errors
/// If sizes are 0 or cannot be counted, there is no memory for them, or the driver reported an error.
pub fn compare_tunings([default, tuned]: [&Gpu; 2], sizes: &Sizes, time: Duration) -> Result<Vec<TunedGemm>> {
    sizes.check()?;
    let cases = cases(sizes, default.limits());
    let each = time / cases.len().max(1) as u32;
    cases.iter().map(|case| compare_tiles(default, tuned, case, each)).collect()
}

fn cases(sizes: &Sizes, limits: &Limits) -> Vec<GemmCase> {
    let dtypes = [DType::F32].into_iter().chain(limits.f16.then_some(DType::F16));
    let fits = |case: &GemmCase| {
        let [m, n, k] = case.size;
        let largest = (m * k).max(k * n).max(m * n);
        // Its operands are made of f32.
        (DType::F32.size_bytes() * largest) as u64 <= limits.binding_bytes
    };
    let of = |dtype| {
        let case = move |(layout, size)| GemmCase { trans_a: layout == 2, trans_b: layout == 1, size, dtype };
        step_gemms(sizes).into_iter().map(case)
    };
    dtypes.flat_map(of).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gemm_that_can_be_bound_is_compared() {
        let all = step_gemms(&Sizes::GPT2).len();
        let large = Limits { binding_bytes: 1 << 30, f16: true, ..Limits::WEBGPU_DEFAULT };
        assert_eq!(cases(&Sizes::GPT2, &large).len(), 2 * all);
        let small = cases(&Sizes::GPT2, &Limits::WEBGPU_DEFAULT);
        assert!(!small.is_empty() && small.len() < all, "{small:?}");
        assert!(small.iter().all(|case| case.dtype == DType::F32 && case.size[0] * case.size[1] <= 32 << 20));
    }
}
