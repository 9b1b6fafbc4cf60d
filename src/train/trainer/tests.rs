//! Runs that go bad, and steps that are computed in parts.

mod same_step;

use super::*;
use crate::config::{Layers, Resolved};
use crate::data::Batch;
use crate::optim::{Optimizer, ParameterArena};
use crate::step::GradientSync;
use crate::train::step::replica::{counts, next_batches};
use crate::{Device, Tensor};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Every device in f32, and the GPU in mixed precision.
fn precisions() -> impl Iterator<Item = (Device, &'static str)> {
    let mixed = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "device.precision=mixed"));
    Device::for_tests().into_iter().map(|device| (device, "device.precision=f32")).chain(mixed)
}

fn options<'a>(device: &Device, stop: &'a AtomicBool, on_event: &'a mut dyn FnMut(&Event)) -> TrainOptions<'a> {
    let (device, data_dir) = (device.clone(), Path::new("data"));
    TrainOptions {
        device,
        others: &[],
        launch: None,
        started: Instant::now(),
        reopen: None,
        data_dir,
        cache_dir: None,
        resume: None,
        stop,
        training_log: None,
        trace: None,
        on_event,
    }
}

/// Forty steps of a small model, with checkpoints at each fifth.
fn configuration(dir: &Path, settings: &[&str]) -> Resolved {
    let text = format!(
        "[run]\ndir = {dir:?}\nname = \"a\"\n[data]\ntokenizer = \"char\"\n[model]\nn_layer = 2\nn_head = 2\n\
         n_embd = 16\nblock_size = 16\n[train]\nbatch_size = 4\nmax_steps = 40\neval_every = 0\neval_batches = 2\n\
         learning_rate = 0.01\n[checkpoint]\nevery = 5\n[log]\nevery = 1\n[generate]\nmax_new_tokens = 1\n"
    );
    let layers = Layers::new().toml_str("test.toml", &text).unwrap();
    settings.iter().fold(layers, |layers, setting| layers.set(setting).unwrap()).build().unwrap()
}

/// Trains, and at step `at` changes one value of the weight `name`; what happened, and the error or the last loss.
fn train_with_damage(
    resolved: &Resolved,
    device: &Device,
    damages: &[(usize, &str, f32)],
) -> (Vec<Event>, Result<f64>) {
    let (stop, mut events) = (AtomicBool::new(false), Vec::new());
    let mut stops: Vec<usize> = damages.iter().map(|(at, ..)| *at).rev().collect();
    let mut on_event = |event: &Event| {
        if matches!(event, Event::Progress { step } if stops.last() == Some(step)) {
            stops.pop();
            stop.store(true, Ordering::Relaxed);
        }
        events.push(event.clone());
    };
    let mut trainer = Trainer::prepare(resolved, options(device, &stop, &mut on_event)).unwrap();
    let mut outcome = trainer.run();
    for (_, name, value) in damages {
        assert!(stop.swap(false, Ordering::Relaxed), "the run came to the damage");
        let entry = trainer.replica.parameters.entries.iter().find(|entry| entry.name == *name).unwrap();
        let tensors = trainer.replica.parameters.of_entry(entry);
        let mut values = tensors[0].to_f32().unwrap();
        values[3] = *value;
        tensors[0].write_bytes(bytemuck::cast_slice(&values)).unwrap();
        if let Some(half) = tensors.get(2) {
            let values: Vec<half::f16> = values.into_iter().map(half::f16::from_f32).collect();
            half.write_bytes(bytemuck::cast_slice(&values)).unwrap();
        }
        outcome = trainer.run();
    }
    let loss = outcome.and_then(|()| trainer.finish()).map(|summary| summary.train_loss.unwrap());
    (events, loss)
}

fn rollbacks(events: &[Event]) -> Vec<(usize, usize, &str)> {
    let is_rollback = |event: &'_ Event| matches!(event, Event::RolledBack { .. });
    let rollbacks = events.iter().filter(|event| is_rollback(event)).map(|event| match event {
        Event::RolledBack { from_step, step, cause, .. } => (*from_step, *step, &**cause),
        _ => unreachable!("filtered"),
    });
    rollbacks.collect()
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_weight_that_becomes_nan_is_named_and_the_run_goes_on_from_the_checkpoint_before() {
    for (device, precision) in precisions() {
        let dir = tempfile::tempdir().unwrap();
        let resolved = configuration(dir.path(), &[precision]);
        let undisturbed = configuration(dir.path(), &["run.name=good", precision]);
        let (_, good) = train_with_damage(&undisturbed, &device, &[]);
        let damage = (17, "h.1.mlp.c_fc.weight", f32::NAN);
        let (events, loss) = train_with_damage(&resolved, &device, &[damage]);
        let [(18, 15, cause)] = rollbacks(&events)[..] else { panic!("{device}: {:?}", rollbacks(&events)) };
        for part in [
            "the loss is NaN at step 18",
            "the weight h.1.mlp.c_fc.weight has 1 NaN and 0 infinite among 1024 values, the others from ",
            "the first output that is not finite is of op ",
            " in layer h.1.mlp.c_fc: ",
            "(step 18, batch from window 68 of epoch 0)",
        ] {
            assert!(cause.contains(part), "{device}: {part:?} is missing in: {cause}");
        }
        let (loss, good) = (loss.unwrap(), good.unwrap());
        assert!((loss - good).abs() < 0.3, "{device}: {loss}, undisturbed {good}");
        let metrics = std::fs::read_to_string(dir.path().join("a/metrics.jsonl")).unwrap();
        let steps: Vec<_> = metrics.lines().filter(|line| line.contains("\"kind\":\"train\"")).collect();
        assert_eq!(steps.len(), 40, "{device}: each step once");
        assert!(metrics.contains("\"kind\":\"rollback\",\"from_step\":18,\"step\":15"), "{device}");
    }
}

#[test]
fn a_spike_of_the_loss_leads_back_to_the_checkpoint_before() {
    let dir = tempfile::tempdir().unwrap();
    let resolved = configuration(dir.path(), &["guard.spike_z=8", "guard.spike_window=6"]);
    let (events, loss) = train_with_damage(&resolved, &Device::Cpu, &[(28, "ln_f.weight", 400.0)]);
    let [(29, 25, cause)] = rollbacks(&events)[..] else { panic!("{:?}", rollbacks(&events)) };
    assert!(cause.contains("standard deviations above the mean"), "{cause}");
    let (events, undisturbed) = train_with_damage(&resolved, &Device::Cpu, &[]);
    assert!(rollbacks(&events).is_empty(), "{:?}", rollbacks(&events));
    let (loss, undisturbed) = (loss.unwrap(), undisturbed.unwrap());
    assert!((loss - undisturbed).abs() < 0.3, "{loss}, undisturbed {undisturbed}");
}

#[test]
fn skipped_updates_are_reported_and_after_too_many_the_run_ends_with_a_diagnosis() {
    for (device, precision) in precisions() {
        let dir = tempfile::tempdir().unwrap();
        let resolved = configuration(dir.path(), &["guard.non_finite=skip", "guard.max_skips=3", precision]);
        let (events, loss) = train_with_damage(&resolved, &device, &[(7, "h.0.attn.c_attn.weight", f32::INFINITY)]);
        let notes = events.iter().filter(|e| matches!(e, Event::Note(text) if text.contains("were skipped")));
        assert_eq!(notes.count(), 3, "{device}");
        let error = loss.unwrap_err().to_string();
        for part in [
            "training diverged: ",
            " at step 11; the weight h.0.attn.c_attn.weight has 0 NaN and 1 infinite",
            "layer h.0.attn",
        ] {
            assert!(error.contains(part), "{device}: {part:?} is missing in: {error}");
        }
    }
}

#[test]
fn a_run_gives_up_after_so_many_rollbacks() {
    let dir = tempfile::tempdir().unwrap();
    let resolved = configuration(dir.path(), &["guard.max_rollbacks=1"]);
    let damage = |at| (at, "wte.weight", f32::NAN);
    let (events, loss) = train_with_damage(&resolved, &Device::Cpu, &[damage(12), damage(22)]);
    assert_eq!(rollbacks(&events).len(), 1);
    let error = loss.unwrap_err().to_string();
    assert!(error.contains("training diverged for the 2nd time") && error.contains("wte.weight"), "{error}");
}

#[test]
fn label_smoothing_is_what_is_minimized_and_not_what_evaluations_measure() {
    for device in Device::for_tests() {
        let losses = ["0.0", "0.5"].map(|smoothing| {
            let dir = tempfile::tempdir().unwrap();
            let smoothing = format!("train.label_smoothing={smoothing}");
            // So small that the weights stay as they are.
            let settings = ["train.max_steps=1", "train.learning_rate=1e-30", "model.dropout=0.2", &smoothing];
            let (events, loss) = train_with_damage(&configuration(dir.path(), &settings), &device, &[]);
            let finished = |event: &Event| if let Event::Finished(s) = event { s.validation.clone() } else { None };
            (loss.unwrap(), events.iter().find_map(finished).unwrap().loss)
        });
        let [(plain, validation), (smoothed, same)] = losses;
        assert_eq!(validation, same, "{device}");
        assert_ne!(plain, smoothed, "{device}");
    }
}

#[test]
fn a_run_without_patience_ends_when_the_validation_loss_rises() {
    let dir = tempfile::tempdir().unwrap();
    let settings = ["guard.patience=2", "train.eval_every=3", "train.learning_rate=3", "train.warmup_steps=0"];
    let (events, loss) = train_with_damage(&configuration(dir.path(), &settings), &Device::Cpu, &[]);
    loss.unwrap();
    let summary = events.iter().find_map(|event| if let Event::Finished(s) = event { Some(s) } else { None }).unwrap();
    assert!(summary.steps < 40 && !summary.interrupted, "{summary:?}");
    assert!(dir.path().join("a/finished").exists());
}

#[test]
fn a_plateau_divides_the_learning_rate_until_the_minimum() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        "train.schedule=plateau",
        "train.plateau_factor=0.25",
        "train.plateau_patience=2",
        "train.eval_every=2",
        "train.learning_rate=3",
        "train.min_learning_rate=0.5",
        "train.warmup_steps=0",
        "log.every=1",
    ];
    let (events, loss) = train_with_damage(&configuration(dir.path(), &settings), &Device::Cpu, &[]);
    loss.unwrap();
    let (mut rate, mut stale, mut falls) = (3.0, 0, 0);
    for event in &events {
        match event {
            Event::Step(step) => assert_eq!(step.learning_rate, rate, "step {}", step.step),
            Event::Evaluated { best: true, .. } => stale = 0,
            Event::Evaluated { .. } if stale == 1 => (stale, falls, rate) = (0, falls + 1, f64::max(rate / 4.0, 0.5)),
            Event::Evaluated { .. } => stale += 1,
            _ => {}
        }
    }
    assert!(falls >= 2 && rate == 0.5, "{falls} falls, to {rate}");
    let told = |event: &&Event| matches!(event, Event::Note(text) if text.contains("the learning rate does, to"));
    assert_eq!(events.iter().filter(told).count(), 2, "to 0.75 and 0.5");
}

#[test]
fn a_pass_that_is_finite_has_nothing_to_tell() {
    for device in Device::for_tests() {
        let dir = tempfile::tempdir().unwrap();
        let resolved = configuration(dir.path(), &["model.dropout=0.1", "train.grad_accum_steps=2"]);
        let stop = AtomicBool::new(true);
        let on_event = &mut |_: &Event| {};
        let trainer = Trainer::prepare(&resolved, options(&device, &stop, on_event)).unwrap();
        let found = trainer.diagnose(1).unwrap();
        assert!(found.contains("gives finite numbers"), "{found}");
    }
}

/// The loss of a batch and its gradients, computed in so many parts.
fn loss_and_gradients(trainer: &mut Trainer, batch: &Batch, parts: usize) -> (f32, Vec<f32>) {
    trainer.replica.parameters.zero_gradients();
    let mut total = 0.0;
    for piece in trainer.replica.share.pieces(parts) {
        let loss = trainer.replica.loss(batch, &piece, None, 7, counts(std::slice::from_ref(batch))).unwrap();
        loss.backward().unwrap();
        total += loss.to_f32().unwrap()[0];
    }
    (total, trainer.replica.parameters.gradients().unwrap().to_f32().unwrap())
}

#[test]
fn a_batch_in_parts_has_the_loss_and_gradients_of_the_whole_with_dropout() {
    let mixed = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "mixed", 2e-3));
    let in_f32 = Device::for_tests().into_iter().map(|device| (device, "f32", 1e-5));
    // In f32 sums in another order; in mixed precision gradients of f16 that are scaled by a part's share.
    for (device, precision, tolerance) in in_f32.chain(mixed) {
        let dir = tempfile::tempdir().unwrap();
        let precision = format!("device.precision={precision}");
        // Heads of 16, which are whole cooperative matrices where there are any.
        let settings = ["train.batch_size=5", "model.dropout=0.3", "model.n_embd=32", &precision];
        let resolved = configuration(dir.path(), &settings);
        let (stop, on_event) = (AtomicBool::new(false), &mut |_: &Event| {});
        let mut trainer = Trainer::prepare(&resolved, options(&device, &stop, on_event)).unwrap();
        let batch = trainer.replica.loader.next_batch();
        let (whole_loss, whole) = loss_and_gradients(&mut trainer, &batch, 1);
        let largest = whole.iter().fold(0.0, |largest: f32, g| largest.max(g.abs()));
        assert!(largest > 0.01, "{largest}");
        for parts in [2, 3] {
            let (loss, gradients) = loss_and_gradients(&mut trainer, &batch, parts);
            assert!((loss - whole_loss).abs() < tolerance * whole_loss, "{device}: {loss}, whole {whole_loss}");
            for (i, (split, whole)) in gradients.iter().zip(&whole).enumerate() {
                let close = (split - whole).abs() < tolerance * largest;
                assert!(close, "{device} {precision}, {parts} parts, gradient {i}: {split}, whole {whole}");
            }
        }
    }
}

/// Notes gradients, weights and how many batches the loader has given at each call.
struct Recorder(Arc<Mutex<Vec<[Vec<f32>; 2]>>>);

impl GradientSync for Recorder {
    fn begin(&mut self, _: &[&[u32]]) -> Result<()> {
        Ok(())
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        backward()
    }

    fn synchronize(&mut self, parameters: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        let both = [parameters.gradients().unwrap().to_f32()?, parameters.values().to_f32()?];
        self.0.lock().unwrap().push(both);
        Ok(Some(loss))
    }

    fn vote(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn abort(&mut self) -> Result<()> {
        Ok(())
    }

    fn gather(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        Ok(())
    }
}

#[test]
fn gradients_are_synchronized_once_per_update_after_all_micro_batches_and_before_the_optimizer() {
    for device in Device::for_tests() {
        let dir = tempfile::tempdir().unwrap();
        let resolved = configuration(dir.path(), &["train.grad_accum_steps=3", "train.max_steps=2"]);
        let (stop, on_event) = (AtomicBool::new(false), &mut |_: &Event| {});
        let mut trainer = Trainer::prepare(&resolved, options(&device, &stop, on_event)).unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        trainer.replica.sync = Box::new(Recorder(calls.clone()));
        for step in 0..2 {
            let weights = trainer.replica.parameters.values().to_f32().unwrap();
            // What the step should find: the sum over its batches.
            let position = trainer.state.position;
            trainer.replica.parameters.zero_gradients();
            let batches = next_batches(&mut trainer.replica.loader, 3);
            for piece in trainer.replica.share.pieces(1) {
                let (batch, pass) = (&batches[piece.batch], (3 * step + piece.batch) as u64);
                trainer.replica.loss(batch, &piece, None, pass, counts(&batches)).unwrap().backward().unwrap();
            }
            let gradients = trainer.replica.parameters.gradients().unwrap().to_f32().unwrap();
            assert!(gradients.iter().any(|g| *g != 0.0));
            trainer.replica.start_loader(position).unwrap();
            trainer.train_step().unwrap();
            let calls = calls.lock().unwrap();
            assert_eq!(calls.len(), step + 1, "{device}: one call for each update");
            assert_eq!(calls[step], [gradients, weights.clone()], "{device}, step {step}");
            assert_ne!(
                trainer.replica.parameters.values().to_f32().unwrap(),
                weights,
                "{device}: then comes the update"
            );
        }
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn steps_and_evaluations_run_what_was_compiled_ahead_and_no_more() {
    let f16 = crate::gpu::gpu_for_tests().is_some_and(|gpu| gpu.limits().f16);
    let llama = ["model.kind=llama", "model.n_kv_head=1", "train.grad_accum_steps=2"];
    let mixed = ["device.precision=mixed", "model.dropout=0.1", "optimizer.weight_decay=0.1"];
    let documents = ["data.packing=documents", "model.embd_dropout=0.1", "train.ema_decay=0.9"];
    for settings in [&["model.dropout=0.1"][..], &mixed, &llama, &documents] {
        // With nothing compiled yet.
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        if settings.contains(&mixed[0]) && !f16 {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let short = ["train.max_steps=3", "train.eval_every=2", "log.samples=false"];
        let resolved = configuration(dir.path(), &[settings, &short].concat());
        let (stop, device) = (AtomicBool::new(false), Device::Gpu(gpu.clone()));
        let mut on_event = |_: &Event| {};
        let mut trainer = Trainer::prepare(&resolved, options(&device, &stop, &mut on_event)).unwrap();
        let ahead = trainer.precompile.as_mut().unwrap().finish();
        let compiled = gpu.compiled();
        trainer.run().unwrap();
        assert_eq!((ahead.len(), gpu.compiled()), (1, compiled), "{settings:?}: {ahead:?}");
    }
}

fn steps(events: &[Event]) -> Vec<crate::train::Step> {
    events.iter().filter_map(|event| if let Event::Step(step) = event { Some(*step) } else { None }).collect()
}

/// Checkpoints, evaluations and samples of this run come between steps that a GPU has not finished.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn speeds_are_those_of_steps_whatever_comes_between_them() {
    for device in Device::for_tests() {
        let dir = tempfile::tempdir().unwrap();
        let settings = ["train.eval_every=4", "log.samples=true", "checkpoint.every=3", "train.eval_batches=20"];
        let (events, loss) = train_with_damage(&configuration(dir.path(), &settings), &device, &[]);
        loss.unwrap();
        let steps = steps(&events);
        assert_eq!(steps[0].tokens_per_s, None, "{device}: nothing was finished before");
        let mut speeds: Vec<f64> = steps[1..].iter().map(|step| step.tokens_per_s.expect("a speed")).collect();
        speeds.sort_by(f64::total_cmp);
        let (median, most) = (speeds[speeds.len() / 2], speeds[speeds.len() - 1]);
        assert!(most < 20.0 * median, "{device}: {speeds:?}");
        let summary = events.iter().find_map(|e| if let Event::Finished(s) = e { Some(s) } else { None }).unwrap();
        let average = summary.tokens_per_s.expect("the run's speed");
        assert!(0.99 * speeds[0] <= average && average <= 1.01 * most, "{device}: {average} of {speeds:?}");
        let wall = summary.report.wall.expect("the run's time");
        let is_of_steps = |phase: Phase| match phase {
            Phase::Training | Phase::Unaccounted => true,
            phase => phase == Phase::Checkpoints && device.is_gpu(),
        };
        let of_steps: f64 = wall.phases.iter().filter(|(phase, _)| is_of_steps(*phase)).map(|(_, s)| s).sum();
        // All but the first.
        let tokens = steps[steps.len() - 1].tokens.unwrap() - steps[0].tokens.unwrap();
        let counted = tokens as f64 / average;
        assert!(counted < 1.001 * of_steps, "{device}: {counted} s of {of_steps} s of steps in {wall:?}");
    }
}

#[test]
fn padding_is_not_learned_from() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = dir.path().join("short.jsonl");
    std::fs::write(&corpus, "{\"text\": \"abcd\"}\n".repeat(40)).unwrap();
    let setting = format!("data.corpus={}", corpus.display());
    let settings = [&*setting, "data.packing=off", "train.max_steps=3", "train.eval_every=0"];
    let (events, loss) = train_with_damage(&configuration(dir.path(), &settings), &Device::Cpu, &[]);
    loss.unwrap();
    let tokens: Vec<_> = steps(&events).iter().map(|step| step.tokens.unwrap()).collect();
    // Four documents of four characters and their end, in rows of 16.
    assert_eq!(tokens, [16, 32, 48]);
}
