//! Preference losses. π is the summed log-probability of an answer's n tokens, ρ that of a frozen reference model; c is
//! a chosen answer, r a rejected one:
//!
//! ```text
//! DPO     -(1 - e) log σ(z) - e log σ(-z)                      z = β ((πc - ρc) - (πr - ρr))
//! IPO     ((πc - ρc) / nc - (πr - ρr) / nr - 1 / (2 β))²
//! SimPO   -(1 - e) log σ(z) - e log σ(-z)                      z = β (πc / nc - πr / nr) - γ
//! ORPO    -log p(c) - β log σ(log odds(c) - log odds(r))       odds = p / (1 - p), p = exp(π / n)
//! KTO     w (1 - σ(±β (π - ρ - KL)))                           + for a desirable answer, - for another
//! ```
//! (Rafailov et al. 2023 with the label smoothing e of Mitchell 2023; Azar et al. 2024; Meng et al. 2024; Hong et al.
//! 2024; Ethayarajh et al. 2024.) -log p(c) is the mean over the tokens of all chosen answers of a step, and added to
//! the other losses with `preference.sft_weight`; all else is the mean over pairs, or over answers. KTO's KL is the
//! mean of π - ρ over prompts with the answer to another one, or 0 if that is less: of a whole step, no gradients.
//!
//! These are TRL's formulas, except that its ORPO learns the prompt's tokens too, its DPO has no e, and its KL is that
//! of a micro-batch. Rewards are β (π - ρ), and β π / n without a reference.

use crate::config::{Config, Objective};
use crate::data::{Answer, IGNORE_INDEX, Label};
use crate::models::{Documents, LanguageModel};
use crate::nn::Dropout;
use crate::tensor::{no_grad, without_adapters};
use crate::{Device, Result, Tensor};
use std::ops::Range;

/// A run's objective, if it is one of preferences.
pub(in crate::train) struct Preference {
    objective: Objective,
    beta: f32,
    gamma: f32,
    label_smoothing: f32,
    sft_weight: f32,
    /// Of desirable and undesirable answers.
    weights: [f32; 2],
    reference: Reference,
}

enum Reference {
    /// The objective has none.
    None,
    /// The model itself without its LoRA adapters.
    WithoutAdapters,
    /// A frozen copy of the initial model.
    Model(Box<dyn LanguageModel>),
}

/// The answers of some rows, in order: those that are learned from, then what each is compared with.
pub(in crate::train) struct Answers {
    /// (N): for each input the number of its answer, `u32::MAX` if it is of none.
    of_input: Vec<u32>,
    /// Predicted tokens of each answer.
    tokens: Vec<f32>,
    /// Of the first half.
    labels: Vec<Label>,
}

/// Rows on a device, and their answers.
pub(in crate::train) struct Rows {
    /// (B, T)
    pub ids: Tensor,
    /// (B, T)
    pub targets: Tensor,
    pub documents: Option<Documents>,
    pub answers: Answers,
}

impl Rows {
    /// Rows of this shape (B, T), with the start of each token's document in its row if they hold documents.
    ///
    /// # Errors
    /// If there are not as many tokens, or the device runs out of memory.
    pub fn new(
        (ids, targets): (&[u32], &[u32]),
        starts: Option<&[u32]>,
        answers: Answers,
        shape: [usize; 2],
        device: &Device,
    ) -> Result<Rows> {
        Ok(Rows {
            ids: Tensor::from_u32(ids, shape, device)?,
            targets: Tensor::from_u32(targets, shape, device)?,
            documents: starts.map(|starts| Documents::new(starts, shape, device)).transpose()?,
            answers,
        })
    }
}

/// How many of these targets are predicted.
pub(in crate::train) fn count_predicted(targets: &[u32]) -> usize {
    targets.iter().filter(|&&target| target != IGNORE_INDEX).count()
}

/// Sums over answers, which make up the loss and the metrics of a step or an evaluation.
pub(in crate::train) struct Sums {
    /// Of the losses of pairs or answers, with gradients: ().
    objective: Tensor,
    /// -log p of the tokens of chosen answers, with gradients: (). `None` if it has no weight.
    nll: Option<Tensor>,
    /// [`Totals`], without gradients.
    pub totals: Tensor,
}

/// What a loss is divided by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::train) struct Counts {
    /// Pairs, or answers by themselves.
    pub examples: usize,
    /// Predicted tokens: of chosen answers, or all if there are no answers.
    pub tokens: usize,
}

impl Counts {
    /// Those of the answers among these tokens of a batch, of which all targets are given; without answers, tokens are
    /// all that are predicted.
    pub fn of(answers: &[Answer], targets: &[u32], within: Range<usize>) -> Counts {
        let own: Vec<&Answer> = answers.iter().filter(|answer| within.contains(&answer.places.start)).collect();
        if own.is_empty() {
            return Counts { examples: 0, tokens: count_predicted(&targets[within]) };
        }
        let chosen = own.iter().filter(|answer| answer.label == Label::Chosen);
        let tokens = chosen.map(|answer| count_predicted(&targets[answer.places.clone()])).sum();
        Counts { examples: own.len() / 2, tokens }
    }
}

/// How many numbers [`Totals`] are.
pub(in crate::train) const TOTALS: usize = 9;

/// Sums over all answers of a step or an evaluation: losses, -log p and tokens of chosen answers, rewards of chosen and
/// rejected (or desirable and undesirable) answers and how many there are of each, pairs, and pairs in the right order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::train) struct Totals([f64; TOTALS]);

/// Rewards of answers, of which the right ones should be higher.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Rewards {
    /// Mean reward of chosen or desirable answers.
    pub chosen: Option<f64>,
    /// Mean reward of rejected or undesirable answers.
    pub rejected: Option<f64>,
    /// Fraction of pairs whose chosen answer has the higher reward.
    pub accuracy: Option<f64>,
}

impl Rewards {
    /// How much higher the rewards of the right answers are.
    pub fn margin(&self) -> Option<f64> {
        Some(self.chosen? - self.rejected?)
    }
}

impl Totals {
    pub fn add(&mut self, values: &[f32]) {
        self.0.iter_mut().zip(values).for_each(|(total, value)| *total += f64::from(*value));
    }

    /// Adds those that a device has computed.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(&bytemuck::pod_collect_to_vec::<u8, f32>(bytes));
    }

    pub fn rewards(&self) -> Rewards {
        let [_, _, _, chosen, rejected, of_chosen, of_rejected, pairs, correct] = self.0;
        let mean = |sum: f64, count: f64| (count > 0.0).then(|| sum / count);
        Rewards {
            chosen: mean(chosen, of_chosen),
            rejected: mean(rejected, of_rejected),
            accuracy: mean(correct, pairs),
        }
    }
}

impl Answers {
    /// The answers among these tokens of a batch, of which the targets are given.
    pub fn new(all: &[Answer], within: Range<usize>, targets: &[u32]) -> Answers {
        let is_first = |label| !matches!(label, Label::Rejected | Label::Mismatched);
        let own = all.iter().filter(|answer| within.contains(&answer.places.start));
        let (firsts, seconds): (Vec<&Answer>, Vec<&Answer>) = own.partition(|answer| is_first(answer.label));
        let mut answers = Answers {
            of_input: vec![u32::MAX; if firsts.is_empty() { 0 } else { targets.len() }],
            tokens: Vec::new(),
            labels: firsts.iter().map(|answer| answer.label).collect(),
        };
        for (number, answer) in firsts.iter().chain(&seconds).enumerate() {
            let places = answer.places.start - within.start..answer.places.end - within.start;
            answers.of_input[places.clone()].fill(number as u32);
            answers.tokens.push(count_predicted(&targets[places]) as f32);
        }
        answers
    }

    fn counts(&self) -> Counts {
        let examples = self.labels.len();
        let chosen = self.labels.iter().zip(&self.tokens).filter(|(label, _)| **label == Label::Chosen);
        Counts { examples, tokens: chosen.map(|(_, tokens)| *tokens as usize).sum() }
    }

    /// One over the tokens of each answer, of each half.
    fn inverse_lengths(&self, device: &Device) -> Result<[Tensor; 2]> {
        let inverse: Vec<f32> = self.tokens.iter().map(|tokens| 1.0 / tokens.max(1.0)).collect();
        let (first, second) = inverse.split_at(self.labels.len());
        Ok([Tensor::from_f32(first, [first.len()], device)?, Tensor::from_f32(second, [second.len()], device)?])
    }

    /// One for each example that is right or not, on a device.
    fn each(&self, device: &Device, value: impl Fn(Label) -> f32) -> Result<Tensor> {
        let values: Vec<f32> = self.labels.iter().map(|label| value(*label)).collect();
        Tensor::from_f32(&values, [values.len()], device)
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
        all.fold(Counts::default(), |sum, own| Counts {
            examples: sum.examples + own.examples,
            tokens: sum.tokens + own.tokens,
        })
    }
}

impl Preference {
    /// That of a configuration; `None` if each next token is learned. `copy` is the frozen copy of the initial model,
    /// if [`Preference::needs_copy`] says so.
    pub fn new(config: &Config, copy: Option<Box<dyn LanguageModel>>) -> Option<Preference> {
        let (objective, keys) = (config.train.objective, &config.preference);
        if !objective.is_preference() {
            return None;
        }
        let reference = match copy {
            Some(copy) => Reference::Model(copy),
            None if objective.has_reference() => Reference::WithoutAdapters,
            None => Reference::None,
        };
        Some(Preference {
            objective,
            beta: config.beta() as f32,
            gamma: keys.gamma as f32,
            label_smoothing: keys.label_smoothing as f32,
            sft_weight: if objective == Objective::Orpo { 1.0 } else { keys.sft_weight as f32 },
            weights: [keys.desirable_weight as f32, keys.undesirable_weight as f32],
            reference,
        })
    }

    /// Whether a configuration's objective compares the model with a copy: a model of which only adapters are trained
    /// is its own reference without them.
    pub fn needs_copy(config: &Config) -> bool {
        let only_adapters = config.lora.rank > 0 && config.lora.modules_to_save.is_empty();
        config.train.objective.has_reference() && !only_adapters
    }

    /// Whether a step must know [`Preference::kl`] before its losses.
    pub fn needs_kl(&self) -> bool {
        self.objective == Objective::Kto
    }

    /// The sum of π - ρ over mismatched answers: (), without gradients.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn kl(&self, model: &dyn LanguageModel, rows: &Rows) -> Result<Tensor> {
        no_grad(|| {
            let [_, policy] = self.sums_of(model, rows, &Dropout::off(), None)?;
            let [_, reference] = self.of_reference(model, rows)?.expect("KTO has a reference");
            policy.sub(&reference)?.sum(..)
        })
    }

    /// What these rows add to a step, given KTO's KL ().
    ///
    /// # Errors
    /// If the shapes do not fit, or the device runs out of memory.
    pub fn sums(
        &self,
        model: &dyn LanguageModel,
        rows: &Rows,
        dropout: &Dropout,
        loss_scale: Option<&Tensor>,
        kl: Option<&Tensor>,
    ) -> Result<Sums> {
        let (device, answers, beta) = (model.device(), &rows.answers, self.beta);
        // Before the activations of the other pass are in memory.
        let reference = self.of_reference(model, rows)?;
        let policy = self.sums_of(model, rows, dropout, loss_scale)?;
        let per_token = |[first, second]: [&Tensor; 2]| -> Result<[Tensor; 2]> {
            let inverse = answers.inverse_lengths(&device)?;
            Ok([first.mul(&inverse[0])?, second.mul(&inverse[1])?])
        };
        let [first, second] = match &reference {
            Some([first, second]) => [policy[0].sub(first)?, policy[1].sub(second)?],
            None => per_token([&policy[0], &policy[1]])?,
        };
        let smoothed = |z: &Tensor| -> Result<Tensor> {
            let e = self.label_smoothing;
            let loss = z.neg()?.softplus()?;
            if e == 0.0 { Ok(loss) } else { loss.scale(1.0 - e)?.add(&z.softplus()?.scale(e)?) }
        };
        let losses = match self.objective {
            Objective::NextToken => unreachable!("it is not of preferences"),
            Objective::Dpo => smoothed(&first.sub(&second)?.scale(beta)?)?,
            Objective::Simpo => {
                let gamma = Tensor::full(self.gamma, [1], &device)?;
                smoothed(&first.sub(&second)?.scale(beta)?.sub(&gamma)?)?
            }
            Objective::Ipo => {
                let target = Tensor::full(0.5 / beta, [1], &device)?;
                let [first, second] = per_token([&first, &second])?;
                let difference = first.sub(&second)?.sub(&target)?;
                difference.mul(&difference)?
            }
            Objective::Orpo => {
                let log_odds = first.sub(&second)?.sub(&log_rest(&first)?)?.add(&log_rest(&second)?)?;
                log_odds.neg()?.softplus()?.scale(beta)?
            }
            Objective::Kto => {
                let sign = answers.each(&device, |label| if label == Label::Desirable { 1.0 } else { -1.0 })?;
                let weight = answers.each(&device, |label| self.weights[usize::from(label != Label::Desirable)])?;
                let over = match kl {
                    Some(kl) => first.sub(&kl.reshape([1])?)?,
                    None => first.clone(),
                };
                over.mul(&sign)?.scale(-beta)?.sigmoid()?.mul(&weight)?
            }
        };
        let nll = (self.sft_weight > 0.0).then(|| policy[0].sum(..)?.neg()).transpose()?;
        let objective = losses.sum(..)?;
        let totals = no_grad(|| self.totals(answers, &objective, &policy[0], [&first, &second]))?;
        Ok(Sums { objective, nll, totals })
    }

    /// [`Totals`] of rows that are evaluated, whose KL of KTO is their own.
    ///
    /// # Errors
    /// Those of [`Preference::sums`].
    pub fn evaluate(&self, model: &dyn LanguageModel, rows: &Rows) -> Result<Tensor> {
        let examples = rows.answers.labels.len();
        let kl = self.needs_kl().then(|| mean_kl(&self.kl(model, rows)?, examples)).transpose()?;
        Ok(self.sums(model, rows, &Dropout::off(), None, kl.as_ref())?.totals)
    }

    /// The share of these rows in the loss of a step with so many pairs or answers, and tokens of chosen ones.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn loss(&self, sums: &Sums, counts: Counts) -> Result<Tensor> {
        let loss = sums.objective.scale(1.0 / counts.examples.max(1) as f32)?;
        match &sums.nll {
            Some(nll) => loss.add(&nll.scale(self.sft_weight / counts.tokens.max(1) as f32)?),
            None => Ok(loss),
        }
    }

    /// The loss of a step or an evaluation with these totals.
    pub fn loss_of(&self, totals: &Totals) -> f64 {
        let [objective, nll, tokens, _, _, of_chosen, of_rejected, pairs, _] = totals.0;
        let examples = if pairs > 0.0 { pairs } else { of_chosen + of_rejected };
        objective / examples.max(1.0) + f64::from(self.sft_weight) * nll / tokens.max(1.0)
    }

    /// [`Totals`] as (9), given the rewards over β.
    fn totals(
        &self,
        answers: &Answers,
        objective: &Tensor,
        chosen: &Tensor,
        [first, second]: [&Tensor; 2],
    ) -> Result<Tensor> {
        let (device, counts) = (objective.device(), answers.counts());
        let number = |x: f32| Tensor::full(x, [1], &device);
        let one = |x: Tensor| x.reshape([1]);
        let nll = if self.sft_weight > 0.0 { chosen.sum(..)?.neg()? } else { number(0.0)? };
        let (rewards, of_each, [pairs, correct]) = if self.objective == Objective::Kto {
            let is = |wanted: Label| answers.each(&device, move |label| f32::from(u8::from(label == wanted)));
            let labels = [Label::Desirable, Label::Undesirable];
            let sum = |wanted| first.mul(&is(wanted)?)?.sum(..)?.scale(self.beta);
            let of_each = labels.map(|wanted| answers.labels.iter().filter(|label| **label == wanted).count());
            ([sum(labels[0])?, sum(labels[1])?], of_each, [number(0.0)?, number(0.0)?])
        } else {
            let sum = |x: &Tensor| x.sum(..)?.scale(self.beta);
            let of_pairs = [number(counts.examples as f32)?, first.gt(second)?.sum(..)?];
            ([sum(first)?, sum(second)?], [counts.examples; 2], of_pairs)
        };
        let [chosen, rejected] = rewards;
        let parts = [
            one(objective.clone())?,
            one(nll)?,
            number(counts.tokens as f32)?,
            one(chosen)?,
            one(rejected)?,
            number(of_each[0] as f32)?,
            number(of_each[1] as f32)?,
            pairs,
            one(correct)?,
        ];
        Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
    }

    /// Σ log p of the answers' tokens, of each half: (E).
    fn sums_of(
        &self,
        model: &dyn LanguageModel,
        rows: &Rows,
        dropout: &Dropout,
        loss_scale: Option<&Tensor>,
    ) -> Result<[Tensor; 2]> {
        let Rows { ids, targets, documents, answers } = rows;
        let device = model.device();
        let log_probs = model.log_probs(ids, targets, documents.as_ref().into(), dropout, loss_scale)?; // (B, T)
        let inputs = answers.of_input.len();
        let of_input = Tensor::from_u32(&answers.of_input, [inputs], &device)?;
        let sums = Tensor::from_f32(&vec![0.0; answers.tokens.len()], [answers.tokens.len()], &device)?;
        let sums = sums.scatter_add(0, &of_input, &log_probs.reshape([inputs])?)?;
        let examples = answers.labels.len();
        Ok([sums.narrow(0, 0, examples)?, sums.narrow(0, examples, answers.tokens.len() - examples)?])
    }

    /// The same of the reference, if there is one: without gradients.
    fn of_reference(&self, model: &dyn LanguageModel, rows: &Rows) -> Result<Option<[Tensor; 2]>> {
        let sums = |model| no_grad(|| self.sums_of(model, rows, &Dropout::off(), None));
        match &self.reference {
            Reference::None => Ok(None),
            Reference::WithoutAdapters => without_adapters(|| sums(model)).map(Some),
            Reference::Model(reference) => sums(&**reference).map(Some),
        }
    }
}

/// KTO's KL, given the sum over so many answers: the mean, or 0 if that is less.
///
/// # Errors
/// If the device runs out of memory.
pub(in crate::train) fn mean_kl(sum: &Tensor, examples: usize) -> Result<Tensor> {
    no_grad(|| sum.scale(1.0 / examples.max(1) as f32)?.relu())
}

/// log(1 - e^x) of x up to 0: with t = tanh(-x / 2), 1 - e^x = 2 t / (1 + t), which is precise for small x too. A
/// certain answer, as far as f32 can tell, is as likely as 1 - 2e-7, without a gradient.
fn log_rest(x: &Tensor) -> Result<Tensor> {
    let t = x.scale(-0.5)?.tanh()?.clamp(1e-7, f32::INFINITY)?;
    let one = Tensor::full(1.0, [1], &x.device())?;
    t.scale(2.0)?.log()?.sub(&t.add(&one)?.log()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odds_of_a_certain_answer_are_finite() {
        for device in Device::for_tests() {
            let x = Tensor::from_f32(&[0.0, -1e-8, -0.5, -20.0], [4], &device).unwrap().requires_grad().unwrap();
            let y = log_rest(&x).unwrap();
            y.sum(..).unwrap().backward().unwrap();
            let (y, dx) = (y.to_f32().unwrap(), x.grad().unwrap().to_f32().unwrap());
            assert!(y.iter().chain(&dx).all(|value| value.is_finite()), "{device}: {y:?} {dx:?}");
            // log(1 - e^-0.5), and -e^-0.5 / (1 - e^-0.5).
            assert!((y[2] + 0.932_752).abs() < 1e-5 && (dx[2] + 1.541_494).abs() < 1e-4, "{device}: {y:?} {dx:?}");
            assert!(y[0] < -15.0 && y[3].abs() < 1e-6 && dx[0] == 0.0, "{device}: {y:?} {dx:?}");
        }
    }
}
