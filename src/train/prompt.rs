//! What generation starts from.

use crate::Result;
use crate::data::Tokenizer;

/// The tokens of a prompt; an empty one means the start of a line, or the tokenizer's first token if it has no line
/// breaks.
///
/// # Errors
/// If the prompt has characters that the tokenizer does not know.
pub fn prompt_ids(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    if !prompt.is_empty() {
        return tokenizer.encode(prompt);
    }
    match tokenizer.encode("\n") {
        Ok(ids) if !ids.is_empty() => Ok(ids),
        _ => Ok(vec![0]),
    }
}
