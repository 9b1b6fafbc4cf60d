//! Line files of a run. A checkpoint stores their lengths, and a rollback truncates them.

use crate::train::checkpoint::{CSV, METRICS, SAMPLES};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// All that a run may have. Those that are there are kept in step with the run, whether it still adds to them or not.
const NAMES: [&str; 3] = [METRICS, CSV, SAMPLES];

/// Those of one run's folder.
pub(in crate::train) struct LineFiles {
    folder: PathBuf,
    files: BTreeMap<&'static str, File>,
}

/// Their state at a moment.
pub(in crate::train) struct Appended {
    /// Bytes, by name.
    pub lengths: BTreeMap<String, u64>,
    /// Handles by which another thread can flush them.
    pub handles: Vec<(PathBuf, File)>,
}

impl LineFiles {
    /// Opens those that are there.
    ///
    /// # Errors
    /// If one cannot be written to.
    pub(in crate::train) fn open(folder: &Path) -> Result<LineFiles> {
        let mut lines = LineFiles { folder: folder.to_path_buf(), files: BTreeMap::new() };
        NAMES.into_iter().filter(|name| folder.join(name).exists()).try_for_each(|name| lines.create(name))?;
        Ok(lines)
    }

    /// Opens one, which need not be there.
    ///
    /// # Errors
    /// If it cannot be written to.
    pub(in crate::train) fn create(&mut self, name: &'static str) -> Result<()> {
        assert!(NAMES.contains(&name), "{name} would not be shortened when its run goes back");
        let path = self.folder.join(name);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        self.files.insert(name, file.map_err(|e| Error::io("open", path, e))?);
        Ok(())
    }

    /// Appends a line to an open file; an empty file first gets its header.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(in crate::train) fn add(&mut self, name: &'static str, header: Option<&str>, line: &str) -> Result<()> {
        let file = self.files.get_mut(name).expect("it was opened");
        let written = file.metadata().and_then(|data| {
            let header = header.filter(|_| data.len() == 0).map_or(String::new(), |header| format!("{header}\n"));
            // One write: whoever reads meanwhile sees whole lines.
            file.write_all(format!("{header}{line}\n").as_bytes())
        });
        written.map_err(|e| Error::io("write", self.folder.join(name), e))
    }

    /// Their current lengths.
    ///
    /// # Errors
    /// If a length or a second handle cannot be obtained.
    pub(in crate::train) fn so_far(&self) -> Result<Appended> {
        let mut so_far = Appended { lengths: BTreeMap::new(), handles: Vec::new() };
        for (name, file) in &self.files {
            let path = self.folder.join(name);
            let both = file.metadata().and_then(|data| Ok((data.len(), file.try_clone()?)));
            let (length, handle) = both.map_err(|e| Error::io("read", &path, e))?;
            so_far.lengths.insert((*name).into(), length);
            so_far.handles.push((path, handle));
        }
        Ok(so_far)
    }

    /// Truncates the files to these lengths; files without a length are emptied. Returns the names of shorter files,
    /// with their missing bytes.
    ///
    /// # Errors
    /// If one cannot be written.
    pub(in crate::train) fn truncate(&self, lengths: &BTreeMap<String, u64>) -> Result<Vec<(String, u64)>> {
        for (name, file) in &self.files {
            let length = lengths.get(*name).copied().unwrap_or(0);
            let shortened = file.metadata().and_then(|data| file.set_len(data.len().min(length)));
            shortened.map_err(|e| Error::io("shorten", self.folder.join(name), e))?;
        }
        let present = self.so_far()?.lengths;
        let missing = lengths.iter().map(|(name, length)| {
            let present = present.get(name).copied().unwrap_or(0);
            (name.clone(), length.saturating_sub(present))
        });
        Ok(missing.filter(|(_, missing)| *missing > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lines_beyond_a_moment_are_forgotten_and_missing_ones_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut lines = LineFiles::open(dir.path()).unwrap();
        lines.create(METRICS).unwrap();
        lines.add(METRICS, None, "1").unwrap();
        let before = lines.so_far().unwrap().lengths;
        lines.create(CSV).unwrap();
        for line in ["2", "3"] {
            lines.add(METRICS, None, line).unwrap();
            lines.add(CSV, Some("a,b"), line).unwrap();
        }
        let after = lines.so_far().unwrap().lengths;
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!([text(METRICS), text(CSV)], ["1\n2\n3\n", "a,b\n2\n3\n"]);
        // Another process finds what is there.
        let mut lines = LineFiles::open(dir.path()).unwrap();
        assert_eq!(lines.truncate(&before).unwrap(), []);
        assert_eq!([text(METRICS), text(CSV)], ["1\n", ""]);
        lines.add(CSV, Some("a,b"), "4").unwrap();
        assert_eq!(text(CSV), "a,b\n4\n", "the header comes back");
        assert_eq!(lines.truncate(&after).unwrap(), [(CSV.to_string(), 2), (METRICS.to_string(), 4)]);
    }
}
