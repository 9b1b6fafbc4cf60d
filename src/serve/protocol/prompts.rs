//! Prompts of completions and inputs of embeddings.

use super::fields::{token_ids, wrong};
use super::{ApiError, Fields, check_count};
use crate::serve::Shared;
use crate::train::prompt_ids;
use serde_json::Value;

/// A prompt, as a text and in tokens.
pub(super) struct Prompt {
    pub text: String,
    pub ids: Vec<u32>,
}

/// A string, a list of strings, a list of token ids, or a list of those.
pub(super) fn prompts(fields: &Fields, name: &str, shared: &Shared) -> Result<Vec<Prompt>, ApiError> {
    const EXPECTED: &str = "a string, a list of strings, a list of token ids, or a list of such lists";
    let empty = Value::String(String::new());
    let given = fields.get(name).unwrap_or(&empty);
    match given {
        Value::Array(all) if all.is_empty() => Err(wrong(name, EXPECTED, given)),
        Value::Array(all) if all.iter().all(Value::is_number) => Ok(vec![of_ids(name, all, shared)?]),
        Value::Array(all) => {
            check_count(name, all.len(), shared)?;
            all.iter().map(|one| prompt(name, one, EXPECTED, shared)).collect()
        }
        one => Ok(vec![prompt(name, one, EXPECTED, shared)?]),
    }
}

fn prompt(name: &str, value: &Value, expected: &str, shared: &Shared) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => {
            let ids = prompt_ids(&shared.text.tokenizer, text);
            let ids = ids.map_err(|error| ApiError::field(name, format!("{name}: {error}")))?;
            // Some tokenizers drop whitespace.
            if ids.is_empty() {
                return Err(ApiError::field(name, format!("{name}: the text has no tokens")));
            }
            Ok(Prompt { text: text.clone(), ids })
        }
        Value::Array(ids) if !ids.is_empty() => of_ids(name, ids, shared),
        other => Err(wrong(name, expected, other)),
    }
}

fn of_ids(name: &str, list: &[Value], shared: &Shared) -> Result<Prompt, ApiError> {
    if list.len() > shared.context {
        return Err(ApiError::too_long(name, list.len(), shared.context));
    }
    let tokenizer = &shared.text.tokenizer;
    let ids = token_ids(name, list, tokenizer.vocab_size())?;
    let text = tokenizer.decode(&ids).map_err(|error| ApiError::field(name, format!("{name}: {error}")))?;
    Ok(Prompt { text, ids })
}
