//! `rustyflow train --resume`: as if the run had never stopped, or a clear word on why not.

use crate::sandbox::{Run, Sandbox, TINY_RUN, has_gpu, json_lines};
use std::fs;

const GPU_RUN: &str = "runs/corpus-L1-H2-E16-gpu";
const CPU: [&str; 4] = ["--device", "cpu", "--threads", "1"];

/// Twelve steps with all that has a state: dropout, accumulation, evaluation, a schedule.
const SETTINGS: &str = "train.max_steps=12 train.eval_every=4 checkpoint.every=3 checkpoint.keep_last=100 \
                        model.dropout=0.1 train.grad_accum_steps=2 train.learning_rate=0.01 train.warmup_steps=4";

fn flags<'a>(settings: &'a str, further: &[&'a str]) -> Vec<&'a str> {
    settings.split_whitespace().chain(further.iter().copied()).flat_map(|s| ["--set", s]).collect()
}

fn resume(sandbox: &Sandbox, further: &[&str]) -> Run {
    sandbox.run(&[&["train", "--resume", TINY_RUN], further].concat())
}

/// A finished run of [`SETTINGS`] on the CPU.
fn finished() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.train(&flags(SETTINGS, &[])).succeeds();
    sandbox
}

/// Turns a finished run into one that was killed some time after the checkpoint of this step.
fn kill_after(sandbox: &Sandbox, run: &str, step: usize) {
    for name in sandbox.names_in(format!("{run}/checkpoints")) {
        let at: usize = name.trim_start_matches("step-").parse().unwrap();
        if at > step {
            fs::remove_dir_all(sandbox.path(format!("{run}/checkpoints/{name}"))).unwrap();
        }
    }
    for name in ["finished", "samples.txt", "profile.txt"] {
        fs::remove_file(sandbox.path(format!("{run}/{name}"))).unwrap();
    }
    // Lines of later steps, and half a line.
    let metrics = sandbox.read(format!("{run}/metrics.jsonl"));
    sandbox.write(format!("{run}/metrics.jsonl"), &metrics[..metrics.len() - 30]);
    // A checkpoint that was being written.
    sandbox.write(format!("{run}/checkpoints/.step-000099.unfinished/model.safetensors"), "half");
}

/// Weights and moments of the last checkpoint, its metrics without times, and what else should be the same.
fn outcome(sandbox: &Sandbox, run: &str) -> (Vec<u8>, Vec<u8>, Vec<serde_json::Value>, String, String) {
    let last = sandbox.read(format!("{run}/last"));
    let read = |name: &str| fs::read(sandbox.path(format!("{run}/checkpoints/{}/{name}", last.trim()))).unwrap();
    let text = |name: &str| sandbox.read(format!("{run}/{name}"));
    let (weights, moments) = (read("model.safetensors"), read("optimizer.safetensors"));
    (weights, moments, sandbox.timeless_metrics(run), text("best"), text("samples.txt") + &text("samples.jsonl"))
}

#[track_caller]
fn assert_same(sandbox: &Sandbox, run: &str, expected: &(Vec<u8>, Vec<u8>, Vec<serde_json::Value>, String, String)) {
    let (weights, moments, metrics, best, sample) = outcome(sandbox, run);
    assert_eq!(metrics, expected.2);
    assert!(weights == expected.0, "the weights differ");
    assert!(moments == expected.1, "the moments differ");
    assert_eq!((best, sample), (expected.3.clone(), expected.4.clone()));
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_to_the_bit() {
    let averaged = &["optimizer.kind=lion", "train.ema_decay=0.5"];
    for further in
        [&[][..], averaged, &["optimizer.kind=sgd", "data.tokenizer=bpe", "data.vocab_size=300", "train.epochs=2.0"]]
    {
        let sandbox = Sandbox::new();
        let settings = match further.len() < 3 {
            true => SETTINGS.to_string(),
            false => SETTINGS.replace("train.max_steps=12 ", ""),
        };
        sandbox.train(&flags(&settings, further)).succeeds();
        let expected = outcome(&sandbox, TINY_RUN);
        for step in [9, 3] {
            kill_after(&sandbox, TINY_RUN, step);
            let run = resume(&sandbox, &[]).succeeds().prints(&[&format!("resumed    after step {step}\n")]);
            assert_eq!(run.stderr, "", "there is nothing to note");
            assert_same(&sandbox, TINY_RUN, &expected);
            let names = sandbox.names_in(format!("{TINY_RUN}/checkpoints"));
            assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
        }
    }
}

#[test]
fn a_run_that_was_meant_to_be_longer_can_decay_from_its_stable_part() {
    let settings = [SETTINGS, "train.schedule=wsd", "train.decay_steps=3"].join(" ");
    let shorter = Sandbox::new();
    shorter.train(&flags(&settings, &["train.max_steps=9"])).succeeds();
    let expected = outcome(&shorter, TINY_RUN);
    let rates = shorter.metrics(TINY_RUN).iter().filter_map(|line| line["learning_rate"].as_f64()).collect::<Vec<_>>();
    assert!(rates[..6].contains(&0.01) && rates[rates.len() - 1] < 0.005, "{rates:?}");

    let sandbox = Sandbox::new();
    sandbox.train(&flags(&settings, &[])).succeeds();
    kill_after(&sandbox, TINY_RUN, 6);
    resume(&sandbox, &["--set", "train.max_steps=9"]).succeeds();
    let (weights, moments, ..) = outcome(&sandbox, TINY_RUN);
    assert!(weights == expected.0 && moments == expected.1, "the decay is the shorter run's, to the bit");
}

#[test]
fn a_plateau_is_resumed_with_what_it_has_come_to() {
    let plateau = "train.schedule=plateau train.learning_rate=3 train.warmup_steps=0 train.eval_every=1";
    let settings = [SETTINGS, plateau].join(" ");
    let sandbox = Sandbox::new();
    sandbox.train(&flags(&settings, &[])).succeeds();
    let expected = outcome(&sandbox, TINY_RUN);
    let rates = sandbox.metrics(TINY_RUN).iter().filter_map(|line| line["learning_rate"].as_f64()).collect::<Vec<_>>();
    assert!(rates[5] < 3.0, "it has fallen before the checkpoint: {rates:?}");
    kill_after(&sandbox, TINY_RUN, 6);
    resume(&sandbox, &[]).succeeds();
    assert_same(&sandbox, TINY_RUN, &expected);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_resumed_run_on_a_gpu_is_the_uninterrupted_one_to_the_bit() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.train_on_gpu(&flags(SETTINGS, &[])).succeeds();
    let expected = outcome(&sandbox, GPU_RUN);
    kill_after(&sandbox, GPU_RUN, 6);
    sandbox.run(&["train", "--resume", "auto"]).succeeds().prints(&["resumed    after step 6\n"]);
    assert_same(&sandbox, GPU_RUN, &expected);
}

#[test]
fn another_state_would_be_noticed() {
    // What the tests above compare does change with what a checkpoint holds.
    let sandbox = finished();
    let expected = outcome(&sandbox, TINY_RUN);
    kill_after(&sandbox, TINY_RUN, 6);
    resume(&sandbox, &["--set", "train.learning_rate=0.02"]).succeeds();
    let (weights, moments, metrics, ..) = outcome(&sandbox, TINY_RUN);
    assert!(weights != expected.0 && moments != expected.1 && metrics != expected.2);
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_that_is_said() {
    let sandbox = finished();
    let expected = outcome(&sandbox, TINY_RUN);
    kill_after(&sandbox, TINY_RUN, 9);
    let file = format!("{TINY_RUN}/checkpoints/step-000009/optimizer.safetensors");
    let mut bytes = fs::read(sandbox.path(&file)).unwrap();
    bytes[1000] ^= 1;
    sandbox.write(&file, &bytes);
    sandbox.write(format!("{TINY_RUN}/best"), "step-000009\n");
    // That of step 8 was saved because it was the best.
    let run = resume(&sandbox, &[]).succeeds().prints(&["resumed    after step 8\n"]);
    for part in ["step-000009/optimizer.safetensors: is damaged", "from the previous checkpoint, of step 8"] {
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    }
    assert_same(&sandbox, TINY_RUN, &expected);
    assert_ne!(fs::read(sandbox.path(&file)).unwrap(), bytes, "the damaged one has been replaced");
}

#[test]
fn without_a_good_checkpoint_nothing_is_overwritten() {
    let sandbox = finished();
    kill_after(&sandbox, TINY_RUN, 3);
    fs::remove_file(sandbox.path(format!("{TINY_RUN}/checkpoints/step-000003/trainer_state.json"))).unwrap();
    let metrics = sandbox.read(format!("{TINY_RUN}/metrics.jsonl"));
    resume(&sandbox, &[]).fails_with(&["cannot read", "step-000003/trainer_state.json"]);
    fs::remove_file(sandbox.path(format!("{TINY_RUN}/checkpoints/step-000003/manifest.json"))).unwrap();
    resume(&sandbox, &[]).fails_with(&["step-000003: cannot be resumed", "no manifest.json"]);
    assert_eq!(sandbox.read(format!("{TINY_RUN}/metrics.jsonl")), metrics);
}

#[test]
fn a_run_without_a_checkpoint_begins_again_in_its_folder() {
    let sandbox = finished();
    let expected = outcome(&sandbox, TINY_RUN);
    kill_after(&sandbox, TINY_RUN, 0);
    let run = sandbox.run(&["train", "--resume", "auto"]).succeeds();
    assert!(run.stderr.contains("has no checkpoint yet"), "{run:?}");
    assert_eq!(sandbox.runs(), ["corpus-L1-H2-E16-cpu"]);
    assert_same(&sandbox, TINY_RUN, &expected);
}

#[test]
fn what_may_not_change_is_refused_by_its_key() {
    let sandbox = finished();
    kill_after(&sandbox, TINY_RUN, 6);
    for (setting, before) in [
        ("model.n_embd=32", "16"),
        ("model.dropout=0.2", "0.1"),
        ("train.batch_size=8", "4"),
        ("train.grad_accum_steps=1", "2"),
        ("optimizer.kind=sgd", "\"adamw\""),
        ("data.tokenizer=word", "\"char\""),
        ("data.validation_fraction=0.2", "0.1"),
        ("run.name=other", "\"\""),
    ] {
        let key = setting.split('=').next().unwrap();
        resume(&sandbox, &["--set", setting]).fails_with(&["--set: ", key, &format!("but {before} in"), "--resume"]);
    }
    resume(&sandbox, &["--seed", "7"]).fails_with(&["--seed: run.seed: is 7, but 1337 in"]);
    // Those of a file, which lacks most of them, are named together.
    let run = sandbox.run(&[&["train", "--resume", TINY_RUN, "--config", "tiny.toml"], &CPU[..]].concat());
    run.fails_with(&["model.dropout", "nor may train.grad_accum_steps"]);
    sandbox.write("corpus.txt", sandbox.read("corpus.txt").replace("owl", "cow"));
    let told = ["the text is not what the run", &format!("rustyflow train --init {TINY_RUN} --corpus corpus.txt")];
    resume(&sandbox, &[]).fails_with(&[&["data.corpus"][..], &told].concat());
    sandbox.run(&["train", "--init", TINY_RUN, "--corpus", "corpus.txt", "--max-steps", "1"]).succeeds();
    resume(&sandbox, &["--set", "data.corpus=sample"]).fails_with(&["--set: data.corpus"]);
}

#[test]
fn what_may_change_is_told_by_its_key() {
    let sandbox = finished();
    kill_after(&sandbox, TINY_RUN, 6);
    fs::rename(sandbox.path("corpus.txt"), sandbox.path("moved.txt")).unwrap();
    let settings = flags("data.corpus=moved.txt train.max_steps=8 log.every=3 checkpoint.every=0", &[]);
    let run = resume(&sandbox, &settings).succeeds().prints(&[" after 8 steps, "]);
    for note in [
        "note: train.max_steps changes from 12 to 8 (--set)",
        "note: log.every changes from 1 to 3 (--set)",
        "note: checkpoint.every changes from 3 to 0 (--set)",
        "note: data.corpus changes from \"corpus.txt\" to \"moved.txt\" (--set)",
    ] {
        assert!(run.stderr.contains(note), "{note}: {run:?}");
    }
    assert!(sandbox.read(format!("{TINY_RUN}/config.toml")).contains("max_steps = 8"));
    let lines = sandbox.metrics(TINY_RUN);
    let steps: Vec<u64> = lines.iter().filter(|l| l["kind"] == "train").map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6, 8]);
}

#[test]
fn a_finished_run_goes_on_only_if_it_is_made_longer() {
    let sandbox = finished();
    resume(&sandbox, &[]).fails_with(&["train.max_steps: makes 12 steps", "has done 12", "set it higher"]);
    resume(&sandbox, &["--set", "train.max_steps=11"]).fails_with(&["--set: train.max_steps: makes 11 steps"]);
    let run = resume(&sandbox, &["--set", "train.max_steps=14"]).succeeds();
    run.prints(&["resumed    after step 12\n", " after 14 steps, "]);
    assert_eq!(sandbox.losses(TINY_RUN, "train").len(), 14);
}

#[test]
fn a_resumed_run_tells_its_training_time_in_all_processes() {
    let sandbox = finished();
    let seconds =
        || sandbox.run(&["runs", "show", TINY_RUN, "--json"]).succeeds().json()["training_seconds"].as_f64().unwrap();
    let before = seconds();
    let run = resume(&sandbox, &["--max-steps", "24"]).succeeds();
    run.prints(&[" of training since it was resumed, ", " in all, "]);
    assert!(sandbox.read("training_log.txt").contains(" since it was resumed, "));
    sandbox.run(&["runs", "show", TINY_RUN]).succeeds().prints(&[" of training, in all processes\n"]);
    let record: serde_json::Value = serde_json::from_str(&sandbox.read(format!("{TINY_RUN}/run.json"))).unwrap();
    let told = record["end"]["training_seconds_in_all"].as_f64().unwrap();
    let since = record["end"]["training_seconds"].as_f64().unwrap();
    assert_eq!(told, before + since, "the sum of both processes");
    assert_eq!(told, seconds());
}

#[test]
fn auto_takes_the_newest_unfinished_run() {
    let sandbox = Sandbox::new();
    sandbox.run(&["train", "--resume", "auto"]).fails_with(&["runs: holds no unfinished run", "`rustyflow train`"]);
    for name in ["older", "newer", "done"] {
        sandbox.train(&flags(SETTINGS, &[&format!("run.name={name}")])).succeeds();
    }
    for name in ["older", "newer"] {
        kill_after(&sandbox, &format!("runs/{name}"), 9);
    }
    for name in ["newer", "older"] {
        let run = sandbox.run(&["train", "--resume", "auto", "--json"]).succeeds();
        let folder = json_lines(&run.stdout)[0]["folder"].clone();
        assert_eq!(folder, format!("runs/{name}"));
    }
    sandbox.run(&["train", "--resume", "auto"]).fails_with(&["holds no unfinished run"]);
}

#[test]
fn what_is_no_run_is_refused() {
    let sandbox = finished();
    sandbox
        .run(&["train", "--resume", "nowhere"])
        .fails_with(&["there is no run nowhere in runs", "`rustyflow runs list`"]);
    let checkpoint = format!("{TINY_RUN}/checkpoints/step-000012");
    sandbox.run(&["train", "--resume", &checkpoint]).fails_with(&["is a checkpoint; --resume takes the folder"]);
}

#[test]
fn verify_resume_compares_every_byte() {
    let sandbox = Sandbox::new();
    let args = ["verify-resume", "--config", "tiny.toml", "--steps", "4"];
    let run = sandbox.run(&[&args[..], &CPU, &flags("model.dropout=0.1", &[])].concat()).succeeds();
    run.prints(&["8 steps in one go, and 4 + 4 resumed", "bytes of weights", "result        identical to the bit"]);
    assert_eq!(sandbox.names_in("runs"), [""; 0], "its own runs are removed");
    assert!(!sandbox.exists("training_log.txt"));
    let json = sandbox.run(&[&args[..], &CPU, &["--json"]].concat()).succeeds().json();
    assert_eq!((&json["steps"], &json["differences"]), (&4.into(), &serde_json::json!([])));
    assert!(json["optimizer_bytes"].as_u64() > json["weights_bytes"].as_u64(), "two moments: {json}");
    assert_eq!(json["metrics_lines"], 8 + 4);
    sandbox.run(&[&args[..], &CPU, &["--set", "model.n_head=3"]].concat()).fails_with(&["n_head"]);
}

/// What a Llama can have beyond a GPT-2, all of it in one model.
const FAMILIES: [&str; 2] = ["model.kind=llama model.qkv_bias=true model.sliding_window=5", "model.kind=qwen3"];

#[test]
fn verify_resume_holds_for_every_family() {
    let sandbox = Sandbox::new();
    for family in FAMILIES {
        let settings = flags(family, &["model.n_kv_head=1", "model.dropout=0.1"]);
        let args = ["verify-resume", "--config", "tiny.toml", "--steps", "3"];
        sandbox.run(&[&args[..], &CPU, &settings].concat()).succeeds().prints(&["identical to the bit"]);
    }
}

#[test]
fn a_killed_run_of_every_family_is_resumed_to_the_bit() {
    for family in FAMILIES {
        let sandbox = Sandbox::new();
        let settings = [SETTINGS, family].join(" ");
        sandbox.train(&flags(&settings, &[])).succeeds();
        let expected = outcome(&sandbox, TINY_RUN);
        kill_after(&sandbox, TINY_RUN, 6);
        resume(&sandbox, &[]).succeeds();
        assert_same(&sandbox, TINY_RUN, &expected);
    }
}

#[test]
fn verify_resume_works_on_a_gpu() {
    if !has_gpu() {
        return;
    }
    let args = ["verify-resume", "--config", "tiny.toml", "--steps", "2", "--device", "gpu", "--allow-software-gpu"];
    for family in ["optimizer.kind=lion train.ema_decay=0.5", FAMILIES[0], FAMILIES[1]] {
        let run = Sandbox::new().run(&[&args[..], &flags(family, &[])].concat()).succeeds();
        run.prints(&["device        gpu:", "identical to the bit"]);
    }
}

#[test]
fn a_run_writes_down_what_matmul_f32_came_to_and_keeps_it() {
    let value = |sandbox: &Sandbox| {
        let config = sandbox.read(format!("{TINY_RUN}/config.toml"));
        config.lines().find(|line| line.starts_with("matmul_f32")).expect("the key").to_string()
    };
    let sandbox = finished();
    assert!(value(&sandbox).starts_with("matmul_f32 = \"fma\"") && value(&sandbox).contains("# auto: "));
    let sandbox = Sandbox::new();
    // On the CPU it changes nothing, and `auto` would come to fma.
    sandbox.train(&flags(SETTINGS, &["device.matmul_f32=split-fp16"])).succeeds();
    let began = value(&sandbox);
    sandbox.write("longer.toml", sandbox.read(format!("{TINY_RUN}/config.toml")).replace(&began, ""));
    for steps in ["train.max_steps=14", "train.max_steps=16"] {
        let run = resume(&sandbox, &["--config", "longer.toml", "--set", steps, "--set", "device.matmul_f32=auto"]);
        assert!(!run.succeeds().stderr.contains("matmul_f32 changes"), "{steps}");
        assert!(value(&sandbox).starts_with("matmul_f32 = \"split-fp16\""), "{}", value(&sandbox));
    }
    let run = resume(&sandbox, &["--set", "train.max_steps=18", "--matmul-f32", "fma"]).succeeds();
    assert!(run.stderr.contains("device.matmul_f32 changes from \"split-fp16\" to \"fma\""), "{run:?}");
}

#[test]
fn a_derived_minimum_follows_a_lower_learning_rate() {
    let sandbox = finished();
    let run = resume(&sandbox, &["--max-steps", "14", "--learning-rate", "5e-4"]).succeeds();
    let told = "train.min_learning_rate changes from 0.001 to 5e-5";
    assert!(run.stderr.contains("train.learning_rate changes from 0.01 to 5e-4 (--learning-rate)"), "{run:?}");
    assert!(run.stderr.contains(&told[..40]) && run.stderr.contains("a tenth of learning_rate"), "{run:?}");
    let config = sandbox.read(format!("{TINY_RUN}/config.toml"));
    let line = config.lines().find(|line| line.starts_with("min_learning_rate")).unwrap();
    assert!(
        line.starts_with("min_learning_rate = 5e-5") && line.ends_with("# default: a tenth of learning_rate"),
        "{line}"
    );
    // What was set does not follow.
    let sandbox = Sandbox::new();
    sandbox.train(&flags(SETTINGS, &["train.min_learning_rate=0.001"])).succeeds();
    let refused = resume(&sandbox, &["--max-steps", "14", "--learning-rate", "5e-4"]);
    refused.fails_with(&["--learning-rate: train.learning_rate", "min_learning_rate is 0.001"]);
}

#[test]
fn a_run_is_found_by_its_name_wherever_one_is_named() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--name", "mine", "--set", "run.dir=my runs"]).succeeds();
    let there = [("RUSTYFLOW_RUN__DIR", "my runs")];
    let run = |args: &[&str]| sandbox.run_with(args, &there);
    run(&["runs", "show", "mine"]).succeeds();
    run(&["generate", "--device", "cpu", "--model", "mine", "-n", "2"]).succeeds();
    run(&["generate", "--device", "cpu", "-n", "2"]).succeeds();
    run(&["eval", "--device", "cpu", "--model", "mine"]).succeeds();
    run(&["train", "--resume", "mine", "--max-steps", "7"]).succeeds();
    sandbox.run(&["train", "--resume", "mine", "--set", "run.dir=my runs", "--max-steps", "8"]).succeeds();
    let init = ["train", "--init", "mine", "--corpus", "corpus.txt", "--device", "cpu", "--max-steps", "1"];
    run(&init).succeeds();
    // A folder of that name that holds no model does not hide the run.
    sandbox.write("mine/notes.txt", "a text");
    run(&["generate", "--device", "cpu", "--model", "mine", "-n", "2"]).succeeds();
    run(&["generate", "--model", "mien"]).fails_with(&["mien", "did you mean the run mine?"]);
    run(&["train", "--resume", "mien"]).fails_with(&["no run mien in my runs", "did you mean mine?"]);
}

#[test]
fn the_commands_at_the_end_of_a_run_can_be_pasted() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--set", "run.dir=my runs", "--name", "it's"]).succeeds();
    let command = run.stdout.lines().find_map(|line| line.strip_prefix("next    ")).expect("the next command");
    assert_eq!(command, "rustyflow generate --model \"my runs/it's\" --prompt \"...\"");
    let refused = sandbox.run(&["train", "--resume", "my runs/it's", "--corpus", "tiny.toml"]);
    refused.fails_with(&["rustyflow train --init \"my runs/it's\" --corpus tiny.toml"]);
}

#[test]
fn a_run_without_the_state_of_its_optimizer_is_smaller_and_goes_on_as_a_new_one_alone() {
    let sandbox = Sandbox::new();
    let without = ["checkpoint.optimizer=false"];
    sandbox.train(&flags(SETTINGS, &without)).succeeds();
    let folder = format!("{TINY_RUN}/checkpoints/step-000006");
    let names = sandbox.names_in(&folder);
    assert!(
        names.contains(&"model.safetensors".into()) && !names.contains(&"optimizer.safetensors".into()),
        "{names:?}"
    );
    kill_after(&sandbox, TINY_RUN, 6);
    let folder = std::path::Path::new(&folder).display().to_string();
    let advice = format!("--init {folder}");
    resume(&sandbox, &[]).fails_with(&["step-000006", "checkpoint.optimizer was false", &advice]);
    sandbox.run(&["generate", "--model", &folder, "--prompt", "the", "--max-tokens", "2"]).succeeds();
    sandbox.run(&[&["train", "--init", &folder, "--max-steps", "1", "corpus.txt"], &CPU[..]].concat()).succeeds();
    // Nor do other ranks send theirs; the weights are those of a run that saves all.
    let two = |name: &str, further: &[&str]| {
        let args = ["train", "--device", "cpu,cpu", "--config", "tiny.toml", "--name", name];
        let shard = [&["train.shard_optimizer=true"], further].concat();
        sandbox.run(&[&args[..], &flags("", &shard)].concat()).succeeds();
        let folder = format!("runs/{name}/checkpoints/{}", sandbox.read(format!("runs/{name}/last")).trim());
        let names = sandbox.names_in(&folder);
        (fs::read(sandbox.path(format!("{folder}/model.safetensors"))).unwrap(), names.len())
    };
    let (all, less) = (two("all", &[]), two("less", &without));
    assert!(all.0 == less.0 && all.1 == less.1 + 1, "{} and {} files", all.1, less.1);
    for wants_rollback in ["guard.non_finite=rollback", "guard.spike_z=5"] {
        let key = wants_rollback.split('=').next().unwrap();
        let run = sandbox.train(&flags(SETTINGS, &["checkpoint.optimizer=false", wants_rollback]));
        run.fails_with(&[key, "checkpoint.optimizer is false", "a rollback needs"]);
    }
}
