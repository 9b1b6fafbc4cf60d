//! Exports a trained model: as a GGUF file for llama.cpp, or as a folder of safetensors for transformers. The output is
//! read back and compared with the model before it is renamed to its final name.

mod check;
mod gguf;

pub use check::{Comparison, compare};

use super::checkpoint::{Files, GENERATION, beside, put_in_place};
use crate::data::{OWN_CLASS, TextConventions, Tokens};
use crate::models::gguf::GgmlType;
use crate::models::hf::shards::{self, StoredType};
use crate::models::{self, LanguageModel, hf};
use crate::{Device, Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Files of a model's folder that are no weights, and that whoever runs the model reads.
const BESIDE_WEIGHTS: [&str; 10] = [
    "tokenizer.json",
    TOKENIZER_CONFIG,
    OWN_CLASS,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    GENERATION,
    "chat_template.jinja",
    "chat_template.json",
];

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Export options.
pub struct ExportOptions<'a> {
    /// The folder of its tokenizer.
    pub source: &'a Path,
    pub output: &'a Path,
    pub form: Form,
    /// Whether existing output may be replaced.
    pub force: bool,
    /// Device of the comparison.
    pub device: Device,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// A file for llama.cpp.
    Gguf(GgmlType),
    /// A folder for transformers, with the largest file size in bytes.
    Safetensors(StoredType, usize),
}

/// A finished export.
pub struct Exported {
    /// The written files.
    pub files: Vec<PathBuf>,
    pub size_bytes: u64,
    /// Matrices stored as f16, because their row length is not a multiple of the quantized block.
    pub unquantized: Vec<String>,
    /// Whether an end-of-text token was added, which llama.cpp requires.
    pub added_end: bool,
    pub comparison: Comparison,
}

/// Refuses an existing output that `force` does not replace, before anything is computed.
///
/// # Errors
/// If the output exists.
pub fn check_output(output: &Path, form: Form, force: bool) -> Result<()> {
    let in_the_way = |why: &str| Error::Invalid(format!("{} {why}", output.display()));
    let folder = output.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(in_the_way(&format!("cannot be written: there is no folder {}", folder.display())));
    }
    match (form, fs::symlink_metadata(output)) {
        (_, Err(_)) => Ok(()),
        (_, Ok(_)) if !force => Err(in_the_way("exists: name another --output, or replace it with --force")),
        (Form::Gguf(_), Ok(there)) if there.is_dir() => Err(in_the_way("is a folder; --format gguf writes a file")),
        (Form::Safetensors(..), Ok(there)) if !there.is_dir() => {
            Err(in_the_way("is not a folder; --format safetensors writes one"))
        }
        (Form::Gguf(_), Ok(_)) => Ok(()),
        // A folder is replaced as a whole, so that no file of a former model is taken for one of this.
        (Form::Safetensors(..), Ok(_)) => match foreign_file(output)? {
            None => Ok(()),
            Some(name) => Err(in_the_way(&format!("holds {name}, which --force would remove: name another --output"))),
        },
    }
}

/// A file of this folder that no export writes.
fn foreign_file(folder: &Path) -> Result<Option<String>> {
    let entries = fs::read_dir(folder).map_err(|e| Error::io("read", folder, e))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ours = |name: &str| {
        BESIDE_WEIGHTS.contains(&name)
            || name == "config.json"
            || name.starts_with("model") && (name.ends_with(".safetensors") || name == "model.safetensors.index.json")
    };
    Ok({ names }.find(|name| !ours(name)))
}

/// Writes `model` (on the CPU, with its text conventions) and compares the output with it on `tokens`.
///
/// # Errors
/// If the format does not support this model, the output cannot be written, or its logits differ from the model's. The
/// output is then removed.
pub fn export(
    model: Box<dyn LanguageModel>,
    text: &TextConventions,
    tokens: &Tokens,
    options: &ExportOptions,
) -> Result<Exported> {
    check_output(options.output, options.form, options.force)?;
    match options.form {
        Form::Gguf(dtype) => gguf::export(model, text, tokens, options, dtype),
        Form::Safetensors(dtype, max_bytes) => export_folder(model, text, tokens, options, (dtype, max_bytes)),
    }
}

fn export_folder(
    mut model: Box<dyn LanguageModel>,
    text: &TextConventions,
    tokens: &Tokens,
    options: &ExportOptions,
    (dtype, max_bytes): (StoredType, usize),
) -> Result<Exported> {
    let (files, output) = (Files::default(), options.output);
    let unfinished = beside(output, "unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    let write = || {
        files.create_folder(&unfinished)?;
        let mut names = shards::write(&mut *model, dtype, max_bytes, &text.ids(), &unfinished)?;
        for name in BESIDE_WEIGHTS {
            let from = options.source.join(name);
            if from.is_file() {
                fs::copy(&from, unfinished.join(name)).map_err(|e| Error::io("copy", &from, e))?;
                names.push(name.to_string());
            }
        }
        for (name, text) in changed_files(text, options.source, &hf::model_type(model.config()))? {
            let path = unfinished.join(name);
            fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
            if !names.iter().any(|there| there == name) {
                names.push(name.to_string());
            }
        }
        files.sync_folder(&unfinished)?;
        let size = |name: &String| fs::metadata(unfinished.join(name)).map_or(0, |file| file.len());
        let size_bytes = names.iter().map(size).sum();
        let is_exact = dtype == StoredType::F32;
        let comparison = compare(model, models::load(&unfinished)?, tokens, &options.device, is_exact)?;
        put_in_place(&files, &unfinished, output)?;
        let files = names.iter().map(|name| output.join(name)).collect();
        Ok(Exported { files, size_bytes, unquantized: vec![], added_end: false, comparison })
    };
    write().inspect_err(|_| {
        // A full disk needs the space; what cannot be removed does no harm.
        let _ = fs::remove_dir_all(&unfinished);
    })
}

/// Files beside the weights that are not those of the source: all that ends a text is in `generation_config.json`, and
/// transformers takes the class that keeps to the pipeline.
fn changed_files(text: &TextConventions, source: &Path, model_type: &str) -> Result<Vec<(&'static str, String)>> {
    let mut files: Vec<_> = text.generation_config().map(|text| (GENERATION, text)).into_iter().collect();
    let path = source.join(TOKENIZER_CONFIG);
    let Ok(config) = fs::read_to_string(&path) else { return Ok(files) };
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&config)
        .map_err(|e| Error::Checkpoint { path, message: format!("is no JSON object: {e}") })?;
    if let Some(class) = text.tokenizer.name_class(&mut config, model_type) {
        let config = serde_json::to_string_pretty(&config).expect("plain values serialize");
        files.extend([class, (TOKENIZER_CONFIG, config)]);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_is_named_and_only_exports_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (gguf, folder) = (Form::Gguf(GgmlType::F32), Form::Safetensors(StoredType::F32, 1));
        let refused = |name: &str, form: Form, force: bool, told: &str| {
            let error = check_output(&dir.path().join(name), form, force).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(told), "{error}");
        };
        for form in [gguf, folder] {
            check_output(&dir.path().join("new"), form, false).unwrap();
            refused("nowhere/new", form, true, "there is no folder");
        }
        fs::write(dir.path().join("file"), "").unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        fs::write(dir.path().join("folder/model-00001-of-00002.safetensors"), "").unwrap();
        refused("file", gguf, false, "replace it with --force");
        refused("folder", folder, false, "replace it with --force");
        refused("file", folder, true, "is not a folder");
        refused("folder", gguf, true, "is a folder");
        check_output(&dir.path().join("file"), gguf, true).unwrap();
        check_output(&dir.path().join("folder"), folder, true).unwrap();
        fs::write(dir.path().join("folder/optimizer.safetensors"), "").unwrap();
        refused("folder", folder, true, "holds optimizer.safetensors");
    }
}
