//! Test helpers: small models, and a minimal family that is used in tests only.

use super::{Family, LanguageModel, LargeTensor, LlamaConfig, ModelConfig, ModelKind, Past, Recomputed, gguf, hf};
use crate::nn::{Dropout, Embedding, LayerNorm, Linear, Module, Parameter, ResidualStream, init_keys, join};
use crate::{DType, Result, Shape, Tensor};
use serde::{Deserialize, Serialize};

/// A GPT-2 of one layer.
pub fn small(vocab_size: usize, block_size: usize, n_head: usize, n_embd: usize) -> ModelConfig {
    let (kind, n_layer, bias, tie_embeddings) = (ModelKind::GPT2, 1, true, true);
    ModelConfig { kind, vocab_size, block_size, n_layer, n_head, n_embd, bias, tie_embeddings, llama: None }
}

/// A model of two layers of this kind, "llama" or "qwen3".
pub fn small_llama(kind: &str) -> ModelConfig {
    let llama = LlamaConfig {
        n_kv_head: 2,
        head_dim: 6,
        intermediate_size: 20,
        qkv_bias: false,
        sliding_window: None,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
    };
    let kind = kind.parse().expect("a family");
    ModelConfig { kind, n_layer: 2, bias: false, llama: Some(llama), ..small(50, 12, 4, 16) }
}

/// Predicts the next token from the last alone (Bengio et al. 2003, with a context of one): no attention, and so no
/// cache.
struct MlpModel {
    config: ModelConfig,
    embed: Embedding,
    norm: LayerNorm,
    hidden: Linear,
    norm_f: LayerNorm,
    head: Embedding,
}

impl MlpModel {
    fn new(config: &ModelConfig, seed: u64) -> Result<MlpModel> {
        let (v, c, mut keys) = (config.vocab_size, config.n_embd, init_keys(seed));
        Ok(MlpModel {
            embed: Embedding::new(v, c, 0.02, keys())?,
            norm: LayerNorm::new(c, false)?,
            hidden: Linear::new(c, c, true, 0.02, keys())?,
            norm_f: LayerNorm::new(c, true)?,
            head: Embedding::new(v, c, 0.02, keys())?,
            config: config.clone(),
        })
    }
}

impl LanguageModel for MlpModel {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn hidden(&self, ids: &Tensor, past: Past, dropout: &Dropout) -> Result<Tensor> {
        self.config.first_position(ids, &past)?;
        let mut stream = ResidualStream::new(self.embed.forward(ids)?, self.head().dtype()); // (B, T, C)
        let x = stream.norm(&self.norm)?;
        stream.add(self.hidden.forward(&x, dropout)?.to_dtype(DType::F32)?.gelu()?, dropout)?;
        stream.norm(&self.norm_f)
    }

    /// It has no blocks.
    fn set_recompute(&mut self, _: Recomputed) {}

    fn token_embeddings(&self) -> &Tensor {
        &self.embed.weight.value
    }

    fn head(&self) -> &Tensor {
        self.head.weight.operand()
    }
}

impl Module for MlpModel {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.embed.visit_parameters(&join(prefix, "embed"), visit);
        self.norm.visit_parameters(&join(prefix, "norm"), visit);
        self.hidden.visit_parameters(&join(prefix, "hidden"), visit);
        self.norm_f.visit_parameters(&join(prefix, "norm_f"), visit);
        self.head.visit_parameters(&join(prefix, "head"), visit);
    }
}

pub struct MlpFamily;

impl Family for MlpFamily {
    fn kind(&self) -> &'static str {
        "mlp"
    }

    fn is_llama(&self) -> bool {
        false
    }

    fn build(&self, config: &ModelConfig, seed: u64) -> Result<Box<dyn LanguageModel>> {
        Ok(Box::new(MlpModel::new(config, seed)?))
    }

    fn parameter_count(&self, m: &ModelConfig) -> usize {
        (2 * m.vocab_size + m.n_embd + 4) * m.n_embd
    }

    fn block_matrices(&self, m: &ModelConfig) -> usize {
        m.n_embd * m.n_embd
    }

    fn train_flops_per_token(&self, m: &ModelConfig) -> f64 {
        (6 * (m.vocab_size + m.n_embd) * m.n_embd) as f64
    }

    fn largest_tensors(&self, m: &ModelConfig) -> Vec<LargeTensor> {
        let elements = (m.vocab_size * m.n_embd) as u64;
        vec![LargeTensor { name: "embed.weight", elements, by_rows: true, remedy: "use a smaller vocabulary" }]
    }

    fn widest_activation(&self, m: &ModelConfig) -> usize {
        m.n_embd
    }

    fn kv_cache(&self, _: &ModelConfig) -> (usize, usize) {
        (0, 0)
    }

    fn hf(&self) -> &dyn hf::Mapping {
        &MlpMapping
    }

    fn gguf(&self) -> Option<&dyn gguf::Mapping> {
        None
    }
}

#[derive(Serialize, Deserialize)]
struct ConfigJson {
    #[serde(skip_deserializing)]
    model_type: &'static str,
    vocab_size: usize,
    width: usize,
    context: usize,
    // What it has no use for, and yet the run's configuration says.
    unused: (usize, usize, bool, bool),
}

struct MlpMapping;

impl hf::Mapping for MlpMapping {
    fn model_types(&self) -> &'static [&'static str] {
        &["mlp-for-tests"]
    }

    fn prefix(&self) -> &'static str {
        "mlp/"
    }

    fn write_config(&self, m: &ModelConfig) -> String {
        let json = ConfigJson {
            model_type: self.model_types()[0],
            vocab_size: m.vocab_size,
            width: m.n_embd,
            context: m.block_size,
            unused: (m.n_layer, m.n_head, m.bias, m.tie_embeddings),
        };
        serde_json::to_string(&json).unwrap()
    }

    fn read_config(&self, text: &str) -> std::result::Result<ModelConfig, String> {
        let json: ConfigJson = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let (n_layer, n_head, bias, tie_embeddings) = json.unused;
        let kind = "mlp".parse()?;
        let (vocab_size, block_size, n_embd) = (json.vocab_size, json.context, json.width);
        Ok(ModelConfig { kind, vocab_size, block_size, n_layer, n_head, n_embd, bias, tie_embeddings, llama: None })
    }

    fn tensors(&self, _: &ModelConfig, name: &str, shape: &Shape) -> Vec<(String, Shape)> {
        vec![(format!("mlp/{name}"), shape.clone())]
    }

    fn zeros_beside(&self, _: &ModelConfig, _: &str, _: &Shape) -> Option<(String, usize)> {
        None
    }

    fn embedding_and_head(&self) -> [&'static str; 2] {
        ["embedding", "head"]
    }

    fn positions(&self) -> Option<&'static str> {
        None
    }

    fn ignores(&self, _: &ModelConfig, _: &str) -> bool {
        false
    }
}
