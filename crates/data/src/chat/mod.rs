//! Chat templates: render the messages of a conversation as one text, with the Jinja templates of Hugging Face models.
//!
//! Rendering agrees with transformers' `apply_chat_template` (`tests/goldens/chat.json`). A template may be untrusted,
//! so its computation is bounded.

mod environment;
mod generation;
mod methods;
mod named;
mod objects;
mod operators;
mod python;
mod rewrite;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value, json};

use environment::environment;
use generation::{MARKS, without_generation};
use rustyflow_base::error::{Error, Result};

/// ChatML (OpenAI 2023; the template of Qwen and others).
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}\
    {% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}\
    {% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// What rendering a conversation may take: an instruction is one, and so are 64 bytes that it makes. So it is done
/// within some 0.2 s and 128 MiB.
const FUEL: u64 = 2_000_000;

/// The two forms of a template: as transformers renders it, and with [`MARKS`] around answers.
const PLAIN: &str = "chat";
const MARKED: &str = "chat with marks";

/// Special tokens that templates name.
const TOKENS: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What a message's reasoning is called, the name that templates read first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Where the template of a conversation is.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChatSpec<'a> {
    /// `chatml`, the path of a template, or empty for that of `folder`.
    pub template: &'a str,
    /// The folder of the tokenizer.
    pub folder: Option<&'a Path>,
}

impl ChatSpec<'_> {
    /// Whether what it names is there, or it names nothing.
    pub fn is_there(&self) -> bool {
        match self.template {
            "" => self.folder.is_none_or(Path::is_dir),
            "chatml" => true,
            path => Path::new(path).is_file(),
        }
    }
}

/// A part of a conversation's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub text: String,
    /// Whether the assistant says it: then it is what a model learns.
    pub predicted: bool,
}

/// How conversations become text.
#[derive(Clone)]
pub struct ChatTemplate {
    source: String,
    /// What errors call it.
    name: String,
    environment: Environment<'static>,
    /// The special tokens that it may name.
    tokens: Map<String, Value>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("name", &self.name).field("tokens", &self.tokens).finish()
    }
}

impl PartialEq for ChatTemplate {
    fn eq(&self, other: &ChatTemplate) -> bool {
        (&self.source, &self.tokens) == (&other.source, &other.tokens)
    }
}

impl Eq for ChatTemplate {}

impl ChatTemplate {
    /// The template that `spec` means; `None` if it names none and the folder has none.
    ///
    /// # Errors
    /// If it cannot be read or is no template.
    pub fn find(spec: &ChatSpec) -> Result<Option<ChatTemplate>> {
        let folder = spec.folder.filter(|folder| folder.is_dir());
        let config =
            folder.map(|folder| read_json(&folder.join("tokenizer_config.json"))).transpose()?.unwrap_or_default();
        let mut tokens = special_tokens(&config);
        if let Some(folder) = folder {
            // Where older versions of transformers wrote them.
            for (name, token) in special_tokens(&read_json(&folder.join("special_tokens_map.json"))?) {
                tokens.entry(name).or_insert(token);
            }
        }
        match spec.template {
            "" => {}
            "chatml" => return ChatTemplate::new("chatml", CHATML, tokens).map(Some),
            path => return ChatTemplate::new(path, &read(Path::new(path))?, tokens).map(Some),
        }
        let Some(folder) = folder else { return Ok(None) };
        let found = named::find(folder, &config)?;
        found.map(|(name, source)| ChatTemplate::new(&name, &source, tokens)).transpose()
    }

    /// # Errors
    /// If `source` is no template.
    pub fn new(name: &str, source: &str, tokens: Map<String, Value>) -> Result<ChatTemplate> {
        let mut environment = environment();
        let failed = |error: minijinja::Error| bad(name, &format!("is no chat template: {}", describe(&error)));
        environment.add_template_owned(PLAIN, without_generation(source, false)).map_err(failed)?;
        environment.add_template_owned(MARKED, without_generation(source, true)).map_err(failed)?;
        Ok(ChatTemplate { source: source.to_string(), name: name.to_string(), environment, tokens })
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The special tokens that it may name, by what transformers calls them: `bos_token` and so on.
    pub fn tokens(&self) -> &Map<String, Value> {
        &self.tokens
    }

    /// The text of a conversation, a list of objects with `role` and `content`; with `answer_next`, up to where the
    /// assistant is to speak.
    ///
    /// # Errors
    /// What the template raises, or that it computes for too long.
    pub fn render(&self, messages: &[Value], tools: Option<&Value>, answer_next: bool) -> Result<String> {
        self.render_as(PLAIN, messages, tools, answer_next)
    }

    fn render_as(&self, form: &str, messages: &[Value], tools: Option<&Value>, answer_next: bool) -> Result<String> {
        let is_schemas = |tools: &Value| tools.as_array().is_some_and(|all| all.iter().all(Value::is_object));
        if tools.is_some_and(|tools| !is_schemas(tools)) {
            return Err(Error::Invalid("\"tools\" must be a list of JSON schemas, each an object".into()));
        }
        let mut context = self.tokens.clone();
        let messages: Vec<Value> = messages.iter().map(as_seen).collect();
        context.insert("messages".into(), messages.into());
        context.insert("add_generation_prompt".into(), answer_next.into());
        // Without tools and documents, these are none, and not undefined.
        context.insert("tools".into(), tools.cloned().unwrap_or_default());
        context.insert("documents".into(), Value::Null);
        let template = self.environment.get_template(form).expect("it was added");
        template.render(Serde(&context)).map_err(|error| bad(&self.name, &describe(&error)))
    }

    /// What it writes after an answer, by which the end of one is known: `<|im_end|>`, `</s>`. White space after that
    /// is left out, as models do; where there is nothing else, it is what ends an answer. `system` are the messages
    /// that a conversation begins with.
    ///
    /// # Errors
    /// Those of [`render`](ChatTemplate::render).
    pub fn end_of_answer(&self, system: &[Value]) -> Result<String> {
        const ANSWER: &str = "answer-7f3a";
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let messages = [system, &[message("user", "question"), message("assistant", ANSWER)]].concat();
        let text = self.render(&messages, None, false)?;
        let end = text.rfind(ANSWER).map_or("", |at| &text[at + ANSWER.len()..]);
        let without_space = end.trim_end();
        Ok(if without_space.is_empty() { end } else { without_space }.to_string())
    }

    /// The same of a conversation that begins as the template allows: with nothing, or with a message of the system.
    ///
    /// # Errors
    /// Those of [`render`](ChatTemplate::render), if it allows neither.
    pub fn end_of_answer_of_any(&self) -> Result<String> {
        let system = [json!({"role": "system", "content": "system"})];
        self.end_of_answer(&[]).or_else(|error| self.end_of_answer(&system).map_err(|_| error))
    }

    /// The text of a conversation in parts: what the assistant says, and what it only reads. What it says is what the
    /// template marks by `{% generation %}`. Without such marks, it is what follows when an answer is added to the
    /// messages before it.
    ///
    /// # Errors
    /// Those of [`render`](ChatTemplate::render); or if nobody is the assistant, or its words cannot be told apart.
    pub fn turns(&self, messages: &[Value], tools: Option<&Value>) -> Result<Vec<Turn>> {
        let is_answer = |message: &Value| message["role"] == "assistant";
        if !messages.iter().any(is_answer) {
            return Err(Error::Invalid("no message is of the role \"assistant\": there is nothing to learn".into()));
        }
        let all = self.render(messages, tools, false)?;
        let with_marks = self.render_as(MARKED, messages, tools, false)?;
        if with_marks != all {
            if with_marks.replace(MARKS, "") != all {
                let message = "changes what is within {% generation %} afterwards, by a filter for one, so what the \
                               assistant says cannot be told: write these blocks where their text is printed";
                return Err(bad(&self.name, message));
            }
            return Ok(marked(&with_marks));
        }
        let (mut turns, mut done) = (vec![], 0);
        for (number, _) in messages.iter().enumerate().filter(|(_, message)| is_answer(message)) {
            let before = self.render(&messages[..number], tools, true)?;
            let after = self.render(&messages[..=number], tools, false)?;
            if !all.starts_with(&after) || !after.starts_with(&before) || before.len() < done {
                return Err(bad(
                    &self.name,
                    "writes the beginning of a conversation otherwise than within the whole, so what the assistant \
                     says cannot be told: enclose it by {% generation %} and {% endgeneration %} in a template of \
                     your own (data.chat_template)",
                ));
            }
            turns.push(Turn { text: all[done..before.len()].to_string(), predicted: false });
            turns.push(Turn { text: all[before.len()..after.len()].to_string(), predicted: true });
            done = after.len();
        }
        turns.push(Turn { text: all[done..].to_string(), predicted: false });
        turns.retain(|turn| !turn.text.is_empty());
        Ok(turns)
    }
}

/// Splits a text at its marks.
fn marked(text: &str) -> Vec<Turn> {
    let mut turns = vec![];
    let mut predicted = false;
    for part in text.split_inclusive(MARKS) {
        let words = part.trim_end_matches(MARKS);
        if !words.is_empty() {
            turns.push(Turn { text: words.to_string(), predicted });
        }
        predicted = part.ends_with(MARKS[0]);
    }
    turns
}

/// A message as transformers hands it to a template: keys that are null are left out, because many templates would
/// write "None", and its reasoning is there under the names that templates use.
fn as_seen(message: &Value) -> Value {
    let Some(message) = message.as_object() else { return message.clone() };
    let kept = message.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone()));
    let kept = Map::from_iter(kept);
    let Some(reasoning) = REASONING.into_iter().find_map(|name| kept.get(name)).cloned() else { return kept.into() };
    let mut seen = Map::from_iter([("thinking".to_string(), reasoning.clone())]);
    seen.extend(kept);
    seen.insert("reasoning_content".into(), reasoning);
    seen.into()
}

/// What the tokenizer's configuration calls its special tokens.
fn special_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let text = |value: &Value| value.as_str().or(value["content"].as_str()).map(Value::from);
    TOKENS.into_iter().filter_map(|name| Some((name.to_string(), text(config.get(name)?)?))).collect()
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Error::io("read", path, error))
}

/// An object; empty if there is no such file.
fn read_json(path: &Path) -> Result<Map<String, Value>> {
    if !path.is_file() {
        return Ok(Map::new());
    }
    serde_json::from_str(&read(path)?)
        .map_err(|error| bad(&path.display().to_string(), &format!("is damaged: {error}")))
}

fn describe(error: &minijinja::Error) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return "it computes for too long, or makes too long a text: a loop may be endless".to_string();
    }
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line} of the template)"));
    match error.detail() {
        Some(detail) if error.kind() == ErrorKind::InvalidOperation => format!("{detail}{line}"),
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}

fn bad(name: &str, message: &str) -> Error {
    Error::Invalid(format!("the chat template {name}: {message}"))
}
