//! Times generation: how long each new token takes, after prompts of several lengths.

use super::StepCase;
use crate::generate::{Sampling, generate};
use crate::models::{LanguageModel, build};
use crate::ops::random::Key;
use crate::{Device, Result};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// What a continuation cost.
#[derive(Debug, Clone, Serialize)]
pub struct GenerateTiming {
    pub case: &'static str,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    /// From the prompt to the first new token.
    pub first_token_ms: f64,
    /// The median over the tokens after the first; that of the first if there is no other.
    pub ms_per_token: f64,
    pub tokens_per_s: f64,
}

/// Continues a random prompt of each of these lengths with the model of a case, its weights random too, and hands the
/// timing of each to `on_timing`.
///
/// # Errors
/// If the model does not fit the device, a prompt does not fit the model, or the device reported an error.
pub fn time_generate(
    case: &StepCase,
    device: &Device,
    prompt_tokens: &[usize],
    new_tokens: usize,
    on_timing: &mut dyn FnMut(GenerateTiming) -> Result<()>,
) -> Result<()> {
    let mut model = build(&case.config, 0)?;
    model.to_device(device)?;
    let key = Key::new(1);
    for &length in prompt_tokens {
        let prompt: Vec<u32> = (0..length as u32).map(|i| key.bits(i) % case.config.vocab_size as u32).collect();
        // The first time compiles the shaders of every length and fills the pools.
        time_tokens(&*model, &prompt, new_tokens)?;
        let mut ms = time_tokens(&*model, &prompt, new_tokens)?;
        let first_token_ms = ms[0];
        if ms.len() > 1 {
            ms.remove(0);
        }
        ms.sort_by(f64::total_cmp);
        let ms_per_token = ms[ms.len() / 2];
        on_timing(GenerateTiming {
            case: case.name,
            prompt_tokens: length,
            new_tokens,
            first_token_ms,
            ms_per_token,
            tokens_per_s: 1e3 / ms_per_token,
        })?;
    }
    Ok(())
}

/// Milliseconds until each new token was there.
fn time_tokens(model: &dyn LanguageModel, prompt: &[u32], new_tokens: usize) -> Result<Vec<f64>> {
    let greedy = Sampling::greedy(model.config().vocab_size);
    let mut ms = Vec::new();
    let mut before = Instant::now();
    generate(model, prompt, new_tokens, &greedy, &mut |_| {
        let now = Instant::now();
        ms.push(1e3 * (now - before).as_secs_f64());
        before = now;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(ms)
}
