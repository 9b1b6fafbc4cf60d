//! `POST /chat/completions`: a conversation is rendered by the model's chat template, and the model answers.

use super::answer::{Choice, Endpoint};
use super::fields::wrong;
use super::sampling::{MOST_TOP_LOGPROBS, Settings};
use super::{Accepted, Answer, ApiError, Fields, check_count, tools};
use crate::data::{ChatTemplate, Ending};
use crate::serve::Shared;
use crate::serve::job::{Job, UNREAD_EVENTS};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc::channel;

/// Roles that a message may have; `developer` is the newer name of `system`.
const ROLES: [&str; 5] = ["system", "user", "assistant", "tool", "developer"];

pub(super) fn read(fields: &Fields, shared: &Arc<Shared>) -> Result<Accepted, ApiError> {
    refuse_unsupported(fields)?;
    let settings = Settings::read(fields, shared)?;
    if settings.max_tokens == Some(0) {
        return Err(ApiError::field("max_tokens", "max_tokens: expected an integer of 1 or more, got 0"));
    }
    check_count("n", settings.n, shared)?;
    let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MOST_TOP_LOGPROBS)?;
    if top.is_some() && !logprobs {
        return Err(ApiError::field("top_logprobs", "top_logprobs: needs \"logprobs\": true"));
    }
    let top = logprobs.then(|| top.unwrap_or(0) as usize);
    let template = shared.template.as_ref().ok_or_else(no_template)?;
    let tools = tools::read(fields, template)?;
    let (prompt, ending) = prompt(fields, shared, template, tools.as_ref(), &settings.stops)?;
    if prompt.len() >= shared.context {
        return Err(ApiError::too_long("messages", prompt.len(), shared.context));
    }
    let room = shared.context - prompt.len();
    let max_tokens = settings.max_tokens.map_or(room, |most| most.min(room));
    let (sender, events) = channel(UNREAD_EVENTS * settings.n);
    let job = |choice: usize| Job {
        stops: ending.texts.clone(),
        ends: ending.ids.clone(),
        top_logprobs: top,
        ..settings.job(choice, choice, prompt.clone(), max_tokens, &sender)
    };
    let jobs = (0..settings.n).map(job).collect();
    let choice = |choice: usize| Choice::new(choice == 0, top.is_some()).with_tools(tools.is_some());
    let choices = (0..settings.n).map(choice).collect();
    let answer = Answer::new(Endpoint::Chat, shared.clone(), choices);
    Ok(Accepted { jobs, events, answer, stream: settings.stream, include_usage: settings.include_usage })
}

fn refuse_unsupported(fields: &Fields) -> Result<(), ApiError> {
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.unsupported("functions", is_empty)?;
    fields.unsupported("response_format", |value| value["type"] == "text")?;
    fields.unsupported("audio", |_| false)?;
    fields.unsupported("modalities", |value| *value == json!(["text"]))
}

/// The tokens of the rendered conversation, and what ends an answer.
fn prompt(
    fields: &Fields,
    shared: &Shared,
    template: &ChatTemplate,
    tools: Option<&Value>,
    stops: &[String],
) -> Result<(Vec<u32>, Ending), ApiError> {
    let list = fields.list("messages")?.filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| ApiError::field("messages", "messages: expected a list of messages"))?;
    let messages = list.iter().enumerate().map(|(i, value)| message(i, value)).collect::<Result<Vec<_>, _>>()?;
    let refused = |error: crate::Error| ApiError::field("messages", format!("messages: {error}"));
    let text = template.render(&messages, tools, true).map_err(refused)?;
    let ids = shared.text.tokenizer.encode(&text).map_err(refused)?;
    if ids.is_empty() {
        return Err(ApiError::field("messages", "messages: the conversation has no tokens"));
    }
    let system = messages.iter().take_while(|message| message["role"] == "system").count();
    let ending = shared.text.ending(template, &messages[..system], stops.to_vec()).map_err(refused)?;
    Ok((ids, ending))
}

fn no_template() -> ApiError {
    ApiError::invalid(
        "the model has no chat template, so conversations cannot be rendered; start the server with --chat-template \
         chatml or the path of a template, or use /v1/completions",
    )
}

/// A message as templates take it: a role and a text.
fn message(i: usize, value: &Value) -> Result<Value, ApiError> {
    let name = |field: &str| format!("messages[{i}].{field}");
    let Some(role) = value["role"].as_str().filter(|role| ROLES.contains(role)) else {
        return Err(wrong(&name("role"), "system, user, assistant, tool or developer", &value["role"]));
    };
    let content = match &value["content"] {
        Value::String(text) => text.clone(),
        Value::Null if role == "assistant" => String::new(),
        Value::Array(parts) => {
            let part = |part: &Value| part["text"].as_str().filter(|_| part["type"] == "text").map(String::from);
            let texts: Option<Vec<String>> = parts.iter().map(part).collect();
            let expected = "parts of the type text; images, audio and files are not supported";
            texts.ok_or_else(|| wrong(&name("content"), expected, &value["content"]))?.concat()
        }
        other => return Err(wrong(&name("content"), "a string or a list of text parts", other)),
    };
    let role = if role == "developer" { "system" } else { role };
    let mut message = json!({"role": role, "content": content});
    match &value["tool_calls"] {
        Value::Null => {}
        calls => message["tool_calls"] = tools::of_message(&name("tool_calls"), calls)?,
    }
    for field in ["tool_call_id", "name"] {
        if let Some(text) = value[field].as_str() {
            message[field] = text.into();
        }
    }
    Ok(message)
}
