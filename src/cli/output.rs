//! Output that may be closed early, as by `rustyflow ... | head`.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was written to standard error while something else has the terminal; `None` if nothing has.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Whether the command was called with --quiet.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Writes a line; a closed pipe is an error, not a panic.
pub fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes text at once, for streaming.
pub fn now(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a line to standard error, unless the command was told to be quiet.
pub fn note(text: impl std::fmt::Display) {
    if !is_quiet() {
        error(text);
    }
}

/// Writes a line to standard error. Nobody is left to tell if that fails, so unlike `eprintln` it does not panic.
pub fn error(text: impl std::fmt::Display) {
    let _ = writeln!(Notes, "{text}");
}

/// From here on standard error gets errors alone.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether something else has the terminal.
pub fn is_held() -> bool {
    held().is_some()
}

pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Standard error, unless what is written there is held back.
pub struct Notes;

impl Write for Notes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut *held() {
            Some(notes) => {
                notes.push(String::from_utf8_lossy(bytes).into_owned());
                Ok(())
            }
            None => io::stderr().write_all(bytes),
        }
    }

    fn write_fmt(&mut self, text: std::fmt::Arguments) -> io::Result<()> {
        // In one piece.
        self.write_all(text.to_string().as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn held() -> MutexGuard<'static, Option<Vec<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on notes are held back.
pub fn hold_notes() {
    held().get_or_insert_default();
}

/// Those that are held back, after the first `skip`.
pub fn held_notes(skip: usize) -> Vec<String> {
    held().iter().flatten().skip(skip).cloned().collect()
}

/// Writes what was held back, and holds back nothing more.
pub fn release_notes() {
    let notes = held().take();
    notes.iter().flatten().for_each(|note| drop(io::stderr().write_all(note.as_bytes())));
}

/// Whether whoever read our output has gone: no reason to complain.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_errors = error.chain().filter_map(|e| e.downcast_ref::<io::Error>());
    io_errors.into_iter().any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether a stream is a terminal whose user has nothing against colours.
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Characters that fit in a line of standard output: those of the terminal, or a hundred.
pub fn width() -> usize {
    terminal_size::terminal_size_of(io::stdout()).map_or(100, |(width, _)| usize::from(width.0).max(60))
}

/// Rows with their columns below each other, two spaces apart; the first is to the left, those of numbers to the right.
pub fn table(rows: &[Vec<String>], is_number: impl Fn(usize) -> bool) -> String {
    let count = |text: &String| text.chars().count();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| rows.iter().filter_map(|row| row.get(column)).map(count).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| {
            if is_number(i) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "1", "x"], ["bcd", "234", ""]].map(|row| row.map(str::to_string).to_vec());
        assert_eq!(table(&rows, |column| column == 1), "a      1  x\nbcd  234");
    }
}
