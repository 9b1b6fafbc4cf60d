//! `manifest.json` of a checkpoint: the size and BLAKE3 hash of every other file in it; up to 0.1.0 the SHA-256. BLAKE3
//! hashes the parts of a file in parallel.

use super::files::Files;
use super::layout::MANIFEST;
use crate::cache::hex;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Manifest {
    files: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    size_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    blake3: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

/// Size and hash of a file.
#[derive(Default)]
pub(super) struct Digest {
    size_bytes: u64,
    hasher: blake3::Hasher,
}

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        let mut digest = Digest::default();
        digest.update(bytes);
        digest
    }

    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.size_bytes += bytes.len() as u64;
        // Other threads take longer to wake than to hash a little.
        if bytes.len() < 1 << 20 {
            self.hasher.update(bytes)
        } else {
            self.hasher.update_rayon(bytes)
        };
    }
}

impl Manifest {
    /// Adds a file of the checkpoint.
    pub(super) fn add(&mut self, name: &str, Digest { size_bytes, hasher }: Digest) {
        let blake3 = Some(hasher.finalize().to_hex().to_string());
        self.files.insert(name.to_string(), Entry { size_bytes, blake3, sha256: None });
    }

    pub(super) fn write(&self, files: &Files, folder: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("plain values serialize");
        files.write(&folder.join(MANIFEST), text.as_bytes())
    }

    /// That of a checkpoint; `None` if it has none, as models from elsewhere.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn read(folder: &Path) -> Result<Option<Manifest>> {
        let path = folder.join(MANIFEST);
        match fs::read(&path) {
            Ok(bytes) => {
                let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| damaged(&path, &e.to_string()))?;
                // Names, not paths: a foreign manifest must not lead elsewhere.
                match manifest.files.keys().find(|name| !is_file_name(name)) {
                    Some(name) => Err(damaged(&path, &format!("{name:?} is not a file name"))),
                    None => Ok(Some(manifest)),
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &path, error)),
        }
    }

    pub(super) fn lists(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Checks that a file is the one that was written.
    ///
    /// # Errors
    /// If it is not; the error names it.
    pub(super) fn check(&self, folder: &Path, name: &str) -> Result<()> {
        let path = folder.join(name);
        let Some(entry) = self.files.get(name) else {
            return Err(damaged(&folder.join(MANIFEST), &format!("it does not list {name}")));
        };
        let data = fs::metadata(&path).map_err(|e| Error::io("read", &path, e))?;
        if data.len() != entry.size_bytes || !data.is_file() {
            return Err(damaged(&path, &format!("it has {} of {} bytes", data.len(), entry.size_bytes)));
        }
        let unreadable = |e| Error::io("read", &path, e);
        let (kind, expected, there) = match (&entry.blake3, &entry.sha256) {
            (Some(blake3), _) => {
                let mut hasher = blake3::Hasher::new();
                let hash = hasher.update_mmap_rayon(&path).map_err(unreadable)?.finalize();
                ("BLAKE3 hash", blake3, hash.to_hex().to_string())
            }
            (None, Some(sha256)) => {
                let bytes = fs::read(&path).map_err(unreadable)?;
                ("SHA-256", sha256, hex(&Sha256::digest(&bytes)))
            }
            (None, None) => return Err(damaged(&folder.join(MANIFEST), &format!("it has no hash of {name}"))),
        };
        if *expected != there {
            return Err(damaged(&path, &format!("its {kind} is not the one in manifest.json")));
        }
        Ok(())
    }

    /// Checks every file listed.
    ///
    /// # Errors
    /// If one is missing or damaged.
    pub(super) fn check_all(&self, folder: &Path) -> Result<()> {
        self.files.keys().try_for_each(|name| self.check(folder, name))
    }
}

/// Whether it names a file in a folder, and nothing else.
fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

fn damaged(path: &Path, how: &str) -> Error {
    Error::Checkpoint { path: path.to_path_buf(), message: format!("is damaged: {how}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with two files and their manifest.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::default();
        for (name, bytes) in [("a", "first"), ("b", "second")] {
            manifest.add(name, Digest::of(bytes.as_bytes()));
            Files::default().write(&dir.path().join(name), bytes.as_bytes()).unwrap();
        }
        manifest.write(&Files::default(), dir.path()).unwrap();
        dir
    }

    fn check(dir: &Path) -> String {
        let manifest = Manifest::read(dir).unwrap().unwrap();
        manifest.check_all(dir).map_or_else(|e| e.to_string(), |()| "good".into())
    }

    #[test]
    fn the_hash_is_blake3_of_all_parts() {
        // The first of the official test vectors, of no bytes; and bytes of several chunks in parts.
        let hash = |digest: Digest| digest.hasher.finalize().to_hex().to_string();
        assert_eq!(hash(Digest::of(b"")), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
        let bytes: Vec<u8> = (0..3_000_000).map(|i| (i % 251) as u8).collect();
        let mut parts = Digest::default();
        bytes.chunks(1_234_567).for_each(|part| parts.update(part));
        assert_eq!((parts.size_bytes, hash(parts)), (3_000_000, blake3::hash(&bytes).to_hex().to_string()));
    }

    #[test]
    fn the_sha256_of_an_earlier_manifest_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "abc").unwrap();
        // FIPS 180-2, appendix B.1.
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let manifest = format!(r#"{{"files": {{"a": {{"size_bytes": 3, "sha256": "{sha256}"}}}}}}"#);
        fs::write(dir.path().join(MANIFEST), manifest).unwrap();
        assert_eq!(check(dir.path()), "good");
        fs::write(dir.path().join("a"), "abd").unwrap();
        assert!(check(dir.path()).contains("a: is damaged: its SHA-256"), "{}", check(dir.path()));
        fs::write(dir.path().join(MANIFEST), r#"{"files": {"a": {"size_bytes": 3}}}"#).unwrap();
        assert!(check(dir.path()).contains("no hash of a"), "{}", check(dir.path()));
    }

    #[test]
    fn what_is_damaged_is_named() {
        let dir = folder();
        assert_eq!(check(dir.path()), "good");
        fs::write(dir.path().join("b"), "sekond").unwrap();
        let error = check(dir.path());
        assert!(error.contains("b: is damaged") && error.contains("BLAKE3"), "{error}");
        fs::write(dir.path().join("b"), "sec").unwrap();
        let error = check(dir.path());
        assert!(error.contains("b: is damaged") && error.contains("3 of 6 bytes"), "{error}");
        fs::remove_file(dir.path().join("b")).unwrap();
        assert!(check(dir.path()).contains("cannot read"), "{}", check(dir.path()));
    }

    #[test]
    fn a_manifest_that_leads_elsewhere_is_refused() {
        let dir = folder();
        for name in ["../a", "/etc/hostname", "", ".", "..", "a/", "x/../a"] {
            let mut manifest = Manifest::default();
            manifest.add(name, Digest::of(b"first"));
            manifest.write(&Files::default(), dir.path()).unwrap();
            let error = Manifest::read(dir.path()).unwrap_err().to_string();
            assert!(error.contains("manifest.json") && error.contains("not a file name"), "{name}: {error}");
        }
    }

    #[test]
    fn a_damaged_manifest_is_named_and_a_missing_one_is_none() {
        let dir = folder();
        fs::write(dir.path().join(MANIFEST), "{").unwrap();
        assert!(Manifest::read(dir.path()).unwrap_err().to_string().contains("manifest.json: is damaged"));
        fs::remove_file(dir.path().join(MANIFEST)).unwrap();
        assert!(Manifest::read(dir.path()).unwrap().is_none());
    }
}
