//! Counters for Prometheus, in its text format.

use super::text::Text;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Upper bounds of the time to the first token, seconds.
const FIRST_TOKEN_BOUNDS: [f64; 10] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, f64::INFINITY];

/// Counters of requests and tokens.
#[derive(Default)]
pub(super) struct Metrics(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// By path and status.
    requests: BTreeMap<(&'static str, u16), u64>,
    prompt_tokens: u64,
    cached_prompt_tokens: u64,
    generated_tokens: u64,
    texts: u64,
    cancelled_texts: u64,
    steps: u64,
    busy_slots: usize,
    queued: usize,
    first_token_counts: [u64; FIRST_TOKEN_BOUNDS.len()],
    first_token_seconds: f64,
    text_seconds: f64,
}

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn request(&self, path: &'static str, status: u16) {
        *self.counts().requests.entry((path, status)).or_default() += 1;
    }

    pub fn busy(&self, slots: usize, queued: usize) {
        let mut counts = self.counts();
        (counts.busy_slots, counts.queued) = (slots, queued);
    }

    pub fn prompt_tokens(&self, tokens: usize) {
        self.counts().prompt_tokens += tokens as u64;
    }

    /// A step that computed a token of so many texts.
    pub fn step(&self, texts: usize) {
        let mut counts = self.counts();
        counts.steps += 1;
        counts.generated_tokens += texts as u64;
    }

    /// The first token of a text, which follows from its prompt.
    pub fn first_token(&self, text: &Text) {
        let seconds = text.job.arrived.elapsed().as_secs_f64();
        let mut counts = self.counts();
        counts.generated_tokens += 1;
        counts.first_token_seconds += seconds;
        let bucket = FIRST_TOKEN_BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(0);
        counts.first_token_counts[bucket] += 1;
    }

    pub fn text_ended(&self, text: &Text) {
        let mut counts = self.counts();
        counts.texts += 1;
        counts.cancelled_texts += u64::from(!text.is_complete());
        counts.cached_prompt_tokens += text.cached() as u64;
        counts.text_seconds += text.started.elapsed().as_secs_f64();
    }

    /// All of them as Prometheus reads them.
    pub fn to_text(&self, slots: usize, started: Instant) -> String {
        let counts = self.counts();
        let mut out = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
            let _ = writeln!(out, "# HELP rustyflow_{name} {help}\n# TYPE rustyflow_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(out, "rustyflow_{name}{labels} {value}");
            }
        };
        let one = |value: f64| vec![(String::new(), value)];
        let requests = counts
            .requests
            .iter()
            .map(|((path, status), count)| (format!("{{path=\"{path}\",status=\"{status}\"}}"), *count as f64));
        metric("requests_total", "counter", "Requests by path and status.", &requests.collect::<Vec<_>>());
        for (name, help, value) in [
            ("prompt_tokens_total", "Prompt tokens computed.", counts.prompt_tokens),
            ("cached_prompt_tokens_total", "Prompt tokens taken from the cache.", counts.cached_prompt_tokens),
            ("generated_tokens_total", "Tokens generated.", counts.generated_tokens),
            ("texts_total", "Texts that have ended.", counts.texts),
            ("cancelled_texts_total", "Texts whose client left or was too slow.", counts.cancelled_texts),
            ("steps_total", "Steps of the batch.", counts.steps),
        ] {
            metric(name, "counter", help, &one(value as f64));
        }
        metric("text_seconds_total", "counter", "Time that texts spent in slots.", &one(counts.text_seconds));
        metric("slots", "gauge", "Texts that can run at once.", &one(slots as f64));
        metric("busy_slots", "gauge", "Texts that run.", &one(counts.busy_slots as f64));
        metric("queued_texts", "gauge", "Texts that wait for a slot.", &one(counts.queued as f64));
        metric("uptime_seconds", "gauge", "Time since the start.", &one(started.elapsed().as_secs_f64()));
        out += &counts.first_token_histogram();
        out
    }
}

impl Counts {
    fn first_token_histogram(&self) -> String {
        const NAME: &str = "rustyflow_time_to_first_token_seconds";
        let mut out = format!("# HELP {NAME} Time from a request to its first token.\n# TYPE {NAME} histogram\n");
        let mut total = 0;
        for (bound, count) in FIRST_TOKEN_BOUNDS.iter().zip(self.first_token_counts) {
            total += count;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            let _ = writeln!(out, "{NAME}_bucket{{le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(out, "{NAME}_sum {}\n{NAME}_count {total}", self.first_token_seconds);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_a_type_and_a_value_for_each_metric() {
        let metrics = Metrics::default();
        metrics.request("/chat/completions", 200);
        metrics.request("/chat/completions", 200);
        metrics.step(3);
        let text = metrics.to_text(4, Instant::now());
        assert!(text.contains("rustyflow_requests_total{path=\"/chat/completions\",status=\"200\"} 2\n"), "{text}");
        assert!(text.contains("# TYPE rustyflow_generated_tokens_total counter\n"), "{text}");
        assert!(
            text.contains("rustyflow_generated_tokens_total 3\n") && text.contains("rustyflow_slots 4\n"),
            "{text}"
        );
        assert!(text.contains("first_token_seconds_bucket{le=\"+Inf\"} 0\n"), "{text}");
    }
}
