//! Draws a token from a model's logits.

use crate::ops::random::Key;
use crate::{Error, Result};

/// How a token is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// The tokenizer's tokens. Ids from this on only fill up the model's vocabulary and are never drawn.
    pub tokens: usize,
    /// Divides the logits; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Only the k likeliest tokens; 0 takes all.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability (Holtzman et al. 2020); 1 takes all.
    pub top_p: f64,
    /// The same seed draws the same text on the same device.
    pub seed: u64,
}

/// Draws tokens, one after the other.
pub struct Sampler {
    sampling: Sampling,
    key: Key,
    drawn: u32,
}

impl Sampler {
    /// # Errors
    /// If there are no tokens, the temperature is negative or top-p lies outside (0, 1].
    pub fn new(sampling: &Sampling) -> Result<Sampler> {
        let Sampling { tokens, temperature, top_p, .. } = *sampling;
        if tokens == 0 {
            return Err(Error::Invalid("there is no token to draw: the tokenizer has none".into()));
        }
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Error::Invalid(format!("temperature is {temperature}; expected 0 or more")));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::Invalid(format!("top-p is {top_p}; expected more than 0 and at most 1")));
        }
        Ok(Sampler { sampling: sampling.clone(), key: Key::new(sampling.seed), drawn: 0 })
    }

    /// A token, given the unnormalized log-probability of each.
    ///
    /// # Errors
    /// If a logit is NaN or infinity: the model is broken.
    pub fn draw(&mut self, logits: &[f32]) -> Result<u32> {
        if logits.iter().any(|l| l.is_nan() || *l == f32::INFINITY) {
            let text = "the model computes NaN or infinity: its weights are damaged, or training diverged";
            return Err(Error::Invalid(text.into()));
        }
        let tokens = self.sampling.tokens.min(logits.len());
        // Ascending, these are the tokens from the likeliest on, and equals in the order of their ids.
        let key = |id: u32| u64::from(!ordered(logits[id as usize])) << 32 | u64::from(id);
        let mut keys: Vec<u64> = (0..tokens as u32).map(key).collect();
        let likeliest = *keys.iter().min().expect("there are tokens") as u32;
        let Sampling { temperature, top_k, top_p, .. } = self.sampling;
        if temperature == 0.0 {
            return Ok(likeliest);
        }
        let fewer = (1..keys.len()).contains(&top_k);
        if fewer {
            keys.select_nth_unstable(top_k - 1);
            keys.truncate(top_k);
        }
        if fewer || top_p < 1.0 {
            keys.sort_unstable();
        }
        let order: Vec<u32> = keys.into_iter().map(|key| key as u32).collect();
        let largest = f64::from(logits[likeliest as usize]);
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
            counts[sampler.draw(&LOGITS).unwrap() as usize] += 1;
        }
        counts
    }

    fn plain() -> Sampling {
        Sampling { tokens: 4, temperature: 1.0, top_k: 0, top_p: 1.0, seed: 5 }
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
            let sampling = Sampling { tokens: 5, temperature, top_k, top_p, seed: 9 };
            let mut sampler = Sampler::new(&sampling).unwrap();
            let mut drawn: Vec<u32> = (0..2000).map(|_| sampler.draw(&logits).unwrap()).collect();
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
        ] {
            assert!(Sampler::new(&sampling).is_err(), "{sampling:?}");
        }
        assert!(Sampler::new(&plain()).unwrap().draw(&[0.0, f32::NAN]).is_err());
    }
}
