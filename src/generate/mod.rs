//! Text from a trained model, one token at a time.

mod sampler;

pub use sampler::{Sampler, Sampling};

use crate::nn::{Gpt, GptConfig};
use crate::tensor::no_grad;
use crate::{Error, Result, Tensor};
use std::ops::ControlFlow;

/// Continues `prompt` by up to `max_new_tokens` tokens, handing each to `on_token` as soon as it is drawn.
///
/// Once prompt and continuation are longer than the model's context, it sees the last `block_size` tokens.
///
/// # Errors
/// If the prompt is empty, longer than the context, or names a token that the model does not have.
pub fn generate(
    model: &Gpt,
    prompt: &[u32],
    max_new_tokens: usize,
    sampling: &Sampling,
    on_token: &mut dyn FnMut(u32) -> Result<ControlFlow<()>>,
) -> Result<()> {
    check_prompt(&model.config, prompt)?;
    let context = model.config.block_size;
    let mut sampler = Sampler::new(sampling)?;
    let mut ids = prompt.to_vec();
    for _ in 0..max_new_tokens {
        let window = &ids[ids.len().saturating_sub(context)..];
        let logits = no_grad(|| {
            let window = Tensor::from_u32(window, [1, window.len()], &model.device())?; // (1, T)
            model.next_token_logits(&window)?.to_f32() // (1, V)
        })?;
        let id = sampler.draw(&logits)?;
        ids.push(id);
        if on_token(id)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Whether a model of this shape can continue `prompt`.
///
/// # Errors
/// If the prompt is empty, longer than the context, or names a token that the model does not have.
pub fn check_prompt(model: &GptConfig, prompt: &[u32]) -> Result<()> {
    let context = model.block_size;
    if prompt.is_empty() {
        return Err(Error::Invalid("the prompt holds no token; give the model something to continue".into()));
    }
    if prompt.len() > context {
        return Err(Error::Invalid(format!(
            "the prompt has {} tokens, the model's context holds {context} (model.block_size); shorten the prompt",
            prompt.len()
        )));
    }
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= model.vocab_size) {
        return Err(Error::Invalid(format!(
            "the prompt's token {id} is beyond the model's vocabulary of {}: tokenizer and model do not belong together",
            model.vocab_size
        )));
    }
    Ok(())
}
