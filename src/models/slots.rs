//! The caches of a fixed number of texts of different lengths, for continuous batching: texts join and leave between
//! steps, and a step computes the next token of every text at once.
//!
//! On a GPU the shape of a step is fixed: rows without a text are padding. A row depends on its own text alone, so a
//! text has the same bits whatever is computed beside it. On the CPU each text is computed by itself: a product with
//! one row is faster than a fourth of one with four, and slots without a text cost nothing.

use super::{Cache, CachedTokens, KvView, LanguageModel, Past};
use crate::nn::Dropout;
use crate::tensor::no_grad;
use crate::{Device, Error, Result, Tensor};

/// A sequence of a cache begins at a multiple of these tokens, which keeps its offset in bytes aligned for every GPU.
const ALIGNMENT: usize = 64;

/// Slots for the cached tokens of texts.
pub struct Slots {
    cache: Cache,
    /// Most tokens of a text.
    context: usize,
    /// The next position of each slot, (B, 1) of u32; 0 without a text.
    positions: Tensor,
    /// The cached tokens of each slot, (B) of u32; `u32::MAX` without a text.
    starts: Tensor,
}

/// The next token of a slot's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    pub id: u32,
    /// Tokens before it.
    pub position: usize,
}

impl Slots {
    /// `count` empty slots for texts of up to `context` tokens, or as many as the model's context has if that is fewer.
    ///
    /// # Errors
    /// If there are none, or the device runs out of memory.
    pub fn new(model: &dyn LanguageModel, count: usize, context: usize) -> Result<Slots> {
        let (context, room) = room(model, context);
        if count == 0 || context == 0 {
            return Err(Error::Invalid(format!("{count} slots of {context} tokens; expected at least one of each")));
        }
        let (config, device) = (model.config(), model.device());
        let cache = match config.kv_cache() {
            (0, _) => model.cache(count, 0)?,
            (layers, width) => {
                Cache::keys_and_values(layers, [count, room, width], model.head().operand_dtype(), &device)?
            }
        };
        let (positions, starts) = device_positions(&vec![None; count], &model.device())?;
        Ok(Slots { cache, context, positions, starts })
    }

    /// Number of slots.
    pub fn count(&self) -> usize {
        self.cache.sequences()
    }

    /// Most tokens of a text.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes of the caches of `count` slots, as [`Slots::new`] allocates them for a model that is moved to its device.
    pub fn size_bytes(model: &dyn LanguageModel, count: usize, context: usize) -> u64 {
        let (layers, width) = model.config().kv_cache();
        let (_, room) = room(model, context);
        let per_token = layers * width * model.head().operand_dtype().size_bytes();
        [count, room].iter().fold(per_token as u64, |bytes, n| bytes.saturating_mul(*n as u64))
    }

    /// The cache of slot `i` alone, to read a prompt with; of the text that was there, it keeps the first `tokens`
    /// tokens. A recurrent model keeps none.
    ///
    /// # Errors
    /// If there is no such slot, or the device runs out of memory.
    pub fn open(&self, model: &dyn LanguageModel, i: usize, tokens: usize) -> Result<Cache> {
        self.check(i)?;
        if self.cache.layers() == 0 { model.cache(1, 0) } else { Ok(self.cache.sequence(i, tokens)) }
    }

    /// Hands the cache of a prompt back to slot `i`, whose text then takes part in steps.
    ///
    /// # Errors
    /// If there is no such slot, or the device runs out of memory.
    pub fn close(&mut self, i: usize, cache: &Cache) -> Result<()> {
        self.check(i)?;
        if self.cache.layers() == 0 {
            self.cache = self.cache.with_rows(i, cache)?;
        }
        Ok(())
    }

    /// Computes the next token of each slot's text, and caches it -> the logits of the tokens after them (B, V), f32.
    /// The rows of slots without one are undefined.
    ///
    /// # Errors
    /// If that is not one for each slot, a position is outside the context, or the device reported an error.
    pub fn step(&mut self, model: &dyn LanguageModel, next: &[Option<Next>]) -> Result<Tensor> {
        let device = model.device();
        if next.len() != self.count() {
            return Err(Error::Invalid(format!("{} slots, but {} tokens", self.count(), next.len())));
        }
        if let Some(next) = next.iter().flatten().find(|next| next.position >= self.context) {
            return Err(Error::Invalid(format!("no position {} in a context of {}", next.position, self.context)));
        }
        let ids: Vec<u32> = next.iter().map(|next| next.map_or(0, |next| next.id)).collect();
        let ids = Tensor::from_u32(&ids, [next.len(), 1], &device)?;
        if self.cache.layers() == 0 {
            let before = self.cache.clone();
            let logits = model.next_token_logits(&ids, &mut self.cache)?;
            let advances: Vec<bool> = next.iter().map(Option::is_some).collect();
            self.cache.advance_only(&advances, &before)?;
            return Ok(logits);
        }
        if !device.is_gpu() {
            return self.step_each(model, next);
        }
        (self.positions, self.starts) = device_positions(next, &device)?;
        no_grad(|| {
            let h = model.hidden(&ids, Past::Slots(self), &Dropout::off())?; // (B, 1, C)
            let c = h.shape().last_dim();
            h.reshape([next.len(), c])?.linear_to_f32(model.head(), model.head_bias())
        })
    }

    /// [`Slots::step`] text by text.
    fn step_each(&self, model: &dyn LanguageModel, next: &[Option<Next>]) -> Result<Tensor> {
        let (vocabulary, device) = (model.head().shape().rows(), model.device());
        let mut logits = Vec::new();
        for (slot, next) in next.iter().enumerate() {
            let Some(Next { id, position }) = *next else {
                logits.resize(logits.len() + vocabulary, 0.0);
                continue;
            };
            let ids = Tensor::from_u32(&[id], [1, 1], &device)?;
            let mut cache = self.cache.sequence(slot, position);
            logits.extend(model.next_token_logits(&ids, &mut cache)?.to_f32()?);
        }
        Tensor::from_f32(&logits, [next.len(), vocabulary], &device)
    }

    fn check(&self, i: usize) -> Result<()> {
        if i >= self.count() {
            return Err(Error::Invalid(format!("there is no slot {i}: there are {}", self.count())));
        }
        Ok(())
    }

    pub(super) fn positions(&self) -> &Tensor {
        &self.positions
    }

    pub(super) fn layer(&self, i: usize) -> Result<KvView<'_>> {
        Ok(KvView { tokens: CachedTokens::Ragged(&self.starts), ..self.cache.layer(i)? })
    }
}

/// The tokens of a slot, and those that its cache has room for.
fn room(model: &dyn LanguageModel, context: usize) -> (usize, usize) {
    let context = context.min(model.config().context());
    (context, context.checked_next_multiple_of(ALIGNMENT).unwrap_or(context))
}

/// The positions (B, 1) of these tokens, and the cached tokens (B) of each slot.
fn device_positions(next: &[Option<Next>], device: &Device) -> Result<(Tensor, Tensor)> {
    let of = |idle: u32| -> Vec<u32> {
        next.iter().map(|next| next.map_or(idle, |next| u32::try_from(next.position).unwrap_or(idle))).collect()
    };
    let (positions, starts) = (of(0), of(u32::MAX));
    let positions = Tensor::from_u32(&positions, [next.len(), 1], device)?;
    Ok((positions, Tensor::from_u32(&starts, [next.len()], device)?))
}

/// The final hidden states of every token of ids (1, T), which follow those in the cache and are added to it: (T, C),
/// of the head's type.
///
/// # Errors
/// If the shapes or the cache do not fit, or all tokens together do not fit the context.
pub fn hidden_states(model: &dyn LanguageModel, ids: &Tensor, cache: &mut Cache) -> Result<Tensor> {
    no_grad(|| {
        let h = model.hidden(ids, Past::Cache(cache), &Dropout::off())?; // (1, T, C)
        cache.advance(ids.len());
        let c = h.shape().last_dim();
        h.reshape([ids.len(), c])
    })
}

/// The logits of final hidden states (T, C): (T, V), f32.
///
/// # Errors
/// If the shape does not fit the model, or the device runs out of memory.
pub fn logits_of_states(model: &dyn LanguageModel, states: &Tensor) -> Result<Tensor> {
    no_grad(|| states.linear_to_f32(model.head(), model.head_bias()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{ModelConfig, build, testing};

    const PROMPTS: [&[u32]; 3] = [&[7, 11, 7], &[1], &[49, 0, 5, 3, 2, 8]];

    fn configs() -> [ModelConfig; 5] {
        let gpt2 = ModelConfig { n_layer: 2, tie_embeddings: false, ..testing::small(50, 12, 2, 24) };
        let mut windowed = testing::small_llama("llama");
        windowed.llama.as_mut().unwrap().sliding_window = Some(3);
        let lstm = ModelConfig { kind: "lstm".parse().unwrap(), ..testing::small(50, 12, 2, 24) };
        [gpt2, testing::small_llama("llama"), testing::small_llama("qwen3"), windowed, lstm]
    }

    /// The logits of three steps after each of these prompts, which are read into slots and continued by their lengths.
    fn run(model: &dyn LanguageModel, prompts: &[Option<&[u32]>]) -> Vec<Vec<f32>> {
        let mut slots = Slots::new(model, prompts.len(), 12).unwrap();
        let mut lengths = vec![0; prompts.len()];
        for (i, prompt) in prompts.iter().enumerate().filter_map(|(i, prompt)| prompt.map(|prompt| (i, prompt))) {
            let mut cache = slots.open(model, i, 0).unwrap();
            let ids = Tensor::from_u32(prompt, [1, prompt.len()], &model.device()).unwrap();
            model.next_token_logits(&ids, &mut cache).unwrap();
            slots.close(i, &cache).unwrap();
            lengths[i] = prompt.len();
        }
        let mut logits = vec![vec![]; prompts.len()];
        for _ in 0..3 {
            let next: Vec<_> = lengths
                .iter()
                .map(|&length| (length > 0).then_some(Next { id: length as u32, position: length }))
                .collect();
            let step = slots.step(model, &next).unwrap().to_f32().unwrap();
            logits.iter_mut().zip(step.chunks(50)).for_each(|(all, row)| all.extend(row));
            lengths.iter_mut().filter(|length| **length > 0).for_each(|length| *length += 1);
        }
        logits
    }

    #[test]
    fn texts_of_different_lengths_have_the_logits_that_each_has_alone() {
        for device in Device::for_tests() {
            for config in configs() {
                let mut model = build(&config, 3).unwrap();
                model.to_device(&device).unwrap();
                let together = run(&*model, &PROMPTS.map(Some));
                for (i, prompt) in PROMPTS.into_iter().enumerate() {
                    let mut alone = [None; 3];
                    alone[i] = Some(prompt);
                    assert_eq!(run(&*model, &alone)[i], together[i], "{device}, {config:?}: to the bit");
                    let text: Vec<u32> =
                        prompt.iter().copied().chain((0..3).map(|n| (prompt.len() + n) as u32)).collect();
                    let ids = Tensor::from_u32(&text, [1, text.len()], &device).unwrap();
                    let whole = no_grad(|| model.logits(&ids)).unwrap().to_f32().unwrap();
                    for (got, want) in together[i].iter().zip(&whole[prompt.len() * 50..]) {
                        // Sums of a few dozen terms in another order.
                        assert!((got - want).abs() < 1e-5, "{device}, {config:?}: {got} {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_text_that_misses_a_step_goes_on_as_it_would_have() {
        for device in Device::for_tests() {
            for config in configs() {
                let mut model = build(&config, 3).unwrap();
                model.to_device(&device).unwrap();
                let mut slots = Slots::new(&*model, 2, 12).unwrap();
                for i in 0..2 {
                    let mut cache = slots.open(&*model, i, 0).unwrap();
                    let ids = Tensor::from_u32(&[7, 11, 7], [1, 3], &device).unwrap();
                    model.next_token_logits(&ids, &mut cache).unwrap();
                    slots.close(i, &cache).unwrap();
                }
                let mut step = |next: [Option<Next>; 2]| slots.step(&*model, &next).unwrap().to_f32().unwrap();
                let next = |position: usize| Some(Next { id: position as u32, position });
                step([next(3), next(3)]);
                step([next(4), None]);
                let logits = step([None, next(4)]);
                let last = step([next(5), next(5)]);
                assert_eq!(last[..50], last[50..], "{device}, {config:?}");
                assert_ne!(logits[50..], last[50..]);
            }
        }
    }

    #[test]
    fn a_slot_keeps_the_beginning_of_its_text() {
        let model = build(&testing::small_llama("qwen3"), 3).unwrap();
        let slots = Slots::new(&*model, 2, 12).unwrap();
        let logits = |ids: &[u32], kept: usize| {
            let mut cache = slots.open(&*model, 1, kept).unwrap();
            let ids = Tensor::from_u32(&ids[kept..], [1, ids.len() - kept], &Device::Cpu).unwrap();
            let last = model.next_token_logits(&ids, &mut cache).unwrap().to_f32().unwrap();
            (cache.tokens(), last)
        };
        let (_, first) = logits(&[1, 2, 3, 4], 0);
        let (tokens, again) = logits(&[1, 2, 3, 4], 3);
        assert_eq!(tokens, 4);
        assert!(first.iter().zip(&again).all(|(a, b)| (a - b).abs() < 1e-5));
        let mut cache = slots.open(&*model, 0, 0).unwrap();
        let ids = Tensor::from_u32(&[1, 2, 3, 4], [1, 4], &Device::Cpu).unwrap();
        let states = hidden_states(&*model, &ids, &mut cache).unwrap();
        let all = logits_of_states(&*model, &states).unwrap().to_f32().unwrap();
        assert!(first.iter().zip(&all[150..]).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}
