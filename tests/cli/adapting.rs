//! `[lora]`: adapters beside a model that stays as it is.

use crate::sandbox::{Sandbox, TINY_RUN, has_gpu};
use std::fs;

/// A run of adapters beside the model in [`TINY_RUN`], with all that has a state.
const LORA: [&str; 16] = [
    "--init",
    TINY_RUN,
    "--corpus",
    "corpus.txt",
    "--name",
    "lora",
    "--batch-size",
    "4",
    "--set",
    "lora.rank=2",
    "--set",
    "lora.dropout=0.1",
    "--set",
    "train.eval_every=4",
    "--learning-rate",
    "0.02",
];
const EIGHT_STEPS: [&str; 4] = ["--max-steps", "8", "--device", "cpu"];

fn train(sandbox: &Sandbox, further: &[&str]) -> crate::sandbox::Run {
    sandbox.run(&[&["train"], &LORA[..], further].concat())
}

fn loss(sandbox: &Sandbox, model: &str) -> f64 {
    let eval = ["eval", "--model", model, "--corpus", "corpus.txt", "--device", "cpu", "--json"];
    sandbox.run(&eval).succeeds().json()["loss"].as_f64().unwrap()
}

#[test]
fn a_run_trains_adapters_alone_and_is_a_model_like_any_other() {
    let sandbox = Sandbox::trained();
    let before = fs::read(sandbox.path(format!("{TINY_RUN}/checkpoints/step-000006/model.safetensors"))).unwrap();
    train(&sandbox, &EIGHT_STEPS)
        .succeeds()
        .prints(&["adapters", "of rank 2 (all-linear); the model is frozen, in f32"]);
    let folder = "runs/lora/checkpoints/step-000008";
    assert!(
        sandbox.exists(format!("{folder}/adapter_config.json")) && sandbox.exists(format!("{folder}/tokenizer.json"))
    );
    assert!(!sandbox.exists(format!("{folder}/model.safetensors")) && !sandbox.exists(format!("{folder}/config.json")));
    // 2 x (16 + 48) + 2 x (16 + 16) + 2 x (16 + 64) x 2 numbers of four bytes, and a header.
    let bytes = fs::metadata(sandbox.path(format!("{folder}/adapter_model.safetensors"))).unwrap().len();
    assert!((2048..4096).contains(&bytes), "{bytes}");
    let after = fs::read(sandbox.path(format!("{TINY_RUN}/checkpoints/step-000006/model.safetensors"))).unwrap();
    assert!(before == after);
    let evaluated = sandbox.metrics("runs/lora");
    let last = evaluated.iter().rfind(|line| line["kind"] == "eval").unwrap()["loss"].as_f64().unwrap();
    let best = loss(&sandbox, "runs/lora");
    assert!(best < loss(&sandbox, TINY_RUN), "{best}");
    assert!((loss(&sandbox, folder) - last).abs() < 1e-5, "{last}");
    sandbox.run(&["generate", "--model", "runs/lora", "--prompt", "the", "--device", "cpu"]).succeeds();
    let merge = ["merge", "runs/lora", "--output", "merged", "--device", "cpu"];
    sandbox.run(&merge).succeeds().prints(&["merged/model.safetensors"]);
    assert_eq!(loss(&sandbox, "merged"), best);
}

/// The model of the sandbox has its embedding as its head.
#[test]
fn whole_modules_are_trained_beside_adapters_and_kept_with_them() {
    let sandbox = Sandbox::trained();
    let modules = ["--set", "lora.modules_to_save=wte,ln_f"];
    let shown = ["of rank 2 (all-linear) and all of wte, ln_f; the rest is frozen, in f32"];
    train(&sandbox, &[&EIGHT_STEPS[..], &modules].concat()).succeeds().prints(&shown);
    let evaluated = sandbox.metrics("runs/lora");
    let last = evaluated.iter().rfind(|line| line["kind"] == "eval").unwrap()["loss"].as_f64().unwrap();
    assert!((loss(&sandbox, "runs/lora/checkpoints/step-000008") - last).abs() < 1e-5, "{last}");
    sandbox.run(&["merge", "runs/lora", "--output", "merged", "--device", "cpu"]).succeeds();
    assert_eq!(loss(&sandbox, "merged"), loss(&sandbox, "runs/lora"));
    let config = sandbox.read("runs/lora/checkpoints/step-000008/adapter_config.json");
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["modules_to_save"], serde_json::json!(["transformer.wte", "lm_head", "transformer.ln_f"]));
}

#[test]
fn a_resumed_run_of_adapters_is_the_same_to_the_bit() {
    let sandbox = Sandbox::trained();
    let verify = |further: &[&str]| {
        let args = [&["verify-resume", "--steps", "3", "--device", "cpu"], &LORA[..4], &LORA[8..], further].concat();
        sandbox.run(&args).succeeds().prints(&["identical to the bit"]);
    };
    verify(&["--set", "model.dropout=0.1", "--set", "train.recompute=block"]);
    let modules = ["--set", "lora.targets=c_attn", "--set", "lora.modules_to_save=wte,c_fc,ln_f"];
    verify(&[&["--set", "lora.base_dtype=f16", "--set", "train.ema_decay=0.9"], &modules[..]].concat());
    verify(&["--set", "lora.dora=true", "--set", "lora.rslora=true", "--set", "lora.dropout=0"]);
    if has_gpu() {
        let on_gpu = ["--device", "gpu", "--allow-software-gpu"];
        let args = [&["verify-resume", "--steps", "3"], &on_gpu[..], &LORA[..4], &LORA[8..]].concat();
        sandbox.run(&args).succeeds().prints(&["identical to the bit"]);
        let dora = ["--set", "lora.dora=true", "--set", "lora.dropout=0"];
        for further in [&modules[..], &dora] {
            let mixed = ["--precision", "mixed", "--set", "lora.base_dtype=f16"];
            sandbox.run(&[&args[..], &mixed, further].concat()).succeeds();
        }
    }
}

/// Beside a quantized model, and what it says then; of a run that was trained so, the text with each type.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_quantized_base_trains_resumes_and_generates() {
    let sandbox = Sandbox::new();
    let wide = ["--set", "model.n_embd=64", "--set", "model.n_head=2", "--name", "wide", "--max-steps", "20"];
    sandbox.train(&wide).succeeds();
    let lora = ["--init", "runs/wide", "--corpus", "corpus.txt", "--set", "lora.rank=2", "--set", "train.eval_every=4"];
    let devices = [vec!["--device", "cpu"], vec!["--device", "gpu", "--allow-software-gpu", "--precision", "mixed"]];
    for device in devices.into_iter().take(1 + usize::from(has_gpu())) {
        let mut losses = vec![];
        for base in ["f32", "q8_0", "q4_0", "nf4"] {
            let (dtype, name) = (format!("lora.base_dtype={base}"), format!("{base}-{}", device[1]));
            let own = ["--set", &dtype, "--name", &name, "--max-steps", "8", "--batch-size", "4"];
            let run = sandbox.run(&[&["train"], &lora[..], &device, &own].concat()).succeeds();
            run.prints(&[&format!("the model is frozen, in {base}")]);
            let evaluated = sandbox.metrics(&format!("runs/{name}"));
            let last = evaluated.iter().rfind(|line| line["kind"] == "eval").unwrap()["loss"].as_f64().unwrap();
            losses.push(last);
        }
        // 8 bits change little, 4 bits more.
        assert!((losses[1] - losses[0]).abs() < 0.02 && losses[1] != losses[0], "{losses:?}");
        assert!(losses[2..].iter().all(|loss| (loss - losses[0]).abs() < 0.2), "{losses:?}");
        let verify = ["verify-resume", "--steps", "3", "--set", "lora.base_dtype=nf4"];
        sandbox.run(&[&verify, &lora[..], &device].concat()).succeeds().prints(&["identical to the bit"]);
        for dtype in ["q8_0", "q4_0", "nf4"] {
            let generate = ["generate", "--model", "runs/wide", "--prompt", "the", "-n", "4", "--dtype", dtype];
            sandbox.run(&[&generate[..], &device[..device.len().min(3)]].concat()).succeeds();
        }
    }
    let narrow = sandbox.train(&["--name", "narrow", "--max-steps", "2"]);
    narrow.succeeds();
    let refused =
        ["--init", "runs/narrow", "--set", "lora.rank=2", "--set", "lora.base_dtype=q8_0", "--corpus", "corpus.txt"];
    let told = ["lora.base_dtype is q8_0", "wte.weight has 16 inputs", "32 weights of a block", "use f16 or f32"];
    sandbox.run(&[&["train", "--device", "cpu"], &refused[..]].concat()).fails_with(&told);
}

#[test]
fn what_cannot_be_adapted_says_what_to_do() {
    let sandbox = Sandbox::trained();
    let refused = |setting: &str, told: &[&str]| {
        train(&sandbox, &[&EIGHT_STEPS[..], &["--set", setting]].concat()).fails_with(told);
        assert!(!sandbox.exists("runs/lora"), "{setting}");
    };
    refused("lora.targets=q_proj", &["lora.targets", "\"q_proj\"", "c_attn, c_proj, c_fc, or all-linear"]);
    refused(
        "lora.modules_to_save=lm_head",
        &["lora.modules_to_save", "tied to the embedding (name wte to train both)"],
    );
    refused("lora.modules_to_save=c_fc", &["mlp.c_fc, which has an adapter", "expected wte, wpe, ln_1, ln_2, ln_f"]);
    refused("optimizer.kind=muon", &["optimizer.kind", "muon", "use adamw"]);
    refused("lora.rank=5000", &["lora.rank", "at most 1024"]);
    let without = ["train", "--device", "cpu", "--set"];
    sandbox.run(&[&without[..], &["lora.rank=4"]].concat()).fails_with(&["lora.rank", "model.init", "--init"]);
    sandbox.run(&[&without[..], &["lora.targets=c_attn"]].concat()).fails_with(&["lora.targets", "set lora.rank"]);
    let modules = [&without[..], &["lora.modules_to_save=wte"]].concat();
    sandbox.run(&modules).fails_with(&["lora.modules_to_save", "set lora.rank"]);
    train(&sandbox, &EIGHT_STEPS).succeeds();
    // The adapters of adapters are nobody's.
    let again = ["train", "--init", "runs/lora", "--corpus", "corpus.txt", "--name", "again", "--set", "lora.rank=2"];
    sandbox.run(&[&again[..], &EIGHT_STEPS].concat()).fails_with(&["is an adapter itself", "rustyflow merge"]);
    // A run that goes on needs the model that it began with.
    let resume = ["train", "--resume", "runs/lora", "--max-steps", "10"];
    sandbox.run(&[&resume[..], &["--set", "lora.rank=3"]].concat()).fails_with(&["lora.rank", "must not change"]);
    let modules = [&resume[..], &["--set", "lora.modules_to_save=wte"]].concat();
    sandbox.run(&modules).fails_with(&["lora.modules_to_save", "must not change"]);
    fs::rename(sandbox.path(TINY_RUN), sandbox.path("elsewhere")).unwrap();
    sandbox.run(&resume).fails_with(&[TINY_RUN]);
    let eval = ["eval", "--model", "runs/lora", "--corpus", "corpus.txt", "--device", "cpu"];
    sandbox.run(&eval).fails_with(&["adapter_config.json", "base_model_name_or_path", TINY_RUN]);
}

#[test]
fn the_model_of_an_adapter_may_be_one_that_was_fetched() {
    let sandbox = Sandbox::trained();
    train(&sandbox, &EIGHT_STEPS).succeeds();
    let expected = loss(&sandbox, "runs/lora/checkpoints/step-000008");
    // As PEFT writes it: the adapter alone, for a model by its name on the hub.
    let last = sandbox.path("runs/lora/checkpoints/step-000008");
    fs::create_dir(sandbox.path("adapter")).unwrap();
    fs::copy(last.join("adapter_model.safetensors"), sandbox.path("adapter/adapter_model.safetensors")).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(last.join("adapter_config.json")).unwrap()).unwrap();
    let base = config["base_model_name_or_path"].take();
    config["base_model_name_or_path"] = "org/small".into();
    sandbox.write("adapter/adapter_config.json", config.to_string());
    let eval = ["eval", "--model", "adapter", "--corpus", "corpus.txt", "--device", "cpu", "--json"];
    let cache = sandbox.path("hub");
    let variables = [("HF_HUB_CACHE", cache.to_str().unwrap())];
    let told = ["adapter_config.json", "\"org/small\"", "rustyflow fetch org/small"];
    sandbox.run_with(&eval, &variables).fails_with(&told);
    let model = cache.join("models--org--small");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    fs::create_dir_all(model.join("snapshots")).unwrap();
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::write(model.join("refs/main"), commit).unwrap();
    fs::rename(base.as_str().unwrap(), model.join("snapshots").join(commit)).unwrap();
    let found = sandbox.run_with(&eval, &variables).succeeds().json();
    assert_eq!(found["loss"].as_f64().unwrap(), expected);
}
