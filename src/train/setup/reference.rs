//! The reference of preferences: a frozen copy of the initial model.

use super::adapters::lora;
use super::init::first_model;
use crate::config::{Config, Precision};
use crate::models::{LanguageModel, ModelConfig, build, to_device_as_f16};
use crate::tensor::{DryRun, with_weights_on};
use crate::train::evaluation::preference::Preference;
use crate::{Device, Error, Result};

/// The objective of preferences of a run, with its reference on this device.
///
/// # Errors
/// If the initial model cannot be read, or there is no memory for it.
pub(in crate::train) fn preference(
    config: &Config,
    shape: &ModelConfig,
    device: &Device,
) -> Result<Option<Preference>> {
    let copy = Preference::needs_copy(config).then(|| initial(config, shape, device)).transpose()?;
    Ok(Preference::new(config, copy))
}

/// The initial model, in the precision of training. With LoRA, frozen weights keep `lora.base_dtype`.
fn initial(config: &Config, shape: &ModelConfig, device: &Device) -> Result<Box<dyn LanguageModel>> {
    let mut model = match device.has_values() {
        true => first_model(config, shape, None).map_err(|error| match error {
            Error::OutOfMemory { .. } => error,
            error => {
                let objective = config.train.objective;
                Error::Invalid(format!("train.objective = \"{objective}\" compares the model with model.init: {error}"))
            }
        })?,
        // A dry run has no weights to read.
        false => with_weights_on(Device::DryRun(DryRun::cpu()), || {
            let mut model = build(shape, 0)?;
            lora(config).map_or(Ok(()), |lora| lora.adapt(&mut *model, 0))?;
            Ok::<_, Error>(model)
        })?,
    };
    // Adapters add nothing yet.
    model.visit_parameters("", &mut |_, parameter| parameter.low_rank = None);
    move_to(&mut *model, config, device).map(|()| model)
}

fn move_to(model: &mut dyn LanguageModel, config: &Config, device: &Device) -> Result<()> {
    match config.device.precision {
        Precision::F32 => model.to_device(device),
        Precision::Mixed => to_device_as_f16(model, "device.precision", device),
    }
}
