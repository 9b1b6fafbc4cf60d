//! `device.precision` on a device.

use crate::config::{Precision, Resolved};
use crate::models::ModelConfig;
use crate::{DType, Device, Error, Result};

/// Type of GEMM operands.
pub fn operands(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Mixed => DType::F16,
    }
}

/// Description of GEMM precision: "f32", or, for mixed precision, the device's tensor cores and the GEMMs of this model
/// that cannot use them.
pub fn describe_precision(precision: Precision, device: &Device, model: &ModelConfig) -> String {
    let side = device.limits().coop_matrix;
    match precision {
        Precision::Mixed if side == 0 => "mixed: f16 stored, matmuls in f32, as this GPU shows no tensor cores".into(),
        Precision::Mixed => on_tensor_cores(side, model),
        Precision::F32 if device.split_fp16() && model.n_embd.is_multiple_of(4) => {
            format!("f32; large matmuls as split-fp16 on tensor cores of {side} x {side} (device.matmul_f32)")
        }
        Precision::F32 => "f32".into(),
    }
}

fn on_tensor_cores(side: u32, model: &ModelConfig) -> String {
    let ModelConfig { n_embd, vocab_size, bias, .. } = *model;
    if !n_embd.is_multiple_of(4) {
        return format!("mixed: f16 stored, matmuls in f32, as model.n_embd = {n_embd} is no multiple of 4");
    }
    let mut text = format!("mixed: f16 matmuls on tensor cores of {side} x {side}, accumulated in f32");
    let head_size = model.head_size();
    if !head_size.is_multiple_of(side as usize) {
        text += &format!("; not attention's, as heads of {head_size} are no multiple of {side}");
    }
    // Without a bias the classifier fills up its columns (`ops/linear_cross_entropy.rs`).
    if model.is_recurrent() && bias && !vocab_size.is_multiple_of(4) {
        text += &format!(
            "; not those with the vocabulary, which has a bias, as {vocab_size} is no multiple of 4: \
             model.vocab_multiple = 64 makes it one"
        );
    }
    text
}

/// Checks that a device can train in this precision.
///
/// # Errors
/// If not, why.
pub fn check_precision(precision: Precision, device: &Device) -> std::result::Result<(), String> {
    if precision == Precision::F32 || device.has_f16() {
        return Ok(());
    }
    let why = match device.adapter() {
        None => "this run is on the CPU, which would be no faster".to_string(),
        Some(adapter) => format!("{} does not", adapter.name),
    };
    Err(format!("\"mixed\" needs a GPU that stores 16-bit floats, and {why}; use \"f32\""))
}

/// [`check_precision`] of the configuration.
///
/// # Errors
/// If the device does not compute in that precision, with where the configuration says so.
pub(in crate::train) fn check_configured_precision(resolved: &Resolved, device: &Device) -> Result<()> {
    if resolved.config.train.offloads_optimizer() && !device.is_gpu() {
        return Err(Error::Config {
            place: resolved.origin("train.offload").to_string(),
            key: "train.offload".into(),
            message: "\"optimizer\" keeps memory of a GPU free, and this run is on the CPU; use \"none\"".into(),
        });
    }
    check_precision(resolved.config.device.precision, device).map_err(|message| Error::Config {
        place: resolved.origin("device.precision").to_string(),
        key: "device.precision".into(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::testing::small;

    #[test]
    fn what_keeps_matmuls_off_the_tensor_cores_is_said() {
        let model = |n_embd, n_head, vocab_size| on_tensor_cores(16, &small(vocab_size, 8, n_head, n_embd));
        assert_eq!(model(64, 4, 64), "mixed: f16 matmuls on tensor cores of 16 x 16, accumulated in f32");
        assert_eq!(model(64, 4, 65), model(64, 4, 64));
        let recurrent = |bias| ModelConfig { kind: "lstm".parse().unwrap(), bias, ..small(65, 8, 4, 64) };
        assert!(
            on_tensor_cores(16, &recurrent(true)).contains("not those with the vocabulary, which has a bias, as 65")
        );
        assert_eq!(on_tensor_cores(16, &recurrent(false)), model(64, 4, 64));
        assert!(model(64, 8, 64).contains("not attention's, as heads of 8 are no multiple of 16"));
        assert!(model(30, 2, 64).contains("model.n_embd = 30"));
    }
}
