//! Takes over the terminal, and gives it back however the process ends: at the end of a run, by an error, a panic or a
//! signal.

use crate::cli::output;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::terminal::{self, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::crossterm::{execute, tty::IsTty};
use std::io;
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::Duration;

/// The least columns and rows that hold the view.
pub const SMALLEST: (u16, u16) = (60, 16);

/// Whether the terminal is taken over. Locked while something is drawn.
static OURS: Mutex<bool> = Mutex::new(false);

/// Why the terminal cannot be taken over, if so.
pub fn obstacle() -> Option<String> {
    if !io::stdout().is_tty() {
        return Some("needs a terminal, which standard output is not".into());
    }
    if cfg!(unix) && std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb") {
        return Some("needs a terminal that can move its cursor, which TERM does not name".into());
    }
    let (columns, rows) = SMALLEST;
    match terminal::size() {
        Ok((width, height)) if width >= columns && height >= rows => None,
        Ok((width, height)) => Some(format!("needs {columns} columns and {rows} rows, here are {width} and {height}")),
        Err(error) => Some(format!("needs to know the size of the terminal: {error}")),
    }
}

/// Takes the terminal: what is written to standard error meanwhile is held back.
///
/// # Errors
/// If the terminal refuses.
pub fn enter() -> io::Result<()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            report(panic);
        }));
    });
    let mut ours = lock();
    terminal::enable_raw_mode()?;
    **ours.as_mut().expect("nothing is drawn yet") = true;
    output::hold_notes();
    drop(ours);
    execute!(io::stdout(), EnterAlternateScreen).inspect_err(|_| leave())
}

/// Gives the terminal back, if it was taken, and writes what was held back.
pub fn leave() {
    let ours = lock();
    let was_ours = ours.is_none_or(|mut ours| std::mem::take(&mut *ours));
    if was_ours {
        // Nothing better can be done about a terminal that is gone.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = terminal::disable_raw_mode();
        output::release_notes();
    }
}

/// Draws, unless the terminal has been given back.
///
/// # Errors
/// Those of `draw`.
pub fn if_ours(draw: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match lock() {
        Some(ours) if *ours => draw(),
        _ => Ok(()),
    }
}

/// `None` where this thread panicked while it drew, and so holds the lock already.
fn lock() -> Option<MutexGuard<'static, bool>> {
    for _ in 0..100 {
        match OURS.try_lock() {
            Ok(ours) => return Some(ours),
            Err(TryLockError::Poisoned(ours)) => return Some(ours.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    None
}
