//! Fetches the files of a model into the hub's cache.

use super::escaped;
use super::listing::{Listing, RemoteFile, list};
use crate::download::{Download, Site};
use globset::Glob;
use rustyflow_base::error::{Error, Result};
use rustyflow_base::hub_cache::{HubCache, ModelName, Place};
use std::path::PathBuf;

/// Files needed to use a model, at the top of its folder.
const NEEDED: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];
/// The weights in the order of preference: others hold them again in another form.
const WEIGHTS: [&[&str]; 3] = [
    &["model.safetensors"],
    &["model.safetensors.index.json", "model-*.safetensors"],
    &["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"],
];

/// A Hub server and its cache.
pub struct Hub {
    /// URL without a trailing slash.
    pub endpoint: String,
    pub token: Option<String>,
    pub cache: HubCache,
}

/// Selection of a model's files.
#[derive(Default)]
pub struct Selection {
    /// Patterns of file names; if empty, the files needed to use the model.
    pub include: Vec<String>,
    pub exclude: Vec<String>,
}

/// A fetched model.
pub struct Fetched {
    /// The snapshot folder.
    pub folder: PathBuf,
    pub commit: String,
    pub files: usize,
    pub size_bytes: u64,
    /// Whether the weights are only a pickle, which rustyflow does not read.
    pub pickled: bool,
}

impl Hub {
    /// Downloads the files of a revision that are not in the cache. `on_progress` receives the bytes done and the total
    /// bytes.
    ///
    /// # Errors
    /// If there is no such model, it may not be read, no file is chosen, or a download failed.
    pub fn fetch(
        &self,
        model: &ModelName,
        revision: &str,
        selection: &Selection,
        on_progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Fetched> {
        let site = Site { token: self.token.as_deref(), advice: Some(advice) };
        let Listing { commit, files } = list(&self.endpoint, &site, model, revision)?;
        let files = selection.choose(model, &files)?;
        let place = self.cache.place(model);
        place.create()?;
        let total = files.iter().map(|file| file.size_bytes).sum();
        let folder = place.snapshot(&commit).expect("the listing has a commit");
        let mut before = 0;
        for file in &files {
            let url = format!("{}/{model}/resolve/{commit}/{}", self.endpoint, escaped(&file.name, "/"));
            fetch_blob(&place, file, url, &site, &mut |done| on_progress(before + done, total))?;
            place.link(&folder, &file.name, &file.etag)?;
            before += file.size_bytes;
            on_progress(before, total);
        }
        // Last, so that a revision which is found is complete.
        place.set_reference(revision, &commit)?;
        let has = |ending: &str| files.iter().any(|file| file.name.ends_with(ending));
        let pickled = has(".bin") && !has(".safetensors");
        Ok(Fetched { folder, commit, files: files.len(), size_bytes: total, pickled })
    }
}

/// Brings a blob into the cache if it is not there. One that has its name is complete.
fn fetch_blob(
    place: &Place,
    file: &RemoteFile,
    url: String,
    site: &Site,
    on_progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let target = place.blob(&file.etag);
    let is_there = || target.metadata().is_ok_and(|its| its.len() == file.size_bytes);
    if is_there() {
        return Ok(());
    }
    let _lock = place.lock(&file.etag)?;
    if is_there() {
        return Ok(());
    }
    let part = place.blob(&format!("{}.incomplete", file.etag));
    let (size_bytes, hash) = (file.size_bytes, file.hash());
    Download { url, size_bytes, hash, part: &part, target: &target, site }.fetch(on_progress)
}

impl Selection {
    fn choose<'a>(&self, model: &ModelName, files: &'a [RemoteFile]) -> Result<Vec<&'a RemoteFile>> {
        let (include, exclude) = (patterns("--include", &self.include)?, patterns("--exclude", &self.exclude)?);
        let matches = |patterns: &[globset::GlobMatcher], name: &str| patterns.iter().any(|p| p.is_match(name));
        let its = |pattern: &str| {
            let pattern = Glob::new(pattern).expect("the pattern is valid").compile_matcher();
            files.iter().any(|file| !file.name.contains('/') && pattern.is_match(&file.name))
        };
        let weights = WEIGHTS.into_iter().find(|weights| its(weights[0]) || its(weights[weights.len() - 1]));
        let default: Vec<String> = NEEDED.iter().chain(weights.unwrap_or_default()).map(|s| s.to_string()).collect();
        let default = patterns("the files of a model", &default)?;
        let chosen = |file: &&RemoteFile| {
            let name = file.name.as_str();
            let included = match self.include.is_empty() {
                true => !name.contains('/') && matches(&default, name),
                false => matches(&include, name),
            };
            included && !matches(&exclude, name)
        };
        let chosen: Vec<&RemoteFile> = files.iter().filter(chosen).collect();
        if self.include.is_empty() && weights.is_none() {
            let message = format!("{model} has no weights in a supported format; it has {}", names(files));
            return Err(Error::Invalid(format!("{message}. --include chooses files by patterns")));
        }
        if chosen.is_empty() {
            let message = format!("no file of {model} matches --include and --exclude; it has {}", names(files));
            return Err(Error::Invalid(message));
        }
        Ok(chosen)
    }
}

fn patterns(flag: &str, patterns: &[String]) -> Result<Vec<globset::GlobMatcher>> {
    let compile = |pattern: &String| {
        let glob = Glob::new(pattern).map_err(|error| Error::Invalid(format!("{flag} {pattern}: {error}")))?;
        Ok(glob.compile_matcher())
    };
    patterns.iter().map(compile).collect()
}

/// Some names of files, for a message.
fn names(files: &[RemoteFile]) -> String {
    const SHOWN: usize = 12;
    let mut names: Vec<&str> = files.iter().map(|file| file.name.as_str()).take(SHOWN).collect();
    if files.len() > SHOWN {
        names.push("...");
    }
    if names.is_empty() { "no files".into() } else { names.join(", ") }
}

/// The remedy for an HTTP status.
fn advice(status: u16) -> String {
    match status {
        401 => {
            "; it does not exist, or is private or gated: check its name, and set HF_TOKEN to a token of an account \
                that may read it"
                .into()
        }
        403 => "; accept its conditions on its page, and set HF_TOKEN to a token of the account that did".into(),
        404 => "; check the name and --revision".into(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(selection: &Selection, names: &[&str]) -> Result<Vec<String>> {
        let file = |name: &&str| RemoteFile { name: name.to_string(), size_bytes: 1, etag: String::new() };
        let files: Vec<RemoteFile> = names.iter().map(file).collect();
        let chosen = selection.choose(&"org/name".parse().unwrap(), &files)?;
        Ok(chosen.into_iter().map(|file| file.name.clone()).collect())
    }

    #[test]
    fn weights_are_taken_in_one_form() {
        let default = Selection::default();
        let whole = ["config.json", "model.safetensors", "consolidated.safetensors", "pytorch_model.bin", "README.md"];
        assert_eq!(chosen(&default, &whole).unwrap(), ["config.json", "model.safetensors"]);
        let parts =
            ["merges.txt", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "onnx/model.onnx"];
        assert_eq!(chosen(&default, &parts).unwrap(), parts[..3]);
        let pickle = ["config.json", "pytorch_model.bin", "tf_model.h5", "sub/model.safetensors"];
        assert_eq!(chosen(&default, &pickle).unwrap(), pickle[..2]);
        let error = chosen(&default, &["config.json", "tf_model.h5"]).unwrap_err().to_string();
        assert!(
            error.contains("no weights") && error.contains("tf_model.h5") && error.contains("--include"),
            "{error}"
        );
    }

    #[test]
    fn patterns_choose_other_files() {
        let files = ["config.json", "model.safetensors", "onnx/a.json"];
        let selection = |include: &[&str], exclude: &[&str]| Selection {
            include: include.iter().map(|s| s.to_string()).collect(),
            exclude: exclude.iter().map(|s| s.to_string()).collect(),
        };
        assert_eq!(chosen(&selection(&["*.json"], &[]), &files).unwrap(), ["config.json", "onnx/a.json"]);
        assert_eq!(chosen(&selection(&["*.json"], &["onnx/*"]), &files).unwrap(), ["config.json"]);
        assert_eq!(chosen(&selection(&[], &["*.safetensors"]), &files).unwrap(), ["config.json"]);
        assert!(chosen(&selection(&["*.bin"], &[]), &files).unwrap_err().to_string().contains("no file of org/name"));
        assert!(chosen(&selection(&["["], &[]), &files).unwrap_err().to_string().contains("--include ["));
    }

    #[test]
    fn names_are_escaped_in_urls() {
        assert_eq!(escaped("a b/c#d.json", "/"), "a%20b/c%23d.json");
        assert_eq!(escaped("refs/pr/1", ""), "refs%2Fpr%2F1");
    }
}
