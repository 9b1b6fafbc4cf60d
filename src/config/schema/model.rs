//! The shape of the model, and its LoRA adapters.

use crate::config::choice::{RopeScaling, WeightDtype};
use serde::{Deserialize, Serialize};

/// `[model]`: the shape of the model, with GPT-2's names, or Llama's where GPT-2 has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// A folder with a model in Hugging Face's layout: initial weights, shape and, unless `data.tokenizer` is set,
    /// tokenizer. Default empty: random weights.
    pub init: String,
    /// Whether the model of `init` may get another tokenizer: tokens of both keep their rows in embedding and head,
    /// other rows are random. Default false: another tokenizer is refused.
    pub new_tokenizer: bool,
    /// The family: `gpt2`, `llama` (Qwen2 and Mistral too), `qwen3`, or recurrent, `lstm`, `gru` or `rnn`. Default
    /// `gpt2`.
    pub kind: String,
    /// Transformer blocks, or recurrent layers. Default 4.
    pub n_layer: usize,
    /// Attention heads per block; `n_embd` is a multiple. Recurrent models have none. Default 4.
    pub n_head: usize,
    /// Channels of the residual stream, or of a recurrent layer's state. Default 128.
    pub n_embd: usize,
    /// Tokens per training row; for a recurrent model, the length of truncated backpropagation through time, while its
    /// state is carried from batch to batch. Default 128; with `init`, the 99th percentile of document lengths (1024
    /// for a stream), at most the model's context.
    pub block_size: usize,
    /// Context length of the model, in tokens, at least `block_size`. Default 0: `block_size`; with `init`, that of the
    /// model.
    pub context: usize,
    /// Vocabulary size. Default 0: the tokenizer's, rounded up to `vocab_multiple`.
    pub vocab_size: usize,
    /// The vocabulary is padded to a multiple of this with tokens that are never sampled. Tensor cores require a
    /// multiple of 4; 64 pads GPT-2's 50,257 tokens to 50,304. Default 1.
    pub vocab_multiple: usize,
    /// Dropout probability, in [0, 1). Default 0.
    pub dropout: f64,
    /// Dropout probability of the embeddings, in [0, 1). Default `dropout`.
    pub embd_dropout: f64,
    /// Whether Linear and LayerNorm layers have a bias. Default true.
    pub bias: bool,
    /// Whether the head shares the token embedding's weight. Default true.
    pub tie_embeddings: bool,
    /// Key/value heads; `n_head` is a multiple. Default 0: `n_head`.
    pub n_kv_head: usize,
    /// Head size. Default 0: `n_embd / n_head`.
    pub head_dim: usize,
    /// Width of the feed-forward layer. Default 0: 8/3 of `n_embd`, rounded up to a multiple of 64.
    pub intermediate_size: usize,
    /// Whether queries, keys and values have a bias, as in Qwen2. Default false.
    pub qkv_bias: bool,
    /// Sliding attention window, in tokens, including the query's. Default 0: all preceding tokens.
    pub sliding_window: usize,
    /// Epsilon of RMS norms. Default 1e-5.
    pub norm_eps: f64,
    /// The base of the frequencies of rotary positions. Default 10000.
    pub rope_theta: f64,
    /// `none`, `linear` or `llama3`. Default `none`.
    pub rope_scaling: RopeScaling,
    /// Divisor of the angles. Default 1.
    pub rope_factor: f64,
    /// Frequencies with fewer periods in `rope_original_block_size` tokens are divided. Default 1.
    pub rope_low_freq_factor: f64,
    /// Frequencies with more periods are unchanged. Default 4.
    pub rope_high_freq_factor: f64,
    /// The original context of the model. Default 8192.
    pub rope_original_block_size: usize,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            init: String::new(),
            new_tokenizer: false,
            kind: "gpt2".into(),
            n_layer: 4,
            n_head: 4,
            n_embd: 128,
            block_size: 128,
            context: 0,
            vocab_size: 0,
            vocab_multiple: 1,
            dropout: 0.0,
            embd_dropout: 0.0,
            bias: true,
            tie_embeddings: true,
            n_kv_head: 0,
            head_dim: 0,
            intermediate_size: 0,
            qkv_bias: false,
            sliding_window: 0,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            rope_factor: 1.0,
            rope_low_freq_factor: 1.0,
            rope_high_freq_factor: 4.0,
            rope_original_block_size: 8192,
        }
    }
}

/// `[lora]`: LoRA adapters (Hu et al. 2021), which are trained instead of the model's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// r of A (r, inputs) and B (outputs, r). Default 0: none, all weights are trained.
    pub rank: usize,
    /// B A is multiplied by `alpha / rank`. Default 0: by 2.
    pub alpha: f64,
    /// Whether B A is multiplied by `alpha / sqrt(rank)` (rsLoRA, Kalajdzievski 2023). Default false.
    pub rslora: bool,
    /// Whether a magnitude of each output is trained too (DoRA, Liu et al. 2024). Default false.
    pub dora: bool,
    /// Dropout probability of A's input, in [0, 1). Default 0.
    pub dropout: f64,
    /// The adapted layers, by names in `model.safetensors` or their suffixes. Default `all-linear`.
    pub targets: Vec<String>,
    /// Modules whose parameters are trained in full, by names in `model.safetensors` or their suffixes. Default none.
    pub modules_to_save: Vec<String>,
    /// Storage type of the frozen weights of matmuls: `f32`, `f16`, `q8_0`, `q4_0` or `nf4`. Default `f32`.
    pub base_dtype: WeightDtype,
}

impl Default for LoraConfig {
    fn default() -> Self {
        LoraConfig {
            rank: 0,
            alpha: 0.0,
            rslora: false,
            dora: false,
            dropout: 0.0,
            targets: vec!["all-linear".into()],
            modules_to_save: Vec::new(),
            base_dtype: WeightDtype::F32,
        }
    }
}
