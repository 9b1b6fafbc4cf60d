//! Exports a model for llama.cpp.

use super::check::{compare, least_likely};
use super::{ExportOptions, Exported};
use crate::data::{LlamaCppTokenizer, TextConventions, Tokens};
use crate::models::LanguageModel;
use crate::models::gguf::{Export, GgmlType, GgufFile, Value, architecture, load, write};
use crate::train::checkpoint::Files;
use crate::{Error, Result};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

pub(super) fn export(
    mut model: Box<dyn LanguageModel>,
    text: &TextConventions,
    tokens: &Tokens,
    options: &ExportOptions,
    dtype: GgmlType,
) -> Result<Exported> {
    architecture(model.config())?;
    let rows = model.config().vocab_size;
    let vocabulary = text.tokenizer.for_llama_cpp(rows)?;
    let copies = vocabulary.tokens.len() - rows;
    let copied_row = if copies > 0 { least_likely(&*model, tokens)? } else { 0 };
    let mut metadata = vec![("general.name".to_string(), Value::Text(name(options.output)))];
    metadata.extend(of_vocabulary(vocabulary));
    if let Some(end) = text.answer_end() {
        metadata.push(("tokenizer.ggml.eot_token_id".into(), Value::U32(end)));
    }
    if let Some(template) = &text.template {
        metadata.push(("tokenizer.chat_template".into(), Value::Text(template.source().to_string())));
    }
    let export = Export { dtype, metadata, copied_row, copies };
    let output = options.output;
    let failed = |error| Error::io("write", output, error);
    let (size_bytes, unquantized, comparison) = Files::default().replace_by(output, |file, unfinished| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let written = write(&mut *model, &export, &mut out, &failed)?;
        out.flush().map_err(failed)?;
        drop(out);
        let file = Arc::new(GgufFile::open(unfinished)?);
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
