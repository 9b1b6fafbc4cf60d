//! The answer to a request, whole or in chunks.

use super::logprobs::{CompletionLogprobs, of_chat};
use super::tools::{self, ToolCall};
use super::{ApiError, random_number};
use crate::serve::Shared;
use crate::serve::job::{Event, EventKind, FinishReason, Logprob, Usage};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum Endpoint {
    Chat,
    Completions,
}

/// What is known of the answer.
pub(in crate::serve) struct Answer {
    endpoint: Endpoint,
    id: String,
    created: u64,
    shared: Arc<Shared>,
    choices: Vec<Choice>,
    usage: Usage,
}

/// One text of an answer: what was not sent yet.
pub(super) struct Choice {
    text: String,
    has_logprobs: bool,
    of_chat: Vec<Value>,
    of_completion: CompletionLogprobs,
    /// The text before the first token, with `echo`; and the prompt's tokens, of which this many were reported.
    echo: Option<String>,
    prompt: Vec<u32>,
    reported: usize,
    /// Characters of all tokens so far.
    characters: usize,
    reason: Option<FinishReason>,
    /// Whether the model may call tools, and its calls, once the text has ended.
    has_tools: bool,
    calls: Vec<ToolCall>,
    /// Whether the prompt's tokens count: of the texts of one prompt, those of the first do.
    counts_prompt: bool,
    /// Whether a chunk was made.
    begun: bool,
}

impl Choice {
    pub fn new(counts_prompt: bool, has_logprobs: bool) -> Choice {
        Choice {
            text: String::new(),
            has_logprobs,
            of_chat: vec![],
            of_completion: CompletionLogprobs::default(),
            echo: None,
            prompt: vec![],
            reported: 0,
            characters: 0,
            reason: None,
            has_tools: false,
            calls: vec![],
            counts_prompt,
            begun: false,
        }
    }

    /// The text begins with the prompt.
    pub fn with_echo(self, text: String, prompt: Vec<u32>) -> Choice {
        Choice { echo: Some(text), prompt, ..self }
    }

    /// The text may have calls of tools.
    pub fn with_tools(self, has_tools: bool) -> Choice {
        Choice { has_tools, ..self }
    }

    /// The text that was not sent, as far as it is certainly no call.
    fn take_text(&mut self) -> String {
        let is_open = self.has_tools && self.reason.is_none();
        let end = if is_open { tools::certain(&self.text) } else { self.text.len() };
        let rest = self.text.split_off(end);
        std::mem::replace(&mut self.text, rest)
    }

    /// Takes the calls out of a text that has ended.
    fn read_calls(&mut self) {
        if self.has_tools
            && let Some((before, calls)) = tools::parse(&self.text)
        {
            (self.text, self.calls) = (before.to_string(), calls);
        }
    }

    /// The log-probabilities that were not sent, or null.
    fn take_logprobs(&mut self, endpoint: Endpoint) -> Value {
        match endpoint {
            _ if !self.has_logprobs => Value::Null,
            Endpoint::Chat => json!({"content": std::mem::take(&mut self.of_chat), "refusal": null}),
            Endpoint::Completions => std::mem::take(&mut self.of_completion).into_json(),
        }
    }

    fn finish_reason(&self) -> Value {
        match self.reason {
            Some(_) if !self.calls.is_empty() => "tool_calls".into(),
            reason => reason.map_or(Value::Null, |reason| reason.as_str().into()),
        }
    }
}

impl Answer {
    pub(super) fn new(endpoint: Endpoint, shared: Arc<Shared>, choices: Vec<Choice>) -> Answer {
        let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{:016x}", random_number());
        Answer { endpoint, id, created: unix_time(), shared, choices, usage: Usage::default() }
    }

    /// Takes what has become of a text; returns its number.
    ///
    /// # Errors
    /// If it failed.
    pub fn take(&mut self, event: Event) -> Result<usize, ApiError> {
        let i = event.index;
        if let Some(text) = self.choices[i].echo.take() {
            self.choices[i].text.push_str(&text);
        }
        match event.kind {
            EventKind::Prompt(tokens) => {
                for logprob in tokens {
                    let id = self.choices[i].prompt[self.choices[i].reported];
                    self.choices[i].reported += 1;
                    self.add_logprob(i, id, logprob.as_ref());
                }
            }
            EventKind::Token { text, logprob } => {
                self.choices[i].text.push_str(&text);
                if let Some(logprob) = logprob {
                    self.add_logprob(i, logprob.id, Some(&logprob));
                }
            }
            EventKind::End { text, reason, usage } => {
                let choice = &mut self.choices[i];
                choice.text.push_str(&text);
                choice.reason = Some(reason);
                choice.read_calls();
                self.usage.completion += usage.completion;
                if choice.counts_prompt {
                    self.usage.prompt += usage.prompt;
                    self.usage.cached += usage.cached;
                }
            }
            // Of other requests.
            EventKind::Embedding { .. } => {}
            EventKind::Failed(message) => return Err(ApiError::internal(message)),
        }
        Ok(i)
    }

    fn add_logprob(&mut self, i: usize, id: u32, logprob: Option<&Logprob>) {
        let (choice, tokenizer) = (&mut self.choices[i], &self.shared.text.tokenizer);
        match (self.endpoint, logprob) {
            (Endpoint::Chat, Some(logprob)) => choice.of_chat.push(of_chat(tokenizer, logprob)),
            (Endpoint::Chat, None) => {}
            (Endpoint::Completions, logprob) => choice.of_completion.push(tokenizer, id, logprob, choice.characters),
        }
        // Special tokens are no part of the text.
        if !tokenizer.is_special(id) {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            choice.characters += bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        }
    }

    /// Whether every text has ended.
    pub fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.reason.is_some())
    }

    /// The whole answer.
    pub fn whole(mut self) -> Value {
        let endpoint = self.endpoint;
        let choice = |(index, choice): (usize, &mut Choice)| {
            let logprobs = choice.take_logprobs(endpoint);
            let (text, reason) = (std::mem::take(&mut choice.text), choice.finish_reason());
            match endpoint {
                Endpoint::Chat => {
                    let mut message = json!({"role": "assistant", "content": text, "refusal": null});
                    if !choice.calls.is_empty() {
                        let content = Some(text).filter(|text| !text.is_empty());
                        message["content"] = content.map_or(Value::Null, Value::from);
                        message["tool_calls"] = choice.calls.iter().map(ToolCall::to_json).collect();
                    }
                    json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
                }
                Endpoint::Completions => {
                    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})
                }
            }
        };
        let choices: Value = self.choices.iter_mut().enumerate().map(choice).collect();
        let object = if endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
        self.object(object, choices, Some(self.usage()))
    }

    /// What is new of text `i`, in chunks.
    pub fn chunks(&mut self, i: usize, include_usage: bool) -> Vec<Value> {
        let endpoint = self.endpoint;
        let choice = &mut self.choices[i];
        let mut chunks = vec![];
        if endpoint == Endpoint::Chat {
            let mut add = |delta: Value, logprobs: Value, reason: Value| {
                let choice = json!({"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": reason});
                chunks.push(choice);
            };
            if !std::mem::replace(&mut choice.begun, true) {
                add(json!({"role": "assistant", "content": ""}), Value::Null, Value::Null);
            }
            let text = choice.take_text();
            if !text.is_empty() || !choice.of_chat.is_empty() {
                add(json!({"content": text}), choice.take_logprobs(endpoint), Value::Null);
            }
            for (number, call) in choice.calls.iter().enumerate() {
                let mut call = call.to_json();
                call["index"] = number.into();
                add(json!({"tool_calls": [call]}), Value::Null, Value::Null);
            }
            if choice.reason.is_some() {
                add(json!({}), Value::Null, choice.finish_reason());
            }
        } else {
            let (text, logprobs) = (std::mem::take(&mut choice.text), choice.take_logprobs(endpoint));
            let reason = choice.finish_reason();
            chunks.push(json!({"index": i, "text": text, "logprobs": logprobs, "finish_reason": reason}));
        }
        let chunk = |choice: Value| self.chunk(json!([choice]), include_usage.then_some(Value::Null));
        chunks.into_iter().map(chunk).collect()
    }

    /// The last chunk of a stream that was asked for the usage.
    pub fn usage_chunk(&self) -> Value {
        self.chunk(json!([]), Some(self.usage()))
    }

    fn chunk(&self, choices: Value, usage: Option<Value>) -> Value {
        let object = if self.endpoint == Endpoint::Chat { "chat.completion.chunk" } else { "text_completion" };
        self.object(object, choices, usage)
    }

    fn object(&self, object: &str, choices: Value, usage: Option<Value>) -> Value {
        let mut value = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.shared.options.name,
            "system_fingerprint": concat!("rustyflow-", env!("CARGO_PKG_VERSION")), "choices": choices,
        });
        if let Some(usage) = usage {
            value["usage"] = usage;
        }
        value
    }

    fn usage(&self) -> Value {
        let Usage { prompt, cached, completion } = self.usage;
        json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

/// Seconds since 1970.
pub(in crate::serve) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
