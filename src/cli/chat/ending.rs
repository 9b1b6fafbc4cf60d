//! How it is known that an answer is over.

use crate::Error;
use crate::data::{ChatTemplate, Tokenizer};
use anyhow::Result;
use serde_json::Value;
use std::path::Path;

/// What ends an answer, and is no part of it.
pub(super) struct Ending {
    /// Tokens.
    pub ids: Vec<u32>,
    /// Texts.
    pub texts: Vec<String>,
}

impl Ending {
    /// What the template writes after an answer to a conversation that begins with `system`; the tokens that end a
    /// text by the tokenizer, the template's `eos_token` or the `generation_config.json` in `folder`; and `stops`.
    ///
    /// # Errors
    /// If the template writes no such conversation, or that file is damaged.
    pub fn new(
        folder: &Path,
        template: &ChatTemplate,
        system: &[Value],
        tokenizer: &Tokenizer,
        stops: Vec<String>,
    ) -> Result<Ending> {
        let mut ids = of_generation_config(folder)?;
        ids.extend(tokenizer.end_of_text().map(|(id, _)| id));
        let named = template.tokens().get("eos_token").and_then(Value::as_str);
        // A tokenizer that does not know it as one token has no such token.
        if let Some([id]) = named.and_then(|token| tokenizer.encode(token).ok()).as_deref() {
            ids.push(*id);
        }
        let mut texts = stops;
        texts.push(template.end_of_answer(system)?);
        Ok(Ending { ids, texts })
    }
}

/// `eos_token_id`, a token or a list of them, if the file is there and has it.
fn of_generation_config(folder: &Path) -> crate::Result<Vec<u32>> {
    let path = folder.join("generation_config.json");
    if !path.is_file() {
        return Ok(vec![]);
    }
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
    let damaged = |message: String| Error::Checkpoint { path: path.clone(), message };
    let config: Value = serde_json::from_str(&text).map_err(|e| damaged(format!("is damaged: {e}")))?;
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| damaged(format!("eos_token_id is {value}; expected a token's number, or a list of them")))
    };
    match &config["eos_token_id"] {
        Value::Null => Ok(vec![]),
        Value::Array(all) => all.iter().map(id).collect(),
        one => Ok(vec![id(one)?]),
    }
}
