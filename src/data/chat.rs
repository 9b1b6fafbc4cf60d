//! Chat templates: how the messages of a conversation are written as one text, in the Jinja of Hugging Face's models.
//!
//! A template sees `messages`, `add_generation_prompt`, `tools`, `bos_token`, `eos_token` and so on, as in
//! transformers' `apply_chat_template`: blocks are trimmed, methods of Python's strings, lists and dicts are there, and
//! so are `raise_exception`, `strftime_now` and `tojson`. It may come from a stranger, so what it may compute is
//! bounded.

use std::fmt;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{Environment, ErrorKind, State};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// ChatML (OpenAI 2023; the template of Qwen and others).
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}\
    {% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}\
    {% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// What rendering a conversation may take: an instruction is one, and so are 64 bytes that it makes. So it is done
/// within some 0.2 s and 128 MiB.
const FUEL: u64 = 2_000_000;

/// Enclose what a template marks by `{% generation %}`. Private to this program, by Unicode's rules.
const MARKS: [char; 2] = ['\u{f5a01}', '\u{f5a02}'];

/// Special tokens that templates name.
const TOKENS: [&str; 5] = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token"];

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
        let tokens = special_tokens(&config);
        match spec.template {
            "" => {}
            "chatml" => return ChatTemplate::new("chatml", CHATML, tokens).map(Some),
            path => return ChatTemplate::new(path, &read(Path::new(path))?, tokens).map(Some),
        }
        let Some(folder) = folder else { return Ok(None) };
        let file = folder.join("chat_template.jinja");
        if file.is_file() {
            return ChatTemplate::new(&file.display().to_string(), &read(&file)?, tokens).map(Some);
        }
        let name = folder.join("tokenizer_config.json").display().to_string();
        let named = |all: &Vec<Value>| {
            let is_default = |one: &&Value| one["name"] == "default";
            all.iter().find(is_default).or(all.first()).and_then(|one| one["template"].as_str().map(str::to_string))
        };
        let source = match config.get("chat_template") {
            Some(Value::String(source)) => Some(source.clone()),
            Some(Value::Array(all)) => named(all),
            _ => None,
        };
        source.map(|source| ChatTemplate::new(&name, &source, tokens)).transpose()
    }

    /// # Errors
    /// If `source` is no template.
    pub fn new(name: &str, source: &str, tokens: Map<String, Value>) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the usual delimiters"));
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_function("strftime_now", |format: String| jiff::Zoned::now().strftime(&format).to_string());
        environment.add_function("generation", mark);
        let failed = |error: minijinja::Error| bad(name, &format!("is no chat template: {}", describe(&error)));
        environment.add_template_owned("chat", with_calls(source)).map_err(failed)?;
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
        let text = self.render_marked(messages, tools, answer_next)?;
        Ok(text.replace(MARKS, ""))
    }

    fn render_marked(&self, messages: &[Value], tools: Option<&Value>, answer_next: bool) -> Result<String> {
        let mut context = self.tokens.clone();
        context.insert("messages".into(), messages.into());
        context.insert("add_generation_prompt".into(), answer_next.into());
        if let Some(tools) = tools {
            context.insert("tools".into(), tools.clone());
        }
        let template = self.environment.get_template("chat").expect("it was added");
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
        let all = self.render_marked(messages, tools, false)?;
        if all.contains(MARKS) {
            return Ok(marked(&all));
        }
        let (mut turns, mut done) = (vec![], 0);
        for (number, _) in messages.iter().enumerate().filter(|(_, message)| is_answer(message)) {
            let before = self.render_marked(&messages[..number], tools, true)?;
            let after = self.render_marked(&messages[..=number], tools, false)?;
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

/// Encloses what `{% call generation() %}` holds by [`MARKS`].
fn mark(state: &mut State, options: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let body: Jinja = options.get("caller")?;
    let body = body.call(state, &[])?;
    Ok(format!("{}{body}{}", MARKS[0], MARKS[1]))
}

/// The template with transformers' block `generation` as a call block, which the library has.
fn with_calls(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        out.push_str(&rest[..at]);
        let Some(end) = rest[at..].find("%}").map(|end| at + end + 2) else { break };
        let tag = &rest[at..end];
        let inside = tag.get(2..tag.len() - 2).unwrap_or_default();
        let word = inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replace(word, "call generation()")),
            "endgeneration" => out.push_str(&tag.replace(word, "endcall")),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        let tokens = special_tokens(json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}}).as_object().unwrap());
        ChatTemplate::new("test", source, tokens).unwrap()
    }

    fn messages() -> Vec<Value> {
        let all = [("user", "Hi"), ("assistant", " Hello. "), ("user", "Bye"), ("assistant", "So long")];
        all.map(|(role, content)| json!({"role": role, "content": content})).to_vec()
    }

    /// As Llama 2 and Mistral have it, shortened.
    const INSTRUCT: &str = "{{ bos_token }}{%- for message in messages %}\n    {%- if message.role == 'user' -%}\n\
        {{ '[INST] ' + message.content.strip() + ' [/INST]' }}\n    {%- elif message['role'] == 'assistant' -%}\n\
        {{ message['content'] | trim + eos_token }}\n    {%- else %}\n        {{ raise_exception('only users') }}\n\
        {%- endif %}\n{%- endfor %}";

    #[test]
    fn a_conversation_is_written_as_the_template_says() {
        let text = template(INSTRUCT).render(&messages(), None, false).unwrap();
        assert_eq!(text, "<s>[INST] Hi [/INST]Hello.</s>[INST] Bye [/INST]So long</s>");
        let chatml = ChatTemplate::find(&ChatSpec { template: "chatml", folder: None }).unwrap().unwrap();
        let text = chatml.render(&messages()[..1], None, true).unwrap();
        assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn what_ends_an_answer_is_what_the_template_writes_after_it() {
        let chatml = ChatTemplate::find(&ChatSpec { template: "chatml", folder: None }).unwrap().unwrap();
        let system = [json!({"role": "system", "content": "Be brief."})];
        for (template, system, expected) in [
            (chatml.clone(), &[][..], "<|im_end|>"),
            (chatml, &system, "<|im_end|>"),
            (template(INSTRUCT), &[], "</s>"),
            (template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"), &[], "\n"),
            (template("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"), &[], ""),
        ] {
            assert_eq!(template.end_of_answer(system).unwrap(), expected);
        }
        assert!(template(INSTRUCT).end_of_answer(&system).unwrap_err().to_string().contains("only users"));
    }

    #[test]
    fn answers_are_found_without_marks() {
        let turns = template(INSTRUCT).turns(&messages(), None).unwrap();
        let turns: Vec<_> = turns.iter().map(|turn| (turn.text.as_str(), turn.predicted)).collect();
        assert_eq!(
            turns,
            [
                ("<s>[INST] Hi [/INST]", false),
                ("Hello.</s>", true),
                ("[INST] Bye [/INST]", false),
                ("So long</s>", true)
            ]
        );
    }

    #[test]
    fn answers_are_found_by_marks() {
        let chatml = ChatTemplate::find(&ChatSpec { template: "chatml", folder: None }).unwrap().unwrap();
        let turns = chatml.turns(&messages(), None).unwrap();
        let answers: Vec<_> = turns.iter().filter(|turn| turn.predicted).map(|turn| turn.text.as_str()).collect();
        assert_eq!(answers, [" Hello. <|im_end|>", "So long<|im_end|>"]);
        let all: String = turns.iter().map(|turn| turn.text.as_str()).collect();
        assert_eq!(all, chatml.render(&messages(), None, false).unwrap());
        // White space around the tags goes as around any other.
        let trimmed = template(
            "{% for m in messages %}\n  {%- generation -%}\n  {{ m.content }}\n  {%- endgeneration %}\nx{% endfor %}",
        );
        assert_eq!(trimmed.render(&messages()[..1], None, false).unwrap(), "Hix");
    }

    #[test]
    fn a_template_that_rewrites_what_was_said_is_refused() {
        let last_only = "{% for m in messages %}{{ m.role }}{% if loop.last %}!{% endif %}{% endfor %}";
        let error = template(last_only).turns(&messages(), None).unwrap_err().to_string();
        assert!(error.contains("{% generation %}") && error.contains("data.chat_template"), "{error}");
    }

    #[test]
    fn what_a_template_raises_is_told() {
        let messages = [json!({"role": "system", "content": "x"})];
        let error = template(INSTRUCT).render(&messages, None, false).unwrap_err().to_string();
        assert!(error.contains("only users") && error.contains("test"), "{error}");
        let error = template(INSTRUCT).turns(&messages, None).unwrap_err().to_string();
        assert!(error.contains("assistant"), "{error}");
        let error = ChatTemplate::new("broken", "{% for %}", Map::new()).unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains("line 1"), "{error}");
    }

    #[test]
    fn an_endless_loop_ends() {
        let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a %}{% endfor %}{% endfor %}";
        let error = template(loops).render(&messages(), None, false).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
        let calls = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
        assert!(template(calls).render(&messages(), None, false).is_err());
    }

    #[test]
    fn a_text_that_doubles_ends() {
        // 2 to the 60th, in sixty steps: as an operand, as a captured block, by a method and by a filter.
        for twice in [
            "{% set n.x = n.x ~ n.x %}",
            "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}",
            "{% set n.x = n.x.replace('a', 'aa') %}",
            "{% set n.x = [n.x, n.x] | join %}",
        ] {
            let source = "{% set n = namespace(x='a') %}{% for i in range(60) %}".to_string() + twice + "{% endfor %}";
            let error = template(&source).render(&messages(), None, false).unwrap_err().to_string();
            assert!(error.contains("too long a text"), "{twice}: {error}");
        }
    }

    #[test]
    fn the_template_of_a_folder_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let find = || ChatTemplate::find(&ChatSpec { template: "", folder: Some(folder.path()) }).unwrap();
        assert!(find().is_none());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let templates = json!([{"name": "rag", "template": "no"}, {"name": "default", "template": "{{ eos_token }}1"}]);
        write("tokenizer_config.json", &json!({"eos_token": "E", "chat_template": templates}).to_string());
        assert_eq!(find().unwrap().render(&messages(), None, false).unwrap(), "E1");
        write("chat_template.jinja", "{{ eos_token }}2");
        assert_eq!(find().unwrap().render(&messages(), None, false).unwrap(), "E2");
    }
}
