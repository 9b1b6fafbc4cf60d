//! Measures how much of a text its tokens preserve, on the beginning of the text.

use super::encode::Part;
use crate::tokenizer::{Coverage, Tokenizer};
use rustyflow_base::error::Result;

/// Text of the validation split on which is measured what its tokens keep, bytes.
const COVERAGE_BYTES: usize = 1 << 22;

/// Measures what tokens keep of the beginning of a text, document by document.
pub(super) struct Measured {
    /// Text of the current document.
    text: String,
    ids: Vec<u32>,
    /// Of those before.
    bytes: usize,
    tokens: usize,
    kept: Coverage,
    /// Of the whole text, measured or not.
    all_bytes: usize,
}

impl Measured {
    pub(super) fn new() -> Measured {
        let kept = Coverage { decodable_bytes: 0, unknown_share: 0.0, lossless: true };
        Measured { text: String::new(), ids: vec![], bytes: 0, tokens: 0, kept, all_bytes: 0 }
    }

    /// Adds the next part of a text and its tokens. Only predicted text counts, because the loss per byte is over that.
    pub(super) fn add(&mut self, tokenizer: &Tokenizer, part: &Part) -> Result<()> {
        if part.predicted {
            self.all_bytes += part.text.len();
            if self.bytes + self.text.len() < COVERAGE_BYTES && !part.text.is_empty() {
                self.text.push_str(part.text);
                self.ids.extend(part.ids);
            }
        }
        // What is between two answers belongs to neither.
        if part.ends.is_some() || !part.predicted { self.end_document(tokenizer) } else { Ok(()) }
    }

    fn end_document(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        // Of most documents of a long text nothing is measured.
        if self.text.is_empty() {
            return Ok(());
        }
        let (text, ids) = (std::mem::take(&mut self.text), std::mem::take(&mut self.ids));
        let Coverage { decodable_bytes, unknown_share, lossless } = tokenizer.coverage(&text, &ids)?;
        let unknown = self.kept.unknown_share * self.tokens as f64 + unknown_share * ids.len() as f64;
        self.bytes += text.len();
        self.tokens += ids.len();
        self.kept = Coverage {
            decodable_bytes: self.kept.decodable_bytes + decodable_bytes,
            unknown_share: unknown / self.tokens.max(1) as f64,
            lossless: self.kept.lossless && lossless,
        };
        Ok(())
    }

    pub(super) fn coverage(mut self, tokenizer: &Tokenizer) -> Result<Coverage> {
        self.end_document(tokenizer)?;
        let scale = self.all_bytes as f64 / self.bytes.max(1) as f64;
        let decodable_bytes = (self.kept.decodable_bytes as f64 * scale).round() as usize;
        Ok(Coverage { decodable_bytes, ..self.kept })
    }
}
