//! What a shell offers for the values of arguments: words that they take, files, and the runs that there are.

use super::{configuration, named};
use crate::config::{MatmulF32, Objective, Precision, RECIPES, WeightDtype, completions_of_set};
use crate::data::DATASETS;
use crate::models::FAMILIES;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use std::ffi::OsStr;

const CORPORA: [&str; 3] = ["sample", "wikitext-2", "tinyshakespeare"];
const DEVICES: [&str; 5] = ["auto", "cpu", "gpu", "gpu:0", "gpu:all"];
const TOKENIZERS: [&str; 4] = ["bpe", "char", "word", "gpt2"];

/// Those of these words that begin as what was typed, then files and folders if the value may be one.
fn offer(words: impl Fn() -> Vec<String> + Send + Sync + 'static, files: bool) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let begins = typed.to_string_lossy().into_owned();
        let matching = words().into_iter().filter(|word| word.starts_with(&begins));
        let mut candidates: Vec<CompletionCandidate> = matching.map(CompletionCandidate::new).collect();
        if files {
            candidates.extend(PathCompleter::any().complete(typed));
        }
        candidates
    })
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// The names of the runs in the folder of runs.
fn run_names() -> Vec<String> {
    let runs = configuration::run_dir().map(|dir| named::runs_in(&dir)).unwrap_or_default();
    let mut names: Vec<String> = runs.iter().map(|run| named::last_part(run)).collect();
    names.sort();
    names
}

/// The configurations in `configs` of the working folder.
fn presets() -> Vec<String> {
    let entries = std::fs::read_dir("configs").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut presets: Vec<String> =
        names.filter(|name| name.ends_with(".toml")).map(|name| format!("configs/{name}")).collect();
    presets.sort();
    presets
}

pub fn devices() -> ArgValueCompleter {
    offer(|| owned(&DEVICES), false)
}

pub fn matmul_f32() -> ArgValueCompleter {
    offer(|| owned(MatmulF32::CHOICES), false)
}

pub fn precisions() -> ArgValueCompleter {
    offer(|| owned(Precision::CHOICES), false)
}

pub fn objectives() -> ArgValueCompleter {
    offer(|| owned(Objective::CHOICES), false)
}

pub fn dtypes() -> ArgValueCompleter {
    offer(|| owned(WeightDtype::CHOICES), false)
}

pub fn tokenizers() -> ArgValueCompleter {
    offer(|| owned(&TOKENIZERS), true)
}

pub fn corpora() -> ArgValueCompleter {
    offer(|| owned(&CORPORA), true)
}

pub fn configs() -> ArgValueCompleter {
    offer(presets, true)
}

pub fn configs_and_corpora() -> ArgValueCompleter {
    offer(|| [presets(), owned(&CORPORA)].concat(), true)
}

/// A run, by its name or its folder.
pub fn runs() -> ArgValueCompleter {
    offer(run_names, true)
}

pub fn runs_to_resume() -> ArgValueCompleter {
    offer(|| [owned(&["auto"]), run_names()].concat(), true)
}

pub fn recipes() -> ArgValueCompleter {
    offer(|| RECIPES.iter().map(|(name, _)| name.to_string()).collect(), true)
}

pub fn data_sets() -> ArgValueCompleter {
    offer(|| DATASETS.iter().map(|set| set.name.to_string()).collect(), false)
}

/// `section.key=` of `--set`, and its words where it takes some.
pub fn assignments() -> ArgValueCompleter {
    let with_words = |assignment: String| {
        let words = match assignment.as_str() {
            "model.kind=" => FAMILIES.iter().map(|family| family.kind()).collect(),
            "device.kind=" => DEVICES.to_vec(),
            "data.corpus=" => CORPORA.to_vec(),
            "data.tokenizer=" => TOKENIZERS.to_vec(),
            _ => vec![""],
        };
        words.into_iter().map(move |word| format!("{assignment}{word}"))
    };
    offer(move || completions_of_set().into_iter().flat_map(with_words).collect(), false)
}
