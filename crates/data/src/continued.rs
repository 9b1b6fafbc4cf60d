//! Rows that continue from batch to batch, for models with a recurrent state (truncated backpropagation through time):
//! a text is cut into B pieces of one length, and row b of batch i is window i of piece b.

use super::documents::Packing;
use super::loader::{IGNORE_INDEX, check_length, check_memory};
use super::rows::Row;
use super::tokens::Tokens;
use rustyflow_base::error::{Error, Result};

/// A text in parallel pieces. Their windows contain every input once; the last, shorter piece ends in windows of
/// padding.
#[derive(Clone)]
pub struct Continued {
    tokens: Tokens,
    /// T
    block_size: usize,
    /// B
    pieces: usize,
    /// Windows of each piece.
    windows: usize,
}

impl Continued {
    /// Cuts a text into `pieces` of windows of `block_size` tokens.
    ///
    /// # Errors
    /// If there are fewer than two tokens, a size is 0 or too large, or the text consists of separate documents.
    pub fn new(tokens: Tokens, pieces: usize, block_size: usize) -> Result<Continued> {
        check_length(tokens.len())?;
        if pieces == 0 || block_size == 0 {
            return Err(Error::Invalid(format!("{pieces} pieces of windows of {block_size} tokens hold no text")));
        }
        check_memory(pieces, block_size, 1)?;
        if tokens.packing() != Packing::Stream {
            return Err(Error::Invalid(
                "a recurrent model reads its text as one stream: it cannot separate documents or mask prompts in the \
                 loss; set data.packing to \"stream\", or another model.kind"
                    .into(),
            ));
        }
        let windows = (tokens.len() - 1).div_ceil(block_size).div_ceil(pieces);
        Ok(Continued { tokens, block_size, pieces, windows })
    }

    /// Number of rows, a multiple of the number of pieces.
    pub fn rows(&self) -> usize {
        self.windows * self.pieces
    }

    /// Batches from the beginning of the pieces to their end.
    pub fn batches(&self) -> usize {
        self.windows
    }

    /// Row `place`, which belongs to piece `place % B`. From [`Continued::rows`] on, rows are padding.
    pub fn row(&self, place: usize) -> Row {
        let (batch, piece) = (place / self.pieces, place % self.pieces);
        let inputs = self.tokens.len() - 1;
        let window = if batch < self.windows { piece * self.windows + batch } else { usize::MAX };
        let start = window.saturating_mul(self.block_size).min(inputs);
        let len = self.block_size.min(inputs - start);
        let (mut ids, mut targets) = (vec![0; self.block_size], vec![IGNORE_INDEX; self.block_size]);
        self.tokens.copy(start, &mut ids[..len]);
        self.tokens.copy_targets(start + 1, &mut targets[..len]);
        Row { ids, targets, starts: None, answers: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_on_where_those_of_the_batch_before_ended_and_hold_every_target_once() {
        for (count, pieces, block_size) in [(2u32, 1, 8), (100, 4, 5), (101, 4, 5), (50, 20, 7), (33, 3, 32)] {
            let tokens: Tokens = (100..100 + count).collect::<Vec<u32>>().into();
            let continued = Continued::new(tokens, pieces, block_size).unwrap();
            let rows: Vec<Row> = (0..continued.rows()).map(|place| continued.row(place)).collect();
            assert_eq!(rows.len(), continued.batches() * pieces);
            let mut targets = Vec::new();
            for piece in 0..pieces {
                let own = rows.iter().skip(piece).step_by(pieces);
                let own: Vec<(u32, u32)> = own.flat_map(|r| r.ids.iter().copied().zip(r.targets.clone())).collect();
                let predicted = own.iter().take_while(|(_, target)| *target != IGNORE_INDEX);
                let text: Vec<(u32, u32)> = predicted.copied().collect();
                assert!(text.iter().all(|(id, target)| id + 1 == *target), "{text:?}");
                assert!(text.windows(2).all(|pair| pair[0].1 == pair[1].0), "{text:?}");
                assert!(own[text.len()..].iter().all(|pair| *pair == (0, IGNORE_INDEX)), "padding comes last");
                targets.extend(text.into_iter().map(|(_, target)| target));
            }
            assert_eq!(targets, (101..100 + count).collect::<Vec<u32>>(), "{count} in {pieces} of {block_size}");
        }
    }

    #[test]
    fn too_short_a_text_and_sizes_of_zero_are_refused() {
        let tokens = |count: u32| Tokens::from((0..count).collect::<Vec<u32>>());
        for (count, pieces, block_size) in [(1, 1, 1), (9, 0, 1), (9, 1, 0)] {
            assert!(Continued::new(tokens(count), pieces, block_size).is_err());
        }
    }
}
