//! The loss of a micro-batch: the part of a batch that a device computes in one pass.

use super::ranks::{Piece, Share};
use super::replica::{counts, criterion, pass_dropout};
use crate::config::Config;
use crate::data::Batch;
use crate::models::{Cache, LanguageModel, Past};
use crate::train::evaluation::preference::{Answers, Counts, Preference, Rows, mean_kl};
use crate::{Device, Result, Tensor};

/// The parts of a replica that compute losses, without its optimizer.
#[derive(Clone, Copy)]
pub(in crate::train) struct Forward<'a> {
    pub config: &'a Config,
    pub device: &'a Device,
    pub model: &'a dyn LanguageModel,
    pub preference: Option<&'a Preference>,
}

/// What the loss of a micro-batch depends on beside its tokens.
#[derive(Clone, Copy)]
pub(in crate::train) struct OfStep<'a> {
    /// The number of the forward pass of the whole batch, for dropout.
    pub pass: u64,
    /// Of all batches of the step.
    pub counts: Counts,
    /// KTO's, of the whole step.
    pub kl: Option<&'a Tensor>,
    pub loss_scale: Option<&'a Tensor>,
}

impl<'a> Forward<'a> {
    /// The loss of a piece in update `step` with these batches, given the states `carried` from the preceding text.
    /// `totals` gets the sums of preferences.
    ///
    /// # Errors
    /// If the device runs out of memory for what all losses depend on.
    pub fn losses<'b>(
        self,
        share: &'b Share,
        (batches, pieces): (&'b [Batch], &[Piece]),
        step: usize,
        carried: &'b mut Option<Cache>,
        totals: &'b mut Vec<Tensor>,
    ) -> Result<impl FnMut(&Piece, Option<&Tensor>) -> Result<Tensor> + use<'a, 'b>> {
        let counts = match self.config.train.sync_every {
            0 => counts(batches),
            _ => pieces.iter().map(|piece| self.counts(&batches[piece.batch], piece)).sum(),
        };
        let kl = match self.preference {
            Some(preference) if preference.needs_kl() => Some(self.kl(preference, (batches, pieces), counts)?),
            _ => None,
        };
        Ok(move |piece: &Piece, loss_scale: Option<&Tensor>| {
            let batch = &batches[piece.batch];
            let pass = (step * self.config.train.grad_accum_steps + piece.batch) as u64;
            let of_step = OfStep { pass, counts, kl: kl.as_ref(), loss_scale };
            let (loss, own) =
                self.continuing(share, carried, batch, piece, |past| self.loss(batch, piece, past, of_step))?;
            totals.extend(own);
            Ok(loss)
        })
    }

    /// The share of a part of a batch in the mean loss of a step, with the dropout masks of its sequences in the whole
    /// batch; and the sums of preferences.
    pub fn loss(
        &self,
        batch: &Batch,
        piece: &Piece,
        carried: Option<&mut Cache>,
        OfStep { pass, counts, kl, loss_scale }: OfStep,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let dropout = pass_dropout(self.config, pass).from_sequence(piece.rows.start);
        let rows = self.on_device(batch, piece)?;
        if let Some(preference) = self.preference {
            let sums = preference.sums(self.model, &rows, &dropout, loss_scale, kl)?;
            return Ok((preference.loss(&sums, counts)?, Some(sums.totals)));
        }
        let Rows { ids, targets, documents, .. } = rows;
        let past = carried.map_or(documents.as_ref().into(), Past::Cache);
        let loss = self.model.loss(&ids, &targets, past, &dropout, criterion(self.config), loss_scale)?;
        // The mean over a part counts by the number of its tokens, of which short documents and prompts leave more or
        // fewer.
        let weight = self.counts(batch, piece).tokens as f32 / counts.tokens.max(1) as f32;
        Ok((if weight == 1.0 { loss } else { loss.scale(weight)? }, None))
    }

    /// KTO's KL of a step: (), at least 0.
    fn kl(&self, preference: &Preference, (batches, pieces): (&[Batch], &[Piece]), counts: Counts) -> Result<Tensor> {
        let mut sum = Tensor::full(0.0, [], self.device)?;
        for piece in pieces {
            let rows = self.on_device(&batches[piece.batch], piece)?;
            sum = sum.add(&preference.kl(self.model, &rows)?)?;
        }
        mean_kl(&sum, counts.examples)
    }

    fn on_device(&self, batch: &Batch, piece: &Piece) -> Result<Rows> {
        let (tokens, shape) = (self.tokens(piece), [piece.rows.len(), self.config.model.block_size]);
        let targets = &batch.targets[tokens.clone()];
        let starts = batch.starts.as_ref().map(|starts| &starts[tokens.clone()]);
        let answers = Answers::new(&batch.answers, tokens.clone(), targets);
        Rows::new((&batch.ids[tokens], targets), starts, answers, shape, self.device)
    }

    fn counts(&self, batch: &Batch, piece: &Piece) -> Counts {
        Counts::of(&batch.answers, &batch.targets, self.tokens(piece))
    }

    /// Of a piece in its batch.
    fn tokens(&self, piece: &Piece) -> std::ops::Range<usize> {
        let t = self.config.model.block_size;
        piece.rows.start * t..piece.rows.end * t
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
