//! Times generation: how long each new token takes, after prompts of several lengths.

use super::StepCase;
use super::step::{random_ids, warm_up};
use crate::generate::{Request, Sampling, generate_batch};
use crate::models::{LanguageModel, build};
use crate::ops::random::Key;
use crate::profile::Report;
use crate::{Error, Result};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// What a continuation cost.
#[derive(Debug, Clone, Serialize)]
pub struct GenerateTiming {
    pub case: &'static str,
    /// Texts at once.
    pub batch_size: usize,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    /// From the prompts to the first new tokens.
    pub first_token_ms: f64,
    /// From a token of each text to the next: the median over the tokens after the first; that of the first if there is
    /// no other.
    pub ms_per_token: f64,
    /// Of all texts.
    pub tokens_per_s: f64,
    /// What such a step must read at least: the weights of linear layers and of the head, and the keys and values of
    /// the texts, on the mean of the new tokens.
    pub bytes_read: f64,
    /// Of the time, 0 to 1, in which no kernel ran: the prompt's included, as in the report.
    pub host_share: f64,
    pub report: Report,
}

/// The model of a case, with random weights, on the CPU.
///
/// # Errors
/// If memory is used up.
pub fn random_model(case: &StepCase) -> Result<Box<dyn LanguageModel>> {
    build(&case.config, 0)
}

/// Continues `batch_size` random prompts of each of these lengths with the model of a case, and hands the timing of
/// each length to `on_timing`.
///
/// # Errors
/// If nothing is to be written or read, a prompt does not fit the model, or the device reported an error or has no
/// memory left.
pub fn time_generate(
    case: &StepCase,
    model: &dyn LanguageModel,
    batch_size: usize,
    prompt_tokens: &[usize],
    new_tokens: usize,
    on_timing: &mut dyn FnMut(GenerateTiming) -> Result<()>,
) -> Result<()> {
    if batch_size == 0 || new_tokens == 0 || prompt_tokens.contains(&0) {
        return Err(Error::Invalid(format!(
            "{batch_size} texts of {new_tokens} tokens after {prompt_tokens:?} take no time: give at least 1 of each"
        )));
    }
    let device = model.device();
    let mut is_warm = false;
    for &length in prompt_tokens {
        let ids = random_ids(Key::new(1), [batch_size, length], case.config.vocab_size)?;
        let prompts: Vec<&[u32]> = ids.chunks(length).collect();
        // The first time compiles the shaders of every length and fills the pools.
        let mut once = || time_tokens(model, &prompts, new_tokens).map(drop);
        if is_warm {
            once()?
        } else {
            warm_up(&device, &mut once)?
        }
        is_warm = true;
        device.profiler().take();
        let started = Instant::now();
        let ms = time_tokens(model, &prompts, new_tokens)?;
        device.synchronize()?;
        let elapsed = started.elapsed().as_secs_f64();
        let mut measured = device.profiler().take();
        if device.is_gpu() {
            // Timestamps around every kernel slow a step a little: these are not in the figures above.
            device.time_kernels(true);
            time_tokens(model, &prompts, new_tokens)?;
            device.synchronize()?;
            device.time_kernels(false);
            measured.kernels = device.profiler().take().kernels;
        }
        let report = Report::new(&measured, device.is_gpu(), elapsed, 1.0, device.memory());
        let first_token_ms = ms[0];
        let ms_per_token = median_after_first(ms);
        on_timing(GenerateTiming {
            case: case.name,
            batch_size,
            prompt_tokens: length,
            new_tokens,
            first_token_ms,
            ms_per_token,
            tokens_per_s: 1e3 * batch_size as f64 / ms_per_token,
            bytes_read: bytes_read(model, batch_size, length as f64 + new_tokens as f64 / 2.0),
            host_share: report.host_share(),
            report,
        })?;
    }
    Ok(())
}

/// The median of the times per token, without the first token's, which reads the prompt, if there are others.
fn median_after_first(mut ms: Vec<f64>) -> f64 {
    if ms.len() > 1 {
        ms.remove(0);
    }
    ms.sort_by(f64::total_cmp);
    ms[ms.len() / 2]
}

/// What a step reads of a model and of the keys and values of so many texts of this length.
fn bytes_read(model: &dyn LanguageModel, texts: usize, tokens: f64) -> f64 {
    let (config, head) = (model.config(), model.head());
    let weight = head.spec().size_bytes() as f64 / head.len() as f64;
    let weights = config.block_matrices() + config.vocab_size * config.n_embd;
    let (layers, width) = config.kv_cache();
    let number = head.operand_dtype().size_bytes() as f64;
    weight * weights as f64 + number * tokens * (texts * layers * width) as f64
}

/// Milliseconds until each new token of all texts was there.
fn time_tokens(model: &dyn LanguageModel, prompts: &[&[u32]], new_tokens: usize) -> Result<Vec<f64>> {
    let sampling = &Sampling::greedy(model.config().vocab_size);
    let requests: Vec<Request> = prompts.iter().map(|prompt| Request { prompt, sampling }).collect();
    let mut ms = Vec::new();
    let mut before = Instant::now();
    generate_batch(model, &requests, new_tokens, &mut |text, _| {
        if text + 1 == prompts.len() {
            let now = Instant::now();
            ms.push(1e3 * (now - before).as_secs_f64());
            before = now;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(ms)
}
