//! Model families and shapes, and the sizes derived from them.

use super::{FAMILIES, LanguageModel, Past, gguf, hf};
use crate::nn::RopeScaling;
use crate::{Error, Result, Shape, Tensor};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A model family: sizes and construction for any shape. [`FAMILIES`] lists all.
pub trait Family: Sync {
    /// The word for it in a configuration (`model.kind`).
    fn kind(&self) -> &'static str;

    /// Whether its models have [`LlamaConfig`].
    fn is_llama(&self) -> bool;

    /// A model with random weights on the CPU, the same for the same seed.
    ///
    /// # Errors
    /// If the family has no model of this shape, or memory runs out.
    fn build(&self, config: &ModelConfig, seed: u64) -> Result<Box<dyn LanguageModel>>;

    /// Number of trained parameters.
    fn parameter_count(&self, config: &ModelConfig) -> usize;

    /// Number of parameters in the linear layers of its blocks.
    fn block_matrices(&self, config: &ModelConfig) -> usize;

    /// FLOPs per training token, forward and backward.
    fn train_flops_per_token(&self, config: &ModelConfig) -> f64;

    /// Candidates for the largest parameter, one per size that they grow with.
    fn largest_tensors(&self, config: &ModelConfig) -> Vec<LargeTensor>;

    /// Elements per token of the widest activation.
    fn widest_activation(&self, config: &ModelConfig) -> usize;

    /// Number of layers with a KV cache, and its elements per token and layer.
    fn kv_cache(&self, config: &ModelConfig) -> (usize, usize);

    /// How many states its layers carry from token to token, each (L, B, C); none if they have attention instead.
    fn states(&self) -> usize {
        0
    }

    /// How Hugging Face writes such a model.
    fn hf(&self) -> &dyn hf::Mapping;

    /// How llama.cpp has such a model, if it has.
    fn gguf(&self) -> Option<&dyn gguf::Mapping>;
}

/// A parameter that may be too large for a device.
#[derive(Debug, Clone, PartialEq)]
pub struct LargeTensor {
    pub name: &'static str,
    pub elements: u64,
    /// Whether it is bound by rows, as many of them at a time as a device allows.
    pub by_rows: bool,
    /// The remedy in an error: how to make it smaller.
    pub remedy: &'static str,
}

/// A family by its name.
#[derive(Clone, Copy)]
pub struct ModelKind(&'static dyn Family);

impl ModelKind {
    /// GPT-2 (Radford et al. 2019).
    pub const GPT2: ModelKind = ModelKind(&super::gpt2::Gpt2Family);

    /// Llama (Touvron et al. 2023).
    pub const LLAMA: ModelKind = ModelKind(&super::llama::FAMILY);

    /// Every family.
    pub fn all() -> impl Iterator<Item = ModelKind> {
        FAMILIES.iter().map(|family| ModelKind(*family))
    }

    /// Its word in a configuration.
    pub fn as_str(self) -> &'static str {
        self.0.kind()
    }

    /// Whether its models have [`LlamaConfig`].
    pub fn is_llama(self) -> bool {
        self.0.is_llama()
    }

    /// Whether its layers are recurrent, with a state that is carried from batch to batch.
    pub fn is_recurrent(self) -> bool {
        self.0.states() > 0
    }

    pub(super) fn hf(self) -> &'static dyn hf::Mapping {
        self.0.hf()
    }

    pub(super) fn gguf(self) -> Option<&'static dyn gguf::Mapping> {
        self.0.gguf()
    }
}

impl FromStr for ModelKind {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<ModelKind, String> {
        ModelKind::all().find(|kind| kind.as_str() == word).ok_or_else(|| {
            let known: Vec<_> = ModelKind::all().map(ModelKind::as_str).collect();
            format!("expected one of {}, got {word:?}", known.join(", "))
        })
    }
}

impl fmt::Debug for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for ModelKind {
    fn eq(&self, other: &ModelKind) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Serialize for ModelKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The shape of a model, with GPT-2's names. Families ignore sizes that they do not use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    pub kind: ModelKind,
    pub vocab_size: usize,
    /// Context length T, in tokens.
    pub block_size: usize,
    pub n_layer: usize,
    pub n_head: usize,
    /// Width C of the hidden states.
    pub n_embd: usize,
    /// Whether linear layers and layer norms have a bias, as in GPT-2.
    pub bias: bool,
    /// Whether the head shares its weight with the token embedding (Press and Wolf 2017).
    pub tie_embeddings: bool,
    /// Additional sizes of Llama and related families.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub llama: Option<LlamaConfig>,
}

/// Additional sizes of a Llama.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LlamaConfig {
    /// Key/value heads, shared by equal groups of query heads.
    pub n_kv_head: usize,
    /// Head size.
    pub head_dim: usize,
    /// The width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Whether queries, keys and values have a bias, as in Qwen2.
    pub qkv_bias: bool,
    /// Sliding attention window, in tokens, including the query's; `None` for the whole context.
    pub sliding_window: Option<usize>,
    /// Epsilon of RMS norms.
    pub norm_eps: f32,
    /// The base of the frequencies of rotary positions.
    pub rope_theta: f64,
    pub rope_scaling: Option<RopeScaling>,
}

impl ModelConfig {
    /// Checks that all sizes are positive and within the limits of a `config.json`, so that their products cannot
    /// overflow.
    pub(super) fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size, 1 << 24),
            ("block_size", self.block_size, 1 << 24),
            ("n_layer", self.n_layer, 1 << 12),
            ("n_head", self.n_head, 1 << 20),
            ("n_embd", self.n_embd, 1 << 20),
        ];
        match sizes.iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
            Some((name, size, most)) => {
                Err(Error::Invalid(format!("{name} of a model must be from 1 to {most}, got {size}")))
            }
            None => Ok(()),
        }
    }

    /// Number of trained parameters.
    pub fn parameter_count(&self) -> usize {
        self.kind.0.parameter_count(self)
    }

    /// Number of parameters in the linear layers of its blocks.
    pub fn block_matrices(&self) -> usize {
        self.kind.0.block_matrices(self)
    }

    /// Number of weights that only GEMMs read: linear layers, and a head that is not tied to the embedding. Recurrent
    /// layers do not count.
    pub(crate) fn matmul_weights(&self) -> usize {
        let head = if self.tie_embeddings { 0 } else { self.vocab_size * self.n_embd };
        head + if self.is_recurrent() { 0 } else { self.block_matrices() }
    }

    /// The tensor names in `model.safetensors` of the parameter `name` with this shape; several if it is stored in
    /// parts.
    pub fn tensor_names(&self, name: &str, shape: &Shape) -> Vec<String> {
        self.kind.hf().tensors(self, name, shape).into_iter().map(|(name, _)| name).collect()
    }

    /// FLOPs per training token, forward and backward.
    pub fn train_flops_per_token(&self) -> f64 {
        self.kind.0.train_flops_per_token(self)
    }

    /// FLOPs per token that recomputing all blocks adds: a third of the cost without the head.
    pub fn recompute_flops_per_token(&self) -> f64 {
        let head = (6 * self.vocab_size * self.n_embd) as f64;
        (self.train_flops_per_token() - head) / 3.0
    }

    /// FLOPs per token that recomputing attention with its output projection adds.
    pub fn recompute_attention_flops_per_token(&self) -> f64 {
        let projection = 2 * self.n_layer * self.n_head * self.head_size() * self.n_embd;
        self.recompute_flops_per_token() - (2 * self.block_matrices()) as f64 + projection as f64
    }

    /// Candidates for the largest parameter, one per size that they grow with.
    pub fn largest_tensors(&self) -> Vec<LargeTensor> {
        self.kind.0.largest_tensors(self)
    }

    /// Elements per token of the widest activation.
    pub fn widest_activation(&self) -> usize {
        self.kind.0.widest_activation(self)
    }

    /// Whether its layers are recurrent, with a state that is carried from batch to batch.
    pub fn is_recurrent(&self) -> bool {
        self.kind.is_recurrent()
    }

    /// Number of recurrent states; 0 for models with attention.
    pub(crate) fn states(&self) -> usize {
        self.kind.0.states()
    }

    /// Context length in tokens; unlimited for recurrent models.
    pub fn context(&self) -> usize {
        if self.is_recurrent() { usize::MAX } else { self.block_size }
    }

    /// Elements of an attention head.
    pub fn head_size(&self) -> usize {
        self.llama.as_ref().map_or(self.n_embd / self.n_head.max(1), |llama| llama.head_dim)
    }

    /// The additional sizes of a Llama.
    ///
    /// # Panics
    /// If the model is not a Llama.
    pub(super) fn llama(&self) -> &LlamaConfig {
        self.llama.as_ref().expect("a Llama's configuration has its part")
    }

    /// Number of layers with a KV cache, and its elements per token and layer.
    pub(crate) fn kv_cache(&self) -> (usize, usize) {
        self.kind.0.kv_cache(self)
    }

    /// The position of the first of ids (B, T): after those of the past.
    ///
    /// # Errors
    /// If all together do not fit the context.
    pub(super) fn first_position(&self, ids: &Tensor, past: &Past) -> Result<usize> {
        let first = past.tokens();
        let (end, context) = (first + ids.shape().last_dim(), self.block_size);
        if end > context {
            return Err(Error::Invalid(format!(
                "{end} tokens do not fit the model's context of {context} (block_size)"
            )));
        }
        Ok(first)
    }
}

/// Creates a model of this shape on the CPU, with random weights determined by the seed.
///
/// # Errors
/// If the family has no model of this shape, or memory runs out.
pub fn build(config: &ModelConfig, seed: u64) -> Result<Box<dyn LanguageModel>> {
    config.kind.0.build(config, seed)
}
