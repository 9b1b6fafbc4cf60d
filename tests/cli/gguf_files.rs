//! GGUF files in place of a model's folder: evaluated, generated from, exported, trained on, with adapters beside them.

use crate::sandbox::{Run, Sandbox, TINY};
use std::fs;

const ON_CPU: [&str; 2] = ["--device", "cpu"];

/// A trained model with a tokenizer of bytes, in `runs/own`, and as f32 in `a.gguf`.
fn exported(kind: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let bpe = TINY.replace("\"char\"", "\"bpe\"\nvocab_size = 300");
    sandbox.write("tiny.toml", bpe.replace("n_embd = 16", &format!("n_embd = 32\nkind = \"{kind}\"")));
    sandbox.train(&["--name", "own"]).succeeds();
    let export = ["export", "runs/own", "-o", "a.gguf", "--format", "gguf", "--dtype", "f32"];
    sandbox.run(&[&export[..], &ON_CPU].concat()).succeeds();
    sandbox
}

fn loss(sandbox: &Sandbox, model: &str) -> f64 {
    let eval = ["eval", "--text", "corpus.txt", "--json", "--model", model];
    sandbox.run(&[&eval[..], &ON_CPU].concat()).succeeds().json()["loss"].as_f64().unwrap()
}

fn text(sandbox: &Sandbox, model: &str) -> String {
    let generate = ["generate", "--prompt", "the fox", "--temperature", "0", "--max-tokens", "12", "--model", model];
    sandbox.run(&[&generate[..], &ON_CPU].concat()).succeeds().stdout
}

fn train(sandbox: &Sandbox, further: &[&str]) -> Run {
    let args = ["train", "--init", "a.gguf", "--corpus", "corpus.txt", "--batch-size", "2", "--max-steps", "3"];
    sandbox.run(&[&args[..], &ON_CPU, further].concat())
}

#[test]
fn a_file_is_the_model_that_it_was_made_of() {
    for kind in ["gpt2", "llama", "qwen3"] {
        let sandbox = exported(kind);
        let own = loss(&sandbox, "runs/own");
        assert!((loss(&sandbox, "a.gguf") - own).abs() < 1e-6, "{kind}");
        assert_eq!(text(&sandbox, "a.gguf"), text(&sandbox, "runs/own"), "{kind}");
        let export = ["export", "a.gguf", "-o", "there", "--format", "safetensors", "--text", "corpus.txt"];
        sandbox.run(&[&export[..], &ON_CPU].concat()).succeeds();
        assert!((loss(&sandbox, "there") - own).abs() < 1e-6, "{kind}");
        let export =
            ["export", "a.gguf", "-o", "b.gguf", "--format", "gguf", "--dtype", "q8_0", "--text", "corpus.txt"];
        sandbox.run(&[&export[..], &ON_CPU].concat()).succeeds();
        assert!((loss(&sandbox, "b.gguf") - own).abs() < 0.01, "{kind}");
    }
}

#[test]
fn a_file_is_trained_further_whole_and_by_adapters() {
    let sandbox = exported("llama");
    let before = (loss(&sandbox, "a.gguf"), fs::read(sandbox.path("a.gguf")).unwrap());
    train(&sandbox, &["--name", "whole", "--learning-rate", "0.01"]).succeeds();
    assert!(loss(&sandbox, "runs/whole") < before.0);
    let lora = ["--name", "lora", "--set", "lora.rank=2", "--learning-rate", "0.05"];
    train(&sandbox, &lora).succeeds().prints(&["the model is frozen"]);
    let adapted = loss(&sandbox, "runs/lora");
    assert!(adapted < before.0);
    sandbox.run(&["train", "--resume", "runs/lora", "--max-steps", "5", "--device", "cpu"]).succeeds();
    sandbox.run(&[&["merge", "runs/lora", "--output", "merged"][..], &ON_CPU].concat()).succeeds();
    assert!((loss(&sandbox, "merged") - loss(&sandbox, "runs/lora")).abs() < 1e-5);
    assert!(fs::read(sandbox.path("a.gguf")).unwrap() == before.1);
    // Another file of the same name is another model.
    let export = ["export", "runs/whole", "-o", "a.gguf", "--format", "gguf", "--dtype", "f32", "--force"];
    sandbox.run(&[&export[..], &ON_CPU].concat()).succeeds();
    assert!((loss(&sandbox, "a.gguf") - loss(&sandbox, "runs/whole")).abs() < 1e-6);
}

#[test]
fn a_file_that_is_no_model_is_refused_by_its_name() {
    let sandbox = exported("gpt2");
    let bytes = fs::read(sandbox.path("a.gguf")).unwrap();
    sandbox.write("short.gguf", &bytes[..bytes.len() - 4096]);
    sandbox.write("not.gguf", "a text");
    let generate = |model: &str| sandbox.run(&["generate", "--prompt", "a", "--model", model]);
    generate("short.gguf").fails_with(&["short.gguf", "lies outside of the file"]);
    generate("not.gguf").fails_with(&["not.gguf", "does not start with GGUF's magic number"]);
    let wrong = String::from_utf8_lossy(&bytes).matches("gpt2").count();
    assert!(wrong > 3);
    let mut other = bytes.clone();
    let name = b"general.architecture";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len() + 4 + 8;
    assert_eq!(&other[at..at + 4], b"gpt2");
    other[at..at + 4].copy_from_slice(b"bert");
    sandbox.write("bert.gguf", other);
    generate("bert.gguf").fails_with(&["bert.gguf", "general.architecture is \"bert\"; gpt2, llama, qwen2 and qwen3"]);
    generate("nowhere.gguf").fails_with(&["nowhere.gguf"]);
}
