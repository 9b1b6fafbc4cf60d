//! Progress of loading a model, which takes long if it is large or the disk is slow.

use super::output;
use crate::tensor::values_read;
use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(200);
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Shows on a terminal how many parameters are loaded, whenever loading takes longer than a second. The thread ends
/// with the process.
pub fn watch() {
    if !std::io::stderr().is_terminal() || output::is_quiet() {
        return;
    }
    let show = || {
        let (mut loading, mut bar) = (Loading::default(), None::<ProgressBar>);
        loop {
            thread::sleep(LOOK_EVERY);
            match loading.look(values_read(), Instant::now()).filter(|_| !output::is_held()) {
                Some(text) => bar.get_or_insert_with(spinner).set_message(text),
                None => bar.take().into_iter().for_each(|bar| bar.finish_and_clear()),
            }
        }
    };
    // Without the thread, nothing is shown.
    let _ = thread::Builder::new().name("loading".into()).spawn(show);
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    bar.with_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is valid"))
}

/// What was seen of a model that is being loaded.
#[derive(Default)]
struct Loading {
    /// Numbers read so far, of this model and others.
    read: u64,
    /// When the reading began, and what had been read before.
    began: Option<(Instant, u64)>,
}

impl Loading {
    /// The text to show, if numbers were read since the last look, and for long enough.
    fn look(&mut self, read: u64, now: Instant) -> Option<String> {
        let before = std::mem::replace(&mut self.read, read);
        if read == before {
            self.began = None;
            return None;
        }
        let (began, first) = *self.began.get_or_insert((now, before));
        let elapsed = now - began;
        let text = || format!("loading the model: {} parameters", units::count((read - first) as f64));
        (elapsed >= SHOWN_AFTER).then(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_load_is_shown_and_only_while_it_lasts() {
        let (mut loading, start) = (Loading::default(), Instant::now());
        let mut look = |ms: u64, read: u64| loading.look(read, start + Duration::from_millis(ms));
        assert_eq!(look(0, 0), None);
        assert_eq!(look(200, 50_000_000), None);
        assert_eq!(look(800, 100_000_000), None);
        assert_eq!(look(1200, 150_000_000).unwrap(), "loading the model: 150M parameters");
        assert_eq!(look(1400, 150_000_000), None);
        // The next model counts from 0.
        assert_eq!(look(5000, 160_000_000), None);
        assert_eq!(look(6000, 1_360_000_000).unwrap(), "loading the model: 1.21G parameters");
    }
}
