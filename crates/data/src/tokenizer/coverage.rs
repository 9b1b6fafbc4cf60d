//! How much of a text its tokens preserve.

use super::{Kind, Tokenizer};
use rustyflow_base::error::Result;
use tokenizers::models::ModelWrapper;

/// The part of a text that can be decoded from its tokens. The loss per byte is over these bytes only: a tokenizer that
/// drops white space, or maps all unknown words to one token, leaves less to predict.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Coverage {
    /// Bytes that decoding restores, without unknown tokens.
    pub decodable_bytes: usize,
    /// Fraction of unknown tokens.
    pub unknown_share: f64,
    /// Whether decoding restores the text exactly.
    pub lossless: bool,
}

impl Tokenizer {
    /// The coverage of `text` by its tokens `ids`.
    ///
    /// # Errors
    /// On an id outside the vocabulary.
    pub fn coverage(&self, text: &str, ids: &[u32]) -> Result<Coverage> {
        if matches!(self.kind, Kind::ByteLevel { .. } | Kind::Char { unknown: None, .. }) {
            return Ok(Coverage { decodable_bytes: text.len(), unknown_share: 0.0, lossless: true });
        }
        let unknown = self.unknown_id();
        let known: Vec<u32> = ids.iter().copied().filter(|id| Some(*id) != unknown).collect();
        let decoded = self.decode(&known)?;
        Ok(Coverage {
            decodable_bytes: decoded.len(),
            unknown_share: (ids.len() - known.len()) as f64 / ids.len().max(1) as f64,
            lossless: decoded == text,
        })
    }

    /// The id of the unknown token.
    fn unknown_id(&self) -> Option<u32> {
        let token = match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.unk_token.clone(),
            ModelWrapper::WordPiece(model) => Some(model.unk_token.clone()),
            ModelWrapper::WordLevel(model) => Some(model.unk_token.clone()),
            // Of its own it tells no unknown token: the usual name.
            ModelWrapper::Unigram(_) => Some("<unk>".to_string()),
        };
        token.and_then(|token| self.inner.token_to_id(&token))
    }
}
