//! GPT-2 in llama.cpp's format.

use super::{Layout, Mapping, Value};
use crate::models::ModelConfig;
use crate::nn::LayerNorm;

/// Of layers: Hugging Face's names and those of llama.cpp. The weights of linear layers are `Conv1D`'s, with the
/// inputs first.
const LAYER: [(&str, &str, Layout); 6] = [
    ("ln_1", "attn_norm", Layout::Same),
    ("attn.c_attn", "attn_qkv", Layout::Transposed),
    ("attn.c_proj", "attn_output", Layout::Transposed),
    ("ln_2", "ffn_norm", Layout::Same),
    ("mlp.c_fc", "ffn_up", Layout::Transposed),
    ("mlp.c_proj", "ffn_down", Layout::Transposed),
];

pub struct Gpt2Mapping;

impl Mapping for Gpt2Mapping {
    fn architecture(&self, _: &ModelConfig) -> Result<&'static str, String> {
        Ok("gpt2")
    }

    fn metadata(&self, config: &ModelConfig) -> Vec<(&'static str, Value)> {
        vec![
            ("context_length", Value::U32(config.block_size as u32)),
            ("embedding_length", Value::U32(config.n_embd as u32)),
            ("feed_forward_length", Value::U32(4 * config.n_embd as u32)),
            ("block_count", Value::U32(config.n_layer as u32)),
            ("attention.head_count", Value::U32(config.n_head as u32)),
            ("attention.layer_norm_epsilon", Value::F32(LayerNorm::EPS)),
        ]
    }

    fn tensor(&self, _: &ModelConfig, name: &str) -> Option<(String, Layout)> {
        let name = name.strip_prefix("transformer.").unwrap_or(name);
        let (module, end) = name.rsplit_once('.')?;
        let (module, layout) = match module.strip_prefix("h.").and_then(|rest| rest.split_once('.')) {
            Some((layer, module)) => {
                let (_, theirs, layout) = LAYER.into_iter().find(|(ours, ..)| *ours == module)?;
                (format!("blk.{layer}.{theirs}"), layout)
            }
            None => {
                let theirs = match module {
                    "wte" => "token_embd",
                    "wpe" => "position_embd",
                    "ln_f" => "output_norm",
                    "lm_head" => "output",
                    _ => return None,
                };
                (theirs.to_string(), Layout::Same)
            }
        };
        Some((format!("{module}.{end}"), if end == "bias" { Layout::Same } else { layout }))
    }

    fn constants(&self, _: &ModelConfig) -> Vec<(&'static str, Vec<f32>)> {
        vec![]
    }
}
