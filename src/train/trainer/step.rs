//! One update and its metrics.

use super::Trainer;
use super::in_flight::{InFlight, PendingStep};
use crate::Result;
use crate::train::checkpoint::TrainerState;
use crate::train::run::events::{Event, Step};
use crate::train::step::replica::Update;
use std::time::Instant;

/// One of this many steps gets timestamps around every kernel.
const PROFILE_EVERY: usize = 50;

impl Trainer<'_> {
    /// One update, of this device and of all others that take part. On a GPU this only records and submits.
    pub(super) fn train_step(&mut self) -> Result<()> {
        let (device, started) = (self.options.device.clone(), Instant::now());
        device.begin_step(self.state.step % PROFILE_EVERY == 5);
        self.unconfirmed.push_back((self.state.step + 1, self.state.position));
        let TrainerState { plateau, guard, step, total_steps, .. } = &self.state;
        let rate = |step| self.learning_rate.at(step, plateau.factor) * guard.learning_rate_factor;
        let learning_rate = rate(*step);
        let Update { loss, squares, position, tokens, totals } =
            self.leader.update(&mut self.replica, *step, *total_steps, &rate)?;
        self.state.position = position;
        self.state.step += 1;
        self.state.tokens = self.state.tokens.map(|before| before + tokens);
        self.tokens += tokens;
        for note in std::mem::take(&mut self.replica.notes) {
            self.report(Event::Note(note))?;
        }
        if self.is_logged() {
            let step = Step {
                step: self.state.step,
                epoch: self.replica.loader.epochs_at(self.state.position),
                loss: f64::NAN,
                learning_rate,
                grad_norm: f64::NAN,
                tokens: self.state.tokens,
                tokens_per_s: None,
                loss_scale: None,
                rewards: None,
            };
            let pending = PendingStep::new(step, self.tokens, (&loss, &squares, &totals), &self.replica.optimizer)?;
            self.in_flight.push_back(InFlight::Step(Box::new(pending)));
        }
        let ended = device.end_step();
        if let Some(trace) = device.profiler().trace() {
            trace.add_step(self.state.step, started);
        }
        ended
    }

    /// Whether the numbers of the step just done are to be reported.
    fn is_logged(&self) -> bool {
        self.state.step == 1
            || self.is_step_of(self.config.log.every)
            || self.is_step_of(self.config.checkpoint.every)
            || self.state.step == self.state.total_steps
    }
}
