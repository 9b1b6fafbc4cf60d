//! The text of a continuation, token by token: whole characters alone, and nothing of a stop string or after it.

use crate::Result;
use crate::data::{TextStream, Tokenizer};

/// Takes the tokens of a text and gives what can be shown of it.
pub struct TextWriter<'a> {
    stream: TextStream<'a>,
    stops: Stops<'a>,
}

impl<'a> TextWriter<'a> {
    /// Of a text that ends where one of `stops` begins; an empty one stops nothing.
    pub fn new(tokenizer: &'a Tokenizer, stops: &'a [String]) -> TextWriter<'a> {
        TextWriter { stream: tokenizer.stream(), stops: Stops { stops, held: String::new(), stopped: false } }
    }

    /// The text of a token of the prompt, in which stop strings do not count.
    ///
    /// # Errors
    /// If it is beyond the vocabulary.
    pub fn push_prompt(&mut self, id: u32) -> Result<String> {
        self.stream.push(id)
    }

    /// What the next token adds that later ones cannot change.
    ///
    /// # Errors
    /// If it is beyond the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let piece = self.stream.push(id)?;
        Ok(self.stops.take(&piece))
    }

    /// Whether a stop string has come. Nothing comes after it.
    pub fn is_stopped(&self) -> bool {
        self.stops.stopped
    }

    /// What was held back, at the end of the text.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn finish(self) -> Result<String> {
        let TextWriter { stream, mut stops } = self;
        let text = stops.take(&stream.finish()?);
        Ok(if stops.stopped { text } else { text + &stops.held })
    }
}

/// Lets text through up to a stop string.
struct Stops<'a> {
    stops: &'a [String],
    /// What may be the beginning of one.
    held: String,
    stopped: bool,
}

impl Stops<'_> {
    fn take(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(piece);
        let stops = || self.stops.iter().filter(|stop| !stop.is_empty());
        if let Some(end) = stops().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            self.held.truncate(end);
            return std::mem::take(&mut self.held);
        }
        // The longest end of it that a stop string begins with.
        let may_begin = |at: &usize| stops().any(|stop| stop.starts_with(&self.held[*at..]));
        let shown = self.held.char_indices().map(|(at, _)| at).find(may_begin).unwrap_or(self.held.len());
        let rest = self.held.split_off(shown);
        std::mem::replace(&mut self.held, rest)
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
        let mut writer = Stops { stops: &stops, held: String::new(), stopped: false };
        let mut all: Vec<String> = pieces.iter().map(|piece| writer.take(piece)).collect();
        all.push(if writer.stopped { "stopped".into() } else { writer.held });
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
        assert!(writer.is_stopped() && writer.finish().unwrap().is_empty());
        let mut writer = TextWriter::new(&tokenizer, &[]);
        ids[..2].iter().for_each(|id| drop(writer.push(*id).unwrap()));
        assert_eq!(writer.finish().unwrap(), "\u{fffd}");
    }
}
