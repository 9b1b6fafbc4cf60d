//! The functions that [`rewrite`](super::rewrite) puts in place of operators, with Python's rules for types.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, tests};

use super::objects::Generator;
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
    environment.add_test("in", |state: &State, item: &Value, items: &Value| contains(state, items, item));
}

/// The iterable of a loop or a filter, generators as lists; `none` is an error here, but an empty list for the engine.
pub(super) fn iterable(value: Value) -> Result<Value> {
    match value.kind() {
        ValueKind::None => Err(wrong("'NoneType' object is not iterable: a loop or a filter of items has none".into())),
        _ if Generator::is(&value) => Ok(Value::from_iter(value.try_iter()?)),
        _ => Ok(value),
    }
}

/// The items to order; refuses different types, which the engine does not.
pub(super) fn comparable(items: Value) -> Result<Value> {
    let items = iterable(items)?;
    let mut before: Option<Value> = None;
    for item in items.try_iter()? {
        if let Some(before) = before.filter(|before| before.kind() != ValueKind::Map) {
            is_ordered(&before, "<", &item)?;
        }
        before = Some(item);
    }
    Ok(items)
}

/// An operand of `~`.
fn text(state: &State, value: Value) -> Result<Value> {
    if prints_alike(&value) { Ok(value) } else { str(state, &value).map(Value::from) }
}

/// A chain of comparisons: a value, then operators and values in turn.
fn compare(state: &State, mut left: Value, rest: Rest<Value>) -> Result<bool> {
    for pair in rest.chunks_exact(2) {
        let right = &pair[1];
        let holds = match pair[0].as_str().unwrap_or_default() {
            "==" => left == *right,
            "!=" => left != *right,
            "in" => contains(state, right, &left)?,
            "not in" => !contains(state, right, &left)?,
            operator => is_ordered(&left, operator, right)?,
        };
        if !holds {
            return Ok(false);
        }
        left = right.clone();
    }
    Ok(true)
}

/// `item in items`.
fn contains(state: &State, items: &Value, item: &Value) -> Result<bool> {
    let is_list = item.kind() == ValueKind::Seq && !item.is_tuple();
    match items.kind() {
        ValueKind::String if item.kind() != ValueKind::String => {
            Err(wrong(format!("'in <string>' requires string as left operand, not {}", type_name(item))))
        }
        ValueKind::Map if is_list || item.kind() == ValueKind::Map => {
            Err(wrong(format!("unhashable type: '{}'", type_name(item))))
        }
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            Err(wrong(format!("argument of type '{}' is not iterable", type_name(items))))
        }
        _ => tests::is_in(state, item, items),
    }
}

/// `<`, `<=`, `>` or `>=`, which numbers have among each other, texts, lists and tuples.
fn is_ordered(left: &Value, operator: &str, right: &Value) -> Result<bool> {
    let number = |value: &Value| match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        _ => value.clone(),
    };
    let (first, second) = (number(left), number(right));
    let is_ordered = matches!(first.kind(), ValueKind::Number | ValueKind::String | ValueKind::Seq);
    if !is_ordered || first.kind() != second.kind() || first.is_tuple() != second.is_tuple() {
        if left.is_undefined() || right.is_undefined() {
            let side = if left.is_undefined() { "left" } else { "right" };
            return Err(wrong(format!("the value on the {side} of '{operator}' is undefined")));
        }
        let [left, right] = [type_name(left), type_name(right)];
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
        ValueKind::Undefined => "Undefined",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Seq if value.is_tuple() => "tuple",
        ValueKind::Seq => "list",
        ValueKind::Map => "dict",
        _ if Generator::is(value) => "generator",
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
