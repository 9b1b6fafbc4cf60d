//! Fits a run to the memory of device and machine: the number of micro-batches per batch, or a remedy if a single
//! sequence is too large.

use super::{Footprint, Plan, available_memory_bytes};
use crate::config::{Config, Offload, Precision, Recompute, StateDtype, UpdateTime, WeightDtype};
use crate::models::ModelConfig;
use crate::train::setup::memory_limit::memory_limit;
use crate::train::setup::precision::operands;
use crate::train::step::ranks::{Place, Share};
use crate::train::step::update_rules::trained;
use crate::{DType, Device, Error, Result, units};
use serde::Serialize;

/// Memory available to a rank, bytes; `None` if unknown, then everything fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// Memory of its GPU, if any.
    pub device: Option<u64>,
    /// Memory of the machine.
    pub host: Option<u64>,
}

impl Memory {
    /// Memory available to one of `cpu_ranks` ranks on this machine's CPU.
    ///
    /// # Errors
    /// If the environment's memory limit is not a number.
    pub fn available(device: &Device, cpu_ranks: usize) -> Result<Memory> {
        let host = [available_memory_bytes(), memory_limit(HOST_MEMORY)?].into_iter().flatten().min();
        Ok(Memory {
            device: if device.is_gpu() { device.memory_bytes() } else { None },
            host: host.map(|bytes| bytes / cpu_ranks.max(1) as u64),
        })
    }

    /// Memory available for the tensors of a step.
    pub(in crate::train) fn of(&self, device: &Device) -> Option<u64> {
        if device.is_gpu() { self.device } else { self.host }
    }
}

/// Limits the machine's memory that runs may use.
const HOST_MEMORY: &str = "RUSTYFLOW_HOST_MEMORY";

/// Fraction of memory for default sizes: a step's footprint is exact for tensors, but ignores the allocator and other
/// programs.
const COMFORTABLE: f64 = 0.9;

/// Memory of CPU kernels besides tensors, mostly packed GEMM operands: 8 to 12 MiB on x86-64.
const SCRATCH_BYTES: u64 = 8 << 20;

/// Bytes that a run takes at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Need {
    /// GPU memory of tensors in use at once; 0 on a CPU.
    pub device: u64,
    /// Machine memory while a checkpoint is written; on a CPU, with the tensors in use at once.
    pub host_least: u64,
    /// `host_least` plus the memory cached in the CPU's pool.
    pub host: u64,
}

impl Need {
    pub fn new(sizes: &Plan, footprint: &Footprint, device: &Device) -> Need {
        let (stats, checkpoint) = (&footprint.memory, sizes.checkpoint_bytes());
        let (peak, reserved) = (stats.peak_bytes as u64, stats.reserved_bytes as u64);
        match device.is_gpu() {
            true => {
                let host = checkpoint + footprint.host_bytes as u64;
                Need { device: peak, host_least: host, host }
            }
            false => Need { device: 0, host_least: peak + checkpoint, host: reserved + SCRATCH_BYTES + checkpoint },
        }
    }
}

/// Too little memory for passes of a size, in bytes.
#[derive(Debug)]
struct Shortage {
    needed: u64,
    available: u64,
    /// Of a GPU's memory, not of the machine's.
    on_device: bool,
}

/// A change of a configuration: `key = value`, and what makes it.
type Change = (&'static str, fn(&mut Config));

/// A run, and where it is to be computed.
#[derive(Clone, Copy)]
struct Run<'a> {
    config: &'a Config,
    shape: &'a ModelConfig,
    in_documents: bool,
    device: &'a Device,
    place: Place,
}

impl Run<'_> {
    fn sizes(&self, rows: usize) -> Result<Plan> {
        sizes(self.config, self.shape, rows, self.place.ranks)
    }

    fn need(&self, rows: usize, passes: usize) -> Result<Need> {
        let on = (self.device, self.place);
        // Two passes take as much as any number of them.
        let footprint = Footprint::new(self.config, self.shape, rows, passes.min(2), self.in_documents, on)?;
        Ok(Need::new(&self.sizes(rows)?, &footprint, self.device))
    }

    /// The error for passes with a tensor above the device's limits.
    fn limit(&self, rows: usize) -> Result<Option<Error>> {
        match self.sizes(rows)?.check_device(self.device) {
            Err(error @ (Error::GpuLimit { .. } | Error::Invalid(_))) => Ok(Some(error)),
            result => result.map(|()| None),
        }
    }

    /// The memory that the smallest passes lack, those of one sequence.
    fn shortage_of_one(&self, passes: usize, memory: &Memory) -> Result<Option<Shortage>> {
        // Weights, gradients, moments and a checkpoint: known without taking a step.
        let resident = self.sizes(1)?.host_bytes(self.device.is_gpu());
        let short = |needed: u64, available: Option<u64>, on_device| {
            let available = available.filter(|available| needed > *available)?;
            Some(Shortage { needed, available, on_device })
        };
        if let Some(shortage) = short(resident, memory.host, false) {
            return Ok(Some(shortage));
        }
        if memory.of(self.device).is_none() {
            return Ok(None);
        }
        let need = self.need(1, passes)?;
        Ok(short(need.host_least, memory.host, false).or_else(|| short(need.device, memory.device, true)))
    }

    /// Whether all weights of matmuls can be quantized so.
    fn has_whole_blocks(&self, dtype: DType) -> bool {
        let widths =
            self.shape.llama.as_ref().map_or(vec![], |l| vec![l.intermediate_size, l.head_dim * self.shape.n_head]);
        widths.into_iter().chain([self.shape.n_embd]).all(|width| width.is_multiple_of(dtype.block()))
    }

    /// The changes that save memory, by the quality that they cost.
    fn savings(&self) -> Vec<Change> {
        let Config { train, optimizer, model, lora, .. } = self.config;
        let mut savings: Vec<Change> = Vec::new();
        if !self.shape.is_recurrent() && train.recomputed_blocks(self.shape.n_layer) < self.shape.n_layer {
            if train.recompute == Recompute::None {
                savings.push(("train.recompute = \"attention\"", |config| {
                    config.train.recompute = Recompute::Attention;
                }));
            }
            savings.push(("train.recompute = \"block\"", |config| {
                (config.train.recompute, config.train.recompute_blocks) = (Recompute::Block, 0);
            }));
        }
        if optimizer.state_dtype == StateDtype::F32 {
            savings
                .push(("optimizer.state_dtype = \"int8\"", |config| config.optimizer.state_dtype = StateDtype::Int8));
        }
        let alone = train.grad_accum_steps == 1 && !train.shard_optimizer && train.sync_every == 0;
        if !train.is_layerwise() && alone && self.place.ranks == 1 && lora.rank == 0 {
            savings.push(("train.update = \"layerwise\"", |config| config.train.update = UpdateTime::Layerwise));
        }
        let is_mixed = self.config.device.precision == Precision::Mixed;
        if !train.offloads_optimizer() && alone && self.place.ranks == 1 && lora.rank == 0 && is_mixed {
            savings.push(("train.offload = \"optimizer\"", |config| config.train.offload = Offload::Optimizer));
        }
        let can_adapt = !model.init.is_empty() && !model.new_tokenizer && lora.rank == 0;
        if can_adapt {
            savings.push(("lora.rank = 16", |config| config.lora.rank = 16));
        }
        let has_f16 = self.device.adapter().is_none() || self.device.has_f16();
        if (can_adapt || lora.rank > 0) && lora.base_dtype == WeightDtype::F32 && has_f16 {
            savings.push(("lora.base_dtype = \"f16\"", |config| config.lora.base_dtype = WeightDtype::F16));
        }
        let is_quantized = !matches!(lora.base_dtype, WeightDtype::F32 | WeightDtype::F16);
        if (can_adapt || lora.rank > 0) && !is_quantized {
            if self.has_whole_blocks(DType::Nf4) {
                savings.push(("lora.base_dtype = \"nf4\"", |config| config.lora.base_dtype = WeightDtype::Nf4));
            } else if self.has_whole_blocks(DType::Q4_0) {
                savings.push(("lora.base_dtype = \"q4_0\"", |config| config.lora.base_dtype = WeightDtype::Q4_0));
            }
        }
        savings
    }

    /// The changes of the configuration with which it fits, in words.
    fn remedies(&self, memory: &Memory) -> Result<String> {
        const SMALLER: &str = "a smaller model.n_embd, model.n_layer or vocabulary";
        let fits = |config: &Config| -> Result<bool> {
            let context = if config.model.context > 0 { self.shape.block_size } else { config.model.block_size };
            let shape = ModelConfig { block_size: context, ..self.shape.clone() };
            let run = Run { config, shape: &shape, ..*self };
            if run.limit(1)?.is_some() || run.shortage_of_one(2, memory)?.is_some() {
                return Ok(false);
            }
            // Layerwise updates need the whole batch in one pass.
            Ok(!config.train.is_layerwise() || run.shortage(config.train.batch_size, 1, memory)?.is_none())
        };
        let shorter = |config: &Config| -> Result<Option<usize>> {
            let mut config = config.clone();
            while config.model.block_size > 32 {
                config.model.block_size /= 2;
                if fits(&config)? {
                    return Ok(Some(config.model.block_size));
                }
            }
            Ok(None)
        };
        let (mut alone, mut all, mut names) = (Vec::new(), self.config.clone(), Vec::new());
        for (name, change) in self.savings() {
            let mut config = self.config.clone();
            change(&mut config);
            change(&mut all);
            names.push(name);
            if fits(&config)? {
                alone.push(name.to_string());
            }
        }
        if let Some(rows) = shorter(self.config)? {
            alone.insert(0, format!("model.block_size = {rows}"));
        }
        if !alone.is_empty() {
            return Ok(alone.join(" or "));
        }
        if names.is_empty() {
            return Ok(SMALLER.into());
        }
        Ok(match (fits(&all)?, shorter(&all)?) {
            (true, _) => names.join(" with "),
            (false, Some(rows)) => format!("model.block_size = {rows} with {}", names.join(" with ")),
            (false, None) => SMALLER.into(),
        })
    }

    /// The error of a run that does not fit.
    fn refusal(&self, shortage: Shortage, memory: &Memory) -> Result<Error> {
        let Shortage { needed, available, on_device } = shortage;
        let [needed, available] = units::unequal_bytes([needed, available]);
        let whose = if on_device { self.device.name() } else { "this machine".into() };
        Ok(Error::Invalid(format!(
            "training does not fit the memory: with one sequence of {} tokens per pass, a model of {} parameters needs \
             at least {}, {whose} has {} available; use {}",
            self.config.model.block_size,
            units::count(self.shape.parameter_count() as f64),
            needed,
            available,
            self.remedies(memory)?
        )))
    }
}

/// Micro-batches of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passes {
    /// Number of micro-batches per batch and rank, a power of two.
    pub splits: usize,
    /// Most sequences per micro-batch.
    pub rows: usize,
    /// A note for the user.
    pub note: Option<String>,
}

/// The setting with which parameters are updated after backward.
fn without_layerwise(config: &Config) -> &'static str {
    match (config.train.update, config.train.offload) {
        (UpdateTime::Step, _) => "train.offload = \"none\"",
        (_, Offload::None) => "train.update = \"step\"",
        _ => "train.update = \"step\" and train.offload = \"none\"",
    }
}

/// Refuses layerwise updates on several devices.
///
/// # Errors
/// If the configuration asks for them.
pub(super) fn check_one_device(config: &Config, ranks: usize) -> Result<()> {
    if !config.train.is_layerwise() || ranks == 1 {
        return Ok(());
    }
    let (setting, why) =
        (config.train.why_layerwise(), "updates parameters before gradients are summed over the devices");
    let without = without_layerwise(config);
    let remedy = format!("use one device, or {without} with train.shard_optimizer = true to save memory");
    Err(Error::Invalid(format!("{setting} {why}: {remedy}")))
}

impl Passes {
    /// The fewest passes in which the batches of a run fit, for the rank at this place. The memory of a GPU counts with
    /// `counts_gpu_memory`; without, a step that finds too little halves its passes.
    ///
    /// # Errors
    /// If not even passes of one sequence fit, with what to change; or if the sequences of a step cannot be divided.
    pub(in crate::train) fn of(
        config: &Config,
        shape: &ModelConfig,
        in_documents: bool,
        (device, place): (&Device, Place),
        memory: &Memory,
        counts_gpu_memory: bool,
    ) -> Result<Passes> {
        let run = Run { config, shape, in_documents, device, place };
        check_one_device(config, place.ranks)?;
        let shares = Share::all(config, shape.kind, place.ranks)?;
        let share = shares.iter().max_by_key(|share| share.micro_batches()).expect("there is a rank");
        let size = |splits: usize| {
            let pieces = share.pieces(splits);
            (pieces.iter().map(|piece| piece.rows.len()).max().unwrap_or(1), pieces.len())
        };
        let (whole, passes) = size(1);
        // Passes of one sequence have no larger tensors.
        if let Some(error) = run.limit(whole)? {
            return Err(error);
        }
        if let Some(shortage) = run.shortage_of_one(passes.max(if whole > 1 { 2 } else { 1 }), memory)? {
            return Err(run.refusal(shortage, memory)?);
        }
        if config.train.is_layerwise() {
            return match run.shortage(whole, passes, memory)? {
                Some(why) => Err(run.cannot_split(&why, whole)),
                None => Ok(Passes { splits: 1, rows: whole, note: None }),
            };
        }
        let (mut splits, mut first) = (1, None);
        loop {
            let (rows, passes) = size(splits);
            let counts = counts_gpu_memory || !device.is_gpu();
            let why = if counts { run.shortage(rows, passes, memory)? } else { None };
            let Some(why) = why.filter(|_| rows > 1) else {
                let note = first.map(|why| run.note(&why, whole, size(splits)));
                return Ok(Passes { splits, rows, note });
            };
            first.get_or_insert(why);
            splits *= 2;
        }
    }
}

impl Run<'_> {
    /// The reason why micro-batches of this size do not fit.
    fn shortage(&self, rows: usize, passes: usize, memory: &Memory) -> Result<Option<Shortage>> {
        let Some(available) = memory.of(self.device) else { return Ok(None) };
        let (need, on_device) = (self.need(rows, passes)?, self.device.is_gpu());
        let (needed, most) = match on_device {
            true => (need.device, available),
            false => (need.host, comfortable(available)),
        };
        Ok((needed > most).then_some(Shortage { needed, available, on_device }))
    }

    /// The error of a batch of so many rows that does not fit, with layerwise updates.
    fn cannot_split(&self, why: &Shortage, rows: usize) -> Error {
        let [needed, available] = units::unequal_bytes([why.needed, why.available]);
        let (tokens, whose) = (self.config.model.block_size, if why.on_device { "the device" } else { "this machine" });
        let setting = self.config.train.why_layerwise();
        Error::Invalid(format!(
            "a batch of {rows} x {tokens} tokens needs {needed}, {whose} has {available} available, and \
             {setting} computes it in one pass: use a smaller train.batch_size (\"auto\" finds it), \
             train.recompute = \"block\", or {}",
            without_layerwise(self.config)
        ))
    }

    fn note(&self, why: &Shortage, whole: usize, (rows, passes): (usize, usize)) -> String {
        let tokens = self.config.model.block_size;
        let whose = if why.on_device { "the device" } else { "this machine" };
        let [needed, available] = units::unequal_bytes([why.needed, why.available]);
        format!(
            "batches of {whole} x {tokens} tokens need {needed}, {whose} has {available} available: a step is computed \
             in {passes} passes of {rows} x {tokens} tokens, with the same result"
        )
    }
}

fn comfortable(available: u64) -> u64 {
    (COMFORTABLE * available as f64) as u64
}

/// Whether a batch of this size fits in one pass, with some memory to spare.
///
/// # Errors
/// If there is no such model.
pub(in crate::train) fn fits_comfortably(
    config: &Config,
    shape: &ModelConfig,
    batch_size: usize,
    in_documents: bool,
    device: &Device,
    memory: &Memory,
) -> Result<bool> {
    let run = Run { config, shape, in_documents, device, place: Place::ALONE };
    if run.limit(batch_size)?.is_some() {
        return Ok(false);
    }
    let spare = Memory { device: memory.device.map(comfortable), ..*memory };
    Ok(run.shortage(batch_size, 2, &spare)?.is_none())
}

/// A change of the configuration that saves memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Saving {
    /// `key = value`
    pub change: &'static str,
    /// What a run takes with it: of a GPU's memory, or of the machine's.
    pub bytes: u64,
}

/// What a run of passes of so many rows takes with changes that save memory, each with those before it.
///
/// # Errors
/// If there is no such model.
pub(super) fn savings(
    config: &Config,
    shape: &ModelConfig,
    in_documents: bool,
    (device, place): (&Device, Place),
    rows: usize,
) -> Result<Vec<Saving>> {
    let bytes = |config: &Config| {
        let need = Run { config, shape, in_documents, device, place }.need(rows, 1)?;
        Ok::<_, Error>(if device.is_gpu() { need.device } else { need.host })
    };
    let (mut best, mut least, mut savings) = (config.clone(), bytes(config)?, Vec::new());
    for (name, change) in (Run { config, shape, in_documents, device, place }).savings() {
        let mut with = best.clone();
        change(&mut with);
        if with.train.is_layerwise() && rows < with.train.batch_size {
            continue;
        }
        let bytes = bytes(&with)?;
        if bytes < least {
            (best, least) = (with, bytes);
            savings.push(Saving { change: name, bytes });
        }
    }
    Ok(savings)
}

/// Sizes of a model and a pass over this number of rows.
pub(super) fn sizes(config: &Config, shape: &ModelConfig, rows: usize, ranks: usize) -> Result<Plan> {
    let (operands, tokens) = (operands(config.device.precision), rows.saturating_mul(config.model.block_size));
    Ok(Plan::new(shape, tokens, operands, Some(&trained(config, shape, ranks)?)))
}
