//! Ranks that divide the weights of mixed precision.

use super::{Run, configuration, files, largest_loss_difference, run, trained, weights};
use crate::Device;
use crate::config::Resolved;
use crate::gpu::gpu_for_tests;
use crate::profile::MemoryKind;
use crate::train::{PlannedRanks, RankTimes, plan_run};
use std::fs;
use std::path::Path;

/// GPUs of one kind that no run has used yet; none without one that stores f16.
fn new_gpus(count: usize) -> Vec<Device> {
    let gpus = (0..count).filter_map(|_| gpu_for_tests()).map(Device::Gpu);
    gpus.filter(Device::has_f16).collect()
}

/// Mixed precision, with parameters that are read as f32 and others that matmuls alone read, a head among them.
const MIXED: [&str; 5] = [
    "device.precision=mixed",
    "model.tie_embeddings=false",
    "train.max_steps=12",
    "train.eval_every=6",
    "train.shard_optimizer=true",
];

/// Runs with these settings: one that divides nothing, and one that divides what the optimizer remembers.
fn whole_and_divided(dir: &Path, gpus: &[Device], settings: &[&str]) -> [Run; 2] {
    let undivided = [settings, &["train.shard_optimizer=false"]].concat();
    [("whole", &undivided[..]), ("divided", settings)].map(|(name, settings)| trained(dir, name, gpus, settings))
}

/// With weights divided among them too: they compute, evaluate, sample and save what whole ones do.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn ranks_that_divide_the_weights_of_mixed_precision_have_the_bits_of_whole_ones() {
    let dir = tempfile::tempdir().unwrap();
    let qwen3 = ["model.kind=qwen3", "model.bias=false", "model.tie_embeddings=true", "train.recompute=block"];
    for (ranks, more) in [
        (2, &[][..]),
        (3, &["train.batch_size=3", "train.grad_accum_steps=1"]),
        (2, &["optimizer.kind=muon"]),
        (4, &qwen3),
    ] {
        let settings = [&MIXED[..], &["train.max_steps=6", "train.eval_every=3"], more].concat();
        let name = |what: &str| format!("{ranks}-{}-{what}", more.len());
        let (gpus, others) = (new_gpus(ranks), new_gpus(ranks));
        if gpus.is_empty() {
            return;
        }
        let undivided = [&settings[..], &["train.shard_optimizer=false"]].concat();
        let whole = trained(dir.path(), &name("whole"), &others, &undivided);
        let divided = trained(dir.path(), &name("divided"), &gpus, &settings);
        if more == ["optimizer.kind=muon"] {
            // The batches of its GEMMs are others.
            assert!(largest_loss_difference(&whole, &divided) < 1e-4);
        } else {
            assert_eq!(whole.losses, divided.losses, "{ranks}");
            assert_eq!(whole.evaluations, divided.evaluations, "{ranks}");
            assert!(files(&whole) == files(&divided), "{ranks}");
            let samples = |run: &Run| fs::read(run.summary.folder.join("samples.txt")).unwrap();
            assert!(samples(&whole) == samples(&divided));
        }
        has_the_planned_memory(&configuration(dir.path(), "plan", &settings), &whole, &divided, &gpus);
    }
}

/// Of the weights each rank has f16 copies, what is read as f32, and 1/N of the rest; as much as was planned.
fn has_the_planned_memory(resolved: &Resolved, whole: &Run, divided: &Run, gpus: &[Device]) {
    let of = |gpu: &Device| {
        let kinds = gpu.memory().peak_by_kind;
        let of_kind = |kind| kinds[kind] as u64;
        [MemoryKind::Parameters, MemoryKind::OptimizerState, MemoryKind::Activations].map(of_kind)
    };
    let ranks = PlannedRanks { count: gpus.len(), ..PlannedRanks::ONE };
    let plan = plan_run(resolved, &gpus[0], ranks, Path::new("data"), None).unwrap().memory;
    let [used, moments, activations] = gpus.iter().map(of).max_by_key(|[w, moments, _]| w + moments).unwrap();
    assert_eq!([used, moments], [plan.weights + plan.f16_copies, plan.moments]);
    // A mean loss, in a buffer of 256 bytes, may wait until it is read.
    assert!((plan.activations..=plan.activations + 256).contains(&activations), "{activations} {}", plan.activations);
    let bytes = |run: &Run| run.summary.ranks.iter().map(|rank| rank.weights).collect::<Vec<_>>();
    let (all, parts) = (bytes(whole), bytes(divided));
    // Of each parameter 4 bytes and 2.
    let (parameters, f16_copies) = (all[0] / 6, all[0] / 3);
    let is_linear = |name: &str| (name.contains(".c_") || name.contains("_proj")) && name.ends_with(".weight");
    let of_matmuls = |name: &str| name.contains("lm_head") || is_linear(name);
    let matrices: usize = weights(whole).iter().filter(|(name, _)| of_matmuls(name)).map(|(_, w)| w.len()).sum();
    let (shared, in_f32) = (parameters - matrices, parts.iter().map(|bytes| (bytes - f16_copies) / 4));
    // A part may be of what all have anyway; parameters are padded to 256 elements.
    assert!(in_f32.clone().all(|part| part <= shared + parameters / gpus.len() + 256), "{parts:?} of {all:?}");
    let own: usize = in_f32.map(|part| part.saturating_sub(shared)).sum();
    assert!(own <= matrices && own + 256 * 2 * gpus.len() >= matrices, "{own} of {matrices}: {parts:?} of {all:?}");
}

/// It stops, goes on divided among other numbers of ranks, in mixed precision on one, and where nothing is divided.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_run_that_divides_weights_goes_on_with_any_number_of_ranks() {
    let gpus = new_gpus(4);
    if gpus.is_empty() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| configuration(dir.path(), name, &MIXED));
    let whole = run(&whole, &gpus[..2], false, 0).unwrap();
    run(&parts, &gpus[..2], false, 5).unwrap();
    let two = run(&parts, &gpus[..2], true, 8).unwrap();
    assert_eq!(two.losses, whole.losses[5..8], "as many go on to the bit");
    let four = run(&parts, &gpus, true, 10).unwrap();
    let undivided = configuration(dir.path(), "parts", &[&MIXED[..4], &["train.shard_optimizer=false"]].concat());
    let one = run(&undivided, &gpus[..1], true, 0).unwrap();
    let losses: Vec<f64> = four.losses.iter().chain(&one.losses).copied().collect();
    // Sums of f16 in another order.
    let are_close = losses.iter().zip(&whole.losses[8..]).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(are_close && losses.len() == 4, "{losses:?}, whole {:?}", whole.losses);
}

/// A run that diverges goes back to a checkpoint, from which rank 0 has the weights of all.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn ranks_that_divide_weights_go_back_together() {
    let dir = tempfile::tempdir().unwrap();
    let gpus = new_gpus(2);
    if gpus.is_empty() {
        return;
    }
    let diverging = ["train.learning_rate=1", "train.warmup_steps=8", "train.max_steps=20", "checkpoint.every=4"];
    let guard = ["guard.spike_z=4", "guard.spike_window=6", "guard.learning_rate_factor=0.001"];
    let settings = [&MIXED[..], &diverging, &guard].concat();
    let [whole, divided] = whole_and_divided(dir.path(), &gpus, &settings);
    assert!(whole.losses.len() > 20, "it goes back: {:?}", whole.losses);
    assert_eq!(whole.losses, divided.losses);
    assert!(files(&whole) == files(&divided));
}

/// A run with averages keeps all weights on every rank.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn averages_of_the_weights_are_kept_beside_divided_moments() {
    let dir = tempfile::tempdir().unwrap();
    let gpus = new_gpus(2);
    if gpus.is_empty() {
        return;
    }
    let settings = [&MIXED[..], &["train.ema_decay=0.9", "train.max_steps=6"]].concat();
    let [whole, divided] = whole_and_divided(dir.path(), &gpus, &settings);
    assert!(files(&whole) == files(&divided) && whole.evaluations == divided.evaluations);
    let of = |run: &Run, of: fn(&RankTimes) -> usize| run.summary.ranks.iter().map(of).collect::<Vec<_>>();
    assert_eq!(of(&whole, |rank| rank.weights), of(&divided, |rank| rank.weights));
    assert!(of(&divided, |rank| rank.moments)[0] < of(&whole, |rank| rank.moments)[0]);
}
