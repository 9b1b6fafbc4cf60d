//! Files that outlast the process, in the folder that `AdapterChoice::cache` names: losing one costs time, never a result.

use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Writes a file whole or not at all, so that nobody reads half of it.
///
/// A file that cannot be written is work for the next run, not an error of this one: the first of a process is a warning,
/// and the others, which fail for the same reason, are not mentioned.
pub(crate) fn store(path: &Path, bytes: &[u8]) {
    static WARNED: Once = Once::new();
    if let Err(error) = replace(path, bytes) {
        WARNED.call_once(|| {
            tracing::warn!(
                "cannot write {}: {error}; what was compiled or measured is lost and the next run does it again; make \
                 the folder writable, or name another with RUSTYFLOW_CACHE_DIR",
                path.display()
            );
        });
    }
}

fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    static WRITES: AtomicU32 = AtomicU32::new(0);
    fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
    // A name of its own for each write: several processes may keep the same file.
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}-{}.tmp", std::process::id(), WRITES.fetch_add(1, Ordering::Relaxed)));
    let unfinished = PathBuf::from(unfinished);
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // What cannot be removed does no harm.
        let _ = fs::remove_file(&unfinished);
    }
    written
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
