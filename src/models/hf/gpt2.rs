//! GPT-2 in Hugging Face's format: `transformers.GPT2LMHeadModel`.

use super::{Mapping, computes, from_json, size};
use crate::Shape;
use crate::models::{ModelConfig, ModelKind};
use crate::nn::LayerNorm;
use serde::{Deserialize, Serialize};

/// Hugging Face's prefix of all names but the head's.
const PREFIX: &str = "transformer.";
const MODEL_TYPE: &str = "gpt2";
const ACTIVATION: &str = "gelu_new";

/// `config.json`. A missing key, like `null`, means transformers' default.
#[derive(Serialize, Deserialize)]
struct ConfigJson {
    #[serde(skip_deserializing)]
    architectures: [&'static str; 1],
    #[serde(skip_deserializing)]
    model_type: &'static str,
    vocab_size: Option<u64>,
    n_positions: Option<u64>,
    #[serde(skip_deserializing)]
    n_ctx: usize,
    n_embd: Option<u64>,
    n_layer: Option<u64>,
    n_head: Option<u64>,
    n_inner: Option<u64>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    tie_word_embeddings: Option<bool>,
    scale_attn_weights: Option<bool>,
    #[serde(skip_serializing)]
    scale_attn_by_inverse_layer_idx: Option<bool>,
    #[serde(skip_serializing)]
    add_cross_attention: Option<bool>,
    #[serde(skip_deserializing)]
    resid_pdrop: f32,
    #[serde(skip_deserializing)]
    embd_pdrop: f32,
    #[serde(skip_deserializing)]
    attn_pdrop: f32,
    #[serde(skip_deserializing)]
    bos_token_id: Option<u32>,
    #[serde(skip_deserializing)]
    eos_token_id: Option<u32>,
    #[serde(skip_deserializing)]
    torch_dtype: &'static str,
    rustyflow: Option<Rustyflow>,
}

/// Settings without a key in Hugging Face's format.
#[derive(Serialize, Deserialize)]
struct Rustyflow {
    #[serde(skip_deserializing)]
    version: &'static str,
    bias: Option<bool>,
}

pub struct Gpt2Mapping;

impl Mapping for Gpt2Mapping {
    fn model_types(&self) -> &'static [&'static str] {
        &[MODEL_TYPE]
    }

    fn prefix(&self) -> &'static str {
        PREFIX
    }

    fn write_config(&self, config: &ModelConfig) -> String {
        let json = ConfigJson {
            architectures: ["GPT2LMHeadModel"],
            model_type: MODEL_TYPE,
            vocab_size: Some(config.vocab_size as u64),
            n_positions: Some(config.block_size as u64),
            n_ctx: config.block_size,
            n_embd: Some(config.n_embd as u64),
            n_layer: Some(config.n_layer as u64),
            n_head: Some(config.n_head as u64),
            n_inner: None,
            activation_function: Some(ACTIVATION.into()),
            layer_norm_epsilon: Some(LayerNorm::EPS.into()),
            tie_word_embeddings: Some(config.tie_embeddings),
            scale_attn_weights: Some(true),
            scale_attn_by_inverse_layer_idx: None,
            add_cross_attention: None,
            resid_pdrop: 0.0,
            embd_pdrop: 0.0,
            attn_pdrop: 0.0,
            bos_token_id: None,
            eos_token_id: None,
            torch_dtype: "float32",
            rustyflow: Some(Rustyflow { version: env!("CARGO_PKG_VERSION"), bias: Some(config.bias) }),
        };
        serde_json::to_string_pretty(&json).expect("plain values serialize")
    }

    fn read_config(&self, text: &str) -> Result<ModelConfig, String> {
        let json: ConfigJson = from_json(text)?;
        // Two names of one function.
        let activation = json.activation_function.filter(|name| name != "gelu_pytorch_tanh");
        computes("activation_function", &activation, &ACTIVATION.to_string())?;
        computes("scale_attn_weights", &json.scale_attn_weights, &true)?;
        computes("scale_attn_by_inverse_layer_idx", &json.scale_attn_by_inverse_layer_idx, &false)?;
        computes("add_cross_attention", &json.add_cross_attention, &false)?;
        // Sizes beyond these make no model that fits any memory, and their products would overflow.
        let config = ModelConfig {
            kind: ModelKind::GPT2,
            vocab_size: size("vocab_size", json.vocab_size, 1 << 24)?,
            block_size: size("n_positions", json.n_positions, 1 << 24)?,
            n_layer: size("n_layer", json.n_layer, 1 << 12)?,
            n_head: size("n_head", json.n_head, 1 << 20)?,
            n_embd: size("n_embd", json.n_embd, 1 << 20)?,
            bias: json.rustyflow.and_then(|own| own.bias).unwrap_or(true),
            tie_embeddings: json.tie_word_embeddings.unwrap_or(true),
            llama: None,
        };
        if !config.n_embd.is_multiple_of(config.n_head) {
            return Err(format!("n_embd {} is not divisible by n_head {}", config.n_embd, config.n_head));
        }
        computes("n_inner", &json.n_inner, &(4 * config.n_embd as u64))?;
        let eps = f64::from(LayerNorm::EPS);
        computes("layer_norm_epsilon", &json.layer_norm_epsilon.filter(|its| (its - eps).abs() > 1e-9), &eps)?;
        Ok(config)
    }

    fn tensors(&self, _: &ModelConfig, name: &str, shape: &Shape) -> Vec<(String, Shape)> {
        let prefix = if name.starts_with("lm_head") { "" } else { PREFIX };
        vec![(format!("{prefix}{name}"), shape.clone())]
    }

    /// GPT-2 has biases everywhere: zeros mean the same as none.
    fn zeros_beside(&self, config: &ModelConfig, name: &str, shape: &Shape) -> Option<(String, usize)> {
        let has_bias = name.starts_with("h.") || name.starts_with("ln_f");
        (has_bias && !config.bias).then(|| (name.replace(".weight", ".bias"), shape.last_dim()))
    }

    fn embedding_and_head(&self) -> [&'static str; 2] {
        ["wte.weight", "lm_head.weight"]
    }

    fn positions(&self) -> Option<&'static str> {
        Some("wpe.weight")
    }

    /// Masks, which older files hold; the head, where it is the embedding; the zeros of biases.
    fn ignores(&self, config: &ModelConfig, name: &str) -> bool {
        name.ends_with(".attn.bias")
            || name.ends_with(".attn.masked_bias")
            || (config.tie_embeddings && name == "lm_head.weight")
            || (!config.bias && name.ends_with(".bias"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A model's `config.json` with one key changed, read.
    fn with(key: &str, value: Value) -> Result<ModelConfig, String> {
        let config = ModelConfig { bias: false, tie_embeddings: false, ..crate::models::testing::small(5, 6, 2, 8) };
        let mut json: Value = serde_json::from_str(&Gpt2Mapping.write_config(&config)).unwrap();
        json[key] = value;
        let read = Gpt2Mapping.read_config(&json.to_string());
        if let Ok(read) = &read {
            assert_eq!(*read, config, "{key}");
        }
        read
    }

    #[test]
    fn what_is_written_is_read_as_the_same_and_defaults_may_be_named() {
        with("transformers_version", json!("5.0")).unwrap();
        with("architectures", json!(null)).unwrap();
        with("n_inner", json!(32)).unwrap();
        with("activation_function", json!("gelu_pytorch_tanh")).unwrap();
        with("layer_norm_epsilon", json!(1e-5)).unwrap();
        with("add_cross_attention", json!(false)).unwrap();
    }

    #[test]
    fn what_would_compute_something_else_is_refused_by_name() {
        for (key, value, told) in [
            ("activation_function", json!("relu"), r#"activation_function is "relu"; rustyflow computes "gelu_new""#),
            ("scale_attn_weights", json!(false), "scale_attn_weights is false; rustyflow computes true"),
            (
                "scale_attn_by_inverse_layer_idx",
                json!(true),
                "scale_attn_by_inverse_layer_idx is true; rustyflow computes false",
            ),
            ("add_cross_attention", json!(true), "add_cross_attention is true; rustyflow computes false"),
            ("n_inner", json!(16), "n_inner is 16; rustyflow computes 32"),
            ("layer_norm_epsilon", json!(1e-6), "layer_norm_epsilon is 1e-6; rustyflow computes 9.99999974"),
            ("n_head", json!(3), "n_embd 8 is not divisible by n_head 3"),
            ("n_embd", json!(0), "n_embd is 0; expected a size of 1 to 1048576"),
            ("vocab_size", json!(null), "vocab_size is null; expected a size of 1 to 16777216"),
            ("vocab_size", json!(-1), "vocab_size: invalid value: integer `-1`"),
            ("tie_word_embeddings", json!("yes"), r#"tie_word_embeddings: invalid type: string "yes""#),
            ("rustyflow", json!({ "bias": 1 }), "rustyflow: invalid type: integer `1`"),
        ] {
            let error = with(key, value).unwrap_err();
            assert!(error.contains(told), "{error:?} lacks {told:?}");
        }
    }
}
