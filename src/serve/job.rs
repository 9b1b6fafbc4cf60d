//! Texts to generate, and their events.

use crate::generate::Sampling;
use std::time::Instant;
use tokio::sync::mpsc::Sender;

/// Events that a request may have unread, for each of its texts.
pub(super) const UNREAD_EVENTS: usize = 64;

/// One text of a request.
pub(super) struct Job {
    /// Its number within the request.
    pub index: usize,
    pub prompt: Vec<u32>,
    /// At most what the context holds after the prompt.
    pub max_tokens: usize,
    pub sampling: Sampling,
    /// Subtracted from the logit of a generated token, times its count, and once.
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    /// Strings and tokens that end the text; neither is part of it.
    pub stops: Vec<String>,
    pub ends: Vec<u32>,
    /// Whether the log-probability of the token that ends the text is reported, with an empty text.
    pub reports_end: bool,
    pub task: Task,
    /// How many alternatives to report with the log-probability of each token; `None` for no log-probabilities.
    pub top_logprobs: Option<usize>,
    /// Where the events go. It is closed when the client is gone.
    pub events: Sender<Event>,
    pub arrived: Instant,
}

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Its continuation.
    Generate,
    /// The log-probabilities of the prompt's tokens, and its continuation.
    Score,
    /// The embedding of the prompt.
    Embed,
}

/// What has become of the text `index` of a request.
#[derive(Debug)]
pub(super) struct Event {
    pub index: usize,
    pub kind: EventKind,
}

#[derive(Debug)]
pub(super) enum EventKind {
    /// The log-probabilities of the prompt's tokens; the first has none.
    Prompt(Vec<Option<Logprob>>),
    /// The embedding of the prompt, and its number of tokens.
    Embedding { vector: Vec<f32>, tokens: usize },
    /// A token, and the text that is certain with it.
    Token { text: String, logprob: Option<Logprob> },
    /// The end, and the rest of the text.
    End { text: String, reason: FinishReason, usage: Usage },
    /// The text could not be generated.
    Failed(String),
}

/// The log-probability of a token, in nats, and those of the most likely ones.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Logprob {
    pub id: u32,
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens` or the context.
    Length,
}

impl FinishReason {
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// Tokens of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub prompt: usize,
    /// Those of the prompt that were known from the text before in the slot.
    pub cached: usize,
    pub completion: usize,
}

impl Logprob {
    /// Of the token `id` by its logits, with so many alternatives.
    pub fn new(logits: &[f32], id: u32, top: usize) -> Logprob {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
        let log_sum = f64::from(max) + sum.ln();
        let of = |id: u32| (f64::from(logits[id as usize]) - log_sum) as f32;
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if top < ids.len() {
            ids.select_nth_unstable_by(top, by_logit);
            ids.truncate(top);
        }
        ids.sort_unstable_by(by_logit);
        Logprob { id, logprob: of(id), top: ids.into_iter().map(|id| (id, of(id))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_a_log_softmax() {
        let logits = [1.0, 3.0, 2.0, 3.0];
        let sum: f32 = logits.iter().map(|logit: &f32| logit.exp()).sum();
        let got = Logprob::new(&logits, 2, 3);
        assert!((got.logprob - (2.0 - sum.ln())).abs() < 1e-6, "{got:?}");
        assert_eq!(got.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2]);
        assert_eq!(got.top[2].1, got.logprob);
        assert!(Logprob::new(&logits, 0, 0).top.is_empty() && Logprob::new(&logits, 0, 9).top.len() == 4);
    }
}
