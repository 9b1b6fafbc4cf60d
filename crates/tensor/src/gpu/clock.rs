//! Maps GPU timestamps to the host's clock, for traces.
//!
//! The two clocks cannot be read at the same moment, so their offset is estimated from causality: a submit starts on
//! the GPU after the host submits it, and ends before its timestamps arrive. Each submit bounds the offset from both
//! sides. The offset stays unchanged while it is within the bounds, so that gaps between submits are exact. It starts
//! at the lower bound, because an idle GPU starts about 10 us after the submit. After the host has waited for the GPU,
//! the bounds are 10 to 100 us apart on most systems.

use std::time::{Duration, Instant};

/// By how much the clocks may drift apart: crystals keep within 100 ppm.
const DRIFT: f64 = 1e-4;

/// All times are nanoseconds, of the host since `origin`, of the GPU since its first timestamp.
pub(super) struct Clock {
    ns_per_tick: f64,
    origin: Instant,
    first_tick: Option<u64>,
    /// Offset added to GPU times, and its bounds.
    offset: f64,
    bounds: [f64; 2],
    /// When they were found.
    at: f64,
    /// Where the submit before ended, after which the next one begins.
    ended: f64,
}

impl Clock {
    pub fn new(ns_per_tick: f64) -> Clock {
        Clock {
            ns_per_tick,
            origin: Instant::now(),
            first_tick: None,
            offset: f64::NEG_INFINITY,
            bounds: [f64::NEG_INFINITY, f64::INFINITY],
            at: 0.0,
            ended: 0.0,
        }
    }

    fn gpu_ns(&self, tick: u64) -> f64 {
        // The subtraction is exact, whatever the clock counts from.
        tick.wrapping_sub(self.first_tick.unwrap_or(tick)) as i64 as f64 * self.ns_per_tick
    }

    /// Updates the bounds with a submit's first and last tick. Submits must come in order.
    pub fn align(&mut self, [first, last]: [u64; 2], submitted: Instant, arrived: Instant) {
        self.first_tick.get_or_insert(first);
        let (begin, end) = (self.gpu_ns(first), self.gpu_ns(last));
        let [submitted, arrived] =
            [submitted, arrived].map(|at| at.saturating_duration_since(self.origin).as_nanos() as f64);
        let drifted = DRIFT * (arrived - self.at);
        let [low, high] = self.bounds;
        self.bounds = [(low - drifted).max(submitted - begin), (high + drifted).min(arrived - end)];
        self.at = arrived;
        let [low, high] = self.bounds;
        // Submits do not overlap; their durations are exact, the difference is not.
        self.offset = self.offset.min(high).max(low).max(self.ended - begin);
        self.ended = end + self.offset;
    }

    /// The host time of a tick of the last submit.
    pub fn instant(&self, tick: u64) -> Instant {
        self.origin + Duration::from_nanos((self.gpu_ns(tick) + self.offset).max(0.0) as u64)
    }

    /// The largest error of the offset.
    pub fn error(&self) -> Duration {
        let [low, high] = self.bounds;
        Duration::from_nanos((high - low).max(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_found_within_its_error_and_kept_while_clocks_drift() {
        let mut clock = Clock::new(2.0);
        let origin = clock.origin;
        let host = |ns: f64| origin + Duration::from_nanos(ns as u64);
        // A GPU that counts from long ago, 50 ppm too fast, and begins 20 us after each submit if it can.
        let tick = |ns: f64| 1_000_000_000_000_000 + (ns * 1.00005 / 2.0) as u64;
        let (mut busy_until, mut before) = (0.0_f64, origin);
        for submit in 0..10_000 {
            let submitted = 1e6 + f64::from(submit) * 9e6;
            let begin = (submitted + 20e3).max(busy_until);
            // Of ten submits one is short.
            let end = begin + if submit % 10 == 0 { 1e6 } else { 9.5e6 };
            busy_until = end;
            // The host waits for the 10th, the others are noticed late.
            let arrived = end + if submit % 10 == 0 { 30e3 } else { 15e6 };
            clock.align([tick(begin), tick(end)], host(submitted), host(arrived));
            let placed = clock.instant(tick(begin));
            let off = placed.saturating_duration_since(host(begin)).max(host(begin).saturating_duration_since(placed));
            assert!(off <= Duration::from_micros(60), "submit {submit} is off by {off:?}");
            assert!(placed >= before, "submit {submit} begins before the one before ends");
            before = clock.instant(tick(end));
        }
        assert!(clock.error() < Duration::from_micros(100), "{:?}", clock.error());
    }
}
