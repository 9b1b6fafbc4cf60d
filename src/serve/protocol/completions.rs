//! `POST /completions`: continues texts or tokens, and reports the log-probabilities of a prompt (`echo`).

use super::answer::{Choice, Endpoint};
use super::prompts::{Prompt, prompts};
use super::sampling::{MOST_TOP_LOGPROBS, Settings};
use super::{Accepted, Answer, ApiError, Fields, check_count};
use crate::serve::Shared;
use crate::serve::job::{Job, Task, UNREAD_EVENTS};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc::channel;

/// What OpenAI generates without `max_tokens`.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Most log-probabilities of prompts in a request: about 100 MB of JSON.
const MOST_REPORTED: usize = 1 << 20;

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
    let prompts = prompts(fields, "prompt", shared)?;
    let max_tokens = settings.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    for Prompt { ids, .. } in &prompts {
        if ids.len() + usize::from(max_tokens > 0) > shared.context {
            return Err(ApiError::too_long("prompt", ids.len(), shared.context));
        }
    }
    if let Some(top) = top.filter(|_| echo) {
        let reported: usize = prompts.iter().map(|prompt| prompt.ids.len() * (top + 1) * settings.n).sum();
        if reported > MOST_REPORTED {
            let message = format!("logprobs: {reported} log-probabilities; at most {MOST_REPORTED} in a request");
            return Err(ApiError::field("logprobs", message));
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
                // lm-evaluation-harness counts one token for `max_tokens: 1`.
                reports_end: true,
                task: if echo && top.is_some() { Task::Score } else { Task::Generate },
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
