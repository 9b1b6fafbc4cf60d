//! Qwen3 (Yang et al. 2025): a Llama with an RMS norm at every head of queries and keys, before they are rotated
//! ([`super::llama::Attention`]). Its heads usually have a size of their own, `head_dim`, larger than n_embd / n_head.

use super::hf::LlamaMapping;
use super::llama::LlamaFamily;

/// What is known of Qwen3 of any size.
pub(super) const FAMILY: LlamaFamily =
    LlamaFamily { kind: "qwen3", qk_norm: true, mapping: LlamaMapping { qk_norm: true } };
