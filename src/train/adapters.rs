//! `[lora]`: from the configuration to the adapters that a run trains beside its model.

use crate::config::{Config, WeightDtype};
use crate::models::{Lora, ModelConfig, build};
use crate::tensor::{DryRun, with_weights_on};
use crate::{DType, Device, Error, Result};

/// How the model is adapted, if it is.
pub fn lora(config: &Config) -> Option<Lora> {
    let l = &config.lora;
    (l.rank > 0).then(|| Lora {
        rank: l.rank,
        alpha: if l.alpha > 0.0 { l.alpha } else { 2.0 * l.rank as f64 },
        dropout: l.dropout,
        targets: l.targets.clone(),
        base: match l.base_dtype {
            WeightDtype::F32 => DType::F32,
            WeightDtype::F16 => DType::F16,
        },
    })
}

/// How many numbers the adapters of a model of this shape have, found without memory for any.
///
/// # Errors
/// If there is no such model, or a target is no layer of it.
pub fn count(lora: &Lora, shape: &ModelConfig) -> Result<usize> {
    let mut count = 0;
    with_weights_on(Device::DryRun(DryRun::cpu()), || {
        let mut model = build(shape, 0)?;
        lora.adapt(&mut *model, 0)?;
        model.visit_parameters("", &mut |_, parameter| {
            count += if parameter.is_trainable() { parameter.len() } else { 0 };
        });
        Ok(())
    })?;
    Ok(count)
}

/// Whether a device can compute with weights as the configuration wants them.
///
/// # Errors
/// If not, why.
pub fn check_base(config: &Config, device: &Device) -> Result<()> {
    match (lora(config), device.adapter()) {
        (Some(Lora { base: DType::F16, .. }), Some(adapter)) if !device.has_f16() => Err(Error::Invalid(format!(
            "lora.base_dtype is f16, and {} does not store 16-bit floats; use f32",
            adapter.name
        ))),
        _ => Ok(()),
    }
}
