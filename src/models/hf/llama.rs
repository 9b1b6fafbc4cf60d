//! Llama and related families in Hugging Face's format: `LlamaForCausalLM`, `Qwen2ForCausalLM` (with a bias at queries,
//! keys and values), `MistralForCausalLM` (with a sliding window) and `Qwen3ForCausalLM` (with QK-norm).

use super::rope::{read_rope, write_rope};
use super::{Mapping, computes, from_json, size};
use crate::Shape;
use crate::models::{LlamaConfig, ModelConfig};
use crate::units;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Hugging Face's prefix of all names but the head's.
const PREFIX: &str = "model.";

/// The keys of `config.json` that are read. A missing key, like `null`, means transformers' default.
#[derive(Deserialize)]
struct ConfigJson {
    model_type: Option<String>,
    vocab_size: Option<u64>,
    max_position_embeddings: Option<u64>,
    num_hidden_layers: Option<u64>,
    num_attention_heads: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    hidden_size: Option<u64>,
    intermediate_size: Option<u64>,
    hidden_act: Option<String>,
    rms_norm_eps: Option<f64>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    sliding_window: Option<u64>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<u64>,
    layer_types: Option<Vec<String>>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    /// Both of those, since transformers 5.
    rope_parameters: Option<Map<String, Value>>,
    partial_rotary_factor: Option<f64>,
}

pub struct LlamaMapping {
    pub qk_norm: bool,
}

/// The window of all layers; layers of both kinds are refused.
fn read_window(json: &ConfigJson, model_type: &str, n_layer: usize) -> Result<Option<usize>, String> {
    let window = json.sliding_window.map(|window| size("sliding_window", Some(window), 1 << 24)).transpose()?;
    // Qwen has a switch, Mistral uses what is there, and Llama knows no window.
    let window = match model_type {
        "llama" => None,
        "mistral" => window,
        _ => window.filter(|_| json.use_sliding_window.unwrap_or(false)),
    };
    // The first of Qwen's layers have none; 28 is transformers' default.
    let first = match model_type {
        "mistral" => 0,
        _ => json.max_window_layers.unwrap_or(28).min(n_layer as u64) as usize,
    };
    let sliding = if window.is_some() { n_layer - first } else { 0 };
    if let Some(types) = &json.layer_types {
        return read_layer_types(types, n_layer, window);
    }
    if sliding != 0 && sliding != n_layer {
        return Err(format!(
            "max_window_layers is {first}; rustyflow computes a window in all {n_layer} layers, which is 0, or in none"
        ));
    }
    Ok(window.filter(|_| sliding > 0))
}

/// The window where `layer_types` says which layers have it.
fn read_layer_types(types: &[String], n_layer: usize, window: Option<usize>) -> Result<Option<usize>, String> {
    const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];
    if let Some(other) = types.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(format!("layer_types has {other:?}; rustyflow computes {:?} and {:?}", KINDS[0], KINDS[1]));
    }
    if types.len() != n_layer {
        return Err(format!("layer_types names {} layers, num_hidden_layers is {n_layer}", types.len()));
    }
    let sliding = types.iter().filter(|kind| *kind == KINDS[1]).count();
    if sliding != 0 && sliding != n_layer {
        return Err(format!("layer_types has {sliding} sliding layers of {n_layer}; rustyflow computes all or none"));
    }
    if sliding != 0 && window.is_none() {
        return Err("layer_types has sliding layers, and sliding_window and use_sliding_window say no window".into());
    }
    Ok(window.filter(|_| sliding > 0))
}

impl LlamaMapping {
    /// The `model_type` that computes what this configuration does, and its class.
    fn class(&self, l: &LlamaConfig) -> (&'static str, &'static str) {
        match (self.qk_norm, l.qkv_bias, l.sliding_window) {
            (true, ..) => ("qwen3", "Qwen3ForCausalLM"),
            (_, true, _) => ("qwen2", "Qwen2ForCausalLM"),
            (_, _, Some(_)) => ("mistral", "MistralForCausalLM"),
            _ => ("llama", "LlamaForCausalLM"),
        }
    }
}

impl Mapping for LlamaMapping {
    fn model_types(&self) -> &'static [&'static str] {
        if self.qk_norm { &["qwen3"] } else { &["llama", "qwen2", "mistral"] }
    }

    fn prefix(&self) -> &'static str {
        PREFIX
    }

    fn write_config(&self, config: &ModelConfig) -> String {
        let l = config.llama();
        let (model_type, class) = self.class(l);
        let mut json = json!({
            "architectures": [class],
            "model_type": model_type,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.block_size,
            "num_hidden_layers": config.n_layer,
            "num_attention_heads": config.n_head,
            "num_key_value_heads": l.n_kv_head,
            "head_dim": l.head_dim,
            "hidden_size": config.n_embd,
            "intermediate_size": l.intermediate_size,
            "hidden_act": "silu",
            "rms_norm_eps": units::decimal_of_f32(l.norm_eps),
            "attention_bias": false,
            "attention_dropout": 0.0,
            "tie_word_embeddings": config.tie_embeddings,
            "bos_token_id": null,
            "eos_token_id": null,
            "torch_dtype": "float32",
            // As transformers 4 reads it and as 5 does.
            "rope_theta": l.rope_theta,
            "rope_scaling": l.rope_scaling.map(|_| write_rope(l)),
            "rope_parameters": write_rope(l),
            "rustyflow": { "version": env!("CARGO_PKG_VERSION") },
        });
        if model_type != "llama" {
            json["sliding_window"] = json!(l.sliding_window);
        }
        if model_type.starts_with("qwen") {
            let kind = if l.sliding_window.is_some() { "sliding_attention" } else { "full_attention" };
            json["use_sliding_window"] = json!(l.sliding_window.is_some());
            json["max_window_layers"] = json!(0);
            json["layer_types"] = json!(vec![kind; config.n_layer]);
        }
        serde_json::to_string_pretty(&json).expect("plain values serialize")
    }

    fn read_config(&self, text: &str) -> Result<ModelConfig, String> {
        let json: ConfigJson = from_json(text)?;
        let model_type = json.model_type.clone().unwrap_or_default();
        // Two names of one function.
        computes("hidden_act", &json.hidden_act.clone().filter(|name| name != "swish"), &"silu".to_string())?;
        // Qwen2 has a bias whatever this says.
        computes("attention_bias", &json.attention_bias.filter(|_| model_type != "qwen2"), &false)?;
        computes("partial_rotary_factor", &json.partial_rotary_factor, &1.0)?;
        computes("mlp_bias", &json.mlp_bias, &false)?;
        let n_layer = size("num_hidden_layers", json.num_hidden_layers, 1 << 12)?;
        let n_head = size("num_attention_heads", json.num_attention_heads, 1 << 16)?;
        let n_embd = size("hidden_size", json.hidden_size, 1 << 20)?;
        let (rope_theta, rope_scaling) =
            read_rope(json.rope_theta, json.rope_scaling.as_ref(), json.rope_parameters.as_ref())?;
        let head_dim = match (json.head_dim, self.qk_norm) {
            // What transformers takes where it is not there.
            (None, true) => 128,
            (None, false) => n_embd / n_head,
            (given, _) => size("head_dim", given, 1 << 12)?,
        };
        let norm_eps = json.rms_norm_eps.unwrap_or(1e-6);
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return Err(format!("rms_norm_eps is {norm_eps}; expected a number between 0 and 1"));
        }
        let llama = LlamaConfig {
            n_kv_head: json
                .num_key_value_heads
                .map_or(Ok(n_head), |n| size("num_key_value_heads", Some(n), 1 << 16))?,
            head_dim,
            intermediate_size: size("intermediate_size", json.intermediate_size, 1 << 22)?,
            qkv_bias: model_type == "qwen2",
            sliding_window: read_window(&json, &model_type, n_layer)?,
            norm_eps: norm_eps as f32,
            rope_theta,
            rope_scaling,
        };
        Ok(ModelConfig {
            kind: if self.qk_norm { "qwen3" } else { "llama" }.parse()?,
            vocab_size: size("vocab_size", json.vocab_size, 1 << 24)?,
            block_size: size("max_position_embeddings", json.max_position_embeddings, 1 << 24)?,
            n_layer,
            n_head,
            n_embd,
            bias: false,
            tie_embeddings: json.tie_word_embeddings.unwrap_or(false),
            llama: Some(llama),
        })
    }

    /// Queries, keys and values, and gates and what they let through, are one parameter here and several there.
    fn tensors(&self, config: &ModelConfig, name: &str, shape: &Shape) -> Vec<(String, Shape)> {
        let l = config.llama();
        let parts: &[(&str, usize)] = if name.contains("qkv_proj") {
            &[
                ("q_proj", config.n_head * l.head_dim),
                ("k_proj", l.n_kv_head * l.head_dim),
                ("v_proj", l.n_kv_head * l.head_dim),
            ]
        } else if name.contains("gate_up_proj") {
            &[("gate_proj", l.intermediate_size), ("up_proj", l.intermediate_size)]
        } else {
            let prefix = if name.starts_with("lm_head") { "" } else { PREFIX };
            return vec![(format!("{prefix}{name}"), shape.clone())];
        };
        let part = |(part, rows): &(&str, usize)| {
            let name = name.replace("qkv_proj", part).replace("gate_up_proj", part);
            let shape: Vec<usize> = [*rows].into_iter().chain(shape.iter().skip(1).copied()).collect();
            (format!("{PREFIX}{name}"), Shape::from(shape))
        };
        parts.iter().map(part).collect()
    }

    fn zeros_beside(&self, _: &ModelConfig, _: &str, _: &Shape) -> Option<(String, usize)> {
        None
    }

    fn embedding_and_head(&self) -> [&'static str; 2] {
        ["embed_tokens.weight", "lm_head.weight"]
    }

    fn positions(&self) -> Option<&'static str> {
        None
    }

    /// The frequencies of rotary positions, which older files hold; the head, where it is the embedding.
    fn ignores(&self, config: &ModelConfig, name: &str) -> bool {
        name.ends_with(".rotary_emb.inv_freq") || (config.tie_embeddings && name == "lm_head.weight")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::testing::small_llama;
    use crate::nn::RopeScaling;

    fn round_trip(mapping: &LlamaMapping, config: &ModelConfig) -> Value {
        let text = mapping.write_config(config);
        assert_eq!(mapping.read_config(&text).unwrap(), *config, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_is_written_is_read_as_the_same_under_the_name_of_what_computes_it() {
        let (llama, qwen3) = (LlamaMapping { qk_norm: false }, LlamaMapping { qk_norm: true });
        let changed = |change: &dyn Fn(&mut LlamaConfig)| {
            let mut config = small_llama("llama");
            change(config.llama.as_mut().unwrap());
            config
        };
        let class = |json: Value| json["architectures"][0].as_str().unwrap().to_string();
        assert_eq!(class(round_trip(&llama, &small_llama("llama"))), "LlamaForCausalLM");
        assert_eq!(class(round_trip(&qwen3, &small_llama("qwen3"))), "Qwen3ForCausalLM");
        assert_eq!(class(round_trip(&llama, &changed(&|l| l.qkv_bias = true))), "Qwen2ForCausalLM");
        assert_eq!(class(round_trip(&llama, &changed(&|l| l.sliding_window = Some(7)))), "MistralForCausalLM");
        let both = changed(&|l| (l.qkv_bias, l.sliding_window) = (true, Some(7)));
        assert_eq!(class(round_trip(&llama, &both)), "Qwen2ForCausalLM");
        let linear = changed(&|l| l.rope_scaling = Some(RopeScaling::Linear { factor: 4.0 }));
        round_trip(&llama, &linear);
        let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
        round_trip(
            &llama,
            &changed(&|l| {
                l.rope_scaling = Some(RopeScaling::Llama3 {
                    factor: 8.0,
                    low_freq_factor,
                    high_freq_factor,
                    original_block_size: 64,
                });
            }),
        );
    }

    #[test]
    fn what_would_compute_something_else_is_refused_by_name() {
        let mapping = LlamaMapping { qk_norm: false };
        let written = mapping.write_config(&small_llama("llama"));
        let with = |changes: Value| {
            let mut json: Value = serde_json::from_str(&written).unwrap();
            changes.as_object().unwrap().iter().for_each(|(key, value)| json[key] = value.clone());
            mapping.read_config(&json.to_string())
        };
        for (changes, told) in [
            (json!({ "hidden_act": "gelu" }), r#"hidden_act is "gelu"; rustyflow computes "silu""#),
            (json!({ "attention_bias": true }), "attention_bias is true"),
            (json!({ "mlp_bias": true }), "mlp_bias is true"),
            (json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor is 0.5"),
            (json!({ "num_key_value_heads": 0 }), "num_key_value_heads is 0"),
            (json!({ "rms_norm_eps": 0.0 }), "rms_norm_eps is 0"),
            (json!({ "rope_parameters": { "rope_type": "yarn" } }), r#"rope_parameters.rope_type is "yarn""#),
            (
                json!({ "rope_parameters": { "rope_type": "linear" } }),
                "rope_parameters.factor is missing, a number above 0",
            ),
            (
                json!({ "rope_parameters": null, "rope_scaling": { "type": "linear", "factor": -1 } }),
                "rope_scaling.factor is -1, no number above 0",
            ),
            (
                json!({ "model_type": "qwen2", "sliding_window": 4, "use_sliding_window": true,
                    "max_window_layers": 1 }),
                "max_window_layers is 1; rustyflow computes a window in all 2 layers",
            ),
            (
                json!({ "model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"] }),
                "layer_types has 1 sliding layers of 2",
            ),
            (
                json!({ "layer_types": ["full_attention", "chunked_attention"] }),
                r#"layer_types has "chunked_attention""#,
            ),
            (json!({ "layer_types": ["full_attention"] }), "layer_types names 1 layers, num_hidden_layers is 2"),
            (
                json!({ "model_type": "qwen2", "sliding_window": 4, "use_sliding_window": false,
                    "layer_types": ["sliding_attention", "sliding_attention"] }),
                "layer_types has sliding layers, and",
            ),
        ] {
            let error = with(changes).unwrap_err();
            assert!(error.contains(told), "{error:?} lacks {told:?}");
        }
        let beyond = json!({ "model_type": "qwen2", "sliding_window": 4, "use_sliding_window": true,
            "max_window_layers": 2, "attention_bias": true, "hidden_act": "swish" });
        assert_eq!(with(beyond).unwrap().llama().sliding_window, None);
        let older = json!({ "rope_parameters": null, "rope_theta": 5e5, "rope_scaling": null });
        assert_eq!(with(older).unwrap().llama().rope_theta, 5e5);
    }
}
