//! The templates of a tokenizer's folder: one, or several by name.
//!
//! `chat_template.jinja` is the one called `default`, `additional_chat_templates/NAME.jinja` are others. Where there
//! are no such files, `tokenizer_config.json` has one text, or a list of names and texts. transformers takes
//! `tool_use`, if there is one, where a conversation has tools, and `default` where it has none: so both become one
//! template.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::{bad, read};
use rustyflow_base::error::{Error, Result};

const FILE: &str = "chat_template.jinja";
const OTHERS: &str = "additional_chat_templates";
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// The name in error messages and the source of a folder's template; `None` if there is none. `config` is the folder's
/// `tokenizer_config.json`.
pub(super) fn find(folder: &Path, config: &Map<String, Value>) -> Result<Option<(String, String)>> {
    let mut all = in_files(folder)?;
    let mut name = folder.join(FILE).display().to_string();
    if all.is_empty() {
        all = in_config(config);
        name = folder.join("tokenizer_config.json").display().to_string();
    }
    let source = match (all.get(DEFAULT), all.get(TOOL_USE)) {
        (None, None) if all.is_empty() => return Ok(None),
        (Some(default), None) => default.clone(),
        (Some(default), Some(tool_use)) => by_tools(default, tool_use),
        (None, _) => {
            let names: Vec<&str> = all.keys().map(String::as_str).collect();
            let message = format!(
                "has the templates {}, and none called {DEFAULT}: write the one to use into a file, and name it by \
                 data.chat_template",
                names.join(", ")
            );
            return Err(bad(&name, &message));
        }
    };
    Ok(Some((name, source)))
}

fn in_files(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let file = folder.join(FILE);
    if file.is_file() {
        all.insert(DEFAULT.to_string(), read(&file)?);
    }
    let others = folder.join(OTHERS);
    if others.is_dir() {
        for entry in std::fs::read_dir(&others).map_err(|error| Error::io("read", &others, error))? {
            let path = entry.map_err(|error| Error::io("read", &others, error))?.path();
            if let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jinja")) {
                all.insert(name.to_string(), read(&path)?);
            }
        }
    }
    Ok(all)
}

fn in_config(config: &Map<String, Value>) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map(str::to_string);
    match config.get("chat_template") {
        Some(Value::String(source)) => BTreeMap::from([(DEFAULT.to_string(), source.clone())]),
        Some(Value::Array(all)) => {
            all.iter().filter_map(|one| Some((text(&one["name"])?, text(&one["template"])?))).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// One template that is the first without tools and the second with some. Signs keep the white space beside the tags,
/// and of each source goes the line break at its end, as Jinja takes it off a template.
fn by_tools(default: &str, tool_use: &str) -> String {
    let [default, tool_use] = [default, tool_use].map(|source| source.strip_suffix('\n').unwrap_or(source));
    format!("{{%+ if tools is none +%}}{default}{{%+ else +%}}{tool_use}{{%+ endif %}}")
}
