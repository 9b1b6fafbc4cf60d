//! Sampling from logits: the user's settings, and their state on the device for a batch of texts
//! (`crates/tensor/src/ops/sample.rs`).

use super::Request;
use crate::config::GenerateConfig;
use crate::ops::random::Key;
use crate::ops::sample::{Draw, NO_TOKEN, NOT_FINITE};
use crate::{Device, Error, Result, Tensor};

/// Sampling settings. They are applied in this order, as in transformers.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Vocabulary size of the tokenizer. Higher ids are padding and are never sampled.
    pub tokens: usize,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides positive logits of tokens in the text, and multiplies negative ones (Keskar et al. 2019); 1: off.
    pub repetition_penalty: f64,
    /// Divides the logits; 0 selects the most likely token.
    pub temperature: f64,
    /// Only the k most likely tokens; 0: off.
    pub top_k: usize,
    /// Only the most likely tokens with this total probability (Holtzman et al. 2020); 1: off.
    pub top_p: f64,
    /// Only tokens with at least this fraction of the highest probability (Nguyen et al. 2024); 0: off.
    pub min_p: f64,
    /// Seed: the same seed gives the same text on the same device.
    pub seed: u64,
}

impl Sampling {
    /// The settings of `[generate]`, for a tokenizer with `tokens` tokens.
    pub fn of(config: &GenerateConfig, tokens: usize) -> Sampling {
        let &GenerateConfig { temperature, top_k, top_p, min_p, repetition_penalty, seed, .. } = config;
        Sampling { tokens, logit_bias: Vec::new(), repetition_penalty, temperature, top_k, top_p, min_p, seed }
    }

    /// Greedy decoding.
    pub fn greedy(tokens: usize) -> Sampling {
        Sampling {
            tokens,
            logit_bias: Vec::new(),
            repetition_penalty: 1.0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// # Errors
    /// If there are no tokens, or a value is out of range.
    pub fn check(&self) -> Result<()> {
        let Sampling { tokens, temperature, top_p, min_p, repetition_penalty, .. } = *self;
        if tokens == 0 {
            return Err(Error::Invalid("the tokenizer has no tokens".into()));
        }
        for (what, x, holds, expected) in [
            ("temperature", temperature, temperature >= 0.0 && temperature.is_finite(), "0 or more"),
            ("top-p", top_p, top_p > 0.0 && top_p <= 1.0, "more than 0 and at most 1"),
            ("min-p", min_p, (0.0..=1.0).contains(&min_p), "0 to 1"),
            (
                "repetition penalty",
                repetition_penalty,
                repetition_penalty > 0.0 && repetition_penalty.is_finite(),
                "more than 0 (1 changes nothing)",
            ),
        ] {
            if !holds {
                return Err(Error::Invalid(format!("{what} is {x}; expected {expected}")));
            }
        }
        let is_wrong = |&&(id, bias): &&(u32, f32)| id as usize >= tokens || bias.is_nan() || bias == f32::INFINITY;
        if let Some((id, bias)) = self.logit_bias.iter().find(is_wrong) {
            return Err(Error::Invalid(format!(
                "logit bias {id}={bias}; expected a token below {tokens} and a number, or -inf to exclude it"
            )));
        }
        Ok(())
    }

    /// As the kernel takes it.
    fn draw(&self) -> Draw {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Draw {
            tokens: count(self.tokens),
            // Below that a GPU may take it for 0 and divide by it.
            temperature: Some(self.temperature as f32).filter(|t| *t >= f32::MIN_POSITIVE).unwrap_or(0.0),
            top_k: if self.top_k == 0 { u32::MAX } else { count(self.top_k) },
            top_p: self.top_p as f32,
            min_p: self.min_p as f32,
            penalty: self.repetition_penalty as f32,
            key: Key::new(self.seed),
        }
    }

    /// The bias of each logit; `None` if there is none.
    fn bias(&self, vocabulary: usize) -> Option<Vec<f32>> {
        let mut bias = vec![0.0; vocabulary];
        for &(id, added) in &self.logit_bias {
            bias.get_mut(id as usize).into_iter().for_each(|bias| *bias += added);
        }
        (!self.logit_bias.is_empty()).then_some(bias)
    }

    /// Which tokens of a vocabulary are in a text; `None` if that does not count.
    fn seen(&self, text: &[u32], vocabulary: usize) -> Option<Vec<u32>> {
        if self.repetition_penalty == 1.0 {
            return None;
        }
        let mut seen = vec![0; vocabulary];
        for &id in text {
            seen[id as usize] = 1;
        }
        Some(seen)
    }
}

/// Draws the tokens of a batch of texts, one after the other, where the logits are.
pub(super) struct Sampler {
    settings: Tensor,
    /// (B, V), if any text has them.
    bias: Option<Tensor>,
    /// Which tokens are in the texts, (B, V), if that counts in any.
    seen: Option<Tensor>,
    /// The number of the next draw.
    number: u32,
}

impl Sampler {
    /// A sampler for these texts, with tokens below `vocabulary`. `number` is the index of its first draw.
    ///
    /// # Errors
    /// If a sampling value is out of range, or the device runs out of memory.
    pub fn new(requests: &[Request], vocabulary: usize, device: &Device, number: u32) -> Result<Sampler> {
        requests.iter().try_for_each(|request| request.sampling.check())?;
        let draws: Vec<Draw> = requests.iter().map(|request| request.sampling.draw()).collect();
        let shape = [requests.len(), vocabulary];
        let bias = rows(requests.iter().map(|request| request.sampling.bias(vocabulary)), vocabulary);
        let seen = rows(requests.iter().map(|request| request.sampling.seen(request.prompt, vocabulary)), vocabulary);
        Ok(Sampler {
            settings: Draw::to_tensor(&draws, device)?,
            bias: bias.map(|bias| Tensor::from_f32(&bias, shape, device)).transpose()?,
            seen: seen.map(|seen| Tensor::from_u32(&seen, shape, device)).transpose()?,
            number,
        })
    }

    /// Samples the next token of each text (B) from logits (B, V).
    ///
    /// # Errors
    /// If B is not the number of texts, or the device reported an error.
    pub fn draw(&mut self, logits: &Tensor) -> Result<Tensor> {
        let number = self.number;
        self.number = number.wrapping_add(1);
        logits.sample(&self.settings, self.bias.as_ref(), self.seen.as_ref(), number)
    }
}

/// The next draw of one text of a ragged batch.
#[derive(Clone, Copy)]
pub struct NextDraw<'a> {
    pub sampling: &'a Sampling,
    /// Tokens that were drawn before.
    pub number: u32,
    /// The text, whose tokens a repetition penalty counts.
    pub text: &'a [u32],
    /// Added to logits, beside [`Sampling::logit_bias`].
    pub bias: &'a [(u32, f32)],
}

/// Samples the next token of each text from logits (B, V), by its own settings and number of draws: the token that
/// [`generate_batch`](super::generate_batch) draws there. `None` for rows without a text.
///
/// # Errors
/// If a sampling value is out of range, a token is outside the vocabulary, or the device reported an error; and of each
/// text, if it has no next token.
pub fn draw_each(logits: &Tensor, texts: &[Option<NextDraw>]) -> Result<Vec<Option<Result<u32>>>> {
    let vocabulary = logits.shape().last_dim();
    texts.iter().flatten().try_for_each(|text| text.check(vocabulary))?;
    let idle = Sampling::greedy(vocabulary).draw();
    let draws: Vec<Draw> = texts.iter().map(|text| text.map_or(idle, NextDraw::draw)).collect();
    let settings = Draw::to_tensor(&draws, &logits.device())?;
    let bias = biases(texts, vocabulary);
    let seen =
        rows(texts.iter().map(|text| text.and_then(|text| text.sampling.seen(text.text, vocabulary))), vocabulary);
    let bias = bias.map(|bias| Tensor::from_f32(&bias, logits.shape().clone(), &logits.device())).transpose()?;
    let seen = seen.map(|seen| Tensor::from_u32(&seen, logits.shape().clone(), &logits.device())).transpose()?;
    let ids = logits.sample(&settings, bias.as_ref(), seen.as_ref(), 0)?.to_u32()?;
    Ok(ids.into_iter().zip(texts).map(|(id, text)| text.map(|_| drawn(id))).collect())
}

impl NextDraw<'_> {
    fn check(&self, vocabulary: usize) -> Result<()> {
        self.sampling.check()?;
        let ids = self.text.iter().chain(self.bias.iter().map(|(id, _)| id));
        match ids.copied().find(|id| *id as usize >= vocabulary) {
            Some(id) => Err(Error::Invalid(format!("token {id} is outside the vocabulary of {vocabulary}"))),
            None => Ok(()),
        }
    }

    fn draw(self) -> Draw {
        let draw = self.sampling.draw();
        Draw { key: draw.key.at(self.number), ..draw }
    }
}

/// The biases of all logits (B, V), if a text has any. Others are -0, which changes no number, so that a text without
/// biases draws the same token beside one with.
fn biases(texts: &[Option<NextDraw>], vocabulary: usize) -> Option<Vec<f32>> {
    let of_text = |text: &NextDraw| text.sampling.logit_bias.len() + text.bias.len();
    if texts.iter().flatten().all(|text| of_text(text) == 0) {
        return None;
    }
    let mut all = vec![-0.0; texts.len() * vocabulary];
    for (text, row) in texts.iter().zip(all.chunks_mut(vocabulary)) {
        for (id, bias) in text.iter().flat_map(|text| text.sampling.logit_bias.iter().chain(text.bias)) {
            row.get_mut(*id as usize).into_iter().for_each(|sum| *sum += bias);
        }
    }
    Some(all)
}

/// Rows of so many numbers, one after the other; those that are missing are zeros, and if all are there is nothing.
fn rows<T: Default + Clone>(rows: impl Iterator<Item = Option<Vec<T>>>, length: usize) -> Option<Vec<T>> {
    let rows: Vec<_> = rows.collect();
    let filled = |row: Option<Vec<T>>| row.unwrap_or_else(|| vec![T::default(); length]);
    rows.iter().any(Option::is_some).then(|| rows.into_iter().flat_map(filled).collect())
}

/// The token that was drawn.
///
/// # Errors
/// If none could be, why.
pub(super) fn drawn(id: u32) -> Result<u32> {
    match id {
        NOT_FINITE => {
            let text = "the model computes NaN or infinity: its weights are damaged, or training diverged";
            Err(Error::Invalid(text.into()))
        }
        NO_TOKEN => Err(Error::Invalid("the logit biases exclude every token".into())),
        id => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, -1.0];

    fn plain() -> Sampling {
        Sampling { temperature: 1.0, seed: 5, ..Sampling::greedy(4) }
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        for sampling in [
            Sampling { tokens: 0, ..plain() },
            Sampling { temperature: -1.0, ..plain() },
            Sampling { temperature: f64::NAN, ..plain() },
            Sampling { top_p: 0.0, ..plain() },
            Sampling { top_p: 1.5, ..plain() },
            Sampling { min_p: -0.1, ..plain() },
            Sampling { min_p: 1.1, ..plain() },
            Sampling { repetition_penalty: 0.0, ..plain() },
            Sampling { repetition_penalty: f64::INFINITY, ..plain() },
            Sampling { logit_bias: vec![(4, 1.0)], ..plain() },
            Sampling { logit_bias: vec![(0, f32::NAN)], ..plain() },
        ] {
            assert!(sampling.check().is_err(), "{sampling:?}");
        }
    }

    #[test]
    fn biases_and_penalties_change_greedy_choices_of_their_own_text_alone() {
        let biased = |logit_bias| Sampling { logit_bias, ..Sampling::greedy(4) };
        let penalized = Sampling { repetition_penalty: 3.0, ..Sampling::greedy(4) };
        let texts = [
            (Sampling::greedy(4), &[1][..], [1, 1, 1]),
            // 2/3 is less than 1; then 1/3 is.
            (penalized.clone(), &[1, 1], [2, 1, 1]),
            (penalized, &[], [1, 2, 1]),
            (biased(vec![(3, 3.5)]), &[], [3, 3, 3]),
            (biased(vec![(1, f32::NEG_INFINITY)]), &[], [2, 2, 2]),
            (biased((0..4).map(|id| (id, f32::NEG_INFINITY)).collect()), &[], [NO_TOKEN; 3]),
        ];
        for device in Device::for_tests() {
            let requests = texts.each_ref().map(|(sampling, prompt, _)| Request { prompt, sampling });
            let mut sampler = Sampler::new(&requests, 4, &device, 0).unwrap();
            let logits = Tensor::from_f32(&LOGITS.repeat(texts.len()), [texts.len(), 4], &device).unwrap();
            for turn in 0..3 {
                let ids = sampler.draw(&logits).unwrap().to_u32().unwrap();
                assert_eq!(ids, texts.each_ref().map(|(_, _, expected)| expected[turn]), "{device}: {turn}");
            }
        }
        assert!(drawn(NO_TOKEN).unwrap_err().to_string().contains("exclude every token"));
    }

    #[test]
    fn a_text_of_a_ragged_batch_draws_what_it_draws_alone() {
        let biased = Sampling { logit_bias: vec![(0, 1.5)], ..plain() };
        let penalized = Sampling { repetition_penalty: 2.0, ..plain() };
        for device in Device::for_tests() {
            for (sampling, text) in [(&biased, &[0][..]), (&penalized, &[1, 1]), (&plain(), &[])] {
                let alone = Tensor::from_f32(&LOGITS, [1, 4], &device).unwrap();
                let mut sampler = Sampler::new(&[Request { prompt: text, sampling }], 4, &device, 0).unwrap();
                let logits = Tensor::from_f32(&LOGITS.repeat(3), [3, 4], &device).unwrap();
                let mut text = text.to_vec();
                for number in 0..20 {
                    let expected = sampler.draw(&alone).unwrap().to_u32().unwrap()[0];
                    let this = NextDraw { sampling, number, text: &text, bias: &[] };
                    let other = NextDraw { sampling: &biased, number: 3, text: &[2], bias: &[(1, -1.0)] };
                    let drawn = draw_each(&logits, &[Some(other), None, Some(this)]).unwrap();
                    assert!(drawn[1].is_none());
                    assert_eq!(*drawn[2].as_ref().unwrap().as_ref().unwrap(), expected, "{device}: {number}");
                    text.push(expected);
                }
            }
        }
    }

    /// `scripts/make_sampling_goldens.py`: what transformers makes of logits.
    #[test]
    fn probabilities_are_those_of_transformers() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/goldens/sampling.json")).unwrap();
        let numbers = |value: &serde_json::Value| -> Vec<f64> { serde_json::from_value(value.clone()).unwrap() };
        let logits: Vec<f32> = numbers(&golden["logits"]).into_iter().map(|logit| logit as f32).collect();
        let text: Vec<u32> = serde_json::from_value(golden["text"].clone()).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let number = |name: &str, default: f64| case["settings"][name].as_f64().unwrap_or(default);
            let bias = |pair: &serde_json::Value| (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap() as f32);
            let sampling = Sampling {
                logit_bias: case["settings"]["logit_bias"].as_array().into_iter().flatten().map(bias).collect(),
                repetition_penalty: number("repetition_penalty", 1.0),
                temperature: number("temperature", 1.0),
                top_k: number("top_k", 0.0) as usize,
                top_p: number("top_p", 1.0),
                min_p: number("min_p", 0.0),
                ..Sampling::greedy(logits.len())
            };
            let (bias, seen) = (sampling.bias(logits.len()), sampling.seen(&text, logits.len()));
            let weights = sampling.draw().weights(&logits, bias.as_deref(), seen.as_deref()).unwrap();
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (id, (weight, want)) in weights.iter().zip(numbers(&case["probabilities"])).enumerate() {
                // Both compute in f32.
                let got = f64::from(*weight) / total;
                assert!((got - want).abs() < 1e-6 && (got > 0.0) == (want > 0.0), "{case}: token {id}: {got}");
            }
        }
    }
}
