//! Times steps of LoRA beside a pretrained model, on random tokens.

use super::step::{Timed, random_ids, time_steps};
use crate::config::Config;
use crate::models::Past;
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::ops::random::Key;
use crate::profile::Report;
use crate::step::{Losses, step_alone};
use crate::train::initial_training;
use crate::{Device, Error, Result, Tensor};
use serde::Serialize;

/// What a step of LoRA cost.
#[derive(Debug, Clone, Serialize)]
pub struct LoraTiming {
    pub model: String,
    /// Type of the frozen weights.
    pub base_dtype: &'static str,
    pub rank: usize,
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

/// Times `rounds` rounds of `steps` steps of a run with this configuration, forward to update, and takes the median
/// round. Every token is a target.
///
/// # Errors
/// If there is nothing to time, the model cannot be read or does not fit the device, or the device reported an error.
pub fn time_lora(config: &Config, device: &Device, steps: usize, rounds: usize) -> Result<LoraTiming> {
    let shape = [config.train.batch_size, config.model.block_size];
    if steps == 0 || rounds == 0 || shape.contains(&0) {
        return Err(Error::Invalid("bench lora: give at least 1 step, round, sequence and token".into()));
    }
    device.reset_peak_memory();
    let (model, parameters, mut optimizer) = initial_training(config, device)?;
    let tokens = |seed| Tensor::from_u32(&random_ids(Key::new(seed), shape, model.config().vocab_size)?, shape, device);
    let (ids, targets) = (tokens(1)?, tokens(2)?);
    let step = || -> Result<Tensor> {
        let loss = |(), loss_scale: Option<&Tensor>| {
            model.loss(&ids, &targets, Past::Nothing, &Dropout::off(), Criterion::default(), loss_scale)
        };
        let update = step_alone((&parameters, &mut optimizer), Losses::Parts, [()].into_iter(), loss, 1e-4)?;
        device.end_step()?;
        Ok(update.loss)
    };
    let Timed { seconds, gib, loss, report } = time_steps(device, steps, rounds, step)?;
    let trained = parameters.entries.iter().filter(|entry| entry.trainable);
    Ok(LoraTiming {
        model: config.model.init.clone(),
        base_dtype: config.lora.base_dtype.as_str(),
        rank: config.lora.rank,
        trained_parameters: trained.map(|entry| entry.shape.elements()).sum(),
        batch_size: shape[0],
        context: shape[1],
        ms_per_step: 1e3 * seconds,
        tokens_per_s: (shape[0] * shape[1]) as f64 / seconds,
        gib,
        loss,
        host_share: report.host_share(),
        report,
    })
}
