//! Cache files on disk: losing one costs time, never a result.

use etcetera::base_strategy::{BaseStrategy, choose_native_strategy};
use std::env;
use std::fs;
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Writes a file atomically.
///
/// A file that cannot be written is recomputed by the next run and is no error: see [`warn`].
pub fn store(path: &Path, bytes: &[u8]) {
    if let Err(error) = replace(path, bytes) {
        warn(path, &error);
    }
}

/// Warns that a cache file cannot be written, once per process, because later failures usually have the same cause.
pub fn warn(path: &Path, error: &Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "cannot write {}: {error}; the next run compiles, autotunes and tokenizes again; make the folder \
             writable, or set RUSTYFLOW_CACHE_DIR to another",
            path.display()
        );
    });
}

/// Writes a file atomically; a failure is an error.
///
/// # Errors
/// If it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut builder = tempfile::Builder::new();
    // Several users may share the folder: the default is that only the owner may read the file.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// Hexadecimal digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `RUSTYFLOW_CACHE_DIR`, or `rustyflow` in the user's cache folder. It may not exist.
pub fn user_folder() -> Option<PathBuf> {
    let set = env::var_os("RUSTYFLOW_CACHE_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set.or_else(|| Some(choose_native_strategy().ok()?.cache_dir().join("rustyflow")));
    if folder.is_none() {
        tracing::warn!(
            "this user has no cache folder, so every run compiles its shaders again; set RUSTYFLOW_CACHE_DIR"
        );
    }
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kernels").join("a.json");
        store(&path, b"old and long");
        store(&path, b"new");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_may_be_read_by_whom_any_other_of_the_user_may() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let [stored, plain] = ["stored", "plain"].map(|name| dir.path().join(name));
        store(&stored, b"new");
        fs::write(&plain, b"new").unwrap();
        let [stored, plain] = [stored, plain].map(|path| fs::metadata(path).unwrap().permissions().mode());
        assert_eq!(stored, plain);
    }

    #[test]
    fn what_cannot_be_written_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"in the way").unwrap();
        store(&file.join("a.json"), b"new");
        // A folder in place of the file: the write succeeds and the renaming fails.
        let folder = dir.path().join("folder");
        fs::create_dir_all(folder.join("inner")).unwrap();
        store(&folder, b"new");
        assert_eq!(fs::read(&file).unwrap(), b"in the way");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
