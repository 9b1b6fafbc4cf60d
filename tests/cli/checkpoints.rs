//! Checkpoints are Hugging Face's GPT-2: names, shapes and configuration.

use crate::sandbox::{Sandbox, TINY_RUN};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;

struct Checkpoint {
    config: Value,
    shapes: BTreeMap<String, Vec<usize>>,
    bytes: Vec<u8>,
}

impl Checkpoint {
    /// Of a run with this setting.
    fn of(setting: &str) -> Checkpoint {
        let sandbox = Sandbox::new();
        sandbox.train(&["--set", setting]).succeeds();
        let folder = sandbox.path(format!("{TINY_RUN}/checkpoints/step-000006"));
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert!(file.tensors().iter().all(|(_, view)| view.dtype() == Dtype::F32));
        let shapes = file.tensors().into_iter().map(|(name, view)| (name, view.shape().to_vec())).collect();
        Checkpoint { config, shapes, bytes }
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        bytemuck::pod_collect_to_vec(file.tensor(name).unwrap().data())
    }
}

/// What `GPT2LMHeadModel` has with one layer of width 16, a context of 16, and `v` tokens.
fn gpt2_shapes(v: usize) -> BTreeMap<String, Vec<usize>> {
    let shapes: [(&str, Vec<usize>); 16] = [
        ("wte.weight", vec![v, 16]),
        ("wpe.weight", vec![16, 16]),
        ("h.0.ln_1.weight", vec![16]),
        ("h.0.ln_1.bias", vec![16]),
        ("h.0.attn.c_attn.weight", vec![16, 48]),
        ("h.0.attn.c_attn.bias", vec![48]),
        ("h.0.attn.c_proj.weight", vec![16, 16]),
        ("h.0.attn.c_proj.bias", vec![16]),
        ("h.0.ln_2.weight", vec![16]),
        ("h.0.ln_2.bias", vec![16]),
        ("h.0.mlp.c_fc.weight", vec![16, 64]),
        ("h.0.mlp.c_fc.bias", vec![64]),
        ("h.0.mlp.c_proj.weight", vec![64, 16]),
        ("h.0.mlp.c_proj.bias", vec![16]),
        ("ln_f.weight", vec![16]),
        ("ln_f.bias", vec![16]),
    ];
    shapes.into_iter().map(|(name, shape)| (format!("transformer.{name}"), shape)).collect()
}

#[test]
fn a_checkpoint_has_the_names_and_shapes_of_gpt2() {
    let checkpoint = Checkpoint::of("model.bias=true");
    let config = &checkpoint.config;
    let vocab_size = config["vocab_size"].as_u64().unwrap() as usize;
    assert_eq!(checkpoint.shapes, gpt2_shapes(vocab_size));
    assert_eq!(config["model_type"], "gpt2");
    assert_eq!(config["architectures"][0], "GPT2LMHeadModel");
    for (key, value) in [("n_positions", 16), ("n_embd", 16), ("n_layer", 1), ("n_head", 2)] {
        assert_eq!(config[key], value, "{key}");
    }
    assert_eq!(config["tie_word_embeddings"], true);
    assert!(checkpoint.values("transformer.ln_f.weight").iter().any(|&x| x != 1.0), "it has learnt");
}

#[test]
fn missing_biases_are_written_as_zeros() {
    let checkpoint = Checkpoint::of("model.bias=false");
    let vocab_size = checkpoint.config["vocab_size"].as_u64().unwrap() as usize;
    assert_eq!(checkpoint.shapes, gpt2_shapes(vocab_size));
    for name in checkpoint.shapes.keys().filter(|name| name.ends_with(".bias")) {
        assert!(checkpoint.values(name).iter().all(|&x| x == 0.0), "{name}");
    }
}

#[test]
fn a_head_of_its_own_is_written_as_lm_head() {
    let checkpoint = Checkpoint::of("model.tie_embeddings=false");
    assert_eq!(checkpoint.config["tie_word_embeddings"], false);
    assert_eq!(checkpoint.shapes["lm_head.weight"], checkpoint.shapes["transformer.wte.weight"]);
    assert_ne!(checkpoint.values("lm_head.weight"), checkpoint.values("transformer.wte.weight"));
}
