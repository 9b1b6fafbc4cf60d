//! Output that may be closed early, as by `rustyflow ... | head`.

use std::io::{self, Write};

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

/// Writes a line to standard error. Nobody is left to tell if that fails, so unlike `eprintln` it does not panic.
pub fn note(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether whoever read our output has gone: no reason to complain.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_errors = error.chain().filter_map(|e| e.downcast_ref::<io::Error>());
    io_errors.into_iter().any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// 1234567 as "1.23M".
pub fn short(count: f64) -> String {
    match count {
        c if c >= 1e15 => format!("{:.2}P", c / 1e15),
        c if c >= 1e12 => format!("{:.2}T", c / 1e12),
        c if c >= 1e9 => format!("{:.2}G", c / 1e9),
        c if c >= 1e6 => format!("{:.2}M", c / 1e6),
        c if c >= 1e4 => format!("{:.1}k", c / 1e3),
        c if c >= 1e3 => format!("{:.2}k", c / 1e3),
        c => format!("{c:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shortened_to_three_digits() {
        let shown: Vec<String> = [7.0, 1234.0, 51_000.0, 124_439_808.0].map(short).to_vec();
        assert_eq!(shown, ["7", "1.23k", "51.0k", "124.44M"]);
    }
}
