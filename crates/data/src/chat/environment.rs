//! The environment in which transformers renders chat templates (`_compile_jinja_template`): its filters, tests and
//! globals, with Jinja2's positional and keyword arguments.

use std::borrow::Cow;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::objects::{Cycler, Generator, Range};
use super::operators::{comparable, iterable};
use super::python::{JsonStyle, json, prints_alike, split_lines, str, type_of_engine};
use super::{FUEL, methods, operators};

type Result<T> = std::result::Result<T, Error>;

pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters"));
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| match prints_alike(value) {
        true => minijinja::escape_formatter(out, state, value),
        false => out.write_str(&str(state, value)?).map_err(Error::from),
    });
    environment.remove_global("debug");
    add_globals(&mut environment);
    add_filters(&mut environment);
    add_filters_by_place(&mut environment);
    add_generators(&mut environment);
    operators::add(&mut environment);
    environment.add_test("iterable", |value: &Value| {
        let kinds = [ValueKind::String, ValueKind::Seq, ValueKind::Map, ValueKind::Iterable, ValueKind::Undefined];
        kinds.contains(&value.kind())
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment
}

fn add_globals(environment: &mut Environment) {
    environment.add_function("raise_exception", |state: &State, message: &Value| -> Result<String> {
        Err(wrong(str(state, message)?))
    });
    environment.add_function("strftime_now", |format: &str| -> Result<String> {
        // As of the C library, what is no directive stays.
        let config = jiff::fmt::strtime::Config::new().lenient(true);
        let now = jiff::fmt::strtime::BrokenDownTime::from(&jiff::Zoned::now());
        now.to_string_with_config(&config, format).map_err(|error| wrong(format!("strftime_now: {error}")))
    });
    environment.add_function("range", Range::value);
    environment.add_function("cycler", |items: Rest<Value>| Cycler::value(items.0));
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("dict", dict);
}

/// `dict(value, **named)` of a mapping or of pairs.
fn dict(args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = args.into_values();
    let (value, by_name): (&[Value], Kwargs) = from_args(&args)?;
    let mut pairs = vec![];
    if let Some(value) = value.first() {
        for item in value.try_iter()? {
            pairs.push(match value.kind() {
                ValueKind::Map => (item.clone(), value.get_item(&item)?),
                _ => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
            });
        }
    }
    for name in by_name.args() {
        pairs.push((Value::from(name), by_name.peek(name)?));
    }
    Ok(Value::from_pairs(pairs))
}

fn add_filters(environment: &mut Environment) {
    // Python's layout is another.
    environment.remove_filter("pprint");
    environment.add_filter("attr", attr);
    environment.add_filter("list", |state: &State, value: Value| filters::list(state, iterable(value)?));
    environment.add_filter("join", join);
    environment.add_filter("sum", sum);
    environment.add_filter("tojson", to_json);
    environment.add_filter("indent", indent);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("string", |state: &State, value: &Value| match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => str(state, value).map(Value::from),
    });
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("striptags", minijinja_contrib::filters::striptags);
    environment.add_filter("wordcount", |text: &str| {
        let is_word = |char: char| char.is_alphanumeric() || char == '_';
        text.split(|char| !is_word(char)).filter(|word| !word.is_empty()).count()
    });
    environment.add_filter("center", |state: &State, text: &str, width: Option<usize>, named: Kwargs| {
        let width = width.map_or_else(|| named.get::<Option<usize>>("width"), |width| Ok(Some(width)))?;
        named.assert_all_used()?;
        methods::pad(state, text, "center", width.unwrap_or(80), " ")
    });
    environment.add_filter("trim", |state: &State, value: &Value, chars: Option<&str>, named: Kwargs| {
        let chars = chars.map_or_else(|| named.get::<Option<&str>>("chars"), |chars| Ok(Some(chars)))?;
        named.assert_all_used()?;
        let text = str(state, value)?;
        Ok::<_, Error>(match chars {
            Some(chars) => text.trim_matches(&chars.chars().collect::<Vec<_>>()[..]).to_string(),
            None => text.trim_matches(is_space).to_string(),
        })
    });
}

/// Filters of the engine, which take these arguments by name alone; Jinja2's by place, too.
fn add_filters_by_place(environment: &mut Environment) {
    environment.add_filter("sort", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        filters::sort(state, comparable(value)?, named(["reverse", "case_sensitive", "attribute"], args)?)
    });
    environment.add_filter("dictsort", |value: &Value, args: Rest<ValueOrKwargs>| {
        filters::dictsort(value, named(["case_sensitive", "by", "reverse"], args)?)
    });
    environment.add_filter("min", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        filters::min(state, comparable(value)?, named(["case_sensitive", "attribute"], args)?)
    });
    environment.add_filter("max", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        filters::max(state, comparable(value)?, named(["case_sensitive", "attribute"], args)?)
    });
    environment.add_filter("truncate", |state: &mut State, value: &Value, args: Rest<ValueOrKwargs>| {
        minijinja_contrib::filters::truncate(state, value, named(["length", "killwords", "end", "leeway"], args)?)
    });
}

/// Filters whose results are generators in Jinja2, and lists of the engine.
fn add_generators(environment: &mut Environment) {
    environment.add_filter("unique", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        let args = named(["case_sensitive", "attribute"], args)?;
        Generator::value(&filters::unique(state, iterable(value)?, args)?)
    });
    environment.add_filter("batch", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        let (value, args) = (iterable(value)?, named(["linecount", "fill_with"], args)?);
        Generator::value(&filters::batch(state, value, args.get("linecount")?, args.get("fill_with")?)?)
    });
    environment.add_filter("slice", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        let (value, args) = (iterable(value)?, named(["slices", "fill_with"], args)?);
        Generator::value(&filters::slice(state, value, args.get("slices")?, args.get("fill_with")?)?)
    });
    environment.add_filter("map", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        Generator::value(&Value::from(filters::map(state, value, args)?))
    });
    type Test<'a> = Option<Cow<'a, str>>;
    environment.add_filter("select", |state: &mut State, value: Value, test: Test, args: Rest<ValueOrKwargs>| {
        Generator::value(&Value::from(filters::select(state, value, test, args)?))
    });
    environment.add_filter("reject", |state: &mut State, value: Value, test: Test, args: Rest<ValueOrKwargs>| {
        Generator::value(&Value::from(filters::reject(state, value, test, args)?))
    });
    environment.add_filter(
        "selectattr",
        |state: &mut State, value: Value, name: Cow<str>, test: Test, args: Rest<ValueOrKwargs>| {
            Generator::value(&Value::from(filters::selectattr(state, value, name, test, args)?))
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &mut State, value: Value, name: Cow<str>, test: Test, args: Rest<ValueOrKwargs>| {
            Generator::value(&Value::from(filters::rejectattr(state, value, name, test, args)?))
        },
    );
    environment.add_filter("items", |value: &Value| Generator::value(&filters::items(value)?));
    environment.add_filter("reverse", |value: &Value| {
        let reversed = filters::reverse(value)?;
        // A generator cannot be reversed: Jinja2 makes it a list.
        let is_whole = value.kind() == ValueKind::String || Generator::is(value);
        if is_whole { Ok(reversed) } else { Generator::value(&reversed) }
    });
}

fn join(
    state: &mut State,
    items: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    named: Kwargs,
) -> Result<Value> {
    filters::join(state, &iterable(items.clone())?, joiner, attribute, named)
}

fn sum(state: &State, items: Value, attribute: Option<&str>, start: Option<Value>, named: Kwargs) -> Result<Value> {
    filters::sum(state, iterable(items)?, attribute, start, named)
}

/// An attribute, which the items of a dict are not.
fn attr(value: &Value, name: &str) -> Result<Value> {
    let of_engine = type_of_engine(value);
    let has_attributes = ["Namespace", "Loop", "Cycler"].iter().any(|known| of_engine.ends_with(known));
    match value.kind() {
        _ if has_attributes => value.get_attr(name),
        ValueKind::Map if !methods::OF_DICTS.contains(&name) => Ok(Value::UNDEFINED),
        kind => Err(wrong(format!("the filter attr is not supported for {name:?} of a {kind}"))),
    }
}

/// White space as Python's `str.strip` takes it.
fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\u{1c}'..='\u{1f}')
}

/// Arguments by their names, the first ones perhaps by place.
fn named<const N: usize>(names: [&'static str; N], args: Rest<ValueOrKwargs>) -> Result<Kwargs> {
    let args = args.into_values();
    let (places, by_name): (&[Value], Kwargs) = from_args(&args)?;
    if places.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut all: Vec<(&str, Value)> = names.into_iter().zip(places.iter().cloned()).collect();
    for name in by_name.args() {
        match names.iter().position(|known| *known == name) {
            Some(place) if place >= places.len() => all.push((names[place], by_name.peek(name)?)),
            Some(_) => return Err(wrong(format!("got multiple values for argument '{name}'"))),
            None => return Err(wrong(format!("got an unexpected keyword argument '{name}'"))),
        }
    }
    Ok(Kwargs::from_iter(all))
}

/// transformers' own: Jinja2's would escape HTML.
fn to_json(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<String> {
    let args = named(["ensure_ascii", "indent", "separators", "sort_keys"], args)?;
    let is_true = |name: &str| Ok::<_, Error>(args.get::<Option<Value>>(name)?.is_some_and(|value| value.is_true()));
    let indent = match args.get::<Option<Value>>("indent")? {
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_string),
        // A bool is 0 or 1, and what is below 0 is 0.
        Some(width) if width.kind() == ValueKind::Bool => Some(" ".repeat(usize::from(width.is_true()))),
        Some(width) => {
            let width = i64::try_from(width)?.max(0) as usize;
            state.consume_fuel((width / 64) as u64)?;
            Some(" ".repeat(width))
        }
        None => None,
    };
    let separators = match args.get::<Option<Value>>("separators")? {
        Some(pair) => Some((str(state, &pair.get_item_by_index(0)?)?, str(state, &pair.get_item_by_index(1)?)?)),
        None => None,
    };
    let style =
        JsonStyle { ensure_ascii: is_true("ensure_ascii")?, indent, separators, sort_keys: is_true("sort_keys")? };
    json(state, value, &style)
}

fn indent(state: &State, text: &str, args: Rest<ValueOrKwargs>) -> Result<String> {
    let args = named(["width", "first", "blank"], args)?;
    let is_true = |name: &str| Ok::<_, Error>(args.get::<Option<Value>>(name)?.is_some_and(|value| value.is_true()));
    let (first, blank) = (is_true("first")?, is_true("blank")?);
    let by = match args.get::<Option<Value>>("width")? {
        Some(text) if text.as_str().is_some() => str(state, &text)?,
        Some(width) => {
            let width = i64::try_from(width)?.max(0) as usize;
            state.consume_fuel((width / 64) as u64)?;
            " ".repeat(width)
        }
        None => "    ".to_string(),
    };
    let whole = text.to_string() + "\n";
    let lines = split_lines(&whole);
    state.consume_fuel((by.len().saturating_mul(lines.len()) / 64) as u64)?;
    let mut out = if first { by.clone() } else { String::new() };
    for (number, line) in lines.into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&by);
            }
        }
        out.push_str(line);
    }
    Ok(out)
}

fn int(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = named(["default", "base"], args)?;
    let default = args.get::<Option<Value>>("default")?.unwrap_or(Value::from(0));
    let base = args.get::<Option<u32>>("base")?.unwrap_or(10);
    let whole = |float: f64| float.is_finite().then(|| Value::from(float.trunc() as i128));
    let parsed = match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Some(value.clone()),
        ValueKind::Number => whole(value.clone().try_into()?),
        ValueKind::String => {
            let text = digits(value.as_str().unwrap_or_default());
            let sign = if text.starts_with('-') { -1 } else { 1 };
            let digits = text.trim_start_matches(['-', '+']).to_lowercase();
            let prefix = [(2, "0b"), (8, "0o"), (16, "0x")].into_iter().find(|(known, _)| *known == base);
            let digits = prefix.and_then(|(_, prefix)| digits.strip_prefix(prefix)).unwrap_or(&digits);
            let parsed = (2..=36).contains(&base).then(|| i128::from_str_radix(digits, base).ok()).flatten();
            let parsed = parsed.map(|number| Value::from(sign * number));
            parsed.or_else(|| text.parse().ok().and_then(whole))
        }
        _ => None,
    };
    Ok(parsed.unwrap_or(default))
}

fn float(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let default = named(["default"], args)?.get::<Option<Value>>("default")?.unwrap_or(Value::from(0.0));
    let parsed = match value.kind() {
        ValueKind::Bool => Some(Value::from(f64::from(u8::from(value.is_true())))),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Value::from),
        ValueKind::String => digits(value.as_str().unwrap_or_default()).parse::<f64>().ok().map(Value::from),
        _ => None,
    };
    Ok(parsed.unwrap_or(default))
}

/// A number's text as Python reads it: spaces around it and underscores between digits do not count.
fn digits(text: &str) -> String {
    let text = text.trim_matches(is_space);
    let is_separated = text.split('_').all(|part| !part.is_empty());
    if is_separated { text.replace('_', "") } else { text.to_string() }
}

fn default(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = named(["default_value", "boolean"], args)?;
    let is_lax = args.get::<Option<Value>>("boolean")?.is_some_and(|value| value.is_true());
    if value.is_undefined() || (is_lax && !value.is_true()) {
        let other = if args.has("default_value") { args.get("default_value")? } else { Value::from("") };
        return Ok(other);
    }
    Ok(value.clone())
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
