//! Several ranks compute what one does with accumulation.

mod divided;
mod exchanged;
mod out_of_memory;

use crate::config::{Layers, Resolved};
use crate::gpu::gpu_for_tests;
use crate::train::{Evaluation, Event, Summary, TrainOptions, train};
use crate::{Device, Error};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Steps of four batches of 4 sequences, with dropout.
fn configuration(dir: &Path, name: &str, settings: &[&str]) -> Resolved {
    let text = format!(
        "[run]\ndir = {dir:?}\nname = {name:?}\n[data]\ntokenizer = \"char\"\n[model]\nn_layer = 2\nn_head = 2\n\
         n_embd = 16\nblock_size = 16\ndropout = 0.1\n[train]\nbatch_size = 4\ngrad_accum_steps = 4\nmax_steps = 20\n\
         eval_every = 20\neval_batches = 2\nlearning_rate = 0.003\ngrad_clip = 0\ncomm_timeout = 20\n[checkpoint]\n\
         every = 10\n[log]\nevery = 1\n[generate]\nmax_new_tokens = 1\n"
    );
    let layers = Layers::new().toml_str("test.toml", &text).unwrap();
    settings.iter().fold(layers, |layers, setting| layers.set(setting).unwrap()).build().unwrap()
}

/// What a run came to: its summary, the loss of every step that was logged, and the evaluations.
struct Run {
    summary: Summary,
    losses: Vec<f64>,
    evaluations: Vec<Evaluation>,
    notes: Vec<String>,
}

/// Trains on these devices, until `stop_at` if that is a step of the run.
fn run(resolved: &Resolved, devices: &[Device], resume: bool, stop_at: usize) -> Result<Run, Error> {
    let (stop, mut losses, mut notes) = (AtomicBool::new(false), Vec::new(), Vec::new());
    let mut evaluations = Vec::new();
    let folder = Path::new(&resolved.config.run.dir).join(&resolved.config.run.name);
    let options = TrainOptions {
        device: devices[0].clone(),
        others: &devices[1..],
        launch: None,
        started: Instant::now(),
        reopen: None,
        data_dir: Path::new("data"),
        cache_dir: None,
        resume: resume.then_some(&*folder),
        stop: &stop,
        training_log: None,
        trace: None,
        on_event: &mut |event| match event {
            Event::Step(step) => losses.push(step.loss),
            Event::Evaluated { result, .. } => evaluations.push(result.clone()),
            Event::Note(note) => notes.push(note.clone()),
            Event::Progress { step } if *step == stop_at => stop.store(true, Ordering::Relaxed),
            _ => {}
        },
    };
    let summary = train(resolved, options)?;
    Ok(Run { summary, losses, evaluations, notes })
}

fn trained(dir: &Path, name: &str, devices: &[Device], settings: &[&str]) -> Run {
    run(&configuration(dir, name, settings), devices, false, 0).unwrap()
}

/// Weights and moments of a run's last checkpoint.
fn files(run: &Run) -> [Vec<u8>; 2] {
    let name = fs::read_to_string(run.summary.folder.join("last")).unwrap();
    let folder = run.summary.folder.join("checkpoints").join(name.trim());
    ["model.safetensors", "optimizer.safetensors"].map(|name| fs::read(folder.join(name)).unwrap())
}

/// The weights of a run's last checkpoint.
fn weights(run: &Run) -> BTreeMap<String, Vec<f32>> {
    let [file, _] = files(run);
    let tensors = SafeTensors::deserialize(&file).unwrap();
    tensors.iter().map(|(name, view)| (name.to_string(), bytemuck::pod_collect_to_vec(view.data()))).collect()
}

fn largest_difference(a: &Run, b: &Run) -> f32 {
    let (a, b) = (weights(a), weights(b));
    assert!(a.keys().eq(b.keys()));
    largest(a.values().flatten().zip(b.values().flatten()).map(|(a, b)| (a - b).abs()))
}

fn largest_loss_difference(a: &Run, b: &Run) -> f64 {
    assert_eq!(a.losses.len(), b.losses.len());
    largest(a.losses.iter().zip(&b.losses).map(|(a, b)| (a - b).abs()))
}

/// The largest, or a NaN if there is one.
fn largest<T: PartialOrd + Default>(differences: impl Iterator<Item = T>) -> T {
    differences.fold(T::default(), |largest, difference| {
        let is_nan = difference.partial_cmp(&difference).is_none();
        if is_nan || difference > largest { difference } else { largest }
    })
}

/// Devices that take part in one job.
fn teams() -> Vec<Vec<Device>> {
    let mut teams = vec![vec![Device::Cpu; 2], vec![Device::Cpu; 4]];
    // The same for all tests: what one compiled, the others need not.
    static GPUS: LazyLock<Option<[Device; 2]>> =
        LazyLock::new(|| Some([Device::Gpu(gpu_for_tests()?), Device::Gpu(gpu_for_tests()?)]));
    if let Some(gpus) = &*GPUS {
        teams.extend([gpus.to_vec(), vec![Device::Cpu, gpus[0].clone()]]);
    }
    teams
}

/// Runs of one rank, by the name of its device: teams that begin with the same device are compared with the same run.
#[derive(Default)]
struct Alone(BTreeMap<String, Run>);

impl Alone {
    /// That of a team's first device, which `train` makes if there is none yet.
    fn of(&mut self, team: &[Device], train: impl FnOnce(&[Device]) -> Run) -> &Run {
        self.0.entry(team[0].name()).or_insert_with(|| train(&team[..1]))
    }
}

/// One step of plain SGD at a learning rate of 1: the weights have lost their gradients.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn the_gradients_of_a_step_are_those_of_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        "train.max_steps=1",
        "train.learning_rate=1",
        "optimizer.kind=sgd",
        "optimizer.momentum=0",
        "train.warmup_steps=0",
        // The windows of two steps, and some of a third.
        "train.eval_batches=9",
    ];
    // Of wide ones the rows of the token embeddings are sent apart.
    let models = [
        ["model.kind=gpt2", "model.n_embd=16", "model.tie_embeddings=true"],
        ["model.kind=gpt2", "model.n_embd=64", "model.tie_embeddings=true"],
        ["model.kind=gpt2", "model.n_embd=64", "model.tie_embeddings=false"],
        ["model.kind=qwen3", "model.n_embd=16", "model.tie_embeddings=true"],
        ["model.kind=lstm", "model.n_embd=64", "model.tie_embeddings=false"],
    ];
    for (number, kind) in models.iter().enumerate() {
        let settings = [&settings[..], kind].concat();
        // A GPU may lead too.
        let led_by_gpu = gpu_for_tests().map(|gpu| vec![Device::Gpu(gpu), Device::Cpu]);
        let mut alone = Alone::default();
        for (i, team) in teams().into_iter().chain(led_by_gpu).enumerate() {
            let train = |devices: &[Device]| {
                let name = format!("{number}-{i}-{}", devices.len());
                trained(dir.path(), &name, devices, &settings)
            };
            let (one, all) = (alone.of(&team, train), train(&team));
            let difference = largest_difference(one, &all);
            assert!(difference < 1e-6, "{kind:?}, {team:?}: {difference}");
            assert!(largest_loss_difference(one, &all) < 1e-6, "{kind:?}, {team:?}");
            let [one, all] = [one, &all].map(|run| &run.evaluations[0]);
            assert!(one.tokens == all.tokens && one.tokens >= 36 * 16 - 1, "{kind:?}, {team:?}: {one:?} {all:?}");
            assert!((one.loss - all.loss).abs() < 1e-6, "{kind:?}, {team:?}: {one:?} {all:?}");
        }
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn losses_of_adamw_and_weights_of_sgd_stay_those_of_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let (mut adamw_alone, mut sgd_alone) = (Alone::default(), Alone::default());
    for (i, team) in teams().iter().enumerate() {
        let train = |devices: &[Device], optimizer: &str| {
            let name = format!("{i}-{optimizer}-{}", devices.len());
            trained(dir.path(), &name, devices, &[&format!("optimizer.kind={optimizer}")])
        };
        let (one, all) = (adamw_alone.of(team, |device| train(device, "adamw")), train(team, "adamw"));
        assert_eq!(one.losses.len(), 20);
        let difference = largest_loss_difference(one, &all);
        assert!(difference < 1e-5, "{team:?}: {difference}");
        assert_eq!(all.summary.ranks.len(), team.len());
        // Adam amplifies rounding where a gradient is zero.
        let (one, all) = (sgd_alone.of(team, |device| train(device, "sgd")), train(team, "sgd"));
        let difference = largest_difference(one, &all);
        assert!(difference < 1e-6, "{team:?}: {difference}");
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn two_runs_of_as_many_ranks_have_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    for (i, team) in teams().iter().enumerate() {
        // Gradients that are clipped, a rank that computes in parts of batches, and bits that are lost on the way.
        let settings = [
            "train.grad_clip=0.5",
            "train.max_steps=12",
            "train.batch_size=8",
            "train.grad_accum_steps=1",
            "train.reduce_dtype=f16",
            // Rows of the token embeddings that are sent apart.
            "model.n_embd=64",
        ];
        let [a, b] = ["a", "b"].map(|name| trained(dir.path(), &format!("{i}{name}"), team, &settings));
        assert_eq!(a.losses, b.losses, "{team:?}");
        assert_eq!(a.evaluations, b.evaluations, "{team:?}");
        assert!(weights(&a) == weights(&b), "{team:?}");
    }
}

/// Also where the devices round differently: all have the same bits after a checkpoint.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_run_that_is_resumed_has_the_bits_of_one_that_never_stopped() {
    let dir = tempfile::tempdir().unwrap();
    for (i, team) in teams().iter().enumerate() {
        let (steps, every) = ("train.max_steps=10", "checkpoint.every=4");
        let settings = [steps, every, "train.ema_decay=0.9", "optimizer.kind=muon", "model.n_embd=64"];
        let [whole, halves] =
            ["whole", "halves"].map(|name| configuration(dir.path(), &format!("{i}{name}"), &settings));
        let whole = run(&whole, team, false, 0).unwrap();
        assert_eq!(run(&halves, team, false, 4).unwrap().summary.steps, 4);
        let resumed = run(&halves, team, true, 0).unwrap();
        assert!(weights(&whole) == weights(&resumed), "{team:?}");
        assert_eq!(whole.losses[4..], resumed.losses, "{team:?}");
        assert!(resumed.notes.iter().all(|note| !note.contains("continues on")), "{:?}", resumed.notes);
    }
}

/// The same sequences in the same order, so that only sums differ.
#[test]
fn a_run_can_go_on_with_another_number_of_ranks_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| configuration(dir.path(), name, &["train.max_steps=30"]));
    let whole = run(&whole, &[Device::Cpu], false, 0).unwrap();
    run(&parts, &vec![Device::Cpu; 4], false, 10).unwrap();
    let two = run(&parts, &vec![Device::Cpu; 2], true, 20).unwrap();
    assert!(two.notes.iter().any(|note| note.contains("4 x cpu") && note.contains("2 x cpu")), "{:?}", two.notes);
    let one = run(&parts, &[Device::Cpu], true, 0).unwrap();
    let losses = two.losses.iter().chain(&one.losses);
    let are_close = losses.zip(&whole.losses[10..]).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(are_close && one.losses.len() == 10, "{:?} {:?}, whole {:?}", two.losses, one.losses, whole.losses);
}

/// With moments divided among them ranks make the same updates, and leave the same checkpoint.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn ranks_that_divide_the_moments_compute_what_whole_ones_do() {
    let dir = tempfile::tempdir().unwrap();
    let teams = teams();
    let cases = teams.iter().flat_map(|team| ["f32", "int8"].map(|dtype| (team, dtype)));
    for (i, (team, dtype)) in cases.enumerate() {
        let dtype = format!("optimizer.state_dtype={dtype}");
        let settings = ["train.max_steps=12", "train.ema_decay=0.9", &dtype, "train.shard_optimizer=true"];
        let [whole, sharded] = [&settings[..3], &settings[..]].map(|settings| {
            let name = format!("{i}-{}", settings.len());
            trained(dir.path(), &name, team, settings)
        });
        let devices_are_alike = team.iter().all(|device| device.name() == team[0].name());
        if devices_are_alike {
            assert_eq!(whole.losses, sharded.losses, "{team:?}");
            assert!(files(&whole) == files(&sharded), "{team:?} {dtype}");
        } else {
            assert!(largest_loss_difference(&whole, &sharded) < 1e-5, "{team:?} {dtype}");
        }
        let moments = |run: &Run| run.summary.ranks.iter().map(|rank| rank.moments).collect::<Vec<_>>();
        let (whole, parts) = (moments(&whole), moments(&sharded));
        assert_eq!(parts.iter().sum::<usize>(), whole[0], "{team:?} {dtype}");
        // Parts are whole blocks of 256 elements.
        assert!(parts.iter().all(|part| *part <= whole[0] / team.len() + 2048), "{parts:?} of {whole:?}");
        // It stops, goes on divided among as many, and then on one alone.
        let halves = configuration(dir.path(), &format!("{i}-halves"), &settings);
        run(&halves, team, false, 4).unwrap();
        run(&halves, team, true, 8).unwrap();
        let losses = run(&halves, &team[..1], true, 0).unwrap().losses;
        let mut pairs = losses.iter().zip(&sharded.losses[8..]);
        assert!(losses.len() == 4 && pairs.all(|(a, b)| (a - b).abs() < 1e-5), "{team:?} {dtype}");
    }
}

/// What a step of SGD after each of which the ranks meet comes to does not depend on their number.
#[test]
fn ranks_that_meet_after_each_step_of_sgd_compute_what_one_does() {
    let dir = tempfile::tempdir().unwrap();
    // Few steps: a weight of 0.5 rounds each change by 3e-8, which the outer momentum makes up to seven times larger.
    let settings = ["optimizer.kind=sgd", "optimizer.momentum=0", "train.max_steps=6", "train.sync_every=1"];
    let (mut alone, mut without_outer_step) = (Alone::default(), Alone::default());
    for (i, team) in teams().iter().enumerate() {
        let train = |team: &[Device]| trained(dir.path(), &format!("{i}-{}", team.len()), team, &settings);
        let (one, all) = (alone.of(team, train), train(team));
        let plain = |device: &[Device]| trained(dir.path(), &format!("{i}-plain"), device, &settings[..3]);
        let difference = largest_difference(one, &all);
        assert!(difference < 1e-6, "{team:?}: {difference}");
        let difference = largest_difference(one, without_outer_step.of(team, plain));
        assert!(difference > 1e-4, "the outer step does something");
    }
}

const APART: [&str; 4] = ["train.sync_every=5", "train.max_steps=23", "train.eval_every=10", "checkpoint.every=10"];

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn ranks_that_train_apart_go_on_from_a_checkpoint_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    for (i, team) in teams().iter().enumerate() {
        // What is sent as f16 is made on the host.
        let dtypes = if team.iter().all(|device| !device.is_gpu()) { &["f32", "f16"][..] } else { &["f32"] };
        for dtype in dtypes {
            let dtype_set = format!("train.reduce_dtype={dtype}");
            let settings = [&APART[..], &[&dtype_set]].concat();
            let [whole, halves] =
                ["whole", "halves"].map(|name| configuration(dir.path(), &format!("{i}{dtype}{name}"), &settings));
            let whole = run(&whole, team, false, 0).unwrap();
            // It stops where the ranks meet next.
            assert_eq!(run(&halves, team, false, 7).unwrap().summary.steps, 10);
            let resumed = run(&halves, team, true, 0).unwrap();
            assert!(files(&whole) == files(&resumed), "{team:?} {dtype}");
            assert_eq!(whole.losses[10..], resumed.losses, "{team:?} {dtype}");
            assert!(whole.losses[22] < whole.losses[0] - 0.1, "it learns: {:?}", whole.losses);
        }
    }
}

#[test]
fn another_number_of_ranks_takes_the_mean_of_the_moments_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let parts = configuration(dir.path(), "parts", &APART);
    run(&parts, &vec![Device::Cpu; 4], false, 10).unwrap();
    let two = run(&parts, &vec![Device::Cpu; 2], true, 0).unwrap();
    let said = |note: &String| note.contains("moments of 4 devices") && note.contains("on 2 each begins");
    assert!(two.notes.iter().any(said), "{:?}", two.notes);
    assert_eq!(two.losses.len(), 13);
}

/// A run goes back while the others are in the middle of a round: as often as it may, for what the outer step has
/// spoilt does not depend on the learning rate.
#[test]
fn ranks_that_train_apart_go_back_together() {
    let dir = tempfile::tempdir().unwrap();
    let spikes = ["train.learning_rate=3", "train.warmup_steps=40", "train.max_steps=60", "guard.spike_z=5"];
    let settings = [&APART[..], &spikes, &["guard.spike_window=8", "guard.max_rollbacks=2"]].concat();
    let error = run(&configuration(dir.path(), "a", &settings), &vec![Device::Cpu; 2], false, 0).map(drop).unwrap_err();
    assert!(matches!(error, Error::Diverged { rollbacks: 2, .. }), "{error}");
}

/// Steps of two batches of a text whose epochs end within steps.
fn recurrent(dir: &Path, name: &str, settings: &[&str]) -> Resolved {
    let text = dir.join("text.txt");
    fs::write(&text, "the cat sat on the mat; a dog dug a den. ".repeat(20)).unwrap();
    let corpus = format!("data.corpus={}", text.display());
    let common = [&*corpus, "model.kind=gru", "model.block_size=10", "train.grad_accum_steps=2", "train.eval_every=0"];
    configuration(dir, name, &[&common, settings].concat())
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn ranks_of_a_recurrent_model_carry_the_states_of_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut alone = Alone::default();
    for (i, team) in teams().iter().enumerate() {
        let train = |team: &[Device]| {
            let settings = ["model.kind=lstm", "train.max_steps=50"];
            run(&recurrent(dir.path(), &format!("{i}-{}", team.len()), &settings), team, false, 0).unwrap()
        };
        let (one, all) = (alone.of(team, train), train(team));
        let difference = largest_loss_difference(one, &all);
        assert!(all.losses.len() == 50 && difference < 1e-5, "{team:?}: {difference}");
        assert!(all.losses[49] < all.losses[0] - 0.2, "it learns: {:?}", all.losses);
        assert_eq!(states(one).count(), states(&all).count(), "{team:?}");
        let difference = largest(states(one).zip(states(&all)).map(|(a, b)| (a - b).abs()));
        assert!(difference < 1e-5, "{team:?}: {difference}");
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_recurrent_model_goes_on_on_several_ranks_to_the_bit_and_on_another_number() {
    let dir = tempfile::tempdir().unwrap();
    for (i, team) in teams().iter().enumerate() {
        for (apart, every) in [("together", "train.sync_every=0"), ("apart", "train.sync_every=2")] {
            let settings = [every, "train.max_steps=8"];
            let [whole, halves] =
                ["whole", "halves"].map(|name| recurrent(dir.path(), &format!("{i}{apart}{name}"), &settings));
            let whole = run(&whole, team, false, 0).unwrap();
            assert_eq!(run(&halves, team, false, 4).unwrap().summary.steps, 4);
            let resumed = run(&halves, team, true, 0).unwrap();
            assert_eq!(whole.losses[4..], resumed.losses, "{team:?} {apart}");
            assert!(files(&whole) == files(&resumed) && states(&whole).eq(states(&resumed)), "{team:?} {apart}");
        }
    }
    let settings = ["train.max_steps=30"];
    let [whole, parts] = ["whole", "parts"].map(|name| recurrent(dir.path(), name, &settings));
    let whole = run(&whole, &[Device::Cpu], false, 0).unwrap();
    run(&parts, &vec![Device::Cpu; 4], false, 10).unwrap();
    let two = run(&parts, &vec![Device::Cpu; 2], true, 20).unwrap();
    let one = run(&parts, &[Device::Cpu], true, 0).unwrap();
    let losses = two.losses.iter().chain(&one.losses);
    let are_close = losses.zip(&whole.losses[10..]).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(are_close && one.losses.len() == 10, "{:?} {:?}, whole {:?}", two.losses, one.losses, whole.losses);
}

/// What a recurrent model knew at a run's last checkpoint.
fn states(run: &Run) -> impl Iterator<Item = f32> {
    let name = fs::read_to_string(run.summary.folder.join("last")).unwrap();
    let path = run.summary.folder.join("checkpoints").join(name.trim()).join("recurrent_state.safetensors");
    let file = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let of = |name| bytemuck::pod_collect_to_vec::<u8, f32>(tensors.tensor(name).unwrap().data());
    ["h", "c"].into_iter().take(tensors.len()).flat_map(of).collect::<Vec<f32>>().into_iter()
}

#[test]
fn sequences_that_cannot_be_divided_are_refused_before_there_is_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let resolved = configuration(dir.path(), "a", &["train.batch_size=5", "train.grad_accum_steps=1"]);
    let error = run(&resolved, &vec![Device::Cpu; 3], false, 0).map(drop).unwrap_err().to_string();
    assert!(error.contains("5 x 1 = 5 sequences") && error.contains("a multiple of 3"), "{error}");
    assert!(!dir.path().join("a").exists());
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn devices_that_differ_and_share_evenly_are_told_of_a_better_way() {
    let dir = tempfile::tempdir().unwrap();
    for (i, team) in teams().iter().enumerate() {
        let batches = ["[]", "[1,1]", "auto"].into_iter().take(if team.len() == 2 { 3 } else { 1 });
        for (j, batch) in batches.enumerate() {
            let settings = ["train.max_steps=1", &format!("train.device_batch={batch}")];
            let notes = trained(dir.path(), &format!("{i}-{j}"), team, &settings).notes;
            let is_told = notes.iter().any(|note| note.contains("the devices differ") && note.contains("\"auto\""));
            let differ = team.iter().any(|device| device.name() != team[0].name());
            assert_eq!(is_told, differ && batch == "[]", "{team:?} {batch}: {notes:?}");
        }
    }
}

/// An error of one rank is that of the job, which ends.
#[test]
fn a_rank_that_fails_ends_the_job_with_its_reason() {
    let Some(gpu) = gpu_for_tests() else { return };
    let dir = tempfile::tempdir().unwrap();
    let resolved = configuration(dir.path(), "a", &["train.max_steps=100000"]);
    let lost = gpu.clone();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        lost.lose_for_tests();
    });
    let started = Instant::now();
    let error = run(&resolved, &[Device::Cpu, Device::Gpu(gpu)], false, 0).map(drop).unwrap_err().to_string();
    killer.join().unwrap();
    assert!(error.contains("rank 1") && error.contains("lost"), "{error}");
    assert!(started.elapsed().as_secs() < 15, "{:?}", started.elapsed());
}
