//! What a configuration leaves open: of a fine-tuning run, the row length by the text and the batch size by the memory;
//! and what is `auto`, a batch size and how many blocks are recomputed.

use super::{Memory, fits_comfortably};
use crate::config::{Config, DeviceBatch, Origin, Recompute, Resolved, TrainConfig};
use crate::data::{Prepared, Tokens};
use crate::models::ModelConfig;
use crate::train::setup::init::STREAM_ROW;
use crate::train::setup::model_shape::model_config;
use crate::{Device, Error, Result, units};

/// Rows of documents are multiples of this: tiles of kernels are full, and runs on similar texts have the same shapes.
const ROW_MULTIPLE: usize = 64;

const BLOCK_SIZE: &str = "model.block_size";
const BATCH_SIZE: &str = "train.batch_size";
const GRAD_ACCUM: &str = "train.grad_accum_steps";
const RECOMPUTE: &str = "train.recompute";
const RECOMPUTE_BLOCKS: &str = "train.recompute_blocks";

/// Whether the sizes of batches are known only once the text is read.
pub(in crate::train) fn depend_on_text(resolved: &Resolved) -> bool {
    let is_open = |key: &str| resolved.origin(key).is_default();
    !resolved.config.model.init.is_empty() && (is_open(BLOCK_SIZE) || is_open(BATCH_SIZE))
}

/// Whether something is known only by [`settle`].
pub(in crate::train) fn are_open(resolved: &Resolved) -> bool {
    depend_on_text(resolved) || autos(resolved).next().is_some()
}

/// The keys that are `auto`.
fn autos(resolved: &Resolved) -> impl Iterator<Item = &'static str> {
    let batch = resolved.is_auto(BATCH_SIZE).then_some(BATCH_SIZE);
    let recompute = (resolved.config.train.recompute == Recompute::Auto).then_some(RECOMPUTE);
    batch.into_iter().chain(recompute)
}

/// Fills in what depends on the text and on the memory of the devices, so many and like this one. Returns the shape of
/// the model, and a note on what was chosen. Ranks `in_processes` of their own have the same batch, whatever memory
/// each has.
///
/// # Errors
/// If there is no such model, or ranks of several processes are to find a value for `auto`.
pub(in crate::train) fn settle(
    resolved: &mut Resolved,
    prepared: &Prepared,
    (device, devices): (&Device, usize),
    in_processes: bool,
    memory: &Memory,
) -> Result<(ModelConfig, Option<String>)> {
    if let Some(key) = autos(resolved).next().filter(|_| in_processes) {
        let message = "is \"auto\", which several processes cannot agree on: set a value".into();
        return Err(Error::Config { place: resolved.origin(key).to_string(), key: key.into(), message });
    }
    let before = resolved.clone();
    let beyond = settle_rows(resolved, [&prepared.train, &prepared.validation]);
    let shape = model_config(resolved, prepared.tokenizer.vocab_size())?;
    if resolved.config.model.new_tokenizer {
        let how = "the tokens of data.tokenizer";
        resolved.derive("model.vocab_size", how, |config| config.model.vocab_size = shape.vocab_size);
    }
    if !in_processes {
        let on = On { shape: &shape, in_documents: prepared.train.is_in_documents(), device, devices, memory };
        on.settle_batch(resolved, prepared.train.len())?;
        on.settle_recompute(resolved)?;
    }
    let note = note([&before, resolved], shape.n_layer, beyond, memory, device);
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

/// What decides whether a batch fits.
struct On<'a> {
    shape: &'a ModelConfig,
    in_documents: bool,
    device: &'a Device,
    /// How many share a batch.
    devices: usize,
    memory: &'a Memory,
}

impl On<'_> {
    fn fits(&self, config: &Config, batch_size: usize) -> Result<bool> {
        let mut config = config.clone();
        config.train.batch_size = batch_size;
        fits_comfortably(&config, self.shape, batch_size, self.in_documents, self.device, self.memory)
    }

    /// Of the smallest batch that can be divided as configured, all rows, and those of the device with the most.
    fn smallest_batch(&self, config: &Config) -> (usize, usize) {
        match &config.train.device_batch {
            DeviceBatch::Parts(parts) if !parts.is_empty() => {
                parts.iter().fold((0, 1), |(all, most), &part| (all + part, most.max(part)))
            }
            _ => (self.devices.max(1), 1),
        }
    }

    /// The memory counts for `auto`, which is refused or made safe where a device does not say how much it has.
    fn is_known(&self) -> bool {
        self.memory.of(self.device).is_some()
    }

    /// Fills in `train.batch_size` and `train.grad_accum_steps`, where the configuration leaves them open: the default
    /// batch, or as many sequences of it as fit the memory, accumulated to as many a step. `auto` is the largest batch
    /// that fits, and that a text of so many tokens fills.
    fn settle_batch(&self, resolved: &mut Resolved, tokens: usize) -> Result<()> {
        let config = resolved.config.clone();
        if resolved.is_auto(BATCH_SIZE) {
            if !self.is_known() {
                let message = format!("is \"auto\", and {} does not say how much memory it has", self.device.name());
                let place = resolved.origin(BATCH_SIZE).to_string();
                return Err(Error::Config { place, key: BATCH_SIZE.into(), message });
            }
            let (all, of_one) = self.smallest_batch(&config);
            let most = (tokens / config.model.block_size.max(1) / all).max(1);
            let times = largest(most, |times| self.fits(&config, times * of_one))?.max(1);
            let how = if times == most { "as many rows as the text has" } else { "the largest that fits the memory" };
            resolved.settle(BATCH_SIZE, how, |config| config.train.batch_size = times * all);
            return Ok(());
        }
        // The rows of a recurrent model are pieces of the text that go on from batch to batch.
        let is_open = resolved.origin(BATCH_SIZE).is_default() && !config.model.init.is_empty();
        if !is_open || self.shape.is_recurrent() {
            return Ok(());
        }
        let all = TrainConfig::default().batch_size;
        let mut batch_size = all;
        while batch_size > 1 && !self.fits(&config, batch_size)? {
            batch_size /= 2;
        }
        if batch_size < all && config.train.is_layerwise() {
            let how = "as many of 16 as fit the memory; layerwise updates do not accumulate";
            resolved.derive(BATCH_SIZE, how, |config| config.train.batch_size = batch_size);
        } else if batch_size < all {
            resolved.derive(BATCH_SIZE, "as many of 16 as fit the memory", |config| {
                config.train.batch_size = batch_size;
            });
            resolved.derive(GRAD_ACCUM, "as many sequences a step as by default", |config| {
                config.train.grad_accum_steps = all / batch_size;
            });
        } else {
            resolved.derive(BATCH_SIZE, "16 fit the memory", |config| config.train.batch_size = all);
        }
        Ok(())
    }

    /// Resolves `train.recompute = "auto"`: nothing if the batch fits, else attention if it fits then, else the fewest
    /// blocks. The last block is kept, as backward begins with it.
    fn settle_recompute(&self, resolved: &mut Resolved) -> Result<()> {
        if resolved.config.train.recompute != Recompute::Auto {
            return Ok(());
        }
        let (blocks, (all, of_one)) = (self.shape.n_layer, self.smallest_batch(&resolved.config));
        let rows = (resolved.config.train.batch_size * of_one).div_ceil(all);
        let fits = |set: &dyn Fn(&mut Config)| {
            let mut config = resolved.config.clone();
            set(&mut config);
            self.fits(&config, rows)
        };
        let attention = |config: &mut Config| config.train.recompute = Recompute::Attention;
        let with = |recomputed: usize| fits(&|config| set_recompute(config, recomputed, blocks));
        let fits_without = self.is_known() && with(0)?;
        if self.is_known() && !fits_without && fits(&attention)? {
            resolved.settle(RECOMPUTE, "the batch fits the memory with it", attention);
            return Ok(());
        }
        let kept = match self.is_known() {
            _ if fits_without => blocks,
            true => largest(blocks - 1, |kept| with(blocks - kept))?.max(1),
            false => 1,
        };
        let recomputed = blocks - kept;
        let how = match recomputed {
            _ if !self.is_known() => "the device does not say how much memory it has",
            0 => "the batch fits the memory without",
            _ => "as few blocks as the memory allows",
        };
        resolved.settle(RECOMPUTE, how, |config| set_recompute(config, recomputed, blocks));
        if resolved.config.train.recompute_blocks > 0 {
            resolved.settle(RECOMPUTE_BLOCKS, how, |_| {});
        }
        Ok(())
    }
}

fn set_recompute(config: &mut Config, recomputed: usize, blocks: usize) {
    config.train.recompute = if recomputed == 0 { Recompute::None } else { Recompute::Block };
    config.train.recompute_blocks = if recomputed == blocks { 0 } else { recomputed };
}

/// The largest number up to this one that fits, where all below it do; 0 if not even 1 does.
pub(super) fn largest(most: usize, fits: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    let (mut fitting, mut next) = (0, 1);
    while next <= most && fits(next)? {
        (fitting, next) = (next, if next == most { most + 1 } else { (2 * next).min(most) });
    }
    let mut too_large = next;
    while too_large - fitting > 1 {
        let middle = fitting.midpoint(too_large);
        if fits(middle)? { fitting = middle } else { too_large = middle }
    }
    Ok(fitting)
}

/// A note for the user on the sizes that were chosen between these two. `longer` of all documents exceed a row.
fn note(
    [before, after]: [&Resolved; 2],
    layers: usize,
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
        let fits = match after.origin(BATCH_SIZE) {
            Origin::Settled(how) => format!(" ({how})"),
            _ => memory.of(device).map_or(String::new(), |bytes| format!(" (fits {})", units::bytes(bytes))),
        };
        parts.push(format!("train.batch_size = {}{fits}", train.batch_size));
    }
    if is_settled(GRAD_ACCUM) {
        parts.push(format!("train.grad_accum_steps = {}", train.grad_accum_steps));
    }
    if is_settled(RECOMPUTE) {
        parts.push(match (train.recompute, train.recompute_blocks) {
            (Recompute::None, _) => "train.recompute = \"none\"".into(),
            (Recompute::Attention, _) => "train.recompute = \"attention\"".into(),
            (_, 0) => "train.recompute = \"block\"".into(),
            (_, some) => format!("train.recompute = \"block\" of {some} of {layers} blocks"),
        });
    }
    (!parts.is_empty()).then(|| format!("batches: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_is_the_last_that_fits() {
        for (limit, most) in [(0, 5), (1, 5), (3, 5), (4, 5), (5, 5), (9, 5), (37, 64), (64, 64), (1, 1), (0, 1)] {
            let found = largest(most, |n| {
                assert!((1..=most).contains(&n));
                Ok(n <= limit)
            });
            assert_eq!(found.unwrap(), limit.min(most), "{limit} of {most}");
        }
    }

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
