//! Files that are there whole or not at all, even if the power fails: written under another name, flushed to the disk,
//! then renamed.

use crate::{Error, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Writes a new file and waits until the disk has it.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(|e| Error::io("create", path, e))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| Error::io("write", path, e))
}

/// Writes a file in place of the one that may be there: whoever reads sees the old one or the new one.
///
/// # Errors
/// If it cannot be written; the old one is then untouched.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = Path::new(&unfinished);
    let result = write(unfinished, bytes).and_then(|()| rename(unfinished, path));
    if result.is_err() {
        // What cannot be removed does no harm.
        let _ = fs::remove_file(unfinished);
    }
    result
}

/// Removes a file that may be there.
///
/// # Errors
/// If it is there and cannot be removed.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
        _ => Ok(()),
    }
}

/// Renames a file or folder and waits until the disk knows its new name.
///
/// # Errors
/// If it cannot be renamed.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io("rename", from, e))?;
    sync_folder(to.parent().unwrap_or(Path::new(".")))
}

/// Waits until the disk has the names in a folder. Windows knows no such request, and keeps names with their files.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn sync_folder(path: &Path) -> Result<()> {
    if cfg!(unix) {
        let synced = File::open(path).and_then(|folder| folder.sync_all());
        synced.map_err(|e| Error::io("flush", path, e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("last");
        replace(&path, b"old and long").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("last");
        fs::create_dir_all(path.join("in the way")).unwrap();
        assert!(replace(&path, b"new").unwrap_err().to_string().contains("last"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
