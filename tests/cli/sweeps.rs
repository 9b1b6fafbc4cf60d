//! Sweeps and recipes.

use crate::sandbox::{Run, Sandbox, TINY};

fn sweep(sandbox: &Sandbox, more: &[&str]) -> Run {
    sandbox.run(&[&["sweep", "tiny.toml", "--device", "cpu", "--dir", "s"][..], more].concat())
}

#[test]
fn a_sweep_trains_every_combination_and_ends_in_a_table_with_the_best_first() {
    let sandbox = Sandbox::new();
    let run = sweep(&sandbox, &["--set", "train.learning_rate=1e-5,1e-2", "--set", "model.n_layer=1,2"]).succeeds();
    run.prints(&["[4/4] learning_rate=1e-2,n_layer=2  validation loss ", "sweep.json are in s"]);
    let rows: serde_json::Value = serde_json::from_str(&sandbox.read("s/sweep.json")).unwrap();
    let rows = rows.as_array().unwrap();
    let losses: Vec<f64> = rows.iter().map(|row| row["validation_loss"].as_f64().unwrap()).collect();
    assert!(losses.len() == 4 && losses.is_sorted(), "{losses:?}");
    assert!(rows[0]["name"].as_str().unwrap().starts_with("learning_rate=1e-2"), "{rows:?}");
    for row in rows {
        assert!(sandbox.exists(format!("{}/finished", row["folder"].as_str().unwrap())));
    }
}

#[test]
fn runs_of_a_sweep_with_different_tokenizers_have_no_best() {
    let sandbox = Sandbox::new();
    let run = sweep(&sandbox, &["--set", "data.tokenizer=word,char"]).succeeds();
    let run = run.prints(&["different texts or tokenizers: their losses cannot be compared"]);
    let (char, word) = (run.stdout.rfind("\ntokenizer=char "), run.stdout.rfind("\ntokenizer=word "));
    assert!(char.is_some() && char < word && !run.stdout.contains('█'), "{run:?}");
}

#[test]
fn every_run_of_a_sweep_tells_its_own_peak_of_memory() {
    let sandbox = Sandbox::new();
    sweep(&sandbox, &["--set", "train.batch_size=8,2"]).succeeds();
    let [large, small] = ["8", "2"].map(|size| {
        let profile = sandbox.read(format!("s/batch_size={size}/profile.json"));
        let profile: serde_json::Value = serde_json::from_str(&profile).unwrap();
        profile["memory"]["peak_bytes"].as_u64().unwrap()
    });
    // The second run has the smaller batches.
    assert!(0 < small && small < large, "{small} and {large}");
}

#[test]
fn a_sweep_goes_on_where_it_ended_and_keeps_what_is_finished() {
    let sandbox = Sandbox::new();
    sweep(&sandbox, &["--set", "run.seed=1,2"]).succeeds();
    let metrics = || ["1", "2", "3"].map(|seed| sandbox.read(format!("s/seed={seed}/metrics.jsonl")));
    // The second one as if it had been ended before its first checkpoint.
    std::fs::remove_file(sandbox.path("s/seed=2/finished")).unwrap();
    std::fs::remove_dir_all(sandbox.path("s/seed=2/checkpoints")).unwrap();
    sandbox.write("s/seed=3/metrics.jsonl", "");
    std::fs::remove_dir_all(sandbox.path("s/seed=3")).unwrap();
    let first = sandbox.read("s/seed=1/metrics.jsonl");
    sweep(&sandbox, &["--set", "run.seed=1,2,3"]).succeeds().prints(&["[3/3] seed=3  validation loss "]);
    assert_eq!(metrics()[0], first, "trained once");
    assert!(["1", "2", "3"].iter().all(|seed| sandbox.exists(format!("s/seed={seed}/finished"))));
    assert_eq!(sandbox.names_in("s"), ["seed=1", "seed=2", "seed=3", "sweep.json"]);
}

#[test]
fn a_sweep_does_not_mix_runs_of_other_values() {
    let sandbox = Sandbox::new();
    sweep(&sandbox, &["--set", "run.seed=1,2"]).succeeds();
    let run = sweep(&sandbox, &["--set", "run.seed=1,2", "--n-embd", "32"]);
    run.fails_with(&["s/seed=1", "model.n_embd = 16", "this sweep has 32", "name another --dir"]);
}

#[test]
fn a_run_that_diverges_is_a_row_and_ends_no_sweep() {
    let sandbox = Sandbox::new();
    let rates = "train.learning_rate=1e38,1e-3";
    let more = ["--set", rates, "--set", "train.grad_clip=0", "--set", "optimizer.kind=sgd"];
    let more = [&more[..], &["--set", "train.warmup_steps=0", "--set", "guard.non_finite=stop"]].concat();
    for _ in 0..2 {
        let run = sweep(&sandbox, &more).succeeds();
        run.prints(&["[1/2] learning_rate=1e38  diverged after step", "[2/2] learning_rate=1e-3  validation loss"]);
    }
}

#[test]
fn a_run_that_fails_ends_a_sweep_unless_it_is_to_go_on() {
    let sandbox = Sandbox::new();
    // Longer than the text.
    let more = ["--set", "model.block_size=100000,16", "--set", "run.seed=1"];
    let failed = sweep(&sandbox, &more).fails_with(&["block_size=100000: ", "--continue-on-error"]);
    assert!(!failed.stdout.contains("[2/2]"));
    let more = [&more[..], &["--continue-on-error"]].concat();
    sweep(&sandbox, &more).succeeds().prints(&["block_size=100000  failed: ", "[2/2] block_size=16  validation loss"]);
}

#[test]
fn a_recipe_passes_by_its_loss_and_fails_by_it() {
    let sandbox = Sandbox::new();
    let recipe = |loss: &str| {
        let table =
            "[recipe]\nabout = \"a test\"\ntolerance = 1.5\nexpected = [{ device = \"a toaster\", minutes = 9 }]";
        sandbox.write("recipe.toml", format!("{TINY}\n{table}\nvalidation_loss = {loss}\n"));
        sandbox.run(&["reproduce", "recipe.toml", "--device", "cpu"])
    };
    recipe("3.0").succeeds().prints(&["result        pass", "a test", "9 minutes on a toaster"]);
    let failed = recipe("9.0").fails_with(&["recipe.toml is not reproduced", "expected 9.0000 within 1.5"]);
    failed.prints(&["result        FAIL"]);
    // Training takes the file as it is.
    sandbox.run(&["train", "recipe.toml", "--device", "cpu"]).succeeds();
}

#[test]
fn recipes_are_listed_and_what_is_none_is_named() {
    let sandbox = Sandbox::new();
    sandbox.run(&["reproduce", "--list"]).succeeds().prints(&["quickstart ", "shakespeare-char ", "NVIDIA H200"]);
    sandbox.run(&["reproduce", "quickstrt"]).fails_with(&["quickstrt is neither", "quickstart"]);
    sandbox.run(&["reproduce", "tiny.toml"]).fails_with(&["tiny.toml", "table [recipe]"]);
}
