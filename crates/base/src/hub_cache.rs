//! Hugging Face's cache of files from its Hub, which we share with its programs:
//!
//! ```text
//! models--org--name/
//!   blobs/<etag>                files by their hash: SHA-256 of large ones, the id that git gives others
//!   refs/<revision>             the commit that a revision was
//!   snapshots/<commit>/<name>   the files of a commit: links to blobs
//! .locks/models--org--name/<etag>.lock
//! ```

use crate::error::{Error, Result};
use std::env;
use std::fmt;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// `org/name`, or one of the few old names without an organization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName(String);

impl FromStr for ModelName {
    type Err = String;

    /// By the hub's own rules, which leave no way out of the cache's folder.
    fn from_str(text: &str) -> std::result::Result<ModelName, String> {
        let part = |part: &str| {
            let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && part.chars().all(inner) && !part.starts_with(['-', '.']) && !part.ends_with(['-', '.'])
        };
        let parts = text.split('/').count();
        let fits = parts <= 2 && text.len() <= 96 && !text.contains("--") && !text.contains("..");
        if fits && text.split('/').all(part) {
            return Ok(ModelName(text.to_string()));
        }
        Err(format!("{text:?} is not a model name; expected org/name, as in openai-community/gpt2"))
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The folder of all models.
#[derive(Debug, Clone)]
pub struct HubCache {
    folder: PathBuf,
}

/// A non-empty environment variable.
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// An environment variable with a path; `~` is the user's home folder.
pub fn path_in(name: &str) -> Option<PathBuf> {
    let value = variable(name)?;
    let below = value.strip_prefix("~/").and_then(|rest| Some(etcetera::home_dir().ok()?.join(rest)));
    Some(below.unwrap_or(value.into()))
}

/// Hugging Face's home folder: `HF_HOME`, or its default in the user's cache folder.
pub fn home() -> Result<PathBuf> {
    let caches = || path_in("XDG_CACHE_HOME").or_else(|| Some(etcetera::home_dir().ok()?.join(".cache")));
    let home = path_in("HF_HOME").or_else(|| Some(caches()?.join("huggingface")));
    home.ok_or_else(|| Error::Invalid("this user has no cache folder: set HF_HOME".into()))
}

impl HubCache {
    pub fn new(folder: PathBuf) -> HubCache {
        HubCache { folder }
    }

    /// The user's Hub cache: `HF_HUB_CACHE`, or `hub` in Hugging Face's home folder.
    ///
    /// # Errors
    /// If the user has no cache folder.
    pub fn of_user() -> Result<HubCache> {
        let set = path_in("HF_HUB_CACHE").or_else(|| path_in("HUGGINGFACE_HUB_CACHE"));
        Ok(HubCache::new(set.map_or_else(|| Ok(home()?.join("hub")), Ok::<_, Error>)?))
    }

    /// The snapshot folder of a fetched revision, if any.
    pub fn find(&self, model: &ModelName, revision: &str) -> Option<PathBuf> {
        let place = self.place(model);
        let commit = fs::read_to_string(place.reference(revision)?).ok()?;
        let folder = place.snapshot(commit.trim())?;
        folder.join("config.json").is_file().then_some(folder)
    }

    /// The folders of this model.
    pub fn place(&self, model: &ModelName) -> Place {
        let name = format!("models--{}", model.0.replace('/', "--"));
        Place { locks: self.folder.join(".locks").join(&name), folder: self.folder.join(name) }
    }
}

/// The folders of one model.
pub struct Place {
    folder: PathBuf,
    locks: PathBuf,
}

impl Place {
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// The folder of a commit; `None` if it is no commit.
    pub fn snapshot(&self, commit: &str) -> Option<PathBuf> {
        is_hash(commit, 40).then(|| self.folder.join("snapshots").join(commit))
    }

    /// The file of a revision, if it may be one.
    fn reference(&self, revision: &str) -> Option<PathBuf> {
        is_inside(revision).then(|| self.folder.join("refs").join(revision))
    }

    /// Makes the folders that a download needs.
    pub fn create(&self) -> Result<()> {
        let folders = [self.folder.join("blobs"), self.locks.clone()];
        folders
            .iter()
            .try_for_each(|folder| fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error)))
    }

    /// Locks a file's download, waiting for other processes; dropping the handle unlocks. Compatible with Hugging
    /// Face's own locks.
    pub fn lock(&self, etag: &str) -> Result<File> {
        let path = self.locks.join(format!("{etag}.lock"));
        let file = File::create(&path).map_err(|error| Error::io("create", &path, error))?;
        file.lock().map_err(|error| Error::io("lock", &path, error))?;
        Ok(file)
    }

    /// Links a blob under its name in a snapshot.
    pub fn link(&self, snapshot: &Path, name: &str, etag: &str) -> Result<()> {
        let path = snapshot.join(name);
        let folder = path.parent().expect("it is below the snapshot");
        fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let up = "../".repeat(2 + Path::new(name).components().count() - 1);
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if path.read_link().is_ok_and(|there| there == target) && path.is_file() {
            return Ok(());
        }
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).map_err(|error| Error::io("replace", &path, error))?;
        }
        #[cfg(unix)]
        let linked = std::os::unix::fs::symlink(&target, &path);
        // Where symbolic links take a privilege.
        #[cfg(not(unix))]
        let linked = fs::hard_link(self.blob(etag), &path);
        linked.map_err(|error| Error::io("link", &path, error))
    }

    /// Stores the commit of a revision.
    pub fn set_reference(&self, revision: &str, commit: &str) -> Result<()> {
        let Some(path) = self.reference(revision).filter(|_| revision != commit) else { return Ok(()) };
        crate::cache::replace(&path, commit.as_bytes()).map_err(|error| Error::io("write", &path, error))
    }
}

/// Whether a relative path stays within its folder.
pub fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty() && !path.contains(['\\', ':']) && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Whether the text is a hash with this number of hexadecimal digits.
pub fn is_hash(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The folder `given`, or the snapshot of a fetched model of that name. `Err` has a remedy, if there is one.
///
/// # Errors
/// The remedy, if neither exists.
pub fn folder_of(given: &Path) -> std::result::Result<PathBuf, Option<String>> {
    let name = || given.to_str()?.parse::<ModelName>().ok();
    match name() {
        _ if given.exists() => Ok(given.to_path_buf()),
        None => Err(None),
        Some(name) => {
            let found = HubCache::of_user().ok().and_then(|cache| cache.find(&name, "main"));
            found.ok_or_else(|| Some(format!("`rustyflow fetch {name}` downloads a model of this name from the Hub")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_hub_has() {
        for name in ["gpt2", "openai-community/gpt2", "Qwen/Qwen2.5-0.5B", "a/b_c.d"] {
            assert_eq!(name.parse::<ModelName>().unwrap().to_string(), name);
        }
        for name in ["", "/", "a/", "/a", "a/b/c", "../a", "a/..", "a/b..c", ".a/b", "a--b/c", "a b/c", "a\\b", "C:/a"]
        {
            assert!(name.parse::<ModelName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_model_is_found_by_the_commit_of_its_revision() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, name) = (HubCache::new(dir.path().to_path_buf()), "org/name".parse().unwrap());
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let place = cache.place(&name);
        assert!(cache.find(&name, "main").is_none());
        place.set_reference("main", commit).unwrap();
        assert!(cache.find(&name, "main").is_none(), "without its files");
        let snapshot = dir.path().join("models--org--name/snapshots").join(commit);
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join("config.json"), "{}").unwrap();
        assert_eq!(cache.find(&name, "main").unwrap(), snapshot);
        assert!(cache.find(&name, "../main").is_none());
        place.set_reference("main", "../../../elsewhere").unwrap();
        assert!(cache.find(&name, "main").is_none(), "what is no commit leads nowhere");
    }
}
