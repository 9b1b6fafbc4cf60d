//! All that can be said of a run before it begins.

use super::footprint::{Footprint, largest_rank};
use super::{Plan, available_memory_bytes, earlier};
use crate::config::{Config, Recompute, Resolved};
use crate::data::{Corpus, Position};
use crate::models::{ModelConfig, ModelKind};
use crate::profile::{Cost, MemoryKind, Roofline};
use crate::train::adapters::lora;
use crate::train::data_spec::data_spec;
use crate::train::model_shape::{model_config, model_kind};
use crate::train::precision::operands;
use crate::train::ranks::{Place, Share};
use crate::train::replica::loader;
use crate::train::trainer::{check_configured_precision, total_steps};
use crate::train::update_rules::trained;
use crate::units;
use crate::{Device, Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// All that can be said of a run before it begins.
#[derive(Debug, Clone, Serialize)]
pub struct RunPlan {
    pub device: String,
    /// How many devices there are, each a rank.
    pub ranks: usize,
    pub model: ModelConfig,
    pub parameters: usize,
    /// How many numbers adapters have, where those alone are trained.
    pub adapters: Option<usize>,
    pub memory: MemoryPlan,
    /// Of the machine, bytes: what a checkpoint takes; on the CPU the run too.
    pub host_bytes: u64,
    pub host_available_bytes: Option<u64>,
    /// Why the run cannot be; `None` if it can.
    pub does_not_fit: Option<String>,
    pub batch_size: usize,
    /// The largest that fits; `None` if the device does not say how much memory it has.
    pub largest_batch_size: Option<usize>,
    pub train_tokens: usize,
    pub validation_tokens: usize,
    pub tokens_per_step: usize,
    pub steps: usize,
    pub epochs: f64,
    /// Of the model, forward and backward: what utilization is measured by (MFU, Chowdhery et al. 2022).
    pub flops_per_step: f64,
    /// What is computed a second time besides, for `train.recompute`.
    pub recompute_flops_per_step: f64,
    /// Of the model.
    pub flops: f64,
    /// `None` until [`RunPlan::estimate`].
    pub time: Option<TimePlan>,
    /// What the estimate is made of.
    #[serde(skip)]
    work: Work,
}

/// The memory of the device, bytes: of several, of the one that has most weights and moments.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryPlan {
    pub weights: u64,
    pub f16_copies: u64,
    pub gradients: u64,
    pub moments: u64,
    pub activations: u64,
    /// What one kernel needs while it runs.
    pub workspace: u64,
    /// Batches, and numbers that are read back.
    pub other: u64,
    /// The most in use at once: the sum of those.
    pub peak: u64,
    /// What the pool holds of the system then: buffers wait in it for tensors of their size.
    pub reserved: u64,
    pub available: Option<u64>,
}

/// How long a run takes.
#[derive(Debug, Clone, Serialize)]
pub struct TimePlan {
    pub ms_per_step: f64,
    pub tokens_per_s: f64,
    /// Training and evaluations.
    pub seconds: f64,
    /// Where the estimate comes from, and how sure it is.
    pub source: String,
}

/// What an estimate of the time is made from.
#[derive(Debug, Clone)]
pub enum Rates {
    /// What the device does at best, measured just now.
    Peaks(Roofline),
    /// What an earlier run of the same model and batch came to on the same device.
    Earlier { run: PathBuf, tokens_per_s: f64 },
}

#[derive(Debug, Clone)]
struct Work {
    footprint: Footprint,
    evaluations: usize,
    /// Of each evaluation.
    batches: usize,
    on_hardware_gpu: bool,
    /// Whether rows hold documents apart from each other.
    in_documents: bool,
    /// Of the gradients.
    trained_bytes: u64,
    /// Of the parameters that each rank updates, as all get them where they are divided.
    updated_bytes: u64,
}

impl Work {
    /// How long these kernels take at the device's peaks.
    fn seconds(&self, peaks: &Roofline, costs: &[Cost]) -> f64 {
        /// What starting a kernel and filling a GPU takes: launches that do almost nothing take 5 to 20 us on an H200.
        const START_SECONDS: f64 = 5e-6;
        let start = if self.on_hardware_gpu { START_SECONDS } else { 0.0 };
        let bound = |cost: &Cost| (cost.flops / 1e12 / peaks.tflops).max(cost.bytes / 1e9 / peaks.gb_per_s);
        costs.iter().map(|cost| bound(cost) + start).sum()
    }
}

/// Sizes, counts and limits of the run that `resolved` describes, on so many devices of this kind. Nothing is written
/// but token files, to `cache_dir`: a run finds them there.
///
/// # Errors
/// If there could be no such run on any device: its text, tokenizer or model cannot be made, or its steps cannot be
/// divided.
pub fn plan_run(
    resolved: &Resolved,
    device: &Device,
    ranks: usize,
    data_dir: &Path,
    cache_dir: Option<&Path>,
) -> Result<RunPlan> {
    check_configured_precision(resolved, device)?;
    let (config, t) = (&resolved.config, &resolved.config.train);
    let text = text_size(config, model_kind(resolved)?, data_dir, cache_dir)?;
    let shape = model_config(resolved, text.vocab_size)?;
    let tokens_per_step = t.batch_size * t.grad_accum_steps * shape.block_size;
    let steps_per_epoch = text.batches_per_epoch / t.grad_accum_steps as f64;
    let steps = total_steps(t.length(), steps_per_epoch);
    resolved.clone().fit_warmup(steps)?;
    let (rows, micro_batches) = Share::largest(config, shape.kind, ranks)?;
    let sizes = sizes(config, &shape, rows, ranks)?;
    // Sizes beyond what a tensor can index have no kernels that could be planned.
    sizes.check_device(&Device::Cpu)?;
    let place = largest_rank(config, &shape, ranks, device)?;
    let fits = |batch_size| fits(config, &shape, batch_size, text.in_documents, (device, place));
    let of = |rows, micro_batches, place| {
        Footprint::new(config, &shape, rows, micro_batches, text.in_documents, (device, place))
    };
    let footprint = of(t.batch_size, t.grad_accum_steps, Place::ALONE)?;
    let of_largest = if place == Place::ALONE { footprint.clone() } else { of(rows, micro_batches, place)? };
    let flops_per_step = sizes.train_flops_per_token * tokens_per_step as f64;
    let windows = text.validation_tokens.saturating_sub(1).div_ceil(shape.block_size);
    let most = if t.eval_batches == 0 { usize::MAX } else { t.eval_batches };
    Ok(RunPlan {
        device: device.describe(),
        ranks,
        parameters: sizes.parameters,
        adapters: lora(config).map(|_| sizes.gradient_bytes as usize / 4),
        host_bytes: host_bytes(&sizes, &of_largest, device),
        host_available_bytes: available_memory_bytes(),
        does_not_fit: fits(t.batch_size)?,
        memory: MemoryPlan::new(&of_largest, &sizes, device),
        batch_size: t.batch_size,
        largest_batch_size: device.memory_bytes().map(|_| largest_batch_size(fits)).transpose()?,
        train_tokens: text.train_tokens,
        validation_tokens: text.validation_tokens,
        tokens_per_step,
        steps,
        epochs: steps as f64 / steps_per_epoch,
        flops_per_step,
        recompute_flops_per_step: match t.recompute {
            Recompute::None => 0.0,
            Recompute::Block => shape.recompute_flops_per_token() * tokens_per_step as f64,
        },
        flops: flops_per_step * steps as f64,
        time: None,
        work: Work {
            footprint,
            evaluations: evaluations(steps, t.eval_every),
            batches: windows.div_ceil(t.batch_size).min(most),
            on_hardware_gpu: device.is_hardware_gpu(),
            in_documents: text.in_documents,
            trained_bytes: sizes.gradient_bytes,
            updated_bytes: sizes.updated_bytes,
        },
        model: shape,
    })
}

impl RunPlan {
    /// A finished run in `run.dir` that says how fast this one will be, if there is one.
    pub fn earlier_rates(&self, config: &Config, device: &Device) -> Option<Rates> {
        earlier::rates(config, self.tokens_per_step, device)
    }

    /// What the part of a step that is `share` takes at the device's peaks.
    ///
    /// # Errors
    /// If there is no such model.
    pub(super) fn share_seconds(
        &self,
        config: &Config,
        share: &Share,
        device: &Device,
        peaks: &Roofline,
    ) -> Result<f64> {
        let (rows, micro_batches) = share.micro_batches();
        let on = (device, Place::ALONE);
        let footprint = Footprint::new(config, &self.model, rows, micro_batches, self.work.in_documents, on)?;
        Ok(self.work.seconds(peaks, &footprint.update))
    }

    /// Bytes of the gradients.
    pub(super) fn trained_bytes(&self) -> f64 {
        self.work.trained_bytes as f64
    }

    /// Bytes of the parameters as ranks that divide what they update give them to each other.
    pub(super) fn updated_bytes(&self) -> f64 {
        self.work.updated_bytes as f64
    }

    /// Fills in the time.
    pub fn estimate(&mut self, rates: &Rates) {
        let Work { footprint, evaluations, batches, .. } = &self.work;
        let (step, evaluation, source) = match rates {
            Rates::Peaks(peaks) => {
                let [step, evaluation] =
                    [&footprint.update, &footprint.evaluation].map(|costs| self.work.seconds(peaks, costs));
                let source = format!(
                    "the work of every kernel at the device's peaks just now, {:.3} TFLOP/s in {} GEMMs and {:.0} \
                     GB/s: large models come within twice of that, small ones, whose kernels are short, do not",
                    peaks.tflops, peaks.dtype, peaks.gb_per_s
                );
                (step, evaluation, source)
            }
            Rates::Earlier { run, tokens_per_s } => {
                let step = self.tokens_per_step as f64 / tokens_per_s;
                // Forward is a third of the work of the model.
                let share = self.flops_per_step / (self.flops_per_step + self.recompute_flops_per_step) / 3.0;
                let evaluation = (self.batch_size * self.model.block_size) as f64 / tokens_per_s * share;
                let run = run.display();
                (step, evaluation, format!("{run}, a finished run of the same model and batch on this device"))
            }
        };
        self.time = Some(TimePlan {
            ms_per_step: 1e3 * step,
            tokens_per_s: self.tokens_per_step as f64 / step,
            seconds: self.steps as f64 * step + (evaluations * batches) as f64 * evaluation,
            source,
        });
    }
}

impl MemoryPlan {
    fn new(footprint: &Footprint, sizes: &Plan, device: &Device) -> MemoryPlan {
        let stats = &footprint.memory;
        let of = |kind| stats.peak_by_kind[kind] as u64;
        let parameters = of(MemoryKind::Parameters);
        let f16_copies = sizes.half_bytes.min(parameters);
        MemoryPlan {
            weights: parameters - f16_copies,
            f16_copies,
            gradients: of(MemoryKind::Gradients),
            moments: of(MemoryKind::OptimizerState),
            activations: of(MemoryKind::Activations),
            workspace: of(MemoryKind::Scratch),
            other: of(MemoryKind::Other),
            peak: stats.peak_bytes as u64,
            reserved: stats.reserved_bytes as u64,
            available: device.memory_bytes(),
        }
    }
}

fn sizes(config: &Config, shape: &ModelConfig, batch_size: usize, ranks: usize) -> Result<Plan> {
    let operands = operands(config.device.precision);
    Ok(Plan::new(shape, batch_size * shape.block_size, operands, Some(&trained(config, shape, ranks)?)))
}

/// Bytes of the machine's memory that a run takes at most.
fn host_bytes(sizes: &Plan, footprint: &Footprint, device: &Device) -> u64 {
    /// What the CPU's kernels keep beside tensors, packed operands of GEMMs above all: 8 to 12 MiB on x86-64.
    const SCRATCH_BYTES: u64 = 8 << 20;
    // The CPU's memory keeps what waits for tensors of its size.
    let run = if device.is_gpu() { 0 } else { footprint.memory.reserved_bytes as u64 + SCRATCH_BYTES };
    run + sizes.checkpoint_bytes(device.is_gpu())
}

/// Nobody asks for larger ones.
const MOST_BATCH_SIZE: usize = 1 << 16;

/// Why a run with batches of this size cannot be on this device, the rank at this place; `None` if it can. Of a size
/// that cannot be divided among the ranks, as of the next that can.
fn fits(
    config: &Config,
    shape: &ModelConfig,
    batch_size: usize,
    in_documents: bool,
    (device, place): (&Device, Place),
) -> Result<Option<String>> {
    let mut config = config.clone();
    let divided = (batch_size..=MOST_BATCH_SIZE).find_map(|batch_size| {
        config.train.batch_size = batch_size;
        Share::largest(&config, shape.kind, place.ranks).ok()
    });
    let Some((rows, micro_batches)) = divided else {
        return Ok(Some(format!("no larger batch can be divided among {} ranks", place.ranks)));
    };
    let sizes = sizes(&config, shape, rows, place.ranks)?;
    match sizes.check_device(device) {
        Err(error @ (Error::GpuLimit { .. } | Error::Invalid(_))) => return Ok(Some(error.to_string())),
        result => result?,
    }
    // Two micro-batches take as much as any number of them.
    let footprint = Footprint::new(&config, shape, rows, micro_batches.min(2), in_documents, (device, place))?;
    let needs = |what: &str, needed: u64, available: Option<u64>| {
        let available = available.filter(|available| needed > *available)?;
        let [needed, available] = units::unequal_bytes([needed, available]);
        Some(format!("{what} needs {needed}, of {available} to spare"))
    };
    let on_device = || needs("the device", footprint.memory.peak_bytes as u64, device.memory_bytes());
    let on_host = needs("the machine", host_bytes(&sizes, &footprint, device), available_memory_bytes());
    Ok(on_host.or_else(|| if device.is_gpu() { on_device() } else { None }))
}

/// The largest that fits; 0 if none does.
fn largest_batch_size(fits: impl Fn(usize) -> Result<Option<String>>) -> Result<usize> {
    let (mut fitting, mut next) = (0, 1);
    while next <= MOST_BATCH_SIZE && fits(next)?.is_none() {
        (fitting, next) = (next, 2 * next);
    }
    let mut too_large = next;
    while too_large - fitting > 1 && too_large <= MOST_BATCH_SIZE {
        let middle = fitting.midpoint(too_large);
        if fits(middle)?.is_none() { fitting = middle } else { too_large = middle }
    }
    Ok(fitting)
}

/// How often a run of so many steps evaluates: every `every` steps and at the end.
fn evaluations(steps: usize, every: usize) -> usize {
    if every == 0 { 1 } else { steps.div_ceil(every) }
}

/// What a plan must know of the text.
struct TextSize {
    vocab_size: usize,
    train_tokens: usize,
    validation_tokens: usize,
    batches_per_epoch: f64,
    /// Whether rows hold documents apart from each other.
    in_documents: bool,
}

/// Counts the tokens as a run does: by making them.
fn text_size(config: &Config, kind: ModelKind, data_dir: &Path, cache_dir: Option<&Path>) -> Result<TextSize> {
    let spec = data_spec(&config.data, data_dir, cache_dir);
    let corpus = Corpus::open(&spec.corpus, &mut |_| {})?;
    let prepared = spec.prepare(&corpus, None, &mut |_| {}, &mut |_| {})?;
    let train_tokens = prepared.train.len();
    let loader = loader(config, kind, prepared.train, Position::default())?;
    Ok(TextSize {
        vocab_size: prepared.tokenizer.vocab_size(),
        train_tokens,
        validation_tokens: prepared.validation.len(),
        batches_per_epoch: loader.batches_per_epoch(),
        in_documents: loader.is_in_documents(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_batch_is_the_last_that_fits() {
        for most in [0, 1, 2, 3, 37, 64, 1000, 1 << 16] {
            let fits = |batch| Ok((batch > most).then(String::new));
            assert_eq!(largest_batch_size(fits).unwrap(), most);
        }
    }

    #[test]
    fn a_run_evaluates_at_every_interval_and_at_its_end() {
        assert_eq!([(10, 0), (10, 5), (10, 4), (3, 5)].map(|(steps, every)| evaluations(steps, every)), [1, 2, 3, 1]);
    }
}
