//! Qwen3 (Yang et al. 2025): a Llama with an RMS norm at every head of queries and keys, before they are rotated
//! ([`super::llama::Attention`]). Its heads usually have a size of their own, `head_dim`, larger than n_embd / n_head.

use super::llama::LlamaFamily;
use super::{gguf, hf};

/// What is known of Qwen3 of any size.
pub(super) const FAMILY: LlamaFamily = LlamaFamily {
    kind: "qwen3",
    qk_norm: true,
    mapping: hf::LlamaMapping { qk_norm: true },
    gguf: gguf::LlamaMapping { qk_norm: true },
};
