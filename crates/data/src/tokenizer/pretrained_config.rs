//! Files beside a `tokenizer.json`: `tokenizer_config.json` and `special_tokens_map.json`, with the special tokens.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::error;
use rustyflow_base::error::{Error, Result};

const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";

/// Keys that are of a place, of a program, or of a file of their own: [`Tokenizer::pretrained_files`] writes others.
///
/// [`Tokenizer::pretrained_files`]: super::Tokenizer::pretrained_files
const NOT_KEPT: [&str; 12] = [
    "auto_map",
    "backend",
    "chat_template",
    "is_local",
    "local_files_only",
    "merges_file",
    "model_max_length",
    "name_or_path",
    "processor_class",
    "tokenizer_class",
    "tokenizer_file",
    "vocab_file",
];

/// The `tokenizer_config.json` that a tokenizer was loaded with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PretrainedConfig {
    /// `tokenizer_class`, without a trailing `Fast`.
    pub class: String,
    /// All preserved keys, with special tokens that only other files declare.
    pub keys: Map<String, Value>,
}

impl PretrainedConfig {
    /// Reads a folder's configuration; `None` if there is none.
    ///
    /// # Errors
    /// If a file cannot be read or is not an object in JSON.
    pub fn read(folder: &Path) -> Result<Option<PretrainedConfig>> {
        let (config, map) = (read(&folder.join(CONFIG))?, read(&folder.join(SPECIAL_TOKENS))?);
        if config.is_none() && map.is_none() {
            return Ok(None);
        }
        let mut keys = config.unwrap_or_default();
        let class = keys.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        let class = class.strip_suffix("Fast").unwrap_or(class).to_string();
        let defaults = defaults(&class).iter().map(|(key, token)| (key.to_string(), json!(token)));
        for (key, token) in map.into_iter().flatten().chain(defaults) {
            keys.entry(key).or_insert(token);
        }
        keys.retain(|key, _| !NOT_KEPT.contains(&key.as_str()));
        Ok(Some(PretrainedConfig { class, keys }))
    }

    /// The text of a special token by transformers' name, such as `eos_token`.
    pub fn token(&self, key: &str) -> Option<&str> {
        self.keys.get(key).and_then(text_of)
    }
}

/// A token is its text, or an object that has it.
pub(super) fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or(token["content"].as_str())
}

/// The special tokens that a class of transformers has where its configuration does not name them.
fn defaults(class: &str) -> &'static [(&'static str, &'static str)] {
    const END: &str = "<|endoftext|>";
    match class {
        "GPT2Tokenizer" => &[("bos_token", END), ("eos_token", END), ("unk_token", END)],
        "Qwen2Tokenizer" => &[("eos_token", END), ("pad_token", END), ("unk_token", END)],
        "LlamaTokenizer" => &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
        _ => &[],
    }
}

fn read(path: &Path) -> Result<Option<Map<String, Value>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(|cause| Error::io("read", path, cause))?;
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|cause| error(&path.display().to_string(), format!("is no JSON object: {cause}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_in_each_of_their_forms() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let read = || PretrainedConfig::read(dir.path());
        assert_eq!(read().unwrap(), None);
        write(CONFIG, r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null, "x": 1}"#);
        write(SPECIAL_TOKENS, r#"{"eos_token": "<e>", "pad_token": "<p>", "unk_token": "<unk>"}"#);
        let config = read().unwrap().unwrap();
        let tokens = ["bos_token", "eos_token", "pad_token", "unk_token"].map(|key| config.token(key));
        assert_eq!((tokens, &config.keys["x"]), ([Some("<s>"), Some("</s>"), None, Some("<unk>")], &json!(1)));
        // What a class has of its own, unless the file says that there is none.
        write(CONFIG, r#"{"tokenizer_class": "Qwen2TokenizerFast", "pad_token": null, "chat_template": "x"}"#);
        std::fs::remove_file(dir.path().join(SPECIAL_TOKENS)).unwrap();
        let config = read().unwrap().unwrap();
        assert_eq!((config.class.as_str(), config.token("eos_token")), ("Qwen2Tokenizer", Some("<|endoftext|>")));
        assert_eq!((config.token("pad_token"), config.keys.contains_key("chat_template")), (None, false));
        write(CONFIG, "[1]");
        assert!(read().unwrap_err().to_string().contains("tokenizer_config.json: is no JSON object"));
    }
}
