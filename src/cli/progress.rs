//! Shows a run: a bar with loss, speed and remaining time on a terminal, plain lines elsewhere.

use super::data::Bar;
use super::output;
use crate::generate::printable;
use crate::models::ModelConfig;
use crate::train::{Evaluation, Event, Rewards, Start, Step, Summary, rank_table};
use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// How often a plain line may appear.
const LINE_EVERY: Duration = Duration::from_secs(2);
/// How often one stays above the bar, so that the scroll-back keeps the losses.
const LINE_ABOVE_BAR_EVERY: Duration = Duration::from_secs(10);

pub struct View {
    preparation: Bar,
    /// Hidden where standard error is not a terminal, or where there is to be none.
    bar: ProgressBar,
    has_bar: bool,
    first_step: usize,
    total_steps: usize,
    last_line: Option<Instant>,
    last_epoch: Option<Instant>,
    validation: Option<f64>,
    /// Whether the profiling report is printed at the end.
    profile: bool,
    /// What the device `auto` came to, and why.
    auto: Option<String>,
    /// What the model writes at the end.
    sample: Option<String>,
}

impl View {
    pub fn new(profile: bool, auto: Option<String>) -> View {
        View { has_bar: io::stderr().is_terminal(), ..View::without_bar(profile, auto) }
    }

    /// Lines alone.
    pub fn without_bar(profile: bool, auto: Option<String>) -> View {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        View {
            preparation: Bar::new(),
            bar,
            has_bar: false,
            first_step: 0,
            total_steps: 0,
            last_line: None,
            last_epoch: None,
            validation: None,
            profile,
            auto,
            sample: None,
        }
    }

    pub fn show(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Note(text) => {
                output::note(format_args!("note: {text}"));
                Ok(())
            }
            Event::Preparing(progress) => {
                self.preparation.show(*progress);
                Ok(())
            }
            Event::Started(start) => self.start(start),
            Event::Progress { step } => {
                self.bar.set_position(*step as u64);
                Ok(())
            }
            Event::Step(step) => self.step(step),
            Event::Evaluated { step, result, best, .. } => {
                self.validation = Some(result.loss);
                self.line(evaluation_line(*step, result, *best))
            }
            Event::Epoch { epoch, seconds } => self.epoch(*epoch, *seconds),
            Event::RolledBack { step, cause, learning_rate_factor, .. } => {
                output::note(format_args!(
                    "warning: {cause}; rolled back to the checkpoint of step {step}, with {} times the learning rate",
                    units::number(*learning_rate_factor)
                ));
                Ok(())
            }
            Event::Saved { path, .. } => {
                tracing::info!("saved {}", path.display());
                Ok(())
            }
            // The page and the terminal's full view have room for them.
            Event::EarlySample { .. } => Ok(()),
            Event::Sample(text) => {
                self.sample = Some(printable(text));
                Ok(())
            }
            Event::Finished(summary) => {
                self.bar.finish_and_clear();
                finish(summary, self.profile, self.sample.as_deref())
            }
        }
    }

    fn start(&mut self, s: &Start) -> io::Result<()> {
        self.preparation.clear();
        let m = &s.model;
        let why = self.auto.as_deref().map_or(String::new(), |auto| format!("; auto: {}", reason(auto)));
        output::line(format_args!("device     {}{why}", s.device))?;
        if s.precision != "f32" {
            output::line(format_args!("precision  {}", s.precision))?;
        }
        output::line(format_args!(
            "corpus     {}, {} training tokens, {} validation tokens; tokenizer {}, vocabulary {}",
            s.corpus,
            units::count(s.train_tokens as f64),
            units::count(s.validation_tokens as f64),
            s.tokenizer,
            s.tokens
        ))?;
        output::line(format_args!("text       {}", s.text))?;
        output::line(format_args!("model      {} parameters: {}", units::count(s.parameters as f64), shape_words(m)))?;
        if let Some(adapters) = &s.adapters {
            output::line(format_args!("adapters   {adapters}"))?;
        }
        output::line(format_args!(
            "training   {} of {} tokens, {:.2} epochs, {} of warm-up",
            counted(s.total_steps, "step"),
            s.tokens_per_step,
            s.epochs,
            counted(s.warmup_steps, "step")
        ))?;
        if s.first_step > 0 {
            output::line(format_args!("resumed    after step {}", s.first_step))?;
        }
        output::line(format_args!("folder     {}\n", s.folder.display()))?;
        (self.first_step, self.total_steps) = (s.first_step, s.total_steps);
        if self.has_bar {
            let style = "{wide_bar:.cyan/238} {pos}/{len}  {msg}  {elapsed}{remaining}";
            let style = ProgressStyle::with_template(style).expect("the template is valid");
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            self.bar.set_style(style.with_key("remaining", write_remaining));
            self.bar.set_length(s.total_steps as u64);
            self.bar.set_position(s.first_step as u64);
            self.bar.reset_eta();
        }
        Ok(())
    }

    fn step(&mut self, s: &Step) -> io::Result<()> {
        let validation = self.validation.map_or(String::new(), |loss| format!("  val {}", units::loss(loss)));
        self.bar.set_message(format!(
            "loss {}{validation}  {}",
            units::loss(s.loss),
            units::tokens_per_s(s.tokens_per_s)
        ));
        let every = if self.bar.is_hidden() { LINE_EVERY } else { LINE_ABOVE_BAR_EVERY };
        if self.last_line.is_none_or(|at| at.elapsed() >= every) || s.step == self.total_steps {
            self.last_line = Some(Instant::now());
            return self.line(format!(
                "step {:>6}/{}  epoch {:.2}  loss {}{}  lr {}  norm {}  {}{}",
                s.step,
                self.total_steps,
                s.epoch,
                units::loss(s.loss),
                s.rewards.as_ref().map_or(String::new(), rewards_words),
                units::number(s.learning_rate),
                units::number(s.grad_norm),
                units::tokens_per_s(s.tokens_per_s),
                self.remaining(s)
            ));
        }
        Ok(())
    }

    /// A line for each epoch, unless they are so short that lines would be all that is seen.
    fn epoch(&mut self, epoch: usize, seconds: f64) -> io::Result<()> {
        let due = self.last_epoch.is_none_or(|at| at.elapsed() >= LINE_EVERY);
        if !due {
            return Ok(());
        }
        self.last_epoch = Some(Instant::now());
        self.line(epoch_line(epoch, seconds))
    }

    /// Time left at the speed of the last steps.
    fn remaining(&self, s: &Step) -> String {
        let elapsed = self.bar.elapsed().as_secs_f64();
        let done = s.step - self.first_step;
        if done < 2 || s.step == self.total_steps {
            return String::new();
        }
        let left = elapsed / done as f64 * (self.total_steps - s.step) as f64;
        format!("  ETA {}", indicatif::HumanDuration(Duration::from_secs(left as u64)))
    }

    /// A line that stays, above the bar if there is one.
    fn line(&self, text: String) -> io::Result<()> {
        self.bar.suspend(|| output::line(text))
    }
}

/// What the bar says of the time left: nothing before the first step, when no speed is known.
fn write_remaining(state: &ProgressState, out: &mut dyn fmt::Write) {
    if state.per_sec() > 0.0 {
        // Nothing can be done about a bar that cannot be drawn.
        let _ = write!(out, " ETA {:#}", indicatif::HumanDuration(state.eta()));
    }
}

/// "no hardware GPU" of "cpu (no hardware GPU)", or the first hardware GPU.
fn reason(auto: &str) -> &str {
    match auto.strip_prefix("cpu (").and_then(|rest| rest.strip_suffix(')')) {
        Some(why) => why,
        None => "the first hardware GPU",
    }
}

/// The losses and the sample, a line each, behind the profiling report if that is wanted.
fn finish(s: &Summary, profile: bool, sample: Option<&str>) -> io::Result<()> {
    output::line("")?;
    if profile {
        output::line(s.report.text())?;
        if !s.ranks.is_empty() {
            output::line(rank_table(&s.ranks))?;
        }
    }
    let number = |loss: Option<f64>| loss.map_or("-".to_string(), units::loss);
    let validation = s.validation.as_ref().map(|v| v.loss);
    let stopped = if s.interrupted { format!(", interrupted before {}", s.total_steps) } else { String::new() };
    let best = match s.best_step.filter(|best| *best != s.steps) {
        Some(step) => format!(" (best {} at step {step})", number(s.best_loss)),
        None => String::new(),
    };
    let time = s.seconds_in_all.map_or(String::new(), |all| {
        let [since, all] = [s.report.training_seconds, all].map(units::duration);
        format!(", {since} of training since it was resumed, {all} in all")
    });
    output::line(format_args!(
        "loss    train {}, validation {}{best} after {}{stopped}{time}, {}",
        number(s.train_loss),
        number(validation),
        counted(s.steps, "step"),
        units::tokens_per_s(s.tokens_per_s)
    ))?;
    // The answer ends a chat's sample, behind a question that may be long.
    let cut = if s.is_chat { Cut::Start } else { Cut::End };
    sample.map_or(Ok(()), |sample| output::line(format_args!("sample  {}", one_line(sample, output::width() - 8, cut))))
}

/// The side of a text that is left out where there is no room for all of it.
#[derive(Clone, Copy)]
enum Cut {
    Start,
    End,
}

/// The text in one line of at most so many characters, an ellipsis in place of what is cut.
fn one_line(text: &str, width: usize, cut: Cut) -> String {
    let words: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let kept = width.saturating_sub(1);
    match (words.chars().count(), cut) {
        (length, _) if length <= width => words,
        (length, Cut::Start) => ['…'].into_iter().chain(words.chars().skip(length - kept)).collect(),
        (_, Cut::End) => words.chars().take(kept).chain(['…']).collect(),
    }
}

pub fn evaluation_line(step: usize, result: &Evaluation, best: bool) -> String {
    let mark = if best { "  (best)" } else { "" };
    let more = match &result.rewards {
        Some(rewards) => rewards_words(rewards),
        None => format!("  perplexity {}  {}", units::perplexity(result.perplexity), bits_per_byte(result)),
    };
    format!("step {step:>6}  validation loss {}{more}{mark}", units::loss(result.loss))
}

/// "  accuracy 75.0%  margin 0.123"
fn rewards_words(rewards: &Rewards) -> String {
    let accuracy = rewards.accuracy.map_or(String::new(), |accuracy| format!("  accuracy {:.1}%", 100.0 * accuracy));
    accuracy + &rewards.margin().map_or(String::new(), |margin| format!("  margin {}", units::number(margin)))
}

pub fn epoch_line(epoch: usize, seconds: f64) -> String {
    format!("epoch {epoch:>5}  {}", units::duration(seconds))
}

/// "bits per byte 1.2345", or of a tokenizer that does not keep the text, what it is per.
fn bits_per_byte(result: &Evaluation) -> String {
    match result {
        Evaluation { bits_per_byte, lossless: true, .. } => format!("bits per byte {bits_per_byte:.4}"),
        Evaluation { bits_per_byte, unknown_share, .. } => {
            format!("bits per decodable byte {bits_per_byte:.4} ({:.1}% unknown)", 100.0 * unknown_share)
        }
    }
}

/// "4 layers, 4 heads, width 128, context 128"; "2 lstm layers, width 650, gradients through 35 tokens".
pub fn shape_words(m: &ModelConfig) -> String {
    if m.is_recurrent() {
        let layers = counted(m.n_layer, &format!("{} layer", m.kind.as_str()));
        return format!("{layers}, width {}, gradients through {}", m.n_embd, counted(m.block_size, "token"));
    }
    let (layers, heads) = (counted(m.n_layer, "layer"), counted(m.n_head, "head"));
    format!("{layers}, {heads}, width {}, context {}", m.n_embd, m.block_size)
}

/// "1 step", "2 steps".
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_has_a_perplexity_however_large_its_loss_is() {
        let mut result = Evaluation {
            loss: 800.0,
            perplexity: f64::INFINITY,
            bits_per_byte: 2.5,
            lossless: true,
            unknown_share: 0.0,
            tokens: 10,
            context: 4,
            stride: 4,
            rewards: None,
        };
        let line = |result: &Evaluation| evaluation_line(7, result, true);
        let told = "step      7  validation loss 800.0000  perplexity above 1e300  bits per byte 2.5000  (best)";
        assert_eq!(line(&result), told);
        (result.loss, result.perplexity) = (2.0, 7.389);
        assert!(line(&result).contains("  perplexity 7.39  "), "{}", line(&result));
        result.rewards = Some(Rewards { chosen: Some(0.5), rejected: Some(-0.25), accuracy: Some(0.75) });
        assert_eq!(line(&result), "step      7  validation loss 2.0000  accuracy 75.0%  margin 0.75  (best)");
        result.rewards = Some(Rewards { chosen: Some(0.5), rejected: None, accuracy: None });
        assert_eq!(line(&result), "step      7  validation loss 2.0000  (best)");
    }

    #[test]
    fn a_sample_of_many_lines_becomes_one() {
        assert_eq!(one_line("One\n\nmorning  a fox", 40, Cut::End), "One morning a fox");
        assert_eq!(one_line("One morning a fox", 8, Cut::End), "One mor…");
        assert_eq!(one_line("What is it?\nA fox.", 40, Cut::Start), "What is it? A fox.");
        assert_eq!(one_line("What is it?\nA fox.", 8, Cut::Start), "… A fox.");
        for cut in [Cut::Start, Cut::End] {
            assert_eq!(one_line("äöüß", 4, cut), "äöüß");
            assert_eq!(one_line("äöüß", 1, cut), "…");
        }
    }
}
