//! Methods of Python's strings, lists and dicts that templates call and the engine's library lacks.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::objects::DictView;
use super::python::split_lines;

type Result<T> = std::result::Result<T, Error>;

/// The methods of Python's dicts.
pub(super) const OF_DICTS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// A method by its name.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value> {
    let own = match value.kind() {
        ValueKind::String => of_text(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => of_list(value, method, args)?,
        ValueKind::Map if method == "copy" && args.is_empty() => Some(value.clone()),
        ValueKind::Map if args.is_empty() => view_of(value, method)?,
        _ => None,
    };
    own.map_or_else(|| pycompat::unknown_method_callback(state, value, method, args), Ok)
}

/// `keys()`, `values()` or `items()` of a dict.
fn view_of(value: &Value, method: &str) -> Result<Option<Value>> {
    let Some(name) = [("keys", "dict_keys"), ("values", "dict_values"), ("items", "dict_items")]
        .into_iter()
        .find_map(|(known, name)| (known == method).then_some(name))
    else {
        return Ok(None);
    };
    let mut items = vec![];
    for key in value.try_iter()? {
        items.push(match method {
            "keys" => key,
            "values" => value.get_item(&key)?,
            _ => Value::from(Tuple::from([key.clone(), value.get_item(&key)?])),
        });
    }
    Ok(Some(Value::from_object(DictView { name, items })))
}

fn of_list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>> {
    Ok(match method {
        "copy" if args.is_empty() => Some(value.clone()),
        "index" => {
            let (what,): (Value,) = from_args(args)?;
            let place = value.try_iter()?.position(|item| item == what);
            Some(Value::from(place.ok_or_else(|| wrong(&format!("{what} is not in list")))?))
        }
        _ => None,
    })
}

fn of_text(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>> {
    let value = match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let first = method == "partition";
            let parts = if first { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = parts.map(|(before, after)| [before, separator, after]);
            let all = parts.unwrap_or(if first { [text, "", ""] } else { ["", "", text] });
            Value::from(Tuple::from(all.map(Value::from)))
        }
        "join" => {
            check_joined(args)?;
            return Ok(None);
        }
        "split" | "rsplit" if args.first().is_some_and(|separator| separator.as_str() == Some("")) => {
            return Err(wrong("empty separator"));
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            Value::from_iter(rsplit(text, separator, most))
        }
        "index" => {
            let (what,): (&str,) = from_args(args)?;
            let at = text.find(what).ok_or_else(|| wrong("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "startswith" | "endswith" if args.len() > 1 => {
            let (what, start, end): (Value, i64, Option<i64>) = from_args(args)?;
            let part = between(text, start, end);
            let fits = |what: &str| if method == "startswith" { part.starts_with(what) } else { part.ends_with(what) };
            let any = match what.as_str() {
                Some(what) => fits(what),
                None => what.try_iter()?.any(|what| what.as_str().is_some_and(fits)),
            };
            Value::from(any)
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            Value::from(pad(state, text, method, width, fill.unwrap_or(" "))?)
        }
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(args)?;
            Value::from(expand_tabs(state, text, size.unwrap_or(8))?)
        }
        _ if args.is_empty() => return Ok(of_text_alone(text, method)),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// Methods that take no arguments.
fn of_text_alone(text: &str, method: &str) -> Option<Value> {
    Some(match method {
        "splitlines" => Value::from_iter(split_lines(text)),
        "title" => Value::from(title(text)),
        "istitle" => Value::from(text.chars().any(char::is_alphabetic) && text == title(text)),
        "swapcase" => {
            let swap = |char: char| match char.is_uppercase() {
                true => char.to_lowercase().collect::<String>(),
                false => char.to_uppercase().collect(),
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        // Of what folds to more than its small letters, the one that texts have.
        "casefold" => Value::from(text.to_lowercase().replace('ß', "ss")),
        "isdecimal" => Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())),
        "isidentifier" => {
            let starts = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
            Value::from(starts && text.chars().all(|c| c.is_alphanumeric() || c == '_'))
        }
        _ => return None,
    })
}

/// Refuses what Python's `join` does not take and the engine's does.
fn check_joined(args: &[Value]) -> Result<()> {
    let (items,): (Value,) = from_args(args)?;
    if items.is_none() {
        return Err(wrong("can only join an iterable, not none"));
    }
    for (place, item) in items.try_iter()?.enumerate() {
        if item.kind() != ValueKind::String {
            return Err(wrong(&format!("join: item {place} is of type {}, expected str", item.kind())));
        }
    }
    Ok(())
}

/// Of characters from `start` to `end`, which count from the end where they are negative.
fn between(text: &str, start: i64, end: Option<i64>) -> &str {
    let count = text.chars().count() as i64;
    let place = |at: i64| (if at < 0 { (at + count).max(0) } else { at.min(count) }) as usize;
    let (start, end) = (place(start), end.map_or(count as usize, place));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    if start < end { &text[byte(start)..byte(end)] } else { "" }
}

fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Vec<String> {
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let mut parts: Vec<String> = match separator {
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).map(str::to_string).collect(),
        None => {
            let (mut parts, mut rest) = (vec![], text.trim_end());
            while !rest.is_empty() {
                let cut = rest.rfind(char::is_whitespace).filter(|_| parts.len() < most);
                let space = cut.and_then(|at| rest[at..].chars().next()).map_or(0, char::len_utf8);
                parts.push(rest[cut.map_or(0, |at| at + space)..].to_string());
                rest = rest[..cut.unwrap_or(0)].trim_end();
            }
            parts
        }
    };
    parts.reverse();
    parts
}

/// Every letter after what is no letter becomes a capital.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut within = false;
    for char in text.chars() {
        if within {
            out.extend(char.to_lowercase());
        } else {
            out.extend(char.to_uppercase());
        }
        within = char.is_alphabetic();
    }
    out
}

/// `str.center`, `ljust`, `rjust` and `zfill`.
pub(super) fn pad(state: &State, text: &str, how: &str, width: usize, fill: &str) -> Result<String> {
    let missing = width.saturating_sub(text.chars().count());
    state.consume_fuel((missing / 16) as u64)?;
    let fill = |count: usize| if how == "zfill" { "0".repeat(count) } else { fill.repeat(count) };
    Ok(match how {
        "ljust" => text.to_string() + &fill(missing),
        "rjust" => fill(missing) + text,
        "zfill" => {
            let sign = text.len() - text.trim_start_matches(['+', '-']).len();
            let (sign, digits) = text.split_at(sign.min(1));
            format!("{sign}{}{digits}", fill(missing))
        }
        _ => {
            let left = missing / 2 + (missing & width & 1);
            fill(left) + text + &fill(missing - left)
        }
    })
}

fn expand_tabs(state: &State, text: &str, size: usize) -> Result<String> {
    let (mut out, mut column) = (String::new(), 0);
    for char in text.chars() {
        match char {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                state.consume_fuel((spaces / 64) as u64)?;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(char);
                column = 0;
            }
            char => {
                out.push(char);
                column += 1;
            }
        }
    }
    Ok(out)
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_string())
}
