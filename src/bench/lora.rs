//! Times steps of LoRA beside a pretrained model, on random tokens.

use super::step::{Timed, random_ids, time_steps};
use crate::models::{LanguageModel, Past};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::ops::random::Key;
use crate::optim::{Optimizer, ParameterArena};
use crate::profile::Report;
use crate::step::{Losses, step_alone};
use crate::{Error, Result, Tensor};
use serde::Serialize;

/// The timing of a LoRA step.
#[derive(Debug, Clone, Serialize)]
pub struct LoraTiming {
    pub trained_parameters: usize,
    pub batch_size: usize,
    pub context: usize,
    pub ms_per_step: f64,
    pub tokens_per_s: f64,
    /// The most memory that tensors took on the device.
    pub gib: f64,
    /// Of the last step.
    pub loss: f32,
    /// Of the time, 0 to 1, in which no kernel ran.
    pub host_share: f64,
    pub report: Report,
}

/// A model with adapters on a device, and what to train it on.
pub struct LoraCase<'a> {
    pub model: &'a dyn LanguageModel,
    pub parameters: &'a ParameterArena,
    pub optimizer: &'a mut Optimizer,
    pub batch_size: usize,
    pub context: usize,
}

/// Times `rounds` rounds of `steps` steps, forward to update, and takes the median round. Every token is a target.
///
/// # Errors
/// If there is nothing to time, the model does not fit the device, or the device reported an error.
pub fn time_lora(case: LoraCase, steps: usize, rounds: usize) -> Result<LoraTiming> {
    let LoraCase { model, parameters, optimizer, batch_size, context } = case;
    let (shape, device) = ([batch_size, context], model.device());
    if steps == 0 || rounds == 0 || shape.contains(&0) {
        return Err(Error::Invalid("bench lora: give at least 1 step, round, sequence and token".into()));
    }
    let tokens =
        |seed| Tensor::from_u32(&random_ids(Key::new(seed), shape, model.config().vocab_size)?, shape, &device);
    let (ids, targets) = (tokens(1)?, tokens(2)?);
    let step = || -> Result<Tensor> {
        let loss = |(), loss_scale: Option<&Tensor>| {
            model.loss(&ids, &targets, Past::Nothing, &Dropout::off(), Criterion::default(), loss_scale)
        };
        let update = step_alone((parameters, optimizer), Losses::Parts, [()].into_iter(), loss, 1e-4)?;
        device.end_step()?;
        Ok(update.loss)
    };
    let Timed { seconds, gib, loss, report } = time_steps(&device, steps, rounds, step)?;
    let trained = parameters.entries.iter().filter(|entry| entry.trainable);
    Ok(LoraTiming {
        trained_parameters: trained.map(|entry| entry.shape.elements()).sum(),
        batch_size,
        context,
        ms_per_step: 1e3 * seconds,
        tokens_per_s: (batch_size * context) as f64 / seconds,
        gib,
        loss,
        host_share: report.host_share(),
        report,
    })
}
