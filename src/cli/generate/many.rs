//! Several texts, in batches of prompts that have as many tokens.

use super::{Prompt, cause};
use crate::cli::interrupt::{Interrupted, Interrupts};
use crate::cli::{output, sampling};
use crate::generate::{End, Request, Sampling, TextWriter, generate_batch, printable};
use crate::models::LanguageModel;
use anyhow::Result;
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Texts of a batch at most: their keys and values take memory.
const BATCH: usize = 64;

/// A text that is to be written.
struct Text<'a> {
    prompt: &'a Prompt,
    /// The numbers of its prompt and of it among the samples of that, from 1 on.
    numbers: [usize; 2],
    sampling: Sampling,
    writer: Option<TextWriter<'a>>,
    text: String,
    new_tokens: usize,
    end: Option<End>,
}

/// What all texts have in common.
pub(super) struct Settings<'a> {
    pub sampling: &'a Sampling,
    /// What takes the tokens of a text.
    pub writer: &'a dyn Fn() -> TextWriter<'a>,
    pub samples: usize,
    pub max_new_tokens: usize,
    pub json: bool,
}

/// Writes `samples` texts for each prompt, the second with the next seed, and so on. They are printed in the order of
/// the prompts once all are written.
pub(super) fn write<'a>(
    model: &dyn LanguageModel,
    prompts: &'a [Prompt],
    settings: &Settings<'a>,
    interrupts: &Interrupts,
) -> Result<()> {
    let mut texts = Vec::new();
    for (i, prompt) in prompts.iter().enumerate() {
        for sample in 0..settings.samples {
            let seed = settings.sampling.seed.wrapping_add(sample as u64);
            texts.push(Text::new(prompt, [i + 1, sample + 1], settings, seed)?);
        }
    }
    let started = Instant::now();
    let mut by_length: BTreeMap<usize, Vec<&mut Text>> = BTreeMap::new();
    for text in &mut texts {
        by_length.entry(text.prompt.ids.len()).or_default().push(text);
    }
    let stop = interrupts.stop();
    for batch in by_length.values_mut().flat_map(|texts| texts.chunks_mut(BATCH)) {
        let starts: Vec<(&[u32], Sampling)> = batch.iter().map(|t| (&*t.prompt.ids, t.sampling.clone())).collect();
        let requests: Vec<Request> = starts.iter().map(|(prompt, sampling)| Request { prompt, sampling }).collect();
        generate_batch(model, &requests, settings.max_new_tokens, &mut |i, id| {
            let ends = batch[i].push(id)? || stop.load(Ordering::Relaxed);
            Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        batch.iter_mut().try_for_each(|text| text.finish())?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let interrupted = stop.load(Ordering::Relaxed);
    print(&texts, started.elapsed().as_secs_f64(), prompts.len(), settings, interrupted)?;
    if stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
}

fn print(texts: &[Text], seconds: f64, prompts: usize, settings: &Settings, interrupted: bool) -> Result<()> {
    let new_tokens: usize = texts.iter().map(|text| text.new_tokens).sum();
    for Text { prompt, numbers: [number, sample], text, new_tokens, end, .. } in texts {
        if settings.json {
            output::line(json!({
                "kind": "text", "prompt": number, "sample": sample, "text": text, "prompt_tokens": prompt.ids.len(),
                "new_tokens": new_tokens, "stopped": end.is_some(), "end": cause(*end, interrupted),
            }))?;
            continue;
        }
        let samples = settings.samples;
        output::line(format_args!("== prompt {number} of {prompts}, sample {sample} of {samples} =="))?;
        output::line(format_args!("{}\n", printable(text)))?;
    }
    if settings.json {
        let prompt_tokens = texts.iter().map(|text| text.prompt.ids.len()).sum();
        let mut total = sampling::speed(prompt_tokens, new_tokens, seconds);
        total["kind"] = "total".into();
        total["texts"] = texts.len().into();
        output::line(total)?;
    }
    tracing::info!("{new_tokens} tokens, {:.0} a second", new_tokens as f64 / seconds.max(1e-9));
    Ok(())
}

impl<'a> Text<'a> {
    fn new(prompt: &'a Prompt, numbers: [usize; 2], settings: &Settings<'a>, seed: u64) -> Result<Text<'a>> {
        let mut writer = (settings.writer)();
        let mut text = String::new();
        for id in prompt.shown() {
            text.push_str(&writer.push_prompt(*id)?);
        }
        let sampling = Sampling { seed, ..settings.sampling.clone() };
        Ok(Text { prompt, numbers, sampling, writer: Some(writer), text, new_tokens: 0, end: None })
    }

    /// Adds a token; true if the text ends with it.
    fn push(&mut self, id: u32) -> crate::Result<bool> {
        let writer = self.writer.as_mut().expect("it is not finished");
        self.new_tokens += 1;
        self.text.push_str(&writer.push(id)?);
        self.end = writer.end();
        Ok(self.end.is_some())
    }

    fn finish(&mut self) -> crate::Result<()> {
        let writer = self.writer.take().expect("it is finished once");
        self.text.push_str(&writer.finish()?);
        Ok(())
    }
}
