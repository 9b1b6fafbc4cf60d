//! One object of a corpus in JSON: a text, an answer to a prompt, a conversation, or what of two answers is preferred.
//!
//! Its keys are those of Hugging Face's TRL and of OpenAI (`text`; `prompt` and `completion`; `messages`; `prompt`,
//! `chosen` and `rejected`; `prompt`, `completion` and a boolean `label`). The prompt of a pair without one is what
//! both answers begin with. ShareGPT's (`conversations` of `from` and `value`) and Alpaca's (`instruction`, `input` and
//! `output`) are mapped to them.

use serde_json::{Map, Value, json};

use super::chat::{ChatTemplate, Turn};
use super::documents::Label;
use super::source::{Piece, Sink};
use rustyflow_base::error::Result;

/// Objects whose keys were mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mapped {
    pub share_gpt: u64,
    pub alpaca: u64,
}

impl std::ops::AddAssign for Mapped {
    fn add_assign(&mut self, other: Mapped) {
        self.share_gpt += other.share_gpt;
        self.alpaca += other.alpaca;
    }
}

/// The contents of an object.
enum Row {
    Text(String),
    Answers { prompt: String, completions: Vec<(String, Label)> },
    Chat { messages: Vec<Value> },
    Completions { prompt: Vec<Value>, completions: Vec<(Vec<Value>, Label)> },
}

/// Why an object is no row: what is wrong with it, or an error of the sink.
pub(super) enum Failure {
    Row(String),
    Sink(rustyflow_base::error::Error),
}

type Parsed<T> = std::result::Result<T, String>;

/// Passes an object's contents to the sink.
///
/// # Errors
/// If it has none of the known keys, a conversation has no chat template, or `sink` fails.
pub(super) fn take_row(
    value: Value,
    chat: Option<&ChatTemplate>,
    sink: &mut Sink,
) -> std::result::Result<Mapped, Failure> {
    let Value::Object(mut row) = value else {
        let message = format!("is {}, expected an object such as {{\"text\": \"...\"}}", kind_of(&value));
        return Err(Failure::Row(message));
    };
    let mut mapped = Mapped::default();
    let (row, tools) =
        tools_of(&mut row).and_then(|tools| Ok((row_of(row, chat, &mut mapped)?, tools))).map_err(Failure::Row)?;
    let with_template = |turns: &dyn Fn(&ChatTemplate) -> Parsed<Vec<Turn>>| {
        chat.ok_or_else(no_template).and_then(turns).map_err(Failure::Row)
    };
    let taken = match row {
        Row::Text(text) => super::source::take_document(&text, sink),
        Row::Answers { prompt, completions } => {
            completions.iter().try_for_each(|(completion, label)| take_answer(&prompt, completion, *label, sink))
        }
        Row::Chat { messages } => {
            let turns = with_template(&|template| text_of(template.turns(&messages, tools.as_ref())))?;
            take_conversation(&turns, Label::None, sink)
        }
        Row::Completions { prompt, completions } => {
            for (completion, label) in completions {
                let turns = with_template(&|template| completion_of(template, &prompt, &completion, tools.as_ref()))?;
                take_conversation(&turns, label, sink).map_err(Failure::Sink)?;
            }
            Ok(())
        }
    };
    taken.map(|()| mapped).map_err(Failure::Sink)
}

/// The keys of which a row needs one.
const EXPECTED: &str = "\"text\", \"prompt\" with \"completion\", \"messages\", \"chosen\" with \"rejected\", \
                        \"conversations\" or \"instruction\" with \"output\"";

fn row_of(mut row: Map<String, Value>, chat: Option<&ChatTemplate>, mapped: &mut Mapped) -> Parsed<Row> {
    let has = |key: &str| row.get(key).is_some_and(|value| !value.is_null());
    if has("chosen") && has("rejected") {
        return pair(row);
    }
    if has("messages") {
        return Ok(Row::Chat { messages: messages_of(list(&mut row, "messages")?)? });
    }
    if has("prompt") && has("completion") {
        let label = match row.get("label") {
            Some(Value::Bool(true)) => Label::Desirable,
            Some(Value::Bool(false)) => Label::Undesirable,
            _ => Label::None,
        };
        return match (row.remove("prompt"), row.remove("completion")) {
            (Some(Value::String(_)), Some(Value::String(completion)))
                if completion.is_empty() && label != Label::None =>
            {
                Err("\"completion\" is empty".to_string())
            }
            (Some(Value::String(prompt)), Some(Value::String(completion))) => {
                Ok(Row::Answers { prompt, completions: vec![(completion, label)] })
            }
            (Some(Value::Array(prompt)), Some(Value::Array(completion))) => Ok(Row::Completions {
                prompt: messages_of(prompt)?,
                completions: vec![(messages_of(completion)?, label)],
            }),
            _ => Err("\"prompt\" and \"completion\" must be two texts or two lists of messages".to_string()),
        };
    }
    if has("text") {
        return Ok(Row::Text(text(&mut row, "text")?));
    }
    if has("conversations") {
        mapped.share_gpt = 1;
        return share_gpt(row);
    }
    if has("instruction") && has("output") {
        mapped.alpaca = 1;
        return alpaca(row, chat);
    }
    let null: Vec<String> =
        row.iter().filter(|(_, value)| value.is_null()).map(|(key, _)| format!("{key:?}")).collect();
    let keys: Vec<&str> = row.keys().map(String::as_str).collect();
    Err(match (null.is_empty(), keys.is_empty()) {
        (_, true) => format!("is an empty object, expected {EXPECTED}"),
        (true, _) => format!("has no {EXPECTED}; its keys are {}", keys.join(", ")),
        (false, _) => format!("{} is null, expected {EXPECTED}", null.join(" and ")),
    })
}

/// Two answers to a prompt.
fn pair(mut row: Map<String, Value>) -> Parsed<Row> {
    const LABELS: [Label; 2] = [Label::Chosen, Label::Rejected];
    let prompt = row.remove("prompt").filter(|prompt| !prompt.is_null());
    let other = ["question", "instruction", "input", "query"].into_iter().find(|key| row.contains_key(*key));
    if let (None, Some(other)) = (&prompt, other) {
        return Err(format!("has no \"prompt\", but {other:?}: rename it to \"prompt\""));
    }
    match (prompt, row.remove("chosen"), row.remove("rejected")) {
        (Some(Value::Array(prompt)), Some(Value::Array(chosen)), Some(Value::Array(rejected))) => {
            let completions = [messages_of(chosen)?, messages_of(rejected)?].into_iter().zip(LABELS).collect();
            Ok(Row::Completions { prompt: messages_of(prompt)?, completions })
        }
        // Beside conversations a text repeats their first message, as in UltraFeedback.
        (None | Some(Value::String(_)), Some(Value::Array(chosen)), Some(Value::Array(rejected))) => {
            let (chosen, rejected) = (messages_of(chosen)?, messages_of(rejected)?);
            let most = chosen.len().min(rejected.len()).saturating_sub(1);
            let common = chosen.iter().zip(&rejected).take(most).take_while(|(a, b)| a == b).count();
            if common == 0 {
                return Err("\"chosen\" and \"rejected\" begin with different messages: there is no prompt".into());
            }
            let rest = [chosen[common..].to_vec(), rejected[common..].to_vec()];
            Ok(Row::Completions {
                prompt: chosen[..common].to_vec(),
                completions: rest.into_iter().zip(LABELS).collect(),
            })
        }
        (Some(Value::String(prompt)), Some(Value::String(chosen)), Some(Value::String(rejected))) => {
            answers(prompt, [chosen, rejected])
        }
        (None, Some(Value::String(chosen)), Some(Value::String(rejected))) => {
            let common = common_beginning(&chosen, &rejected);
            answers(common.to_string(), [&chosen, &rejected].map(|answer| answer[common.len()..].to_string()))
        }
        _ => Err(
            "\"chosen\" and \"rejected\" must be two texts or two lists of messages, with a \"prompt\" of the same \
                  kind or none"
                .to_string(),
        ),
    }
}

fn answers(prompt: String, [chosen, rejected]: [String; 2]) -> Parsed<Row> {
    for (answer, key) in [(&chosen, "chosen"), (&rejected, "rejected")] {
        if answer.is_empty() {
            return Err(format!("{key:?} has no answer after the prompt"));
        }
    }
    Ok(Row::Answers { prompt, completions: vec![(chosen, Label::Chosen), (rejected, Label::Rejected)] })
}

/// What two texts begin with, without the space after it: it is part of the words that follow.
fn common_beginning<'a>(a: &'a str, b: &str) -> &'a str {
    let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    a[..common].strip_suffix(' ').unwrap_or(&a[..common])
}

/// ShareGPT's: who speaks is called `from`, and what is said `value`.
fn share_gpt(mut row: Map<String, Value>) -> Parsed<Row> {
    let turns = list(&mut row, "conversations")?;
    let mut messages = system_of(&mut row)?;
    if turns.iter().all(|turn| turn["role"].is_string()) {
        messages.extend(turns);
        return Ok(Row::Chat { messages: messages_of(messages)? });
    }
    for (number, turn) in turns.iter().enumerate() {
        let number = number + 1;
        let role = match turn["from"].as_str() {
            Some("human" | "user") => "user",
            Some("gpt" | "assistant" | "chatgpt" | "model" | "bing" | "bard") => "assistant",
            Some("system") => "system",
            Some("tool" | "observation" | "function_response") => "tool",
            Some(other) => {
                return Err(format!("turn {number} is from {other:?}, expected human, gpt, system or tool"));
            }
            None => return Err(format!("turn {number} is not an object with \"from\" and \"value\"")),
        };
        let value = turn["value"].as_str();
        let content = value.ok_or_else(|| format!("the \"value\" of turn {number} is {}", kind_of(&turn["value"])))?;
        messages.push(json!({"role": role, "content": content}));
    }
    Ok(Row::Chat { messages })
}

/// Alpaca's: a conversation where a template can write one, and otherwise the prompt of Stanford's.
fn alpaca(mut row: Map<String, Value>, chat: Option<&ChatTemplate>) -> Parsed<Row> {
    let instruction = text(&mut row, "instruction")?;
    let output = text(&mut row, "output")?;
    let has_input = row.get("input").is_some_and(|input| !input.is_null());
    let input = if has_input { text(&mut row, "input")? } else { String::new() };
    if chat.is_some() {
        let question = if input.is_empty() { instruction } else { format!("{instruction}\n{input}") };
        let mut messages = system_of(&mut row)?;
        if let Some(history) = row.remove("history").filter(|history| !history.is_null()) {
            for pair in history.as_array().ok_or("\"history\" must be a list of pairs of texts")? {
                let (Some(asked), Some(answered)) = (pair[0].as_str(), pair[1].as_str()) else {
                    return Err("\"history\" must be a list of pairs of texts".to_string());
                };
                messages.push(json!({"role": "user", "content": asked}));
                messages.push(json!({"role": "assistant", "content": answered}));
            }
        }
        messages.push(json!({"role": "user", "content": question}));
        messages.push(json!({"role": "assistant", "content": output}));
        return Ok(Row::Chat { messages });
    }
    let (context, input) = match input.is_empty() {
        true => ("", String::new()),
        false => (", paired with an input that provides further context", format!("### Input:\n{input}\n\n")),
    };
    let prompt = format!(
        "Below is an instruction that describes a task{context}. Write a response that appropriately completes the \
         request.\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n"
    );
    Ok(Row::Answers { prompt, completions: vec![(output, Label::None)] })
}

/// The message of a system prompt beside the turns.
fn system_of(row: &mut Map<String, Value>) -> Parsed<Vec<Value>> {
    match row.remove("system") {
        Some(Value::String(system)) if !system.is_empty() => Ok(vec![json!({"role": "system", "content": system})]),
        None | Some(Value::Null | Value::String(_)) => Ok(vec![]),
        Some(other) => Err(format!("\"system\" is {}, expected a text", kind_of(&other))),
    }
}

/// JSON schemas; ShareGPT's are a text that holds them.
fn tools_of(row: &mut Map<String, Value>) -> Parsed<Option<Value>> {
    match row.remove("tools") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| format!("\"tools\" is a text that is not JSON: {error}")),
        Some(tools) => Ok(Some(tools)),
    }
}

fn text(row: &mut Map<String, Value>, key: &str) -> Parsed<String> {
    match row.remove(key) {
        Some(Value::String(text)) => Ok(text),
        other => Err(format!("{key:?} is {}, expected a text", kind_of(&other.unwrap_or_default()))),
    }
}

fn list(row: &mut Map<String, Value>, key: &str) -> Parsed<Vec<Value>> {
    match row.remove(key) {
        Some(Value::Array(all)) if all.is_empty() => Err(format!("{key:?} is an empty list")),
        Some(Value::Array(all)) => Ok(all),
        other => Err(format!("{key:?} is {}, expected a list", kind_of(&other.unwrap_or_default()))),
    }
}

fn kind_of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a text".to_string(),
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "an object".to_string(),
    }
}

/// What is missing for a conversation without a chat template.
pub const NO_TEMPLATE: &str = "a conversation needs a chat template, and the tokenizer's folder has none: set \
                               data.chat_template to \"chatml\" or to the path of a template";

fn no_template() -> String {
    NO_TEMPLATE.to_string()
}

/// The message of an error that concerns no file: the place is told by whoever reads it.
fn text_of<T>(result: Result<T>) -> Parsed<T> {
    result.map_err(|error| error.to_string())
}

fn messages_of(messages: Vec<Value>) -> Parsed<Vec<Value>> {
    match messages.iter().position(|message| !message["role"].is_string()) {
        Some(number) => Err(format!("message {} is not an object with a \"role\"", number + 1)),
        None => Ok(messages),
    }
}

/// The last messages alone are predicted.
fn completion_of(
    template: &ChatTemplate,
    prompt: &[Value],
    completion: &[Value],
    tools: Option<&Value>,
) -> Parsed<Vec<Turn>> {
    let messages = [prompt, completion].concat();
    let before = text_of(template.render(prompt, tools, true))?;
    let all = text_of(template.render(&messages, tools, false))?;
    let answer = all
        .strip_prefix(before.as_str())
        .ok_or("its template renders the prompt differently when an answer follows")?;
    let turn = |text: &str, predicted| Turn { text: text.to_string(), predicted };
    Ok([turn(&before, false), turn(answer, true)].into_iter().filter(|turn| !turn.text.is_empty()).collect())
}

fn take_conversation(turns: &[Turn], label: Label, sink: &mut Sink) -> Result<()> {
    for Turn { text, predicted } in turns {
        sink(Piece::Turn(text, *predicted))?;
    }
    sink(Piece::EndOfChat(label))
}

fn take_answer(prompt: &str, completion: &str, label: Label, sink: &mut Sink) -> Result<()> {
    if !prompt.is_empty() {
        sink(Piece::Prompt(prompt))?;
    }
    if !completion.is_empty() {
        sink(Piece::Text(completion))?;
    }
    if prompt.is_empty() && completion.is_empty() { Ok(()) } else { sink(Piece::End(label)) }
}
