//! Continuous batching: one thread owns the model and a fixed number of slots. Texts join and leave between steps; a
//! turn reads a chunk of one prompt and computes the next token of every text.
//!
//! A text does not depend on what runs beside it, to the bit: its prompt is read alone, in chunks that begin at
//! multiples of their size, and steps are those of `models::Slots`. Whole chunks of a prompt stay in the
//! slot, so that the next text with the same beginning skips them.

use super::Shared;
use super::job::{EventKind, FinishReason, Job, Logprob, Task};
use super::text::Text;
use crate::generate::draw_each;
use crate::models::{LanguageModel, Next, Slots, hidden_states, logits_of_states};
use crate::{DType, Error, Result, Tensor};
use rayon::prelude::*;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Tokens of a prompt that are read at once, on the CPU and on a GPU: other texts wait that long for their next token.
const CPU_CHUNK: usize = 128;
const GPU_CHUNK: usize = 512;
/// Tokens of a prompt whose logits are in memory at once.
const SCORED_AT_ONCE: usize = 64;
/// How often an idle server looks whether it is to stop, and a blocked one whether a client reads again.
const IDLE_WAIT: Duration = Duration::from_millis(20);
const STALLED_WAIT: Duration = Duration::from_millis(2);

pub(super) struct Scheduler<'a> {
    model: &'a dyn LanguageModel,
    shared: &'a Shared,
    slots: Slots,
    texts: Vec<Option<Text<'a>>>,
    /// The tokens of each slot's cache that a next text may share: whole chunks of its last prompt.
    kept: Vec<Vec<u32>>,
    chunk: usize,
}

impl<'a> Scheduler<'a> {
    pub fn new(model: &'a dyn LanguageModel, slots: Slots, shared: &'a Shared) -> Scheduler<'a> {
        let chunk = if model.device().is_gpu() { GPU_CHUNK } else { CPU_CHUNK };
        let texts = (0..slots.count()).map(|_| None).collect();
        let kept = vec![vec![]; slots.count()];
        Scheduler { model, shared, slots, texts, kept, chunk }
    }

    /// Generates texts until `stop` is set and those that were accepted are complete.
    ///
    /// # Errors
    /// If the device was lost. All texts are told.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        loop {
            if stop.load(Ordering::Relaxed) {
                self.shared.queue.close();
            }
            self.release();
            self.admit()?;
            self.shared.metrics.busy(self.texts.iter().flatten().count(), self.shared.queue.len());
            if self.texts.iter().all(Option::is_none) {
                if self.shared.queue.is_closed() && self.shared.queue.len() == 0 {
                    return Ok(());
                }
                self.shared.queue.wait(IDLE_WAIT);
                continue;
            }
            if !self.turn()? {
                std::thread::sleep(STALLED_WAIT);
            }
        }
    }

    /// Frees the slots of texts that are complete or whose client is gone.
    fn release(&mut self) {
        for text in &mut self.texts {
            text.iter_mut().for_each(Text::flush);
            if let Some(done) = text.take_if(|text| text.is_done()) {
                self.shared.metrics.text_ended(&done);
                let (prompt, tokens) = (done.job.prompt.len(), done.generated());
                let (seconds, end) = (done.started.elapsed().as_secs_f64(), done.is_complete());
                let end = if end { "complete" } else { "cancelled" };
                tracing::info!("{prompt} prompt tokens, {tokens} generated, {seconds:.2} s, {end}");
            }
        }
    }

    /// Gives free slots to waiting texts.
    fn admit(&mut self) -> Result<()> {
        while self.texts.iter().any(Option::is_none) {
            let Some(job) = self.shared.queue.pop() else { return Ok(()) };
            let (slot, shared) = self.slot_for(&job);
            self.kept[slot].truncate(shared);
            let opened = self.slots.open(self.model, slot, shared);
            let events = job.events.clone();
            let index = job.index;
            match opened.and_then(|cache| Text::new(job, &self.shared.text.tokenizer, cache, shared)) {
                Ok(text) => self.texts[slot] = Some(text),
                Err(error @ Error::DeviceLost(_)) => return Err(error),
                // A client that does not read loses the message.
                Err(error) => {
                    let kind = EventKind::Failed(error.to_string());
                    drop(events.try_send(super::job::Event { index, kind }));
                }
            }
        }
        Ok(())
    }

    /// The free slot that shares the longest beginning with the prompt, in whole chunks, and its length. Of several the
    /// one that keeps the least.
    fn slot_for(&self, job: &Job) -> (usize, usize) {
        let shared = |slot: usize| {
            // The last token is computed in any case: the first that is drawn follows from it. Other tasks need all.
            let most = job.prompt.len().saturating_sub(1);
            let same = self.kept[slot].iter().zip(&job.prompt[..most]).take_while(|(old, new)| old == new).count();
            if job.task != Task::Generate { 0 } else { same / self.chunk * self.chunk }
        };
        let free = (0..self.texts.len()).filter(|slot| self.texts[*slot].is_none());
        let best = free.map(|slot| (shared(slot), Reverse(self.kept[slot].len()), Reverse(slot))).max();
        let (shared, _, Reverse(slot)) = best.expect("a slot is free");
        (slot, shared)
    }

    /// Reads a chunk of the prompt that has waited longest, and computes the next token of each text. Returns whether
    /// there was anything to compute.
    fn turn(&mut self) -> Result<bool> {
        let reading = |slot: &usize| self.texts[*slot].as_ref().is_some_and(|text| text.reading.is_some());
        let started = |slot: &usize| self.texts[*slot].as_ref().map(|text| text.started);
        let oldest = (0..self.texts.len()).filter(reading).min_by_key(started);
        if let Some(slot) = oldest
            && let Err(error) = self.read(slot)
        {
            self.fail(&[slot], error)?;
        }
        let next: Vec<Option<Next>> = self.texts.iter().map(|text| text.as_ref().and_then(Text::next)).collect();
        let running: Vec<usize> = (0..next.len()).filter(|slot| next[*slot].is_some()).collect();
        if running.is_empty() {
            return Ok(oldest.is_some());
        }
        let logits = self.slots.step(self.model, &next);
        if let Err(error) = logits.and_then(|logits| self.draw(&logits, &running)) {
            self.fail(&running, error)?;
        }
        Ok(true)
    }

    /// Reads the next chunk of a prompt; after the last, draws the first token.
    fn read(&mut self, slot: usize) -> Result<()> {
        let metrics = &self.shared.metrics;
        let text = self.texts[slot].as_mut().expect("a text is in the slot");
        let cache = text.reading.as_mut().expect("its prompt is read");
        let begin = cache.tokens();
        let end = ((begin / self.chunk + 1) * self.chunk).min(text.job.prompt.len());
        let ids = Tensor::from_u32(&text.job.prompt[begin..end], [1, end - begin], &self.model.device())?;
        let mut output = match text.job.task {
            Task::Generate => self.model.next_token_logits(&ids, cache)?, // (1, V)
            Task::Score | Task::Embed => hidden_states(self.model, &ids, cache)?, // (T, C)
        };
        metrics.prompt_tokens(end - begin);
        if end.is_multiple_of(self.chunk) && !self.model.config().is_recurrent() {
            self.kept[slot].extend(&text.job.prompt[begin..end]);
        }
        match text.job.task {
            Task::Generate => {}
            Task::Score => {
                let mut scored = vec![];
                let states = output.clone();
                for start in (0..end - begin).step_by(SCORED_AT_ONCE) {
                    let rows = SCORED_AT_ONCE.min(end - begin - start);
                    output = logits_of_states(self.model, &states.narrow(0, start, rows)?)?;
                    scored.extend(score(&text.job, begin + start, begin + start + rows, &output)?);
                }
                text.send(EventKind::Prompt(scored));
            }
            Task::Embed => text.pool(&output.to_dtype(DType::F32)?.to_f32()?, output.shape().last_dim()),
        }
        if end < text.job.prompt.len() {
            return Ok(());
        }
        if let Some(cache) = text.reading.take() {
            self.slots.close(slot, &cache)?;
        }
        match text.job.task {
            Task::Embed => {
                text.embed();
                Ok(())
            }
            _ if text.job.max_tokens == 0 => text.end(FinishReason::Length),
            _ => self.draw_first(slot, &output),
        }
    }

    /// Draws the first token of a text, by the last of these logits (T, V).
    fn draw_first(&mut self, slot: usize, logits: &Tensor) -> Result<()> {
        let text = self.texts[slot].as_mut().expect("a text is in the slot");
        let last = logits.narrow(0, logits.shape().rows() - 1, 1)?;
        let drawn = draw_each(&last, &[Some(text.draw())])?.remove(0).expect("a text is there");
        let values = text.job.top_logprobs.map(|_| last.to_f32()).transpose()?;
        accept(text, drawn?, values.as_deref())?;
        self.shared.metrics.first_token(text);
        Ok(())
    }

    /// Draws the next tokens of these texts from logits (B, V).
    fn draw(&mut self, logits: &Tensor, running: &[usize]) -> Result<()> {
        let draws: Vec<_> = (0..self.texts.len())
            .map(|slot| self.texts[slot].as_ref().filter(|_| running.contains(&slot)).map(Text::draw))
            .collect();
        let drawn = draw_each(logits, &draws)?;
        let is_scored = |text: &Text| text.next().is_some() && text.job.top_logprobs.is_some();
        let values = self.texts.iter().flatten().any(is_scored).then(|| logits.to_f32()).transpose()?;
        let vocabulary = logits.shape().last_dim();
        for (slot, drawn) in drawn.into_iter().enumerate() {
            let (Some(text), Some(drawn)) = (&mut self.texts[slot], drawn) else { continue };
            let row = values.as_ref().map(|values| &values[slot * vocabulary..][..vocabulary]);
            if let Err(error) = drawn.and_then(|id| accept(text, id, row)) {
                self.fail(&[slot], error)?;
            }
        }
        self.shared.metrics.step(running.len());
        Ok(())
    }

    /// Ends texts with an error.
    ///
    /// # Errors
    /// The error, if no text can follow it; then all texts end.
    fn fail(&mut self, slots: &[usize], error: Error) -> Result<()> {
        tracing::warn!("{error}");
        let is_final = matches!(error, Error::DeviceLost(_));
        for (slot, text) in self.texts.iter_mut().enumerate() {
            // What a failed step left in the cache is unknown.
            if is_final || slots.contains(&slot) {
                self.kept[slot].clear();
                text.iter_mut().for_each(|text| text.fail(error.to_string()));
            }
        }
        if is_final { Err(error) } else { Ok(()) }
    }
}

/// Adds a drawn token to a text, with its log-probability by its logits (V) if that is wanted.
fn accept(text: &mut Text, id: u32, logits: Option<&[f32]>) -> Result<()> {
    let logprob = text.job.top_logprobs.zip(logits).map(|(top, logits)| Logprob::new(logits, id, top));
    text.accept(id, logprob)
}

/// The log-probabilities of the prompt's tokens after `begin` to `end`, by the logits (T, V) of those; of the first
/// token there is none.
fn score(job: &Job, begin: usize, end: usize, logits: &Tensor) -> Result<Vec<Option<Logprob>>> {
    let (values, vocabulary) = (logits.to_f32()?, logits.shape().last_dim());
    let targets = &job.prompt[begin + 1..(end + 1).min(job.prompt.len())];
    let top = job.top_logprobs.unwrap_or(0);
    let rows = targets.par_iter().zip(values.par_chunks(vocabulary));
    let scored: Vec<_> = rows.map(|(id, row)| Some(Logprob::new(row, *id, top))).collect();
    let first = (begin == 0).then_some(None);
    Ok(first.into_iter().chain(scored).collect())
}
