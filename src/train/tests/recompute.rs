//! Runs in which backward computes the activations of blocks again: the same bits, less memory.

use crate::Device;
use crate::config::{Layers, Resolved};
use crate::models::{ModelConfig, ModelKind};
use crate::profile::MemoryKind;
use crate::train::checkpoint::{METRICS, OPTIMIZER};
use crate::train::plan::Footprint;
use crate::train::step::ranks::Place;
use crate::train::{Event, TrainOptions, train, verify_resume};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Six updates of two passes each, with all kinds of dropout, and an evaluation.
pub(super) fn configuration(dir: &Path, settings: &[&str]) -> Resolved {
    let text = format!(
        "[run]\ndir = {dir:?}\n[data]\ncorpus = {:?}\ntokenizer = \"char\"\n[model]\nn_layer = 3\nn_head = 2\n\
         n_embd = 16\nblock_size = 12\ndropout = 0.2\nembd_dropout = 0.1\n[train]\nbatch_size = 3\nmax_steps = 6\n\
         grad_accum_steps = 2\neval_every = 4\neval_batches = 1\nlearning_rate = 0.01\nwarmup_steps = 1\n\
         label_smoothing = 0.1\n[log]\nevery = 1\nsamples = false\n[generate]\nmax_new_tokens = 1\n",
        dir.join("text.txt")
    );
    fs::write(dir.join("text.txt"), "the quick brown fox jumps over the lazy dog. ".repeat(30)).unwrap();
    let layers = Layers::new().toml_str("test.toml", &text).unwrap();
    settings.iter().fold(layers, |layers, setting| layers.set(setting).unwrap()).build().unwrap()
}

/// Trains until step `until`; from where `resume` has come to, if it is given.
pub(super) fn run(resolved: &Resolved, device: &Device, resume: Option<&Path>, until: usize) {
    let stop = AtomicBool::new(false);
    let options = TrainOptions {
        device: device.clone(),
        others: &[],
        launch: None,
        started: Instant::now(),
        reopen: None,
        data_dir: Path::new("data"),
        cache_dir: None,
        resume,
        stop: &stop,
        training_log: None,
        trace: None,
        on_event: &mut |event| {
            if matches!(event, Event::Progress { step } if *step == until) {
                stop.store(true, Ordering::Relaxed);
            }
        },
    };
    train(resolved, options).unwrap();
}

/// Weights, moments, and the losses and norms of every step.
pub(super) fn outcome(folder: &Path) -> (Vec<u8>, Vec<u8>, Vec<String>) {
    let [weights, moments] = ["model.safetensors", OPTIMIZER]
        .map(|name| fs::read(folder.join("checkpoints/step-000006").join(name)).unwrap());
    let metrics = fs::read_to_string(folder.join(METRICS)).unwrap();
    let numbers = metrics.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        format!("{} {} {} {}", line["kind"], line["step"], line["loss"], line["grad_norm"])
    });
    (weights, moments, numbers.collect())
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn losses_weights_and_moments_are_the_same_to_the_bit() {
    let mixed = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "device.precision=mixed"));
    for (device, precision) in
        Device::for_tests().into_iter().map(|device| (device, "device.precision=f32")).chain(mixed)
    {
        for kind in ["gpt2", "llama", "qwen3"] {
            let dir = tempfile::tempdir().unwrap();
            let kind = format!("model.kind={kind}");
            let named = |name: &str, recompute| {
                let (name, recompute) = (format!("run.name={name}"), format!("train.recompute={recompute}"));
                configuration(dir.path(), &[precision, &kind, &name, &recompute])
            };
            run(&named("kept", "none"), &device, None, 6);
            run(&named("recomputed", "block"), &device, None, 6);
            // A run may change its mind when it is resumed.
            run(&named("changed", "none"), &device, None, 3);
            run(&named("changed", "block"), &device, Some(&dir.path().join("changed")), 6);
            let [kept, recomputed, changed] =
                ["kept", "recomputed", "changed"].map(|name| outcome(&dir.path().join(name)));
            assert!(kept.2.len() >= 7, "{:?}", kept.2);
            assert_eq!(kept.2, recomputed.2, "{device} {precision} {kind}");
            assert!(kept == recomputed, "{device} {precision} {kind}: weights or moments differ");
            assert!(kept == changed, "{device} {precision} {kind}: differs once resumed with other settings");
        }
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_resumed_run_is_the_same_to_the_bit() {
    let settings = [["train.recompute=block", "model.kind=llama"], ["optimizer.state_dtype=int8", "model.kind=gpt2"]];
    for (device, settings) in Device::for_tests().into_iter().flat_map(|device| settings.map(|s| (device.clone(), s))) {
        let dir = tempfile::tempdir().unwrap();
        let resolved = configuration(dir.path(), &settings);
        let stop = AtomicBool::new(false);
        let verified =
            verify_resume(&resolved, 3, std::slice::from_ref(&device), Path::new("data"), None, &stop).unwrap();
        assert!(verified.differences.is_empty(), "{device} {settings:?}: {:?}", verified.differences);
    }
}

/// GPT-2 with 124 million parameters and this context.
pub(super) fn gpt2_124m(block_size: usize) -> ModelConfig {
    ModelConfig {
        kind: ModelKind::GPT2,
        vocab_size: 50_304,
        block_size,
        n_layer: 12,
        n_head: 12,
        n_embd: 768,
        bias: true,
        tie_embeddings: true,
        llama: None,
    }
}

/// GPT-2 with 124 million parameters and a context of 8192: without a GPU, for none of it has values.
#[test]
fn a_long_context_takes_a_fifth_of_the_activations_and_the_work_that_was_told() {
    let dir = tempfile::tempdir().unwrap();
    let shape = gpt2_124m(8192);
    for (device, precision) in
        [(Device::Cpu, "f32"), (Device::DryRun(crate::tensor::DryRun::new(crate::gpu::Limits::WEBGPU_DEFAULT)), "f32")]
    {
        let of = |recompute: &str| {
            let (recompute, precision) =
                (format!("train.recompute={recompute}"), format!("device.precision={precision}"));
            let resolved =
                configuration(dir.path(), &[&recompute, &precision, "model.dropout=0", "model.block_size=8192"]);
            Footprint::new(&resolved.config, &shape, 1, 1, false, (&device, Place::ALONE)).unwrap()
        };
        let (kept, recomputed) = (of("none"), of("block"));
        let activations = |footprint: &Footprint| footprint.memory.peak_by_kind[MemoryKind::Activations] as f64;
        let share = activations(&recomputed) / activations(&kept);
        assert!(share < 0.2, "{device}: {share}");
        assert!(recomputed.memory.peak_bytes < kept.memory.peak_bytes / 2, "{device}");
        let flops = |footprint: &Footprint| footprint.update.iter().map(|cost| cost.flops).sum::<f64>();
        let told = shape.recompute_flops_per_token() * 8192.0;
        let ratio = (flops(&recomputed) - flops(&kept)) / told;
        // The kernels' costs include what is not a matmul.
        assert!((1.0..1.05).contains(&ratio), "{device}: {ratio}");
    }
}
