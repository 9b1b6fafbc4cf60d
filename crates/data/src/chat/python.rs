//! Values as Python writes them: `str`, `repr` and `json.dumps`, which templates of transformers print.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::objects::{DictView, Generator, Range};

/// Deeper values are refused: a namespace may hold itself.
const MOST_DEPTH: usize = 100;

type Result<T> = std::result::Result<T, Error>;

/// `str(value)`. Strings keep what they hold; undefined is empty.
pub(super) fn str(state: &State, value: &Value) -> Result<String> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Ok(text.to_string()),
        (None, ValueKind::Undefined) => Ok(String::new()),
        (None, _) => {
            let mut out = String::new();
            repr(state, value, 0, &mut out)?;
            Ok(out)
        }
    }
}

/// Whether the engine prints a value as Python does: all but floats and what may hold some.
pub(super) fn prints_alike(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number => value.is_integer(),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => false,
        _ => true,
    }
}

fn repr(state: &State, value: &Value, depth: usize, out: &mut String) -> Result<()> {
    enter(state, depth, out)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => repr_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(value.clone().try_into()?)),
        ValueKind::Seq | ValueKind::Iterable => {
            if Generator::is(value) {
                let message = "a generator has no text, only an address: add `| list` after the filter";
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
            let is_tuple = value.is_tuple() || type_of_engine(value).ends_with("GroupTuple");
            if let Some(range) = value.downcast_object_ref::<Range>() {
                out.push_str(&range.to_string());
                return Ok(());
            }
            let view = value.downcast_object_ref::<DictView>();
            if let Some(view) = view {
                out.push_str(view.name);
                out.push('(');
            }
            out.push(if is_tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                repr(state, &item, depth + 1, out)?;
                count += 1;
            }
            out.push_str(match (is_tuple, count) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
            if view.is_some() {
                out.push(')');
            }
        }
        ValueKind::Map => {
            let is_namespace = type_of_engine(value).ends_with("Namespace");
            out.push_str(if is_namespace { "<Namespace {" } else { "{" });
            for (number, key) in value.try_iter()?.enumerate() {
                if number > 0 {
                    out.push_str(", ");
                }
                repr(state, &key, depth + 1, out)?;
                out.push_str(": ");
                repr(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push_str(if is_namespace { "}>" } else { "}" });
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// The engine's name of an object's type.
pub(super) fn type_of_engine(value: &Value) -> &'static str {
    value.as_object().map_or("", |object| object.type_name())
}

/// Counts a value against the budget, so that cyclic values end.
fn enter(state: &State, depth: usize, out: &str) -> Result<()> {
    if depth > MOST_DEPTH {
        let message = format!("a value is nested more than {MOST_DEPTH} deep");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    state.consume_fuel(1 + out.len().is_multiple_of(64) as u64)
}

/// `repr` of a float: the shortest digits, with an exponent from 1e16 on and below 1e-4.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || value == 0.0 {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char == quote => out.extend(['\\', char]),
            char if is_printable(char) => out.push(char),
            char => out.push_str(&match char as u32 {
                code @ ..=0xff => format!("\\x{code:02x}"),
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
}

/// `str.isprintable` of the separators, controls and formats that Unicode names; unassigned code points pass.
fn is_printable(char: char) -> bool {
    char == ' '
        || !(char.is_control()
            || char.is_whitespace()
            || matches!(char, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}')
            || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(char, '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0001}'..))
}

/// The options of `json.dumps`.
#[derive(Default)]
pub(super) struct JsonStyle {
    pub ensure_ascii: bool,
    /// Indentation per level; `None` writes one line.
    pub indent: Option<String>,
    /// Between items, and between a key and its value.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
}

/// `json.dumps(value)`.
pub(super) fn json(state: &State, value: &Value, style: &JsonStyle) -> Result<String> {
    let between = if style.indent.is_some() { "," } else { ", " };
    let (item, key) = style.separators.clone().unwrap_or((between.into(), ": ".into()));
    let mut writer = JsonWriter { state, style, item, key, out: String::new() };
    writer.write(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter<'a> {
    state: &'a State<'a, 'a>,
    style: &'a JsonStyle,
    item: String,
    key: String,
    out: String,
}

impl JsonWriter<'_> {
    fn write(&mut self, value: &Value, depth: usize) -> Result<()> {
        enter(self.state, depth, &self.out)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let number = number(value)?;
                self.out.push_str(&number);
            }
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                if value.downcast_object_ref::<Range>().is_some() {
                    return Err(refused("an object of type range"));
                }
                if Generator::is(value) {
                    return Err(refused("an object of type generator"));
                }
                if let Some(view) = value.downcast_object_ref::<DictView>() {
                    return Err(refused(&format!("an object of type {}", view.name)));
                }
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(['[', ']'], items, depth, |writer, item| writer.write(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort();
                }
                self.container(['{', '}'], keys, depth, |writer, key| {
                    let written = match key.kind() {
                        ValueKind::String => key.as_str().unwrap_or_default().to_string(),
                        ValueKind::Number => number(&key)?,
                        ValueKind::Bool => key.is_true().to_string(),
                        ValueKind::None => "null".to_string(),
                        kind => return Err(refused(&format!("a key of type {kind}"))),
                    };
                    writer.text(&written);
                    let separator = writer.key.clone();
                    writer.out.push_str(&separator);
                    writer.write(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => return Err(refused(&format!("a value of type {kind}"))),
        }
        Ok(())
    }

    fn container(
        &mut self,
        [open, close]: [char; 2],
        items: Vec<Value>,
        depth: usize,
        mut write: impl FnMut(&mut Self, Value) -> Result<()>,
    ) -> Result<()> {
        self.out.push(open);
        let is_empty = items.is_empty();
        for (number, item) in items.into_iter().enumerate() {
            if number > 0 {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            self.line(depth + 1)?;
            write(self, item)?;
        }
        if !is_empty {
            self.line(depth)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) -> Result<()> {
        if let Some(indent) = &self.style.indent {
            self.state.consume_fuel((indent.len().saturating_mul(depth) / 64) as u64)?;
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for char in text.chars() {
            match char {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                char if char < ' ' || (self.style.ensure_ascii && !(' '..='~').contains(&char)) => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                char => self.out.push(char),
            }
        }
        self.out.push('"');
    }
}

fn number(value: &Value) -> Result<String> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let float = float(value.clone().try_into()?);
    Ok(match float.as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        _ => float,
    })
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what} is not JSON serializable"))
}

/// `str.splitlines()`.
pub(super) fn split_lines(text: &str) -> Vec<&str> {
    let mut lines = vec![];
    let mut rest = text;
    while !rest.is_empty() {
        let is_break =
            |char: char| matches!(char, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let Some(at) = rest.find(is_break) else {
            lines.push(rest);
            break;
        };
        lines.push(&rest[..at]);
        let after = &rest[at..];
        let length = if after.starts_with("\r\n") { 2 } else { after.chars().next().map_or(1, char::len_utf8) };
        rest = &after[length..];
    }
    lines
}
