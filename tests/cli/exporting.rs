//! `export`: what it writes, what it says of it, and what it refuses.

use crate::sandbox::{Run, Sandbox, TINY_RUN};
use rustyflow::models::gguf::{GgufFile, Value};
use std::fs;

fn export(sandbox: &Sandbox, further: &[&str]) -> Run {
    sandbox.run(&[&["export", TINY_RUN, "--device", "cpu", "--threads", "1"], further].concat())
}

fn loss(sandbox: &Sandbox, model: &str) -> f64 {
    let eval = ["eval", "--text", "corpus.txt", "--device", "cpu", "--json", "--model", model];
    sandbox.run(&eval).succeeds().json()["loss"].as_f64().unwrap()
}

#[test]
fn gguf_of_every_type_is_written_and_compared_with_the_model() {
    let sandbox = Sandbox::trained();
    let differences = ["f32", "bf16", "f16", "q8_0", "q4_0"].map(|dtype| {
        let args = ["-o", "a.gguf", "--format", "gguf", "--dtype", dtype, "--force", "--json"];
        let json = export(&sandbox, &args).succeeds().json();
        assert_eq!(json["text"], "corpus.txt validation");
        assert_eq!(json["files"], serde_json::json!(["a.gguf"]));
        let (before, after) = (json["loss_before"].as_f64().unwrap(), json["loss_after"].as_f64().unwrap());
        assert!((before - after).abs() < 0.05 * before, "{json}");
        // Rows of 16 numbers are no blocks, those of 64 are.
        let unquantized = json["unquantized"].as_array().unwrap();
        assert_eq!(unquantized.is_empty(), !dtype.starts_with('q'), "{json}");
        json["largest_difference"].as_f64().unwrap()
    });
    let [f32, bf16, f16, q8_0, q4_0] = differences;
    assert!(f32 < 1e-5 && f16 > f32 && bf16 > f16 && q8_0 > f16 && q4_0 > q8_0, "{differences:?}");
    assert_eq!(sandbox.names_in("."), ["a.gguf", "corpus.txt", "runs", "tiny.toml", "training_log.txt"]);
}

#[test]
fn gguf_holds_the_tokenizer_and_an_end_that_is_never_drawn() {
    let sandbox = Sandbox::trained();
    let told = export(&sandbox, &["-o", "a.gguf", "--format", "gguf"]).succeeds();
    told.prints(&["written        a.gguf", "added          <|endoftext|>", "loss           ", "before, "]);
    let file = GgufFile::open(&sandbox.path("a.gguf")).unwrap();
    let value = |key: &str| file.value(&format!("tokenizer.ggml.{key}")).unwrap_or_else(|| panic!("{key}")).clone();
    let Value::Texts(tokens) = value("tokens") else { panic!("texts") };
    assert_eq!(tokens[..2], ["\n", "▁"]);
    let end = tokens.len() as u32 - 1;
    assert_eq!((&*tokens[end as usize], value("eos_token_id")), ("<|endoftext|>", Value::U32(end)));
    assert_eq!(value("suppress_tokens"), Value::I32s(vec![end as i32]));
    assert_eq!((value("model"), value("add_bos_token")), (Value::Text("llama".into()), Value::Bool(false)));
    assert_eq!(file.spec("token_embd.weight").unwrap().1, [tokens.len(), 16]);
}

#[test]
fn a_chat_template_goes_along() {
    let sandbox = Sandbox::trained();
    let checkpoint = format!("{TINY_RUN}/checkpoints/step-000006");
    sandbox.write(format!("{checkpoint}/chat_template.jinja"), "{{ messages }}");
    let run = export(&sandbox, &["-o", "a.gguf", "--format", "gguf"]).succeeds();
    // It writes the messages as a list, and no special token after an answer.
    assert_eq!(run.stderr.matches("warning: the chat template ends an answer with \"'}]\"").count(), 1, "{run:?}");
    let file = GgufFile::open(&sandbox.path("a.gguf")).unwrap();
    assert_eq!(file.value("tokenizer.chat_template"), Some(&Value::Text("{{ messages }}".into())));
    export(&sandbox, &["-o", "there", "--format", "safetensors"]).succeeds();
    assert_eq!(sandbox.read("there/chat_template.jinja"), "{{ messages }}");
}

#[test]
fn safetensors_in_parts_are_the_model_and_nothing_of_training_goes_along() {
    let sandbox = Sandbox::trained();
    let args = ["-o", "there", "--format", "safetensors", "--max-shard-size", "5KB"];
    export(&sandbox, &args).succeeds().prints(&["there/model.safetensors.index.json", "logits         differ by 0"]);
    let names = sandbox.names_in("there");
    assert!(names.contains(&"model-00001-of-00004.safetensors".to_string()), "{names:?}");
    assert!(names.contains(&"tokenizer_config.json".to_string()), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("optimizer") || name == "model.safetensors"), "{names:?}");
    assert_eq!(loss(&sandbox, "there"), loss(&sandbox, TINY_RUN));
    // Replaced as a whole: no part of the former is left.
    let args = ["-o", "there", "--format", "safetensors", "--dtype", "f16"];
    export(&sandbox, &args).fails_with(&["there exists", "--force"]);
    export(&sandbox, &[&args[..], &["--force"]].concat()).succeeds();
    let names = sandbox.names_in("there");
    assert!(names.contains(&"model.safetensors".to_string()) && !names.iter().any(|name| name.contains("-of-")));
    assert!(sandbox.read("there/config.json").contains("\"torch_dtype\": \"float16\""));
    assert!((loss(&sandbox, "there") - loss(&sandbox, TINY_RUN)).abs() < 1e-3);
    // An export can be exported.
    let args = ["export", "there", "-o", "b.gguf", "--format", "gguf", "--text", "corpus.txt", "--device", "cpu"];
    sandbox.run(&args).succeeds().prints(&["compared on    corpus.txt"]);
}

#[test]
fn what_cannot_be_exported_is_refused_with_the_reason_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--tokenizer", "word"]).succeeds();
    let refused = |args: &[&str], told: &[&str]| {
        export(&sandbox, args).fails_with(told);
        assert_eq!(sandbox.names_in("."), ["corpus.txt", "runs", "tiny.toml", "training_log.txt"]);
    };
    refused(&["-o", "a.gguf", "--format", "gguf"], &["llama.cpp has no such tokenizer: it cuts text into words"]);
    refused(&["-o", "no/a.gguf", "--format", "gguf"], &["no/a.gguf cannot be written: there is no folder no"]);
    refused(&["-o", "a", "--format", "safetensors", "--dtype", "q4_0"], &["--dtype q8_0 and q4_0 are types of"]);
    refused(&["-o", "a", "--format", "gguf", "--max-shard-size", "1KB"], &["--max-shard-size is of"]);
    refused(&["-o", "a", "--format", "gguf", "--text", "nowhere.txt"], &["nowhere.txt"]);
    refused(&["-o", "runs", "--format", "safetensors", "--force"], &["runs holds", "which --force would remove"]);
    // What is there stays where an export fails.
    fs::write(sandbox.path("old.gguf"), "old").unwrap();
    export(&sandbox, &["-o", "old.gguf", "--format", "gguf", "--force"]).fails_with(&["no such tokenizer"]);
    assert_eq!(sandbox.read("old.gguf"), "old");
}

#[test]
fn a_window_that_llama_cpp_does_not_compute_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--set", "model.kind=llama", "--set", "model.sliding_window=4"]).succeeds();
    export(&sandbox, &["-o", "a.gguf", "--format", "gguf"]).fails_with(&[
        "llama.cpp computes no such llama",
        "a window of 4 tokens",
        "--format safetensors can hold it",
    ]);
    export(&sandbox, &["-o", "there", "--format", "safetensors"]).succeeds();
    assert_eq!(loss(&sandbox, "there"), loss(&sandbox, TINY_RUN));
}
