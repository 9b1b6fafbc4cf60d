//! Text from a trained model, one token at a time.

mod sampler;

pub use sampler::{Sampler, Sampling};

use crate::models::{LanguageModel, ModelConfig};
use crate::{Error, Result, Tensor};
use std::ops::ControlFlow;

/// Continues `prompt` by up to `max_new_tokens` tokens, handing each to `on_token` as soon as it is drawn.
///
/// Once prompt and continuation are longer than the model's context, it sees the last `block_size` tokens. Until then
/// only what is new is computed; from there on every token has another position each time, and all of them are.
///
/// # Errors
/// If the prompt is empty, longer than the context, or names a token that the model does not have.
pub fn generate(
    model: &dyn LanguageModel,
    prompt: &[u32],
    max_new_tokens: usize,
    sampling: &Sampling,
    on_token: &mut dyn FnMut(u32) -> Result<ControlFlow<()>>,
) -> Result<()> {
    check_prompt(model.config(), prompt)?;
    let context = model.config().block_size;
    let mut sampler = Sampler::new(sampling)?;
    let mut ids = prompt.to_vec();
    let mut cache = model.kv_cache()?;
    for _ in 0..max_new_tokens {
        if ids.len() > context {
            cache.clear();
        }
        let window = &ids[ids.len().saturating_sub(context)..];
        let new = &window[cache.tokens()..];
        let new = Tensor::from_u32(new, [1, new.len()], &model.device())?; // (1, T)
        let logits = model.next_token_logits(&new, &mut cache)?.to_f32()?; // (1, V)
        let id = sampler.draw(&logits)?;
        ids.push(id);
        if on_token(id)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Text without the control characters that a model may have learnt and a terminal would act on.
pub fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !"\n\r\t".contains(c), "\u{fffd}")
}

/// Whether a model of this shape can continue `prompt`.
///
/// # Errors
/// If the prompt is empty, longer than the context, or names a token that the model does not have.
pub fn check_prompt(model: &ModelConfig, prompt: &[u32]) -> Result<()> {
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
            "the prompt's token {id} is beyond the model's vocabulary of {}: tokenizer and model do not belong \
            together",
            model.vocab_size
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::models::{build, testing};
    use crate::tensor::no_grad;

    #[test]
    fn tokens_are_those_of_a_model_that_sees_its_whole_context_each_time() {
        for device in Device::for_tests() {
            let gpt2 = ModelConfig { n_layer: 2, tie_embeddings: false, ..testing::small(50, 12, 2, 24) };
            let mut windowed = testing::small_llama("llama");
            windowed.llama.as_mut().unwrap().sliding_window = Some(5);
            for config in [gpt2, testing::small_llama("llama"), testing::small_llama("qwen3"), windowed] {
                let mut model = build(&config, 3).unwrap();
                model.to_device(&device).unwrap();
                let greedy = Sampling { tokens: 50, temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
                for prompt in [&[7, 11, 7][..], &[1], &[5; 12]] {
                    let mut expected = prompt.to_vec();
                    for _ in 0..20 {
                        let window = &expected[expected.len().saturating_sub(12)..];
                        let ids = Tensor::from_u32(window, [1, window.len()], &device).unwrap();
                        let logits = no_grad(|| model.logits(&ids)).unwrap().to_f32().unwrap();
                        expected.push(Sampler::new(&greedy).unwrap().draw(&logits[logits.len() - 50..]).unwrap());
                    }
                    let mut got = prompt.to_vec();
                    let mut keep = |id| {
                        got.push(id);
                        Ok(ControlFlow::Continue(()))
                    };
                    generate(&*model, prompt, 20, &greedy, &mut keep).unwrap();
                    assert_eq!(got, expected, "{device}, {config:?}");
                }
            }
        }
    }
}
