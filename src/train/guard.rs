//! What is done when a run goes bad: a loss or gradient that is not finite, a loss far above those before it, a validation
//! loss that no longer falls.
//!
//! The optimizer makes no update from gradients whose norm is not finite; how often that was, it counts on the device. The
//! host looks at loss, norm and count of logged steps, when they have arrived.

use super::checkpoint::OPTIMIZER;
use super::diagnosis::first_non_finite;
use super::events::{Event, Step};
use super::resume::{Checkpoint, newest_good};
use super::run_folder::METRICS;
use super::state::GuardState;
use super::trainer::Trainer;
use crate::config::NonFinite;
use crate::data::{Loader, Position};
use crate::nn::checkpoint::load;
use crate::{Error, Result, Tensor};
use std::collections::VecDeque;

/// What the guard remembers besides [`GuardState`]: nothing that a resumed run needs.
#[derive(Default)]
pub(super) struct Watch {
    /// Steps not yet known to be good, and where the loader stood before each.
    pub(super) unconfirmed: VecDeque<(usize, Position)>,
    /// The device's count of skipped updates that is known.
    skipped: u32,
    /// Its count of overflows that is known: in mixed precision those skips count if the loss is no number either.
    overflows: u64,
    /// Updates skipped since the last good logged step.
    in_a_row: usize,
}

/// Something that a run should not go on with.
pub(super) enum Trouble {
    NotFinite { what: &'static str, value: f64, step: usize },
    Spike { loss: f64, mean: f64, deviation: f64, step: usize },
}

impl Trouble {
    fn step(&self) -> usize {
        match *self {
            Trouble::NotFinite { step, .. } | Trouble::Spike { step, .. } => step,
        }
    }

    fn describe(&self) -> String {
        match self {
            Trouble::NotFinite { what, value, step } => format!("the {what} is {value} at step {step}"),
            Trouble::Spike { loss, mean, deviation, step } => format!(
                "the loss is {loss:.4} at step {step}, {:.1} standard deviations above the mean of those before, {mean:.4}",
                (loss - mean) / deviation
            ),
        }
    }
}

impl Trainer<'_> {
    /// Looks at a logged step whose numbers have arrived; `skipped` is the device's count. True if the run went back to a
    /// checkpoint.
    ///
    /// # Errors
    /// If the run should not go on.
    pub(super) fn judge(&mut self, step: &Step, skipped: u32) -> Result<bool> {
        let overflows = step.loss_scale.map_or(0, |scale| scale.overflows);
        let overflowed = if step.loss.is_finite() { 0 } else { overflows.saturating_sub(self.watch.overflows) };
        let newly = skipped.wrapping_sub(self.watch.skipped) as usize + overflowed as usize;
        self.watch.skipped = skipped;
        self.watch.overflows = overflows;
        let not_finite = |what, value| Trouble::NotFinite { what, value, step: step.step };
        if !step.loss.is_finite() || newly > 0 {
            let trouble = match step.loss.is_finite() {
                true if step.grad_norm.is_finite() => not_finite("norm of the gradients before it", f64::NAN),
                true => not_finite("norm of the gradients", step.grad_norm),
                false => not_finite("loss", step.loss),
            };
            self.watch.in_a_row += newly;
            let most = self.config.guard.max_skips;
            if self.config.guard.non_finite == NonFinite::Skip && newly > 0 && self.watch.in_a_row <= most {
                let of = self.watch.in_a_row;
                let text = format!("{}: {of} of at most {most} updates in a row were skipped", trouble.describe());
                self.report(Event::Note(text))?;
                return Ok(false);
            }
            return self.meet(trouble);
        }
        self.watch.in_a_row = 0;
        while self.watch.unconfirmed.front().is_some_and(|(unconfirmed, _)| *unconfirmed <= step.step) {
            self.watch.unconfirmed.pop_front();
        }
        let guard = &self.config.guard;
        if guard.spike_z > 0.0 {
            let losses = &mut self.state.guard.losses;
            if losses.len() == guard.spike_window {
                let (mean, deviation) = mean_and_deviation(losses);
                if step.loss > mean + guard.spike_z * deviation {
                    return self.meet(Trouble::Spike { loss: step.loss, mean, deviation, step: step.step });
                }
                losses.remove(0);
            }
            losses.push(step.loss);
        }
        Ok(false)
    }

    /// Goes back to the newest good checkpoint, with a lower learning rate; true.
    ///
    /// # Errors
    /// If it should not, or cannot: with a diagnosis.
    pub(super) fn meet(&mut self, trouble: Trouble) -> Result<bool> {
        let cause = match trouble {
            Trouble::NotFinite { .. } => format!("{}; {}", trouble.describe(), self.diagnose(trouble.step())?),
            Trouble::Spike { .. } => trouble.describe(),
        };
        let guard = &self.config.guard;
        let may_go_back = matches!(trouble, Trouble::Spike { .. }) || guard.non_finite == NonFinite::Rollback;
        if !may_go_back || self.state.guard.rollbacks >= guard.max_rollbacks {
            return Err(self.diverged(&cause));
        }
        // Snapshots that were asked for since are no better than the step that went wrong.
        self.awaited.clear();
        self.take_written(true)?;
        match newest_good(self.folder.path(), &mut Vec::new())? {
            Some(checkpoint) => self.go_back(&checkpoint, trouble.step(), cause).map(|()| true),
            None => Err(self.diverged(&cause)),
        }
    }

    fn go_back(&mut self, checkpoint: &Checkpoint, from_step: usize, cause: String) -> Result<()> {
        let guard = GuardState {
            rollbacks: self.state.guard.rollbacks + 1,
            learning_rate_factor: self.state.guard.learning_rate_factor * self.config.guard.learning_rate_factor,
            ..checkpoint.state.guard.clone()
        };
        let mut model = load(&checkpoint.path)?;
        self.parameters.take_values(&mut model)?;
        let state = &checkpoint.state;
        self.optimizer.restore(&self.parameters, &checkpoint.path.join(OPTIMIZER), state.step as u64)?;
        // Steps that were under way may have been skipped as well.
        let overflows = self.optimizer.loss_scale().map_or(Ok(0), |scale| Ok(scale.to_f32()?[2] as u64))?;
        self.watch = Watch { skipped: self.optimizer.skipped().to_u32()?[0], overflows, ..Watch::default() };
        self.start_loader(state.position)?;
        self.folder.truncate_metrics(state.appended.get(METRICS).copied().unwrap_or(0))?;
        let best = state.best.filter(|_| self.config.checkpoint.keep_best).map(|best| best.step);
        self.folder.checkpoints().go_back(state.step, best)?;
        self.saved = Some(state.moment());
        self.last_logged = (state.step, self.training_time);
        let total_steps = self.state.total_steps;
        let learning_rate_factor = guard.learning_rate_factor;
        self.state = super::state::TrainerState { guard, total_steps, ..state.clone() };
        self.report(Event::RolledBack { from_step, step: self.state.step, cause, learning_rate_factor })?;
        // A process that ends now must not begin again with the old learning rate.
        self.save(false)
    }

    /// The first op and layer whose output or gradient is not finite, found by computing the steps again that are not known
    /// to be good. Where the update was skipped, the weights are still those of that step.
    fn diagnose(&mut self, step: usize) -> Result<String> {
        let c = self.config;
        let accum = c.train.grad_accum_steps;
        let unconfirmed = self.watch.unconfirmed.iter().copied().filter(|(at, _)| *at <= step);
        let mut suspects: Vec<(usize, Position)> = unconfirmed.collect();
        if suspects.is_empty() {
            suspects.push((self.state.step + 1, self.state.position));
        }
        for (at, position) in suspects {
            let tokens = self.tokens.clone();
            let mut loader = Loader::new(tokens, c.train.batch_size, c.model.block_size, c.run.seed, position)?;
            for micro in 0..accum {
                let batch = loader.next_batch();
                self.parameters.zero_gradients();
                let pass = ((at - 1) * accum + micro) as u64;
                let found = first_non_finite(&self.parameters, |turn| {
                    let losses =
                        (0..self.parts).map(|part| self.loss(&batch, part, pass)).collect::<Result<Vec<_>>>()?;
                    turn();
                    losses.iter().try_for_each(Tensor::backward)
                })?;
                if let Some(found) = found {
                    let Position { epoch, window } = position;
                    let part = if accum > 1 { format!(", part {}", micro + 1) } else { String::new() };
                    return Ok(format!("{found} (step {at}, batch from window {window} of epoch {epoch}{part})"));
                }
            }
        }
        Ok("computing its batches again with the present weights gives finite numbers".into())
    }

    /// The error that ends a run which cannot go on.
    fn diverged(&self, cause: &str) -> Error {
        let folder = self.folder.path();
        let kept = match folder.join("last").exists() {
            true => format!("; {} holds the checkpoints from before", folder.display()),
            false => String::new(),
        };
        let tried = match self.state.guard.rollbacks {
            0 => String::new(),
            times => format!(" for the {} time", ordinal(times + 1)),
        };
        Error::Invalid(format!(
            "training diverged{tried}: {cause}. Lower train.learning_rate or set train.grad_clip{kept}"
        ))
    }

    /// Counts evaluations without a new best; true if there were as many as the guard has patience for.
    pub(super) fn is_out_of_patience(&mut self, best: bool) -> bool {
        let stale = &mut self.state.guard.stale_evaluations;
        *stale = if best { 0 } else { *stale + 1 };
        self.config.guard.patience > 0 && *stale >= self.config.guard.patience
    }
}

fn ordinal(number: usize) -> String {
    let ending = match number {
        2 => "nd",
        3 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// The deviation is at least a thousandth of the mean: losses that hardly differ make no spike of the next.
fn mean_and_deviation(losses: &[f64]) -> (f64, f64) {
    let count = losses.len() as f64;
    let mean = losses.iter().sum::<f64>() / count;
    let variance = losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance.sqrt().max(1e-3 * mean.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::config::{Layers, Resolved};
    use crate::train::Setting;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Every device in f32, and the GPU in mixed precision.
    fn precisions() -> impl Iterator<Item = (Device, &'static str)> {
        let mixed = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "device.precision=mixed"));
        Device::for_tests().into_iter().map(|device| (device, "device.precision=f32")).chain(mixed)
    }

    /// Forty steps of a small model, with checkpoints at each fifth.
    fn configuration(dir: &Path, settings: &[&str]) -> Resolved {
        let text = format!(
            "[run]\ndir = {dir:?}\nname = \"a\"\n[data]\ntokenizer = \"char\"\n[model]\nn_layer = 2\nn_head = 2\nn_embd = 16\n\
             block_size = 16\n[train]\nbatch_size = 4\nmax_steps = 40\neval_every = 0\neval_batches = 2\n\
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
        let (data_dir, training_log, resume) = (Path::new("data"), None, None);
        let device = device.clone();
        let reopen = None;
        let setting = Setting { device, reopen, data_dir, resume, stop: &stop, training_log, on_event: &mut on_event };
        let mut trainer = Trainer::prepare(resolved, setting).unwrap();
        let mut outcome = trainer.run();
        for (_, name, value) in damages {
            assert!(stop.swap(false, Ordering::Relaxed), "the run came to the damage");
            let entry = trainer.parameters.entries.iter().find(|entry| entry.name == *name).unwrap();
            let tensors = trainer.parameters.of_entry(entry);
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
        let told = |event: &'_ Event| matches!(event, Event::RolledBack { .. });
        let rollbacks = events.iter().filter(|event| told(event)).map(|event| match event {
            Event::RolledBack { from_step, step, cause, .. } => (*from_step, *step, &**cause),
            _ => unreachable!("filtered"),
        });
        rollbacks.collect()
    }

    #[test]
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
    fn skipped_updates_are_told_and_after_too_many_the_run_ends_with_a_diagnosis() {
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
    fn a_run_without_patience_ends_when_the_validation_loss_rises() {
        let dir = tempfile::tempdir().unwrap();
        let settings = ["guard.patience=2", "train.eval_every=3", "train.learning_rate=3", "train.warmup_steps=0"];
        let (events, loss) = train_with_damage(&configuration(dir.path(), &settings), &Device::Cpu, &[]);
        loss.unwrap();
        let summary =
            events.iter().find_map(|event| if let Event::Finished(s) = event { Some(s) } else { None }).unwrap();
        assert!(summary.steps < 40 && !summary.interrupted, "{summary:?}");
        assert!(dir.path().join("a/finished").exists());
    }

    #[test]
    fn a_pass_that_is_finite_has_nothing_to_tell() {
        for device in Device::for_tests() {
            let dir = tempfile::tempdir().unwrap();
            let resolved = configuration(dir.path(), &["model.dropout=0.1", "train.grad_accum_steps=2"]);
            let stop = AtomicBool::new(true);
            let (data_dir, training_log, resume) = (Path::new("data"), None, None);
            let device = device.clone();
            let on_event = &mut |_: &Event| {};
            let setting = Setting { device, reopen: None, data_dir, resume, stop: &stop, training_log, on_event };
            let mut trainer = Trainer::prepare(&resolved, setting).unwrap();
            let told = trainer.diagnose(1).unwrap();
            assert!(told.contains("gives finite numbers"), "{told}");
        }
    }
}
