//! The functions that [`rewrite`](super::rewrite) puts in place of operators, with Python's rules for types.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::python::{prints_alike, str};

type Result<T> = std::result::Result<T, Error>;

pub(super) fn add(environment: &mut Environment) {
    environment.add_function("__iterable", iterable);
    environment.add_function("__text", text);
    environment.add_function("__compare", compare);
    environment.add_function("__refuse", |name: &str| -> Result<()> {
        Err(wrong(format!("`{name}` is not supported: write the template without it")))
    });
    environment.add_filter("__printf", printf);
}

/// The iterable of a loop or a filter; `none` is an error here, but an empty list for the engine.
pub(super) fn iterable(value: Value) -> Result<Value> {
    match value.kind() {
        ValueKind::None => Err(wrong("'NoneType' object is not iterable: a loop or a filter of items has none".into())),
        _ => Ok(value),
    }
}

/// Refuses to order items of different types, which the engine does.
pub(super) fn comparable(items: &Value) -> Result<()> {
    let mut before: Option<Value> = None;
    for item in iterable(items.clone())?.try_iter()? {
        if let Some(before) = before.filter(|before| before.kind() != ValueKind::Map) {
            compare(before, "<", item.clone())?;
        }
        before = Some(item);
    }
    Ok(())
}

/// An operand of `~`.
fn text(state: &State, value: Value) -> Result<Value> {
    if prints_alike(&value) { Ok(value) } else { str(state, &value).map(Value::from) }
}

/// `<`, `<=`, `>` or `>=`, which numbers have among each other, texts, lists and tuples.
fn compare(left: Value, operator: &str, right: Value) -> Result<bool> {
    let number = |value: &Value| match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        _ => value.clone(),
    };
    let (first, second) = (number(&left), number(&right));
    let is_ordered = matches!(first.kind(), ValueKind::Number | ValueKind::String | ValueKind::Seq);
    if !is_ordered || first.kind() != second.kind() || first.is_tuple() != second.is_tuple() {
        if left.is_undefined() || right.is_undefined() {
            let side = if left.is_undefined() { "left" } else { "right" };
            return Err(wrong(format!("the value on the {side} of '{operator}' is undefined")));
        }
        let [left, right] = [type_name(&left), type_name(&right)];
        return Err(wrong(format!("'{operator}' not supported between instances of '{left}' and '{right}'")));
    }
    Ok(match operator {
        "<" => first < second,
        "<=" => first <= second,
        ">" => first > second,
        _ => first >= second,
    })
}

fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Seq if value.is_tuple() => "tuple",
        ValueKind::Seq => "list",
        ValueKind::Map => "dict",
        _ => "object",
    }
}

/// `format % value`: a tuple holds the values of all conversions, and a dict those that are named.
fn printf(state: &mut State, format: Value, value: Value) -> Result<Value> {
    let known = |value: Value| -> Result<Value> {
        let is_container = matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable);
        if is_container || value.is_none() || value.kind() == ValueKind::Bool {
            return str(state, &value).map(Value::from);
        }
        Ok(value)
    };
    let (text, is_one) = (format.as_str().unwrap_or_default(), !value.is_tuple());
    let given = if is_one { 1 } else { value.len().unwrap_or(0) };
    if given > conversions(text) && value.kind() != ValueKind::Map {
        return Err(wrong("not all arguments converted during string formatting".into()));
    }
    let is_named = text.contains("%(");
    let mut args = vec![format.clone()];
    if !is_one {
        for item in value.try_iter()? {
            args.push(known(item)?);
        }
    } else if is_named && value.kind() == ValueKind::Map {
        let mut named = vec![];
        for key in value.try_iter()? {
            named.push((key.to_string(), known(value.get_item(&key)?)?));
        }
        args.push(Value::from(Kwargs::from_iter(named)));
    } else {
        args.push(known(value)?);
    }
    state.apply_filter("format", &args)
}

/// The number of values of a format: one per conversion, and per width or precision `*`.
fn conversions(format: &str) -> usize {
    let (mut count, mut chars) = (0, format.chars());
    while chars.by_ref().any(|char| char == '%') {
        let mut stars = 0;
        let conversion = chars.by_ref().inspect(|char| stars += usize::from(*char == '*'));
        let conversion = { conversion }.find(|char| char.is_ascii_alphabetic() || *char == '%');
        count += stars + usize::from(conversion.is_some_and(|conversion| conversion != '%'));
    }
    count
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
