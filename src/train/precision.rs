//! What `device.precision` means for a device.

use crate::config::Precision;
use crate::{DType, Device};

/// The type of the operands of products.
pub fn operands(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Mixed => DType::F16,
    }
}

/// What products are computed in: "f32", or of mixed precision what the device has for it, and what the vocabulary takes of it.
pub fn describe_precision(precision: Precision, device: &Device, vocab_size: usize) -> String {
    match device {
        Device::Gpu(gpu) if precision == Precision::Mixed => match gpu.limits().matrix_units {
            0 => "mixed: f16 stored, products in f32, as this GPU shows no matrix units".into(),
            side => {
                let but = match vocab_size.is_multiple_of(4) {
                    true => String::new(),
                    false => format!(
                        "; those with the vocabulary not, as {vocab_size} is no multiple of 4: model.vocab_multiple = 64 \
                         makes it one"
                    ),
                };
                format!("mixed: products of f16 on matrix units of {side} x {side}, added up in f32{but}")
            }
        },
        _ => "f32".into(),
    }
}

/// Whether a device can train in this precision.
///
/// # Errors
/// If not, why.
pub fn check_precision(precision: Precision, device: &Device) -> std::result::Result<(), String> {
    let why = match device {
        _ if precision == Precision::F32 => return Ok(()),
        Device::Cpu => "this run is on the CPU, which would be no faster".to_string(),
        Device::Gpu(_) if device.has_f16() => return Ok(()),
        Device::Gpu(gpu) => format!("{} does not", gpu.info().name),
    };
    Err(format!("\"mixed\" needs a GPU that stores 16-bit floats, and {why}; use \"f32\""))
}
