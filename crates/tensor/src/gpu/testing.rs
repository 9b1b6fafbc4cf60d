//! The GPU that tests run on.

use super::{AdapterChoice, Gpu};

/// Any adapter, software or not. A missing one is a failure where `RUSTYFLOW_REQUIRE_GPU` is set; else the test is
/// told, and says, that there is none. `RUSTYFLOW_GPU_LIMITS=default` holds it to what every WebGPU implementation
/// grants.
///
/// # Panics
/// If there is none though one is required.
pub fn gpu_for_tests() -> Option<Gpu> {
    let default_limits = std::env::var("RUSTYFLOW_GPU_LIMITS").is_ok_and(|limits| limits == "default");
    match Gpu::open(&AdapterChoice { allow_software: true, default_limits, ..AdapterChoice::default() }) {
        Ok(gpu) => Some(gpu),
        Err(e) if std::env::var_os("RUSTYFLOW_REQUIRE_GPU").is_some() => panic!("RUSTYFLOW_REQUIRE_GPU is set: {e}"),
        Err(e) => {
            eprintln!("SKIPPED, no GPU: {e}");
            None
        }
    }
}
