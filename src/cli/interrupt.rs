//! Ctrl-C and SIGTERM: a command with something to save is asked to stop, all else ends at once.

use super::{output, tui};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::process::{ExitCode, exit};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a signal does to the command that runs.
#[derive(Default)]
pub struct Interrupts {
    /// The signal that came, or 0.
    signal: AtomicI32,
    /// Whether the command was asked to stop.
    stop: AtomicBool,
    /// What is said to whoever asks it to; `None` where a signal ends the process at once.
    stopping: Mutex<Option<&'static str>>,
}

/// That a command stopped before its end, because a signal asked it to. It has said so itself.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupts {
    /// Watches for signals from here on. Until [`Interrupts::stop_after`] each ends the process.
    pub fn watch() -> Arc<Interrupts> {
        let interrupts = Arc::new(Interrupts::default());
        let pending = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM] {
            if let Err(error) = signal_hook::flag::register_usize(signal, pending.clone(), signal as usize) {
                tracing::warn!("signal {signal} will end the run without saving: {error}");
            }
        }
        let watched = interrupts.clone();
        // Little may be done where a signal arrives, so another thread looks for it.
        std::thread::spawn(move || {
            loop {
                match pending.swap(0, Ordering::Relaxed) {
                    0 => std::thread::sleep(Duration::from_millis(10)),
                    signal => watched.receive(signal as i32),
                }
            }
        });
        interrupts
    }

    fn receive(&self, signal: i32) {
        self.signal.store(signal, Ordering::Relaxed);
        let stopping = *self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        match stopping {
            Some(message) if !self.stop.swap(true, Ordering::Relaxed) => output::note(message),
            _ => {
                tui::terminal::leave();
                exit(128 + signal)
            }
        }
    }

    /// From here on the first signal asks the command to stop, with these words, and the second ends the process.
    pub fn stop_after(&self, message: &'static str) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }

    /// Set when the command is to stop.
    pub fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// How a process reports that a signal ended it: 130 for Ctrl-C, 143 for SIGTERM.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(128 + self.signal.load(Ordering::Relaxed) as u8)
    }
}
