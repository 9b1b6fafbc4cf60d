//! Multiple-choice accuracy: the model's answer is the most likely choice after the question.
//!
//! As in lm-evaluation-harness: the log-likelihood of a choice is the sum over its tokens, and `acc_norm` normalizes it
//! by bytes, so that long choices are not penalized.

use super::prompt::prompt_ids;
use crate::data::{Question, Tokenizer};
use crate::models::{LanguageModel, Past};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::tensor::no_grad;
use crate::{DType, Error, Result, Tensor};
use serde::Serialize;

/// Results of multiple-choice questions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChoiceEvaluation {
    pub questions: usize,
    /// Accuracy of guessing.
    pub chance: f64,
    /// Questions whose correct choice is the most likely.
    pub correct: usize,
    pub accuracy: f64,
    /// Standard error of the mean; `None` for a single question.
    pub accuracy_stderr: Option<f64>,
    /// Correct answers by likelihood per byte.
    pub correct_norm: usize,
    pub accuracy_norm: f64,
    pub accuracy_norm_stderr: Option<f64>,
    /// Mean negative log-likelihood of the correct choice, nats.
    pub answer_loss: f64,
    /// Choices whose question was truncated to the context.
    pub truncated: usize,
}

/// A text whose last tokens are scored.
#[derive(Debug, PartialEq)]
struct Row {
    /// At most one more than the context.
    ids: Vec<u32>,
    /// Index of the first scored token, at least 1.
    start: usize,
    truncated: bool,
}

/// Answers all questions, `batch_size` choices at once, with a context of `context` tokens.
///
/// # Errors
/// If a text cannot be tokenized, a choice exceeds the context, or the answer is not a choice (with the line); if
/// `batch_size` is 0, or the device reported an error.
pub fn evaluate_choices(
    model: &dyn LanguageModel,
    tokenizer: &Tokenizer,
    questions: &[Question],
    context: usize,
    batch_size: usize,
) -> Result<ChoiceEvaluation> {
    if batch_size == 0 {
        return Err(Error::Invalid("a batch must have a choice: batch_size is 0".into()));
    }
    let mut rows = vec![];
    for question in questions {
        if question.answer >= question.choices.len() {
            let (line, answer) = (question.line, question.answer);
            return Err(Error::Invalid(format!("line {line}: answer {answer} is out of range (choices count from 0)")));
        }
        for choice in &question.choices {
            let row = row(tokenizer, &question.question, choice, context);
            rows.push(row.map_err(|error| Error::Invalid(format!("line {}: {error}", question.line)))?);
        }
    }
    // Those of one length side by side: a batch is as long as its longest.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(rows[i].ids.len()));
    let mut likelihoods = vec![0.0; rows.len()];
    for places in order.chunks(batch_size) {
        let batch: Vec<&Row> = places.iter().map(|&i| &rows[i]).collect();
        for (&place, likelihood) in places.iter().zip(log_likelihoods(model, &batch)?) {
            likelihoods[place] = likelihood;
        }
    }
    Ok(ChoiceEvaluation {
        truncated: rows.iter().filter(|row| row.truncated).count(),
        ..count(questions, &likelihoods)
    })
}

/// Tokenizes a question and a choice, separated by a space unless there is white space; the space belongs to the
/// choice, as in GPT-2's tokens.
fn row(tokenizer: &Tokenizer, question: &str, choice: &str, context: usize) -> Result<Row> {
    let is_apart = question.ends_with(char::is_whitespace) || choice.starts_with(char::is_whitespace);
    let space = if is_apart || question.is_empty() { "" } else { " " };
    let before = question.trim_end();
    let mut first = tokenizer.begin_of_text()?;
    if before.is_empty() && first.is_empty() {
        // The first token of a text is not predicted, so something must stand before it.
        first = tokenizer.end_of_text().map_or_else(|| prompt_ids(tokenizer, ""), |(id, _)| Ok(vec![id]))?;
    }
    let its = tokenizer.encode(&format!("{question}{space}{choice}"))?;
    // Where the end of the question and the choice make one token, that one is predicted.
    let start = first.len() + tokenizer.encode(before)?.len().min(its.len().saturating_sub(1));
    let (mut ids, start) = ([first, its].concat(), start.max(1));
    if start >= ids.len() {
        return Err(Error::Invalid(format!("the tokenizer makes no token of the choice {choice:?}")));
    }
    let beyond = ids.len().saturating_sub(context.saturating_add(1));
    if beyond >= start {
        let tokens = ids.len() - start;
        let message = format!("the choice {choice:?} has {tokens} tokens, the context holds {context}");
        return Err(Error::Invalid(message));
    }
    ids.drain(..beyond);
    Ok(Row { ids, start: start - beyond, truncated: beyond > 0 })
}

/// The log-likelihood of each row's scored tokens.
fn log_likelihoods(model: &dyn LanguageModel, rows: &[&Row]) -> Result<Vec<f64>> {
    let device = model.device();
    let (b, t) = (rows.len(), rows.iter().map(|row| row.ids.len() - 1).max().unwrap_or(0));
    // No token sees what follows it, so it may be anything.
    let mut ids = vec![0; b * t];
    for (row, ids) in rows.iter().zip(ids.chunks_exact_mut(t)) {
        ids[..row.ids.len() - 1].copy_from_slice(&row.ids[..row.ids.len() - 1]);
    }
    let (head, bias) = (model.head(), model.head_bias());
    let readings = no_grad(|| {
        let h = model.hidden(&Tensor::from_u32(&ids, [b, t], &device)?, Past::Nothing, &Dropout::off())?; // (B, T, C)
        let (c, dtype) = (h.shape().last_dim(), h.dtype());
        let h = h.to_dtype(DType::F32)?.reshape([b * t, c])?;
        let reading = |(i, row): (usize, &&Row)| {
            let n = row.ids.len() - row.start;
            let places: Vec<u32> = (0..n).map(|k| (i * t + row.start - 1 + k) as u32).collect();
            let h = h.embedding(&Tensor::from_u32(&places, [n], &device)?)?.to_dtype(dtype)?; // (N, C)
            let targets = Tensor::from_u32(&row.ids[row.start..], [n], &device)?;
            let loss = h.linear_cross_entropy_with_bias(head, bias, &targets, Criterion::default(), None)?;
            Ok((loss.read_later()?, n))
        };
        rows.iter().enumerate().map(reading).collect::<Result<Vec<_>>>()
    })?;
    let sum = |(loss, n): (crate::tensor::Readback, usize)| {
        let mean: f32 = bytemuck::pod_read_unaligned(&loss.wait()?);
        Ok(-f64::from(mean) * n as f64)
    };
    readings.into_iter().map(sum).collect()
}

/// Counts the answers, from the log-likelihoods of all choices of all questions.
fn count(questions: &[Question], likelihoods: &[f64]) -> ChoiceEvaluation {
    let (mut correct, mut correct_norm, mut chance, mut answer_loss, mut first) = (0, 0, 0.0, 0.0, 0);
    for Question { choices, answer, .. } in questions {
        let its = &likelihoods[first..][..choices.len()];
        let per_byte: Vec<f64> = its.iter().zip(choices).map(|(sum, choice)| sum / choice.len() as f64).collect();
        correct += usize::from(likeliest(its) == *answer);
        correct_norm += usize::from(likeliest(&per_byte) == *answer);
        chance += 1.0 / choices.len() as f64;
        answer_loss -= its[*answer];
        first += choices.len();
    }
    let n = questions.len() as f64;
    let stderr = |p: f64| (questions.len() > 1).then(|| (p * (1.0 - p) / (n - 1.0)).sqrt());
    let (accuracy, accuracy_norm) = (correct as f64 / n, correct_norm as f64 / n);
    ChoiceEvaluation {
        questions: questions.len(),
        chance: chance / n,
        correct,
        accuracy,
        accuracy_stderr: stderr(accuracy),
        correct_norm,
        accuracy_norm,
        accuracy_norm_stderr: stderr(accuracy_norm),
        answer_loss: answer_loss / n,
        truncated: 0,
    }
}

/// The place of the largest; of equals the first.
fn likeliest(values: &[f64]) -> usize {
    (1..values.len()).fold(0, |best, i| if values[i] > values[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::build;
    use crate::models::testing::small;

    #[test]
    fn likelihoods_of_a_batch_are_those_of_the_logits() {
        let model = build(&small(11, 7, 2, 8), 3).unwrap();
        let row = |ids: &[u32], start| Row { ids: ids.to_vec(), start, truncated: false };
        let rows = [row(&[3, 1, 4, 1, 5], 2), row(&[9, 2], 1), row(&[6, 5, 3, 5, 8, 10, 7, 0], 7)];
        let got = log_likelihoods(&*model, &rows.iter().collect::<Vec<_>>()).unwrap();
        for (row, got) in rows.iter().zip(got) {
            let t = row.ids.len() - 1;
            let ids = Tensor::from_u32(&row.ids[..t], [1, t], &model.device()).unwrap();
            let logits = model.logits(&ids).unwrap().to_f32().unwrap();
            let log_probability = |at: usize| {
                let logits: Vec<f64> = logits[at * 11..][..11].iter().map(|&x| f64::from(x)).collect();
                logits[row.ids[at + 1] as usize] - logits.iter().map(|x| x.exp()).sum::<f64>().ln()
            };
            let want: f64 = (row.start - 1..t).map(log_probability).sum();
            // Sums of at most seven numbers of f32, each about 2.4.
            assert!((got - want).abs() < 1e-5, "{got} and {want}");
        }
    }

    #[test]
    fn answers_are_counted_by_likelihood_and_by_that_per_byte() {
        let question = |choices: &[&str], answer| Question {
            question: String::new(),
            choices: choices.iter().map(|choice| choice.to_string()).collect(),
            answer,
            line: 1,
        };
        // By likelihood the short one, per byte the long one; then equals, of which the first counts.
        let questions = [question(&["ab", "abcdefgh"], 1), question(&["é", "ab", "abc"], 0)];
        let counted = count(&questions, &[-2.0, -3.0, -4.0, -4.0, -9.0]);
        assert_eq!((counted.correct, counted.correct_norm), (1, 2));
        assert_eq!((counted.accuracy, counted.accuracy_norm), (0.5, 1.0));
        // sqrt(0.5 x 0.5 / 1).
        assert_eq!((counted.accuracy_stderr, counted.accuracy_norm_stderr), (Some(0.5), Some(0.0)));
        assert!((counted.chance - 5.0 / 12.0).abs() < 1e-12);
        assert_eq!(counted.answer_loss, 3.5);
        assert_eq!(count(&questions[..1], &[-2.0, -3.0]).accuracy_stderr, None);
    }
}
