//! Draws a token from a model's logits.

use crate::config::GenerateConfig;
use crate::ops::random::Key;
use crate::{Error, Result};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// How a token is drawn. The parts are applied in their order here, as transformers does.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// The tokenizer's tokens. Ids from this on only fill up the model's vocabulary and are never drawn.
    pub tokens: usize,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides the logits above 0 of tokens that are in the text, and multiplies those below (Keskar et al. 2019); 1
    /// changes nothing.
    pub repetition_penalty: f64,
    /// Divides the logits; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Only the k likeliest tokens; 0 takes all.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability (Holtzman et al. 2020); 1 takes all.
    pub top_p: f64,
    /// Only tokens at least this part as likely as the likeliest (Nguyen et al. 2024); 0 takes all.
    pub min_p: f64,
    /// The same seed draws the same text on the same device.
    pub seed: u64,
}

impl Sampling {
    /// As `[generate]` says, from so many tokens.
    pub fn of(config: &GenerateConfig, tokens: usize) -> Sampling {
        let &GenerateConfig { temperature, top_k, top_p, min_p, repetition_penalty, seed, .. } = config;
        Sampling { tokens, logit_bias: Vec::new(), repetition_penalty, temperature, top_k, top_p, min_p, seed }
    }

    /// The likeliest of so many tokens.
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

/// Draws tokens, one after the other.
pub struct Sampler {
    sampling: Sampling,
    key: Key,
    drawn: u32,
}

impl Sampler {
    /// # Errors
    /// If there are no tokens, or a number lies outside its range.
    pub fn new(sampling: &Sampling) -> Result<Sampler> {
        let Sampling { tokens, temperature, top_p, min_p, repetition_penalty, .. } = *sampling;
        if tokens == 0 {
            return Err(Error::Invalid("there is no token to draw: the tokenizer has none".into()));
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
        if let Some((id, bias)) = sampling.logit_bias.iter().find(is_wrong) {
            return Err(Error::Invalid(format!(
                "logit bias {id}={bias}; expected a token below {tokens} and a number, or -inf to never draw it"
            )));
        }
        Ok(Sampler { sampling: sampling.clone(), key: Key::new(sampling.seed), drawn: 0 })
    }

    /// A token, given the unnormalized log-probability of each, and the tokens of the text so far.
    ///
    /// # Errors
    /// If a logit is NaN or infinity, which a model computes that is broken; or biases leave no token.
    pub fn draw(&mut self, logits: &[f32], text: &[u32]) -> Result<u32> {
        let (order, weights) = self.weights(logits, text)?;
        if self.sampling.temperature == 0.0 {
            return Ok(order[0]);
        }
        let uniform = (f64::from(self.key.bits(self.drawn)) + 0.5) / 4_294_967_296.0;
        self.drawn = self.drawn.wrapping_add(1);
        let mut left = uniform * weights.iter().sum::<f64>();
        for (weight, &id) in weights.iter().zip(&order) {
            left -= weight;
            if left <= 0.0 {
                return Ok(id);
            }
        }
        Ok(order[weights.len() - 1]) // rounding
    }

    /// The tokens that may be drawn, and of each a number in proportion to its probability. There may be more tokens
    /// than numbers: those are not drawn.
    fn weights(&self, logits: &[f32], text: &[u32]) -> Result<(Vec<u32>, Vec<f64>)> {
        if logits.iter().any(|l| l.is_nan() || *l == f32::INFINITY) {
            let text = "the model computes NaN or infinity: its weights are damaged, or training diverged";
            return Err(Error::Invalid(text.into()));
        }
        let logits = &*self.adjusted(logits, text);
        let tokens = self.sampling.tokens.min(logits.len());
        // Ascending, these are the tokens from the likeliest on, and equals in the order of their ids.
        let key = |id: u32| u64::from(!ordered(logits[id as usize])) << 32 | u64::from(id);
        let mut keys: Vec<u64> = (0..tokens as u32).map(key).collect();
        let likeliest = *keys.iter().min().expect("there are tokens") as u32;
        let largest = f64::from(logits[likeliest as usize]);
        if largest == f64::NEG_INFINITY {
            return Err(Error::Invalid("the logit biases leave no token to draw".into()));
        }
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        if temperature == 0.0 {
            return Ok((vec![likeliest], vec![1.0]));
        }
        let fewer = (1..keys.len()).contains(&top_k);
        if fewer {
            keys.select_nth_unstable(top_k - 1);
            keys.truncate(top_k);
        }
        if fewer || top_p < 1.0 || min_p > 0.0 {
            keys.sort_unstable();
        }
        let order: Vec<u32> = keys.into_iter().map(|key| key as u32).collect();
        let mut weights: Vec<f64> =
            order.iter().map(|&i| ((f64::from(logits[i as usize]) - largest) / temperature).exp()).collect();
        if top_p < 1.0 {
            let total: f64 = weights.iter().sum();
            let mut sum = 0.0;
            let kept = weights.iter().take_while(|&&w| {
                let before = sum;
                sum += w / total;
                before < top_p
            });
            let kept = kept.count();
            weights.truncate(kept);
        }
        if min_p > 0.0 {
            // The weight of the likeliest is 1.
            weights.truncate(weights.partition_point(|&weight| weight >= min_p));
        }
        Ok((order, weights))
    }

    /// The logits with biases, and with the penalty of the tokens in the text.
    fn adjusted<'a>(&self, logits: &'a [f32], text: &[u32]) -> Cow<'a, [f32]> {
        let Sampling { logit_bias, repetition_penalty, .. } = &self.sampling;
        let mut logits = Cow::Borrowed(logits);
        for &(id, bias) in logit_bias {
            if let Some(logit) = logits.to_mut().get_mut(id as usize) {
                *logit += bias;
            }
        }
        let penalty = *repetition_penalty as f32;
        if penalty != 1.0 {
            // Once each, however often it is there.
            let in_text: BTreeSet<u32> = text.iter().copied().collect();
            for id in in_text {
                if let Some(logit) = logits.to_mut().get_mut(id as usize) {
                    *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
                }
            }
        }
        logits
    }
}

/// The bits of a number, turned so that larger numbers have larger ones: the order of `f32::total_cmp`.
fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_sign_negative() { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, -1.0];

    fn counts(sampling: Sampling) -> [usize; 4] {
        let mut sampler = Sampler::new(&sampling).unwrap();
        let mut counts = [0; 4];
        for _ in 0..20_000 {
            counts[sampler.draw(&LOGITS, &[]).unwrap() as usize] += 1;
        }
        counts
    }

    fn plain() -> Sampling {
        Sampling { temperature: 1.0, seed: 5, ..Sampling::greedy(4) }
    }

    #[test]
    fn draws_tokens_as_often_as_their_probability() {
        let total: f64 = LOGITS.iter().map(|l| f64::from(*l).exp()).sum();
        for (count, logit) in counts(plain()).iter().zip(LOGITS) {
            let expected = f64::from(logit).exp() / total * 20_000.0;
            // Five standard deviations of a binomial count.
            assert!((*count as f64 - expected).abs() < 5.0 * expected.sqrt(), "{count} for {expected}");
        }
    }

    #[test]
    fn zero_temperature_takes_the_likeliest() {
        assert_eq!(counts(Sampling { temperature: 0.0, ..plain() }), [0, 20_000, 0, 0]);
    }

    #[test]
    fn the_order_is_that_of_a_sort_by_likelihood_and_id() {
        let logits = [0.5, -0.0, 3.0, 0.0, f32::NEG_INFINITY, 3.0, -2.0, f32::MAX, -f32::MAX, 1e-40];
        let mut sorted: Vec<u32> = (0..10).collect();
        sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        let mut keys: Vec<u32> = (0..10).collect();
        keys.sort_by_key(|&id| (!ordered(logits[id as usize]), id));
        assert_eq!(keys, sorted);
        // Of equals the first; never one that the k likeliest, or the likeliest that reach p, leave out.
        let logits = [1.0, 2.0, 2.0, 0.0, 2.0];
        let draws = |top_k, top_p, temperature| {
            let sampling = Sampling { temperature, top_k, top_p, seed: 9, ..Sampling::greedy(5) };
            let mut sampler = Sampler::new(&sampling).unwrap();
            let mut drawn: Vec<u32> = (0..2000).map(|_| sampler.draw(&logits, &[]).unwrap()).collect();
            drawn.sort_unstable();
            drawn.dedup();
            drawn
        };
        assert_eq!(draws(0, 1.0, 0.0), [1]);
        for (top_k, expected) in [(1, &[1][..]), (2, &[1, 2]), (3, &[1, 2, 4]), (4, &[0, 1, 2, 4])] {
            assert_eq!(draws(top_k, 1.0, 1.0), expected, "top {top_k}");
        }
        for top_k in [0, 5, 6] {
            assert_eq!(draws(top_k, 1.0, 1.0), [0, 1, 2, 3, 4], "top {top_k}");
        }
        assert_eq!(draws(4, 0.5, 1.0), [1, 2]); // 0.29 each, of four
    }

    #[test]
    fn what_fills_up_the_vocabulary_is_never_drawn() {
        let counts = counts(Sampling { tokens: 1, ..plain() });
        assert_eq!(counts, [20_000, 0, 0, 0]);
    }

    #[test]
    fn top_k_keeps_the_k_likeliest() {
        let counts = counts(Sampling { top_k: 2, ..plain() });
        assert!(counts[0] == 0 && counts[3] == 0 && counts[1] > 0 && counts[2] > 0, "{counts:?}");
    }

    #[test]
    fn top_p_keeps_the_fewest_that_reach_it() {
        // Probabilities: 0.087, 0.644, 0.237, 0.032.
        assert_eq!(counts(Sampling { top_p: 0.6, ..plain() }), [0, 20_000, 0, 0]);
        let counts = counts(Sampling { top_p: 0.7, ..plain() });
        assert!(counts[0] == 0 && counts[3] == 0 && counts[2] > 0, "{counts:?}");
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
            assert!(Sampler::new(&sampling).is_err(), "{sampling:?}");
        }
        assert!(Sampler::new(&plain()).unwrap().draw(&[0.0, f32::NAN], &[]).is_err());
    }

    #[test]
    fn min_p_keeps_what_is_that_part_as_likely_as_the_likeliest() {
        // e^-1 = 0.37, e^-2 = 0.14, e^-3 = 0.05 of it.
        let counts = counts(Sampling { min_p: 0.2, ..plain() });
        assert!(counts[0] == 0 && counts[3] == 0 && counts[2] > 0, "{counts:?}");
        let mut greedy = Sampler::new(&Sampling { min_p: 0.2, ..Sampling::greedy(4) }).unwrap();
        assert_eq!(greedy.draw(&LOGITS, &[]).unwrap(), 1);
    }

    #[test]
    fn biases_and_penalties_change_greedy_choices_too() {
        let draw = |sampling: &Sampling, text: &[u32]| Sampler::new(sampling).unwrap().draw(&LOGITS, text);
        let penalized = Sampling { repetition_penalty: 3.0, ..Sampling::greedy(4) };
        assert_eq!(draw(&penalized, &[]).unwrap(), 1);
        assert_eq!(draw(&penalized, &[1, 1, 9]).unwrap(), 2, "once, and a token beyond the vocabulary is passed over");
        let biased = |logit_bias| Sampling { logit_bias, ..Sampling::greedy(4) };
        assert_eq!(draw(&biased(vec![(3, 3.5)]), &[]).unwrap(), 3);
        let never = biased(vec![(1, f32::NEG_INFINITY)]);
        assert_eq!(draw(&never, &[]).unwrap(), 2);
        let none = biased((0..4).map(|id| (id, f32::NEG_INFINITY)).collect());
        assert!(draw(&none, &[]).unwrap_err().to_string().contains("leave no token"));
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
            let (order, weights) = Sampler::new(&sampling).unwrap().weights(&logits, &text).unwrap();
            let (mut got, total) = (vec![0.0; logits.len()], weights.iter().sum::<f64>());
            weights.iter().zip(order).for_each(|(weight, id)| got[id as usize] = weight / total);
            for (id, (got, want)) in got.iter().zip(numbers(&case["probabilities"])).enumerate() {
                // transformers computes in f32.
                assert!((got - want).abs() < 1e-6 && (*got > 0.0) == (want > 0.0), "{case}: token {id}: {got}");
            }
        }
    }
}
