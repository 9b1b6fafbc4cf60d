//! GPT-2's format: `vocab.json` and `merges.txt`, and the files that transformers writes beside them.

use super::error;
use super::recipe::{END_OF_TEXT, byte_level_document, special_token};
use crate::read_text;
use rustyflow_base::error::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// `tokenizer_config.json`, as far as it changes ids.
#[derive(Deserialize, Default)]
struct TokenizerConfig {
    tokenizer_class: Option<String>,
    add_prefix_space: Option<bool>,
    added_tokens_decoder: Option<BTreeMap<u32, AddedToken>>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

/// `config.json`: without `tokenizer_class` transformers goes by the model.
#[derive(Deserialize, Default)]
struct ModelConfig {
    model_type: Option<String>,
}

/// Builds the `tokenizer.json` of a folder that has none.
///
/// # Errors
/// If a file is damaged, or these files do not define the tokenizer completely.
pub(super) fn read_vocab_and_merges(folder: &Path) -> Result<Value> {
    let config: TokenizerConfig = read_if_there(folder, "tokenizer_config.json")?.unwrap_or_default();
    let model: ModelConfig = read_if_there(folder, "config.json")?.unwrap_or_default();
    let class = config.tokenizer_class.or(model.model_type).unwrap_or("gpt2".into());
    if !["gpt2", "GPT2Tokenizer", "GPT2TokenizerFast"].contains(&class.as_str()) {
        return Err(untold(folder, &format!("do not define the pre-tokenizer of {class}")));
    }
    if config.add_prefix_space == Some(true) {
        return Err(untold(folder, "do not record add_prefix_space"));
    }
    let path = folder.join("vocab.json");
    let vocab: Map<String, Value> = serde_json::from_str(&read_text(&path)?).map_err(|cause| {
        error(&path.display().to_string(), format!("expected an object of tokens and ids: {cause}"))
    })?;
    let merges = read_merges(&folder.join("merges.txt"))?;
    let mut added: BTreeMap<u32, Value> = BTreeMap::new();
    let end = vocab.get(END_OF_TEXT).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    added.extend(end.map(|id| (id, special_token(id, END_OF_TEXT))));
    let older: Option<BTreeMap<String, u32>> = read_if_there(folder, "added_tokens.json")?;
    added.extend(older.unwrap_or_default().into_iter().map(|(content, id)| (id, special_token(id, &content))));
    for (id, token) in config.added_tokens_decoder.unwrap_or_default() {
        let mut its = special_token(id, &token.content);
        for (key, value) in [("lstrip", token.lstrip), ("rstrip", token.rstrip), ("single_word", token.single_word)] {
            its[key] = json!(value);
        }
        added.insert(id, its);
    }
    let mut document = byte_level_document(Value::Object(vocab), merges);
    document["added_tokens"] = added.into_values().collect();
    Ok(document)
}

fn read_merges(path: &Path) -> Result<Value> {
    let mut merges = vec![];
    for (number, line) in read_text(path)?.lines().enumerate() {
        if line.is_empty() || (number == 0 && line.starts_with("#version")) {
            continue;
        }
        match line.split(' ').collect::<Vec<_>>()[..] {
            [left, right] => merges.push(json!([left, right])),
            _ => {
                let message = format!("line {}: expected two tokens, got {line:?}", number + 1);
                return Err(error(&path.display().to_string(), message));
            }
        }
    }
    Ok(Value::Array(merges))
}

fn read_if_there<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>> {
    let path = folder.join(name);
    if !path.is_file() {
        return Ok(None);
    }
    let text = read_text(&path)?;
    let read = serde_json::from_str(&text);
    read.map(Some).map_err(|cause| error(&path.display().to_string(), format!("is damaged: {cause}")))
}

fn untold(folder: &Path, why: &str) -> Error {
    let shown = folder.display();
    let message = format!(
        "vocab.json and merges.txt {why}; write a tokenizer.json once where transformers is installed: python3 -c \
         \"from transformers import AutoTokenizer as T; T.from_pretrained('{shown}').save_pretrained('{shown}')\""
    );
    error(&shown.to_string(), message)
}

#[cfg(test)]
mod tests {
    use super::super::recipe::symbol_of;
    use super::*;
    use crate::Tokenizer;
    use std::fs;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut vocab: Map<String, Value> = (0..=255).map(|byte| (symbol_of(byte).to_string(), json!(byte))).collect();
        vocab.extend([("ab".to_string(), json!(256)), (END_OF_TEXT.to_string(), json!(257))]);
        let vocab = Value::Object(vocab).to_string();
        let own = [("vocab.json", vocab.as_str()), ("merges.txt", "#version: 0.2\na b\n")];
        for (name, text) in own.iter().chain(files) {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn tokens_that_were_added_are_found() {
        let decoder = r#"{"add_prefix_space": false, "added_tokens_decoder": {"259": {"content": "<pad>"}}}"#;
        let files = [("tokenizer_config.json", decoder), ("added_tokens.json", r#"{"<sep>": 258}"#)];
        let dir = folder(&files);
        let tokenizer = Tokenizer::from_folder(dir.path()).unwrap();
        assert_eq!(tokenizer.encode("ab<sep>a<pad><|endoftext|>").unwrap(), [256, 258, 97, 259, 257]);
        assert_eq!(tokenizer.vocab_size(), 260);
    }

    #[test]
    fn rules_that_the_files_do_not_tell_are_refused() {
        for (name, text, told) in [
            ("config.json", r#"{"model_type": "qwen2"}"#, "do not define the pre-tokenizer of qwen2"),
            ("tokenizer_config.json", r#"{"tokenizer_class": "Qwen2Tokenizer"}"#, "pre-tokenizer of Qwen2Tokenizer"),
            ("tokenizer_config.json", r#"{"add_prefix_space": true}"#, "add_prefix_space"),
            ("tokenizer_config.json", "{", "tokenizer_config.json: is damaged"),
            ("merges.txt", "a b c", "merges.txt: line 1: expected two tokens"),
            ("vocab.json", "[]", "vocab.json: expected an object of tokens and ids"),
        ] {
            let dir = folder(&[(name, text)]);
            let error = Tokenizer::from_folder(dir.path()).err().expect("an error").to_string();
            assert!(error.contains(told), "{error:?} lacks {told:?}");
        }
    }
}
