//! The fields that chats and completions share: how tokens are drawn, and how long a text may be.

use super::fields::{integer, wrong};
use super::{ApiError, Fields, random_number};
use crate::generate::Sampling;
use crate::serve::Shared;
use crate::serve::job::{Event, Job, Task};
use std::time::Instant;
use tokio::sync::mpsc::Sender;

/// Most texts of one request, stop strings, and alternatives beside a token.
const MOST_CHOICES: i64 = 128;
const MOST_STOPS: usize = 16;
pub(super) const MOST_TOP_LOGPROBS: i64 = 20;

/// What is said of every text of a request.
pub(super) struct Settings {
    sampling: Sampling,
    /// `None` for another one for each text.
    seed: Option<u64>,
    frequency_penalty: f32,
    presence_penalty: f32,
    pub stops: Vec<String>,
    /// `None` for as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Texts for each prompt.
    pub n: usize,
    pub stream: bool,
    pub include_usage: bool,
}

impl Settings {
    pub fn read(fields: &Fields, shared: &Shared) -> Result<Settings, ApiError> {
        let n = fields.integer("n", 1..=MOST_CHOICES)?.unwrap_or(1);
        let stream_options = fields.object("stream_options")?;
        let include_usage = stream_options.map(|object| Fields::new(object).boolean("include_usage")).transpose()?;
        let max_tokens = match fields.integer("max_completion_tokens", 0..=i64::MAX)? {
            None => fields.integer("max_tokens", 0..=i64::MAX)?,
            given => given,
        };
        Ok(Settings {
            sampling: sampling(fields, shared)?,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32,
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0) as f32,
            stops: fields.texts("stop", MOST_STOPS)?,
            max_tokens: max_tokens.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)),
            n: n as usize,
            stream: fields.boolean("stream")?.unwrap_or(false),
            include_usage: include_usage.flatten().unwrap_or(false),
        })
    }

    /// The text number `index` of a request, which follows a prompt; text `choice` of it takes a seed of its own.
    pub fn job(&self, index: usize, choice: usize, prompt: Vec<u32>, max_tokens: usize, events: &Sender<Event>) -> Job {
        let seed = self.seed.map_or_else(random_number, |seed| seed.wrapping_add(choice as u64));
        Job {
            index,
            prompt,
            max_tokens,
            sampling: Sampling { seed, ..self.sampling.clone() },
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            stops: self.stops.clone(),
            ends: vec![],
            reports_end: false,
            task: Task::Generate,
            top_logprobs: None,
            events: events.clone(),
            arrived: Instant::now(),
        }
    }
}

fn sampling(fields: &Fields, shared: &Shared) -> Result<Sampling, ApiError> {
    let tokens = shared.text.tokenizer.vocab_size();
    // Some clients send -1 for all tokens.
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(0);
    let sampling = Sampling {
        tokens,
        logit_bias: logit_bias(fields, tokens)?,
        repetition_penalty: fields.number("repetition_penalty", 1e-3..=1e3)?.unwrap_or(1.0),
        temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(1.0),
        top_k: usize::try_from(top_k).unwrap_or(0),
        // 0 is the likeliest token alone.
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0).max(1e-6),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
        // Each text has its own.
        seed: 0,
    };
    sampling.check().map_err(|error| ApiError::invalid(error.to_string()))?;
    Ok(sampling)
}

/// What is added to the logits of tokens: ids are keys, and so strings.
fn logit_bias(fields: &Fields, tokens: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(object) = fields.object("logit_bias")? else { return Ok(vec![]) };
    let biases = object.iter().map(|(id, bias)| {
        let id = id.trim().parse::<u32>().ok().filter(|id| (*id as usize) < tokens);
        let number = bias.as_f64().or_else(|| integer(bias).map(|n| n as f64)).filter(|bias| bias.abs() <= 100.0);
        let pair = id.zip(number.map(|bias| bias as f32));
        pair.ok_or_else(|| {
            let expected = format!("token ids below {tokens}, each with a number from -100 to 100");
            wrong("logit_bias", &expected, bias)
        })
    });
    biases.collect()
}
