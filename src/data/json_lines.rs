//! Documents in JSON Lines: a line is an object, with one of
//!
//! - `text`: a text, all of which is predicted;
//! - `prompt` and `completion`: two texts, of which the second is predicted, or two lists of messages;
//! - `messages`: a conversation, of which is predicted what the assistant says. A chat template writes it as text.
//!
//! These are the formats of Hugging Face's TRL and of OpenAI.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::chat::{ChatTemplate, Turn};
use super::source::{Piece, READ_BYTES, Sink, bad, take_document};
use crate::error::{Error, Result};

/// What of a line is read.
#[derive(serde::Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    prompt: Option<Value>,
    completion: Option<Value>,
    messages: Option<Vec<Value>>,
    tools: Option<Value>,
}

/// Hands over the documents of a file.
///
/// # Errors
/// If it cannot be read, a line is no such object, or there is no chat template where one is needed; those of `sink`.
pub(super) fn read_json_lines(
    path: &Path,
    reader: Box<dyn Read>,
    chat: Option<&ChatTemplate>,
    sink: &mut Sink,
) -> Result<()> {
    let mut reader = BufReader::with_capacity(READ_BYTES, reader);
    let mut line = vec![];
    for number in 1.. {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(|error| Error::io("read", path, error))? == 0 {
            break;
        }
        let line = if number == 1 { line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line) } else { &line };
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |message: String| bad(path, format!("line {number}: {message}"));
        let parsed: Line = serde_json::from_slice(line)
            .map_err(|error| wrong(format!("expected an object with the key \"text\", for one: {error}")))?;
        let tools = parsed.tools.filter(|tools| !tools.is_null());
        match (parsed.messages, parsed.prompt.zip(parsed.completion), parsed.text) {
            (Some(messages), ..) => {
                let template = chat.ok_or_else(|| wrong(no_template()))?;
                let turns = messages_of(messages).and_then(|all| text_of(template.turns(&all, tools.as_ref())));
                take_conversation(&turns.map_err(wrong)?, sink)?;
            }
            (None, Some((Value::String(prompt), Value::String(completion))), _) => {
                take_answer(&prompt, &completion, sink)?;
            }
            (None, Some((Value::Array(prompt), Value::Array(completion))), _) => {
                let template = chat.ok_or_else(|| wrong(no_template()))?;
                let turns = completion_of(template, prompt, completion, tools.as_ref());
                take_conversation(&turns.map_err(wrong)?, sink)?;
            }
            (None, Some(_), _) => {
                let message = "\"prompt\" and \"completion\" are to be two texts or two lists of messages";
                return Err(wrong(message.to_string()));
            }
            (None, None, Some(text)) => take_document(&text, sink)?,
            (None, None, None) => return Err(wrong(no_document(line))),
        }
    }
    Ok(())
}

fn no_template() -> String {
    "a conversation needs a chat template, and the tokenizer's folder has none: set data.chat_template to \"chatml\" \
     or to the path of a template"
        .to_string()
}

fn no_document(line: &[u8]) -> String {
    let keys: Map<String, Value> = serde_json::from_slice(line).unwrap_or_default();
    let keys: Vec<_> = keys.keys().map(String::as_str).collect();
    format!("has no \"text\", \"prompt\" with \"completion\", or \"messages\"; its keys are {}", keys.join(", "))
}

/// The message of an error that concerns no file: the line is told by whoever reads it.
fn text_of<T>(result: Result<T>) -> std::result::Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn messages_of(messages: Vec<Value>) -> std::result::Result<Vec<Value>, String> {
    match messages.iter().position(|message| !message["role"].is_string()) {
        Some(number) => Err(format!("message {} is no object with a \"role\"", number + 1)),
        None => Ok(messages),
    }
}

/// The last messages alone are predicted.
fn completion_of(
    template: &ChatTemplate,
    prompt: Vec<Value>,
    completion: Vec<Value>,
    tools: Option<&Value>,
) -> std::result::Result<Vec<Turn>, String> {
    let asked = prompt.len();
    let messages = messages_of([prompt, completion].concat())?;
    let before = text_of(template.render(&messages[..asked], tools, true))?;
    let all = text_of(template.render(&messages, tools, false))?;
    let answer =
        all.strip_prefix(before.as_str()).ok_or("its template writes the prompt otherwise when an answer follows")?;
    let turn = |text: &str, predicted| Turn { text: text.to_string(), predicted };
    Ok([turn(&before, false), turn(answer, true)].into_iter().filter(|turn| !turn.text.is_empty()).collect())
}

fn take_conversation(turns: &[Turn], sink: &mut Sink) -> Result<()> {
    for Turn { text, predicted } in turns {
        sink(Piece::Turn(text, *predicted))?;
    }
    sink(Piece::EndOfChat)
}

fn take_answer(prompt: &str, completion: &str, sink: &mut Sink) -> Result<()> {
    if !prompt.is_empty() {
        sink(Piece::Prompt(prompt))?;
    }
    if !completion.is_empty() {
        sink(Piece::Text(completion))?;
    }
    if prompt.is_empty() && completion.is_empty() { Ok(()) } else { sink(Piece::End) }
}

#[cfg(test)]
mod tests {
    use super::super::chat::ChatSpec;
    use super::*;

    /// What is read of a text: "+" before what is predicted, "-" before what is not, "." and "!" for ends.
    fn read(text: &str, with_template: bool) -> Result<Vec<String>> {
        let chat = ChatTemplate::find(&ChatSpec { template: "chatml", folder: None })?.filter(|_| with_template);
        let mut pieces = vec![];
        let reader = Box::new(std::io::Cursor::new(text.as_bytes().to_vec()));
        read_json_lines(Path::new("some.jsonl"), reader, chat.as_ref(), &mut |piece| {
            pieces.push(match piece {
                Piece::Text(text) => format!("+{text}"),
                Piece::Prompt(text) => format!("-{text}"),
                Piece::Turn(text, predicted) => format!("{}{text}", if predicted { "+" } else { "-" }),
                Piece::End => ".".into(),
                Piece::EndOfChat => "!".into(),
            });
            Ok(())
        })?;
        Ok(pieces)
    }

    #[test]
    fn every_kind_of_line_is_read() {
        let lines = [
            r#"{"text": "all"}"#,
            "",
            r#"{"prompt": "2+2=", "completion": "4", "id": 7}"#,
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
            r#"{"prompt": [{"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]}"#,
        ];
        let expected = [
            "+all",
            ".",
            "-2+2=",
            "+4",
            ".",
            "-<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n",
            "+b<|im_end|>",
            "-\n",
            "!",
            "-<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
            "+d<|im_end|>\n",
            "!",
        ];
        assert_eq!(read(&lines.join("\n"), true).unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (line, with_template, expected) in [
            (r#"{"content": "x", "id": 1}"#, true, "its keys are content, id"),
            (r#"{"prompt": "x"}"#, true, "\"completion\""),
            (r#"{"prompt": "x", "completion": 3}"#, true, "two texts"),
            (r#"{"messages": [{"role": "user", "content": "a"}]}"#, true, "assistant"),
            (r#"{"messages": [{"content": "a"}]}"#, true, "message 1"),
            (r#"{"messages": [{"role": "assistant", "content": "a"}]}"#, false, "data.chat_template"),
            (r#"{"messages": "a"}"#, true, "line 2"),
            (r#"["text"]"#, true, "line 2"),
        ] {
            let error = read(&format!("{{\"text\": \"fine\"}}\n{line}"), with_template).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("some.jsonl") && error.contains("line 2"), "{error}");
        }
    }
}
