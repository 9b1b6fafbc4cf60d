//! Acts on the guard's verdicts: rolls back to a checkpoint, or stops the run with a diagnosis.

use super::Trainer;

use super::guard::{self, Anomaly, Monitor, Verdict};
use super::resume::restore;
use crate::data::Position;
use crate::train::checkpoint::{Checkpoint, GuardState, TrainerState, newest_good};
use crate::train::evaluation::diagnosis::first_non_finite;
use crate::train::run::events::{Event, Step};
use crate::train::setup::init::model_at;
use crate::train::step::ranks::{Sequences, Share};
use crate::train::step::replica::{Replica, counts, loader, next_batches};
use crate::{Error, Result};

impl Trainer<'_> {
    /// Has the guard judge a logged step whose numbers have arrived, and acts on its verdict; `skipped` is the device's
    /// count. True if the run was rolled back.
    ///
    /// # Errors
    /// If the run should not go on.
    pub(super) fn check(&mut self, step: &Step, skipped: u32) -> Result<bool> {
        let verdict;
        (verdict, self.monitor, self.state.guard) =
            guard::check(&self.config.guard, self.monitor, &self.state.guard, step, skipped);
        if verdict == Verdict::Fine {
            while self.unconfirmed.front().is_some_and(|(unconfirmed, _)| *unconfirmed <= step.step) {
                self.unconfirmed.pop_front();
            }
        }
        self.act(verdict)
    }

    /// Acts on a verdict. True if the run was rolled back.
    ///
    /// # Errors
    /// [`Error::Diverged`] if the run must stop, or has no checkpoint for a rollback.
    pub(super) fn act(&mut self, verdict: Verdict) -> Result<bool> {
        match verdict {
            Verdict::Fine => Ok(false),
            Verdict::Skip { anomaly, in_a_row } => {
                let most = self.config.guard.max_skips;
                let text =
                    format!("{}: {in_a_row} of at most {most} updates in a row were skipped", anomaly.describe());
                self.report(Event::Note(text)).map(|()| false)
            }
            Verdict::Stop(anomaly) => Err(self.diverged(self.cause(&anomaly)?)),
            Verdict::RollBack(anomaly) => self.recover(&anomaly).map(|()| true),
        }
    }

    /// Rolls back to the newest good checkpoint, with a lower learning rate.
    fn recover(&mut self, anomaly: &Anomaly) -> Result<()> {
        let cause = self.cause(anomaly)?;
        // Snapshots that were requested since are no better than the step that went wrong.
        self.in_flight.clear();
        self.take_written(true)?;
        match newest_good(self.folder.path(), &mut Vec::new())? {
            Some(checkpoint) => self.roll_back(&checkpoint, anomaly.step(), cause),
            None => Err(self.diverged(cause)),
        }
    }

    fn roll_back(&mut self, checkpoint: &Checkpoint, from_step: usize, cause: String) -> Result<()> {
        let guard = GuardState {
            rollbacks: self.state.guard.rollbacks + 1,
            learning_rate_factor: self.state.guard.learning_rate_factor * self.config.guard.learning_rate_factor,
            ..checkpoint.state.guard.clone()
        };
        self.leader.abandon_round(&self.replica)?;
        let mut model = model_at(&checkpoint.path, &self.config, self.replica.model.config())?;
        self.replica.parameters.take_values(&mut *model)?;
        let state = &checkpoint.state;
        let Replica { config, parameters, optimizer, place, .. } = &mut self.replica;
        restore(optimizer, parameters, checkpoint, place.of_moments(config))?;
        // Steps that were in flight may have been skipped as well.
        let overflows = self.replica.optimizer.loss_scale().map_or(Ok(0), |scale| Ok(scale.to_f32()?[2] as u64))?;
        self.monitor = Monitor { skipped: self.replica.optimizer.skipped().to_u32()?[0], overflows, skips_in_a_row: 0 };
        self.unconfirmed.clear();
        self.replica.start_loader(state.position)?;
        let (updates, path) = (state.step as u64, Some(&*checkpoint.path));
        self.leader.load(&mut self.replica, &model.parameters(), state.position, updates, path)?;
        self.folder.lines().truncate(&state.appended)?;
        let best = state.best.filter(|_| self.config.checkpoint.keep_best).map(|best| best.step);
        self.folder.checkpoints().roll_back(state.step, best)?;
        self.saved = Some(state.comparable());
        self.throughput.restart(self.tokens, self.busy_time());
        // Its epoch is trained on twice.
        self.epoch_began = None;
        let total_steps = self.state.total_steps;
        let learning_rate_factor = guard.learning_rate_factor;
        self.state = TrainerState { guard, total_steps, ..state.clone() };
        self.report(Event::RolledBack { from_step, step: self.state.step, cause, learning_rate_factor })?;
        // A process that ends now must not resume with the old learning rate.
        self.save(false)
    }

    /// The anomaly in words; where numbers are not finite, with a diagnosis.
    fn cause(&self, anomaly: &Anomaly) -> Result<String> {
        Ok(match anomaly {
            Anomaly::NotFinite { step, .. } => format!("{}; {}", anomaly.describe(), self.diagnose(*step)?),
            Anomaly::Spike { .. } => anomaly.describe(),
        })
    }

    /// The first op and layer whose output or gradient is not finite, found by computing the unconfirmed steps again.
    /// Where the update was skipped, the weights are still those of that step, but for layers that layerwise updates
    /// had reached before.
    pub(super) fn diagnose(&self, step: usize) -> Result<String> {
        let c = &self.config;
        let accum = c.train.grad_accum_steps;
        let unconfirmed = self.unconfirmed.iter().copied().filter(|(at, _)| *at <= step);
        let mut suspects: Vec<(usize, Position)> = unconfirmed.collect();
        if suspects.is_empty() {
            suspects.push((self.state.step + 1, self.state.position));
        }
        for (at, position) in suspects {
            let tokens = self.replica.tokens.clone();
            let mut loader = loader(c, self.replica.model.config().kind, tokens, position)?;
            let batches = next_batches(&mut loader, accum);
            let counts = counts(&batches);
            // The sequences of all devices.
            let pieces =
                Share::whole(Sequences::new(c, self.replica.model.config().kind)).pieces(self.replica.micro_batches);
            for (micro, batch) in batches.iter().enumerate() {
                self.replica.parameters.zero_gradients();
                let pass = ((at - 1) * accum + micro) as u64;
                let found = first_non_finite(&self.replica.parameters, |before_backward| {
                    let own = pieces.iter().filter(|piece| piece.batch == micro);
                    let losses = own.map(|piece| self.replica.loss(batch, piece, None, pass, counts));
                    let losses = losses.collect::<Result<Vec<_>>>()?;
                    before_backward();
                    let mut free = || {
                        self.replica.parameters.free_complete();
                        Ok(())
                    };
                    losses.iter().try_for_each(|loss| loss.backward_each(None, &mut free))
                });
                self.replica.parameters.zero_gradients();
                let found = match found {
                    Err(Error::OutOfMemory { .. }) => return Ok("there is no memory left to find the cause".into()),
                    found => found?,
                };
                if let Some(found) = found {
                    let Position { epoch, window } = position;
                    let part = if accum > 1 { format!(", part {}", micro + 1) } else { String::new() };
                    return Ok(format!("{found} (step {at}, batch from window {window} of epoch {epoch}{part})"));
                }
            }
        }
        Ok("computing its batches again with the present weights gives finite numbers".into())
    }

    /// The error of a run that cannot go on.
    fn diverged(&self, cause: String) -> Error {
        let folder = self.folder.path();
        let checkpoints = folder.join("last").exists().then(|| folder.to_path_buf());
        Error::Diverged { cause, rollbacks: self.state.guard.rollbacks, checkpoints }
    }
}
