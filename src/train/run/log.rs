//! `training_log.txt` (`log.file`): each run appends a block.

use super::events::Summary;
use crate::config::LogConfig;
use crate::units;
use crate::{Error, Result};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Epochs that get a line each: a run of more has so short ones that nobody looks at them all.
const MOST_EPOCHS: usize = 100;

/// The log file, and a note if it is not `wanted`: a default that cannot be written to, as in a read-only folder, is
/// replaced by the file of that name in `runs`, the folder of runs.
///
/// # Errors
/// If a configured `wanted`, or both files, cannot be written to; checked before the run starts.
pub fn place(wanted: &Path, runs: &Path) -> Result<(PathBuf, Option<String>)> {
    let error = match check(wanted) {
        Ok(()) => return Ok((wanted.to_path_buf(), None)),
        Err(error) => error,
    };
    if wanted != Path::new(&LogConfig::default().file) {
        return Err(error);
    }
    let instead = runs.join(wanted);
    std::fs::create_dir_all(runs).map_err(|e| Error::io("create", runs, e))?;
    check(&instead)?;
    let note = format!("{error}; the timings of this run go to {} (log.file)", instead.display());
    Ok((instead, Some(note)))
}

/// Fails unless a block can be appended.
fn check(path: &Path) -> Result<()> {
    let is_new = !path.exists();
    open(path)?;
    if is_new { std::fs::remove_file(path).map_err(|e| Error::io("remove", path, e)) } else { Ok(()) }
}

fn open(path: &Path) -> Result<std::fs::File> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|e| Error::io("open", path, e))
}

/// Appends the block of one run.
///
/// # Errors
/// If the file cannot be written.
pub fn append(path: &Path, summary: &Summary) -> Result<()> {
    let mut file = open(path)?;
    // One write, so that runs which end together do not mix their lines.
    file.write_all(block(summary).as_bytes()).map_err(|e| Error::io("write", path, e))
}

/// "12.3 s", or of a run that was resumed "12.3 s since it was resumed, 45.1 s in all".
fn training_time(s: &Summary) -> String {
    let since = units::duration(s.report.training_seconds);
    s.seconds_in_all
        .map_or(since.clone(), |all| format!("{since} since it was resumed, {} in all", units::duration(all)))
}

fn block(s: &Summary) -> String {
    let mut text = String::new();
    let now = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC");
    let m = &s.model;
    let _ = writeln!(text, "== {now}  rustyflow {}  {}", env!("CARGO_PKG_VERSION"), s.folder.display());
    let _ = writeln!(text, "device            {}", s.device);
    let _ = writeln!(text, "precision         {}", s.precision);
    let _ = writeln!(
        text,
        "model             {}L{} H{} E{} context {} vocabulary {}: {} parameters",
        if m.is_recurrent() { format!("{} ", m.kind.as_str()) } else { String::new() },
        m.n_layer,
        m.n_head,
        m.n_embd,
        m.block_size,
        m.vocab_size,
        units::count(s.parameters as f64)
    );
    if let Some(adapters) = &s.adapters {
        let _ = writeln!(text, "adapters          {adapters}");
    }
    let stopped = if s.interrupted { ", interrupted" } else { "" };
    let _ = writeln!(text, "steps             {} of {} ({:.2} epochs{stopped})", s.steps, s.total_steps, s.epochs);
    let _ = writeln!(text, "training time     {}", training_time(s));
    let per_epoch = s.report.seconds_per_epoch.map_or("- (no whole epoch)".into(), units::digits);
    let _ = writeln!(text, "seconds per epoch {per_epoch}");
    for (epoch, seconds) in s.epoch_seconds.iter().take(MOST_EPOCHS) {
        let _ = writeln!(text, "  epoch {epoch:<10}{}", units::digits(*seconds));
    }
    if s.epoch_seconds.len() > MOST_EPOCHS {
        let _ = writeln!(text, "  and {} more", s.epoch_seconds.len() - MOST_EPOCHS);
    }
    let _ = writeln!(text, "speed             {}", units::tokens_per_s(s.tokens_per_s));
    let share = 100.0 * s.report.host_share();
    let _ = writeln!(
        text,
        "kernels, host     {} ({:.1}%), {} ({share:.1}%)",
        units::duration(s.report.kernel_seconds),
        100.0 - share,
        units::duration(s.report.host.total)
    );
    let number = |loss: Option<f64>| loss.map_or("-".to_string(), units::loss);
    let validation = s.validation.as_ref().map(|v| v.loss);
    let _ = writeln!(
        text,
        "final losses      train {}, validation {} (best {})\n",
        number(s.train_loss),
        number(validation),
        number(s.best_loss)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_set_and_cannot_be_written_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let writable = dir.path().join("log.txt");
        assert_eq!(place(&writable, &runs).unwrap(), (writable.clone(), None));
        assert!(!writable.exists() && !runs.exists(), "nothing is left of the check");
        std::fs::create_dir(&writable).unwrap();
        let error = place(&writable, &runs).unwrap_err().to_string();
        assert!(error.contains("cannot open") && error.contains("log.txt"), "{error}");
    }
}
