//! Prompts of generation.

use crate::Result;
use crate::data::Tokenizer;
use crate::generate::check_prompt;
use crate::models::ModelConfig;

/// A tokenized prompt.
pub struct Prompt {
    /// All of its tokens.
    pub whole: Vec<u32>,
    /// Number of leading tokens that are not text: the beginning-of-text tokens; all for an empty prompt.
    pub hidden: usize,
    /// The last tokens, as many as the context holds.
    pub ids: Vec<u32>,
}

impl Prompt {
    /// # Errors
    /// If the prompt has unknown characters, or the model cannot continue it.
    pub fn new(text: &str, tokenizer: &Tokenizer, shape: &ModelConfig) -> Result<Prompt> {
        let whole = prompt_ids(tokenizer, text)?;
        let ids = whole[whole.len().saturating_sub(shape.block_size)..].to_vec();
        check_prompt(shape, &ids)?;
        let hidden = if text.is_empty() { whole.len() } else { tokenizer.begin_of_text()?.len() };
        Ok(Prompt { whole, hidden, ids })
    }

    /// The tokens that are displayed.
    pub fn shown(&self) -> &[u32] {
        &self.whole[self.hidden..]
    }
}

/// The tokens of a prompt, after the tokenizer's beginning-of-text tokens. An empty prompt is these alone, or a line
/// break, or the tokenizer's first token if it has no line break.
///
/// # Errors
/// If the prompt has unknown characters.
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
