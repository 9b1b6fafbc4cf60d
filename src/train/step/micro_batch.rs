//! The loss of a micro-batch: the part of a batch that a device computes in one pass.

use super::ranks::{Piece, Share};
use super::replica::{count_predicted, criterion, pass_dropout, predicted};
use crate::config::Config;
use crate::data::Batch;
use crate::models::{Cache, Documents, LanguageModel, Past};
use crate::{Device, Result, Tensor};

/// The parts of a replica that compute losses, without its optimizer.
#[derive(Clone, Copy)]
pub(in crate::train) struct Forward<'a> {
    pub config: &'a Config,
    pub device: &'a Device,
    pub model: &'a dyn LanguageModel,
}

impl<'a> Forward<'a> {
    /// The loss of a piece in update `step` with these batches, given the states `carried` from the preceding text.
    pub fn losses<'b>(
        self,
        share: &'b Share,
        (batches, pieces): (&'b [Batch], &[Piece]),
        step: usize,
        carried: &'b mut Option<Cache>,
    ) -> impl FnMut(&Piece, Option<&Tensor>) -> Result<Tensor> + use<'a, 'b> {
        let targets = match self.config.train.sync_every {
            0 => predicted(batches),
            _ => pieces.iter().map(|piece| count_predicted(self.targets(&batches[piece.batch], piece))).sum(),
        };
        move |piece, loss_scale| {
            let batch = &batches[piece.batch];
            let pass = (step * self.config.train.grad_accum_steps + piece.batch) as u64;
            self.continuing(share, carried, batch, piece, |past| {
                self.loss(batch, piece, past, (pass, targets), loss_scale)
            })
        }
    }

    /// The share of a part of a batch in the mean loss over a step's `predicted` tokens, with the dropout masks of its
    /// sequences in the whole batch in pass `pass`.
    pub fn loss(
        &self,
        batch: &Batch,
        piece: &Piece,
        carried: Option<&mut Cache>,
        (pass, predicted): (u64, usize),
        loss_scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (c, device, t) = (self.config, self.device, self.config.model.block_size);
        let (tokens, shape) = (piece.rows.start * t..piece.rows.end * t, [piece.rows.len(), t]);
        let ids = Tensor::from_u32(&batch.ids[tokens.clone()], shape, device)?; // (B, T)
        let targets = self.targets(batch, piece);
        let count = count_predicted(targets);
        let targets = Tensor::from_u32(targets, shape, device)?; // (B, T)
        let documents =
            batch.starts.as_ref().map(|starts| Documents::new(&starts[tokens], shape, device)).transpose()?;
        let past = carried.map_or(documents.as_ref().into(), Past::Cache);
        let dropout = pass_dropout(c, pass).from_sequence(piece.rows.start);
        let loss = self.model.loss(&ids, &targets, past, &dropout, criterion(c), loss_scale)?;
        // The mean over a part counts by the number of its tokens, of which short documents and prompts leave more or
        // fewer.
        let weight = count as f32 / predicted.max(1) as f32;
        if weight == 1.0 { Ok(loss) } else { loss.scale(weight) }
    }

    fn targets<'b>(&self, batch: &'b Batch, piece: &Piece) -> &'b [u32] {
        let t = self.config.model.block_size;
        &batch.targets[piece.rows.start * t..piece.rows.end * t]
    }

    /// Computes with a part of a batch and its recurrent states, and updates them; other models have none.
    fn continuing<T>(
        &self,
        share: &Share,
        carried: &mut Option<Cache>,
        batch: &Batch,
        piece: &Piece,
        compute: impl FnOnce(Option<&mut Cache>) -> Result<T>,
    ) -> Result<T> {
        let (Some(own), Some(rows)) = (carried, share.continued()) else { return compute(None) };
        if batch.begins && piece.rows.start == rows.start {
            *own = self.model.cache(rows.len(), 0)?;
        }
        if piece.rows == rows {
            return compute(Some(own));
        }
        let start = piece.rows.start - rows.start;
        let mut part = own.rows(start..start + piece.rows.len())?;
        let value = compute(Some(&mut part))?;
        *own = own.with_rows(start, &part)?;
        Ok(value)
    }
}
