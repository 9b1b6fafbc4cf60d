//! What a path after `train` means: a configuration, or a text to train on.

use super::configuration::Flag;
use super::output;
use crate::Error;
use crate::config::is_configuration;
use crate::data::{DATASETS, is_text};
use crate::report::is_run;
use crate::shell_words::quoted;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// A path, by what it leads to.
pub enum Argument {
    Config(PathBuf),
    Corpus(String),
}

impl Argument {
    /// A folder, a data set and every file that is no configuration is a text.
    ///
    /// # Errors
    /// If the folder is that of a run or a model.
    pub fn read(path: &Path) -> Result<Argument> {
        let text = path.display().to_string();
        let command = quoted(path);
        if path.is_dir() {
            if is_run(path) {
                let message = format!(
                    "is the folder of a run: `rustyflow train --resume {command}` continues it, `rustyflow train {}` \
                     trains another with its configuration",
                    quoted(&path.join("config.toml"))
                );
                return Err(Error::Checkpoint { path: path.into(), message }.into());
            }
            if path.join("config.json").is_file() {
                let message = format!("is the folder of a model: `rustyflow train --init {command}` trains it further");
                return Err(Error::Checkpoint { path: path.into(), message }.into());
            }
            return Ok(Argument::Corpus(text));
        }
        let is_data_set = text == "sample" || DATASETS.iter().any(|set| set.name == text);
        if text.starts_with("train=") || (is_data_set && !path.exists()) {
            return Ok(Argument::Corpus(text));
        }
        if is_configuration(path) {
            return Ok(Argument::Config(path.into()));
        }
        if !path.exists() {
            let message = "no such file or folder; expected a configuration (.toml) or a text to train on".into();
            return Err(Error::Corpus { path: path.into(), message }.into());
        }
        if !is_text(path) {
            output::note(format_args!("note: {text} is read as a text to train on; a configuration ends in .toml"));
        }
        Ok(Argument::Corpus(text))
    }
}

/// The flag of the corpus, which may be given by its name or by place.
///
/// # Errors
/// If it is given by both.
pub fn corpus(given: Option<&Argument>, flag: Option<&String>) -> Result<Flag> {
    match (given, flag) {
        (Some(Argument::Corpus(text)), Some(flag)) => {
            bail!("--corpus {flag} cannot be used with {text}: both name the text to train on")
        }
        (Some(Argument::Corpus(text)), None) => Ok(("CORPUS", "data.corpus", Some(text.clone()))),
        (_, flag) => Ok(("--corpus", "data.corpus", flag.cloned())),
    }
}
