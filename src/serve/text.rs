//! The text in a slot: its tokens, what of its prompt is read, and the events that its client has not taken.

use super::job::{Event, EventKind, FinishReason, Job, Logprob, Usage};
use crate::Result;
use crate::data::Tokenizer;
use crate::generate::{NextDraw, TextWriter};
use crate::models::{Cache, Next};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TrySendError;

/// How long a client may leave events unread, in all, before its text is ended.
const MOST_STALL: Duration = Duration::from_secs(10);

/// The tokens at the end of a prompt that the text of the next may depend on: those of an unfinished character, and a
/// word's beginning.
const LAST_TOKENS: usize = 16;

/// A text that is generated.
pub(super) struct Text<'a> {
    pub job: Job,
    writer: Option<TextWriter<'a>>,
    /// The prompt and the generated tokens.
    ids: Vec<u32>,
    /// While the prompt is read: the cache of the slot.
    pub reading: Option<Cache>,
    /// Tokens of the prompt that were in the cache before.
    cached: usize,
    /// How often each token was generated.
    counts: BTreeMap<u32, u32>,
    /// The biases of the next draw by frequency and presence.
    bias: Vec<(u32, f32)>,
    /// The sum of the prompt's hidden states so far, (C).
    pooled: Vec<f64>,
    unsent: VecDeque<Event>,
    stalled: Option<Instant>,
    /// In stalls before.
    stalled_for: Duration,
    ended: bool,
    pub started: Instant,
}

impl<'a> Text<'a> {
    /// A text whose first `cached` tokens are in `cache`.
    pub fn new(job: Job, tokenizer: &'a Tokenizer, cache: Cache, cached: usize) -> Result<Text<'a>> {
        let writer = TextWriter::new(tokenizer, job.stops.clone()).until(job.ends.clone()).without_special_tokens();
        let mut text = Text {
            writer: Some(writer),
            ids: job.prompt.clone(),
            reading: Some(cache),
            cached,
            counts: BTreeMap::new(),
            bias: vec![],
            pooled: vec![],
            unsent: VecDeque::new(),
            stalled: None,
            stalled_for: Duration::ZERO,
            ended: false,
            started: Instant::now(),
            job,
        };
        // Not shown, but what a token means may depend on those before it.
        let last = text.job.prompt.len().saturating_sub(LAST_TOKENS);
        for id in &text.job.prompt[last..] {
            text.writer.as_mut().expect("it is there").push_prompt(*id)?;
        }
        Ok(text)
    }

    /// Generated tokens.
    pub fn generated(&self) -> usize {
        self.ids.len() - self.job.prompt.len()
    }

    /// Tokens of the prompt that were not computed again.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// The next token to compute, if the text takes part in a step: its prompt is read, and its client keeps up.
    pub fn next(&self) -> Option<Next> {
        if self.reading.is_some() || self.ended || !self.unsent.is_empty() {
            return None;
        }
        Some(Next { id: *self.ids.last()?, position: self.ids.len() - 1 })
    }

    /// How its next token is drawn.
    pub fn draw(&self) -> NextDraw<'_> {
        let number = self.generated() as u32;
        NextDraw { sampling: &self.job.sampling, number, text: &self.ids, bias: &self.bias }
    }

    /// Adds a drawn token.
    pub fn accept(&mut self, id: u32, logprob: Option<Logprob>) -> Result<()> {
        self.ids.push(id);
        self.count(id);
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let text = writer.push(id)?;
        let is_end = self.job.ends.contains(&id);
        let (ended, full) = (writer.end().is_some(), self.generated() >= self.job.max_tokens);
        let is_shown = if is_end { self.job.reports_end && logprob.is_some() } else { true };
        if is_shown && (!text.is_empty() || logprob.is_some()) {
            self.send(EventKind::Token { text, logprob });
        }
        match (ended, full) {
            (true, _) => self.end(FinishReason::Stop),
            (false, true) => self.end(FinishReason::Length),
            (false, false) => Ok(()),
        }
    }

    fn count(&mut self, id: u32) {
        let (frequency, presence) = (self.job.frequency_penalty, self.job.presence_penalty);
        if frequency == 0.0 && presence == 0.0 {
            return;
        }
        *self.counts.entry(id).or_default() += 1;
        self.bias = self.counts.iter().map(|(id, count)| (*id, -presence - frequency * *count as f32)).collect();
    }

    /// Ends the text.
    pub fn end(&mut self, reason: FinishReason) -> Result<()> {
        let text = self.writer.take().map(TextWriter::finish).transpose()?.unwrap_or_default();
        let usage = Usage { prompt: self.job.prompt.len(), cached: self.cached, completion: self.generated() };
        self.send(EventKind::End { text, reason, usage });
        self.ended = true;
        Ok(())
    }

    /// Adds hidden states (T, width) of the prompt to its embedding.
    pub fn pool(&mut self, states: &[f32], width: usize) {
        self.pooled.resize(width, 0.0);
        for state in states.chunks(width) {
            self.pooled.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(*x));
        }
    }

    /// Ends the text with its embedding: the mean of the prompt's final hidden states, of length 1.
    pub fn embed(&mut self) {
        // The length takes away the number of tokens, too.
        let norm = self.pooled.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        let vector = self.pooled.iter().map(|x| (x / norm) as f32).collect();
        self.send(EventKind::Embedding { vector, tokens: self.job.prompt.len() });
        self.ended = true;
    }

    /// Ends the text with an error.
    pub fn fail(&mut self, message: String) {
        self.send(EventKind::Failed(message));
        (self.ended, self.reading) = (true, None);
    }

    /// Sends an event when its client has room for it.
    pub fn send(&mut self, kind: EventKind) {
        self.unsent.push_back(Event { index: self.job.index, kind });
        self.flush();
    }

    /// Sends what waits, as far as the client takes it.
    pub fn flush(&mut self) {
        while let Some(event) = self.unsent.pop_front() {
            match self.job.events.try_send(event) {
                Ok(()) => self.stalled_for += self.stalled.take().map_or(Duration::ZERO, |since| since.elapsed()),
                Err(TrySendError::Full(event)) => {
                    self.unsent.push_front(event);
                    self.stalled.get_or_insert_with(Instant::now);
                    return;
                }
                Err(TrySendError::Closed(_)) => self.unsent.clear(),
            }
        }
    }

    /// Whether the slot can be released: the text has ended and all was taken, or its client is gone or too slow.
    pub fn is_done(&self) -> bool {
        let stall = self.stalled.map_or(Duration::ZERO, |since| since.elapsed());
        let is_too_slow = self.stalled_for + stall > MOST_STALL;
        (self.ended && self.unsent.is_empty()) || self.job.events.is_closed() || is_too_slow
    }

    /// Whether it ended by itself.
    pub fn is_complete(&self) -> bool {
        self.ended && self.unsent.is_empty()
    }
}
