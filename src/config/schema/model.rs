//! What is trained: the shape of the model, and adapters beside it.

use crate::config::choice::{RopeScaling, WeightDtype};
use serde::{Deserialize, Serialize};

/// `[model]`: the shape of the model, in the names of GPT-2, and of Llama for what GPT-2 has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// A folder with a model in Hugging Face's layout: the run begins with its weights, and takes its shape and, where
    /// `data.tokenizer` is not set, its tokenizer. Default empty: random weights.
    pub init: String,
    /// Whether a run may give the model of `init` another tokenizer: tokens that both tokenizers have keep their rows
    /// of the embedding and the head, other rows start at random. Default false: another tokenizer is refused.
    pub new_tokenizer: bool,
    /// The family: `gpt2`, `llama` (Qwen2 and Mistral too), `qwen3`, or recurrent, `lstm`, `gru` or `rnn`. Default
    /// `gpt2`.
    pub kind: String,
    /// Transformer blocks, or recurrent layers. Default 4.
    pub n_layer: usize,
    /// Attention heads per block; divides `n_embd`. Recurrent models have none. Default 4.
    pub n_head: usize,
    /// Channels of the residual stream, or of a recurrent layer's state. Default 128.
    pub n_embd: usize,
    /// Tokens of a training row; of a recurrent model those that gradients go back through (truncated backpropagation
    /// through time), while its state goes on from batch to batch. Default 128; with `init`, what the documents need.
    pub block_size: usize,
    /// The context of the model, in tokens: the longest sequence it can read, at least `block_size`. Default 0:
    /// `block_size`; with `init`, that of the model.
    pub context: usize,
    /// Tokens that the model can tell apart. Default 0: those of the tokenizer, filled up as `vocab_multiple` says.
    pub vocab_size: usize,
    /// The vocabulary is filled up to a multiple of this with tokens that never occur and are never drawn. Tensor cores
    /// multiply only by a vocabulary that is a multiple of 4; 64 makes 50,304 of GPT-2's 50,257 tokens. Default 1.
    pub vocab_multiple: usize,
    /// The probability that dropout zeroes a value in training, in [0, 1). Default 0.
    pub dropout: f64,
    /// The same of the embeddings alone, in [0, 1). Default `dropout`.
    pub embd_dropout: f64,
    /// Whether Linear and LayerNorm layers have a bias. Default true.
    pub bias: bool,
    /// Whether the output layer uses the token embedding's weights. Default true.
    pub tie_embeddings: bool,
    /// Heads of keys and values, each read by as many heads of queries; divides `n_head`. Default 0: `n_head`.
    pub n_kv_head: usize,
    /// Elements of a head. Default 0: `n_embd / n_head`.
    pub head_dim: usize,
    /// The width of the feed-forward layer. Default 0: 8/3 of `n_embd`, filled up to a multiple of 64.
    pub intermediate_size: usize,
    /// Whether queries, keys and values have a bias, as in Qwen2. Default false.
    pub qkv_bias: bool,
    /// The most tokens that one sees, itself included. Default 0: all before it.
    pub sliding_window: usize,
    /// Added to the mean square in norms. Default 1e-5.
    pub norm_eps: f64,
    /// The base of the frequencies of rotary positions. Default 10000.
    pub rope_theta: f64,
    /// `none`, `linear` or `llama3`. Default `none`.
    pub rope_scaling: RopeScaling,
    /// What angles are divided by. Default 1.
    pub rope_factor: f64,
    /// Frequencies of fewer periods in `rope_original_block_size` tokens are divided. Default 1.
    pub rope_low_freq_factor: f64,
    /// Frequencies of more periods are not. Default 4.
    pub rope_high_freq_factor: f64,
    /// The context that the angles were made for. Default 8192.
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

/// `[lora]`: adapters of low rank (Hu et al. 2021), which are trained instead of the model's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// r of A (r, inputs) and B (outputs, r). Default 0: none, all weights are trained.
    pub rank: usize,
    /// B A is multiplied by `alpha / rank`. Default 0: twice the rank.
    pub alpha: f64,
    /// The probability that dropout zeroes a value that A is given, in [0, 1). Default 0.
    pub dropout: f64,
    /// The layers that get adapters, by their names in `model.safetensors` or how those end. Default `all-linear`.
    pub targets: Vec<String>,
    /// What the frozen weights of linear layers are stored as, `f32` or `f16`. Default `f32`.
    pub base_dtype: WeightDtype,
}

impl Default for LoraConfig {
    fn default() -> Self {
        let (rank, alpha, dropout) = (0, 0.0, 0.0);
        LoraConfig { rank, alpha, dropout, targets: vec!["all-linear".into()], base_dtype: WeightDtype::F32 }
    }
}
