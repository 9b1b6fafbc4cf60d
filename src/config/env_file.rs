//! Reads a flat `.env` file (`NAME=value` lines) into a layer.
//!
//! A key has three spellings: the short names below (`BATCH_SIZE`), `RUSTYFLOW_SECTION__KEY` and `section.key`. `#`
//! starts a comment, at the start of a line or after a blank; `export` before a name is ignored; quotes around a value
//! are removed, and within double quotes `\n`, `\t`, `\"` and `\\` are escapes.

use std::path::Path;

use super::keys::{self, KEYS, Key, Named};
use super::layers::Layer;
use super::origin::Origin;
use super::{synonyms, wrong};
use crate::error::Result;

/// The short names, and the keys that they set. `MODEL_PATH` is none of them: see [`model_path`].
const SHORT_NAMES: &[(&str, &str)] = &[
    ("DATASET", "data.corpus"),
    ("SEQ_LEN", "model.block_size"),
    ("NUM_EPOCHS", "train.epochs"),
    ("BATCH_SIZE", "train.batch_size"),
    ("LEARNING_RATE", "train.learning_rate"),
    ("EMBED_DIM", "model.n_embd"),
    ("NUM_HEADS", "model.n_head"),
    ("NUM_LAYERS", "model.n_layer"),
    ("TEMPERATURE", "generate.temperature"),
    ("TOP_P", "generate.top_p"),
];

/// The folder that the run is written to: its parent is `run.dir`, its last part `run.name`.
const MODEL_PATH: &str = "MODEL_PATH";

/// Parses a `.env` file into a layer. `place` is the name of the file in errors.
pub(super) fn read(place: &str, text: &str) -> Result<Layer> {
    let mut layer = Layer::default();
    for (index, line) in text.lines().enumerate() {
        let origin = Origin::File { path: place.into(), line: index + 1 };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((name, text)) = line.split_once('=') else {
            return Err(wrong(origin, line, "expected NAME=value, found no `=`"));
        };
        let name = name.trim();
        let text = unquote(text.trim()).map_err(|message| wrong(&origin, name, message))?;
        if name == MODEL_PATH {
            for (named, part) in model_path(&text).map_err(|message| wrong(&origin, name, message))? {
                layer.insert_once(named, named.key.value_of_text(&part), origin.clone())?;
            }
        } else {
            let named = find(name).ok_or_else(|| wrong(&origin, name, unknown(name)))?;
            layer.insert_once(named, named.key.value_of_text(&text), origin)?;
        }
    }
    Ok(layer)
}

/// The key of a name, in any spelling.
fn find(name: &str) -> Option<Named> {
    if let Some((_, key)) = SHORT_NAMES.iter().find(|(short, _)| *short == name) {
        return keys::find(key);
    }
    if name.starts_with("RUSTYFLOW_") {
        return keys::find_variable(name);
    }
    keys::find(name)
}

/// The message for an unknown name.
fn unknown(name: &str) -> String {
    if name.contains('.') {
        return keys::unknown_key(name, |key| key.name.into());
    }
    if let Some(rest) = name.strip_prefix("RUSTYFLOW_") {
        return keys::unknown_key(&rest.to_lowercase().replacen("__", ".", 1), Key::variable);
    }
    let short_names = || SHORT_NAMES.iter().map(|(short, _)| *short).chain([MODEL_PATH]);
    // A key without its section (`DROPOUT`, `weight_decay`) is better answered with the key than with a short name.
    if KEYS.iter().any(|key| key.parts().1 == name.to_lowercase())
        || (synonyms::key_of(name).is_some() && keys::nearest(name, short_names()).is_none())
    {
        return keys::unknown_key(&name.to_lowercase(), |key| key.name.into());
    }
    match keys::nearest(name, short_names()) {
        Some(short) => format!("unknown key, did you mean `{short}`?"),
        None => format!(
            "unknown key; the short names are {}, and every key can be written section.key",
            short_names().collect::<Vec<_>>().join(", ")
        ),
    }
}

/// The keys and values that a `MODEL_PATH` sets.
fn model_path(text: &str) -> std::result::Result<[(Named, String); 2], String> {
    let path = Path::new(text);
    let key = |name| keys::find(name).expect("run.dir and run.name are in KEYS");
    let name = path.file_name().ok_or("expected the path of a folder, such as runs/first")?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok([(key("run.dir"), parent.display().to_string()), (key("run.name"), name.to_string_lossy().into_owned())])
}

/// The value without its quotes and without the comment behind it.
fn unquote(text: &str) -> std::result::Result<String, &'static str> {
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        let comment = text.find(" #").or_else(|| text.find("\t#")).unwrap_or(text.len());
        return Ok(if text.starts_with('#') { String::new() } else { text[..comment].trim_end().to_string() });
    };
    let mut value = String::new();
    let mut rest = text[1..].chars();
    while let Some(c) = rest.next() {
        match c {
            c if c == quote => {
                let after = rest.as_str().trim_start();
                return match after.is_empty() || after.starts_with('#') {
                    true => Ok(value),
                    false => Err("there is text after the closing quote"),
                };
            }
            '\\' if quote == '"' => match rest.next() {
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some(c @ ('"' | '\\')) => value.push(c),
                Some(c) => value.extend(['\\', c]),
                None => break,
            },
            c => value.push(c),
        }
    }
    Err("the closing quote is missing")
}
