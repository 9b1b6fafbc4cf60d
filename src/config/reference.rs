//! What is written about every key: a configuration file to begin with, and a JSON Schema for editors. Both are made
//! from `docs/configuration.md`, whose tables have a row for each key.

use std::fmt::Write;

use serde_json::{Value, json};

use super::keys::{KEYS, Key, Kind, SECTIONS};
use super::recipe::RECIPE;

const PAGE: &str = include_str!("../../docs/configuration.md");

/// A row of the page.
struct Row {
    /// What the key takes, in words.
    takes: String,
    /// As in TOML; `None` where the page says what the default follows from.
    default: Option<String>,
    about: String,
}

impl Row {
    fn of(key: &Key) -> Row {
        let start = format!("| `{}` |", key.name);
        let row = PAGE.lines().find(|line| line.starts_with(&start)).expect("the page has a row for every key");
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let quoted = |cell: &str| cell.split('`').nth(1).map(String::from);
        Row {
            takes: cells[2].replace('`', ""),
            default: quoted(cells[3]).filter(|default| default.parse::<toml::Value>().is_ok()),
            // What follows the table stays on the page.
            about: cells[4].replace(", see below", "").replace('`', ""),
        }
    }
}

/// A configuration file with every key, what it means and its default, all behind `#`: it changes nothing.
pub fn template() -> String {
    let mut text = String::from(
        "# A configuration of rustyflow. Lines that begin with # show defaults: take the # away to set a key.\n\
         # Train with it: rustyflow train THIS_FILE. Everything in force, and from where: rustyflow config show \
         THIS_FILE.\n",
    );
    for section in SECTIONS {
        let _ = writeln!(text, "\n[{section}]");
        for key in KEYS.iter().filter(|key| key.parts().0 == *section) {
            let Row { takes, default, about } = Row::of(key);
            let name = key.parts().1;
            let _ = match default {
                Some(default) => writeln!(text, "# {about} ({takes})\n#{name} = {default}"),
                None => writeln!(text, "# {about} ({takes}; not set)\n#{name} ="),
            };
        }
    }
    text
}

/// The JSON Schema (draft 7) of a configuration file, from which editors complete and check TOML.
pub fn json_schema() -> Value {
    let mut sections = serde_json::Map::new();
    for section in SECTIONS {
        let mut keys = serde_json::Map::new();
        for key in KEYS.iter().filter(|key| key.parts().0 == *section) {
            let Row { takes, default, about } = Row::of(key);
            let mut schema = values(key.kind);
            schema["description"] = format!("{about} ({takes})").into();
            let default = default.and_then(|text| serde_json::to_value(text.parse::<toml::Value>().ok()?).ok());
            if let Some(default) = default {
                schema["default"] = default;
            }
            keys.insert(key.parts().1.into(), schema);
        }
        sections
            .insert((*section).into(), json!({ "type": "object", "additionalProperties": false, "properties": keys }));
    }
    sections.insert(RECIPE.into(), json!({ "type": "object", "description": "What the run is to come to." }));
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A configuration of rustyflow",
        "type": "object",
        "additionalProperties": false,
        "properties": sections,
    })
}

/// What a key of this kind takes. Ranges are checked when a run begins.
fn values(kind: Kind) -> Value {
    match kind {
        Kind::Text => json!({ "type": "string" }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Count => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
        Kind::DeviceBatch => {
            let parts = json!({ "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": u32::MAX } });
            json!({ "anyOf": [parts, { "type": "string", "enum": ["auto"] }] })
        }
        Kind::Seed => json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }),
        Kind::Real => json!({ "type": "number" }),
        Kind::Choice(words) => json!({ "type": "string", "enum": words }),
        Kind::Groups => json!({ "type": "array", "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["match"],
            "properties": {
                "match": { "type": "string" },
                "lr_scale": { "type": "number" },
                "weight_decay": { "type": "number" },
            },
        } }),
        Kind::Device => {
            let device = "cpu|gpu(:([0-9]+|all))?";
            json!({ "type": "string", "pattern": format!("^(auto|({device})(,({device}|[0-9]+))*)$") })
        }
    }
}
