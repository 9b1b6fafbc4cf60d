//! Default batch sizes of a fine-tuning run: row length by the text, and batch size by the memory.

use super::{Memory, fits_comfortably};
use crate::config::{Config, Resolved, TrainConfig};
use crate::data::Tokens;
use crate::models::ModelConfig;
use crate::train::setup::init::STREAM_ROW;
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

/// Fills in `model.block_size`, where the configuration leaves it open: the longest document, of a continuous text
/// [`STREAM_ROW`], and never more than the model's context. `texts` are the training and the validation split.
pub(in crate::train) fn settle_rows(resolved: &mut Resolved, texts: [&Tokens; 2]) {
    let context = resolved.config.model.context;
    if context == 0 || !depend_on_text(resolved) {
        return;
    }
    let [train, _] = texts;
    if train.is_in_documents() {
        // The last token of a document is predicted, and not read.
        let longest = texts.map(Tokens::longest_document).into_iter().max().unwrap_or(0).saturating_sub(1);
        let rows = longest.max(1).next_multiple_of(ROW_MULTIPLE).min(context);
        resolved.derive(BLOCK_SIZE, "what the longest document needs", |config| config.model.block_size = rows);
    } else {
        let rows = STREAM_ROW.min(context).min(train.len().saturating_sub(1)).max(1);
        resolved.derive(BLOCK_SIZE, "1024, or the text or the model's context if that is shorter", |config| {
            config.model.block_size = rows;
        });
    }
}

/// Fills in `train.batch_size` and `train.grad_accum_steps`, where the configuration leaves them open: the default
/// batch, or as many sequences of it as fit `memory`, accumulated to as many a step.
///
/// # Errors
/// If there is no such model.
pub(in crate::train) fn settle_batch(
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

/// A note for the user on the chosen sizes.
pub(in crate::train) fn note(before: &Resolved, after: &Resolved, memory: &Memory, device: &Device) -> Option<String> {
    let is_settled = |key: &str| before.origin(key) != after.origin(key);
    let (model, train) = (&after.config.model, &after.config.train);
    let mut parts = Vec::new();
    if is_settled(BLOCK_SIZE) {
        let why = after.origin(BLOCK_SIZE).to_string();
        let why = why.strip_prefix("default: ").unwrap_or(&why);
        parts.push(format!("model.block_size = {} ({why})", model.block_size));
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
