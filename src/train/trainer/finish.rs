//! Output of a run besides checkpoints and metrics: samples, profile, summary and report.

use super::Trainer;
use super::prepare::adapters;
use crate::generate::{Sampling, TextWriter, generate, printable};
use crate::profile::{Phase, Report};
use crate::report::{RunRecord, run_page};
use crate::train::checkpoint::SAMPLES;
use crate::train::evaluation::prompt::prompt_ids;
use crate::train::run::events::{Event, Summary};
use crate::train::run::log;
use crate::train::run::overfitting::overfitting;
use crate::train::run::record;
use crate::train::setup::precision::describe_precision;
use crate::train::step::ranks::{RankTimes, named, rank_table};
use crate::{Device, Error, Result};
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Tokens of a sample after an evaluation: enough to judge the model, and cheap compared with the evaluation.
const SHORT_SAMPLE: usize = 64;

impl Trainer<'_> {
    /// Saves the last state, writes a sample, and sums up.
    pub(in crate::train) fn finish(mut self) -> Result<Summary> {
        self.take_arrived(true)?;
        self.save(false)?;
        let ranks = self.end_ranks()?;
        let epochs = self.replica.loader.epochs_at(self.state.position);
        let seconds = self.clock.spent(Phase::Training).as_secs_f64();
        let device = &self.options.device;
        let (profile, epochs_here) = (device.profiler().take(), epochs - self.began_at.1);
        let mut report = Report::new(&profile, device.is_gpu(), seconds, epochs_here, device.memory());
        let interrupted = !self.is_done() || (!self.out_of_patience && self.evaluation_is_due());
        self.timed(Phase::Checkpoints, Trainer::finish_saving)?;
        if !interrupted {
            let sample = self.timed(Phase::Sampling, |trainer| {
                let stop = &trainer.options.stop;
                trainer.sample(trainer.config.generate.max_new_tokens, || stop.load(Ordering::Relaxed))
            })?;
            self.folder.write("samples.txt", &format!("{}\n", printable(&sample)))?;
            self.report(Event::Sample(sample))?;
        }
        report.wall = Some(self.clock.times());
        report.start_up = self.start_up.take();
        self.folder.write("profile.txt", &(report.text() + &rank_table(&ranks)))?;
        self.folder.write("profile.json", &record::pretty(&report))?;
        let summary = Summary { ranks, ..self.summary(report, interrupted, epochs) };
        let finished = Event::Finished(Box::new(summary.clone()));
        record::end(&self.folder, &mut self.record, &finished)?;
        self.folder.mark_finished(!interrupted)?;
        if let Some(overfitting) = &summary.overfitting {
            self.report(Event::Note(overfitting.clone()))?;
        }
        // The run is whole without it.
        if let Some(Err(error)) = self.training_log.as_deref().map(|path| log::append(path, &summary)) {
            self.report(Event::Note(format!("the run's timings are in its folder alone: {error}")))?;
        }
        if let Some(trace) = &self.trace {
            let written = trace.finish();
            self.report(Event::Note(written.unwrap_or_else(|error| format!("the trace is cut short: {error}"))))?;
        }
        self.write_page()?;
        self.report(finished)?;
        Ok(summary)
    }

    /// Stops the other ranks, and returns their times by activity.
    fn end_ranks(&mut self) -> Result<Vec<RankTimes>> {
        let ranks = self.leader.times(&self.replica)?;
        self.leader.stop(None);
        for RankTimes { rank, notes, .. } in &ranks {
            notes.iter().try_for_each(|note| self.report(Event::Note(format!("rank {rank}: {note}"))))?;
        }
        Ok(ranks)
    }

    fn summary(&mut self, report: Report, interrupted: bool, epochs: f64) -> Summary {
        let device = &self.options.device;
        let validation = self.state.evaluated.as_ref().map(|e| e.result.clone());
        Summary {
            overfitting: overfitting(
                epochs,
                self.state.train_loss,
                validation.as_ref(),
                self.state.best,
                self.state.step,
            ),
            folder: self.folder.path().to_path_buf(),
            device: named(device, self.options.others, Device::describe),
            precision: describe_precision(self.config.device.precision, device, self.replica.model.config()),
            parameters: self.replica.model.config().parameter_count(),
            adapters: adapters(&self.config, &self.replica.parameters),
            model: self.replica.model.config().clone(),
            steps: self.state.step,
            total_steps: self.state.total_steps,
            epochs,
            interrupted,
            can_resume: self.config.checkpoint.optimizer,
            train_loss: self.state.train_loss,
            validation,
            best_loss: self.state.best.map(|best| best.loss),
            best_step: self.state.best.filter(|_| self.config.checkpoint.keep_best).map(|best| best.step),
            tokens_per_s: self.throughput.average(),
            seconds_in_all: self.seconds_in_all(report.training_seconds),
            is_chat: self.text.template.is_some(),
            peak_memory_bytes: device.memory().peak_bytes,
            epoch_seconds: std::mem::take(&mut self.epoch_seconds),
            ranks: Vec::new(),
            report,
        }
    }

    /// Training time over all processes of a resumed run, of which this one took so many seconds.
    fn seconds_in_all(&self, here: f64) -> Option<f64> {
        let step = (self.began_at.0 > 0).then_some(self.began_at.0 as u64)?;
        // Of a process that was killed there are only the speeds that it logged.
        let by_speeds = || {
            let run = RunRecord::read(self.folder.path()).ok()?;
            Some(run.metrics.training_seconds_until(step, run.tokens_per_step()))
        };
        Some(record::training_seconds_before(&self.record).or_else(by_speeds)? + here)
    }

    /// Notes what ended the run, and shows what led to it.
    pub(in crate::train) fn fail(&mut self, error: &Error) -> Result<()> {
        self.leader.stop(Some(&error.to_string()));
        if let Err(error) = record::fail(&self.folder, &mut self.record, error) {
            self.report(Event::Note(format!("the run's folder does not say what ended it: {error}")))?;
        }
        self.write_page()
    }

    /// Writes `report.html`. The run is whole without it, so what keeps it from being written is only said.
    fn write_page(&mut self) -> Result<()> {
        let folder = &self.folder;
        let written = RunRecord::read(folder.path()).and_then(|run| folder.write("report.html", &run_page(&run)));
        match written {
            Err(error) => self.report(Event::Note(format!("the run has no report.html: {error}"))),
            Ok(()) => Ok(()),
        }
    }

    /// Appends a sample to `samples.jsonl`. A signal does not interrupt it, so a resumed run has the same samples as an
    /// uninterrupted one.
    pub(super) fn add_sample(&mut self) -> Result<()> {
        let tokens = SHORT_SAMPLE.min(self.config.generate.max_new_tokens);
        // The profile is of training alone, so nothing of the sample may end later.
        let device = &self.options.device;
        let measured = device.profiler().take();
        let sample = self.sample(tokens, || false).and_then(|text| device.synchronize().map(|()| text));
        device.profiler().restore(measured);
        match sample {
            Ok(text) => {
                let step = self.state.step;
                self.folder.lines().add(SAMPLES, None, &json!({ "step": step, "text": text }).to_string())?;
                self.report(Event::EarlySample { step, text })
            }
            // Numbers that nothing can be drawn from are for the guard to judge.
            Err(Error::Invalid(why)) => self.report(Event::Note(format!("no sample is kept of this step: {why}"))),
            Err(error) => Err(error),
        }
    }

    /// What the model writes, from the configured prompt, or else the first question of the validation text, or the
    /// start of a line; with what it continues, without special tokens, up to the end of a text or an answer.
    fn sample(&self, most_tokens: usize, stop: impl Fn() -> bool) -> Result<String> {
        let g = &self.config.generate;
        let tokenizer = &self.text.tokenizer;
        let question = self.question.clone().filter(|_| g.prompt.is_empty());
        let prompt = question.map_or_else(|| prompt_ids(tokenizer, &g.prompt), Ok)?;
        let sampling = Sampling::of(g, tokenizer.vocab_size());
        let ends = self.text.ends();
        let mut writer = TextWriter::new(tokenizer, &g.stop).until(&ends).without_special_tokens();
        let mut text = String::new();
        for id in &prompt {
            text.push_str(&writer.push_prompt(*id)?);
        }
        self.with_averages(|run| {
            generate(&*run.replica.model, &prompt, most_tokens, &sampling, &mut |id| {
                text.push_str(&writer.push(id)?);
                let ends = writer.end().is_some() || stop();
                Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })
        })?;
        text.push_str(&writer.finish()?);
        Ok(text.trim_start_matches('\n').to_string())
    }
}
