//! What happens before the first step. What is to fail should fail here.

use super::events::{Event, Start};
use super::run_folder::RunFolder;
use super::state::{DataHash, TrainerState};
use super::trainer::Trainer;
use super::{Setting, check_size, describe, prompt_ids, size};
use crate::config::{self, Config, OptimizerKind, Precision, Resolved, TrainLength};
use crate::data::{Corpus, Loader, Position, Tokenizer, TokenizerSpec};
use crate::generate::check_prompt;
use crate::nn::{Gpt, GptConfig};
use crate::optim::{Kind, LearningRate, Optimizer, Parameters, Schedule};
use crate::profile;
use crate::{Device, Error, Result};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What is learnt from, as tokens.
struct Data {
    corpus: String,
    tokenizer: Tokenizer,
    train: Arc<[u32]>,
    validation: Vec<u32>,
    /// Bytes of the validation text.
    validation_bytes: usize,
    hash: DataHash,
}

impl Data {
    fn load(config: &Config, data_dir: &Path) -> Result<Data> {
        let corpus = Corpus::load(&config.data.corpus, data_dir, config.data.validation_fraction)?;
        let spec = TokenizerSpec::parse(&config.data.tokenizer)?;
        let tokenizer = Tokenizer::build(&spec, config.data.vocab_size, &corpus, data_dir)?;
        let train: Arc<[u32]> = tokenizer.encode(&corpus.train)?.into();
        let validation = tokenizer.encode(&corpus.validation)?;
        let hash = DataHash::new(&corpus, &train, &validation);
        Ok(Data { validation_bytes: corpus.validation.len(), corpus: corpus.name, tokenizer, train, validation, hash })
    }
}

impl<'a> Trainer<'a> {
    pub(super) fn prepare(resolved: &'a Resolved, setting: Setting<'a>) -> Result<Trainer<'a>> {
        let config = &resolved.config;
        if config.device.precision == Precision::Mixed {
            return Err(Error::Config {
                place: resolved.origin("device.precision").to_string(),
                key: "device.precision".into(),
                message: "\"mixed\" is not available yet; use \"f32\"".into(),
            });
        }
        let data = Data::load(config, setting.data_dir)?;
        let (t, block_size) = (&config.train, config.model.block_size);
        let loader = Loader::new(data.train.clone(), t.batch_size, block_size, config.run.seed, Position::default())?;
        let steps_per_epoch = loader.batches_per_epoch() / t.grad_accum_steps as f64;
        let total_steps = match t.length() {
            TrainLength::Steps(steps) => steps,
            TrainLength::Epochs(epochs) => ((epochs * steps_per_epoch).round() as usize).max(1),
        };
        let shape = GptConfig {
            vocab_size: data.tokenizer.vocab_size(),
            block_size,
            n_layer: config.model.n_layer,
            n_head: config.model.n_head,
            n_embd: config.model.n_embd,
            bias: config.model.bias,
            tie_embeddings: config.model.tie_embeddings,
        };
        check_prompt(&shape, &prompt_ids(&data.tokenizer, &config.generate.prompt)?)?;
        check_size(&shape, t.batch_size * block_size, &setting.device)?;
        size::check_memory(&shape, &setting.device)?;
        let kind = if matches!(setting.device, Device::Cpu) { "cpu" } else { "gpu" };
        let folder = RunFolder::create(Path::new(&config.run.dir), &config.run_name(kind))?;
        let config_text = resolved.to_toml();
        folder.write("config.toml", &config_text)?;
        let (model, parameters, optimizer) = match build(config, &shape, &setting.device) {
            Ok(built) => built,
            Err(error) => {
                folder.discard();
                return Err(error);
            }
        };
        let state = TrainerState::new(&setting.device, data.hash, total_steps);
        (setting.on_event)(&Event::Started(Box::new(Start {
            folder: folder.path().to_path_buf(),
            device: describe(&setting.device),
            corpus: data.corpus,
            tokenizer: data.tokenizer.name().to_string(),
            parameters: shape.parameter_count(),
            model: shape,
            train_tokens: data.train.len(),
            validation_tokens: data.validation.len(),
            tokens_per_step: t.batch_size * t.grad_accum_steps * block_size,
            total_steps,
            epochs: total_steps as f64 / steps_per_epoch,
        })));
        profile::reset();
        Ok(Trainer {
            config,
            config_text,
            setting,
            folder,
            tokenizer: data.tokenizer,
            validation: data.validation,
            validation_bytes: data.validation_bytes,
            model,
            parameters,
            optimizer,
            learning_rate: learning_rate(config, total_steps),
            loader,
            saved: None,
            readings: VecDeque::new(),
            training_time: Duration::ZERO,
            last_logged: (state.step, Duration::ZERO),
            state,
        })
    }
}

fn learning_rate(config: &Config, total_steps: usize) -> LearningRate {
    let t = &config.train;
    LearningRate {
        schedule: match t.schedule {
            config::Schedule::Cosine => Schedule::Cosine,
            config::Schedule::Linear => Schedule::Linear,
            config::Schedule::Constant => Schedule::Constant,
        },
        peak: t.learning_rate,
        minimum: t.min_learning_rate,
        warmup_steps: t.warmup_steps.min(total_steps.saturating_sub(1)),
        total_steps,
    }
}

/// The model, its parameters on the device, and their optimizer.
fn build(config: &Config, shape: &GptConfig, device: &Device) -> Result<(Gpt, Parameters, Optimizer)> {
    let mut model = Gpt::new(shape.clone(), config.run.seed)?;
    let parameters = Parameters::gather(&mut model, device)?;
    let o = &config.optimizer;
    let kind = match o.kind {
        OptimizerKind::AdamW => Kind::AdamW { beta1: o.beta1, beta2: o.beta2, eps: o.eps },
        OptimizerKind::Adam => Kind::Adam { beta1: o.beta1, beta2: o.beta2, eps: o.eps },
        OptimizerKind::Sgd => Kind::Sgd { momentum: o.momentum },
    };
    let optimizer = Optimizer::new(&parameters, kind, o.weight_decay, config.train.grad_clip)?;
    Ok((model, parameters, optimizer))
}
