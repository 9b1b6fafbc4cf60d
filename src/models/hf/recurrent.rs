//! Recurrent language models, which transformers lacks: a `config.json` with the arguments of `RNNModel` in
//! pytorch/examples' `word_language_model`, and its tensor names, so that `load_state_dict` takes them.

use super::{Mapping, computes, from_json, size};
use crate::Shape;
use crate::models::ModelConfig;
use serde::{Deserialize, Serialize};

/// `config.json`.
#[derive(Serialize, Deserialize)]
struct ConfigJson {
    #[serde(skip_deserializing)]
    architectures: [&'static str; 1],
    #[serde(skip_deserializing)]
    model_type: &'static str,
    rnn_type: Option<String>,
    vocab_size: Option<u64>,
    n_embd: Option<u64>,
    n_layer: Option<u64>,
    /// Tokens of a row in training.
    bptt: Option<u64>,
    bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    #[serde(skip_deserializing)]
    torch_dtype: &'static str,
    #[serde(skip_deserializing)]
    rustyflow_version: &'static str,
}

pub struct RecurrentMapping {
    /// `model.kind`, and its `model_type`.
    pub kind: &'static [&'static str; 1],
    /// PyTorch's name.
    pub rnn_type: &'static str,
}

impl Mapping for RecurrentMapping {
    fn model_types(&self) -> &'static [&'static str] {
        self.kind
    }

    fn prefix(&self) -> &'static str {
        ""
    }

    fn write_config(&self, config: &ModelConfig) -> String {
        let json = ConfigJson {
            architectures: ["RNNModel"],
            model_type: self.kind[0],
            rnn_type: Some(self.rnn_type.into()),
            vocab_size: Some(config.vocab_size as u64),
            n_embd: Some(config.n_embd as u64),
            n_layer: Some(config.n_layer as u64),
            bptt: Some(config.block_size as u64),
            bias: Some(config.bias),
            tie_word_embeddings: Some(config.tie_embeddings),
            torch_dtype: "float32",
            rustyflow_version: env!("CARGO_PKG_VERSION"),
        };
        serde_json::to_string_pretty(&json).expect("plain values serialize")
    }

    fn read_config(&self, text: &str) -> Result<ModelConfig, String> {
        let json: ConfigJson = from_json(text)?;
        computes("rnn_type", &json.rnn_type, &self.rnn_type.to_string())?;
        Ok(ModelConfig {
            kind: self.kind[0].parse()?,
            vocab_size: size("vocab_size", json.vocab_size, 1 << 24)?,
            block_size: size("bptt", json.bptt, 1 << 24)?,
            n_layer: size("n_layer", json.n_layer, 1 << 12)?,
            n_head: 1,
            n_embd: size("n_embd", json.n_embd, 1 << 20)?,
            bias: json.bias.unwrap_or(true),
            tie_embeddings: json.tie_word_embeddings.unwrap_or(true),
            llama: None,
        })
    }

    fn tensors(&self, _: &ModelConfig, name: &str, shape: &Shape) -> Vec<(String, Shape)> {
        vec![(name.to_string(), shape.clone())]
    }

    fn zeros_beside(&self, _: &ModelConfig, _: &str, _: &Shape) -> Option<(String, usize)> {
        None
    }

    fn embedding_and_head(&self) -> [&'static str; 2] {
        ["encoder.weight", "decoder.weight"]
    }

    fn positions(&self) -> Option<&'static str> {
        None
    }

    /// A copy of the embedding.
    fn ignores(&self, config: &ModelConfig, name: &str) -> bool {
        config.tie_embeddings && name == "decoder.weight"
    }
}
