//! Whole runs on the CPU and on a GPU (a software one will do) against each other.

#[path = "common/sandbox.rs"]
mod sandbox;

use rustyflow::testing::{assert_close, difference};
use safetensors::SafeTensors;
use sandbox::{Sandbox, TINY_RUN, has_gpu};

const GPU_RUN: &str = "runs/corpus-L1-H2-E16-gpu";

/// Twenty steps with a learning rate at which much happens in them.
const SETTINGS: [&str; 8] = [
    "--set",
    "train.max_steps=20",
    "--set",
    "train.learning_rate=0.01",
    "--set",
    "train.eval_every=0",
    "--set",
    "model.n_layer=2",
];

fn cpu_and_gpu_agree(further: &[&str]) {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let settings = [&SETTINGS[..], further].concat();
    sandbox.train(&settings).succeeds();
    sandbox.train_on_gpu(&settings).succeeds();
    let [cpu, gpu] = ["cpu", "gpu"].map(|device| format!("runs/corpus-L2-H2-E16-{device}"));
    for (kind, count) in [("train", 20), ("eval", 1)] {
        let (cpu, gpu) = (sandbox.losses(&cpu, kind), sandbox.losses(&gpu, kind));
        assert_eq!(cpu.len(), count);
        assert!(kind == "eval" || cpu[19] < cpu[0] - 0.3, "the loss falls: {cpu:?}");
        // Sums in another order differ by 1e-7 of their value; twenty steps make more of it.
        assert_close(format!("{kind}\ncpu {cpu:?}\ngpu {gpu:?}\n"), &gpu, &cpu, 1e-3, 0.0);
    }
}

#[test]
fn cpu_and_gpu_learn_the_same() {
    cpu_and_gpu_agree(&[]);
}

#[test]
fn cpu_and_gpu_learn_the_same_with_dropout() {
    cpu_and_gpu_agree(&["--set", "model.dropout=0.2"]);
}

#[test]
fn cpu_and_gpu_learn_the_same_from_accumulated_gradients() {
    cpu_and_gpu_agree(&[
        "--set",
        "train.grad_accum_steps=3",
        "--set",
        "optimizer.kind=sgd",
        "--set",
        "model.bias=false",
    ]);
}

#[test]
fn dropout_changes_what_is_learnt() {
    let sandbox = Sandbox::new();
    sandbox.train(&[]).succeeds();
    sandbox.train(&["--set", "model.dropout=0.2"]).succeeds();
    let [without, with] = [TINY_RUN.to_string(), format!("{TINY_RUN}-2")].map(|run| sandbox.losses(&run, "train"));
    assert!(difference(&with, &without, |_, _| 1e-3).is_some(), "{with:?}");
    assert!(with.iter().all(|loss| loss.is_finite()) && with.len() == without.len(), "{with:?}");
}

#[test]
fn two_runs_on_one_gpu_are_the_same_to_the_bit() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let settings = ["--set", "model.dropout=0.1", "--set", "train.eval_every=3"];
    sandbox.train_on_gpu(&settings).succeeds();
    sandbox.train_on_gpu(&settings).succeeds();
    assert_eq!(sandbox.timeless_metrics(GPU_RUN), sandbox.timeless_metrics(&format!("{GPU_RUN}-2")));
    let [first, second] = [GPU_RUN.to_string(), format!("{GPU_RUN}-2")]
        .map(|run| std::fs::read(sandbox.path(format!("{run}/checkpoints/step-000006/model.safetensors"))).unwrap());
    assert!(first == second, "the weights differ");
}

#[test]
fn a_gpu_run_reports_kernels_host_and_memory() {
    if !has_gpu() {
        return;
    }
    let run = Sandbox::new().train_on_gpu(&["--profile", "--set", "train.max_steps=8"]).succeeds();
    let run = run.prints(&[
        "[Profiling report]\n  - GPU kernels: ",
        "  - Host: data ",
        ", compile ",
        ", encode ",
        ", wait ",
        ", other ",
    ]);
    let memory = run.stdout.lines().find(|line| line.starts_with("  - GPU memory: "));
    let memory = memory.unwrap_or_else(|| panic!("no memory: {}", run.stdout));
    for kind in ["parameters", "gradients", "optimizer state", "activations", "scratch"] {
        assert!(memory.contains(&format!("{kind} ")) && !memory.contains(&format!("{kind} 0 B")), "{kind}: {memory}");
    }
    assert!(!memory.contains(": 0 B at most") && memory.contains(" obtained in "), "{memory}");
}

#[test]
fn every_parameter_learns() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--set", "checkpoint.every=3", "--set", "checkpoint.keep_last=9"]).succeeds();
    let [early, late] = ["step-000003", "step-000006"]
        .map(|step| std::fs::read(sandbox.path(format!("{TINY_RUN}/checkpoints/{step}/model.safetensors"))).unwrap());
    let (early, late) = (SafeTensors::deserialize(&early).unwrap(), SafeTensors::deserialize(&late).unwrap());
    assert_eq!(early.len(), 16);
    for (name, view) in early.tensors() {
        assert_ne!(view.data(), late.tensor(&name).unwrap().data(), "{name} has not changed");
    }
}
