//! Decides whether a run may continue: the verdict on a logged step or an evaluation depends only on its numbers, the
//! guard's state and `[guard]` of the configuration.
//!
//! The optimizer skips updates with a non-finite gradient norm and counts them on the device. The guard receives loss,
//! norm and count of logged steps when they arrive. `trainer/recovery.rs` acts on the verdict.

use crate::config::{GuardConfig, NonFinite};
use crate::train::checkpoint::GuardState;
use crate::train::run::events::Step;
use crate::units;

/// State of the guard besides [`GuardState`]; a resumed run starts with the default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::train) struct Monitor {
    /// The device's count of skipped updates, as last seen.
    pub(in crate::train) skipped: u32,
    /// In mixed precision its count of overflows. Those are updates that were skipped as well, which are normal unless
    /// the loss is not finite either.
    pub(in crate::train) overflows: u64,
    /// Updates skipped since the last good logged step.
    pub(in crate::train) skips_in_a_row: usize,
}

/// Something that a run should not go on with.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::train) enum Anomaly {
    NotFinite { what: &'static str, value: f64, step: usize },
    Spike { loss: f64, mean: f64, deviation: f64, step: usize },
}

/// The decision after a logged step or an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::train) enum Verdict {
    /// No anomaly up to this step.
    Fine,
    /// Continue without the skipped updates, with the number of consecutive ones.
    Skip {
        anomaly: Anomaly,
        in_a_row: usize,
    },
    /// Roll back to the newest good checkpoint, or stop if there is none.
    RollBack(Anomaly),
    Stop(Anomaly),
}

impl Anomaly {
    pub(in crate::train) fn step(&self) -> usize {
        match *self {
            Anomaly::NotFinite { step, .. } | Anomaly::Spike { step, .. } => step,
        }
    }

    pub(in crate::train) fn describe(&self) -> String {
        match self {
            Anomaly::NotFinite { what, value, step } => format!("the {what} is {value} at step {step}"),
            Anomaly::Spike { loss, mean, deviation, step } => format!(
                "the loss is {} at step {step}, {} standard deviations above the mean of those before, {}",
                units::loss(*loss),
                units::number((loss - mean) / deviation),
                units::loss(*mean)
            ),
        }
    }
}

/// Judges a logged step; `skipped` is the device's count of skipped updates. Returns the verdict and what to remember.
pub(in crate::train) fn check(
    config: &GuardConfig,
    monitor: Monitor,
    state: &GuardState,
    step: &Step,
    skipped: u32,
) -> (Verdict, Monitor, GuardState) {
    let overflows = step.loss_scale.map_or(0, |scale| scale.overflows);
    let overflowed = if step.loss.is_finite() { 0 } else { overflows.saturating_sub(monitor.overflows) };
    let newly = skipped.wrapping_sub(monitor.skipped) as usize + overflowed as usize;
    if !step.loss.is_finite() || newly > 0 {
        let monitor = Monitor { skipped, overflows, skips_in_a_row: monitor.skips_in_a_row + newly };
        let anomaly = not_finite(step);
        let may_skip = config.non_finite == NonFinite::Skip && newly > 0 && monitor.skips_in_a_row <= config.max_skips;
        let verdict = match may_skip {
            true => Verdict::Skip { anomaly, in_a_row: monitor.skips_in_a_row },
            false => decide(config, state, anomaly),
        };
        return (verdict, monitor, state.clone());
    }
    let monitor = Monitor { skipped, overflows, skips_in_a_row: 0 };
    let (spike, losses) = compare_with_history(config, &state.losses, step);
    let verdict = spike.map_or(Verdict::Fine, |spike| decide(config, state, spike));
    (verdict, monitor, GuardState { losses, ..state.clone() })
}

/// Whether an anomaly leads back to a checkpoint or ends the run.
pub(in crate::train) fn decide(config: &GuardConfig, state: &GuardState, anomaly: Anomaly) -> Verdict {
    let may_roll_back = matches!(anomaly, Anomaly::Spike { .. }) || config.non_finite == NonFinite::Rollback;
    match may_roll_back && state.rollbacks < config.max_rollbacks {
        true => Verdict::RollBack(anomaly),
        false => Verdict::Stop(anomaly),
    }
}

/// Counts evaluations without a new best; true if there were as many as the guard has patience for.
pub(in crate::train) fn is_out_of_patience(config: &GuardConfig, state: &GuardState, best: bool) -> (bool, GuardState) {
    let stale_evaluations = if best { 0 } else { state.stale_evaluations + 1 };
    let is_over = config.patience > 0 && stale_evaluations >= config.patience;
    (is_over, GuardState { stale_evaluations, ..state.clone() })
}

fn not_finite(step: &Step) -> Anomaly {
    let (what, value) = match (step.loss.is_finite(), step.grad_norm.is_finite()) {
        (true, true) => ("norm of the gradients before it", f64::NAN),
        (true, false) => ("norm of the gradients", step.grad_norm),
        (false, _) => ("loss", step.loss),
    };
    Anomaly::NotFinite { what, value, step: step.step }
}

/// Compares a loss with the window of those before it, of which it becomes one unless it is a spike.
fn compare_with_history(config: &GuardConfig, losses: &[f64], step: &Step) -> (Option<Anomaly>, Vec<f64>) {
    let mut losses = losses.to_vec();
    if config.spike_z == 0.0 {
        return (None, losses);
    }
    if losses.len() == config.spike_window {
        let (mean, deviation) = mean_and_deviation(&losses);
        if step.loss > mean + config.spike_z * deviation {
            return (Some(Anomaly::Spike { loss: step.loss, mean, deviation, step: step.step }), losses);
        }
        losses.remove(0);
    }
    losses.push(step.loss);
    (None, losses)
}

/// The deviation is at least a thousandth of the mean: where losses hardly differ, the next is no spike.
fn mean_and_deviation(losses: &[f64]) -> (f64, f64) {
    let count = losses.len() as f64;
    let mean = losses.iter().sum::<f64>() / count;
    let variance = losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance.sqrt().max(1e-3 * mean.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::run::events::LossScale;

    /// The third logged step, with this loss and norm.
    fn step(loss: f64, grad_norm: f64) -> Step {
        let (epoch, learning_rate, tokens, tokens_per_s) = (0.0, 0.0, None, None);
        Step { step: 30, epoch, loss, learning_rate, grad_norm, tokens, tokens_per_s, loss_scale: None, rewards: None }
    }

    fn overflowed(overflows: u64, step: Step) -> Step {
        Step { loss_scale: Some(LossScale { scale: 1.0, overflows }), ..step }
    }

    fn config(non_finite: NonFinite) -> GuardConfig {
        GuardConfig { non_finite, max_skips: 3, spike_z: 5.0, spike_window: 4, max_rollbacks: 2, ..Default::default() }
    }

    /// "skip 3: norm of the gradients"
    fn in_words(verdict: &Verdict) -> String {
        let what = |anomaly: &Anomaly| match anomaly {
            Anomaly::NotFinite { what, .. } => what.to_string(),
            Anomaly::Spike { .. } => "spike".into(),
        };
        match verdict {
            Verdict::Fine => "fine".into(),
            Verdict::Skip { anomaly, in_a_row } => format!("skip {in_a_row}: {}", what(anomaly)),
            Verdict::RollBack(anomaly) => format!("roll back: {}", what(anomaly)),
            Verdict::Stop(anomaly) => format!("stop: {}", what(anomaly)),
        }
    }

    #[test]
    fn the_verdict_follows_from_numbers_and_memory() {
        use NonFinite::{Rollback, Skip, Stop};
        const NAN: f64 = f64::NAN;
        const INF: f64 = f64::INFINITY;
        let seen = |skipped, overflows, skips_in_a_row| Monitor { skipped, overflows, skips_in_a_row };
        let history =
            |rollbacks, losses: &[f64]| GuardState { rollbacks, losses: losses.to_vec(), ..Default::default() };
        let window = [3.0, 3.1, 2.9, 3.0];
        // The policy, what is remembered, the step with the device's count of skips; the verdict and skips in a row.
        type Row = (NonFinite, Monitor, GuardState, Step, u32, &'static str, usize);
        let table: [Row; 17] = [
            (Rollback, seen(0, 0, 0), history(0, &[]), step(3.0, 1.0), 0, "fine", 0),
            (Rollback, seen(4, 0, 2), history(0, &[]), step(3.0, 1.0), 4, "fine", 0),
            (Rollback, seen(0, 0, 0), history(0, &[]), step(NAN, 1.0), 0, "roll back: loss", 0),
            (Rollback, seen(0, 0, 0), history(1, &[]), step(INF, NAN), 1, "roll back: loss", 1),
            (Rollback, seen(0, 0, 0), history(2, &[]), step(NAN, 1.0), 0, "stop: loss", 0),
            (Rollback, seen(0, 0, 0), history(0, &[]), step(3.0, INF), 1, "roll back: norm of the gradients", 1),
            // Skipped before this step: its own norm is finite.
            (
                Rollback,
                seen(5, 0, 0),
                history(0, &[]),
                step(3.0, 1.0),
                6,
                "roll back: norm of the gradients before it",
                1,
            ),
            (Stop, seen(0, 0, 0), history(0, &[]), step(NAN, 1.0), 0, "stop: loss", 0),
            (Skip, seen(0, 0, 1), history(0, &[]), step(3.0, NAN), 2, "skip 3: norm of the gradients", 3),
            (Skip, seen(0, 0, 2), history(0, &[]), step(3.0, NAN), 2, "stop: norm of the gradients", 4),
            // A loss that is not finite and an update that was made nonetheless.
            (Skip, seen(0, 0, 0), history(0, &[]), step(NAN, 1.0), 0, "stop: loss", 0),
            // The device's count wraps around.
            (Skip, seen(u32::MAX, 0, 0), history(0, &[]), step(3.0, NAN), 0, "skip 1: norm of the gradients", 1),
            // Overflows of the loss scale are skips only if the loss is not finite.
            (Skip, seen(0, 2, 0), history(0, &[]), overflowed(3, step(3.0, NAN)), 0, "fine", 0),
            (Skip, seen(0, 2, 0), history(0, &[]), overflowed(3, step(NAN, NAN)), 0, "skip 1: loss", 1),
            // Spikes: only against a full window, and by whatever policy.
            (Stop, seen(0, 0, 0), history(0, &window), step(3.6, 1.0), 0, "roll back: spike", 0),
            (Stop, seen(0, 0, 0), history(0, &window[1..]), step(3.6, 1.0), 0, "fine", 0),
            (Stop, seen(0, 0, 0), history(0, &window), step(3.3, 1.0), 0, "fine", 0),
        ];
        for (row, (policy, monitor, state, step, skipped, want, in_a_row)) in table.into_iter().enumerate() {
            let (verdict, after, new_state) = check(&config(policy), monitor, &state, &step, skipped);
            assert_eq!((&*in_words(&verdict), after.skips_in_a_row), (want, in_a_row), "row {row}");
            assert_eq!(after.skipped, skipped, "row {row}");
            // Only good losses enter the window, which keeps its length.
            let mut losses = state.losses.clone();
            if verdict == Verdict::Fine {
                losses.push(step.loss);
                losses.drain(..losses.len().saturating_sub(4));
            }
            assert_eq!(new_state, GuardState { losses, ..state }, "row {row}");
        }
    }

    #[test]
    fn losses_that_hardly_differ_make_no_spike_of_the_next() {
        let state = GuardState { losses: vec![2.0; 4], ..GuardState::default() };
        let verdict = |loss| check(&config(NonFinite::Stop), Monitor::default(), &state, &step(loss, 1.0), 0).0;
        assert_eq!(verdict(2.0 + 4.9 * 2e-3), Verdict::Fine);
        assert!(matches!(verdict(2.0 + 5.1 * 2e-3), Verdict::RollBack(Anomaly::Spike { .. })));
    }

    #[test]
    fn patience_counts_evaluations_since_the_best() {
        let config = GuardConfig { patience: 2, ..GuardConfig::default() };
        let mut state = GuardState::default();
        let mut is_over = Vec::new();
        for best in [true, false, true, false, false] {
            let over;
            (over, state) = is_out_of_patience(&config, &state, best);
            is_over.push(over);
        }
        assert_eq!(is_over, [false, false, false, false, true]);
        assert!(!is_out_of_patience(&GuardConfig::default(), &state, false).0, "patience 0 never ends a run");
    }
}
