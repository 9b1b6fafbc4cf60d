//! The reference of preferences: a frozen copy of the initial model.

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

/// The initial model, in the precision of training.
fn initial(config: &Config, shape: &ModelConfig, device: &Device) -> Result<Box<dyn LanguageModel>> {
    if !device.has_values() {
        // Of a dry run, which has any model at once.
        let mut model = with_weights_on(Device::DryRun(DryRun::cpu()), || build(shape, 0))?;
        return move_to(&mut *model, config, device).map(|()| model);
    }
    let mut model = first_model(config, shape, None).map_err(|error| match error {
        Error::OutOfMemory { .. } => error,
        error => {
            let objective = config.train.objective;
            Error::Invalid(format!("train.objective = \"{objective}\" compares the model with model.init: {error}"))
        }
    })?;
    move_to(&mut *model, config, device).map(|()| model)
}

fn move_to(model: &mut dyn LanguageModel, config: &Config, device: &Device) -> Result<()> {
    match config.device.precision {
        Precision::F32 => model.to_device(device),
        Precision::Mixed => to_device_as_f16(model, "device.precision", device),
    }
}
