//! `POST /completions`: continues texts or tokens, and reports the log-probabilities of a prompt (`echo`).

use super::answer::{Choice, Endpoint};
use super::fields::{token_ids, wrong};
use super::sampling::{MOST_TOP_LOGPROBS, Settings};
use super::{Accepted, Answer, ApiError, Fields, check_count};
use crate::serve::Shared;
use crate::serve::job::{Job, UNREAD_EVENTS};
use crate::train::prompt_ids;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc::channel;

/// What OpenAI generates without `max_tokens`.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A prompt, as a text and in tokens.
struct Prompt {
    text: String,
    ids: Vec<u32>,
}

pub(super) fn read(fields: &Fields, shared: &Arc<Shared>) -> Result<Accepted, ApiError> {
    fields.unsupported("suffix", |value| value == "")?;
    fields.unsupported("response_format", |value| value["type"] == "text")?;
    let settings = Settings::read(fields, shared)?;
    if fields.integer("best_of", 1..=i64::MAX)?.is_some_and(|best| best != settings.n as i64) {
        return Err(ApiError::field("best_of", "best_of: not supported yet; leave it out, or set it to n"));
    }
    let echo = fields.boolean("echo")?.unwrap_or(false);
    // `false` is sent by clients that know chats.
    let top = match fields.get("logprobs") {
        Some(Value::Bool(false)) => None,
        _ => fields.integer("logprobs", 0..=MOST_TOP_LOGPROBS)?.map(|top| top as usize),
    };
    let prompts = prompts(fields, shared)?;
    let max_tokens = settings.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    for Prompt { ids, .. } in &prompts {
        if ids.len() + usize::from(max_tokens > 0) > shared.context {
            return Err(ApiError::too_long("prompt", ids.len(), shared.context));
        }
    }
    let count = prompts.len() * settings.n;
    check_count(if settings.n > 1 { "n" } else { "prompt" }, count, shared)?;
    let (sender, events) = channel(UNREAD_EVENTS * count);
    let (mut jobs, mut choices) = (vec![], vec![]);
    for Prompt { text, ids } in prompts {
        for number in 0..settings.n {
            let most = max_tokens.min(shared.context - ids.len());
            jobs.push(Job {
                ends: shared.text.ends(),
                scores_prompt: echo && top.is_some(),
                top_logprobs: top,
                ..settings.job(jobs.len(), number, ids.clone(), most, &sender)
            });
            let choice = Choice::new(number == 0, top.is_some());
            choices.push(if echo { choice.with_echo(text.clone(), ids.clone()) } else { choice });
        }
    }
    let answer = Answer::new(Endpoint::Completions, shared.clone(), choices);
    Ok(Accepted { jobs, events, answer, stream: settings.stream, include_usage: settings.include_usage })
}

/// A string, a list of strings, a list of token ids, or a list of those.
fn prompts(fields: &Fields, shared: &Shared) -> Result<Vec<Prompt>, ApiError> {
    const EXPECTED: &str = "a string, a list of strings, a list of token ids, or a list of such lists";
    let empty = Value::String(String::new());
    let given = fields.get("prompt").unwrap_or(&empty);
    match given {
        Value::Array(all) if all.is_empty() => Err(wrong("prompt", EXPECTED, given)),
        Value::Array(all) if all.iter().all(Value::is_number) => Ok(vec![of_ids(all, shared)?]),
        Value::Array(all) => all.iter().map(|one| prompt(one, EXPECTED, shared)).collect(),
        one => Ok(vec![prompt(one, EXPECTED, shared)?]),
    }
}

fn prompt(value: &Value, expected: &str, shared: &Shared) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => {
            let ids = prompt_ids(&shared.text.tokenizer, text);
            let ids = ids.map_err(|error| ApiError::field("prompt", format!("prompt: {error}")))?;
            Ok(Prompt { text: text.clone(), ids })
        }
        Value::Array(ids) if !ids.is_empty() => of_ids(ids, shared),
        other => Err(wrong("prompt", expected, other)),
    }
}

fn of_ids(list: &[Value], shared: &Shared) -> Result<Prompt, ApiError> {
    let tokenizer = &shared.text.tokenizer;
    let ids = token_ids("prompt", list, tokenizer.vocab_size())?;
    let text = tokenizer.decode(&ids).map_err(|error| ApiError::field("prompt", format!("prompt: {error}")))?;
    Ok(Prompt { text, ids })
}
