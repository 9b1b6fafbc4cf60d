//! The GPU that tests run on.

use super::{AdapterChoice, Gpu};

/// Any adapter, software or not. `None` if there is none; the test then reports that it was skipped.
/// `RUSTYFLOW_REQUIRE_GPU` makes a missing GPU a failure. `RUSTYFLOW_GPU_LIMITS=default` restricts it to WebGPU's
/// default limits.
///
/// # Panics
/// If there is none and one is required.
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
