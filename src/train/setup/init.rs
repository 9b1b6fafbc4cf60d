//! `model.init`: shape, tokenizer and weights of a pretrained model.

use super::adapters::lora;
use super::vocabulary::with_vocabulary;
use crate::config::{self, Config, Resolved, RopeScaling};
use crate::data::Tokenizer;
use crate::hub_cache::folder_of;
use crate::models::{LanguageModel, ModelConfig, build, hf, read_adapters};
use crate::nn;
use crate::train::checkpoint::{find_checkpoint, run_config};
use crate::{Error, Result, units};
use std::path::Path;

/// The rows of a continuous text, in tokens: longer ones take memory, and few texts depend on more at once.
pub(in crate::train) const STREAM_ROW: usize = 1024;

/// Finds the folder of `model.init`, a path or a fetched model, and applies its shape.
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

/// Applies shape and tokenizer of the model in `model.init`. Has no effect without it, or for a started run.
///
/// # Errors
/// If there is no model in the folder, or a set key contradicts it.
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
    let context = shape.block_size;
    if !shape.is_recurrent() && !resolved.origin("model.block_size").is_default() && its.block_size > context {
        return Err(Error::Config {
            place: resolved.origin("model.block_size").to_string(),
            key: "model.block_size".into(),
            message: format!("is {}, the context of the model in {init} is {context}", its.block_size),
        });
    }
    let mut there = keys_of(&shape, its);
    if its.new_tokenizer {
        // The embedding gets the rows that the tokenizer needs.
        there.vocab_size = its.vocab_size;
    }
    resolved.follow_model(there, "in model.init")?;
    if shape.is_recurrent() {
        resolved.derive("model.block_size", "that of model.init", |config| config.model.block_size = context);
    } else {
        // Until the text is read: see `init_sizes.rs`.
        let rows = context.min(STREAM_ROW);
        resolved.derive("model.block_size", "what the text needs", |config| config.model.block_size = rows);
    }
    // With a slash it is a path even where the folder is gone: a run that has begun has a tokenizer of its own.
    let folder = hf::tokenizer_folder(Path::new(&init))?;
    let tokenizer = format!("{}/", folder.display().to_string().trim_end_matches(['/', '\\']));
    resolved.derive("data.tokenizer", "that of model.init", |config| config.data.tokenizer = tokenizer);
    Ok(())
}

/// `[model]` for this shape, with all other keys from `its`.
fn keys_of(shape: &ModelConfig, its: &config::ModelConfig) -> config::ModelConfig {
    let mut keys = config::ModelConfig {
        kind: shape.kind.as_str().into(),
        n_layer: shape.n_layer,
        n_head: shape.n_head,
        n_embd: shape.n_embd,
        context: if shape.is_recurrent() { its.context } else { shape.block_size },
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
    keys.norm_eps = units::decimal_of_f32(llama.norm_eps);
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

/// Refuses a tokenizer other than that of `model.init`, whose ids would differ, unless `model.new_tokenizer` is set. A
/// model without a tokenizer accepts any.
///
/// # Errors
/// If it differs, or the model's tokenizer cannot be read.
pub(in crate::train) fn check_tokenizer(resolved: &Resolved, tokenizer: &Tokenizer) -> Result<()> {
    let model = &resolved.config.model;
    if model.init.is_empty() || model.new_tokenizer {
        return Ok(());
    }
    let Some(its) = tokenizer_of(&model.init)? else { return Ok(()) };
    let Some(difference) = its.difference(tokenizer) else { return Ok(()) };
    let message = format!(
        "is not the tokenizer of the model in {}: {difference}; leave it out to use the model's, or set \
         model.new_tokenizer = true (--new-tokenizer), with which tokens that both have keep their rows of the \
         embedding, and the rows of all others start at random",
        model.init
    );
    Err(Error::Config { place: resolved.origin("data.tokenizer").to_string(), key: "data.tokenizer".into(), message })
}

/// The tokenizer in the folder of a model, if there is one.
fn tokenizer_of(init: &str) -> Result<Option<Tokenizer>> {
    // The folder that a run began with may be gone.
    let Ok(folder) = hf::tokenizer_folder(Path::new(init)) else { return Ok(None) };
    let is_there = ["tokenizer.json", "vocab.json"].iter().any(|name| folder.join(name).is_file());
    is_there.then(|| Tokenizer::from_folder(&folder)).transpose()
}

/// For each id of a new tokenizer the id of the same text in that of `model.init`, if there is one.
fn kept_ids(config: &Config, tokenizer: &Tokenizer) -> Result<Vec<Option<u32>>> {
    let its = tokenizer_of(&config.model.init)?;
    Ok(its.map_or_else(|| vec![None; tokenizer.vocab_size()], |its| its.shared_ids(tokenizer)))
}

/// A note on the effect of a new tokenizer.
///
/// # Errors
/// If the model's tokenizer cannot be read.
pub(in crate::train) fn vocabulary_note(config: &Config, tokenizer: &Tokenizer) -> Result<String> {
    let kept = kept_ids(config, tokenizer)?;
    let (all, shared) = (kept.len(), kept.iter().flatten().count());
    Ok(format!(
        "new tokenizer: {shared} of its {all} tokens keep the rows that they have in the model's embedding, {} rows \
         start at random",
        all - shared
    ))
}

/// The initial model of a run: that of `model.init`, or one with random weights; with LoRA adapters if configured. A
/// new `tokenizer` changes its embedding; without it, the embedding's values come from another rank.
///
/// # Errors
/// If it cannot be read, has another shape, or cannot be adapted.
pub(in crate::train) fn first_model(
    config: &Config,
    shape: &ModelConfig,
    tokenizer: Option<&Tokenizer>,
) -> Result<Box<dyn LanguageModel>> {
    let init = Path::new(&config.model.init);
    if init == Path::new("") {
        return build(shape, config.run.seed);
    }
    let lora = lora(config);
    if lora.is_some() && hf::is_adapter(init)? {
        let message = "is an adapter itself, and adapters are trained beside a model's weights: `rustyflow merge` \
                       makes one of them"
            .into();
        return Err(Error::Checkpoint { path: init.to_path_buf(), message });
    }
    let mut model = hf::open(init, shape.block_size)?;
    let its_rows = model.config().vocab_size;
    let expected = if config.model.new_tokenizer { its_rows } else { shape.vocab_size };
    if *model.config() != (ModelConfig { vocab_size: expected, ..shape.clone() }) {
        let message = format!("holds the model {:?}, the configuration implies {shape:?}", model.config());
        return Err(Error::Checkpoint { path: init.to_path_buf(), message });
    }
    if config.model.new_tokenizer {
        let kept = tokenizer.map_or(Ok(Vec::new()), |tokenizer| kept_ids(config, tokenizer))?;
        model = with_vocabulary(model, shape, &kept, config.run.seed)?;
    }
    lora.map_or(Ok(()), |lora| lora.adapt(&mut *model, config.run.seed))?;
    Ok(model)
}

/// The model of a run as it is in one of its checkpoints.
///
/// # Errors
/// If that, or the model that its adapters are for, cannot be read or is not of this shape.
pub(in crate::train) fn model_at(
    checkpoint: &Path,
    config: &Config,
    shape: &ModelConfig,
) -> Result<Box<dyn LanguageModel>> {
    let Some(lora) = lora(config) else { return hf::open(checkpoint, usize::MAX) };
    let mut model = first_model(config, shape, None)?;
    read_adapters(checkpoint, &lora, &mut *model)?;
    Ok(model)
}
