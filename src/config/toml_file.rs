//! Reads a TOML file into a layer, keeping the line of every key.

use toml::Value;
use toml::de::{DeInteger, DeTable, DeValue};

use super::keys::{self, SECTIONS};
use super::layers::Layer;
use super::origin::Origin;
use super::recipe::RECIPE;
use super::wrong;
use crate::error::Result;

/// Parses a TOML file into a layer. `place` is the name of the file in errors.
pub(super) fn read(place: &str, text: &str) -> Result<Layer> {
    let at = |offset: usize| Origin::File { path: place.into(), line: line_of(text, offset) };
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        wrong(at(offset), "not valid TOML", error.message().replace('\n', "; "))
    })?;
    let mut layer = Layer::default();
    for (section, content) in table.into_inner() {
        let origin = at(section.span().start);
        let name = section.get_ref().as_ref();
        // What is stated of a recipe changes nothing in the run.
        if name == RECIPE {
            continue;
        }
        let DeValue::Table(entries) = content.into_inner() else {
            let message = match SECTIONS.contains(&name) {
                true => format!("is a section: write [{name}] and its keys below"),
                false => keys::unknown_key(name, |key| key.name.into()) + " (keys belong under a [section])",
            };
            return Err(wrong(origin, name, message));
        };
        if !SECTIONS.contains(&name) {
            return Err(wrong(origin, name, keys::unknown_section(name)));
        }
        for (key, value) in entries {
            let origin = at(key.span().start);
            let full_name = format!("{name}.{}", key.get_ref());
            let Some(named) = keys::find(&full_name) else {
                let message = keys::unknown_key(&full_name, |key| key.name.into());
                return Err(wrong(origin, full_name, message));
            };
            let value = plain(value.get_ref()).map_err(|message| wrong(&origin, named.key.name, message))?;
            layer.insert_once(named, value, origin)?;
        }
    }
    Ok(layer)
}

/// The value without its place in the text.
fn plain(value: &DeValue<'_>) -> std::result::Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(digits) => Value::Integer(whole_number(digits)?),
        DeValue::Float(digits) => Value::Float(digits.as_str().parse().map_err(|_| format!("bad number {digits}"))?),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(date) => Value::Datetime(*date),
        DeValue::Array(values) => {
            Value::Array(values.iter().map(|value| plain(value.get_ref())).collect::<std::result::Result<_, _>>()?)
        }
        DeValue::Table(entries) => {
            let entry = |(key, value): (_, &toml::Spanned<DeValue<'_>>)| {
                let key: &toml::Spanned<std::borrow::Cow<'_, str>> = key;
                Ok((key.get_ref().to_string(), plain(value.get_ref())?))
            };
            Value::Table(entries.iter().map(entry).collect::<std::result::Result<_, String>>()?)
        }
    })
}

/// Converts the parser's digits to an integer, and refuses one that is too large.
fn whole_number(digits: &DeInteger<'_>) -> std::result::Result<i64, String> {
    i64::from_str_radix(digits.as_str(), digits.radix())
        .map_err(|_| format!("expected an integer of at most 63 bits, got {digits}"))
}

/// The line, counted from 1, of a byte offset.
fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}
