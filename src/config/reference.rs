//! The reference of all keys: a template configuration file, a JSON Schema for editors, and the tables of
//! `docs/configuration.md`.

use std::fmt::Write;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::keys::{AUTO, KEYS, Key, Kind, SECTIONS};
use super::recipe::RECIPE;
use super::schema::Config;

/// Keys whose default depends on another key.
const DERIVED: [(&str, &str); 2] =
    [("train.min_learning_rate", "learning_rate / 10"), ("model.embd_dropout", "model.dropout")];

static DEFAULTS: LazyLock<toml::Table> =
    LazyLock::new(|| toml::Table::try_from(Config::default()).expect("the defaults are numbers, texts and booleans"));

/// The documentation of a key.
struct Row {
    /// Type and range of the key, in Markdown.
    takes: String,
    /// As in TOML; `None` where there is none, or it follows from another key.
    default: Option<toml::Value>,
}

/// A default as people write it: `1e-8`, where TOML's writer has `0.00000001`.
fn written(value: &toml::Value) -> String {
    value.as_float().map_or_else(|| value.to_string(), |x| format!("{x:?}"))
}

impl Row {
    fn of(key: &Key) -> Row {
        let (section, name) = key.parts();
        let is_derived = DERIVED.iter().any(|(derived, _)| *derived == key.name);
        let default = DEFAULTS[section].get(name).filter(|_| !is_derived).cloned();
        Row { takes: key.kind.describe() + &key.range.in_table(), default }
    }
}

impl Key {
    /// Its help as plain text, without what only the page has.
    fn about(&self) -> String {
        self.help.replace(", see below", "").replace('`', "")
    }

    /// Its row of the page.
    #[cfg(test)]
    pub(super) fn markdown(&self) -> String {
        let Row { takes, default } = Row::of(self);
        let derived =
            DERIVED.iter().find(|(derived, _)| *derived == self.name).map(|(_, source)| format!("`{source}`"));
        let default = default.map(|default| format!("`{}`", written(&default))).or(derived).unwrap_or("unset".into());
        format!("| `{}` | {takes} | {default} | {} |", self.name, self.help)
    }
}

/// A configuration file with every key, its description and its default, all commented out.
pub fn template() -> String {
    let mut text = String::from(
        "# A configuration of rustyflow. Lines that begin with # show defaults: take the # away to set a key.\n\
         # Train with it: rustyflow train THIS_FILE. Everything in force, and from where: rustyflow config show \
         THIS_FILE.\n",
    );
    for section in SECTIONS {
        let _ = writeln!(text, "\n[{section}]");
        for key in KEYS.iter().filter(|key| key.parts().0 == *section) {
            let Row { takes, default } = Row::of(key);
            let (takes, about, name) = (takes.replace('`', ""), key.about(), key.parts().1);
            let _ = match default.as_ref().map(written) {
                Some(default) => writeln!(text, "# {about} ({takes})\n#{name} = {default}"),
                None => writeln!(text, "# {about} ({takes}; not set)\n#{name} ="),
            };
        }
    }
    text
}

/// The JSON Schema (draft 7) of configuration files, for completion and validation in editors.
pub fn json_schema() -> Value {
    let mut sections = serde_json::Map::new();
    for section in SECTIONS {
        let mut keys = serde_json::Map::new();
        for key in KEYS.iter().filter(|key| key.parts().0 == *section) {
            let Row { takes, default } = Row::of(key);
            let mut schema = values(key.kind);
            key.range.add_to(&mut schema);
            schema["description"] = format!("{} ({})", key.about(), takes.replace('`', "")).into();
            if let Some(default) = default.and_then(|value| serde_json::to_value(value).ok()) {
                schema["default"] = default;
            }
            keys.insert(key.parts().1.into(), schema);
        }
        sections
            .insert((*section).into(), json!({ "type": "object", "additionalProperties": false, "properties": keys }));
    }
    let description = "Expected result, for `rustyflow reproduce`.";
    sections.insert(RECIPE.into(), json!({ "type": "object", "description": description }));
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A configuration of rustyflow",
        "type": "object",
        "additionalProperties": false,
        "properties": sections,
    })
}

impl Kind {
    /// Type, in Markdown.
    fn describe(self) -> String {
        match self {
            Kind::Text => "string".into(),
            Kind::Texts => "list of strings".into(),
            Kind::Flag => "boolean".into(),
            Kind::Count => "count".into(),
            Kind::CountOrAuto => "count, `auto`".into(),
            Kind::DeviceBatch => "list of counts, `auto`".into(),
            Kind::Seed => "integer below 2^63".into(),
            Kind::Real => "number".into(),
            Kind::Choice(words) => format!("`{}`", words.join("`, `")),
            Kind::Device => "`auto`, `cpu`, `gpu`, `gpu:N`, or several".into(),
            Kind::Groups => "list of tables".into(),
        }
    }
}

/// The JSON Schema of this type.
fn values(kind: Kind) -> Value {
    match kind {
        Kind::Text => json!({ "type": "string" }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Count => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
        Kind::CountOrAuto => json!({ "anyOf": [values(Kind::Count), { "type": "string", "enum": [AUTO] }] }),
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
