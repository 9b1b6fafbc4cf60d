//! Qwen3 (Yang et al. 2025): a Llama with an RMS norm of every query and key head before the rotation
//! ([`super::llama::Attention`]). Its head size `head_dim` is usually larger than n_embd / n_head.

use super::llama::LlamaFamily;
use super::{gguf, hf};

/// The Qwen3 family.
pub(super) const FAMILY: LlamaFamily = LlamaFamily {
    kind: "qwen3",
    qk_norm: true,
    mapping: hf::LlamaMapping { qk_norm: true },
    gguf: gguf::LlamaMapping { qk_norm: true },
};
