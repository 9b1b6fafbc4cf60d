//! Writes the configuration in force as TOML, with the origin of every value beside it.

use std::fmt::Write;

use toml::{Table, Value};

use super::keys;
use super::layers::Resolved;
use super::origin::Origin;
use crate::units;

impl Resolved {
    /// Every value in force, with its origin in a trailing comment (`# from quick.toml:4`, or `# default`). The text is
    /// a configuration file that parses to the same [`Config`](super::Config).
    pub fn to_toml(&self) -> String {
        // A seed above i64::MAX, which TOML cannot hold, never comes out of `Layers`.
        let table = Table::try_from(&self.config).expect("a checked configuration can be written as TOML");
        let mut text = String::from("# Every value in force, and where it came from.\n");
        for (section, entries) in &table {
            let _ = writeln!(text, "\n[{section}]");
            let Value::Table(entries) = entries else { continue };
            let written_of = |key: &str, value| match self.origin(&format!("{section}.{key}")) {
                Origin::Auto(_) => format!("{:?}", keys::AUTO),
                _ => written(value),
            };
            let lines: Vec<_> =
                entries.iter().map(|(key, value)| (key, format!("{key} = {}", written_of(key, value)))).collect();
            // One long text should not push every comment of its section out of sight.
            let lengths = lines.iter().map(|(_, line)| line.chars().count());
            let width = lengths.filter(|&length| length <= 40).max().unwrap_or(0);
            for (key, line) in lines {
                let source = comment(self.origin(&format!("{section}.{key}")));
                let _ = writeln!(text, "{line:width$}  # {source}");
            }
        }
        text
    }
}

/// The keys of a run's `config.toml`, as [`Resolved::to_toml`] writes it, that follow from other values.
pub(super) fn derived_keys(text: &str) -> Vec<String> {
    let mut section = "";
    let mut keys = Vec::new();
    for line in text.lines() {
        section = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(section);
        if let (Some((key, _)), Some((_, origin))) = (line.split_once(" = "), line.rsplit_once("  # "))
            && origin.starts_with("default: ")
        {
            keys.push(format!("{section}.{key}"));
        }
    }
    keys
}

/// The value as TOML, without loss of precision.
pub(super) fn written(value: &Value) -> String {
    value.as_float().map_or_else(|| value.to_string(), units::toml_float)
}

/// The comment for an origin, with characters escaped that a TOML comment must not contain, such as line breaks in file
/// names.
fn comment(origin: &Origin) -> String {
    let text = match origin {
        Origin::Default | Origin::Derived(_) | Origin::Settled(_) => origin.to_string(),
        _ => format!("from {origin}"),
    };
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
