//! Samples the next token of each text on the device of the logits. Shapes: logits (B, V) of f32 -> ids (B) of u32.
//!
//! Applied to the logits l of a text, in the order of transformers' processors:
//!
//! ```text
//! l_i = l_i + bias_i
//! l_i = l_i / penalty if l_i > 0, else l_i penalty, for tokens i that are in the text   (Keskar et al. 2019)
//! only the top_k largest are left
//! w_i = exp((l_i - max l) / temperature)
//! only the fewest of the largest that together reach top_p of the sum of w              (Holtzman et al. 2020)
//! only those with w_i >= min_p                                                          (Nguyen et al. 2024)
//! id = the first i with w_0 + .. + w_i > u (w_0 + w_1 + ..), u uniform in (0, 1)
//! ```
//! Temperature 0 selects the largest logit. Ties go to the smaller id. u depends on the text's key and the draw's
//! index, so it is the same on every device; ids differ only if u is within the rounding error of a sum.

use super::random::Key;
use super::*;
use crate::Device;
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::profile::MemoryKind;
use crate::shader;
use crate::tensor::run_into;

/// The id returned for a row with NaN or infinite logits.
pub const NOT_FINITE: u32 = u32::MAX;
/// The id returned for a row whose biases exclude every token.
pub const NO_TOKEN: u32 = u32::MAX - 1;

/// Sampling settings of one text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Number of valid ids; padding of the vocabulary beyond them is never drawn.
    pub tokens: u32,
    pub temperature: f32,
    /// At least 1.
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub penalty: f32,
    /// The stream of its random numbers.
    pub key: Key,
}

impl Draw {
    /// u32 words per row of settings.
    pub const WORDS: usize = 8;

    fn words(&self) -> [u32; Draw::WORDS] {
        let [temperature, top_p, min_p, penalty] =
            [self.temperature, self.top_p, self.min_p, self.penalty].map(f32::to_bits);
        [self.tokens, self.top_k, temperature, top_p, min_p, penalty, self.key.words[0], self.key.words[1]]
    }

    fn of_words(words: &[u32]) -> Draw {
        let float = |i: usize| f32::from_bits(words[i]);
        let key = Key { words: [words[6], words[7]], slice_start: 0 };
        Draw {
            tokens: words[0],
            top_k: words[1],
            temperature: float(2),
            top_p: float(3),
            min_p: float(4),
            penalty: float(5),
            key,
        }
    }

    /// The settings of texts, (B, 8) of u32, for [`Tensor::sample`].
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn to_tensor(draws: &[Draw], device: &Device) -> Result<Tensor> {
        let words: Vec<u32> = draws.iter().flat_map(Draw::words).collect();
        Tensor::from_u32(&words, [draws.len(), Draw::WORDS], device)
    }

    /// Unnormalized probability of each token (at temperature 0, of the largest alone), or the id that reports why
    /// there are none. `seen` is nonzero for tokens in the text.
    pub fn weights(
        &self,
        logits: &[f32],
        bias: Option<&[f32]>,
        seen: Option<&[u32]>,
    ) -> std::result::Result<Vec<f32>, u32> {
        let adjusted = |(i, &logit): (usize, &f32)| {
            let logit = logit + bias.map_or(0.0, |bias| bias[i]);
            match seen {
                Some(seen) if seen[i] != 0 && logit > 0.0 => logit / self.penalty,
                Some(seen) if seen[i] != 0 => logit * self.penalty,
                _ => logit,
            }
        };
        let mut logits: Vec<f32> = logits.iter().enumerate().map(adjusted).collect();
        if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Err(NOT_FINITE);
        }
        logits.truncate(self.tokens as usize);
        // Ascending, these are the tokens from the likeliest on.
        let rank = |id: usize| u64::from(!ordered(logits[id])) << 32 | id as u64;
        let mut ranks: Vec<u64> = (0..logits.len()).map(rank).collect();
        let likeliest = ranks.iter().min().map_or(0, |&rank| rank as u32 as usize);
        let mut weights = vec![0.0; logits.len()];
        match logits.get(likeliest) {
            None | Some(&f32::NEG_INFINITY) => return Err(NO_TOKEN),
            Some(_) if self.temperature == 0.0 => {
                weights[likeliest] = 1.0;
                return Ok(weights);
            }
            _ => {}
        }
        let top_k = self.top_k.max(1) as usize;
        if top_k < ranks.len() {
            ranks.select_nth_unstable(top_k - 1);
            ranks.truncate(top_k);
        }
        for &rank in &ranks {
            let id = rank as u32 as usize;
            weights[id] = ((logits[id] - logits[likeliest]) / self.temperature).exp();
        }
        if self.top_p < 1.0 {
            ranks.sort_unstable();
            keep_top_p(self.top_p, &ranks, &mut weights);
        }
        for weight in &mut weights {
            if *weight < self.min_p {
                *weight = 0.0;
            }
        }
        Ok(weights)
    }

    fn draw(&self, logits: &[f32], bias: Option<&[f32]>, seen: Option<&[u32]>, number: u32) -> u32 {
        let weights = match self.weights(logits, bias, seen) {
            Ok(weights) => weights,
            Err(reason) => return reason,
        };
        let uniform = (f64::from(self.key.bits(number) >> 9) + 0.5) / 8_388_608.0;
        let mut left = uniform * weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
        let passes = |weight: &f32| {
            left -= f64::from(*weight);
            left < 0.0
        };
        let last = || weights.iter().rposition(|weight| *weight > 0.0); // rounding
        weights.iter().position(passes).or_else(last).map_or(NO_TOKEN, |id| id as u32)
    }
}

/// Sets to 0 all weights but those of the first tokens, by `ranks`, that have `top_p` of the sum together.
fn keep_top_p(top_p: f32, ranks: &[u64], weights: &mut [f32]) {
    let weight = |rank: &u64| f64::from(weights[*rank as u32 as usize]);
    let goal = f64::from(top_p) * ranks.iter().map(weight).sum::<f64>();
    let mut sum = 0.0;
    let kept = ranks.iter().take_while(|rank| {
        let before = sum;
        sum += weight(rank);
        before < goal
    });
    for &rank in &ranks[kept.count()..] {
        weights[rank as u32 as usize] = 0.0;
    }
}

/// Bits that order like the number (`f32::total_cmp`).
fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_sign_negative() { !bits } else { bits | 1 << 31 }
}

/// ids (B), and with a penalty the tokens in the texts (B, V), updated by the drawn token. Inputs: logits (B, V),
/// settings (B, 8), and optional biases (B, V).
struct Sample {
    number: u32,
    has_bias: bool,
    seen: Option<Spec>,
}

impl Kernel for Sample {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let [logits, settings, bias @ ..] = inputs else { unreachable!("it has two inputs at least") };
        expect_f32(self.name(), &[logits])?;
        expect_f32(self.name(), bias)?;
        expect_dtype(self.name(), DType::U32, &[settings])?;
        let [rows, vocabulary] = logits.shape[..] else {
            return Err(shape_error(self.name(), "logits (B, V)", logits));
        };
        if settings.shape[..] != [rows, Draw::WORDS] {
            return Err(shape_error(self.name(), format!("settings ({rows}, {})", Draw::WORDS), settings));
        }
        if let Some(other) = bias.iter().copied().chain(&self.seen).find(|other| other.shape != logits.shape) {
            return Err(shape_error(self.name(), format!("a number for each logit ({rows}, {vocabulary})"), other));
        }
        let ids = Spec::new([rows], DType::U32);
        Ok([ids].into_iter().chain(self.seen.clone()).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(8 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (logits, settings) = (inputs[0].f32(), inputs[1].u32());
        let bias = inputs.get(2).map(View::f32);
        let vocabulary = inputs[0].spec.shape.last_dim();
        let (ids, seen) = outputs.split_at_mut(1);
        let mut seen = seen.first_mut().map(ViewMut::u32);
        for (row, (id, settings)) in ids[0].u32().iter_mut().zip(settings.chunks(Draw::WORDS)).enumerate() {
            let own = row * vocabulary..(row + 1) * vocabulary;
            let bias = bias.map(|bias| &bias[own.clone()]);
            let seen = seen.as_mut().map(|seen| &mut seen[own.clone()]);
            *id = Draw::of_words(settings).draw(&logits[own], bias, seen.as_deref(), self.number);
            if let Some(place) = seen.and_then(|seen| seen.get_mut(*id as usize)) {
                *place = 1;
            }
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        use Operand::{Input, Output, Scratch};
        let [rows, vocabulary] = inputs[0].shape[..] else { unreachable!("output_specs has checked it") };
        let mut buffers = vec![
            buffer("logits", "f32", Input(0)),
            buffer("settings", "u32", Input(1)),
            buffer("ids", "u32", Output(0)),
            buffer("ranks", "u32", Scratch(0)),
        ];
        if self.has_bias {
            buffers.push(buffer("bias", "f32", Input(2)));
        }
        if self.seen.is_some() {
            buffers.push(buffer("seen", "u32", Output(1)));
        }
        // One workgroup has a text to itself: of a large vocabulary as many threads as there may be.
        let is_large = vocabulary > 1 << 12 && limits.workgroup_threads >= 1024;
        let threads: usize = if is_large { 1024 } else { 256 };
        let launch = Launch {
            shader: shader!(sample),
            values: vec![
                ("threads", threads.into()),
                ("has_bias", self.has_bias.into()),
                ("has_seen", self.seen.is_some().into()),
            ],
            buffers,
            params: vec![param("vocabulary", vocabulary), param("number", self.number)],
            workgroups: rows,
        };
        Plan { scratch: vec![4 * rows * vocabulary], launches: vec![launch] }
    }
}

impl Tensor {
    /// Samples the next token of each text (B), u32, from logits (B, V) with the settings of [`Draw::to_tensor`];
    /// [`NOT_FINITE`] or [`NO_TOKEN`] where that is impossible. `bias` (B, V) is added to the logits. `seen` (B, V),
    /// u32, is nonzero for tokens in the text, and is updated with the drawn token; without it, there is no repetition
    /// penalty. `number` is the index of the draw, which selects its random numbers.
    ///
    /// # Errors
    /// If the shapes or types do not fit.
    pub fn sample(
        &self,
        settings: &Tensor,
        bias: Option<&Tensor>,
        seen: Option<&Tensor>,
        number: u32,
    ) -> Result<Tensor> {
        if let Some(seen) = seen {
            expect_dtype("sample", DType::U32, &[seen.spec()])?;
        }
        let op = Sample { number, has_bias: bias.is_some(), seen: seen.map(|seen| seen.spec().clone()) };
        let inputs: Vec<&Tensor> = [self, settings].into_iter().chain(bias).collect();
        let specs: Vec<&Spec> = inputs.iter().map(|t| t.spec()).collect();
        let ids = op.output_specs(&specs)?.remove(0);
        let ids = Tensor::empty(ids, &self.device(), MemoryKind::Activations)?;
        run_into(&op, &inputs, &[&ids].into_iter().chain(seen).collect::<Vec<_>>())?;
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(tokens: u32) -> Draw {
        let key = Key::new(5);
        Draw { tokens, temperature: 1.0, top_k: u32::MAX, top_p: 1.0, min_p: 0.0, penalty: 1.0, key }
    }

    fn sampled(draws: &[Draw], logits: &[f32], numbers: u32, device: &Device) -> Vec<Vec<u32>> {
        let logits = Tensor::from_f32(logits, [draws.len(), logits.len() / draws.len()], device).unwrap();
        let settings = Draw::to_tensor(draws, device).unwrap();
        let draw = |number| logits.sample(&settings, None, None, number).unwrap().to_u32().unwrap();
        (0..numbers).map(draw).collect()
    }

    /// How often each token is drawn, 20 times for each of so many texts.
    fn counts(draw: Draw, logits: &[f32], texts: u64, device: &Device) -> Vec<usize> {
        let draws: Vec<Draw> = (0..texts).map(|i| Draw { key: Key::new(i), ..draw }).collect();
        let mut counts = vec![0; logits.len()];
        for id in sampled(&draws, &logits.repeat(draws.len()), 20, device).concat() {
            counts[id as usize] += 1;
        }
        counts
    }

    #[test]
    fn tokens_are_drawn_as_often_as_their_probability() {
        let logits = [0.0, 2.0, 1.0, -1.0];
        let weights = logits.map(|logit: f32| f64::from(logit).exp());
        for device in Device::for_tests() {
            let all = counts(plain(4), &logits, 250, &device);
            for (count, weight) in all.iter().zip(weights) {
                let expected = weight / weights.iter().sum::<f64>() * 5000.0;
                // Five standard deviations of a binomial count.
                assert!((*count as f64 - expected).abs() < 5.0 * expected.sqrt(), "{device}: {all:?}");
            }
        }
    }

    #[test]
    #[ignore = "slow: scripts/test.sh --full"]
    fn only_those_are_drawn_that_are_kept() {
        let logits = [0.0, 2.0, 1.0, -1.0]; // probabilities: 0.087, 0.644, 0.237, 0.032
        let equal = [1.0, 2.0, 2.0, 0.0, 2.0];
        let p = plain(4);
        for device in Device::for_tests() {
            let drawn = |draw: Draw, logits: &[f32]| -> Vec<usize> {
                let counts = counts(draw, logits, 15, &device);
                (0..counts.len()).filter(|&id| counts[id] > 0).collect()
            };
            assert_eq!(drawn(Draw { temperature: 0.0, ..p }, &logits), [1], "{device}");
            assert_eq!(drawn(Draw { top_k: 2, ..p }, &logits), [1, 2], "{device}");
            assert_eq!(drawn(Draw { top_p: 0.6, ..p }, &logits), [1], "{device}");
            assert_eq!(drawn(Draw { top_p: 0.7, ..p }, &logits), [1, 2], "{device}");
            // e^-1 = 0.37, e^-2 = 0.14, e^-3 = 0.05 of the likeliest.
            assert_eq!(drawn(Draw { min_p: 0.2, ..p }, &logits), [1, 2], "{device}");
            // What fills up the vocabulary.
            assert_eq!(drawn(Draw { tokens: 1, ..p }, &logits), [0], "{device}");
            let p = plain(5);
            assert_eq!(drawn(Draw { temperature: 0.0, ..p }, &equal), [1], "{device}");
            for (top_k, expected) in [(1, &[1][..]), (2, &[1, 2]), (3, &[1, 2, 4]), (4, &[0, 1, 2, 4])] {
                assert_eq!(drawn(Draw { top_k, ..p }, &equal), expected, "{device}: top {top_k}");
            }
            for top_k in [5, 6, u32::MAX] {
                assert_eq!(drawn(Draw { top_k, ..p }, &equal), [0, 1, 2, 3, 4], "{device}: top {top_k}");
            }
            assert_eq!(drawn(Draw { top_k: 4, top_p: 0.5, ..p }, &equal), [1, 2], "{device}"); // 0.29 each, of four
        }
    }

    #[test]
    #[ignore = "slow: scripts/test.sh --full"]
    fn ids_are_the_same_on_every_device() {
        let of_all = |d: Draw| {
            [
                d,
                Draw { temperature: 0.7, top_k: 3, ..d },
                Draw { temperature: 1.8, top_p: 0.9, ..d },
                Draw { min_p: 0.1, ..d },
                Draw { top_k: 40, top_p: 0.8, min_p: 0.05, ..d },
                Draw { temperature: 0.0, top_k: 2, ..d },
                Draw { top_k: 1, top_p: 0.01, ..d },
                Draw { temperature: 30.0, top_k: 700, top_p: 0.999, penalty: 1.5, ..d },
            ]
        };
        for vocabulary in [1, 2, 31, 257, 3001_usize] {
            let draws = of_all(plain(vocabulary as u32 - u32::from(vocabulary > 2)));
            // Many equals among them, and extremes.
            let value = |i: usize| match Key::new(7).bits(i as u32) % 500 {
                0 => f32::NEG_INFINITY,
                1 => -0.0,
                2 => -60_000.0,
                n => (n as f32 - 250.0) / if i.is_multiple_of(2) { 25.0 } else { 40.0 },
            };
            let count = draws.len() * vocabulary;
            let logits: Vec<f32> = (0..count).map(value).collect();
            let bias: Vec<f32> = (0..count).map(|i| if i % 11 == 3 { f32::NEG_INFINITY } else { 0.25 }).collect();
            let seen: Vec<u32> = (0..count).map(|i| u32::from(i % 3 == 0)).collect();
            let texts: Vec<_> = Device::for_tests()
                .into_iter()
                .map(|device| {
                    let shape = [draws.len(), vocabulary];
                    let logits = Tensor::from_f32(&logits, shape, &device).unwrap();
                    let bias = Tensor::from_f32(&bias, shape, &device).unwrap();
                    let seen = Tensor::from_u32(&seen, shape, &device).unwrap();
                    let settings = Draw::to_tensor(&draws, &device).unwrap();
                    let ids = |number: u32| {
                        let (bias, seen) = (number % 2 == 1).then_some((&bias, &seen)).unzip();
                        logits.sample(&settings, bias, seen, number).unwrap().to_u32().unwrap()
                    };
                    ((0..60).map(ids).collect::<Vec<_>>(), seen.to_u32().unwrap(), device)
                })
                .collect();
            for (ids, seen, device) in &texts[1..] {
                assert_eq!((ids, seen), (&texts[0].0, &texts[0].1), "{device}: {vocabulary} tokens");
            }
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_told() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for device in Device::for_tests() {
            for temperature in [0.0, 1.0] {
                let draws = [Draw { temperature, ..plain(2) }; 5];
                // Beyond the tokens that may be drawn too: the model is broken.
                let rows = [[1.0, 0.0, 0.0], [nan, 0.0, 0.0], [0.0, 0.0, -nan], [0.0, inf, 0.0], [-inf, -inf, 9.0]];
                let ids = sampled(&draws, &rows.concat(), 1, &device).remove(0);
                assert!(ids[0] < 2, "{device}");
                assert_eq!(ids[1..], [NOT_FINITE, NOT_FINITE, NOT_FINITE, NO_TOKEN], "{device}");
            }
        }
    }

    #[test]
    fn the_order_of_ranks_is_that_of_numbers() {
        let values = [f32::NEG_INFINITY, -f32::MAX, -2.0, -1e-40, -0.0, 0.0, 1e-40, 0.5, 3.0, f32::MAX, f32::INFINITY];
        assert!(values.is_sorted_by(|a, b| ordered(*a) < ordered(*b)));
    }
}
