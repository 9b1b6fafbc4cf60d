//! `train.objective`: which of two answers is better, or which answers are wanted.

use crate::sandbox::{Sandbox, TINY, has_gpu, json_lines};
use serde_json::{Value, json};

/// Questions after which both answers are as likely at first: the model that is to prefer the first letter.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let letter = |i: usize| (b'a' + (i % 4) as u8) as char;
    let write = |name: &str, rows: Vec<Value>| {
        sandbox.write(name, rows.iter().map(|row| format!("{row}\n")).collect::<String>());
    };
    let prompt = |i: usize| format!("after {} ", letter(i));
    let answer = |good: bool, i: usize| format!("{}{}", if good { "yes " } else { "no " }, letter(i + 1));
    let sft = |i: usize| json!({"prompt": prompt(i), "completion": answer(i.is_multiple_of(2), i / 2)});
    write("sft.jsonl", (0..64).map(sft).collect());
    let pair = |i: usize| json!({"prompt": prompt(i), "chosen": answer(true, i), "rejected": answer(false, i)});
    write("pairs.jsonl", (0..40).map(pair).collect());
    let labelled = |i: usize| {
        let good = i.is_multiple_of(2);
        json!({"prompt": prompt(i), "completion": answer(good, i / 2), "label": good})
    };
    write("labels.jsonl", (0..40).map(labelled).collect());
    sandbox.write("tiny.toml", TINY.replace("block_size = 16", "block_size = 64"));
    sandbox.train(&["--corpus", "sft.jsonl", "--name", "sft", "--max-steps", "60"]).succeeds();
    sandbox
}

/// A run on the model in `runs/sft`: its lines of `metrics.jsonl`.
fn prefer(sandbox: &Sandbox, name: &str, objective: &str, further: &[&str]) -> Vec<Value> {
    let corpus = if objective == "kto" { "labels.jsonl" } else { "pairs.jsonl" };
    let args = ["train", "--init", "runs/sft", "--corpus", corpus, "--objective", objective, "--name", name];
    let fast = ["--set", "train.warmup_steps=1", "--set", "log.every=1"];
    let defaults = [["--batch-size", "4"], ["--max-steps", "40"], ["--device", "cpu"]];
    let defaults = defaults.iter().filter(|[flag, _]| !further.contains(flag)).flatten().copied();
    let defaults: Vec<&str> = defaults.collect();
    sandbox.run(&[&args[..], &fast, &defaults, further].concat()).succeeds();
    sandbox.metrics(&format!("runs/{name}"))
}

fn last<'a>(lines: &'a [Value], kind: &str) -> &'a Value {
    lines.iter().rfind(|line| line["kind"] == kind).unwrap()
}

#[test]
fn a_model_learns_which_answer_is_better() {
    let sandbox = sandbox();
    for objective in ["dpo", "ipo", "orpo", "simpo"] {
        let lines = prefer(&sandbox, objective, objective, &["--learning-rate", "0.01"]);
        let (first, eval) = (&lines[0], last(&lines, "eval"));
        assert_eq!(eval["reward_accuracy"], 1.0, "{objective}: {eval}");
        assert!(eval["reward_margin"].as_f64().unwrap() > 0.01, "{objective}: {eval}");
        assert!(eval.get("perplexity").is_none(), "{objective}: {eval}");
        assert!(eval["loss"].as_f64() < first["loss"].as_f64(), "{objective}: {first} {eval}");
        if objective == "dpo" {
            // The model is its own reference at first.
            assert!((first["loss"].as_f64().unwrap() - 2f64.ln()).abs() < 1e-5, "{first}");
            assert!(first["reward_margin"].as_f64().unwrap().abs() < 1e-5, "{first}");
        }
    }
    sandbox.run(&["runs", "show", "runs/dpo"]).succeeds().prints(&["accuracy 100.0%, margin"]);
    let lines = prefer(&sandbox, "kto", "kto", &["--learning-rate", "0.01"]);
    let eval = last(&lines, "eval");
    assert!(eval["reward_margin"].as_f64().unwrap() > 0.1 && eval.get("reward_accuracy").is_none(), "{eval}");
    let generate = ["generate", "--model", "orpo", "--prompt", "after b ", "--device", "cpu", "--temperature", "0"];
    sandbox.run(&generate).succeeds().prints(&["after b yes"]);
}

#[test]
fn adapters_learn_it_as_well() {
    let sandbox = sandbox();
    let lora = ["--learning-rate", "0.03", "--set", "lora.rank=4"];
    let lines = prefer(&sandbox, "lora", "dpo", &lora);
    assert!((lines[0]["loss"].as_f64().unwrap() - 2f64.ln()).abs() < 1e-6, "{}", lines[0]);
    assert_eq!(last(&lines, "eval")["reward_accuracy"], 1.0);
    // Beside modules that are trained in full, the reference is a copy.
    let modules = ["--set", "lora.modules_to_save=wte,ln_f", "--set", "lora.base_dtype=f16"];
    let in_full = prefer(&sandbox, "in-full", "dpo", &[&lora[..], &modules].concat());
    assert!((in_full[0]["loss"].as_f64().unwrap() - 2f64.ln()).abs() < 1e-6, "{}", in_full[0]);
    assert_eq!(last(&in_full, "eval")["reward_accuracy"], 1.0);
    if has_gpu() {
        let gpu = ["--device", "gpu", "--allow-software-gpu"];
        let on_gpu = prefer(&sandbox, "gpu", "dpo", &[&lora[..], &gpu].concat());
        for (a, b) in lines.iter().zip(&on_gpu).take(5) {
            let [a, b] = [a, b].map(|line| line["loss"].as_f64().unwrap());
            assert!((a - b).abs() < 1e-4 * a.abs(), "{a} {b}");
        }
        let [adapters, none] = [&["--set", "lora.rank=4"][..], &[]];
        let in_full = [adapters, &modules].concat();
        for (name, objective, lora) in [
            ("mixed", "dpo", adapters),
            ("copy", "dpo", none),
            ("mixed-kto", "kto", adapters),
            ("mixed-in-full", "dpo", &in_full),
        ] {
            let mixed = [&gpu[..], &["--precision", "mixed", "--learning-rate", "0.01"], lora].concat();
            let lines = prefer(&sandbox, name, objective, &mixed);
            assert!(last(&lines, "eval")["reward_margin"].as_f64().unwrap() > 0.05, "{name}: {}", last(&lines, "eval"));
            // The reference computes as the model does.
            let first = lines[0]["reward_chosen"].as_f64().unwrap().abs();
            assert!(first < 1e-3, "{name}: {}", lines[0]);
        }
    }
}

/// Of several micro-batches, of rows with several pairs, and of two devices the steps are the same.
#[test]
fn the_loss_depends_neither_on_accumulation_nor_on_packing_nor_on_devices() {
    let sandbox = sandbox();
    let losses = |name: &str, further: &[&str]| {
        let all = [&["--learning-rate", "0.003", "--max-steps", "3", "--no-pack"], further].concat();
        let steps = prefer(&sandbox, name, "dpo", &all).into_iter().filter(|line| line["kind"] == "train");
        steps.map(|line| line["loss"].as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let whole = losses("whole", &[]);
    let parts = losses("parts", &["--batch-size", "2", "--set", "train.grad_accum_steps=2"]);
    let ranks = losses("ranks", &["--device", "cpu,cpu", "--threads", "1"]);
    assert_eq!(whole.len(), 3);
    for (name, other) in [("parts", parts), ("ranks", ranks)] {
        for (a, b) in whole.iter().zip(&other) {
            assert!((a - b).abs() < 1e-5, "{name}: {whole:?} {other:?}");
        }
    }
    // Without an update both evaluate the model that they began with.
    let still = |name: &str, more: &[&str]| {
        let still = ["--learning-rate", "1e-30", "--max-steps", "2"];
        let further = [&still[..], &["--set", "preference.sft_weight=1"], more].concat();
        last(&prefer(&sandbox, name, "dpo", &further), "eval")["loss"].as_f64().unwrap()
    };
    let (packed, alone) = (still("packed", &[]), still("alone", &["--no-pack"]));
    assert!((packed - alone).abs() < 1e-5 * alone, "{packed} {alone}");
}

#[test]
fn a_resumed_run_of_preferences_is_the_same_to_the_bit() {
    let sandbox = sandbox();
    for (objective, corpus) in [("dpo", "pairs.jsonl"), ("kto", "labels.jsonl")] {
        for lora in ["lora.rank=0", "lora.rank=2"] {
            let args = ["verify-resume", "--steps", "3", "--device", "cpu", "--init", "runs/sft", "--batch-size", "2"];
            let more = ["--corpus", corpus, "--objective", objective, "--set", lora];
            sandbox.run(&[&args[..], &more].concat()).succeeds().prints(&["identical to the bit"]);
        }
    }
}

#[test]
fn what_cannot_be_learned_so_is_refused_with_what_to_do() {
    let sandbox = sandbox();
    let train = |args: &[&str]| sandbox.run(&[&["train", "--device", "cpu", "--init", "runs/sft"], args].concat());
    train(&["--corpus", "pairs.jsonl"]).fails_with(&["train.objective", "is next_token", "dpo, ipo, orpo or simpo"]);
    train(&["--corpus", "labels.jsonl"]).fails_with(&["train.objective", "kto"]);
    let sft = ["--corpus", "sft.jsonl", "--objective", "dpo"];
    train(&sft).fails_with(&["\"chosen\" and \"rejected\"", "58 of 58 rows"]);
    train(&["--corpus", "pairs.jsonl", "--objective", "kto"]).fails_with(&["a boolean \"label\""]);
    let pairs = ["--corpus", "pairs.jsonl", "--objective", "dpo"];
    let with = |more: &[&str]| train(&[&pairs[..], more].concat());
    with(&["--set", "data.packing=stream"]).fails_with(&["data.packing is stream", "documents or off"]);
    with(&["--set", "preference.gamma=2"]).fails_with(&["preference.gamma", "only simpo has it"]);
    with(&["--set", "train.label_smoothing=0.1"]).fails_with(&["preference.label_smoothing"]);
    let kto = ["--corpus", "labels.jsonl", "--objective", "kto", "--device", "cpu,cpu"];
    sandbox.run(&[&["train", "--init", "runs/sft"], &kto[..]].concat()).fails_with(&["needs one device, not 2"]);
    let scratch = ["train", "--device", "cpu", "--corpus", "pairs.jsonl", "--objective", "dpo"];
    sandbox.run(&scratch).fails_with(&["model.init is empty", "orpo or simpo"]);
    // One pair is not cut into training and validation, and a text of pairs is evaluated by its chosen answers.
    let one = json!({"prompt": "after a ", "chosen": "yes b", "rejected": "no b"});
    sandbox.write("one.jsonl", format!("{one}\n"));
    let run = train(&["--corpus", "one.jsonl", "--objective", "dpo", "--name", "one", "--max-steps", "2"]).succeeds();
    assert!(run.stderr.contains("nothing is evaluated"), "{run:?}");
    let eval = ["eval", "--model", "runs/sft", "--device", "cpu", "--json", "--text", "one.jsonl"];
    // "yes b" and the end.
    assert_eq!(sandbox.run(&eval).succeeds().json()["tokens"], 6);
    let stats = ["data", "stats", "--init", "runs/sft", "--corpus", "pairs.jsonl"];
    sandbox.run(&stats).succeeds().prints(&["pairs          36 of a chosen and a rejected answer", "0 are dropped"]);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let chat = json!({"messages": [message("user", "after a "), message("assistant", "yes b")]});
    sandbox.write("chat.jsonl", format!("{chat}\n{chat}\n"));
    let stats = ["data", "stats", "--init", "runs/sft", "--corpus", "chat.jsonl", "--json"];
    sandbox.run(&stats).fails_with(&["chat template"]);
    sandbox.write(
        "my.jinja",
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}{% endif %}",
    );
    let stats = [&stats[..], &["--chat-template", "my.jinja"]].concat();
    assert_eq!(sandbox.run(&stats).succeeds().json()["documents"], 2);
    // Wanted answers alone may be imitated.
    let wanted = json!({"prompt": "after a ", "completion": "yes b", "label": true});
    sandbox.write("wanted.jsonl", format!("{wanted}\n{wanted}\n{wanted}\n"));
    train(&["--corpus", "wanted.jsonl", "--name", "wanted", "--max-steps", "2"]).succeeds();
    // Without a model to compare with, a model may learn from nothing.
    let name = ["--name", "scratch", "--max-steps", "2", "--json"];
    let orpo = ["--corpus", "pairs.jsonl", "--set", "train.objective=orpo"];
    let run = sandbox.train(&[&orpo[..], &name].concat()).succeeds();
    assert!(json_lines(&run.stdout).iter().any(|line| line["kind"] == "eval"));
    sandbox
        .run(&["plan", "--init", "runs/sft", "--device", "cpu", "--corpus", "pairs.jsonl", "--objective", "dpo"])
        .succeeds();
}
