//! The configured shape of the model.

use crate::config::{self, Config, Resolved};
use crate::models::{LlamaConfig, ModelConfig, ModelKind};
use crate::nn::RopeScaling;
use crate::{Error, Result};

/// The shape of the model for a tokenizer with `tokens` tokens.
///
/// # Errors
/// If the family is unknown, or does not use a key that is set.
pub(in crate::train) fn model_config(resolved: &Resolved, tokens: usize) -> Result<ModelConfig> {
    let model = &resolved.config.model;
    let wrong = |key: &'static str, message| Error::Config {
        place: resolved.origin(key).to_string(),
        key: key.into(),
        message,
    };
    let kind = model_kind(resolved)?;
    if !kind.is_llama()
        && let Some(key) = set_for_llama(&resolved.config)
    {
        let message = format!("model.kind is {:?}, which has no use for it; \"llama\" and \"qwen3\" have", model.kind);
        return Err(wrong(key, message));
    }
    if kind.is_recurrent() && resolved.config.train.recompute != config::Recompute::None {
        let message = format!("model.kind is {:?}, whose layers are not computed again; leave it out", model.kind);
        return Err(wrong("train.recompute", message));
    }
    let blocks = resolved.config.train.recompute_blocks;
    if blocks > model.n_layer {
        let message = format!("is {blocks}, and the model has {} blocks", model.n_layer);
        return Err(wrong("train.recompute_blocks", message));
    }
    if kind.is_recurrent() && model.context > 0 {
        let message = format!("model.kind is {:?}, whose state has no limit of context; leave it out", model.kind);
        return Err(wrong("model.context", message));
    }
    let vocab_size = match model.vocab_size {
        0 => tokens.next_multiple_of(model.vocab_multiple),
        size if size >= tokens => size,
        size => {
            let message =
                format!("is {size}, and the tokenizer has {tokens} tokens: each needs a row of the embedding");
            return Err(wrong("model.vocab_size", message));
        }
    };
    let head_dim = if model.head_dim > 0 { model.head_dim } else { model.n_embd / model.n_head };
    if kind.is_llama() && (!head_dim.is_multiple_of(2) || head_dim > 128) {
        let key = if model.head_dim > 0 { "model.head_dim" } else { "model.n_head" };
        let message = format!("heads of {head_dim} elements: rotary positions need an even number, of 128 at most");
        return Err(wrong(key, message));
    }
    Ok(ModelConfig {
        kind,
        vocab_size,
        block_size: if model.context > 0 { model.context } else { model.block_size },
        n_layer: model.n_layer,
        // Layers without attention have no heads.
        n_head: if kind.is_recurrent() { 1 } else { model.n_head },
        n_embd: model.n_embd,
        bias: model.bias && !kind.is_llama(),
        tie_embeddings: model.tie_embeddings,
        llama: kind.is_llama().then(|| llama(model, head_dim)),
    })
}

/// The family that a configuration names.
///
/// # Errors
/// If there is no such family.
pub(in crate::train) fn model_kind(resolved: &Resolved) -> Result<ModelKind> {
    let (place, key) = (resolved.origin("model.kind").to_string(), "model.kind".into());
    resolved.config.model.kind.parse().map_err(|message| Error::Config { place, key, message })
}

fn llama(model: &config::ModelConfig, head_dim: usize) -> LlamaConfig {
    let or = |size: usize, default: usize| if size > 0 { size } else { default };
    let &config::ModelConfig { rope_factor: factor, .. } = model;
    LlamaConfig {
        n_kv_head: or(model.n_kv_head, model.n_head),
        head_dim,
        intermediate_size: or(model.intermediate_size, (8 * model.n_embd).div_ceil(3).next_multiple_of(64)),
        qkv_bias: model.qkv_bias,
        sliding_window: Some(model.sliding_window).filter(|window| *window > 0),
        norm_eps: model.norm_eps as f32,
        rope_theta: model.rope_theta,
        rope_scaling: match model.rope_scaling {
            config::RopeScaling::None => None,
            config::RopeScaling::Linear => Some(RopeScaling::Linear { factor }),
            config::RopeScaling::Llama3 => Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor: model.rope_low_freq_factor,
                high_freq_factor: model.rope_high_freq_factor,
                original_block_size: model.rope_original_block_size,
            }),
        },
    }
}

/// The first Llama-only key with a value other than its default.
fn set_for_llama(config: &Config) -> Option<&'static str> {
    let (its, default) = (&config.model, config::ModelConfig::default());
    let changed = [
        ("model.n_kv_head", its.n_kv_head != default.n_kv_head),
        ("model.head_dim", its.head_dim != default.head_dim),
        ("model.intermediate_size", its.intermediate_size != default.intermediate_size),
        ("model.qkv_bias", its.qkv_bias != default.qkv_bias),
        ("model.sliding_window", its.sliding_window != default.sliding_window),
        ("model.norm_eps", its.norm_eps != default.norm_eps),
        ("model.rope_theta", its.rope_theta != default.rope_theta),
        ("model.rope_scaling", its.rope_scaling != default.rope_scaling),
        ("model.rope_factor", its.rope_factor != default.rope_factor),
        ("model.rope_low_freq_factor", its.rope_low_freq_factor != default.rope_low_freq_factor),
        ("model.rope_high_freq_factor", its.rope_high_freq_factor != default.rope_high_freq_factor),
        ("model.rope_original_block_size", its.rope_original_block_size != default.rope_original_block_size),
    ];
    changed.into_iter().find_map(|(key, changed)| changed.then_some(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    fn shape(settings: &[&str]) -> Result<ModelConfig> {
        let layers = settings.iter().try_fold(Layers::new(), |layers, setting| layers.set(setting))?;
        model_config(&layers.build()?, 50)
    }

    #[test]
    fn sizes_that_are_not_given_follow_from_others() {
        let config = shape(&["model.kind=llama", "model.n_embd=768", "model.n_head=12"]).unwrap();
        let llama = config.llama.as_ref().unwrap();
        assert_eq!((llama.n_kv_head, llama.head_dim, llama.intermediate_size), (12, 64, 2048));
        assert!(llama.sliding_window.is_none() && llama.rope_scaling.is_none() && !config.bias);
        let config =
            shape(&["model.kind=qwen3", "model.n_embd=100", "model.head_dim=16", "model.n_kv_head=2"]).unwrap();
        assert_eq!(config.head_size(), 16);
    }

    #[test]
    fn keys_without_a_use_and_heads_that_cannot_be_are_refused() {
        for (settings, told) in [
            (&["model.n_kv_head=2"][..], "--set: model.n_kv_head: model.kind is \"gpt2\", which has no use for it"),
            (&["model.rope_scaling=linear"], "model.rope_scaling: model.kind is \"gpt2\""),
            (&["model.kind=llama", "model.head_dim=7"], "model.head_dim: heads of 7 elements"),
            (&["model.kind=llama", "model.n_embd=1040", "model.n_head=8"], "model.n_head: heads of 130 elements"),
            (&["model.kind=llama", "model.n_kv_head=3"], "n_head must be a multiple of n_kv_head"),
        ] {
            let error = shape(settings).unwrap_err().to_string();
            assert!(error.contains(told), "{error:?} lacks {told:?}");
        }
    }
}
