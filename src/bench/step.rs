//! Times a training step on random tokens: forward, backward, clipping, AdamW.

use crate::models::{LanguageModel, LlamaConfig, ModelConfig, ModelKind, Past, build};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::ops::random::Key;
use crate::optim::{Kind, Optimizer, ParameterArena};
use crate::profile::Report;
use crate::step::{Losses, step_alone};
use crate::train::check_size;
use crate::{DType, Device, Error, Result, Tensor};
use serde::Serialize;
use std::time::Instant;

/// A model and batch to time.
#[derive(Debug, Clone)]
pub struct StepCase {
    pub name: &'static str,
    pub config: ModelConfig,
    pub batch_size: usize,
}

/// What a step of a case cost.
#[derive(Debug, Clone, Serialize)]
pub struct StepTiming {
    pub case: &'static str,
    pub batch_size: usize,
    pub context: usize,
    pub ms_per_step: f64,
    pub tokens_per_s: f64,
    /// The most memory that tensors took on the device.
    pub gib: f64,
    /// Of the last step.
    pub loss: f32,
    /// Of the time, 0 to 1, in which no kernel ran.
    pub host_share: f64,
    pub report: Report,
}

/// The cases of the PyTorch baseline that rustyflow is measured beside.
pub fn step_cases() -> Vec<StepCase> {
    // Vocabulary, context, layers, heads, width, batch; of a Llama heads of keys, width of the feed-forward layer.
    vec![
        case("seed", [33_280, 64, 2, 4, 128, 32], None),
        case("shakespeare-char", [65, 256, 6, 6, 384, 64], None),
        case("gpt2-124m", [50_304, 1024, 12, 12, 768, 16], None),
        // The vocabulary that GPT-2's weights come with: an odd number.
        case("gpt2-50257", [50_257, 1024, 12, 12, 768, 16], None),
        case("gpt2-350m", [50_304, 1024, 24, 16, 1024, 8], None),
        case("llama-124m", [50_304, 1024, 12, 12, 768, 16], Some([4, 2048])),
        case("cpu-small", [65, 64, 4, 4, 128, 12], None),
        case("cpu-seed", [8192, 64, 2, 4, 128, 32], None),
        case("cpu-llama", [8192, 64, 2, 4, 128, 32], Some([2, 384])),
    ]
}

fn case(
    name: &'static str,
    [vocab_size, block_size, n_layer, n_head, n_embd, batch_size]: [usize; 6],
    llama: Option<[usize; 2]>,
) -> StepCase {
    let (kind, bias) = if llama.is_some() { (ModelKind::LLAMA, false) } else { (ModelKind::GPT2, true) };
    let llama = llama.map(|[n_kv_head, intermediate_size]| LlamaConfig {
        n_kv_head,
        head_dim: n_embd / n_head,
        intermediate_size,
        qkv_bias: false,
        sliding_window: None,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
    });
    let tie_embeddings = true;
    let config = ModelConfig { kind, vocab_size, block_size, n_layer, n_head, n_embd, bias, tie_embeddings, llama };
    StepCase { name, config, batch_size }
}

/// Times `rounds` rounds of `steps` steps and takes the median round. The operands of matmuls are f32, or f16: mixed
/// precision.
///
/// # Errors
/// If there is nothing to time, the model does not fit the device, or the device reported an error.
pub fn time_step(case: &StepCase, device: &Device, operands: DType, steps: usize, rounds: usize) -> Result<StepTiming> {
    let config = &case.config;
    let shape = [case.batch_size, config.block_size];
    check_counts(shape, steps, rounds)?;
    device.reset_peak_memory();
    check_size(config, case.batch_size.saturating_mul(config.block_size), operands, device)?;
    let mut model = build(config, 0)?;
    let parameters = ParameterArena::new(&mut *model, device, operands)?;
    let kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0)?;
    time_training(case.name, &*model, (&parameters, &mut optimizer, 6e-4), shape, steps, rounds)
}

/// Times `rounds` rounds of `steps` steps of a model on random tokens (B, T), forward to update at a learning rate, and
/// takes the median round. Every token is a target. The result has the name `case`.
///
/// # Errors
/// If there is nothing to time, the device runs out of memory, or it reported an error.
pub fn time_training(
    case: &'static str,
    model: &dyn LanguageModel,
    (parameters, optimizer, learning_rate): (&ParameterArena, &mut Optimizer, f64),
    shape: [usize; 2],
    steps: usize,
    rounds: usize,
) -> Result<StepTiming> {
    check_counts(shape, steps, rounds)?;
    let (device, [batch_size, context]) = (&model.device(), shape);
    let tokens = |seed| Tensor::from_u32(&random_ids(Key::new(seed), shape, model.config().vocab_size)?, shape, device);
    let (ids, targets) = (tokens(1)?, tokens(2)?);
    let mut step = || -> Result<Tensor> {
        let loss = |(), loss_scale: Option<&Tensor>| {
            model.loss(&ids, &targets, Past::Nothing, &Dropout::off(), Criterion::default(), loss_scale)
        };
        let update = step_alone((parameters, optimizer), Losses::Parts, [()].into_iter(), loss, learning_rate)?;
        device.end_step()?;
        Ok(update.loss)
    };
    // As many steps before the device is waited for as keep it busy.
    warm_up(device, &mut || (0..3).try_for_each(|_| step().map(drop)))?;
    device.profiler().take();
    let (mut seconds, loss) = time_rounds(device, steps, rounds, &mut step)?;
    let mut measured = device.profiler().take();
    if device.is_gpu() {
        // Timestamps around every kernel slow a step a little: these steps are not in the figures above.
        device.begin_step(true);
        step()?;
        step()?;
        device.synchronize()?;
        device.begin_step(false);
        measured.kernels = device.profiler().take().kernels;
    }
    let total: f64 = seconds.iter().sum();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[rounds / 2] / steps as f64;
    let memory = device.memory();
    let gib = memory.peak_bytes as f64 / (1u64 << 30) as f64;
    let report = Report::new(&measured, device.is_gpu(), total, 1.0, memory);
    Ok(StepTiming {
        case,
        batch_size,
        context,
        ms_per_step: 1e3 * median,
        tokens_per_s: (batch_size * context) as f64 / median,
        gib,
        loss: loss.item()?,
        host_share: report.host_share(),
        report,
    })
}

/// Seconds of each round of steps, and the loss of the last step.
fn time_rounds(
    device: &Device,
    steps: usize,
    rounds: usize,
    step: &mut dyn FnMut() -> Result<Tensor>,
) -> Result<(Vec<f64>, Tensor)> {
    let (mut seconds, mut loss) = (Vec::new(), None);
    for _ in 0..rounds {
        let started = Instant::now();
        for _ in 0..steps {
            loss = Some(step()?);
        }
        device.synchronize()?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    Ok((seconds, loss.expect("at least one step ran")))
}

/// Refuses to time nothing.
fn check_counts([batch, context]: [usize; 2], steps: usize, rounds: usize) -> Result<()> {
    if steps > 0 && rounds > 0 && batch > 0 && context > 0 {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{rounds} rounds of {steps} steps of {batch} sequences of {context} tokens take no time: give at least 1 of \
         each"
    )))
}

/// Token ids (B, T) below V.
///
/// # Errors
/// If V is 0, or no memory holds them.
pub(super) fn random_ids(key: Key, [b, t]: [usize; 2], vocab_size: usize) -> Result<Vec<u32>> {
    let (count, mut ids) = (b.saturating_mul(t), Vec::new());
    if vocab_size == 0 || ids.try_reserve_exact(count).is_err() {
        return Err(Error::Invalid(format!("there are no {b} x {t} ids below {vocab_size}, or no memory for them")));
    }
    ids.extend((0..count).map(|i| key.bits(i as u32) % vocab_size as u32));
    Ok(ids)
}

/// Runs something until shaders are compiled, buffers pooled and caches filled, and then until a GPU runs at its full
/// clock.
pub(super) fn warm_up(device: &Device, body: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    /// A GPU that was idle may need more than one under load.
    const SECONDS_OF_GPU: f64 = 2.0;
    let mut body = || body().and_then(|()| device.synchronize());
    body()?;
    let started = Instant::now();
    while device.is_hardware_gpu() && started.elapsed().as_secs_f64() < SECONDS_OF_GPU {
        body()?;
    }
    Ok(())
}
