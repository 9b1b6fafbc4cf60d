//! What generation starts from.

use crate::Result;
use crate::data::Tokenizer;
use crate::generate::check_prompt;
use crate::models::ModelConfig;

/// A text to continue.
pub struct Prompt {
    /// All of its tokens.
    pub whole: Vec<u32>,
    /// How many of them are no text: what stands before every text, and of an empty prompt all.
    pub hidden: usize,
    /// What the model sees of it: as many of the last as its context holds.
    pub ids: Vec<u32>,
}

impl Prompt {
    /// # Errors
    /// If the prompt has characters that the tokenizer does not know, or the model cannot continue it.
    pub fn new(text: &str, tokenizer: &Tokenizer, shape: &ModelConfig) -> Result<Prompt> {
        let whole = prompt_ids(tokenizer, text)?;
        let ids = whole[whole.len().saturating_sub(shape.block_size)..].to_vec();
        check_prompt(shape, &ids)?;
        let hidden = if text.is_empty() { whole.len() } else { tokenizer.begin_of_text()?.len() };
        Ok(Prompt { whole, hidden, ids })
    }

    /// The tokens that the text begins with.
    pub fn shown(&self) -> &[u32] {
        &self.whole[self.hidden..]
    }
}

/// The tokens of a prompt, after those that the tokenizer puts before every text. An empty one means these alone, or
/// else the start of a line, or the tokenizer's first token if it has no line breaks.
///
/// # Errors
/// If the prompt has characters that the tokenizer does not know.
pub fn prompt_ids(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    let first = tokenizer.begin_of_text()?;
    if !prompt.is_empty() || !first.is_empty() {
        return Ok([first, tokenizer.encode(prompt)?].concat());
    }
    match tokenizer.encode("\n") {
        Ok(ids) if !ids.is_empty() => Ok(ids),
        _ => Ok(vec![0]),
    }
}
