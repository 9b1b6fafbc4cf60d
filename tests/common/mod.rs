//! What several tests need.
#![allow(dead_code)] // each test file uses a part

use rustyflow::Device;
use rustyflow::gpu::gpu_for_tests;
use rustyflow::ops::random::splitmix64;

/// The GPU that tests run on, software or not; see `gpu_for_tests`.
pub fn gpu() -> Option<Device> {
    gpu_for_tests().map(Device::Gpu)
}

/// Uniform values in -1..1.
pub fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..count).map(|_| (splitmix64(&mut state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// A line that describes the worst element beyond `atol + rtol * |want|`, if any. NaN never passes.
pub fn differences(case: &str, what: &str, got: &[f32], want: &[f32], atol: f32, rtol: f32) -> Option<String> {
    assert_eq!(got.len(), want.len(), "{case}: {what}: length");
    let excess = |i: usize| {
        let (got, want) = (got[i], want[i]);
        if got == want {
            -1.0
        } else {
            ((got - want).abs() - atol - rtol * want.abs()).max(if got.is_nan() != want.is_nan() {
                f32::INFINITY
            } else {
                -1.0
            })
        }
    };
    let bad: Vec<usize> = (0..got.len()).filter(|&i| excess(i).is_nan() || excess(i) > 0.0).collect();
    let worst = *bad.iter().max_by(|&&a, &&b| excess(a).total_cmp(&excess(b)))?;
    Some(format!(
        "{case}: {what}: {} of {} elements; worst at {worst}: got {}, want {}",
        bad.len(),
        got.len(),
        got[worst],
        want[worst]
    ))
}
