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

/// A byte in the middle of a file is changed.
fn damage(sandbox: &Sandbox, file: &str) {
    let mut bytes = std::fs::read(sandbox.path(file)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    sandbox.write(file, bytes);
}

#[test]
fn the_manifest_has_size_and_hash_of_every_other_file() {
    let sandbox = Sandbox::trained();
    let folder = format!("{TINY_RUN}/checkpoints/step-000006");
    let manifest: Value = serde_json::from_str(&sandbox.read(format!("{folder}/manifest.json"))).unwrap();
    let files = manifest["files"].as_object().unwrap();
    let mut names: Vec<&str> = files.keys().map(String::as_str).collect();
    names.push("manifest.json");
    names.sort_unstable();
    assert_eq!(sandbox.names_in(&folder), names);
    for (name, entry) in files {
        let length = std::fs::metadata(sandbox.path(format!("{folder}/{name}"))).unwrap().len();
        assert_eq!(entry["size_bytes"], length, "{name}");
        assert_eq!(entry["blake3"].as_str().unwrap().len(), 64, "{name}");
    }
}

#[test]
fn one_flipped_bit_is_found_and_the_file_named() {
    let sandbox = Sandbox::trained();
    let folder = format!("{TINY_RUN}/checkpoints/step-000006");
    damage(&sandbox, &format!("{folder}/model.safetensors"));
    let generate = sandbox.run(&["generate", "--device", "cpu", "--model", &folder]);
    generate.fails_with(&["step-000006/model.safetensors: is damaged", "BLAKE3"]);
    // Training's own state takes no part in generating.
    let sandbox = Sandbox::trained();
    damage(&sandbox, &format!("{folder}/optimizer.safetensors"));
    sandbox.run(&["generate", "--device", "cpu", "--model", &folder, "-n", "2"]).succeeds();
    // The pointers in a run's folder mean what they name.
    let last = format!("{TINY_RUN}/last");
    sandbox.run(&["generate", "--device", "cpu", "--model", &last, "-n", "2"]).succeeds();
    sandbox.write(&last, "step-000007\n");
    let run = sandbox.run(&["generate", "--device", "cpu", "--model", &last]);
    run.fails_with(&["last: names a checkpoint that does not exist", "the run's folder"]);
}

#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before_and_that_is_said() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--set", "checkpoint.every=3"]).succeeds();
    sandbox.write(format!("{TINY_RUN}/best"), "step-000006\n");
    damage(&sandbox, &format!("{TINY_RUN}/checkpoints/step-000006/model.safetensors"));
    let run = sandbox.run(&["generate", "--device", "cpu", "--model", TINY_RUN, "-n", "2"]).succeeds();
    assert!(run.stderr.contains("step-000006/model.safetensors: is damaged"), "{run:?}");
    assert!(run.stderr.contains(&format!("using {TINY_RUN}/checkpoints/step-000003")), "{run:?}");
    damage(&sandbox, &format!("{TINY_RUN}/checkpoints/step-000003/tokenizer.json"));
    let run = sandbox.run(&["generate", "--device", "cpu", "--model", TINY_RUN]);
    run.fails_with(&["step-000006/model.safetensors: is damaged"]);
}

#[test]
fn the_moments_are_those_of_the_optimizer_and_the_model() {
    for (optimizer, moments) in [("adamw", &["exp_avg", "exp_avg_sq"][..]), ("sgd", &["momentum_buffer"])] {
        let sandbox = Sandbox::new();
        sandbox.train(&["--set", &format!("optimizer.kind={optimizer}")]).succeeds();
        let folder = format!("{TINY_RUN}/checkpoints/step-000006");
        let read = |name: &str| std::fs::read(sandbox.path(format!("{folder}/{name}"))).unwrap();
        let (model, state) = (read("model.safetensors"), read("optimizer.safetensors"));
        let (model, state) = (SafeTensors::deserialize(&model).unwrap(), SafeTensors::deserialize(&state).unwrap());
        assert_eq!(state.len(), moments.len() * model.len(), "{optimizer}");
        for (name, parameter) in model.tensors() {
            for moment in moments {
                let view = state.tensor(&format!("{moment}.{}", name.trim_start_matches("transformer."))).unwrap();
                assert_eq!(view.shape(), parameter.shape(), "{name}");
                assert!(view.data().iter().any(|&byte| byte != 0), "{moment} of {name}");
            }
        }
    }
}

#[test]
fn a_checkpoint_has_what_transformers_needs_of_tokenizer_and_sampling() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--set", "generate.temperature=0.7", "--set", "generate.top_k=40"]).succeeds();
    let read = |name: &str| -> Value {
        serde_json::from_str(&sandbox.read(format!("{TINY_RUN}/checkpoints/step-000006/{name}"))).unwrap()
    };
    assert_eq!(read("tokenizer_config.json")["tokenizer_class"], "PreTrainedTokenizerFast");
    assert_eq!(read("tokenizer_config.json")["model_max_length"], read("config.json")["n_positions"]);
    assert_eq!(read("special_tokens_map.json"), serde_json::json!({}));
    let generation = read("generation_config.json");
    assert_eq!((&generation["temperature"], &generation["top_k"]), (&0.7.into(), &40.into()));
    assert_eq!(generation["do_sample"], true);
    let files = &read("manifest.json")["files"];
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"] {
        assert!(files.get(name).is_some(), "{name} is not in {files}");
    }
    let greedy = Sandbox::new();
    greedy.train(&["--set", "generate.temperature=0"]).succeeds();
    let text = greedy.read(format!("{TINY_RUN}/checkpoints/step-000006/generation_config.json"));
    assert!(text.contains("\"do_sample\": false") && !text.contains("temperature"), "{text}");
}
