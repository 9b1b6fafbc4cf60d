//! What the view shows of a run, kept up to date by its events.

use super::series::Series;
use crate::Device;
use crate::cli::output;
use crate::cli::progress::{counted, epoch_line, evaluation_line};
use crate::generate::printable;
use crate::report::Metrics;
use crate::train::{Event, Start, Step};
use crate::units;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Lines of the log that are kept: more than any terminal shows.
const LOG_LINES: usize = 200;
/// How often memory is looked at, and the log gets the time of an epoch.
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct State {
    device: Device,
    pub title: String,
    pub about: String,
    began: Instant,
    pub first_step: usize,
    pub total_steps: usize,
    pub total_epochs: f64,
    /// Steps handed to the device.
    pub step: usize,
    pub last: Option<Step>,
    /// Step and loss.
    pub validation: Option<(usize, f64)>,
    pub best: Option<(usize, f64)>,
    pub train_loss: Series,
    pub validation_loss: Series,
    pub tokens_per_s: Series,
    pub learning_rate: Series,
    /// In use, and the most so far.
    pub memory: Option<[String; 2]>,
    memory_at: Option<Instant>,
    epoch_at: Option<Instant>,
    pub log: Vec<String>,
    /// Notes that are in the log.
    notes: usize,
    pub sample: Option<String>,
    pub log_scale: bool,
}

impl State {
    pub fn new(device: Device) -> State {
        State {
            device,
            title: String::new(),
            about: String::new(),
            began: Instant::now(),
            first_step: 0,
            total_steps: 0,
            total_epochs: 0.0,
            step: 0,
            last: None,
            validation: None,
            best: None,
            train_loss: Series::default(),
            validation_loss: Series::default(),
            tokens_per_s: Series::default(),
            learning_rate: Series::default(),
            memory: None,
            memory_at: None,
            epoch_at: None,
            log: Vec::new(),
            notes: 0,
            sample: None,
            log_scale: false,
        }
    }

    pub fn event(&mut self, event: &Event) {
        match event {
            // It comes before the screen.
            Event::Preparing(_) => {}
            // It is in the log as all that is written to standard error.
            Event::Note(_) => {}
            Event::Started(start) => self.start(start),
            Event::Progress { step } => self.step = *step,
            Event::Step(step) => self.numbers(step),
            Event::Evaluated { step, result, best, .. } => {
                self.validation = Some((*step, result.loss));
                if *best {
                    self.best = self.validation;
                }
                self.validation_loss.push(*step as f64, result.loss);
                self.add_line(evaluation_line(*step, result, *best));
            }
            Event::Saved { step, .. } => self.add_line(format!("step {step:>6}  saved")),
            Event::RolledBack { step, .. } => self.go_back(*step),
            Event::Epoch { epoch, seconds } => {
                // Not for each, if they are so short that nothing else would be seen.
                if self.epoch_at.is_none_or(|at| at.elapsed() >= SECOND) {
                    self.epoch_at = Some(Instant::now());
                    self.add_line(epoch_line(*epoch, *seconds));
                }
            }
            Event::EarlySample { text, .. } | Event::Sample(text) => {
                self.sample = Some(printable(text).trim().to_string())
            }
            Event::Finished(_) => {}
        }
    }

    /// Also of a run that goes on after its device was lost.
    fn start(&mut self, s: &Start) {
        self.title = s.folder.display().to_string();
        let (parameters, layers) = (units::count(s.parameters as f64), counted(s.model.n_layer, "layer"));
        self.about = format!("{} · {parameters} parameters, {layers} · {}", s.corpus, s.device);
        self.began = Instant::now();
        (self.first_step, self.step, self.total_steps) = (s.first_step, s.first_step, s.total_steps);
        self.total_epochs = s.epochs;
        self.go_back(s.first_step);
        if s.first_step > 0 && self.train_loss.points().is_empty() {
            self.earlier(&s.folder);
        }
        if s.first_step > 0 {
            self.add_line(format!("step {:>6}  resumed", s.first_step));
        }
    }

    /// Takes in what the run had logged before it was resumed. The folder's files are those of the step it resumes
    /// from.
    fn earlier(&mut self, folder: &Path) {
        // Without them the curves begin here, and the run goes on.
        let Ok(metrics) = File::open(folder.join("metrics.jsonl")).and_then(Metrics::read) else { return };
        for point in &metrics.steps {
            let x = point.step as f64;
            self.train_loss.push(x, point.loss);
            self.learning_rate.push(x, point.learning_rate);
            self.tokens_per_s.push(x, point.tokens_per_s);
        }
        for point in &metrics.evaluations {
            self.validation = Some((point.step as usize, point.loss));
            self.validation_loss.push(point.step as f64, point.loss);
        }
        self.best = metrics.best().map(|best| (best.step as usize, best.loss));
    }

    /// Where the memory is.
    pub fn memory_name(&self) -> &'static str {
        if self.device.is_gpu() { "GPU memory" } else { "CPU memory" }
    }

    /// What came after this step is void.
    fn go_back(&mut self, step: usize) {
        self.step = step;
        for series in [&mut self.train_loss, &mut self.validation_loss, &mut self.tokens_per_s, &mut self.learning_rate]
        {
            series.truncate(step as f64);
        }
        let is_left = |at: &(usize, f64)| at.0 <= step;
        (self.validation, self.best) = (self.validation.filter(is_left), self.best.filter(is_left));
    }

    fn numbers(&mut self, step: &Step) {
        let x = step.step as f64;
        self.train_loss.push(x, step.loss);
        self.learning_rate.push(x, step.learning_rate);
        self.tokens_per_s.push(x, step.tokens_per_s.unwrap_or(f64::NAN));
        self.last = Some(*step);
    }

    fn add_line(&mut self, line: String) {
        self.log.push(line);
        let excess = self.log.len().saturating_sub(LOG_LINES);
        self.log.drain(..excess);
    }

    /// Takes in what no event says: notes on standard error, and memory.
    pub fn refresh(&mut self) {
        let notes = output::held_notes(self.notes);
        self.notes += notes.len();
        notes.iter().flat_map(|note| note.trim().lines()).for_each(|line| self.add_line(line.into()));
        if self.memory_at.is_none_or(|at| at.elapsed() >= SECOND) {
            self.memory_at = Some(Instant::now());
            let memory = self.device.memory();
            self.memory = Some([memory.used_bytes, memory.peak_bytes].map(|bytes| units::bytes(bytes as u64)));
        }
    }

    pub fn toggle_log_scale(&mut self) {
        self.log_scale = !self.log_scale;
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Time left at the speed so far.
    pub fn remaining(&self) -> Option<Duration> {
        let done = self.step.saturating_sub(self.first_step);
        let left = self.total_steps.saturating_sub(self.step);
        (done >= 2).then(|| self.elapsed().mul_f64(left as f64 / done as f64))
    }
}
