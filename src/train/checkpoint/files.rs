//! Files that are there whole or not at all, even if the power fails: written under another name, flushed to the disk,
//! then renamed.

#[cfg(test)]
use super::fault_injection::Faults;
use crate::{Error, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Asks the operating system. In tests it can be told to refuse.
#[derive(Clone, Default)]
pub struct Files {
    #[cfg(test)]
    pub faults: Faults,
}

impl Files {
    /// Writes a new file and waits until the disk has it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut file = self.attempt("create", path, || File::create(path))?;
        self.attempt("write", path, || file.write_all(bytes))?;
        self.attempt("flush", path, || file.sync_all())
    }

    /// Writes a file in place of the one that may be there: readers see the old one or the new one.
    ///
    /// # Errors
    /// If it cannot be written; the old one is then untouched.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".unfinished");
        let unfinished = Path::new(&unfinished);
        let result = self.write(unfinished, bytes).and_then(|()| self.rename(unfinished, path));
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
    pub fn remove(&self, path: &Path) -> Result<()> {
        match self.attempt("remove", path, || fs::remove_file(path)) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Creates a folder, and those above it, that may be there.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create_folder(&self, path: &Path) -> Result<()> {
        self.attempt("create", path, || fs::create_dir_all(path))
    }

    /// Removes a folder with all that is in it.
    ///
    /// # Errors
    /// If something of it cannot be removed.
    pub fn remove_folder(&self, path: &Path) -> Result<()> {
        self.attempt("remove", path, || fs::remove_dir_all(path))
    }

    /// Renames a file or folder and waits until the disk knows its new name.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.attempt("rename", from, || fs::rename(from, to))?;
        self.sync_folder(to.parent().unwrap_or(Path::new(".")))
    }

    /// Waits until the disk has the names in a folder. Windows knows no such request, and keeps names with their files.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn sync_folder(&self, path: &Path) -> Result<()> {
        if cfg!(unix) {
            self.attempt("flush", path, || File::open(path).and_then(|folder| folder.sync_all()))?;
        }
        Ok(())
    }

    /// Makes one request; its error names the file and what was being done.
    fn attempt<T>(&self, action: &'static str, path: &Path, request: impl FnOnce() -> std::io::Result<T>) -> Result<T> {
        #[cfg(test)]
        let request = || self.faults.may_fail().and_then(|()| request());
        request().map_err(|e| Error::io(action, path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("last");
        Files::default().replace(&path, b"old and long").unwrap();
        Files::default().replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("last");
        fs::create_dir_all(path.join("in the way")).unwrap();
        assert!(Files::default().replace(&path, b"new").unwrap_err().to_string().contains("last"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
