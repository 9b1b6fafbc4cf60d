//! What generation starts from.

use crate::Result;
use crate::data::Tokenizer;

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
