//! A GGUF file as a folder in the user's cache: its shape, tokenizer and chat template in transformers' files, from
//! which everything here reads them. The weights stay in the GGUF file.

use super::{GgufFile, Value, read_shape};
use crate::cache;
use crate::data::LlamaCppVocabulary;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Where the weights are. It is written last: a folder with it is whole.
const SOURCE: &str = "gguf.json";
/// Of what is written.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Source {
    file: PathBuf,
}

/// Whether a path is a GGUF file, by its name.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) && path.is_file()
}

/// The folder of a GGUF file, which is made if there is none; any other path is itself.
///
/// # Errors
/// If the file is damaged or of an unsupported model or tokenizer, or there is no cache folder to write to.
pub fn unpacked(path: &Path) -> Result<Cow<'_, Path>> {
    if !is_gguf(path) {
        return Ok(path.into());
    }
    let failed = |e| Error::io("read", path, e);
    let file = path.canonicalize().map_err(failed)?;
    let metadata = fs::metadata(&file).map_err(failed)?;
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let key = format!("{VERSION} {} {} {modified:?}", file.display(), metadata.len());
    let cache = cache::user_folder().ok_or_else(|| {
        Error::Invalid(format!("{}: there is no cache folder: set RUSTYFLOW_CACHE_DIR", path.display()))
    })?;
    let folder = cache.join("gguf").join(&blake3::hash(key.as_bytes()).to_hex()[..16]);
    if folder.join(SOURCE).is_file() {
        return Ok(folder.into());
    }
    let gguf = GgufFile::open(path)?;
    let source = serde_json::to_string(&Source { file })
        .map_err(|e| Error::Invalid(format!("{} has a name that is no text: {e}", path.display())))?;
    for (name, text) in described(&gguf)?.into_iter().chain([(SOURCE, source)]) {
        cache::replace(&folder.join(name), text.as_bytes()).map_err(|e| Error::io("write", folder.join(name), e))?;
    }
    Ok(folder.into())
}

/// The file whose folder this is, if it is one of a GGUF file.
///
/// # Errors
/// If that is gone or damaged.
pub fn weights_of(folder: &Path) -> Result<Option<Arc<GgufFile>>> {
    let path = folder.join(SOURCE);
    if !path.is_file() {
        return Ok(None);
    }
    let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let Source { file } = serde_json::from_slice(&bytes)
        .map_err(|e| Error::Checkpoint { path, message: format!("is damaged: {e}; delete its folder") })?;
    GgufFile::open(&file).map(|file| Some(Arc::new(file)))
}

/// What a file says of its model besides the weights: names and texts of transformers' files.
///
/// # Errors
/// If it is of an unsupported model or tokenizer: why.
pub fn described(gguf: &GgufFile) -> Result<Vec<(&'static str, String)>> {
    let damaged = |message: String| Error::Checkpoint { path: gguf.path().to_path_buf(), message };
    if let Some(Value::I32(count)) = gguf.value("split.tensors.count")
        && *count as usize != gguf.names().count()
    {
        let parts = "join the parts by llama-gguf-split --merge";
        return Err(damaged(format!("is a part of a model of {count} tensors: {parts}")));
    }
    let config = read_shape(gguf)?;
    let vocabulary = vocabulary(gguf);
    let tokenizer = vocabulary.to_tokenizer_json().map_err(damaged)?;
    let id = |name: &str| id_of(gguf, name);
    let mut settings = Map::new();
    for (key, name) in [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        if let Some(text) = vocabulary.token(id(name)) {
            settings.insert(key.into(), text.into());
        }
    }
    if let Some(Value::Text(template)) = gguf.value("tokenizer.chat_template") {
        settings.insert("chat_template".into(), template.as_str().into());
    }
    settings.insert("clean_up_tokenization_spaces".into(), false.into());
    settings.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    let ends = vocabulary.ends(id("eot"));
    let generation = json!({"bos_token_id": id("bos"), "eos_token_id": ends, "pad_token_id": id("padding")});
    Ok(vec![
        ("config.json", config.kind.hf().write_config(&config)),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", serde_json::Value::Object(settings).to_string()),
        ("generation_config.json", generation.to_string()),
    ])
}

fn id_of(gguf: &GgufFile, name: &str) -> Option<u32> {
    match gguf.value(&format!("tokenizer.ggml.{name}_token_id")) {
        Some(Value::U32(id)) => Some(*id),
        _ => None,
    }
}

fn vocabulary(gguf: &GgufFile) -> LlamaCppVocabulary {
    let value = |key: &str| gguf.value(&format!("tokenizer.ggml.{key}"));
    let text = |key: &str| match value(key) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let texts = |key: &str| match value(key) {
        Some(Value::Texts(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let flag = |key: &str| match value(key) {
        Some(Value::Bool(flag)) => Some(*flag),
        _ => None,
    };
    LlamaCppVocabulary {
        model: text("model").unwrap_or_default(),
        pre: text("pre"),
        tokens: texts("tokens"),
        token_type: match value("token_type") {
            Some(Value::I32s(types)) => types.clone(),
            _ => Vec::new(),
        },
        scores: match value("scores") {
            Some(Value::F32s(scores)) => scores.clone(),
            _ => Vec::new(),
        },
        merges: texts("merges"),
        bos_token_id: id_of(gguf, "bos"),
        eos_token_id: id_of(gguf, "eos"),
        add_bos_token: flag("add_bos_token"),
        add_eos_token: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
    }
}
