//! Tools: the chat template shows them to the model, whose calls are read from its answer in the format of Hermes,
//! Qwen2.5 and Qwen3: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`. Nothing forces a call or its arguments.

use super::fields::wrong;
use super::{ApiError, Fields, random_number};
use crate::data::ChatTemplate;
use serde_json::{Value, json};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call of a function.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ToolCall {
    id: String,
    name: String,
    /// An object in JSON.
    arguments: String,
}

impl ToolCall {
    pub fn to_json(&self) -> Value {
        let function = json!({"name": self.name, "arguments": self.arguments});
        json!({"id": self.id, "type": "function", "function": function})
    }
}

/// The tools of a request, as templates take them; `None` if there are none, or they are not to be used.
pub(super) fn read(fields: &Fields, template: &ChatTemplate) -> Result<Option<Value>, ApiError> {
    let list = fields.list("tools")?.filter(|list| !list.is_empty());
    match fields.get("tool_choice") {
        None => {}
        Some(choice) if choice == "auto" => {}
        Some(choice) if choice == "none" => return Ok(None),
        Some(choice) => return Err(wrong("tool_choice", "auto or none: a call cannot be forced yet", choice)),
    }
    let Some(list) = list else { return Ok(None) };
    for (i, tool) in list.iter().enumerate() {
        if tool["type"] != "function" || !tool["function"]["name"].is_string() {
            let expected = "{\"type\": \"function\", \"function\": {\"name\": .., \"parameters\": ..}}";
            return Err(wrong(&format!("tools[{i}]"), expected, tool));
        }
    }
    if !template.source().contains("tools") || !template.source().contains(OPEN) {
        let message = format!("tools: the chat template does not show tools, with calls in the format {OPEN}..{CLOSE}");
        return Err(ApiError::field("tools", message));
    }
    Ok(Some(Value::Array(list.clone())))
}

/// The calls in a message of a conversation, with arguments as objects, which templates expect.
pub(super) fn of_message(name: &str, calls: &Value) -> Result<Value, ApiError> {
    let call = |call: &Value| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            // Some clients send it for functions without parameters.
            Value::String(text) if text.trim().is_empty() => json!({}),
            Value::String(text) => serde_json::from_str(text).ok()?,
            Value::Object(object) => Value::Object(object.clone()),
            _ => return None,
        };
        let name = function["name"].as_str()?;
        Some(json!({"id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments}}))
    };
    let all: Option<Vec<Value>> = calls.as_array().and_then(|calls| calls.iter().map(call).collect());
    let expected = "a list of calls, each a function with a name and arguments in JSON";
    all.map(Value::Array).ok_or_else(|| wrong(name, expected, calls))
}

/// The text before the first call of an answer, and the calls; `None` without a call, or with one that is not valid.
pub(super) fn parse(text: &str) -> Option<(&str, Vec<ToolCall>)> {
    let (before, mut rest) = text.split_once(OPEN)?;
    let mut calls = vec![];
    loop {
        let (body, after) = rest.split_once(CLOSE)?;
        let call: Value = serde_json::from_str(body.trim()).ok()?;
        let arguments = call.get("arguments").filter(|arguments| arguments.is_object())?;
        let id = format!("call_{:016x}", random_number());
        calls.push(ToolCall { id, name: call["name"].as_str()?.to_string(), arguments: arguments.to_string() });
        match after.split_once(OPEN) {
            Some((_, next)) => rest = next,
            None => return Some((before.trim_end(), calls)),
        }
    }
}

/// How many bytes of an unfinished answer are certainly no part of a call.
pub(super) fn certain(text: &str) -> usize {
    let may_begin = |at: &usize| text[*at..].starts_with(OPEN) || OPEN.starts_with(&text[*at..]);
    text.char_indices().map(|(at, _)| at).find(may_begin).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_answers() {
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
        let text = format!("Let me see.\n{one}\n{one}");
        let (before, calls) = parse(&text).unwrap();
        assert_eq!((before, calls.len()), ("Let me see.", 2));
        assert_eq!((&*calls[0].name, &*calls[0].arguments), ("f", "{\"x\":1}"));
        assert_ne!(calls[0].id, calls[1].id);
        for text in [
            "no call",
            "<tool_call>{\"name\": \"f\"",
            "<tool_call>{\"name\": \"f\"}</tool_call>",
            "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
            "<tool_call>f(1)</tool_call>",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn text_is_certain_up_to_what_may_be_a_call() {
        for (text, expected) in
            [("abc", 3), ("ab<too", 2), ("ab<tool_call>x", 2), ("a<b", 3), ("a<b<", 3), ("", 0), ("é<", 2)]
        {
            assert_eq!(certain(text), expected, "{text}");
        }
    }
}
