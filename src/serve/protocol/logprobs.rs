//! Log-probabilities as chats and completions report them.

use crate::data::Tokenizer;
use crate::serve::job::Logprob;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A token as a string: its bytes, in OpenAI's notation where they are no text.
fn token_text(tokenizer: &Tokenizer, id: u32) -> (String, Vec<u8>) {
    // The model may have more tokens than the tokenizer.
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let text = String::from_utf8(bytes.clone()).unwrap_or_else(|_| {
        bytes.iter().fold("bytes:".to_string(), |mut text, byte| {
            let _ = write!(text, "\\x{byte:02x}");
            text
        })
    });
    (text, bytes)
}

/// An entry of `logprobs.content`, of a chat.
pub(super) fn of_chat(tokenizer: &Tokenizer, token: &Logprob) -> Value {
    let entry = |id: u32, logprob: f32| {
        let (text, bytes) = token_text(tokenizer, id);
        json!({"token": text, "logprob": logprob, "bytes": bytes})
    };
    let mut own = entry(token.id, token.logprob);
    own["top_logprobs"] = token.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect();
    own
}

/// `logprobs` of a completion: lists with an element for each token.
#[derive(Default)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl CompletionLogprobs {
    /// Adds a token which begins at this character of the text.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, logprob: Option<&Logprob>, offset: usize) {
        let text = |id| token_text(tokenizer, id).0;
        self.tokens.push(text(id).into());
        self.token_logprobs.push(logprob.map_or(Value::Null, |token| token.logprob.into()));
        self.text_offset.push(offset.into());
        self.top_logprobs.push(logprob.map_or(Value::Null, |token| {
            // The token itself is among them, as with OpenAI.
            let all = [(token.id, token.logprob)].into_iter().chain(token.top.iter().copied());
            all.map(|(id, logprob)| (text(id), logprob.into())).collect::<Map<_, _>>().into()
        }));
    }

    pub fn into_json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}
