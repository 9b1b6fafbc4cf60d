//! `rustyflow eval`, `generate` and `devices`: what a trained model is used with.

use crate::sandbox::{Sandbox, TINY, TINY_RUN, corpus};
use serde_json::Value;
use std::io::Read;
use std::process::Stdio;

fn eval(sandbox: &Sandbox, further: &[&str]) -> Value {
    let args = ["eval", "--device", "cpu", "--threads", "1", "--model", TINY_RUN, "--json"];
    sandbox.run(&[&args, further].concat()).succeeds().json()
}

fn generate(sandbox: &Sandbox, further: &[&str]) -> String {
    let args = ["generate", "--device", "cpu", "--threads", "1", "--model", TINY_RUN, "-n", "30"];
    sandbox.run(&[&args, further].concat()).succeeds().stdout
}

/// A model that has learnt something, and its validation text in a file of its own.
fn with_validation_text() -> Sandbox {
    let sandbox = Sandbox::new();
    let text = corpus();
    let (train, validation) = text.split_at(text.len() * 4 / 5);
    sandbox.write("corpus/train.txt", train);
    sandbox.write("corpus/valid.txt", validation);
    sandbox.write("tiny.toml", TINY.replace("corpus.txt", "corpus"));
    let settings = ["train.max_steps=400", "train.learning_rate=0.01", "train.eval_every=0"];
    sandbox.train(&settings.map(|s| ["--set", s]).concat()).succeeds();
    sandbox
}

#[test]
fn eval_measures_what_training_measured() {
    let sandbox = with_validation_text();
    let result = eval(&sandbox, &["--text", "corpus/valid.txt"]);
    let metrics = sandbox.metrics(TINY_RUN);
    let trained = metrics.iter().rfind(|line| line["kind"] == "eval").expect("a last evaluation");
    for key in ["loss", "perplexity", "bits_per_byte"] {
        let (now, then) = (result[key].as_f64().unwrap(), trained[key].as_f64().unwrap());
        // Batches of another size add the same numbers in another order.
        assert!((now - then).abs() < 1e-5 * then, "{key}: {now}, in training {then}");
    }
    for key in ["tokens", "context", "stride"] {
        assert_eq!(result[key], trained[key], "{key}");
    }
    let of_split = eval(&sandbox, &["--corpus", "corpus", "--split", "validation"]);
    assert_eq!(of_split["loss"], result["loss"]);
    // Without either, what it was trained on.
    let of_run = eval(&sandbox, &[]);
    assert_eq!((&of_run["loss"], &of_run["text"]), (&result["loss"], &"corpus validation".into()));
}

#[test]
fn a_checkpoint_is_of_the_averages_that_were_evaluated() {
    let sandbox = Sandbox::new();
    // A learning rate at which the weights move far in each of the last steps.
    let settings = ["train.max_steps=40", "train.learning_rate=0.05", "train.schedule=constant", "train.eval_every=20"];
    let settings = settings.map(|s| ["--set", s]).concat();
    for (name, decay) in [("plain", "0.0"), ("averaged", "0.99")] {
        let decay = format!("train.ema_decay={decay}");
        sandbox.train(&[&settings[..], &["--name", name, "--set", &decay]].concat()).succeeds();
    }
    let losses = |name: &str| sandbox.losses(&format!("runs/{name}"), "eval");
    let (plain, averaged) = (losses("plain"), losses("averaged"));
    assert_eq!((plain.len(), averaged.len()), (2, 2));
    assert_ne!(plain, averaged);
    // Training is the same: only what is evaluated is not.
    assert_eq!(sandbox.losses("runs/plain", "train"), sandbox.losses("runs/averaged", "train"));
    let args = ["eval", "--device", "cpu", "--threads", "1", "--json", "--model", "runs/averaged/last"];
    let of_checkpoint = sandbox.run(&args).succeeds().json()["loss"].as_f64().unwrap();
    assert!((of_checkpoint - averaged[1]).abs() < 1e-5 * averaged[1], "{of_checkpoint}, in training {averaged:?}");
}

#[test]
fn eval_asks_for_a_text_where_the_checkpoint_names_none() {
    let sandbox = Sandbox::trained();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let bytes = std::fs::read(sandbox.path(format!("{TINY_RUN}/checkpoints/step-000006/{name}"))).unwrap();
        sandbox.write(format!("imported/{name}"), bytes);
    }
    let imported = ["eval", "--device", "cpu", "--model", "imported"];
    sandbox.run(&imported).fails_with(&["imported", "does not say what the model was trained on", "--text PATH"]);
    sandbox.run(&[&imported[..], &["--text", "corpus.txt"]].concat()).succeeds();
}

#[test]
fn bits_per_byte_is_the_loss_over_the_bytes() {
    let sandbox = with_validation_text();
    let result = eval(&sandbox, &["--text", "corpus/valid.txt"]);
    let bytes = sandbox.read("corpus/valid.txt").len() as f64;
    let number = |key: &str| result[key].as_f64().unwrap();
    let expected = number("loss") * number("tokens") / std::f64::consts::LN_2 / bytes;
    assert!((number("bits_per_byte") - expected).abs() < 1e-9, "{result}, expected {expected}");
}

#[test]
fn bits_per_byte_are_of_the_bytes_that_can_be_decoded() {
    let sandbox = with_validation_text();
    sandbox.train(&["--set", "data.tokenizer=word", "--name", "words"]).succeeds();
    sandbox.write("odd.txt", "the   duck\tsaid\n   nothing-like-it\n");
    let args = ["eval", "--device", "cpu", "--threads", "1", "--model", "runs/words", "--text", "odd.txt"];
    let run = sandbox.run(&args).succeeds();
    run.prints(&["of what can be decoded: its tokens do not keep the whole text, and "]);
    let result = sandbox.run(&[&args[..], &["--json"]].concat()).succeeds().json();
    let number = |key: &str| result[key].as_f64().unwrap();
    assert!(result["lossless"] == false && number("unknown_share") > 0.1, "{result}");
    // Line breaks, and words that the corpus has.
    let known = ["the", "duck", "said"].into_iter().filter(|word| corpus().split_whitespace().any(|w| w == *word));
    let decodable = known.collect::<Vec<_>>().join(" ").len() + 2;
    let expected = number("loss") * number("tokens") / std::f64::consts::LN_2 / decodable as f64;
    assert!((number("bits_per_byte") - expected).abs() < 1e-9, "{result}, expected {expected}");
}

#[test]
fn a_smaller_stride_gives_more_context_and_a_lower_loss() {
    let sandbox = with_validation_text();
    let whole = eval(&sandbox, &["--text", "corpus/valid.txt"]);
    let overlapping = eval(&sandbox, &["--text", "corpus/valid.txt", "--stride", "4"]);
    assert_eq!(whole["tokens"], overlapping["tokens"]);
    assert_eq!((&whole["stride"], &overlapping["stride"]), (&16.into(), &4.into()));
    assert!(overlapping["loss"].as_f64() < whole["loss"].as_f64(), "{overlapping} {whole}");
    let shorter = eval(&sandbox, &["--text", "corpus/valid.txt", "--context", "2"]);
    assert_eq!(shorter["context"], 2);
    assert!(shorter["loss"].as_f64() > whole["loss"].as_f64(), "{shorter} {whole}");
}

#[test]
fn eval_prints_its_results_with_units() {
    let sandbox = Sandbox::trained();
    let run = sandbox.run(&["eval", "--device", "cpu", "--text", "corpus.txt"]).succeeds();
    run.prints(&[
        "tokens predicted",
        "nats per token",
        "perplexity ",
        "bits per byte ",
        "context 16, stride 16",
        TINY_RUN,
    ]);
}

#[test]
fn generate_continues_the_prompt() {
    let sandbox = Sandbox::trained();
    let text = generate(&sandbox, &["--prompt", "the owl"]);
    assert!(text.starts_with("the owl"), "{text}");
    // One character a token, and the end of the line.
    assert_eq!(text.chars().count(), "the owl".len() + 30 + 1, "{text}");
}

#[test]
fn generate_takes_the_newest_run() {
    let sandbox = Sandbox::trained();
    sandbox.train(&["--set", "run.name=newest"]).succeeds();
    let run = sandbox.run(&["generate", "-v", "--device", "cpu", "-n", "1"]).succeeds();
    assert!(run.stderr.contains("runs/newest"), "{run:?}");
}

#[test]
fn the_same_seed_writes_the_same_text() {
    let sandbox = Sandbox::trained();
    let text = generate(&sandbox, &["--seed", "1"]);
    assert_eq!(generate(&sandbox, &["--seed", "1"]), text);
    assert_ne!(generate(&sandbox, &["--seed", "2"]), text);
}

#[test]
fn without_temperature_the_seed_does_not_matter() {
    let sandbox = Sandbox::trained();
    let text = generate(&sandbox, &["--temperature", "0", "--seed", "1"]);
    assert_eq!(generate(&sandbox, &["--temperature", "0", "--seed", "2"]), text);
    assert_eq!(generate(&sandbox, &["--top-k", "1", "--seed", "3"]), text);
}

#[test]
fn generate_prints_json_for_machines() {
    let sandbox = Sandbox::trained();
    let json: Value = serde_json::from_str(&generate(&sandbox, &["--json", "--prompt", "the"])).unwrap();
    assert_eq!((&json["prompt_tokens"], &json["new_tokens"], &json["stopped"]), (&3.into(), &30.into(), &false.into()));
    assert!(json["seconds"].as_f64().unwrap() > 0.0);
    assert!(json["text"].as_str().unwrap().starts_with("the"));
    assert!(json["tokens_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn generate_goes_on_beyond_the_context() {
    let sandbox = Sandbox::trained();
    let text = generate(&sandbox, &["--prompt", "the fox sees the"]);
    assert_eq!(text.chars().count(), 16 + 30 + 1, "{text}");
}

/// Its activations over the whole context would be more than a tensor holds.
#[test]
fn a_model_with_a_context_too_long_for_one_pass_generates() {
    let sandbox = Sandbox::new();
    // Of narrow heads, whose table of rotations is small.
    let sizes = ["model.kind=llama", "model.n_layer=1", "model.n_embd=256", "model.n_head=64", "train.max_steps=1"];
    sandbox.train(&[&["--name", "long"][..], &sizes.map(|s| ["--set", s]).concat()].concat()).succeeds();
    // As a model from elsewhere: nothing says how long the rows of its training were.
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let from = sandbox.path(format!("runs/long/checkpoints/step-000001/{file}"));
        sandbox.write(format!("model/{file}"), std::fs::read(from).unwrap());
    }
    let mut config: Value = serde_json::from_str(&sandbox.read("model/config.json")).unwrap();
    config["max_position_embeddings"] = (1 << 22).into();
    sandbox.write("model/config.json", config.to_string());
    let args = ["generate", "--device", "cpu", "--model", "model", "--prompt", "the", "-n", "30"];
    assert_eq!(sandbox.run(&args).succeeds().stdout.chars().count(), 3 + 30 + 1);
}

#[test]
fn generate_streams_and_ends_when_nobody_reads_on() {
    let sandbox = Sandbox::trained();
    // Hours of text: only what is written at once can be read.
    let args = ["generate", "--device", "cpu", "--threads", "1", "--prompt", "the", "-n", "4000000000"];
    let mut child = sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 20];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap(); // and closes it
    assert!(start.starts_with(b"the"));
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), vec![]));
}

#[test]
fn a_run_generates_on_the_cpu_what_it_generates_on_the_gpu() {
    if !crate::sandbox::has_gpu() {
        return;
    }
    let sandbox = Sandbox::trained();
    let on_cpu = generate(&sandbox, &["--temperature", "0"]);
    let args = ["generate", "--device", "gpu", "--allow-software-gpu", "--model", TINY_RUN, "-n", "30", "-t", "0"];
    assert_eq!(sandbox.run(&args).succeeds().stdout, on_cpu);
}

#[test]
fn devices_lists_the_processor_and_every_adapter() {
    let sandbox = Sandbox::new();
    let json = sandbox.run(&["devices", "--json"]).succeeds().json();
    assert!(json["cpu"]["physical_cores"].as_u64().unwrap() >= 1);
    let text = sandbox.run(&["devices"]).succeeds().stdout;
    assert!(text.contains("physical cores"), "{text}");
    for adapter in json["adapters"].as_array().expect("a list") {
        let line = format!("gpu:{}    {}", adapter["index"], adapter["name"].as_str().unwrap());
        assert!(text.contains(&line), "{line} is missing in {text}");
    }
}

#[test]
fn data_list_names_what_can_be_fetched() {
    let run = Sandbox::new().run(&["data", "list"]).succeeds();
    run.prints(&["wikitext-2", "tinyshakespeare", "gpt2"]);
}

#[test]
fn a_vocabulary_is_filled_up_and_the_rest_never_drawn() {
    let sandbox = Sandbox::new();
    let settings = ["--set", "model.vocab_multiple=256", "--set", "generate.temperature=100"];
    sandbox.train(&settings).succeeds();
    let last = sandbox.read(format!("{TINY_RUN}/last"));
    let config = sandbox.read(format!("{TINY_RUN}/checkpoints/{}/config.json", last.trim()));
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["vocab_size"], 256);
    // Nearly every draw would be one of the tokens without a text.
    generate(&sandbox, &["--temperature", "100"]);
}

#[test]
fn a_prompt_comes_from_a_flag_a_file_or_standard_input() {
    let sandbox = Sandbox::trained();
    let prompt = corpus()[..9].to_string();
    sandbox.write("prompt.txt", &prompt);
    let expected = generate(&sandbox, &["--prompt", &prompt]);
    assert_eq!(generate(&sandbox, &["--prompt-file", "prompt.txt"]), expected);
    let args = ["generate", "--device", "cpu", "--threads", "1", "--model", TINY_RUN, "-n", "30", "-p", "-"];
    let mut child = sandbox.command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), prompt.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), expected));
    sandbox.write("prompt.txt", [0xff, 0xff]);
    let args = ["generate", "--device", "cpu", "--model", TINY_RUN, "--prompt-file", "prompt.txt"];
    sandbox.run(&args).fails_with(&["prompt.txt: not UTF-8 at byte 0"]);
}

#[test]
fn of_a_prompt_that_is_too_long_the_model_sees_the_end() {
    let sandbox = Sandbox::new();
    // Enough to heed the prompt.
    sandbox.train(&["--max-steps", "300", "--learning-rate", "0.01", "--set", "train.eval_every=0"]).succeeds();
    // The context is of 16 characters.
    let long: String = corpus().chars().take(40).collect();
    let args = ["generate", "--device", "cpu", "--threads", "1", "--model", TINY_RUN, "-n", "30"];
    let run = sandbox.run(&[&args[..], &["-p", &long]].concat()).succeeds();
    assert!(run.stderr.contains("note: the prompt has 40 tokens, the model's context 16"), "{run:?}");
    let end: String = long.chars().skip(24).collect();
    let continued = |prompt: &str| generate(&sandbox, &["-p", prompt])[prompt.len()..].to_string();
    assert_eq!(run.stdout[long.len()..], continued(&end), "{run:?}");
    assert_ne!(continued(&long[..16]), continued(&end), "what it sees makes a difference");
}

#[test]
fn drivers_keep_their_own_noise() {
    let sandbox = Sandbox::new();
    let output = sandbox.command(&["devices"]).env_remove("XDG_RUNTIME_DIR").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("XDG_RUNTIME_DIR"), "{errors}");
}
