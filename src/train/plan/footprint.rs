//! Memory and kernels of a run's steps, measured by recording steps on a `DryRun`.

use crate::config::{Config, Objective};
use crate::data::{Answer, Label};
use crate::gpu::Launch;
use crate::models::{Documents, LanguageModel, ModelConfig, build};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::optim::{Optimizer, ParameterArena};
use crate::profile::{Cost, MemoryStats};
use crate::step::{GradientSync, Losses, SingleDevice, Training, step};
use crate::tensor::{DryRun, no_grad, with_weights_on};
use crate::train::evaluation::preference::{Answers, Counts, Preference, Rows};
use crate::train::setup::adapters::lora;
use crate::train::setup::reference::preference;
use crate::train::step::ranks::{DryRanks, Place};
use crate::train::step::replica::{criterion, pass_dropout};
use crate::train::step::update_rules::on_device;
use crate::{DType, Device, Error, Result, Tensor};
use std::sync::Arc;

/// Device memory and kernels of a run.
#[derive(Debug, Clone)]
pub struct Footprint {
    /// Pool memory after updates and an evaluation.
    pub memory: MemoryStats,
    /// Host memory of offloaded weights and moments.
    pub host_bytes: usize,
    /// The device's kernels of one update.
    pub update: Vec<Cost>,
    /// The kernels of one evaluation batch.
    pub evaluation: Vec<Cost>,
    /// All GPU launches of set-up, updates and an evaluation.
    pub(in crate::train) launches: Vec<Launch>,
}

impl Footprint {
    /// Of the rank at this place of a run, with batches of `batch_size` on this device, or one of the same limits, in
    /// updates of so many micro-batches; with `in_documents` their rows are not one text each.
    ///
    /// # Errors
    /// If there is no such model.
    pub(in crate::train) fn new(
        config: &Config,
        shape: &ModelConfig,
        batch_size: usize,
        micro_batches: usize,
        in_documents: bool,
        (device, place): (&Device, Place),
    ) -> Result<Footprint> {
        // Of a batch that does not fit in the one pass that layerwise updates need, the plan says how much it takes.
        let micro_batches = if config.train.is_layerwise() { 1 } else { micro_batches };
        let dry_run = dry_run_of(device);
        let (real, device) = (device, Device::DryRun(dry_run.clone()));
        let (model, parameters, mut optimizer) = ready(config, shape, &device, place)?;
        let sums = place.ranks > 1 && config.train.sync_every == 0;
        let ranks = sums.then(|| DryRanks::new(config, (&*model, &parameters), place.ranks, real)).transpose()?;
        let (mut alone, mut ranks) = (SingleDevice, ranks);
        let sync: &mut dyn GradientSync = ranks.as_mut().map_or(&mut alone, |ranks| ranks);
        let shape = [batch_size, config.model.block_size];
        let preference = preference(config, model.config(), &device)?;
        let batch = Batch { model: &*model, config, shape, in_documents, device: &device, preference };
        // From the second update on there is a gradient to be replaced.
        let host = match parameters.optimizer_device() {
            Device::DryRun(host) if parameters.is_offloaded() => Some(host),
            _ => None,
        };
        batch.update((&parameters, &mut optimizer, &mut *sync), micro_batches)?;
        dry_run.take_costs();
        batch.update((&parameters, &mut optimizer, &mut *sync), micro_batches)?;
        let update = dry_run.take_costs();
        // Before the batches of an evaluation, and after them.
        optimizer.swap_averages(&parameters)?;
        dry_run.take_costs();
        no_grad(|| batch.loss(&Dropout::off(), Criterion::default(), None, 1))?;
        let evaluation = dry_run.take_costs();
        let launches = dry_run.take_plans().into_iter().flat_map(|(_, plan)| plan.launches).collect();
        let host_bytes = host.map_or(0, |host| host.memory().peak_bytes + parameters.arriving_bytes());
        Ok(Footprint { memory: dry_run.memory(), host_bytes, update, evaluation, launches })
    }
}

fn dry_run_of(device: &Device) -> Arc<DryRun> {
    if device.is_gpu() { DryRun::new(device.limits().clone()) } else { DryRun::cpu() }
}

/// A rank's state on a `DryRun` before its first step.
fn ready(
    config: &Config,
    shape: &ModelConfig,
    device: &Device,
    place: Place,
) -> Result<(Box<dyn LanguageModel>, ParameterArena, Optimizer)> {
    // Random weights are made on the CPU, whose memory keeps what they took; those of a folder are read where they go.
    let are_read = !config.model.init.is_empty() && !config.model.new_tokenizer;
    let weights = if device.is_gpu() || are_read { Device::DryRun(DryRun::cpu()) } else { device.clone() };
    let model = with_weights_on(weights, || {
        let mut model = build(shape, config.run.seed)?;
        lora(config).map_or(Ok(()), |lora| lora.adapt(&mut *model, 0))?;
        Ok(model)
    })?;
    on_device(model, config, device, place)
}

/// The rank with the most weights and moments, which differ between ranks with sharding.
///
/// # Errors
/// If there is no such model.
pub(in crate::train) fn largest_rank(
    config: &Config,
    shape: &ModelConfig,
    ranks: usize,
    device: &Device,
) -> Result<Place> {
    let mut largest = (0, Place { rank: 0, ranks });
    if ranks == 1 || !config.train.shard_optimizer {
        return Ok(largest.1);
    }
    for place in (0..ranks).map(|rank| Place { rank, ranks }) {
        let dry_run = dry_run_of(device);
        let _kept = ready(config, shape, &Device::DryRun(dry_run.clone()), place)?;
        let used = dry_run.memory().used_bytes;
        largest = if used > largest.0 { (used, place) } else { largest };
    }
    Ok(largest.1)
}

/// A batch of no values.
struct Batch<'a> {
    model: &'a dyn LanguageModel,
    config: &'a Config,
    /// (B, T)
    shape: [usize; 2],
    in_documents: bool,
    device: &'a Device,
    preference: Option<Preference>,
}

impl Batch<'_> {
    /// An update as that of a replica.
    fn update(
        &self,
        (parameters, optimizer, sync): (&ParameterArena, &mut Optimizer, &mut dyn GradientSync),
        micro_batches: usize,
    ) -> Result<()> {
        let loss = |pass, loss_scale: Option<&Tensor>| {
            let dropout = pass_dropout(self.config, pass as u64);
            self.loss(&dropout, criterion(self.config), loss_scale, micro_batches)
        };
        let training = Training { parameters, optimizer, sync };
        step(training, &[], Losses::Parts, 0..micro_batches, loss, 1e-3).map(drop)
    }

    /// Like `Trainer::loss`: only the returned tensors are held during backward.
    fn loss(
        &self,
        dropout: &Dropout,
        criterion: Criterion,
        loss_scale: Option<&Tensor>,
        micro_batches: usize,
    ) -> Result<Tensor> {
        let tokens = || Tensor::zeros(self.shape, DType::U32, self.device);
        let documents =
            self.in_documents.then(|| Ok::<_, Error>(Documents { starts: tokens()?, positions: tokens()? }));
        let documents = documents.transpose()?;
        if let Some(preference) = &self.preference {
            let rows = Rows { ids: tokens()?, targets: tokens()?, documents, answers: self.answers() };
            let kl = preference.needs_kl().then(|| preference.kl(self.model, &rows)).transpose()?;
            let sums = preference.sums(self.model, &rows, dropout, loss_scale, kl.as_ref())?;
            return preference.loss(&sums, Counts { examples: micro_batches * self.shape[0], tokens: self.tokens() });
        }
        let loss =
            self.model.loss(&tokens()?, &tokens()?, documents.as_ref().into(), dropout, criterion, loss_scale)?;
        if micro_batches == 1 { Ok(loss) } else { loss.scale(1.0 / micro_batches as f32) }
    }

    fn tokens(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// A pair in each row.
    fn answers(&self) -> Answers {
        let [rows, t] = self.shape;
        let is_kto = self.config.train.objective == Objective::Kto;
        let labels = if is_kto { [Label::Desirable, Label::Mismatched] } else { [Label::Chosen, Label::Rejected] };
        let pair = |row: usize| {
            let [start, middle, end] = [row * t, row * t + t / 2, (row + 1) * t];
            [(start..middle, labels[0]), (middle..end, labels[1])]
        };
        let all = (0..rows).flat_map(pair).map(|(places, label)| Answer { places, label });
        Answers::new(&all.collect::<Vec<_>>(), 0..self.tokens(), &vec![0; self.tokens()])
    }
}
