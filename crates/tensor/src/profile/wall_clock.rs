//! Wall-clock time of a run by phase; every second counts once.

use super::{Trace, Track};
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Opening the device.
    Device,
    /// Autotuning the GEMMs, at the device's first use.
    Autotuning,
    /// Reading and tokenizing the text.
    Text,
    /// Creating the model and moving it to the device.
    Model,
    /// Connecting the ranks and distributing the weights.
    Ranks,
    /// Training steps, with waiting for their results.
    Training,
    Evaluation,
    /// Time that training waits for checkpoints.
    Checkpoints,
    /// Sampling texts.
    Sampling,
    /// Everything else.
    Unaccounted,
}

impl Phase {
    pub(super) const ALL: [Phase; 10] = [
        Phase::Device,
        Phase::Autotuning,
        Phase::Text,
        Phase::Model,
        Phase::Ranks,
        Phase::Training,
        Phase::Evaluation,
        Phase::Checkpoints,
        Phase::Sampling,
        Phase::Unaccounted,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Device => "device",
            Phase::Autotuning => "autotuning",
            Phase::Text => "text and tokens",
            Phase::Model => "model",
            Phase::Ranks => "ranks",
            Phase::Training => "training",
            Phase::Evaluation => "evaluation",
            Phase::Checkpoints => "checkpoints",
            Phase::Sampling => "sampling",
            Phase::Unaccounted => "unaccounted",
        }
    }
}

/// Assigns every moment of a run to one phase.
#[derive(Debug, Clone)]
pub struct WallClock {
    phase: Phase,
    since: Instant,
    spent: [Duration; Phase::ALL.len()],
    trace: Option<Arc<Trace>>,
}

impl WallClock {
    /// A clock that started at `started` in the phase `phase`, which continues. Completed phases go to the trace.
    pub fn new(started: Instant, phase: Phase, trace: Option<Arc<Trace>>) -> WallClock {
        WallClock { phase, since: started, spent: Default::default(), trace }
    }

    /// Enters a phase; returns the previous one.
    pub fn enter(&mut self, phase: Phase) -> Phase {
        let now = Instant::now();
        self.spent[self.phase as usize] += now - self.since;
        if let Some(trace) = self.trace.as_ref().filter(|_| self.phase != Phase::Unaccounted) {
            trace.add(Track::Phases, self.phase.name(), self.since, now - self.since);
        }
        self.since = now;
        std::mem::replace(&mut self.phase, phase)
    }

    /// Moves the first `part` of the current phase (at most all of it) to another phase.
    pub fn set_apart(&mut self, phase: Phase, part: Duration) {
        let part = part.min(self.since.elapsed());
        self.spent[phase as usize] += part;
        self.since += part;
    }

    /// Time of a phase so far.
    pub fn spent(&self, phase: Phase) -> Duration {
        let running = if phase == self.phase { self.since.elapsed() } else { Duration::ZERO };
        self.spent[phase as usize] + running
    }

    /// Time of all phases so far.
    pub fn times(&self) -> WallTime {
        let phases = Phase::ALL.map(|phase| (phase, self.spent(phase).as_secs_f64()));
        WallTime { total: phases.iter().map(|(_, seconds)| seconds).sum(), phases }
    }
}

/// Time by phase, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WallTime {
    pub total: f64,
    pub phases: [(Phase, f64); Phase::ALL.len()],
}

impl WallTime {
    /// "12.30 s on the wall: training 10.00 s, evaluation 2.20 s, unaccounted 0.10 s (0.8%)", the longest first,
    /// without phases that took no time.
    pub(super) fn text(&self) -> String {
        let (mut phases, mut unaccounted) = (self.phases.to_vec(), 0.0);
        phases.retain(|&(phase, seconds)| match phase {
            Phase::Unaccounted => {
                unaccounted = seconds;
                false
            }
            _ => seconds >= 0.005,
        });
        phases.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut text = format!("{:.2} s on the wall: ", self.total);
        for (phase, seconds) in phases {
            let _ = write!(text, "{} {seconds:.2} s, ", phase.name());
        }
        let share = 100.0 * unaccounted / self.total.max(1e-9);
        let _ = write!(text, "unaccounted {unaccounted:.2} s ({share:.1}%)");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_counts_once() {
        let started = Instant::now() - Duration::from_millis(500);
        let mut clock = WallClock::new(started, Phase::Device, None);
        clock.set_apart(Phase::Autotuning, Duration::from_millis(200));
        assert_eq!(clock.enter(Phase::Training), Phase::Device);
        std::thread::sleep(Duration::from_millis(20));
        let before = clock.enter(Phase::Evaluation);
        std::thread::sleep(Duration::from_millis(10));
        clock.enter(before);
        std::thread::sleep(Duration::from_millis(20));
        assert!(clock.spent(Phase::Training) >= Duration::from_millis(40));
        assert!(clock.spent(Phase::Evaluation) >= Duration::from_millis(10));
        assert!(clock.spent(Phase::Device) >= Duration::from_millis(300));
        assert_eq!(clock.spent(Phase::Autotuning), Duration::from_millis(200));
        clock.enter(Phase::Unaccounted);
        let times = clock.times();
        assert!((times.total - started.elapsed().as_secs_f64()).abs() < 0.005, "{times:?}");
    }

    #[test]
    fn the_longest_phase_comes_first_and_what_took_no_time_is_left_out() {
        let phases = Phase::ALL.map(|phase| match phase {
            Phase::Text => (phase, 2.0),
            Phase::Training => (phase, 7.5),
            Phase::Unaccounted => (phase, 0.5),
            _ => (phase, 0.0),
        });
        let text = WallTime { total: 10.0, phases }.text();
        assert_eq!(text, "10.00 s on the wall: training 7.50 s, text and tokens 2.00 s, unaccounted 0.50 s (5.0%)");
    }
}
