//! KV caches and recurrent states, so that only new tokens are computed.

use super::{Documents, Slots};
use crate::{DType, Device, Error, Result, Tensor};
use std::ops::Range;

/// The context before the tokens of a row.
pub enum Past<'a> {
    /// Nothing: each row is the beginning of a text.
    Nothing,
    /// A row may hold several documents, without context before the first token of each.
    Documents(&'a Documents),
    /// The tokens in this cache, with one sequence per row.
    Cache(&'a mut Cache),
    /// The tokens of each slot, of which a row is the next token.
    Slots(&'a Slots),
}

impl<'a> From<Option<&'a Documents>> for Past<'a> {
    fn from(documents: Option<&'a Documents>) -> Past<'a> {
        documents.map_or(Past::Nothing, Past::Documents)
    }
}

impl Past<'_> {
    /// Cached tokens per row.
    pub fn tokens(&self) -> usize {
        match self {
            Past::Cache(cache) => cache.tokens,
            _ => 0,
        }
    }

    pub fn documents(&self) -> Option<&Documents> {
        match self {
            Past::Documents(documents) => Some(documents),
            _ => None,
        }
    }

    /// The position of each token (B, T) of u32, where it does not follow from its place in the row.
    pub fn positions(&self) -> Option<&Tensor> {
        match self {
            Past::Documents(documents) => Some(&documents.positions),
            Past::Slots(slots) => Some(slots.positions()),
            _ => None,
        }
    }

    pub fn is_cache(&self) -> bool {
        matches!(self, Past::Cache(_) | Past::Slots(_))
    }

    /// The cached keys and values of layer `i`, if there is a cache.
    ///
    /// # Errors
    /// If the cache belongs to another family.
    pub fn layer(&self, i: usize) -> Result<Option<KvView<'_>>> {
        match self {
            Past::Cache(cache) => cache.layer(i).map(Some),
            Past::Slots(slots) => slots.layer(i).map(Some),
            _ => Ok(None),
        }
    }
}

/// The cache of sequences of equal length.
#[derive(Clone)]
pub struct Cache {
    kept: Kept,
    sequences: usize,
    tokens: usize,
}

#[derive(Clone)]
enum Kept {
    /// (B, T, W) per attention layer: T is the capacity in tokens, W the elements per token.
    KeysAndValues(Vec<Tensor>),
    /// States of recurrent layers after the last token, each (L, B, H).
    States(Vec<Tensor>),
}

/// The cached keys and values of one layer, and their number of tokens.
#[derive(Clone, Copy)]
pub struct KvView<'a> {
    /// (B, T, W)
    pub cache: &'a Tensor,
    pub tokens: CachedTokens<'a>,
}

/// How many tokens of each sequence are cached.
#[derive(Clone, Copy)]
pub enum CachedTokens<'a> {
    /// As many of each.
    Equal(usize),
    /// (B), u32: those of each sequence of a ragged batch, as [`Tensor::append_and_attend_ragged`] takes them.
    Ragged(&'a Tensor),
}

impl Cache {
    /// An empty one for this many layers, which keep `width` numbers of each of `room` tokens of each sequence.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub(super) fn keys_and_values(
        layers: usize,
        [sequences, room, width]: [usize; 3],
        dtype: DType,
        device: &Device,
    ) -> Result<Cache> {
        let layer = |_| Tensor::zeros([sequences, room, width], dtype, device);
        let kept = Kept::KeysAndValues((0..layers).map(layer).collect::<Result<_>>()?);
        Ok(Cache { kept, sequences, tokens: 0 })
    }

    /// A cache of recurrent states, each (L, B, H).
    pub(crate) fn of_states(states: Vec<Tensor>) -> Cache {
        let sequences = states.first().map_or(0, |state| state.shape()[1]);
        Cache { kept: Kept::States(states), sequences, tokens: 0 }
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Tokens per sequence.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of layers with keys and values.
    pub fn layers(&self) -> usize {
        match &self.kept {
            Kept::KeysAndValues(layers) => layers.len(),
            Kept::States(_) => 0,
        }
    }

    /// The keys and values of layer `i`, counted from 0.
    ///
    /// # Errors
    /// If the layer has none.
    pub fn layer(&self, i: usize) -> Result<KvView<'_>> {
        match &self.kept {
            Kept::KeysAndValues(layers) if i < layers.len() => {
                Ok(KvView { cache: &layers[i], tokens: CachedTokens::Equal(self.tokens) })
            }
            _ => Err(Error::Invalid(format!("the cache is one of another model: it has no layer {i}"))),
        }
    }

    /// States of recurrent layers; empty for others.
    pub fn states(&self) -> &[Tensor] {
        match &self.kept {
            Kept::States(states) => states,
            Kept::KeysAndValues(_) => &[],
        }
    }

    /// Sets the states of recurrent layers, detached from the tape.
    pub(super) fn set_states(&mut self, states: &[Tensor]) {
        self.kept = Kept::States(states.iter().map(Tensor::detach).collect());
    }

    /// Truncates the cache to its first `tokens` tokens. A recurrent cache cannot be truncated and is cleared instead.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn truncate(&mut self, tokens: usize) -> Result<()> {
        if tokens >= self.tokens {
            return Ok(());
        }
        match &mut self.kept {
            Kept::KeysAndValues(_) => self.tokens = tokens,
            Kept::States(states) => {
                for state in states {
                    *state = Tensor::zeros(state.shape().clone(), state.dtype(), &state.device())?;
                }
                self.tokens = 0;
            }
        }
        Ok(())
    }

    /// The keys and values of sequence `i`, which holds this many tokens; they are in the memory of this cache.
    pub(super) fn sequence(&self, i: usize, tokens: usize) -> Cache {
        let of_sequence = |layer: &Tensor| {
            let [_, room, width] = layer.shape()[..] else { unreachable!("a cache has three dimensions") };
            layer.slice_flat(i * room * width, [1, room, width].into())
        };
        let kept = match &self.kept {
            Kept::KeysAndValues(layers) => Kept::KeysAndValues(layers.iter().map(of_sequence).collect()),
            Kept::States(states) => Kept::States(states.clone()),
        };
        Cache { kept, sequences: 1, tokens }
    }

    /// The states of some sequences, for recurrent models.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<Cache> {
        let states = self.states().iter().map(|state| state.narrow(1, rows.start, rows.len()));
        Ok(Cache { tokens: self.tokens, ..Cache::of_states(states.collect::<Result<_>>()?) })
    }

    /// Replaces the states of the sequences from `start` on, for recurrent models.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub(crate) fn with_rows(&self, start: usize, part: &Cache) -> Result<Cache> {
        let (end, all) = (start + part.sequences, self.sequences);
        let states = self.states().iter().zip(part.states()).map(|(whole, part)| {
            let (before, after) = (whole.narrow(1, 0, start)?, whole.narrow(1, end, all - end)?);
            Tensor::cat(&[&before, part, &after], 1)
        });
        Ok(Cache { tokens: self.tokens, ..Cache::of_states(states.collect::<Result<_>>()?) })
    }

    /// Takes back what a step changed in the states of the sequences that do not advance, for recurrent models.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub(super) fn advance_only(&mut self, advances: &[bool], before: &Cache) -> Result<()> {
        let (Kept::States(states), Kept::States(before)) = (&mut self.kept, &before.kept) else { return Ok(()) };
        if advances.iter().all(|advances| *advances) {
            return Ok(());
        }
        let mask: Vec<f32> = advances.iter().map(|advances| f32::from(u8::from(*advances))).collect();
        for (state, before) in states.iter_mut().zip(before) {
            let mask = Tensor::from_f32(&mask, [1, mask.len(), 1], &state.device())?;
            *state = mask.where_cond(state, before)?;
        }
        Ok(())
    }

    /// Counts tokens that every layer has added.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }
}
