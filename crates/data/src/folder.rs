//! Selects the files of a folder that form a corpus.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use super::source::{Source, kind_of};
use rustyflow_base::error::{Error, Result};

/// The endings of files that are read if nothing else is said: `data.files` says otherwise.
const TEXTS: [&str; 10] = ["txt", "text", "md", "markdown", "rst", "tokens", "raw", "jsonl", "ndjson", "parquet"];

/// The ending of a file whose array of objects is read as rows.
const JSON: &str = "json";

/// The endings of files that splits may come in.
const SPLITS: [&str; 7] = ["txt", "tokens", "raw", "jsonl", "ndjson", JSON, "parquet"];

/// The files of a folder and below.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// In order of path.
    pub taken: Vec<PathBuf>,
    /// Number of skipped files by extension.
    pub skipped: BTreeMap<String, usize>,
}

/// Finds the files that are meant by `patterns`, or else all texts. Hidden files and folders, and linked folders, which
/// may lead round in circles, are not looked at.
///
/// # Errors
/// If a folder cannot be read, or a pattern is none.
pub(super) fn find_files(folder: &Path, patterns: &[String]) -> Result<Files> {
    let chosen = Patterns::new(patterns)?;
    let mut files = Files::default();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(inner) = folders.pop() {
        for entry in std::fs::read_dir(&inner).map_err(|error| Error::io("read", &inner, error))? {
            let entry = entry.map_err(|error| Error::io("read", &inner, error))?;
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if entry.file_type().map_err(|error| Error::io("read", &path, error))?.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                let relative = path.strip_prefix(folder).unwrap_or(&path);
                let takes = chosen.takes(relative);
                if takes {
                    files.taken.push(path);
                } else {
                    let kind = kind_of(&path);
                    *files
                        .skipped
                        .entry(if kind.is_empty() { "no ending".into() } else { format!(".{kind}") })
                        .or_default() += 1;
                }
            }
        }
    }
    files.taken.sort();
    Ok(files)
}

/// Whether a file is a text, by its extension.
#[doc(hidden)]
pub fn is_text(path: &Path) -> bool {
    let kind = kind_of(path);
    kind == JSON || TEXTS.contains(&kind.as_str())
}

/// The texts of a folder that are read without `data.files`. Nobody named them, and files that end in `.json` mostly
/// hold settings: of these, only splits are read.
fn is_taken(path: &Path) -> bool {
    is_text(path) && (kind_of(path) != JSON || (path.components().count() == 1 && split_of(path).is_some()))
}

/// `data.files`: patterns as in a `.gitignore`; those that begin with `!` leave out what others take, or
/// else of all texts.
struct Patterns {
    takes: GlobSet,
    leaves: GlobSet,
}

impl Patterns {
    fn new(patterns: &[String]) -> Result<Patterns> {
        let (mut takes, mut leaves) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let (set, pattern) = match pattern.strip_prefix('!') {
                Some(rest) => (&mut leaves, rest),
                None => (&mut takes, pattern.as_str()),
            };
            // A folder means all that is in it.
            let within = format!("{}/**", pattern.trim_end_matches('/'));
            set.add(glob(pattern, pattern.trim_end_matches('/'))?);
            set.add(glob(pattern, &within)?);
        }
        let built = |set: GlobSetBuilder| set.build().map_err(|error| Error::Invalid(format!("data.files: {error}")));
        Ok(Patterns { takes: built(takes)?, leaves: built(leaves)? })
    }

    fn takes(&self, path: &Path) -> bool {
        let takes = if self.takes.is_empty() { is_taken(path) } else { self.takes.is_match(path) };
        takes && !self.leaves.is_match(path)
    }
}

/// `meant`, which follows from `pattern`. One without a slash is meant of files in any folder.
fn glob(pattern: &str, meant: &str) -> Result<Glob> {
    let has_folder = pattern.trim_end_matches('/').contains('/');
    let anywhere = if has_folder { meant.trim_start_matches('/').to_string() } else { format!("**/{meant}") };
    let glob = GlobBuilder::new(&anywhere).literal_separator(true).build();
    glob.map_err(|error| Error::Invalid(format!("data.files: {pattern:?} is not a valid pattern: {}", error.kind())))
}

/// The files of splits directly in a folder: training, validation, test.
///
/// They are called `train`, `valid`, `validation`, `val` or `test`, alone or with more after a dot, dash or underscore,
/// as in `train-00000-of-00002.parquet`; WikiText's own begin with `wiki.`.
pub(super) fn split_files(files: &Files, folder: &Path) -> [Vec<Source>; 3] {
    let mut splits = [vec![], vec![], vec![]];
    let candidates = files.taken.iter().filter(|path| path.parent() == Some(folder));
    for path in candidates.filter(|path| SPLITS.contains(&kind_of(path).as_str())) {
        if let Some(place) = split_of(path) {
            splits[place].push(Source::file(path));
        }
    }
    splits
}

/// Which split a file is called after.
fn split_of(path: &Path) -> Option<usize> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = name.strip_prefix("wiki.").unwrap_or(&name);
    match name.split(['.', '-', '_']).next() {
        Some("train") => Some(0),
        Some("valid" | "validation" | "val") => Some(1),
        Some("test") => Some(2),
        _ => None,
    }
}
