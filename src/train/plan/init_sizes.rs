//! Sizes that a configuration leaves open: of a fine-tuning run, the row length by the text, and the batch size by the
//! memory.

use super::{Memory, fits_comfortably};
use crate::config::{Config, Resolved, TrainConfig};
use crate::data::{Prepared, Tokens};
use crate::models::ModelConfig;
use crate::train::setup::init::STREAM_ROW;
use crate::train::setup::model_shape::model_config;
use crate::{Device, Result, units};

/// Rows of documents are multiples of this: tiles of kernels are full, and runs on similar texts have the same shapes.
const ROW_MULTIPLE: usize = 64;

const BLOCK_SIZE: &str = "model.block_size";
const BATCH_SIZE: &str = "train.batch_size";
const GRAD_ACCUM: &str = "train.grad_accum_steps";

/// Whether the sizes of batches are known only once the text is read.
pub(in crate::train) fn depend_on_text(resolved: &Resolved) -> bool {
    let is_open = |key: &str| resolved.origin(key).is_default();
    !resolved.config.model.init.is_empty() && (is_open(BLOCK_SIZE) || is_open(BATCH_SIZE))
}

/// Fills in the sizes that depend on the text and on the memory. Returns the shape of the model, and a note on what was
/// chosen. Ranks `in_processes` of their own have the same batch, whatever memory each has.
///
/// # Errors
/// If there is no such model.
pub(in crate::train) fn settle(
    resolved: &mut Resolved,
    prepared: &Prepared,
    device: &Device,
    in_processes: bool,
    memory: &Memory,
) -> Result<(ModelConfig, Option<String>)> {
    let before = resolved.clone();
    let beyond = settle_rows(resolved, [&prepared.train, &prepared.validation]);
    let shape = model_config(resolved, prepared.tokenizer.vocab_size())?;
    if resolved.config.model.new_tokenizer {
        let how = "the tokens of data.tokenizer";
        resolved.derive("model.vocab_size", how, |config| config.model.vocab_size = shape.vocab_size);
    }
    if !in_processes {
        settle_batch(resolved, &shape, prepared.train.is_in_documents(), device, memory)?;
    }
    let note = note([&before, resolved], beyond, memory, device);
    Ok((shape, note))
}

/// Fills in `model.block_size`, where the configuration leaves it open: the 99th percentile of document lengths, for a
/// continuous text [`STREAM_ROW`], and never more than the model's context. `texts` are the training and the validation
/// split. Returns how many documents are longer than a row, and how many there are.
fn settle_rows(resolved: &mut Resolved, texts: [&Tokens; 2]) -> [usize; 2] {
    let context = resolved.config.model.context;
    if context == 0 || !depend_on_text(resolved) {
        return [0, 0];
    }
    let [train, _] = texts;
    if train.is_in_documents() {
        // The last token of a document is predicted, and not read.
        let read = |length: usize| length.saturating_sub(1);
        let mut lengths: Vec<_> = texts.into_iter().flat_map(Tokens::document_lengths).map(read).collect();
        let (rows, how) = document_rows(&mut lengths, context);
        resolved.derive(BLOCK_SIZE, how, |config| config.model.block_size = rows);
        [lengths.iter().filter(|&&length| length > rows).count(), lengths.len()]
    } else {
        let rows = STREAM_ROW.min(context).min(train.len().saturating_sub(1)).max(1);
        resolved.derive(BLOCK_SIZE, "1024, or the text or the model's context if that is shorter", |config| {
            config.model.block_size = rows;
        });
        [0, 0]
    }
}

/// The length of rows for documents of these lengths, and how it follows from them: their 99th percentile, since one
/// document that is far longer than all others would make every batch as long.
fn document_rows(lengths: &mut [usize], context: usize) -> (usize, &'static str) {
    lengths.sort_unstable();
    let needs = |number: usize| lengths.get(number).map_or(1, |&length| length.max(1)).next_multiple_of(ROW_MULTIPLE);
    let last = lengths.len().saturating_sub(1);
    let [most, all] = [(lengths.len() * 99).div_ceil(100).saturating_sub(1), last].map(needs);
    let rows = most.min(context);
    let how = match rows {
        _ if rows >= all => "what the longest document needs",
        _ if rows == most => "99th percentile of document lengths",
        _ => "the model's context",
    };
    (rows, how)
}

/// Fills in `train.batch_size` and `train.grad_accum_steps`, where the configuration leaves them open: the default
/// batch, or as many sequences of it as fit `memory`, accumulated to as many a step.
///
/// # Errors
/// If there is no such model.
fn settle_batch(
    resolved: &mut Resolved,
    shape: &ModelConfig,
    in_documents: bool,
    device: &Device,
    memory: &Memory,
) -> Result<()> {
    // The rows of a recurrent model are pieces of the text that go on from batch to batch.
    if resolved.config.model.init.is_empty() || !resolved.origin(BATCH_SIZE).is_default() || shape.is_recurrent() {
        return Ok(());
    }
    let all = TrainConfig::default().batch_size;
    let mut batch_size = all;
    let fits = |batch_size: usize| {
        let config = with_batch(&resolved.config, batch_size);
        fits_comfortably(&config, shape, batch_size, in_documents, device, memory)
    };
    while batch_size > 1 && !fits(batch_size)? {
        batch_size /= 2;
    }
    if batch_size < all {
        resolved.derive(BATCH_SIZE, "as many of 16 as fit the memory", |config| config.train.batch_size = batch_size);
        resolved.derive(GRAD_ACCUM, "as many sequences a step as by default", |config| {
            config.train.grad_accum_steps = all / batch_size;
        });
    } else {
        resolved.derive(BATCH_SIZE, "16 fit the memory", |config| config.train.batch_size = all);
    }
    Ok(())
}

fn with_batch(config: &Config, batch_size: usize) -> Config {
    let mut config = config.clone();
    config.train.batch_size = batch_size;
    config
}

/// A note for the user on the sizes that were chosen between these two. `longer` of all documents exceed a row.
fn note(
    [before, after]: [&Resolved; 2],
    [longer, documents]: [usize; 2],
    memory: &Memory,
    device: &Device,
) -> Option<String> {
    let is_settled = |key: &str| before.origin(key) != after.origin(key);
    let (model, train) = (&after.config.model, &after.config.train);
    let mut parts = Vec::new();
    if is_settled(BLOCK_SIZE) {
        let why = after.origin(BLOCK_SIZE).to_string();
        let why = why.strip_prefix("default: ").unwrap_or(&why);
        let longer = match longer {
            0 => String::new(),
            longer => format!("; {longer} of {documents} documents are longer"),
        };
        parts.push(format!("model.block_size = {} ({why}{longer})", model.block_size));
    }
    if is_settled(BATCH_SIZE) {
        let fits = memory.of(device).map_or(String::new(), |bytes| format!(" (fits {})", units::bytes(bytes)));
        parts.push(format!("train.batch_size = {}{fits}", train.batch_size));
    }
    if is_settled(GRAD_ACCUM) {
        parts.push(format!("train.grad_accum_steps = {}", train.grad_accum_steps));
    }
    (!parts.is_empty()).then(|| format!("batches: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_99_of_100_documents_whole() {
        let rows = |lengths: &[usize], context| document_rows(&mut lengths.to_vec(), context).0;
        let mut lengths = vec![60; 100];
        assert_eq!(rows(&lengths, 1000), 64);
        lengths[7] = 500;
        assert_eq!(document_rows(&mut lengths, 1000), (64, "99th percentile of document lengths"));
        lengths[7] = 500;
        assert_eq!(document_rows(&mut lengths, 1000), (512, "what the longest document needs"));
        assert_eq!(document_rows(&mut lengths, 300), (300, "the model's context"));
        // Fewer than a hundred have no such tail.
        assert_eq!(rows(&[64, 65], 1000), 128);
        assert_eq!(rows(&[], 1000), 64);
    }
}
