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
    reaction: Mutex<Reaction>,
}

/// What the next signal does.
#[derive(Default, Clone, Copy)]
enum Reaction {
    /// It ends the process.
    #[default]
    End,
    /// It ends the process, and the line of a prompt that the cursor stands in.
    EndAtPrompt,
    /// It asks the command to stop, with these words, if any; the one after it ends the process.
    Ask(&'static str),
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
        let reaction = *self.reaction.lock().unwrap_or_else(PoisonError::into_inner);
        match reaction {
            Reaction::Ask(words) if !self.stop.swap(true, Ordering::Relaxed) => {
                if !words.is_empty() {
                    output::note(words);
                }
                return;
            }
            Reaction::EndAtPrompt => output::error(""),
            Reaction::End | Reaction::Ask(_) => {}
        }
        tui::terminal::leave();
        exit(128 + signal)
    }

    fn react(&self, reaction: Reaction) {
        *self.reaction.lock().unwrap_or_else(PoisonError::into_inner) = reaction;
    }

    /// From here on the first signal asks the command to stop, with these words, if any, and the second ends the
    /// process.
    pub fn stop_after(&self, message: &'static str) {
        self.react(Reaction::Ask(message));
    }

    /// From here on the next signal ends the process again, `at_prompt` with the line that the cursor stands in. What
    /// was asked to stop has stopped.
    pub fn end_at_once(&self, at_prompt: bool) {
        self.react(if at_prompt { Reaction::EndAtPrompt } else { Reaction::End });
        self.stop.store(false, Ordering::Relaxed);
    }

    /// Whether it was SIGTERM that came, which is meant for the whole command.
    pub fn is_terminated(&self) -> bool {
        self.signal.load(Ordering::Relaxed) == SIGTERM
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
