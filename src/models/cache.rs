//! What a model keeps of the tokens that it has seen, so that the next costs no more than itself.

use super::Documents;
use crate::{DType, Device, Error, Result, Tensor};
use std::ops::Range;

/// What comes before the tokens of a row.
pub enum Past<'a> {
    /// Nothing: each row is the beginning of a text.
    Nothing,
    /// A row may hold several documents: nothing comes before the first token of each.
    Documents(&'a Documents),
    /// The tokens that were computed with this cache, of as many sequences as there are rows.
    Cache(&'a mut Cache),
}

impl<'a> From<Option<&'a Documents>> for Past<'a> {
    fn from(documents: Option<&'a Documents>) -> Past<'a> {
        documents.map_or(Past::Nothing, Past::Documents)
    }
}

impl Past<'_> {
    /// How many tokens of each row were computed before.
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

    pub fn is_cache(&self) -> bool {
        matches!(self, Past::Cache(_))
    }

    /// The keys and values that layer `i` keeps, if any are kept.
    ///
    /// # Errors
    /// If the cache is one of another family.
    pub fn layer(&self, i: usize) -> Result<Option<KvView<'_>>> {
        match self {
            Past::Cache(cache) => cache.layer(i).map(Some),
            _ => Ok(None),
        }
    }
}

/// What a model keeps of sequences of the same length.
#[derive(Clone)]
pub struct Cache {
    kept: Kept,
    sequences: usize,
    tokens: usize,
}

#[derive(Clone)]
enum Kept {
    /// Of each layer with attention (B, T, W): T the most tokens of a sequence, and W the numbers that the layer keeps
    /// of a token.
    KeysAndValues(Vec<Tensor>),
    /// What recurrent layers know after the last token, each (L, B, H).
    States(Vec<Tensor>),
}

/// The keys and values that one layer keeps, and of how many tokens they are.
#[derive(Clone, Copy)]
pub struct KvView<'a> {
    /// (B, T, W)
    pub cache: &'a Tensor,
    pub tokens: usize,
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

    /// That of recurrent layers after some tokens: each state (L, B, H).
    pub(crate) fn of_states(states: Vec<Tensor>) -> Cache {
        let sequences = states.first().map_or(0, |state| state.shape()[1]);
        Cache { kept: Kept::States(states), sequences, tokens: 0 }
    }

    /// How many sequences it is for.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// How many tokens of each it holds, or knows of.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How many layers keep keys and values in it.
    pub fn layers(&self) -> usize {
        match &self.kept {
            Kept::KeysAndValues(layers) => layers.len(),
            Kept::States(_) => 0,
        }
    }

    /// What layer `i` keeps, 0 the first.
    ///
    /// # Errors
    /// If it keeps no keys and values.
    pub fn layer(&self, i: usize) -> Result<KvView<'_>> {
        match &self.kept {
            Kept::KeysAndValues(layers) if i < layers.len() => Ok(KvView { cache: &layers[i], tokens: self.tokens }),
            _ => Err(Error::Invalid(format!("the cache is one of another model: it has no layer {i}"))),
        }
    }

    /// What recurrent layers know; nothing of others.
    pub fn states(&self) -> &[Tensor] {
        match &self.kept {
            Kept::States(states) => states,
            Kept::KeysAndValues(_) => &[],
        }
    }

    /// What recurrent layers know now. No gradient goes back to what came before.
    pub(super) fn set_states(&mut self, states: &[Tensor]) {
        self.kept = Kept::States(states.iter().map(Tensor::detach).collect());
    }

    /// Forgets all but the first so many tokens, if it holds more. Of a recurrent model, which cannot go back, it
    /// forgets all.
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

    /// That of some of the sequences, for recurrent models.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<Cache> {
        let states = self.states().iter().map(|state| state.narrow(1, rows.start, rows.len()));
        Ok(Cache { tokens: self.tokens, ..Cache::of_states(states.collect::<Result<_>>()?) })
    }

    /// This one, with what is known of the sequences from `start` on in place of what it knew, for recurrent models.
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

    /// Counts tokens that every layer has added.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }
}
