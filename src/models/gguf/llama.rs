//! Llama, Qwen2 and Qwen3 in llama.cpp's format.

use super::{Layout, Mapping, Value};
use crate::models::{LlamaConfig, ModelConfig};
use crate::nn::RopeScaling;

/// Of layers: Hugging Face's names and those of llama.cpp.
const LAYER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

pub struct LlamaMapping {
    pub qk_norm: bool,
}

impl LlamaMapping {
    fn name(&self, l: &LlamaConfig) -> &'static str {
        match (self.qk_norm, l.qkv_bias) {
            (true, _) => "qwen3",
            (false, true) => "qwen2",
            (false, false) => "llama",
        }
    }
}

impl Mapping for LlamaMapping {
    fn architecture(&self, config: &ModelConfig) -> Result<&'static str, String> {
        let (l, name) = (config.llama(), self.name(config.llama()));
        if let Some(window) = l.sliding_window.filter(|window| *window < config.block_size) {
            return Err(format!("its {name} attends to the whole context, not to a window of {window} tokens"));
        }
        if name != "llama" && matches!(l.rope_scaling, Some(RopeScaling::Llama3 { .. })) {
            return Err(format!("its {name} has no RoPE scaling of the type llama3"));
        }
        let width = config.n_head * l.head_dim;
        if name == "qwen2" && width != config.n_embd {
            return Err(format!("the heads of its qwen2 are {} wide together, not {width}", config.n_embd));
        }
        if self.qk_norm && l.qkv_bias {
            return Err("its qwen3 has no bias at queries, keys and values".into());
        }
        Ok(name)
    }

    fn metadata(&self, config: &ModelConfig) -> Vec<(&'static str, Value)> {
        let l = config.llama();
        let size = |size: usize| Value::U32(size as u32);
        let mut all = vec![
            ("vocab_size", size(config.vocab_size)),
            ("context_length", size(config.block_size)),
            ("embedding_length", size(config.n_embd)),
            ("feed_forward_length", size(l.intermediate_size)),
            ("block_count", size(config.n_layer)),
            ("attention.head_count", size(config.n_head)),
            ("attention.head_count_kv", size(l.n_kv_head)),
            ("attention.key_length", size(l.head_dim)),
            ("attention.value_length", size(l.head_dim)),
            ("attention.layer_norm_rms_epsilon", Value::F32(l.norm_eps)),
            ("rope.dimension_count", size(l.head_dim)),
            ("rope.freq_base", Value::F32(l.rope_theta as f32)),
        ];
        if let Some(RopeScaling::Linear { factor }) = l.rope_scaling {
            all.push(("rope.scaling.type", Value::Text("linear".into())));
            all.push(("rope.scaling.factor", Value::F32(factor as f32)));
        }
        all
    }

    fn tensor(&self, config: &ModelConfig, name: &str) -> Option<(String, Layout)> {
        let l = config.llama();
        let name = name.strip_prefix("model.").unwrap_or(name);
        let (module, end) = name.rsplit_once('.')?;
        let Some((layer, module)) = module.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) else {
            let theirs = match module {
                "embed_tokens" => "token_embd",
                "norm" => "output_norm",
                "lm_head" => "output",
                _ => return None,
            };
            return Some((format!("{theirs}.{end}"), Layout::Same));
        };
        let (_, theirs) = LAYER.into_iter().find(|(ours, _)| *ours == module)?;
        // Only its llama rotates neighbours.
        let layout = match theirs {
            "attn_q" if self.name(l) == "llama" => Layout::Interleaved { heads: config.n_head },
            "attn_k" if self.name(l) == "llama" => Layout::Interleaved { heads: l.n_kv_head },
            _ => Layout::Same,
        };
        Some((format!("blk.{layer}.{theirs}.{end}"), layout))
    }

    /// Divisors of the rotary frequencies, if they differ.
    fn constants(&self, config: &ModelConfig) -> Vec<(&'static str, Vec<f32>)> {
        let l = config.llama();
        match l.rope_scaling {
            Some(scaling @ RopeScaling::Llama3 { .. }) => {
                let frequency = |i: usize| l.rope_theta.powf(-2.0 * i as f64 / l.head_dim as f64);
                let divisor = |i: usize| (frequency(i) / scaling.apply(frequency(i))) as f32;
                vec![("rope_freqs.weight", (0..l.head_dim / 2).map(divisor).collect())]
            }
            _ => vec![],
        }
    }
}
