//! The loss over a whole split of a corpus.

use crate::data::{Answer, Continued, Coverage, IGNORE_INDEX, Label, Row, Tokens, eval_windows};
use crate::models::{Cache, LanguageModel, Past};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::tensor::{Readback, no_grad};
use crate::train::evaluation::preference::{Answers, Preference, Rewards, Rows, Totals, count_predicted};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// Evaluation of a model on a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean cross-entropy per token, nats.
    pub loss: f64,
    /// e^loss: per token of this model's tokenizer.
    pub perplexity: f64,
    /// Loss in bits per decodable byte, which is comparable between lossless tokenizers.
    pub bits_per_byte: f64,
    /// Whether decoding restores the text exactly; if not, models with other tokenizers had more to predict.
    #[serde(default = "yes")]
    pub lossless: bool,
    /// Fraction of unknown tokens.
    #[serde(default)]
    pub unknown_share: f64,
    /// Tokens predicted.
    pub tokens: usize,
    /// Context length, tokens.
    pub context: usize,
    /// Rewards of preferences, whose mean loss `loss` is then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewards: Option<Rewards>,
    /// Tokens between starts of windows; below `context`, every target has at least `context - stride` tokens of
    /// context.
    pub stride: usize,
}

/// Default for evaluations of earlier versions.
fn yes() -> bool {
    true
}

/// Windows of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Windows {
    pub context: usize,
    pub stride: usize,
    /// Windows computed at once.
    pub batch_size: usize,
    /// Most batches; 0 for the whole text.
    pub max_batches: usize,
}

/// Evaluates `model` on `tokens`, with the given coverage of their text. Every token but the first is a target once;
/// with prompts, every token of an answer, unless it is a rejected or an undesirable one. A recurrent model reads
/// `batch_size` pieces of the text in parallel, each from start to end. `None` if `stop` was set before the end.
///
/// # Errors
/// If there are fewer than two tokens or no windows, those of a recurrent model overlap, or the device reported an
/// error.
pub fn evaluate(
    model: &dyn LanguageModel,
    tokens: &Tokens,
    coverage: &Coverage,
    windows: Windows,
    stop: &AtomicBool,
) -> Result<Option<Evaluation>> {
    evaluate_objective(model, tokens, coverage, windows, None, stop)
}

/// [`evaluate`], but the loss is that of preferences if there are any.
///
/// # Errors
/// Those of [`evaluate`].
pub(in crate::train) fn evaluate_objective(
    model: &dyn LanguageModel,
    tokens: &Tokens,
    coverage: &Coverage,
    windows: Windows,
    preference: Option<&Preference>,
    stop: &AtomicBool,
) -> Result<Option<Evaluation>> {
    let Windows { context, batch_size, max_batches, .. } = windows;
    if batch_size == 0 {
        return Err(Error::Invalid("a batch must have a window: batch_size is 0".into()));
    }
    let mut rows = rows(model, tokens, &windows)?;
    let mut carried = model.config().is_recurrent().then(|| model.cache(batch_size, context)).transpose()?;
    let mut readings = Vec::new();
    let most = if max_batches == 0 { usize::MAX } else { max_batches };
    while readings.len() < most {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let batch: Vec<Row> = rows.by_ref().take(batch_size).collect();
        if batch.is_empty() {
            break;
        }
        readings.push(loss(model, &batch, carried.as_mut(), preference)?);
    }
    let mut total = Total::default();
    for (loss, count) in readings {
        total.add(&loss.wait()?, count);
    }
    Ok(Some(total.evaluation(tokens, coverage, windows, preference)))
}

/// The mean loss of rows, or the sums of preferences, on their way from the device, and how many tokens they predict.
/// KTO's KL is that of these rows.
///
/// # Errors
/// If the device reported an error.
pub(in crate::train) fn loss(
    model: &dyn LanguageModel,
    rows: &[Row],
    carried: Option<&mut Cache>,
    preference: Option<&Preference>,
) -> Result<(Readback, usize)> {
    let of = |part: fn(&Row) -> &[u32]| rows.iter().flat_map(part).copied().collect::<Vec<u32>>();
    let (ids, mut targets) = (of(|row| &row.ids), of(|row| &row.targets));
    let shape = [rows.len(), ids.len() / rows.len().max(1)];
    let starts_of_rows = (0..).step_by(shape[1].max(1));
    let of_rows = rows.iter().zip(starts_of_rows);
    let answers = of_rows.flat_map(|(row, start)| row.answers.iter().cloned().map(move |answer| answer.from(start)));
    let answers: Vec<Answer> = answers.collect();
    if preference.is_none() {
        // What is not to be imitated is not predicted.
        let is_wanted = |label| matches!(label, Label::Chosen | Label::Desirable);
        for Answer { places, .. } in answers.iter().filter(|answer| !is_wanted(answer.label)) {
            targets[places.clone()].fill(IGNORE_INDEX);
        }
    }
    let starts = of(|row| row.starts.as_deref().unwrap_or_default());
    let (starts, count) = ((!starts.is_empty()).then_some(&*starts), count_predicted(&targets));
    let answers = Answers::new(&answers, 0..targets.len(), &targets);
    let loss = no_grad(|| {
        let rows = Rows::new((&ids, &targets), starts, answers, shape, &model.device())?;
        if let Some(preference) = preference {
            return preference.evaluate(model, &rows)?.read_later();
        }
        let past = carried.map_or(rows.documents.as_ref().into(), Past::Cache);
        model.loss(&rows.ids, &rows.targets, past, &Dropout::off(), Criterion::default(), None)?.read_later()
    })?;
    Ok((loss, count))
}

/// Sums of an evaluation.
#[derive(Default)]
pub(in crate::train) struct Total {
    loss: f64,
    predicted: usize,
    preferences: Totals,
}

impl Total {
    /// Adds what the device told of `count` targets.
    pub fn add(&mut self, bytes: &[u8], count: usize) {
        if bytes.len() == size_of::<f32>() {
            self.loss += f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)) * count as f64;
        } else {
            self.preferences.add_bytes(bytes);
        }
        self.predicted += count;
    }

    /// The evaluation from these sums.
    pub fn evaluation(
        &self,
        tokens: &Tokens,
        coverage: &Coverage,
        windows: Windows,
        preference: Option<&Preference>,
    ) -> Evaluation {
        let loss = match preference {
            Some(preference) => preference.loss_of(&self.preferences),
            None => self.loss / self.predicted.max(1) as f64,
        };
        // Where only a part was evaluated, its share of the bytes is taken to be its share of the tokens.
        let bytes = coverage.decodable_bytes as f64 * self.predicted as f64 / tokens.targets().max(1) as f64;
        Evaluation {
            loss,
            perplexity: loss.exp(),
            bits_per_byte: self.loss / std::f64::consts::LN_2 / bytes.max(1.0),
            lossless: coverage.lossless,
            unknown_share: coverage.unknown_share,
            tokens: self.predicted,
            rewards: preference.map(|_| self.preferences.rewards()),
            context: windows.context,
            stride: windows.stride,
        }
    }
}

/// The rows that a model evaluates a text in.
fn rows<'a>(
    model: &dyn LanguageModel,
    tokens: &'a Tokens,
    &Windows { context, stride, batch_size, .. }: &Windows,
) -> Result<Box<dyn Iterator<Item = Row> + 'a>> {
    if !model.config().is_recurrent() {
        return Ok(Box::new(eval_windows(tokens, context, stride)?));
    }
    if stride != context {
        let kind = model.config().kind.as_str();
        return Err(Error::Invalid(format!(
            "a model of kind {kind:?} carries its state, so the stride must be its context of {context} tokens, got \
             {stride}"
        )));
    }
    let text = Continued::new(tokens.clone(), batch_size, context)?;
    Ok(Box::new((0..text.rows()).map(move |place| text.row(place))))
}
