//! The generated text, token by token: only complete characters, and nothing from a stop string on.

use crate::Result;
use crate::data::{TextStream, Tokenizer};
use std::borrow::Cow;
use std::ops::Range;

/// Converts tokens to the text that can be displayed.
pub struct TextWriter<'a> {
    tokenizer: &'a Tokenizer,
    stream: TextStream<'a>,
    stops: Stops<'a>,
    /// Ids that end the text.
    ends: Cow<'a, [u32]>,
    shows_special: bool,
    end: Option<End>,
}

/// The reason a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A token that ends a text or an answer.
    EndOfText,
    StopString,
}

impl<'a> TextWriter<'a> {
    /// A writer whose text ends before the first of `stops`; empty strings are ignored.
    pub fn new(tokenizer: &'a Tokenizer, stops: impl Into<Cow<'a, [String]>>) -> TextWriter<'a> {
        let stops = Stops { stops: stops.into(), held: String::new(), hidden: vec![], stopped: false };
        let stream = tokenizer.stream();
        TextWriter { tokenizer, stream, stops, ends: Cow::Borrowed(&[]), shows_special: true, end: None }
    }

    /// Also ends the text at one of these tokens, which are displayed only with special tokens.
    pub fn until(self, ends: impl Into<Cow<'a, [u32]>>) -> TextWriter<'a> {
        TextWriter { ends: ends.into(), ..self }
    }

    /// Hides special tokens. Stop strings may still contain them.
    pub fn without_special_tokens(self) -> TextWriter<'a> {
        TextWriter { shows_special: false, ..self }
    }

    fn hides(&self, id: u32) -> bool {
        !self.shows_special && self.tokenizer.is_special(id)
    }

    /// Adds a prompt token and returns its text; stop strings and ends have no effect in the prompt.
    ///
    /// # Errors
    /// If it is outside the vocabulary.
    pub fn push_prompt(&mut self, id: u32) -> Result<String> {
        if self.hides(id) { Ok(String::new()) } else { self.stream.push(id) }
    }

    /// Adds the next token and returns the text that later ones cannot change.
    ///
    /// # Errors
    /// If it is outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.ends.contains(&id) {
            self.end = Some(End::EndOfText);
            if !self.shows_special {
                return Ok(String::new());
            }
        }
        let text = if self.hides(id) {
            self.stops.take(&self.tokenizer.decode(&[id])?, true)
        } else {
            let piece = self.stream.push(id)?;
            self.stops.take(&piece, false)
        };
        if self.stops.stopped {
            self.end = Some(End::StopString);
        }
        Ok(text)
    }

    /// The reason the text has ended, if it has.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Returns the held-back text at the end.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn finish(self) -> Result<String> {
        let TextWriter { stream, mut stops, .. } = self;
        let text = stops.take(&stream.finish()?, false);
        Ok(text + &stops.release())
    }
}

/// Lets text through up to a stop string.
struct Stops<'a> {
    stops: Cow<'a, [String]>,
    /// Text that may be the start of a stop string.
    held: String,
    /// The parts of it that are not shown.
    hidden: Vec<Range<usize>>,
    stopped: bool,
}

impl Stops<'_> {
    /// Adds a piece of text, displayed unless `hidden`, and returns the text that is certainly before a stop string.
    fn take(&mut self, piece: &str, hidden: bool) -> String {
        if self.stopped {
            return String::new();
        }
        if hidden {
            self.hidden.push(self.held.len()..self.held.len() + piece.len());
        }
        self.held.push_str(piece);
        let stops = || self.stops.iter().filter(|stop| !stop.is_empty());
        if let Some(end) = stops().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            let text = self.take_out(end);
            (self.held, self.hidden) = (String::new(), vec![]);
            return text;
        }
        // The longest end of it that a stop string begins with.
        let may_begin = |at: &usize| stops().any(|stop| stop.starts_with(&self.held[*at..]));
        let shown = self.held.char_indices().map(|(at, _)| at).find(may_begin).unwrap_or(self.held.len());
        self.take_out(shown)
    }

    /// Removes the held text up to `end`, and returns its displayed part.
    fn take_out(&mut self, end: usize) -> String {
        let rest = self.held.split_off(end);
        let taken = std::mem::replace(&mut self.held, rest);
        let mut text = String::with_capacity(taken.len());
        let mut from = 0;
        for range in &self.hidden {
            text.push_str(&taken[from.min(end)..range.start.min(end)]);
            from = range.end;
        }
        text.push_str(&taken[from.min(end)..]);
        self.hidden.retain(|range| range.end > end);
        for range in &mut self.hidden {
            *range = range.start.saturating_sub(end)..range.end - end;
        }
        text
    }

    /// All that is held.
    fn release(&mut self) -> String {
        self.take_out(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Corpus, TokenizerSpec};
    use std::path::Path;

    /// What is shown after each piece, joined by `|`, and at the end.
    fn shown(stops: &[&str], pieces: &[&str]) -> String {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut writer = Stops { stops: stops.into(), held: String::new(), hidden: vec![], stopped: false };
        // Pieces in angle brackets are hidden.
        let mut all: Vec<String> = pieces.iter().map(|piece| writer.take(piece, piece.starts_with('<'))).collect();
        all.push(if writer.stopped { "stopped".into() } else { writer.release() });
        all.join("|")
    }

    #[test]
    fn a_stop_string_ends_the_text_wherever_tokens_cut_it() {
        assert_eq!(shown(&["END"], &["a END b", "c"]), "a ||stopped");
        assert_eq!(shown(&["END"], &["a E", "N", "D b", "c"]), "a ||||stopped");
        assert_eq!(shown(&["END"], &["a E", "N", "d b", "E"]), "a ||ENd b||E");
        assert_eq!(shown(&["aab"], &["aaa", "ab"]), "a|a|stopped");
        assert_eq!(shown(&["\n\n", "ß!"], &["x\n", "y\nß", "!"]), "x|\ny\n||stopped");
        // The first in the text, not the first in the list; the empty one stops nothing.
        assert_eq!(shown(&["b", "a", ""], &["cab"]), "c|stopped");
        assert_eq!(shown(&[], &["a", "b"]), "a|b|");
    }

    #[test]
    fn a_stop_string_may_have_hidden_tokens_in_it() {
        assert_eq!(shown(&[], &["a", "<x>", "b"]), "a||b|");
        assert_eq!(shown(&["<x>"], &["a", "<x>", "b"]), "a|||stopped");
        assert_eq!(shown(&["b<x>c"], &["ab", "<x>", "d"]), "a||bd|");
        assert_eq!(shown(&["b<x>c"], &["ab", "<x>", "cd"]), "a|||stopped");
        assert_eq!(shown(&["x>b"], &["a", "<x>"]), "a||");
    }

    #[test]
    fn a_token_ends_the_text_and_special_ones_are_shown_only_if_wanted() {
        let corpus = Corpus::of_texts("test", "abc", "", None).unwrap();
        let tokenizer = Tokenizer::build(&TokenizerSpec::Char, 0, &corpus, Path::new(".")).unwrap();
        let mut document: serde_json::Value = serde_json::from_str(&tokenizer.to_json().unwrap()).unwrap();
        document["added_tokens"] = serde_json::json!([{
            "id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        }]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, document.to_string()).unwrap();
        let tokenizer = Tokenizer::from_file(&path).unwrap();
        let written = |mut writer: TextWriter, ids: &[u32]| {
            let mut text = writer.push_prompt(3).unwrap();
            for id in ids {
                text += &writer.push(*id).unwrap();
            }
            (writer.end(), text + &writer.finish().unwrap())
        };
        let writer = || TextWriter::new(&tokenizer, &[]).until(&[2]);
        assert_eq!(written(writer(), &[0, 3, 1, 2]), (Some(End::EndOfText), "<s>a<s>bc".to_string()));
        assert_eq!(written(writer().without_special_tokens(), &[0, 3, 1, 2]), (Some(End::EndOfText), "ab".to_string()));
        assert_eq!(written(writer().without_special_tokens(), &[0, 3, 1]), (None, "ab".to_string()));
        let stops = ["<s>".to_string()];
        let stopping = TextWriter::new(&tokenizer, &stops).without_special_tokens();
        assert_eq!(written(stopping, &[0, 3]), (Some(End::StopString), "a".to_string()));
    }

    #[test]
    fn half_a_character_is_never_shown() {
        let corpus = Corpus::of_texts("test", "abc", "", None).unwrap();
        let tokenizer = Tokenizer::build(&TokenizerSpec::Bpe, 256, &corpus, Path::new(".")).unwrap();
        let ids = tokenizer.encode("aä€b").unwrap();
        assert!(ids.len() > 4, "bytes: {ids:?}");
        let stops = ["b".to_string()];
        let mut writer = TextWriter::new(&tokenizer, &stops);
        let pieces: Vec<String> = ids.iter().map(|id| writer.push(*id).unwrap()).collect();
        assert_eq!(pieces.concat(), "aä€");
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
        assert!(writer.end() == Some(End::StopString) && writer.finish().unwrap().is_empty());
        let mut writer = TextWriter::new(&tokenizer, &[]);
        ids[..2].iter().for_each(|id| drop(writer.push(*id).unwrap()));
        assert_eq!(writer.finish().unwrap(), "\u{fffd}");
    }
}
