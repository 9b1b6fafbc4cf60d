//! Training throughput: tokens per second between completed logged steps.
//!
//! The host observes completed GPU steps with a delay: several may arrive at once, or one late and the next on time.
//! Steps that arrive together share a speed. A step soon after one that may have been observed late is timed from an
//! earlier one, so that this delay changes a speed by at most a factor of two.

use std::collections::VecDeque;
use std::time::Duration;

/// Steps that are remembered to time later ones from.
const REMEMBERED: usize = 16;

/// A logged step that the device has finished. Times are without evaluations, samples and waits for checkpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::train) struct Completion {
    /// Tokens trained on so far, including this step.
    pub tokens: u64,
    /// When it was observed as completed.
    pub at: Duration,
    /// When it was last observed as incomplete.
    pub unfinished_at: Duration,
}

impl Completion {
    /// A completion with an exact time.
    fn exact(tokens: u64, at: Duration) -> Completion {
        Completion { tokens, at, unfinished_at: at }
    }
}

#[derive(Debug, Default)]
pub(in crate::train) struct Throughput {
    /// The last ones, oldest first.
    recent: VecDeque<Completion>,
    /// Tokens and time between all completions.
    tokens: u64,
    time: Duration,
}

impl Throughput {
    /// The speed of steps that arrived together; `None` for the first ones.
    pub fn add(&mut self, arrived: &[Completion]) -> Option<f64> {
        let newest = *arrived.last()?;
        let speed = self.recent.back().copied().and_then(|last| {
            self.tokens += newest.tokens.saturating_sub(last.tokens);
            self.time += newest.at.saturating_sub(last.at);
            let since = |earlier: &Completion| newest.at.saturating_sub(earlier.at);
            let is_far = |earlier: &&Completion| since(earlier) > earlier.at.saturating_sub(earlier.unfinished_at);
            let from = self.recent.iter().rev().find(is_far).or(self.recent.front())?;
            per_second(newest.tokens.saturating_sub(from.tokens), since(from))
        });
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(newest);
        speed
    }

    /// Restarts the measurement at this time and number of tokens.
    pub fn restart(&mut self, tokens: u64, at: Duration) {
        self.recent = [Completion::exact(tokens, at)].into();
    }

    /// The average over all steps; `None` before the second completes.
    pub fn average(&self) -> Option<f64> {
        per_second(self.tokens, self.time)
    }
}

fn per_second(tokens: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn exact(tokens: u64, at: u64) -> Completion {
        Completion::exact(tokens, ms(at))
    }

    #[test]
    fn a_step_is_timed_from_the_one_finished_before_it() {
        let mut throughput = Throughput::default();
        assert_eq!(throughput.add(&[exact(100, 90_000)]), None, "kernels were compiled before the first");
        assert_eq!(throughput.average(), None);
        assert_eq!(throughput.add(&[exact(200, 90_100)]), Some(1000.0));
        assert_eq!(throughput.add(&[exact(250, 90_200)]), Some(500.0), "a step with more padding");
        assert_eq!(throughput.average(), Some(750.0));
    }

    #[test]
    fn steps_that_arrive_together_share_a_speed() {
        let mut throughput = Throughput::default();
        throughput.add(&[exact(100, 0)]);
        assert_eq!(throughput.add(&[exact(200, 300), exact(300, 300), exact(400, 300)]), Some(1000.0));
    }

    #[test]
    fn a_step_that_was_noticed_late_makes_the_next_no_faster() {
        let mut throughput = Throughput::default();
        throughput.add(&[exact(100, 0)]);
        // Finished at 100 ms, and seen at 199 ms; the next is seen at once.
        let late = Completion { tokens: 200, at: ms(199), unfinished_at: ms(50) };
        throughput.add(&[late]);
        assert_eq!(throughput.add(&[exact(300, 200)]), Some(1000.0));
        assert_eq!(throughput.average(), Some(1000.0));
    }

    #[test]
    fn steps_that_were_undone_do_not_count() {
        let mut throughput = Throughput::default();
        throughput.add(&[exact(100, 0)]);
        throughput.add(&[exact(200, 100)]);
        throughput.restart(100, ms(900));
        assert_eq!(throughput.add(&[exact(200, 1000)]), Some(1000.0));
        assert_eq!(throughput.average(), Some(1000.0));
    }

    #[test]
    fn no_time_gives_no_speed() {
        let mut throughput = Throughput::default();
        throughput.add(&[exact(100, 5)]);
        assert_eq!(throughput.add(&[exact(200, 5)]), None);
    }
}
