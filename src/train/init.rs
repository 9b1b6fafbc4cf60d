//! A run that begins with a model from elsewhere: its shape and tokenizer become the configuration's.

use super::adapters::lora;
use super::{find_checkpoint, run_config};
use crate::config::{self, Config, Resolved, RopeScaling};
use crate::hub_cache::folder_of;
use crate::models::{LanguageModel, ModelConfig, build, hf, load, read_adapters};
use crate::nn;
use crate::{Error, Result};
use std::path::Path;

/// Finds the folder that `model.init` means, by its path or by the name of a fetched model, and takes the shape of the
/// model in it.
///
/// # Errors
/// If there is no such folder, or those of [`take_shape_of_init`].
pub fn find_init(resolved: &mut Resolved) -> Result<()> {
    let init = &resolved.config.model.init;
    // A run that has begun needs it no more, and has a vocabulary.
    if !init.is_empty() && resolved.config.model.vocab_size == 0 {
        let folder = folder_of(Path::new(init)).or_else(|advice| {
            let Some(advice) = advice else { return Ok(init.into()) };
            let place = resolved.origin("model.init").to_string();
            let message = format!("no folder is called {init}; {advice}");
            Err(Error::Config { place, key: "model.init".into(), message })
        })?;
        // Of a run it is its best checkpoint, as for `eval` and `generate`.
        let folder = if run_config(&folder).is_ok() { find_checkpoint(&folder)?.folder } else { folder };
        resolved.config.model.init = folder.display().to_string();
    }
    take_shape_of_init(resolved)
}

/// Fills in what follows from `model.init`: the shape of the model in that folder, and its tokenizer. Without it, or
/// where the configuration is that of a run that has begun, nothing changes.
///
/// # Errors
/// If there is no model in the folder, or a key that was set says otherwise.
pub fn take_shape_of_init(resolved: &mut Resolved) -> Result<()> {
    let its = &resolved.config.model;
    // A run's own config.toml has the vocabulary, and with it all else that was taken from the folder.
    if its.init.is_empty() || its.vocab_size > 0 {
        return Ok(());
    }
    let init = its.init.clone();
    let place = resolved.origin("model.init").to_string();
    let shape = hf::read_shape(Path::new(&init)).map_err(|error| Error::Config {
        place,
        key: "model.init".into(),
        message: error.to_string(),
    })?;
    let mut there = keys_of(&shape, its);
    if !resolved.origin("model.block_size").is_default() {
        if its.block_size > there.block_size {
            return Err(Error::Config {
                place: resolved.origin("model.block_size").to_string(),
                key: "model.block_size".into(),
                message: format!("is {}, the context of the model in {init} is {}", its.block_size, there.block_size),
            });
        }
        there.block_size = its.block_size;
    }
    resolved.follow_model(there, "in model.init")?;
    // With a slash it is a path even where the folder is gone: a run that has begun has a tokenizer of its own.
    let folder = hf::tokenizer_folder(Path::new(&init))?;
    let tokenizer = format!("{}/", folder.display().to_string().trim_end_matches(['/', '\\']));
    resolved.derive("data.tokenizer", "that of model.init", |config| config.data.tokenizer = tokenizer);
    Ok(())
}

/// The `[model]` that describes this shape, with what is no shape as in `its`.
fn keys_of(shape: &ModelConfig, its: &config::ModelConfig) -> config::ModelConfig {
    let mut keys = config::ModelConfig {
        kind: shape.kind.as_str().into(),
        n_layer: shape.n_layer,
        n_head: shape.n_head,
        n_embd: shape.n_embd,
        block_size: shape.block_size,
        vocab_size: shape.vocab_size,
        tie_embeddings: shape.tie_embeddings,
        ..its.clone()
    };
    let Some(llama) = &shape.llama else {
        keys.bias = shape.bias;
        return keys;
    };
    keys.n_kv_head = llama.n_kv_head;
    keys.head_dim = llama.head_dim;
    keys.intermediate_size = llama.intermediate_size;
    keys.qkv_bias = llama.qkv_bias;
    keys.sliding_window = llama.sliding_window.unwrap_or(0);
    // The shortest number that is this f32: 1e-6, and not 9.999999974752427e-7.
    keys.norm_eps = llama.norm_eps.to_string().parse().expect("it was written as a number");
    keys.rope_theta = llama.rope_theta;
    match llama.rope_scaling {
        None => {}
        Some(nn::RopeScaling::Linear { factor }) => {
            (keys.rope_scaling, keys.rope_factor) = (RopeScaling::Linear, factor);
        }
        Some(nn::RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_block_size }) => {
            (keys.rope_scaling, keys.rope_factor) = (RopeScaling::Llama3, factor);
            (keys.rope_low_freq_factor, keys.rope_high_freq_factor) = (low_freq_factor, high_freq_factor);
            keys.rope_original_block_size = original_block_size;
        }
    }
    keys
}

/// The model that a run begins with: that of `model.init`, or one with random weights; with adapters if there are to be
/// any.
///
/// # Errors
/// If it cannot be read, is not of this shape, or cannot be adapted as asked.
pub(super) fn first_model(config: &Config, shape: &ModelConfig) -> Result<Box<dyn LanguageModel>> {
    let init = Path::new(&config.model.init);
    if init == Path::new("") {
        return build(shape, config.run.seed);
    }
    let lora = lora(config);
    if lora.is_some() && hf::weights_folder(init)? != init {
        let message = "is an adapter itself, and adapters are trained beside a model's weights: `rustyflow merge` \
                       makes one of them"
            .into();
        return Err(Error::Checkpoint { path: init.to_path_buf(), message });
    }
    let mut model = hf::load_with_context(init, shape.block_size)?;
    if model.config() != shape {
        let message = format!("holds the model {:?}, the configuration implies {shape:?}", model.config());
        return Err(Error::Checkpoint { path: init.to_path_buf(), message });
    }
    lora.map_or(Ok(()), |lora| lora.adapt(&mut *model, config.run.seed))?;
    Ok(model)
}

/// The model of a run as it is in one of its checkpoints.
///
/// # Errors
/// If that, or the model that its adapters are for, cannot be read or is not of this shape.
pub(super) fn model_at(checkpoint: &Path, config: &Config, shape: &ModelConfig) -> Result<Box<dyn LanguageModel>> {
    let Some(lora) = lora(config) else { return load(checkpoint) };
    let mut model = first_model(config, shape)?;
    read_adapters(checkpoint, &lora, &mut *model)?;
    Ok(model)
}
