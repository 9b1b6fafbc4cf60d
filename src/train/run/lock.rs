//! Prevents two processes from writing to one run. The operating system releases the lock when the process ends in any
//! way, so a leftover lock file has no effect.

use crate::{Error, Result};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::Path;

/// Holds the id of the process that has the lock, or had it last. It stays when the lock is gone: whoever removed it
/// could remove it from under the next one.
pub(in crate::train) const NAME: &str = ".lock";

/// The right to write into a run's folder, until it is dropped.
pub(in crate::train) struct Lock {
    _file: File,
}

impl Lock {
    /// # Errors
    /// If another process has it, which the error names; or if the folder cannot be written to.
    pub(in crate::train) fn take(run: &Path) -> Result<Lock> {
        let path = run.join(NAME);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let mut file = file.map_err(|e| Error::io("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse { path: run.to_path_buf(), process: holder(&path) });
            }
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                tracing::warn!("{} cannot be locked: take care that no other process writes there", run.display());
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path, error)),
        }
        let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|e| Error::io("write", &path, e))?;
        Ok(Lock { _file: file })
    }
}

/// An error if a process writes to this run.
///
/// # Errors
/// [`Error::InUse`]
pub fn check_unused(run: &Path) -> Result<()> {
    let path = run.join(NAME);
    let Ok(file) = File::open(&path) else { return Ok(()) };
    // Shared, so that two who ask at once do not take each other for a writer.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(Error::InUse { path: run.to_path_buf(), process: holder(&path) }),
        _ => Ok(()),
    }
}

/// "process 4711". Windows lets nobody read a locked file.
fn holder(path: &Path) -> String {
    let id = fs::read_to_string(path).unwrap_or_default();
    if id.trim().is_empty() { "another process".into() } else { format!("process {}", id.trim()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        let error = Lock::take(dir.path()).err().unwrap().to_string();
        let expected = if cfg!(windows) { "another process".into() } else { format!("process {}", std::process::id()) };
        assert!(error.contains(&expected), "{error}");
        assert!(check_unused(dir.path()).unwrap_err().to_string().contains(&expected));
        drop(first);
        check_unused(dir.path()).unwrap();
        Lock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_lock_that_is_left_over_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), "4711 and more\n").unwrap();
        let _lock = Lock::take(dir.path()).unwrap();
        if !cfg!(windows) {
            let id = fs::read_to_string(dir.path().join(NAME)).unwrap();
            assert_eq!(id, format!("{}\n", std::process::id()));
        }
    }
}
