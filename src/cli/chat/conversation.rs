//! What was said, and the tokens that the model sees of it.

use crate::Error;
use crate::data::{ChatTemplate, Tokenizer};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// The messages of a conversation.
pub(super) struct Conversation<'a> {
    template: &'a ChatTemplate,
    tokenizer: &'a Tokenizer,
    /// The system's message, if there is one; then what was said, by turns.
    messages: Vec<Value>,
    /// How many there are of the system: 0 or 1.
    system: usize,
    /// How many of those after it the model no longer sees.
    forgotten: usize,
    /// The last prompt and its answer, and their tokens.
    seen: Prompt,
}

/// What the model continues.
#[derive(Default)]
pub(super) struct Prompt {
    text: String,
    pub ids: Vec<u32>,
    /// Whether turns are forgotten with it for the first time.
    pub forgets: bool,
}

impl<'a> Conversation<'a> {
    pub fn new(template: &'a ChatTemplate, tokenizer: &'a Tokenizer, system: Option<&str>) -> Conversation<'a> {
        let messages: Vec<Value> = system.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
        let system = messages.len();
        Conversation { template, tokenizer, messages, system, forgotten: 0, seen: Prompt::default() }
    }

    /// What every conversation begins with.
    pub fn system(&self) -> &[Value] {
        &self.messages[..self.system]
    }

    /// How many messages the model no longer sees.
    pub fn forgotten(&self) -> usize {
        self.forgotten
    }

    /// Forgets all but the system's message.
    pub fn reset(&mut self) {
        self.messages.truncate(self.system);
        (self.forgotten, self.seen) = (0, Prompt::default());
    }

    /// Adds a message of the user, and gives what the model is to continue. It leaves room in a context of so many
    /// tokens for an answer of `answer` tokens, or for a quarter of the context if that is less. Where it would not,
    /// the oldest turns are forgotten until half of the context is free, so that they need not be for some time.
    ///
    /// # Errors
    /// If the template refuses the message, or it is too long by itself. Then it is as if it had not been said.
    pub fn ask(&mut self, message: &str, context: usize, answer: usize) -> Result<Prompt> {
        self.messages.push(json!({"role": "user", "content": message}));
        let (before, most) = (self.forgotten, context - answer.min(context / 4));
        let prompt = self.fit(most, context);
        if prompt.is_err() {
            self.take_back();
            self.forgotten = before;
        }
        let prompt = prompt?;
        Ok(Prompt { forgets: before == 0 && self.forgotten > 0, ..prompt })
    }

    /// The prompt, with as many turns forgotten as must be for `most` tokens.
    fn fit(&mut self, most: usize, context: usize) -> Result<Prompt> {
        let mut prompt = self.prompt()?;
        if prompt.ids.len() <= most {
            return Ok(prompt);
        }
        while prompt.ids.len() > context / 2 && self.forget_turn() {
            prompt = self.prompt()?;
        }
        if prompt.ids.len() >= context {
            bail!(
                "the message has {} tokens with its template, the model's context has {context}: shorten it",
                prompt.ids.len()
            );
        }
        Ok(prompt)
    }

    /// Forgets the oldest turn that the model sees, unless it is the newest one.
    fn forget_turn(&mut self) -> bool {
        let seen = &self.messages[self.system + self.forgotten..];
        let next = seen.iter().skip(1).position(|message| message["role"] == "user");
        self.forgotten += next.map_or(0, |at| at + 1);
        next.is_some()
    }

    /// What the model sees now. Tokens of the text that it has seen stay as they are, also where the tokenizer would
    /// now choose others, because the model has drawn them. What follows has the tokens that it has in the whole text.
    fn prompt(&self) -> crate::Result<Prompt> {
        let messages = [self.system(), &self.messages[self.system + self.forgotten..]].concat();
        let text = self.template.render(&messages, None, true)?;
        let further = text.strip_prefix(&self.seen.text).filter(|_| !self.seen.text.is_empty());
        let ids = match further {
            None => None,
            Some(rest) => self.tokenizer.encode_after(&self.seen.text, rest)?,
        };
        let ids = match ids {
            None => self.tokenizer.encode(&text)?,
            Some(rest) => [&self.seen.ids[..], &rest].concat(),
        };
        Ok(Prompt { text, ids, forgets: false })
    }

    /// Takes back the message that was said last.
    pub fn take_back(&mut self) {
        self.messages.pop();
    }

    /// Adds the answer to a prompt: its text, and its tokens with those that ended it.
    ///
    /// # Errors
    /// If the tokens cannot be decoded.
    pub fn answer(&mut self, prompt: Prompt, text: String, ids: &[u32]) -> crate::Result<()> {
        self.messages.push(json!({"role": "assistant", "content": text}));
        let before = self.tokenizer.decode(&prompt.ids)?;
        let ids = [&prompt.ids, ids].concat();
        let all = self.tokenizer.decode(&ids)?;
        // Where what was drawn cannot be told from what was there, the next prompt is tokenized anew.
        let answer = all.strip_prefix(&before);
        self.seen = answer.map_or_else(Prompt::default, |answer| Prompt { text: prompt.text + answer, ids, ..prompt });
        Ok(())
    }

    /// Adds the conversation to a file as a line of JSON. Returns of how many messages it is.
    ///
    /// # Errors
    /// If nothing was said, or the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<usize> {
        if self.messages.len() == self.system {
            bail!("/save: nothing has been said yet");
        }
        let failed = |error| Error::io("write", path, error);
        let mut file = File::options().read(true).append(true).create(true).open(path).map_err(failed)?;
        // A file that ends in the middle of a line gets its end first.
        let mut last = [b'\n'];
        if file.seek(SeekFrom::End(0)).map_err(failed)? > 0 {
            file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last)).map_err(failed)?;
        }
        let line_break = if last == *b"\n" { "" } else { "\n" };
        let line = format!("{line_break}{}\n", json!({"messages": self.messages}));
        file.write_all(line.as_bytes()).map_err(failed)?;
        Ok(self.messages.len())
    }
}
