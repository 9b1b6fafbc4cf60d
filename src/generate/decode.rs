//! Generation steps: the model computes the next logits of each text, and the device samples from them. The host
//! enqueues further steps before it reads the tokens, so that the device never waits.

use super::Request;
use super::sampler::{Sampler, drawn};
use crate::models::{Cache, LanguageModel};
use crate::tensor::{Edge, Readback};
use crate::{Result, Tensor};
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// Most steps enqueued ahead of the host. Steps beyond the end of a text are wasted.
const STEPS_AHEAD: usize = 3;

/// The state of a text.
pub(super) struct Continuation {
    /// The prompt and the sampled tokens.
    pub ids: Vec<u32>,
    pub ended: bool,
}

impl Continuation {
    pub fn new(prompt: &[u32]) -> Continuation {
        Continuation { ids: prompt.to_vec(), ended: false }
    }
}

/// The steps that a device has been given.
struct Steps<'a> {
    model: &'a dyn LanguageModel,
    cache: &'a mut Cache,
    sampler: Sampler,
    /// The tokens that were drawn last, (B).
    last: Option<Tensor>,
    /// Those that the host has not seen, from the oldest on.
    unseen: VecDeque<Readback>,
}

impl Steps<'_> {
    /// Computes ids, (B, T) in one row, which follow those in the cache, and draws the next token of each text.
    fn begin(&mut self, ids: &[u32]) -> Result<()> {
        let b = self.cache.sequences();
        self.step(&Tensor::from_u32(ids, [b, ids.len() / b], &self.model.device())?)
    }

    /// The same of the tokens that were drawn last.
    fn go_on(&mut self) -> Result<()> {
        let last = self.last.take().expect("a step before");
        let b = last.len();
        self.step(&last.view([b, 1].into(), Edge::None))
    }

    fn step(&mut self, ids: &Tensor) -> Result<()> {
        let logits = self.model.next_token_logits(ids, self.cache)?; // (B, V)
        let ids = self.sampler.draw(&logits)?;
        self.unseen.push_back(ids.read_later()?);
        ids.device().submit()?;
        self.last = Some(ids);
        Ok(())
    }

    /// The tokens of the oldest step, if they have arrived or are to be waited for.
    fn take(&mut self, wait: bool) -> Result<Option<Vec<u32>>> {
        let Some(oldest) = self.unseen.front_mut() else { return Ok(None) };
        if !wait && !oldest.has_arrived()? {
            return Ok(None);
        }
        let oldest = self.unseen.pop_front().expect("it is there");
        Ok(Some(bytemuck::pod_collect_to_vec(&oldest.wait()?)))
    }
}

/// Continues `texts`, which are as long as each other, by up to `max_new_tokens` tokens, handing each to `on_token`
/// with the number of its text, as soon as it is seen. The cache may hold the first tokens of the texts, but not all.
/// Draws are numbered from `number` on; returns that of the next. Once a text and its continuation fill the model's
/// context, its beginning is forgotten as [`super::generate`] says.
pub(super) fn decode(
    model: &dyn LanguageModel,
    texts: &mut [Continuation],
    requests: &[Request],
    cache: &mut Cache,
    max_new_tokens: usize,
    number: u32,
    on_token: &mut dyn FnMut(usize, u32) -> Result<ControlFlow<()>>,
) -> Result<u32> {
    let (length, context) = (texts[0].ids.len(), model.config().context());
    let sampler = Sampler::new(requests, model.config().vocab_size, &model.device(), number)?;
    let mut steps = Steps { model, cache, sampler, last: None, unseen: VecDeque::new() };
    // The first token that the model sees, the steps that the device was given, and those whose tokens were seen.
    let (mut begin, mut given, mut seen) = (0, 0, 0);
    while seen < max_new_tokens && texts.iter().any(|text| !text.ended) {
        let forgets = length + given - begin > context;
        // What is forgotten is computed again from what the host has seen.
        let can_give = given < max_new_tokens && steps.unseen.len() < STEPS_AHEAD && (!forgets || seen == given);
        if can_give {
            if forgets {
                begin = length + given - (context / 2).max(1);
                steps.cache.truncate(0)?;
            }
            if forgets || given == 0 {
                let new = begin + steps.cache.tokens()..length + given;
                let ids: Vec<u32> = texts.iter().flat_map(|text| &text.ids[new.clone()]).copied().collect();
                steps.begin(&ids)?;
            } else {
                steps.go_on()?;
            }
            given += 1;
        }
        let Some(ids) = steps.take(!can_give)? else { continue };
        seen += 1;
        for (i, (text, id)) in texts.iter_mut().zip(ids).enumerate() {
            text.ids.push(id);
            text.ended = text.ended || on_token(i, drawn(id)?)?.is_break();
        }
    }
    Ok(number.wrapping_add(seen as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Limits;
    use crate::models::{ModelConfig, build, testing};
    use crate::ops::sample::Draw;
    use crate::tensor::DryRun;
    use crate::{DType, Device};
    use std::collections::BTreeMap;

    /// What the host pays for a token is the number of its launches: each costs it microseconds, however small it is.
    #[test]
    #[ignore = "slow: scripts/test.sh --full"]
    fn a_token_takes_few_launches() {
        let gpt2 = ModelConfig { n_layer: 12, ..testing::small(50_257, 1024, 12, 768) };
        // Of a layer four GEMMs, two of which have a norm before them, and attention, in two passes if there are many
        // keys; of a Llama SwiGLU and RoPE too. Beside those the embedding, the last norm, the head, and the draw.
        let qwen3 = testing::small_llama("qwen3");
        for (config, prompts) in [(&gpt2, &[(127, 5), (128, 6)][..]), (&qwen3, &[(3, 7)])] {
            // One that binds the embedding as a whole.
            let limits = Limits { binding_bytes: 1 << 30, buffer_bytes: 1 << 30, ..Limits::WEBGPU_DEFAULT };
            let dry_run = DryRun::new(limits);
            let device = Device::DryRun(dry_run.clone());
            let mut model = build(config, 1).unwrap();
            model.to_device(&device).unwrap();
            let settings = Tensor::zeros([1, Draw::WORDS], DType::U32, &device).unwrap();
            for &(prompt, of_layer) in prompts {
                let mut cache = model.cache(1, prompt + 1).unwrap();
                for tokens in [prompt, 1] {
                    dry_run.take_plans();
                    let ids = Tensor::zeros([1, tokens], DType::U32, &device).unwrap();
                    let logits = model.next_token_logits(&ids, &mut cache).unwrap();
                    logits.sample(&settings, None, None, 0).unwrap();
                }
                let mut launches = BTreeMap::new();
                for (name, plan) in dry_run.take_plans() {
                    *launches.entry(name).or_insert(0) += plan.launches.len();
                }
                let all: usize = launches.values().sum();
                assert_eq!(all, config.n_layer * of_layer + 4, "{}: {launches:?}", config.kind.as_str());
            }
        }
    }
}
