//! Atomic file writes, safe against power failure: written under a temporary name, flushed to the disk, then renamed.

use crate::models::hf::tensor_file;
use crate::{Error, Result};
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// How the names of files begin and end that are about to replace others.
const UNFINISHED: (&str, &str) = (".replacing-", ".tmp");

/// File operations, which tests can make fail.
#[derive(Clone, Default)]
pub struct Files {
    #[cfg(test)]
    pub faults: Faults,
}

impl Files {
    /// Writes a new file and flushes it to the disk.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut file = self.attempt("create", path, || File::create(path))?;
        self.attempt("write", path, || file.write_all(bytes))?;
        self.attempt("flush", path, || file.sync_all())
    }

    /// Writes a new safetensors file of these tensors and flushes it to the disk. `each` gets its bytes in their order.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_tensors(
        &self,
        path: &Path,
        tensors: Vec<(String, TensorView)>,
        metadata: Option<HashMap<String, String>>,
        each: impl FnMut(&[u8]),
    ) -> Result<()> {
        let file = self.attempt("create", path, || File::create(path))?;
        self.attempt("write", path, || tensor_file::write(&file, tensors, metadata, each))?;
        self.attempt("flush", path, || file.sync_all())
    }

    /// Replaces a file atomically: readers see the old or the new one.
    ///
    /// # Errors
    /// If it cannot be written; the old one is then untouched.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.replace_by(path, |file, _| self.attempt("write", path, || file.write_all(bytes)))
    }

    /// [`Files::replace`] with the contents written by `write`, which receives the file and its temporary name.
    ///
    /// # Errors
    /// If it cannot be created or `write` fails; the old one is then untouched.
    pub fn replace_by<T>(&self, path: &Path, write: impl FnOnce(&mut File, &Path) -> Result<T>) -> Result<T> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(UNFINISHED.0).suffix(UNFINISHED.1);
        // As every other file: the default is that only the owner may read it.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut file = self.attempt("create", path, || builder.tempfile_in(folder))?;
        let name = file.path().to_path_buf();
        let result = write(file.as_file_mut(), &name)?;
        self.attempt("flush", path, || file.as_file().sync_all())?;
        self.attempt("rename", path, || file.persist(path).map_err(|e| e.error))?;
        self.sync_folder(folder)?;
        Ok(result)
    }

    /// Removes temporary files of a killed process from a folder.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub fn remove_unfinished(&self, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1) {
                self.remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// If it exists and cannot be removed.
    pub fn remove(&self, path: &Path) -> Result<()> {
        match self.attempt("remove", path, || fs::remove_file(path)) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Creates a folder and its parents, if they do not exist.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create_folder(&self, path: &Path) -> Result<()> {
        self.attempt("create", path, || fs::create_dir_all(path))
    }

    /// Removes a folder with its contents.
    ///
    /// # Errors
    /// If a part of it cannot be removed.
    pub fn remove_folder(&self, path: &Path) -> Result<()> {
        self.attempt("remove", path, || fs::remove_dir_all(path))
    }

    /// Renames a file or folder and flushes the new name to the disk.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.attempt("rename", from, || fs::rename(from, to))?;
        self.sync_folder(to.parent().unwrap_or(Path::new(".")))
    }

    /// Flushes a folder's entries to the disk. Windows has no such request, and stores names with their files.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn sync_folder(&self, path: &Path) -> Result<()> {
        if cfg!(unix) {
            // Of a relative name the folder may be nothing.
            let path = if path == Path::new("") { Path::new(".") } else { path };
            self.attempt("flush", path, || File::open(path).and_then(|folder| folder.sync_all()))?;
        }
        Ok(())
    }

    /// Makes one request; its error names the file and the action.
    fn attempt<T>(&self, action: &'static str, path: &Path, request: impl FnOnce() -> std::io::Result<T>) -> Result<T> {
        #[cfg(test)]
        let request = || self.faults.may_fail().and_then(|()| request());
        request().map_err(|e| Error::io(action, path, e))
    }
}

/// Counts down to the request that fails, if any. Clones share the count.
#[cfg(test)]
#[derive(Clone, Default)]
pub struct Faults(std::sync::Arc<std::sync::Mutex<Option<usize>>>);

#[cfg(test)]
impl Faults {
    /// Makes the n-th request and all later ones fail.
    pub fn from_request(n: usize) -> Faults {
        Faults(std::sync::Arc::new(std::sync::Mutex::new(Some(n))))
    }

    /// Whether a request has failed.
    pub fn has_failed(&self) -> bool {
        *self.0.lock().unwrap() == Some(0)
    }

    /// Returns the error of a full disk if this request fails.
    pub fn may_fail(&self) -> std::io::Result<()> {
        match &mut *self.0.lock().unwrap() {
            Some(left @ (0 | 1)) => {
                *left = 0;
                Err(std::io::ErrorKind::StorageFull.into())
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
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
    fn what_a_killed_process_was_replacing_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".replacing-Ab1.tmp", "last", ".lock", "notes.tmp"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        Files::default().remove_unfinished(dir.path()).unwrap();
        let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        assert_eq!(names, [".lock", "last", "notes.tmp"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_replaced_is_as_readable_as_any_other() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let [replaced, plain] = ["last", "plain"].map(|name| dir.path().join(name));
        Files::default().replace(&replaced, b"").unwrap();
        fs::write(&plain, "").unwrap();
        let [replaced, plain] = [replaced, plain].map(|path| fs::metadata(path).unwrap().permissions().mode());
        assert_eq!(replaced, plain);
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
