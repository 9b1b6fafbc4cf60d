//! Estimates of a run before it starts.

use super::fit::{Memory, Need, Passes, Saving, check_one_device, savings, sizes};
use super::footprint::{Footprint, largest_rank};
use super::{Plan, earlier, init_sizes};
use crate::config::{Config, Recompute, Resolved};
use crate::data::{Corpus, Position, Prepared};
use crate::models::ModelConfig;
use crate::profile::{Cost, MemoryKind, Roofline};
use crate::train::setup::adapters::lora;
use crate::train::setup::data_spec::data_spec;
use crate::train::setup::init::check_tokenizer;
use crate::train::setup::precision::check_configured_precision;
use crate::train::setup::schedule::settle_length;
use crate::train::step::ranks::{Place, Share};
use crate::train::step::replica::loader;
use crate::units;
use crate::{Device, Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Estimates of a run before it starts.
#[derive(Debug, Clone, Serialize)]
pub struct RunPlan {
    pub device: String,
    /// Number of devices, each a rank.
    pub ranks: usize,
    pub model: ModelConfig,
    pub parameters: usize,
    /// Trained parameters, if LoRA freezes the others.
    pub adapters: Option<usize>,
    pub memory: MemoryPlan,
    /// Machine memory, bytes: for a checkpoint and, on the CPU, for the run.
    pub host_bytes: u64,
    pub host_available_bytes: Option<u64>,
    /// The reason why the run does not fit, and a remedy; `None` if it fits.
    pub does_not_fit: Option<String>,
    pub batch_size: usize,
    /// Micro-batches per batch: more than one if the whole batch does not fit in memory.
    pub passes: usize,
    /// The largest batch that fits in one pass; `None` if the device does not say how much memory it has.
    pub largest_batch_size: Option<usize>,
    /// Tokens of a training row.
    pub block_size: usize,
    /// Notes on sizes that the plan has chosen.
    pub notes: Vec<String>,
    /// Changes that save memory, each with those before it.
    pub savings: Vec<Saving>,
    pub train_tokens: usize,
    pub validation_tokens: usize,
    pub tokens_per_step: usize,
    pub steps: usize,
    pub epochs: f64,
    /// FLOPs of the model per step, forward and backward, the basis of MFU (Chowdhery et al. 2022).
    pub flops_per_step: f64,
    /// Additional FLOPs of `train.recompute`.
    pub recompute_flops_per_step: f64,
    /// FLOPs of the model in the whole run.
    pub flops: f64,
    /// `None` until [`RunPlan::estimate`].
    pub time: Option<TimePlan>,
    /// The configuration with all defaults resolved.
    #[serde(skip)]
    pub resolved: Resolved,
    /// Basis of the estimate.
    #[serde(skip)]
    work: Work,
}

/// The ranks of a run that is planned.
#[derive(Debug, Clone, Copy)]
pub struct PlannedRanks {
    pub count: usize,
    /// Those on the CPU of one machine, which share its memory.
    pub on_machine: usize,
    /// Whether they are in several processes.
    pub in_processes: bool,
}

impl PlannedRanks {
    /// A single device.
    pub const ONE: PlannedRanks = PlannedRanks { count: 1, on_machine: 1, in_processes: false };
}

/// Device memory, bytes; with several devices, of the one with the most weights and moments.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryPlan {
    pub weights: u64,
    pub f16_copies: u64,
    pub gradients: u64,
    pub moments: u64,
    pub activations: u64,
    /// Scratch memory of one kernel.
    pub workspace: u64,
    /// Batches, and numbers that are read back.
    pub other: u64,
    /// Peak memory, the sum of the above.
    pub peak: u64,
    /// Memory reserved by the pool at the peak, including cached buffers.
    pub reserved: u64,
    pub available: Option<u64>,
}

/// Estimated duration of a run.
#[derive(Debug, Clone, Serialize)]
pub struct TimePlan {
    pub ms_per_step: f64,
    pub tokens_per_s: f64,
    /// Training and evaluations.
    pub seconds: f64,
    /// Source and reliability of the estimate.
    pub source: String,
}

/// Basis of a time estimate.
#[derive(Debug, Clone)]
pub enum Rates {
    /// Measured peaks of the device.
    Peaks(Roofline),
    /// Speed of an earlier run with the same model, batch and device.
    Earlier { run: PathBuf, tokens_per_s: f64 },
}

#[derive(Debug, Clone)]
struct Work {
    footprint: Footprint,
    evaluations: usize,
    /// Of each evaluation.
    batches: usize,
    /// Sequences of each of those.
    batch_rows: usize,
    on_hardware_gpu: bool,
    /// Whether rows hold documents apart from each other.
    in_documents: bool,
    /// Of the gradients.
    trained_bytes: u64,
    /// Of the parameters that each rank updates, as all get them where they are divided.
    updated_bytes: u64,
}

impl Work {
    fn new(
        config: &Config,
        footprint: Footprint,
        batch_rows: usize,
        (steps, validation_tokens): (usize, usize),
        device: &Device,
        in_documents: bool,
        sizes_of_pass: &Plan,
    ) -> Work {
        let t = &config.train;
        let windows = validation_tokens.saturating_sub(1).div_ceil(config.model.block_size);
        let most = match t.eval_batches {
            0 => usize::MAX,
            batches => batches.saturating_mul(t.batch_size.div_ceil(batch_rows)),
        };
        Work {
            footprint,
            evaluations: evaluations(steps, t.eval_every),
            batches: windows.div_ceil(batch_rows).min(most),
            batch_rows,
            on_hardware_gpu: device.is_hardware_gpu(),
            in_documents,
            trained_bytes: sizes_of_pass.gradient_bytes,
            updated_bytes: sizes_of_pass.updated_bytes,
        }
    }

    /// How long these kernels take at the device's peaks.
    fn seconds(&self, peaks: &Roofline, costs: &[Cost]) -> f64 {
        /// Time to start a kernel and fill a GPU: nearly empty launches take 5 to 20 us on an H200.
        const START_SECONDS: f64 = 5e-6;
        let start = if self.on_hardware_gpu { START_SECONDS } else { 0.0 };
        let bound = |cost: &Cost| (cost.flops / 1e12 / peaks.tflops).max(cost.bytes / 1e9 / peaks.gb_per_s);
        costs.iter().map(|cost| bound(cost) + start).sum()
    }
}

/// Plans the run of `resolved` on `ranks` devices of this kind. Writes only token files, to `cache_dir`, where a run
/// finds them.
///
/// # Errors
/// If the run is impossible on any device: its text, tokenizer or model is invalid, or its steps cannot be divided.
pub fn plan_run(
    resolved: &Resolved,
    device: &Device,
    PlannedRanks { count: ranks, on_machine, in_processes }: PlannedRanks,
    data_dir: &Path,
    cache_dir: Option<&Path>,
) -> Result<RunPlan> {
    check_configured_precision(resolved, device)?;
    let prepared = prepare(resolved, data_dir, cache_dir)?;
    let memory = Memory::available(device, if device.is_gpu() { 1 } else { on_machine })?;
    let mut resolved = resolved.clone();
    let (shape, note) = init_sizes::settle(&mut resolved, &prepared, (device, ranks), in_processes, &memory)?;
    let loader = loader(&resolved.config, shape.kind, prepared.train.clone(), Position::default())?;
    let (steps, steps_per_epoch) = settle_length(&mut resolved, &loader)?;
    let in_documents = loader.is_in_documents();
    let (config, t) = (&resolved.config, &resolved.config.train);
    // More ranks than sequences are refused before each is made.
    let share = Share::largest(config, shape.kind, ranks)?;
    check_one_device(config, ranks)?;
    let on = (device, largest_rank(config, &shape, ranks, device)?);
    let (passes, does_not_fit) = passes(config, &shape, in_documents, on, &memory, share)?;
    let sizes_of_pass = sizes(config, &shape, passes.rows, ranks)?;
    // Sizes beyond what a tensor can index have no kernels that could be planned.
    sizes_of_pass.check_device(&Device::Cpu)?;
    let batch_rows = indexable_rows(config, &shape)?;
    let (footprint, of_largest) = footprints(config, &shape, in_documents, on, &passes, (batch_rows, share))?;
    let [flops_per_step, recompute_flops_per_step] = flops_per_step(config, &shape, ranks)?;
    let lengths = (steps, prepared.validation.len());
    Ok(RunPlan {
        device: device.describe(),
        ranks,
        parameters: sizes_of_pass.parameters,
        adapters: lora(config).map(|_| sizes_of_pass.gradient_bytes as usize / 4),
        host_bytes: Need::new(&sizes_of_pass, &of_largest, device).host,
        host_available_bytes: memory.host,
        memory: MemoryPlan::new(&of_largest, &sizes_of_pass, device),
        batch_size: t.batch_size,
        passes: passes.splits,
        largest_batch_size: largest_in_one_pass(config, &shape, in_documents, on, &memory, does_not_fit.is_none())?,
        does_not_fit,
        block_size: config.model.block_size,
        notes: note.into_iter().chain(passes.note.clone()).collect(),
        savings: savings(config, &shape, in_documents, on, passes.rows)?,
        train_tokens: prepared.train.len(),
        validation_tokens: prepared.validation.len(),
        tokens_per_step: tokens_per_step(config),
        steps,
        epochs: steps as f64 / steps_per_epoch,
        flops_per_step,
        recompute_flops_per_step,
        flops: flops_per_step * steps as f64,
        time: None,
        work: Work::new(config, footprint, batch_rows, lengths, device, in_documents, &sizes_of_pass),
        model: shape,
        resolved,
    })
}

fn tokens_per_step(config: &Config) -> usize {
    config.train.batch_size * config.train.grad_accum_steps * config.model.block_size
}

/// FLOPs of the model, and those of `train.recompute`.
fn flops_per_step(config: &Config, shape: &ModelConfig, ranks: usize) -> Result<[f64; 2]> {
    let in_rows = ModelConfig { block_size: config.model.block_size, ..shape.clone() };
    let recompute = match config.train.recompute {
        Recompute::Attention => in_rows.recompute_attention_flops_per_token(),
        _ => {
            let share = config.train.recomputed_blocks(shape.n_layer) as f64 / shape.n_layer as f64;
            share * in_rows.recompute_flops_per_token()
        }
    };
    let model = sizes(config, &in_rows, 1, ranks)?.train_flops_per_token;
    Ok([model, recompute].map(|of_token| of_token * tokens_per_step(config) as f64))
}

/// In how many passes the largest share of a batch is computed; of a run that does not fit, passes of one sequence and
/// why.
fn passes(
    config: &Config,
    shape: &ModelConfig,
    in_documents: bool,
    on: (&Device, Place),
    memory: &Memory,
    (rows, _): (usize, usize),
) -> Result<(Passes, Option<String>)> {
    match Passes::of(config, shape, in_documents, on, memory, true) {
        Ok(passes) => Ok((passes, None)),
        Err(error @ (Error::GpuLimit { .. } | Error::Invalid(_))) => {
            Ok((Passes { splits: rows, rows: 1, note: None }, Some(error.to_string())))
        }
        Err(error) => Err(error),
    }
}

/// The most rows per pass, found by halving, whose tensors can be indexed. The work of a batch does not depend on the
/// passes.
fn indexable_rows(config: &Config, shape: &ModelConfig) -> Result<usize> {
    let mut rows = config.train.batch_size;
    while rows > 1 && sizes(config, shape, rows, 1)?.check_device(&Device::Cpu).is_err() {
        rows = rows.div_ceil(2);
    }
    Ok(rows)
}

/// What a whole step takes, and what the largest rank's part of it takes in its passes.
fn footprints(
    config: &Config,
    shape: &ModelConfig,
    in_documents: bool,
    (device, place): (&Device, Place),
    passes: &Passes,
    (batch_rows, (_, micro_batches)): (usize, (usize, usize)),
) -> Result<(Footprint, Footprint)> {
    let of =
        |rows, micro_batches, place| Footprint::new(config, shape, rows, micro_batches, in_documents, (device, place));
    let t = &config.train;
    let whole = of(batch_rows, t.grad_accum_steps * t.batch_size.div_ceil(batch_rows), Place::ALONE)?;
    let of_largest = match place == Place::ALONE && passes.rows == batch_rows {
        true => whole.clone(),
        // Two passes take as much as any number of them.
        false => of(passes.rows, if passes.splits > 1 { 2 } else { micro_batches }, place)?,
    };
    Ok((whole, of_largest))
}

impl RunPlan {
    /// The speed of a comparable finished run in `run.dir`, if any.
    pub fn earlier_rates(&self, config: &Config, device: &Device) -> Option<Rates> {
        earlier::rates(config, self.tokens_per_step, device)
    }

    /// Time of a rank's share of a step at the device's peaks, seconds.
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

    /// Bytes of updated parameters that ranks exchange with sharding.
    pub(super) fn updated_bytes(&self) -> f64 {
        self.work.updated_bytes as f64
    }

    /// Fills in the time.
    pub fn estimate(&mut self, rates: &Rates) {
        let Work { footprint, evaluations, batches, batch_rows, .. } = &self.work;
        let (step, evaluation, source) = match rates {
            Rates::Peaks(peaks) => {
                let [step, evaluation] =
                    [&footprint.update, &footprint.evaluation].map(|costs| self.work.seconds(peaks, costs));
                let offload = self.resolved.config.train.offloads_optimizer();
                let source = format!(
                    "the work of every kernel at the device's peaks just now, {} in {} GEMMs and {}: large models \
                     come within twice of that, small ones, whose kernels are short, do not{}",
                    units::si(1e12 * peaks.tflops, "FLOP/s"),
                    peaks.dtype,
                    units::si(1e9 * peaks.gb_per_s, "B/s"),
                    if offload { "; without the CPU's updates, which may take longer" } else { "" }
                );
                (step, evaluation, source)
            }
            Rates::Earlier { run, tokens_per_s } => {
                let step = self.tokens_per_step as f64 / tokens_per_s;
                // Forward is a third of the work of the model.
                let share = self.flops_per_step / (self.flops_per_step + self.recompute_flops_per_step) / 3.0;
                let evaluation = (batch_rows * self.block_size) as f64 / tokens_per_s * share;
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

/// Nobody asks for larger ones.
const MOST_BATCH_SIZE: usize = 1 << 16;

/// Why a run with batches of this size, each in one pass, cannot be on this device, the rank at this place; `None` if
/// it can. Of a size that cannot be divided among the ranks, as of the next that can.
fn fits(
    config: &Config,
    shape: &ModelConfig,
    batch_size: usize,
    in_documents: bool,
    (device, place): (&Device, Place),
    memory: &Memory,
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
    let need = Need::new(&sizes, &footprint, device);
    let short = |what: &str, needed: u64, available: Option<u64>| {
        let available = available.filter(|available| needed > *available)?;
        let [needed, available] = units::unequal_bytes([needed, available]);
        Some(format!("{what} needs {needed}, of {available} to spare"))
    };
    Ok(short("the machine", need.host, memory.host).or_else(|| short("the device", need.device, memory.device)))
}

/// The largest batch that fits in one pass, if the device says how much memory it has; 0 if a run does not fit.
fn largest_in_one_pass(
    config: &Config,
    shape: &ModelConfig,
    in_documents: bool,
    (device, place): (&Device, Place),
    memory: &Memory,
    fits_in_passes: bool,
) -> Result<Option<usize>> {
    // Layerwise updates do not split a batch: a smaller one may fit.
    if !fits_in_passes && !config.train.is_layerwise() {
        return Ok(Some(0));
    }
    let fits = |batch_size| fits(config, shape, batch_size, in_documents, (device, place), memory);
    device.memory_bytes().map(|_| largest_batch_size(fits)).transpose()
}

/// The largest that fits; 0 if none does.
fn largest_batch_size(fits: impl Fn(usize) -> Result<Option<String>>) -> Result<usize> {
    init_sizes::largest(MOST_BATCH_SIZE, |batch_size| Ok(fits(batch_size)?.is_none()))
}

/// Number of evaluations of a run: every `every` steps and at the end.
fn evaluations(steps: usize, every: usize) -> usize {
    if every == 0 { 1 } else { steps.div_ceil(every) }
}

/// The tokens of the text, counted as a run does: by making them.
fn prepare(resolved: &Resolved, data_dir: &Path, cache_dir: Option<&Path>) -> Result<Prepared> {
    let spec = data_spec(&resolved.config.data, data_dir, cache_dir);
    let corpus = Corpus::open(&spec.corpus, &mut |_| {})?;
    spec.prepare(&corpus, None, &mut |tokenizer| check_tokenizer(resolved, tokenizer), &mut |_| {})
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
