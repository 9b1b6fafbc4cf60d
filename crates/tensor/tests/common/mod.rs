//! What several tests need.
#![allow(dead_code)] // each test file uses a part

use rustyflow_tensor::Device;
use rustyflow_tensor::gpu::gpu_for_tests;
use rustyflow_tensor::ops::random::splitmix64;
use rustyflow_tensor::testing::difference;

/// The GPU that tests run on, software or not; see `gpu_for_tests`.
pub fn gpu() -> Option<Device> {
    gpu_for_tests().map(Device::Gpu)
}

/// Uniform values in -1..1.
pub fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..count).map(|_| (splitmix64(&mut state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// A line that describes what is beyond `atol + rtol * |want|`, if anything: see `rustyflow_tensor::testing`.
pub fn differences(case: &str, what: &str, got: &[f32], want: &[f32], atol: f32, rtol: f32) -> Option<String> {
    let allowed = |_, want: f64| f64::from(atol) + f64::from(rtol) * want.abs();
    Some(format!("{case}: {what}: {}", difference(got, want, allowed)?))
}
