//! What a model keeps of the tokens that it has seen, so that the next costs no more than itself.

use crate::{DType, Device, Result, Tensor};

/// The keys and values of the tokens so far, of each layer, for sequences of the same length.
pub struct KvCache {
    /// Each (B, T, W), T the most tokens of a sequence and W the numbers that a layer keeps of a token.
    layers: Vec<Tensor>,
    sequences: usize,
    tokens: usize,
}

/// The keys and values that one layer keeps, and of how many tokens they are.
#[derive(Clone, Copy)]
pub struct KvView<'a> {
    /// (B, T, W)
    pub cache: &'a Tensor,
    pub tokens: usize,
}

impl KvCache {
    /// An empty one for this many layers, which keep `width` numbers of each of `room` tokens of each sequence.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub(super) fn new(
        layers: usize,
        [sequences, room, width]: [usize; 3],
        dtype: DType,
        device: &Device,
    ) -> Result<KvCache> {
        let layer = |_| Tensor::zeros([sequences, room, width], dtype, device);
        Ok(KvCache { layers: (0..layers).map(layer).collect::<Result<_>>()?, sequences, tokens: 0 })
    }

    /// How many sequences it is for.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// How many tokens of each it holds.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How many layers it is for.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// What layer `i` keeps, 0 the first.
    pub fn layer(&self, i: usize) -> KvView<'_> {
        KvView { cache: &self.layers[i], tokens: self.tokens }
    }

    /// Forgets all but the first so many tokens, if it holds more.
    pub fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }

    /// Counts tokens that every layer has added.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }
}
