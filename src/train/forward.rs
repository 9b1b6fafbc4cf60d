//! The forward pass of a device over a piece of a batch.

use super::ranks::{Piece, Share};
use crate::config::Config;
use crate::data::{Batch, IGNORE_INDEX};
use crate::models::{Cache, Documents, LanguageModel, Past};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::{Device, Result, Tensor};

/// What a run minimizes. Evaluations measure the plain loss instead.
pub(in crate::train) fn criterion(config: &Config) -> Criterion<'static> {
    Criterion { label_smoothing: config.train.label_smoothing as f32, class_weights: None }
}

/// What pass number `pass` of a run drops.
pub(in crate::train) fn pass_dropout(config: &Config, pass: u64) -> Dropout {
    let (model, adapters) = (&config.model, config.lora.dropout as f32);
    let dropout = Dropout::new(model.dropout as f32, config.run.seed, pass);
    dropout.of_embeddings(model.embd_dropout as f32).of_adapters(adapters)
}

/// How many tokens batches have to predict.
pub(super) fn predicted(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| count_predicted(&batch.targets)).sum()
}

fn count_predicted(targets: &[u32]) -> usize {
    targets.iter().filter(|&&target| target != IGNORE_INDEX).count()
}

/// What a forward pass computes with.
pub(super) struct Forward<'a> {
    pub config: &'a Config,
    pub device: &'a Device,
    pub model: &'a dyn LanguageModel,
    /// The sequences of each step that this device computes.
    pub share: &'a Share,
    pub loss_scale: Option<&'a Tensor>,
}

impl Forward<'_> {
    /// The tokens that the mean loss of this device's step is over: those of all devices, unless each trains apart.
    pub fn predicted(&self, batches: &[Batch], pieces: &[Piece]) -> usize {
        match self.config.train.sync_every {
            0 => predicted(batches),
            _ => pieces.iter().map(|piece| count_predicted(self.targets(&batches[piece.batch], piece))).sum(),
        }
    }

    fn targets<'a>(&self, batch: &'a Batch, piece: &Piece) -> &'a [u32] {
        let t = self.config.model.block_size;
        &batch.targets[piece.rows.start * t..piece.rows.end * t]
    }

    /// [`Forward::loss`] of the next piece of a text that a recurrent model reads: from the states after the piece
    /// before, which become those after this one. Other models carry nothing.
    pub fn carried_loss(
        &self,
        carried: &mut Option<Cache>,
        batch: &Batch,
        piece: &Piece,
        pass: u64,
        predicted: usize,
    ) -> Result<Tensor> {
        let (Some(own), Some(rows)) = (carried, self.share.continued()) else {
            return self.loss(batch, piece, None, pass, predicted);
        };
        if batch.begins && piece.rows.start == rows.start {
            *own = self.model.cache(rows.len(), 0)?;
        }
        if piece.rows == rows {
            return self.loss(batch, piece, Some(own), pass, predicted);
        }
        let start = piece.rows.start - rows.start;
        let mut part = own.rows(start..start + piece.rows.len())?;
        let loss = self.loss(batch, piece, Some(&mut part), pass, predicted)?;
        *own = own.with_rows(start, &part)?;
        Ok(loss)
    }

    /// What a piece of a batch contributes to the mean loss over the `predicted` tokens of a step, with the dropout
    /// masks that its sequences have in the whole batch.
    pub fn loss(
        &self,
        batch: &Batch,
        piece: &Piece,
        carried: Option<&mut Cache>,
        pass: u64,
        predicted: usize,
    ) -> Result<Tensor> {
        let (device, t) = (self.device, self.config.model.block_size);
        let (tokens, shape) = (piece.rows.start * t..piece.rows.end * t, [piece.rows.len(), t]);
        let ids = Tensor::from_u32(&batch.ids[tokens.clone()], shape, device)?; // (B, T)
        let targets = self.targets(batch, piece);
        let count = count_predicted(targets);
        let targets = Tensor::from_u32(targets, shape, device)?; // (B, T)
        let documents =
            batch.starts.as_ref().map(|starts| Documents::new(&starts[tokens], shape, device)).transpose()?;
        let past = carried.map_or(documents.as_ref().into(), Past::Cache);
        let dropout = pass_dropout(self.config, pass).from_sequence(piece.rows.start);
        let loss = self.model.loss(&ids, &targets, past, &dropout, criterion(self.config), self.loss_scale)?;
        // The mean over a piece counts by the number of its tokens, of which short documents and prompts leave more or
        // fewer.
        let weight = count as f32 / predicted.max(1) as f32;
        if weight == 1.0 { Ok(loss) } else { loss.scale(weight) }
    }
}
