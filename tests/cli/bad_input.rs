//! What cannot work says why and what to do, exits with 1, and leaves nothing behind that looks like a run.

use crate::sandbox::{Sandbox, TINY, TINY_RUN, has_gpu};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// No Vulkan driver is found.
const NO_ADAPTER: [(&str, &str); 2] = [("VK_DRIVER_FILES", "/nonexistent"), ("VK_ICD_FILENAMES", "/nonexistent")];
/// What is then said, and by a build that knows no GPU.
const REASON: &str = if cfg!(feature = "gpu") { "this machine has no adapter" } else { "built without GPU support" };

/// Trains with this setting, which must fail with a message that holds all of `parts`, and leave no run.
#[track_caller]
fn refuses(setting: &str, parts: &[&str]) {
    let sandbox = Sandbox::new();
    sandbox.train(&["--set", setting]).fails_with(parts);
    assert_eq!(sandbox.runs(), [""; 0]);
}

/// Does this to the corpus; training must then fail with a message that holds all of `parts`, and leave no run.
#[track_caller]
fn refuses_corpus(text: &[u8], parts: &[&str]) {
    let sandbox = Sandbox::new();
    sandbox.write("corpus.txt", text);
    sandbox.train(&[]).fails_with(parts);
    assert_eq!(sandbox.runs(), [""; 0]);
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest() {
    refuses("train.learning_rat=1", &["--set", "train.learning_rat", "did you mean `train.learning_rate`?"]);
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY.replace("n_embd", "n_emb"));
    sandbox.train(&[]).fails_with(&["tiny.toml:8", "model.n_emb", "did you mean `model.n_embd`?"]);
    let variable = [("RUSTYFLOW_TRAIN__LEARNINGRATE", "1")];
    sandbox.run_with(&["train"], &variable).fails_with(&["RUSTYFLOW_TRAIN__LEARNING_RATE"]);
}

#[test]
fn a_value_of_the_wrong_type_says_what_was_expected() {
    refuses("train.max_steps=many", &["--set", "train.max_steps", "an integer", "\"many\""]);
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY.replace("n_embd = 16", "n_embd = \"16\""));
    sandbox.train(&[]).fails_with(&["tiny.toml:8", "model.n_embd", "an integer"]);
}

#[test]
fn a_value_out_of_range_says_the_range() {
    refuses("model.dropout=1", &["model.dropout", "below 1"]);
    refuses("generate.temperature=-1", &["generate.temperature", "at least 0"]);
}

#[test]
fn heads_that_do_not_divide_the_width_suggest_one_that_they_do() {
    refuses("model.n_head=3", &["n_embd is 16 (tiny.toml:8)", "n_head is 3 (--set)", "make n_embd 15 or 18"]);
}

#[test]
fn a_missing_configuration_file_is_named_once() {
    let run =
        Sandbox::new().run(&["train", "--config", "none.toml"]).fails_with(&["cannot read none.toml: No such file"]);
    assert_eq!(run.stderr.matches("No such file").count(), 1, "{}", run.stderr);
}

#[test]
fn an_empty_corpus_is_refused() {
    refuses_corpus(b"", &["corpus.txt", "the file is empty"]);
}

#[test]
fn a_corpus_shorter_than_the_context_says_what_would_fit() {
    refuses_corpus(b"a short text", &["block_size) of 16 needs at least 17", "set model.block_size to at most 10"]);
}

#[test]
fn a_corpus_that_is_not_utf8_says_where() {
    refuses_corpus(
        b"caf\xe9",
        &["corpus.txt", "not UTF-8 at byte 3", "iconv -f LATIN1 -t UTF-8 corpus.txt > corpus.utf8.txt"],
    );
}

#[test]
fn a_missing_corpus_says_how_to_get_it() {
    refuses("data.corpus=wikitext-2", &["data/wikitext-2", "`rustyflow data fetch wikitext-2`"]);
    refuses("data.corpus=tinyshakespeare", &["`rustyflow data fetch tinyshakespeare`"]);
    refuses("data.tokenizer=gpt2", &["data/gpt2", "`rustyflow data fetch gpt2`"]);
    refuses("data.corpus=nowhere.txt", &["nowhere.txt: no such corpus", "`sample`", "a text file"]);
}

#[test]
fn an_unknown_tokenizer_says_which_there_are() {
    refuses("data.tokenizer=chars", &["tokenizer chars", "char, word, bpe, gpt2"]);
}

#[test]
fn a_sample_prompt_that_cannot_be_continued_is_refused_before_training() {
    refuses("generate.prompt=Ä", &["'Ä' (U+00C4", "is not among the"]);
    refuses(
        "generate.prompt=the fox sees the dog",
        &["prompt has 20 tokens", "context holds 16", "shorten the prompt"],
    );
}

#[test]
fn a_folder_that_cannot_be_written_to_is_refused_before_training() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--set", "run.dir=corpus.txt/runs"]).fails_with(&["cannot create corpus.txt/runs: "]);
    assert_eq!(sandbox.names_in("."), ["corpus.txt", "tiny.toml"]);
}

#[test]
fn without_an_adapter_the_gpu_cannot_be_had() {
    let sandbox = Sandbox::new();
    let args = ["train", "--config", "tiny.toml", "--device", "gpu"];
    let run = sandbox.run_with(&args, &NO_ADAPTER);
    run.fails_with(&["no usable GPU: ", REASON, "--device cpu"]);
    assert_eq!(sandbox.runs(), [""; 0]);
}

#[test]
fn without_an_adapter_auto_says_that_it_takes_the_cpu() {
    let sandbox = Sandbox::new();
    let run = sandbox.run_with(&["train", "--config", "tiny.toml"], &NO_ADAPTER).succeeds();
    assert_eq!(run.stderr, "", "{run:?}");
    assert_eq!(run.stdout.matches("no hardware GPU").count(), 1, "{run:?}");
    run.prints(&["device     cpu (", "; auto: no hardware GPU\n"]);
    let run = sandbox.run_with(&["eval"], &NO_ADAPTER).succeeds();
    assert_eq!(run.stderr, "device auto: cpu (no hardware GPU)\n", "{run:?}");
}

#[test]
fn a_fallback_that_is_allowed_warns_and_goes_on() {
    let sandbox = Sandbox::new();
    let args = ["train", "--config", "tiny.toml", "--device", "gpu", "--allow-fallback"];
    let run = sandbox.run_with(&args, &NO_ADAPTER).succeeds();
    assert!(run.stderr.contains("warning: computing on the CPU instead of gpu: no usable GPU"), "{run:?}");
    assert!(sandbox.exists(format!("{TINY_RUN}/last")), "the folder is named after the device that was used");
}

#[test]
fn an_adapter_number_that_does_not_exist_lists_those_that_do() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let run = sandbox.run(&["train", "--config", "tiny.toml", "--device", "gpu:7", "--allow-software-gpu"]);
    run.fails_with(&["there is no gpu:7", "found gpu:0 = ", "`rustyflow devices`"]);
}

#[test]
fn a_device_that_does_not_exist_says_which_there_are() {
    let run = Sandbox::new().run(&["train", "--device", "tpu"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("tpu") && run.stderr.contains("gpu:N"), "{run:?}");
}

#[test]
fn an_adapter_named_in_the_environment_must_exist() {
    let sandbox = Sandbox::new();
    let named = [("RUSTYFLOW_GPU_DEVICE", "Voodoo 2")];
    // Whoever names an adapter wants it, so `auto` does not take another device either.
    for device in ["gpu", "auto"] {
        let args = ["train", "--config", "tiny.toml", "--device", device];
        sandbox.run_with(&args, &named).fails_with(&["RUSTYFLOW_GPU_DEVICE=Voodoo 2 names no adapter", "--device cpu"]);
    }
    assert_eq!(sandbox.runs(), [""; 0]);
    let args = ["train", "--config", "tiny.toml", "--allow-fallback"];
    let run = sandbox.run_with(&args, &named).succeeds();
    assert!(run.stderr.contains("warning: computing on the CPU instead of auto"), "{run:?}");
}

#[test]
fn an_adapter_can_be_named_in_the_environment() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let devices = sandbox.run(&["devices", "--json"]).json();
    let name = devices["adapters"][0]["name"].as_str().unwrap().to_uppercase();
    let args = ["train", "--config", "tiny.toml", "--allow-software-gpu", "--set", "train.max_steps=1"];
    let run = sandbox.run_with(&args, &[("RUSTYFLOW_GPU_DEVICE", &name[..name.len() / 2])]).succeeds();
    run.prints(&["device     gpu:0 "]);
}

#[test]
fn a_software_adapter_must_be_allowed() {
    let sandbox = Sandbox::new();
    let devices = sandbox.run(&["devices", "--json"]).json();
    let adapters = devices["adapters"].as_array().unwrap();
    if adapters.is_empty() || adapters.iter().any(|a| a["kind"] != "software") {
        eprintln!("SKIPPED, the first adapter is no software adapter");
        return;
    }
    for device in ["gpu", "gpu:0"] {
        let run = sandbox.run(&["train", "--config", "tiny.toml", "--device", device]);
        run.fails_with(&["software", "add --allow-software-gpu", "--device cpu"]);
    }
}

#[test]
fn what_is_too_large_for_the_gpu_is_refused_before_memory_is_asked_for() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    // Larger than any adapter binds or a test machine holds. To fill that much would take minutes; a build for tests
    // plans without optimization.
    for (settings, parts) in [
        (["model.n_embd=32000", "model.n_head=1"], ["h.0.attn.c_attn.weight", "use a smaller model.n_embd"]),
        (["model.n_embd=16", "model.block_size=200000000"], ["model.block_size", ""]),
        (["model.n_embd=64", "train.batch_size=4000000"], ["widest activation", "train.batch_size"]),
    ] {
        let started = Instant::now();
        sandbox.train_on_gpu(&settings.map(|s| ["--set", s]).concat()).fails_with(&parts);
        assert!(started.elapsed() < Duration::from_secs(20), "{settings:?}: {:?}", started.elapsed());
    }
    assert_eq!(sandbox.runs(), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_model_beyond_the_memory_is_refused() {
    let started = Instant::now();
    refuses("model.n_embd=200000", &["c_attn.weight", "elements"]);
    refuses("model.n_layer=200000000", &["parameters", "needs at least", "available", "model.n_layer"]);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let sandbox = Sandbox::new();
    // Were it not looked at before each checkpoint, the weights that are no numbers would push out the good ones.
    let settings =
        ["optimizer.kind=sgd", "train.learning_rate=1e6", "train.grad_clip=0", "checkpoint.every=1", "log.every=100"];
    let args = [&settings.map(|s| ["--set", s]).concat()[..], &["--set", "train.eval_every=0"]].concat();
    sandbox.train(&args).fails_with(&[
        "training diverged",
        "train.learning_rate",
        "train.grad_clip",
        "holds the checkpoints from before",
    ]);
    let last = sandbox.read(format!("{TINY_RUN}/last"));
    let bytes =
        std::fs::read(sandbox.path(format!("{TINY_RUN}/checkpoints/{}/model.safetensors", last.trim()))).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, view) in file.tensors() {
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(view.data());
        assert!(values.iter().all(|x| x.is_finite()), "{name} in {last}");
    }
}

#[test]
fn a_validation_loss_that_is_no_number_is_never_the_best() {
    let sandbox = Sandbox::new();
    // No training step is logged between the first and the evaluation.
    let settings = ["optimizer.kind=sgd", "train.learning_rate=1e30", "train.grad_clip=0", "log.every=100"];
    sandbox.train(&settings.map(|s| ["--set", s]).concat()).fails_with(&["validation loss", "training diverged"]);
    assert!(!sandbox.exists(format!("{TINY_RUN}/best")));
}

/// A trained model whose files can be spoilt. It has no manifest, as one from elsewhere, so that only reading it shows.
struct Model {
    sandbox: Sandbox,
    folder: String,
}

impl Model {
    fn new() -> Model {
        let model = Model { sandbox: Sandbox::trained(), folder: format!("{TINY_RUN}/checkpoints/step-000006") };
        std::fs::remove_file(model.sandbox.path(format!("{}/manifest.json", model.folder))).unwrap();
        model
    }

    fn change(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.sandbox.path(format!("{}/{file}", self.folder));
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(path, bytes).unwrap();
    }

    fn change_config(&self, key: &str, value: Value) {
        self.change("config.json", |bytes| {
            let mut config: Value = serde_json::from_slice(bytes).unwrap();
            config[key] = value;
            *bytes = config.to_string().into_bytes();
        });
    }

    #[track_caller]
    fn generate_fails_with(&self, further: &[&str], parts: &[&str]) {
        let args = ["generate", "--device", "cpu", "--model", &self.folder, "-n", "4"];
        let run = self.sandbox.run(&[&args, further].concat()).fails_with(parts);
        assert_eq!(run.stdout, "", "nothing is written before an error");
    }
}

#[test]
fn a_truncated_model_is_called_damaged() {
    let model = Model::new();
    model.change("model.safetensors", |bytes| bytes.truncate(bytes.len() / 2));
    model.generate_fails_with(&[], &["step-000006/model.safetensors: is damaged"]);
    model.change("model.safetensors", |bytes| bytes.truncate(0));
    model.generate_fails_with(&[], &["step-000006/model.safetensors: is damaged"]);
}

#[test]
fn a_model_with_a_damaged_header_is_called_damaged() {
    for at in [0, 7, 8, 20] {
        let model = Model::new();
        model.change("model.safetensors", |bytes| bytes[at] ^= 0x7f);
        model.generate_fails_with(&[], &["step-000006/model.safetensors: "]);
    }
}

#[test]
fn a_model_of_another_shape_than_its_configuration_names_the_tensor() {
    let model = Model::new();
    model.change_config("n_positions", json!(8));
    model.generate_fails_with(&[], &["wpe.weight has shape [16, 16]", "config.json implies (8, 16)"]);
    let model = Model::new();
    model.change_config("n_layer", json!(2));
    model.generate_fails_with(&[], &["model.safetensors", "config.json"]);
}

#[test]
fn another_kind_of_model_is_refused() {
    let model = Model::new();
    model.change_config("model_type", json!("t5"));
    let known = "model_type is \"t5\"; rustyflow reads \"gpt2\", \"llama\", \"qwen2\", \"mistral\", \"qwen3\"";
    model.generate_fails_with(&[], &["config.json", known]);
    let model = Model::new();
    model.change("config.json", |bytes| bytes.truncate(20));
    model.generate_fails_with(&[], &["config.json: is not JSON"]);
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let model = Model::new();
    let sandbox = &model.sandbox;
    sandbox.train(&["--set", "data.tokenizer=bpe", "--set", "data.vocab_size=300", "--set", "run.name=bpe"]).succeeds();
    let other = sandbox.read("runs/bpe/checkpoints/step-000006/tokenizer.json");
    model.change("tokenizer.json", |bytes| *bytes = other.into_bytes());
    model.generate_fails_with(&[], &["tokenizer.json has 300 tokens", "they do not match"]);
}

#[test]
fn a_missing_model_says_what_to_give() {
    let sandbox = Sandbox::new();
    sandbox.run(&["generate"]).fails_with(&["runs", "`rustyflow train`", "--model"]);
    let eval = ["eval", "--text", "corpus.txt", "--device", "cpu"];
    sandbox.run(&[&eval[..], &["--model", "nowhere"]].concat()).fails_with(&["nowhere", "a run's folder"]);
    sandbox.write("empty/note.txt", "");
    sandbox
        .run(&[&eval[..], &["--model", "empty"]].concat())
        .fails_with(&["empty: holds no model", "`rustyflow train`"]);
}

#[test]
fn a_prompt_that_cannot_be_continued_is_refused() {
    let model = Model::new();
    model.generate_fails_with(&["--prompt", "the Ö"], &["'Ö' (U+00D6, at byte 4)", "is not among the"]);
}

#[test]
fn sampling_that_makes_no_sense_is_refused() {
    let model = Model::new();
    model.generate_fails_with(&["--temperature", "-1"], &["temperature is -1; expected 0 or more"]);
    model
        .generate_fails_with(&["--prompt", "the", "--top-p", "2"], &["top-p is 2; expected more than 0 and at most 1"]);
}

#[test]
fn windows_that_make_no_sense_are_refused() {
    let sandbox = Sandbox::trained();
    let eval =
        |further: &[&str]| sandbox.run(&[&["eval", "--device", "cpu", "--text", "corpus.txt"], further].concat());
    eval(&["--stride", "0"]).fails_with(&["--stride is 0; expected 1 to the context, 16"]);
    eval(&["--stride", "17"]).fails_with(&["--stride is 17"]);
    eval(&["--context", "17"]).fails_with(&["--context is 17; the model's is 1 to 16"]);
    eval(&["--context", "0"]).fails_with(&["--context is 0"]);
}

#[test]
fn a_text_that_eval_cannot_read_is_named() {
    let sandbox = Sandbox::trained();
    let eval = |further: &[&str]| sandbox.run(&[&["eval", "--device", "cpu"], further].concat());
    eval(&["--text", "none.txt"]).fails_with(&["cannot read none.txt: No such file"]);
    sandbox.write("latin1.txt", b"caf\xe9");
    eval(&["--text", "latin1.txt"]).fails_with(&["latin1.txt: not UTF-8 at byte 3"]);
    sandbox.write("one.txt", "t");
    eval(&["--text", "one.txt"]).fails_with(&["at least 2"]);
    eval(&["--corpus", "corpus.txt", "--split", "test"]).fails_with(&["corpus has no test split"]);
    eval(&["--corpus", "corpus.txt", "--split", "dev"]).fails_with(&["--split dev", "train, validation or test"]);
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let sandbox = Sandbox::new();
    let run = sandbox.run(&["train", "tiny.toml", "--set", "train.learning_rat=1", "--json"]);
    let line: serde_json::Value = serde_json::from_str(run.stdout.lines().last().expect("a line")).unwrap();
    assert_eq!(line["kind"], "error");
    assert!(line["message"].as_str().unwrap().contains("did you mean `train.learning_rate`"), "{line}");
    run.fails_with(&["did you mean `train.learning_rate`"]);
}
