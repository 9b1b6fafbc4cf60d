//! Text generation, one token at a time.

mod decode;
mod sampler;
mod session;
mod text;

pub use sampler::{NextDraw, Sampling, draw_each};
pub use session::Session;
pub use text::{End, TextWriter};

use crate::models::{LanguageModel, ModelConfig};
use crate::{Error, Result};
use decode::{Continuation, decode};
use std::ops::ControlFlow;

/// A prompt and its sampling settings.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub prompt: &'a [u32],
    pub sampling: &'a Sampling,
}

/// Generates up to `max_new_tokens` tokens after `prompt`, and passes each to `on_token` as soon as it arrives. A GPU
/// may compute a few tokens beyond the end of the text, which are dropped.
///
/// With the KV cache, only new tokens are computed. When the context is full, its first half is dropped and the second
/// half is recomputed at its new positions, so at least half of the context is always visible, at constant average cost
/// per token. A recurrent model has no context limit.
///
/// # Errors
/// If the prompt is empty, longer than the context, or has an id outside the vocabulary.
pub fn generate(
    model: &dyn LanguageModel,
    prompt: &[u32],
    max_new_tokens: usize,
    sampling: &Sampling,
    on_token: &mut dyn FnMut(u32) -> Result<ControlFlow<()>>,
) -> Result<()> {
    generate_batch(model, &[Request { prompt, sampling }], max_new_tokens, &mut |_, id| on_token(id))
}

/// [`generate`] for a batch of prompts of equal length: `on_token` also receives the index of the text, and can end
/// each text separately.
///
/// # Errors
/// Those of [`generate`], or if the prompts differ in length.
pub fn generate_batch(
    model: &dyn LanguageModel,
    requests: &[Request],
    max_new_tokens: usize,
    on_token: &mut dyn FnMut(usize, u32) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let Some(first) = requests.first() else { return Ok(()) };
    let len = first.prompt.len();
    for Request { prompt, sampling } in requests {
        check_prompt(model.config(), prompt)?;
        sampling.check()?;
        if prompt.len() != len {
            let message = format!("prompts in a batch must have equal length, got {len} and {} tokens", prompt.len());
            return Err(Error::Invalid(message));
        }
    }
    let mut texts: Vec<_> = requests.iter().map(|request| Continuation::new(request.prompt)).collect();
    let mut cache = model.cache(texts.len(), len.saturating_add(max_new_tokens))?;
    decode(model, &mut texts, requests, &mut cache, max_new_tokens, 0, on_token).map(drop)
}

/// Removes control characters that a terminal would interpret.
pub fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !"\n\r\t".contains(c), "\u{fffd}")
}

/// Checks that a model of this shape can continue `prompt`.
///
/// # Errors
/// If the prompt is empty, longer than the context, or has an id outside the vocabulary.
pub fn check_prompt(model: &ModelConfig, prompt: &[u32]) -> Result<()> {
    let context = model.context();
    if prompt.is_empty() {
        return Err(Error::Invalid("the prompt has no tokens; give a text to continue".into()));
    }
    if prompt.len() > context {
        return Err(Error::Invalid(format!(
            "the prompt has {} tokens, the model's context holds {context} (model.block_size); shorten the prompt",
            prompt.len()
        )));
    }
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= model.vocab_size) {
        return Err(Error::Invalid(format!(
            "the prompt's token {id} is outside the model's vocabulary of {}: the tokenizer does not match the model",
            model.vocab_size
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::Tensor;
    use crate::models::{build, testing};
    use crate::tensor::no_grad;

    /// A GPT-2 and Llamas, one with a window, of a vocabulary of 50 and a context of 12.
    fn configs() -> [ModelConfig; 4] {
        let gpt2 = ModelConfig { n_layer: 2, tie_embeddings: false, ..testing::small(50, 12, 2, 24) };
        let mut windowed = testing::small_llama("llama");
        windowed.llama.as_mut().unwrap().sliding_window = Some(5);
        [gpt2, testing::small_llama("llama"), testing::small_llama("qwen3"), windowed]
    }

    fn model(config: &ModelConfig, device: &Device) -> Box<dyn LanguageModel> {
        let mut model = build(config, 3).unwrap();
        model.to_device(device).unwrap();
        model
    }

    #[test]
    #[ignore = "slow: scripts/test.sh --full"]
    fn tokens_are_those_of_a_model_that_sees_the_same_tokens_each_time() {
        for device in Device::for_tests() {
            for config in configs() {
                let model = model(&config, &device);
                let greedy = Sampling::greedy(50);
                for prompt in [&[7, 11, 7][..], &[1], &[5; 12]] {
                    let (mut expected, mut begin) = (prompt.to_vec(), 0);
                    for _ in 0..20 {
                        if expected.len() - begin > 12 {
                            begin = expected.len() - 6;
                        }
                        let window = &expected[begin..];
                        let ids = Tensor::from_u32(window, [1, window.len()], &device).unwrap();
                        let logits = no_grad(|| model.logits(&ids)).unwrap().to_f32().unwrap();
                        let last = &logits[logits.len() - 50..];
                        expected.push((0..50).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap() as u32);
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

    #[test]
    fn texts_of_a_batch_are_those_that_each_would_be_alone() {
        for device in Device::for_tests() {
            for config in configs() {
                let model = model(&config, &device);
                let prompts = [[7, 11, 7], [1, 2, 3], [49, 0, 5]];
                let samplings = [3, 4, 5].map(|seed| Sampling { temperature: 1.0, seed, ..Sampling::greedy(50) });
                let request = |i: usize| Request { prompt: &prompts[i], sampling: &samplings[i] };
                // The second ends early, the others go on beyond the context.
                let lengths = [20, 4, 20];
                let run = |requests: &[Request], lengths: &[usize]| {
                    let mut texts = vec![Vec::new(); requests.len()];
                    let mut keep = |i: usize, id| {
                        let text: &mut Vec<u32> = &mut texts[i];
                        text.push(id);
                        let ends = text.len() == lengths[i];
                        Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                    };
                    generate_batch(&*model, requests, 20, &mut keep).unwrap();
                    texts
                };
                let together = run(&[0, 1, 2].map(request), &lengths);
                for (i, text) in together.iter().enumerate() {
                    assert_eq!(text.len(), lengths[i]);
                    assert_eq!(*text, run(&[request(i)], &[lengths[i]])[0], "{device}, {config:?}: text {i}");
                }
                let uneven = [request(0), Request { prompt: &[1], ..request(1) }];
                let error = generate_batch(&*model, &uneven, 1, &mut |_, _| unreachable!()).unwrap_err();
                assert!(error.to_string().contains("equal length, got 3 and 1 tokens"), "{error}");
            }
        }
    }
}
