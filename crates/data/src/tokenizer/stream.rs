//! Streaming decoding, for text that is displayed while it is generated.

use super::{Kind, Tokenizer};
use rustyflow_base::error::Result;

/// Decodes ids one by one to text that later ids cannot change: an incomplete character is held back. The concatenated
/// result equals [`Tokenizer::decode`] of all ids.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    state: State,
}

enum State {
    /// Bytes of an incomplete character.
    Bytes(Vec<u8>),
    /// Whether the next word needs a space before it.
    Words { space: bool },
    /// `read` ids whose text was returned, as context for decoders that depend on a token's neighbours; then those
    /// whose text was not.
    Window { ids: Vec<u32>, read: usize },
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> TextStream<'a> {
        let state = match tokenizer.kind {
            Kind::Char { .. } | Kind::ByteLevel { .. } => State::Bytes(vec![]),
            Kind::Word { .. } => State::Words { space: false },
            Kind::Spaces { .. } | Kind::Other => State::Window { ids: vec![], read: 0 },
        };
        TextStream { tokenizer, state }
    }

    /// Adds `id` and returns the text that is now final; empty within a character.
    ///
    /// Fails on an id outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let mut text = String::new();
        self.push_onto(id, &mut text)?;
        Ok(text)
    }

    pub(super) fn push_onto(&mut self, id: u32, text: &mut String) -> Result<()> {
        self.tokenizer.check_id(id)?;
        let piece = &self.tokenizer.pieces[id as usize];
        match &mut self.state {
            State::Bytes(pending) => {
                pending.extend_from_slice(piece);
                take_characters(pending, text);
            }
            State::Words { space } => {
                let ends_line = piece == b"\n";
                if *space && !ends_line {
                    text.push(' ');
                }
                *space = !ends_line;
                text.push_str(&String::from_utf8_lossy(piece));
            }
            State::Window { ids, read } => {
                ids.push(id);
                let (given, all) = window(self.tokenizer, ids, *read)?;
                // The character that stands for broken bytes may be half of one to come.
                if !all.ends_with('\u{fffd}')
                    && let Some(new) = all.strip_prefix(&given).filter(|new| !new.is_empty())
                {
                    text.push_str(new);
                    ids.drain(..*read);
                    *read = ids.len();
                }
            }
        }
        Ok(())
    }

    /// The remaining text: U+FFFD for an incomplete character.
    pub fn finish(self) -> Result<String> {
        match self.state {
            State::Bytes(pending) if !pending.is_empty() => Ok('\u{fffd}'.to_string()),
            State::Bytes(_) | State::Words { .. } => Ok(String::new()),
            State::Window { ids, read } => {
                let (given, all) = window(self.tokenizer, &ids, read)?;
                Ok(all.strip_prefix(&given).unwrap_or_default().to_string())
            }
        }
    }
}

/// The text of the first `read` ids, and of all.
fn window(tokenizer: &Tokenizer, ids: &[u32], read: usize) -> Result<(String, String)> {
    let decode = |ids: &[u32]| tokenizer.guarded(|inner| inner.decode(ids, false));
    Ok((decode(&ids[..read])?, decode(ids)?))
}

/// Moves all whole characters from `pending` to `text`, U+FFFD for bytes that can never be one. At most the 3 bytes of
/// an unfinished character stay.
fn take_characters(pending: &mut Vec<u8>, text: &mut String) {
    loop {
        let (valid, broken) = match std::str::from_utf8(pending) {
            Ok(_) => (pending.len(), None),
            Err(error) => (error.valid_up_to(), error.error_len()),
        };
        text.push_str(&String::from_utf8_lossy(&pending[..valid]));
        match broken {
            Some(length) => {
                text.push('\u{fffd}');
                pending.drain(..valid + length);
            }
            None => {
                pending.drain(..valid);
                return;
            }
        }
    }
}
