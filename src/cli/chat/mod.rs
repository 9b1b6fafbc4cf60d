//! `rustyflow chat`: a conversation with a model, line by line.

mod conversation;

use super::interrupt::{Interrupted, Interrupts};
use super::sampling::{self, SamplingFlags};
use super::{complete, configuration, device, model, output};
use crate::Error;
use crate::config::WeightDtype;
use crate::data::{ChatSpec, ChatTemplate, Ending, Tokenizer};
use crate::generate::{Sampling, Session, TextWriter, printable};
use crate::models::{LanguageModel, hf};
use anyhow::{Result, bail};
use conversation::{Conversation, Prompt};
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

const HELP: &str = r#"/reset        start a new conversation
/save FILE    add the conversation to FILE as a line {"messages": [..]}, for `rustyflow train`
/quit         quit, like Ctrl-D
//..          a message that begins with one /
Ctrl-C stops the current answer, or the program if there is none."#;

#[derive(clap::Args)]
#[command(after_help = super::examples::CHAT)]
pub struct Args {
    /// A run (folder or name), the folder of a checkpoint, model or adapter, a GGUF file, or the name of a fetched
    /// model [default: the newest run]
    #[arg(long, value_name = "MODEL", add = complete::runs())]
    model: Option<PathBuf>,
    /// The system message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// The chat template: chatml, or the path of a Jinja file [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    #[command(flatten)]
    sampling: SamplingFlags,
    /// Keep special tokens in answers, as <|tool_call|>; the one that ends an answer is never shown
    #[arg(long)]
    special_tokens: bool,
    /// Print one JSON object for each answer instead, with the speed
    #[arg(long)]
    pub json: bool,
    /// Type of the weights in matmuls: f32, f16 on a GPU (half the memory), or quantized: q8_0, q4_0, nf4
    #[arg(long, value_name = "DTYPE", default_value_t = WeightDtype::F32, add = complete::dtypes())]
    dtype: WeightDtype,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: Args, interrupts: &Interrupts) -> Result<()> {
    let config = configuration::of_environment()?;
    let spec = args.chat_template.as_deref().unwrap_or(&config.data.chat_template);
    let (folder, (template, model, text, settings)) = model::read(args.model.as_deref(), |folder| {
        let template = template(folder, spec)?;
        let device = device::open(&args.device.over(&config.device))?;
        let (model, text) = model::load(args.dtype, folder, &device)?;
        let settings = args.sampling.over_run(folder, config.generate.clone(), &text.tokenizer)?;
        Ok((template, model, text, settings))
    })?;
    let (tokenizer, (settings, sampling)) = (&text.tokenizer, settings);
    let conversation = Conversation::new(&template, tokenizer, args.system.as_deref());
    let ending = text.ending(&template, conversation.system(), settings.stop)?;
    let interactive = !args.json && io::stdin().is_terminal() && io::stdout().is_terminal();
    if interactive {
        let (shape, folder) = (model.config(), folder.display());
        let (kind, context) = (shape.kind.as_str(), shape.block_size);
        output::note(format_args!("{folder}: {kind}, context {context}; /help lists the commands, Ctrl-D ends"));
    }
    let mut chat = Chat {
        session: Session::new(&*model, &sampling)?,
        model: &*model,
        tokenizer,
        sampling: &sampling,
        conversation,
        ending,
        shows_special: args.special_tokens,
        max_new_tokens: settings.max_new_tokens,
        interactive,
        json: args.json,
        interrupts,
        answers: 0,
    };
    chat.talk()
}

/// The template that `spec` names, or that of the model in a folder.
fn template(folder: &Path, spec: &str) -> Result<ChatTemplate> {
    let tokenizer = hf::tokenizer_folder(folder)?;
    ChatTemplate::find(&ChatSpec { template: spec, folder: Some(&tokenizer) })?.ok_or_else(|| {
        let message = "has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json), so \
                       conversations cannot be rendered: set --chat-template to chatml or to the path of a template, \
                       or use `rustyflow generate` if the model is not instruction-tuned";
        Error::Checkpoint { path: tokenizer, message: message.to_string() }.into()
    })
}

/// A conversation, and the model that answers.
struct Chat<'a> {
    model: &'a dyn LanguageModel,
    tokenizer: &'a Tokenizer,
    sampling: &'a Sampling,
    session: Session<'a>,
    conversation: Conversation<'a>,
    ending: Ending,
    /// Whether special tokens are part of an answer.
    shows_special: bool,
    max_new_tokens: usize,
    /// Whether a person sits at a terminal.
    interactive: bool,
    json: bool,
    interrupts: &'a Interrupts,
    answers: usize,
}

/// What the model said.
struct Answer {
    text: String,
    /// Its tokens with those of its end.
    ids: Vec<u32>,
    end: Cause,
    computed_tokens: usize,
    first_token_seconds: f64,
    seconds: f64,
}

/// Why an answer is over.
#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Cause {
    EndOfAnswer,
    MaxTokens,
    Context,
    Interrupt,
}

impl Chat<'_> {
    /// Takes lines until there are no more.
    fn talk(&mut self) -> Result<()> {
        let mut line = String::new();
        loop {
            self.interrupts.end_at_once(self.interactive);
            if self.interactive {
                output::now(if output::has_colours(&io::stdout()) { "\x1b[1m>\x1b[0m " } else { "> " })?;
            }
            line.clear();
            if io::stdin().read_line(&mut line).map_err(|e| Error::io("read", "standard input", e))? == 0 {
                return if self.interactive { Ok(output::line("")?) } else { Ok(()) };
            }
            match self.take(line.trim_end_matches(['\n', '\r'])) {
                Ok(ControlFlow::Break(())) => return Ok(()),
                Ok(ControlFlow::Continue(())) => {}
                // A person can mend it; whoever wrote a file has to be told.
                Err(error) if self.interactive && !is_final(&error) => output::error(format_args!("error: {error}")),
                Err(error) => return Err(error),
            }
        }
    }

    /// A command or a message.
    fn take(&mut self, line: &str) -> Result<ControlFlow<()>> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            _ if line.trim().is_empty() => {}
            "/quit" => return Ok(ControlFlow::Break(())),
            "/help" => output::error(HELP),
            "/reset" => self.reset()?,
            "/save" => self.save(rest.trim())?,
            _ if line.starts_with("//") => self.answer(&line[1..])?,
            _ if line.starts_with('/') => {
                bail!("unknown command {word}: /help lists the commands; write // for a message that starts with /")
            }
            _ => self.answer(line)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    fn reset(&mut self) -> Result<()> {
        self.conversation.reset();
        self.session = Session::new(self.model, self.sampling)?;
        Ok(())
    }

    fn save(&self, path: &str) -> Result<()> {
        if path.is_empty() {
            bail!("/save: name the file, as in /save chat.jsonl");
        }
        let messages = self.conversation.save(Path::new(path))?;
        output::error(format_args!("{messages} messages are in {path}"));
        Ok(())
    }

    /// Prints what the model says to a message.
    fn answer(&mut self, message: &str) -> Result<()> {
        let context = self.model.config().block_size;
        let prompt = self.conversation.ask(message, context, self.max_new_tokens)?;
        if prompt.forgets && !self.json {
            output::note(format_args!(
                "note: the conversation exceeds the context of {context} tokens: the oldest turns are dropped from \
                 now on"
            ));
        }
        let answer = self.generate(&prompt).inspect_err(|_| self.conversation.take_back())?;
        self.answers += 1;
        self.report(&prompt, &answer)?;
        match answer.text.is_empty() && answer.end == Cause::Interrupt {
            true => self.conversation.take_back(),
            false => self.conversation.answer(prompt, answer.text, &answer.ids)?,
        }
        if answer.end == Cause::Interrupt && self.interrupts.is_terminated() {
            return Err(Interrupted.into());
        }
        Ok(())
    }

    /// Draws an answer and shows it as it comes.
    fn generate(&mut self, prompt: &Prompt) -> Result<Answer> {
        let started = Instant::now();
        let writer = TextWriter::new(self.tokenizer, &self.ending.texts);
        let mut writer = if self.shows_special { writer } else { writer.without_special_tokens() };
        // Not shown, but what a token means may depend on those before it.
        prompt.ids.iter().try_for_each(|id| writer.push_prompt(*id).map(drop))?;
        let room = self.model.config().block_size - prompt.ids.len();
        let mut end = if room < self.max_new_tokens { Cause::Context } else { Cause::MaxTokens };
        let (mut text, mut ids, mut first_token_seconds) = (String::new(), vec![], 0.0);
        let (streams, stop) = (!self.json, self.interrupts.stop());
        let show = |piece: &str, text: &mut String| {
            text.push_str(piece);
            let shown = if streams { output::now(&printable(piece)) } else { Ok(()) };
            shown.map_err(|e| Error::io("write to", "standard output", e))
        };
        self.interrupts.stop_after("");
        let computed_tokens = self.session.generate(&prompt.ids, self.max_new_tokens, &mut |id| {
            if stop.load(Ordering::Relaxed) {
                end = Cause::Interrupt;
                return Ok(ControlFlow::Break(()));
            }
            if ids.is_empty() {
                first_token_seconds = started.elapsed().as_secs_f64();
            }
            ids.push(id);
            if !self.ending.ids.contains(&id) {
                show(&writer.push(id)?, &mut text)?;
                if writer.end().is_none() {
                    return Ok(ControlFlow::Continue(()));
                }
            }
            end = Cause::EndOfAnswer;
            Ok(ControlFlow::Break(()))
        })?;
        show(&writer.finish()?, &mut text)?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(Answer { text, ids, end, computed_tokens, first_token_seconds, seconds })
    }

    /// What follows an answer: the end of its line, and why it was cut; or all of it as JSON.
    fn report(&self, prompt: &Prompt, answer: &Answer) -> Result<()> {
        let (tokens, context) = (answer.ids.len(), self.model.config().block_size);
        if self.json {
            let mut object = sampling::speed(prompt.ids.len(), tokens, answer.seconds);
            let mut set = |key: &str, value: serde_json::Value| object[key] = value;
            set("kind", "answer".into());
            set("answer", self.answers.into());
            set("text", answer.text.as_str().into());
            set("end", serde_json::to_value(answer.end)?);
            set("computed_tokens", answer.computed_tokens.into());
            set("forgotten_messages", self.conversation.forgotten().into());
            set("first_token_seconds", answer.first_token_seconds.into());
            return Ok(output::line(object)?);
        }
        output::line("")?;
        match answer.end {
            Cause::MaxTokens => output::note(format_args!("note: cut after {tokens} tokens; --max-tokens allows more")),
            Cause::Context => {
                output::note(format_args!("note: cut at the end of the model's context of {context} tokens"))
            }
            Cause::EndOfAnswer | Cause::Interrupt => {}
        }
        if self.interactive {
            output::line("")?;
        }
        tracing::info!("{tokens} tokens, {:.2} ms each", 1e3 * answer.seconds / (tokens as f64).max(1.0));
        Ok(())
    }
}

/// Whether nothing can follow an error.
fn is_final(error: &anyhow::Error) -> bool {
    error.is::<Interrupted>() || output::is_broken_pipe(error)
}
