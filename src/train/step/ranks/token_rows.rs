//! The gradient of the token embeddings, as far as it comes from the tokens of a step: of the few rows of the table
//! that they read (a sparse gradient).
//!
//! Backward computes it last, when nothing is left to hide an exchange behind; and the table is large, 154 MB of f32
//! for GPT-2's 50,257 x 768, of which 32,768 tokens of wikitext-2 read 4,400 rows. So these rows collect apart from
//! what the head, if it is the same table, has added to it at the beginning of backward. Every rank makes the batches
//! of all ranks and so knows which rows they read: all have the same rows in the same places, whose sums over the ranks
//! are then added to the gradient of the table.

use super::EXCHANGED;
use crate::config::Config;
use crate::models::LanguageModel;
use crate::ops::add_rows;
use crate::optim::ParameterArena;
use crate::profile::MemoryKind;
use crate::tensor::{Gradient, SparseGradient};
use crate::{DType, Device, Result, Tensor};
use std::ops::Range;

/// Elements of the smallest table whose rows are sent apart: below, it is no more than a bucket or two.
const LEAST: usize = if cfg!(test) { 2048 } else { 2 * EXCHANGED };

/// Tokens of a step for each row of the table, at most: a text of 8 V tokens reads a third of V rows (wikitext-2,
/// GPT-2's tokenizer). This depends on the run alone, so that one that is resumed adds up in the same order.
const MOST_TOKENS: usize = 8;

/// How many rows there are is a multiple of this, so that the memory of one step fits the next. Further rows have no
/// token.
const ROWS: usize = 256;
const NO_TOKEN: u32 = u32::MAX;

/// The table of token embeddings, whose rows are sent apart.
pub(in crate::train) struct TokenRows {
    gradient: Gradient,
    /// Its place in the arena of gradients.
    range: Range<usize>,
    vocabulary: usize,
    device: Device,
    /// Whether something else, the head, adds to all of the gradient.
    is_tied: bool,
    /// Tokens of all ranks in a step.
    tokens: usize,
    /// How many rows the batches of this step read.
    rows: usize,
    /// The tokens of this step's rows, and where their gradients collect.
    step: Option<(Tensor, SparseGradient)>,
}

impl TokenRows {
    /// Those of a run's model; `None` where they are sent with all else because that is as good.
    pub fn of(config: &Config, model: &dyn LanguageModel, parameters: &ParameterArena) -> Option<TokenRows> {
        let tokens = config.train.batch_size * config.train.grad_accum_steps * config.model.block_size;
        let table = model.token_embeddings();
        let (vocabulary, device) = (table.shape().rows(), table.device());
        let (range, gradient) = parameters.gradient_of(table)?.clone();
        let is_tied = parameters.gradient_of(model.head()).is_some_and(|(_, head)| head.is(&gradient));
        let pays = table.len() >= LEAST && tokens <= MOST_TOKENS * vocabulary;
        pays.then_some(TokenRows { gradient, range, vocabulary, device, is_tied, tokens, rows: 0, step: None })
    }

    /// The arena of gradients without what is sent as rows alone, in ranges of which none is part of the table and part
    /// of something else.
    pub fn others(&self, arena: usize) -> Vec<Range<usize>> {
        let Range { start, end } = self.range.clone();
        let end = ParameterArena::padded(end).min(arena);
        let table = if self.is_tied { start..end } else { start..start };
        [0..start, table, end..arena].into_iter().filter(|range| !range.is_empty()).collect()
    }

    /// From here on the gradients of the rows that the batches with these ids read collect apart.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn begin(&mut self, ids: &[&[u32]]) -> Result<()> {
        let mut is_read = vec![false; self.vocabulary];
        for id in ids.iter().copied().flatten() {
            if let Some(is_read) = is_read.get_mut(*id as usize) {
                *is_read = true;
            }
        }
        let mut tokens: Vec<u32> = (0..).zip(is_read).filter_map(|(id, is_read)| is_read.then_some(id)).collect();
        let mut row_of = vec![NO_TOKEN; self.vocabulary];
        (0..).zip(&tokens).for_each(|(row, token)| row_of[*token as usize] = row);
        tokens.resize(tokens.len().next_multiple_of(ROWS), NO_TOKEN);
        self.rows = tokens.len();
        self.collect(&tokens, &row_of)
    }

    /// As [`begin`](TokenRows::begin), on a device of no values: the tokens of a step read as many rows as they can.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub(super) fn begin_dry(&mut self) -> Result<()> {
        let rows = self.tokens.min(self.vocabulary).next_multiple_of(ROWS);
        self.collect(&vec![NO_TOKEN; rows], &vec![NO_TOKEN; self.vocabulary])
    }

    fn collect(&mut self, tokens: &[u32], row_of: &[u32]) -> Result<()> {
        let upload = |values: &[u32]| Tensor::from_u32(values, [values.len()], &self.device);
        let (rows, tokens) = (tokens.len(), upload(tokens)?);
        let sparse = SparseGradient::new(upload(row_of)?, rows);
        self.gradient.collect_rows(Some(sparse.clone()));
        self.step = Some((tokens, sparse));
        Ok(())
    }

    /// The elements of each piece of this step's rows, on every rank: those of [`StepRows::pieces`].
    pub fn pieces(&self) -> impl Iterator<Item = usize> {
        pieces(self.rows * self.width()).map(|piece| piece.len())
    }

    /// Ends a step whose gradients are of no use.
    pub fn abort(&mut self) {
        self.gradient.collect_rows(None);
        self.step = None;
    }

    fn width(&self) -> usize {
        self.range.len() / self.vocabulary
    }

    /// What has come together on this rank, in pieces, each of which is to be replaced by its sum over all ranks.
    /// Nothing, if the step has not begun.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn end(&mut self) -> Result<Option<StepRows<'_>>> {
        self.gradient.collect_rows(None);
        let Some((tokens, sparse)) = self.step.take() else { return Ok(None) };
        let width = self.width();
        let sums = match sparse.take() {
            Some(sums) => sums,
            None => Tensor::zeros_as(MemoryKind::Gradients, [sparse.rows(), width], DType::F32, &self.device)?,
        };
        Ok(Some(StepRows { gradient: &self.gradient, tokens, sums }))
    }
}

/// The gradients of the rows that a step reads.
pub(in crate::train) struct StepRows<'a> {
    gradient: &'a Gradient,
    /// (U)
    tokens: Tensor,
    /// (U, C)
    sums: Tensor,
}

impl StepRows<'_> {
    /// Them, as flat tensors of their memory.
    pub fn pieces(&self) -> Vec<Tensor> {
        let slice = |piece: Range<usize>| self.sums.slice_flat(piece.start, [piece.len()].into());
        pieces(self.sums.len()).map(slice).collect()
    }

    /// Adds them to the gradient of the table.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn add(&self) -> Result<()> {
        add_rows(self.gradient, &self.sums, &self.tokens)
    }
}

/// The parts of so many elements that are sent at a time.
fn pieces(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(EXCHANGED).map(move |start| start..(start + EXCHANGED).min(len))
}
