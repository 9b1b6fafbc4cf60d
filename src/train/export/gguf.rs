//! Exports a model for llama.cpp.

use super::check::{compare, least_likely};
use super::{ExportOptions, Exported};
use crate::data::{LlamaCppTokenizer, NamedTokens, Tokenizer, Tokens};
use crate::models::LanguageModel;
use crate::models::gguf::{Export, GgmlType, GgufFile, Value, architecture, load, write};
use crate::train::checkpoint::Files;
use crate::{Error, Result};
use serde_json::Value as Json;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

pub(super) fn export(
    mut model: Box<dyn LanguageModel>,
    tokenizer: &Tokenizer,
    tokens: &Tokens,
    options: &ExportOptions,
    dtype: GgmlType,
) -> Result<Exported> {
    architecture(model.config())?;
    let beside = Beside::read(options.source)?;
    let rows = model.config().vocab_size;
    let vocabulary = tokenizer.for_llama_cpp(rows, &beside.named)?;
    let copies = vocabulary.tokens.len() - rows;
    let copied_row = if copies > 0 { least_likely(&*model, tokens)? } else { 0 };
    let mut metadata = vec![("general.name".to_string(), Value::Text(name(options.output)))];
    metadata.extend(of_vocabulary(vocabulary));
    if let Some(template) = beside.chat_template {
        metadata.push(("tokenizer.chat_template".into(), Value::Text(template)));
    }
    let export = Export { dtype, metadata, copied_row, copies };
    let output = options.output;
    let failed = |error| Error::io("write", output, error);
    let (size_bytes, unquantized, comparison) = Files::default().replace_by(output, |file, unfinished| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let written = write(&mut *model, &export, &mut out, &failed)?;
        out.flush().map_err(failed)?;
        drop(out);
        let file = GgufFile::open(unfinished)?;
        let after = load(&file, &export.config(model.config()))?;
        let comparison = compare(model, after, tokens, &options.device, dtype == GgmlType::F32)?;
        let size = fs::metadata(unfinished).map_err(failed)?.len();
        Ok((size, written.unquantized, comparison))
    })?;
    Ok(Exported { files: vec![output.to_path_buf()], size_bytes, unquantized, added_end: copies > 0, comparison })
}

/// The file's name without its ending.
fn name(output: &Path) -> String {
    output.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The keys of a tokenizer.
fn of_vocabulary(vocabulary: LlamaCppTokenizer) -> Vec<(String, Value)> {
    let LlamaCppTokenizer { model, pre, tokens, merges, begin, adds_begin, end, suppressed } = vocabulary;
    let (tokens, kinds): (Vec<String>, Vec<i32>) = tokens.into_iter().map(|(text, kind)| (text, kind as i32)).unzip();
    let mut keys = vec![
        ("model", Value::Text(model.into())),
        ("pre", Value::Text(pre.into())),
        ("scores", Value::F32s(vec![0.0; tokens.len()])),
        ("tokens", Value::Texts(tokens)),
        ("token_type", Value::I32s(kinds)),
        ("bos_token_id", Value::U32(begin)),
        ("eos_token_id", Value::U32(end)),
        ("add_bos_token", Value::Bool(adds_begin)),
        ("add_eos_token", Value::Bool(false)),
        ("add_space_prefix", Value::Bool(false)),
    ];
    if model == "gpt2" {
        keys.push(("merges", Value::Texts(merges)));
    } else {
        // Else it is the token 0.
        keys.push(("unknown_token_id", Value::U32(end)));
    }
    if !suppressed.is_empty() {
        keys.push(("suppress_tokens", Value::I32s(suppressed.into_iter().map(|id| id as i32).collect())));
    }
    keys.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect()
}

/// What the files beside the weights say of the tokenizer.
struct Beside {
    named: NamedTokens,
    chat_template: Option<String>,
}

impl Beside {
    fn read(folder: &Path) -> Result<Beside> {
        let path = folder.join("tokenizer_config.json");
        let config: Json = match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|e| Error::Checkpoint { path, message: format!("is no JSON: {e}") })?,
            Err(_) => Json::Null,
        };
        // A token is its text, or an object that has it.
        let token = |key: &str| config[key].as_str().or(config[key]["content"].as_str()).map(str::to_string);
        let named = NamedTokens { begin: token("bos_token"), end: token("eos_token") };
        let in_file = fs::read_to_string(folder.join("chat_template.jinja")).ok();
        let chat_template = in_file.or(match &config["chat_template"] {
            Json::String(template) => Some(template.clone()),
            // Several, by name.
            Json::Array(several) => several
                .iter()
                .find(|one| one["name"] == "default")
                .and_then(|one| one["template"].as_str())
                .map(str::to_string),
            _ => None,
        });
        Ok(Beside { named, chat_template })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_the_template_are_found_in_each_of_their_forms() {
        let dir = tempfile::tempdir().unwrap();
        let read = |config: &str| {
            fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
            Beside::read(dir.path())
        };
        assert_eq!(Beside::read(dir.path()).unwrap().named, NamedTokens::default());
        let plain =
            read(r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ 1 }}"}"#).unwrap();
        assert_eq!(plain.named, NamedTokens { begin: Some("<s>".into()), end: Some("</s>".into()) });
        assert_eq!(plain.chat_template.as_deref(), Some("{{ 1 }}"));
        let several = r#"{"chat_template": [{"name": "a", "template": "x"}, {"name": "default", "template": "y"}]}"#;
        assert_eq!(read(several).unwrap().chat_template.as_deref(), Some("y"));
        fs::write(dir.path().join("chat_template.jinja"), "z").unwrap();
        assert_eq!(read("{}").unwrap().chat_template.as_deref(), Some("z"));
        assert!(read("{").err().unwrap().to_string().contains("tokenizer_config.json: is no JSON"));
    }
}
