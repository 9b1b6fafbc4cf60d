//! The list of keys: their types, parsing of their values, and suggestions for misspelled names.

use toml::Value;

use super::device_batch;
use super::devices::{self, Devices};
pub(super) use super::key_table::KEYS;
use super::range::Range;
use super::synonyms;

/// The type of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// A list of strings; comma-separated outside TOML.
    Texts,
    /// `true` or `false`.
    Flag,
    /// An integer that a GPU can index with, at most `u32::MAX`.
    Count,
    /// A count, or `auto`: [`Resolved::settle`](super::Resolved::settle) resolves it.
    CountOrAuto,
    /// [`DeviceBatch`](super::DeviceBatch); comma-separated numbers outside TOML.
    DeviceBatch,
    /// An integer of up to 63 bits, TOML's largest.
    Seed,
    /// A finite number in the range of f32, in which it is used.
    Real,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// [`Devices`].
    Device,
    /// A list of tables, each a [`GroupConfig`](super::GroupConfig).
    Groups,
}

/// The word for a count that is resolved later.
pub(super) const AUTO: &str = "auto";

/// One key of the schema.
#[derive(Debug)]
pub(super) struct Key {
    /// `section.key`.
    pub name: &'static str,
    pub kind: Kind,
    /// Valid range.
    pub range: Range,
    /// Description, a line of Markdown.
    pub help: &'static str,
}

/// Completions of `--set`: `section.key=`, with the key's words.
#[cfg(feature = "cli")]
pub(crate) fn completions_of_set() -> Vec<String> {
    let words = |key: &Key| match key.kind {
        Kind::Choice(words) => words.to_vec(),
        Kind::Flag => vec!["true", "false"],
        _ => vec![""],
    };
    KEYS.iter().flat_map(|key| words(key).into_iter().map(|word| format!("{}={word}", key.name))).collect()
}

/// The key for a flag name of other tools, or the only key with this name, and a placeholder for its value.
#[cfg(feature = "cli")]
pub(crate) fn key_for_flag(name: &str) -> Option<(&'static str, String)> {
    let last = name.replace('-', "_");
    let mut called_so = KEYS.iter().filter(|key| key.parts().1 == last);
    let name = match (called_so.next(), called_so.next()) {
        (Some(key), None) => key.name,
        _ => synonyms::key_of(&last)?,
    };
    let value = match KEYS.iter().find(|key| key.name == name)?.kind {
        Kind::Choice(words) => format!("<{}>", words.join("|")),
        Kind::Flag => "true".into(),
        _ => "<VALUE>".into(),
    };
    Some((name, value))
}

/// The sections, in the order of the schema.
pub(super) const SECTIONS: &[&str] = &[
    "run",
    "device",
    "data",
    "model",
    "lora",
    "train",
    "preference",
    "optimizer",
    "checkpoint",
    "guard",
    "log",
    "generate",
];

/// Former names of keys, and the current ones. They are read for one version, with a warning.
pub(super) const RENAMED_KEYS: &[(&str, &str)] = &[("device.f32_products", "device.matmul_f32")];

/// Other names of keys, for where people look for them. They are read as the key's own, without a warning.
pub(super) const OTHER_NAMES: &[(&str, &str)] = &[("train.precision", "device.precision")];

/// Deprecated values: key, old word, new word. They are read for one version, with a warning.
pub(super) const RENAMED_WORDS: &[(&str, &str, &str)] = &[("device.matmul_f32", "halves", "split-fp16")];

/// A key as somebody wrote it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub key: &'static Key,
    /// The deprecated name as written, if it is one.
    pub former: Option<&'static str>,
}

/// The key of that name, which may be a former one or another one.
pub(super) fn find(name: &str) -> Option<Named> {
    find_by(|key_name| key_name == name)
}

/// The key that this environment variable sets, by any of its names.
pub(super) fn find_variable(variable: &str) -> Option<Named> {
    find_by(|key_name| variable_of(key_name) == variable)
}

fn find_by(is_meant: impl Fn(&str) -> bool) -> Option<Named> {
    let by = |names: &'static [(&str, &str)]| names.iter().find(|(name, _)| is_meant(name));
    let former = by(RENAMED_KEYS);
    let named = |key| Named { key, former: former.map(|(former, _)| *former) };
    let other = former.or_else(|| by(OTHER_NAMES));
    let current = |key: &&Key| other.map_or_else(|| is_meant(key.name), |(_, name)| key.name == *name);
    KEYS.iter().find(current).map(named)
}

/// The new word for a deprecated value of a key; `None` if it is not deprecated.
pub fn current_word(key: &str, word: &str) -> Option<&'static str> {
    RENAMED_WORDS.iter().find(|(its_key, former, _)| *its_key == key && *former == word).map(|(_, _, current)| *current)
}

fn variable_of(key_name: &str) -> String {
    format!("RUSTYFLOW_{}", key_name.replace('.', "__").to_uppercase())
}

impl Key {
    /// The section and the key in it.
    pub(super) fn parts(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').expect("every name in KEYS has a dot")
    }

    /// The environment variable that sets it.
    pub(super) fn variable(&self) -> String {
        variable_of(self.name)
    }

    /// Parses literal text (a flag, a line of a `.env` file).
    pub(super) fn value_of_text(&self, text: &str) -> Value {
        let number = |text: &str| text.parse::<f64>().ok().map(Value::Float);
        match self.kind {
            Kind::Text | Kind::Choice(_) | Kind::Device => Value::String(text.into()),
            Kind::Texts => {
                if let (true, Ok(list @ Value::Array(_))) = (text.starts_with('['), text.parse()) {
                    return list;
                }
                let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
                Value::Array(texts.map(|text| Value::String(text.into())).collect())
            }
            Kind::DeviceBatch => match text.starts_with('[') {
                true => text.parse().unwrap_or_else(|_| Value::String(text.into())),
                false => {
                    let counts = text.split(',').map(|count| count.trim().parse().map(Value::Integer));
                    counts.collect::<Result<_, _>>().map_or_else(|_| Value::String(text.into()), Value::Array)
                }
            },
            Kind::Groups => text.parse().unwrap_or_else(|_| Value::String(text.into())),
            // TOML refuses `.5`, `1.` and `+.5e3`, which people type.
            Kind::Real => text.parse().ok().or_else(|| number(text)).unwrap_or_else(|| Value::String(text.into())),
            Kind::Flag | Kind::Count | Kind::CountOrAuto | Kind::Seed => {
                text.parse().unwrap_or_else(|_| Value::String(text.into()))
            }
        }
    }

    /// Parses text that may be TOML (`--set`, the environment): like [`value_of_text`](Self::value_of_text), but quotes
    /// around a text are removed.
    pub(super) fn value_of_toml(&self, text: &str) -> Value {
        if text.starts_with(['"', '\''])
            && let Ok(Value::String(inner)) = text.parse()
        {
            return self.value_of_text(&inner);
        }
        self.value_of_text(text)
    }
}

impl Kind {
    /// Converts a value to the key's type, or returns the expected and the actual type.
    pub(super) fn check(self, value: Value) -> Result<Value, String> {
        let refuse = |expected: &str, value: &Value| Err(format!("expected {expected}, got {}", describe(value)));
        match (self, value) {
            (Kind::Text, value @ Value::String(_)) => Ok(value),
            (Kind::Text, value) => refuse("a quoted string", &value),
            (Kind::Texts, Value::Array(texts)) if texts.iter().all(Value::is_str) => Ok(Value::Array(texts)),
            (Kind::Texts, value) => refuse("a list of strings, as in [\"*.md\", \"*.txt\"]", &value),
            (Kind::Flag, value @ Value::Boolean(_)) => Ok(value),
            (Kind::Flag, value) => refuse("true or false", &value),
            (Kind::Count, Value::Integer(n)) if (0..=i64::from(u32::MAX)).contains(&n) => Ok(Value::Integer(n)),
            (Kind::Count, value) => refuse("an integer from 0 to 4294967295", &value),
            (Kind::CountOrAuto, Value::String(word)) if word == AUTO => Ok(Value::String(word)),
            (Kind::CountOrAuto, value @ Value::Integer(_)) => Kind::Count.check(value),
            (Kind::CountOrAuto, value) => refuse("an integer from 0 to 4294967295 or \"auto\"", &value),
            (Kind::DeviceBatch, Value::String(word)) if word == "auto" => Ok(Value::String(word)),
            (Kind::DeviceBatch, Value::Array(counts))
                if counts.iter().all(|count| count.as_integer().is_some_and(|n| n > 0)) =>
            {
                Ok(Value::Array(counts))
            }
            (Kind::DeviceBatch, value) => refuse(device_batch::EXPECTED, &value),
            (Kind::Seed, Value::Integer(n)) if n >= 0 => Ok(Value::Integer(n)),
            (Kind::Seed, value) => refuse("an integer from 0 to 9223372036854775807", &value),
            (Kind::Real, Value::Integer(n)) => Ok(Value::Float(n as f64)),
            (Kind::Real, Value::Float(x)) if x.abs() <= f64::from(f32::MAX) => Ok(Value::Float(x)),
            (Kind::Real, value @ Value::Float(_)) => refuse("a finite number that fits in 32 bits", &value),
            (Kind::Real, value) => refuse("a number", &value),
            (Kind::Choice(choices), Value::String(word)) => match choices.contains(&word.as_str()) {
                true => Ok(Value::String(word)),
                false => refuse(&format!("one of {}", choices.join(", ")), &Value::String(word)),
            },
            (Kind::Choice(choices), value) => refuse(&format!("one of {}", choices.join(", ")), &value),
            (Kind::Device, Value::String(word)) => match word.parse::<Devices>() {
                Ok(devices) => Ok(Value::String(devices.to_string())),
                Err(_) => refuse(devices::EXPECTED, &Value::String(word)),
            },
            (Kind::Device, value) => refuse(devices::EXPECTED, &value),
            (Kind::Groups, Value::Array(groups)) => {
                let groups = groups
                    .into_iter()
                    .enumerate()
                    .map(|(i, group)| check_group(group).map_err(|message| format!("number {}: {message}", i + 1)));
                Ok(Value::Array(groups.collect::<Result<_, _>>()?))
            }
            (Kind::Groups, value) => refuse("tables under [[optimizer.group]]", &value),
        }
    }
}

/// Parses a [`GroupConfig`](super::GroupConfig) with defaults, or returns the error.
fn check_group(value: Value) -> Result<Value, String> {
    let Value::Table(mut group) = value else {
        return Err(format!("expected a table with the key match, got {}", describe(&value)));
    };
    if let Some(unknown) = group.keys().find(|key| !["match", "lr_scale", "weight_decay"].contains(&key.as_str())) {
        return Err(format!("unknown key {unknown}; the keys of a group are match, lr_scale, weight_decay"));
    }
    group.entry("lr_scale").or_insert(Value::Float(1.0));
    for name in ["lr_scale", "weight_decay"] {
        if let Some(value) = group.remove(name) {
            let value = Kind::Real.check(value).map_err(|message| format!("{name}: {message}"))?;
            group.insert(name.into(), value);
        }
    }
    match group.get("match") {
        Some(Value::String(_)) => Ok(Value::Table(group)),
        Some(value) => Err(format!("match: expected a quoted string, got {}", describe(value))),
        None => Err("match is missing: it says which parameters are in the group, as in match = \"*.wte*\"".into()),
    }
}

/// A short description of a value for error messages.
fn describe(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().count() > 60 => {
            format!("the text {:?}...", text.chars().take(60).collect::<String>())
        }
        Value::String(text) => format!("the text {text:?}"),
        Value::Integer(n) => n.to_string(),
        Value::Float(x) => format!("{x:?}"),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(date) => format!("the date {date}"),
        Value::Array(_) => "a list".into(),
        Value::Table(_) => "a table".into(),
    }
}

/// The message about a name that no key has: the key that was probably meant, or what there is.
/// `spell` writes a key's name the way that the place of the error writes it.
pub(super) fn unknown_key(name: &str, spell: impl Fn(&Key) -> String) -> String {
    let (section, last) = name.split_once('.').unwrap_or(("", name));
    let closeness = |key: &&Key| {
        let (its_section, its_last) = key.parts();
        let key_score = similarity(last, its_last);
        (key_score >= CLOSE).then_some(2.0 * key_score + similarity(section, its_section))
    };
    // In a section that is no misspelling of another, the name may be that of several keys.
    let is_section = SECTIONS.contains(&section) || section.is_empty();
    let same: Vec<String> = KEYS.iter().filter(|key| key.parts().1 == last).map(&spell).collect();
    if is_section && same.len() > 1 {
        return format!("unknown key, did you mean `{}`?", same.join("` or `"));
    }
    if let Some(key) = synonyms::key_of(last).and_then(|name| KEYS.iter().find(|key| key.name == name)) {
        return format!("unknown key, did you mean `{}`?", spell(key));
    }
    let scored = KEYS.iter().filter_map(|key| closeness(&key).map(|score| (score, key)));
    // The first of equals, so that the answer does not depend on how a maximum breaks ties.
    let nearest = scored.reduce(|best, next| if next.0 > best.0 { next } else { best });
    if let Some((_, key)) = nearest {
        return format!("unknown key, did you mean `{}`?", spell(key));
    }
    let in_section: Vec<_> = KEYS.iter().map(Key::parts).filter(|parts| parts.0 == section).map(|p| p.1).collect();
    if in_section.is_empty() {
        format!("unknown key; the sections are {}", SECTIONS.join(", "))
    } else {
        format!("unknown key; the keys of [{section}] are {}", in_section.join(", "))
    }
}

/// The message about a section that does not exist.
pub(super) fn unknown_section(name: &str) -> String {
    match nearest(name, SECTIONS.iter().copied()) {
        Some(section) => format!("unknown section, did you mean [{section}]?"),
        None => format!("unknown section; the sections are {}", SECTIONS.join(", ")),
    }
}

/// The closest candidate to a misspelled word, if any is close.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.map(|candidate| (similarity(word, candidate), candidate));
    let best = scored.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.filter(|(score, _)| *score >= CLOSE).map(|(_, candidate)| candidate)
}

/// The similarity from which a name is worth suggesting. Half of the letters are too few: `bar` is as near to `bias`.
const CLOSE: f64 = 0.6;

/// 1 for the same word, 0 for unrelated ones. A part of a word (`batch` for `batch_size`), and one in the plural
/// (`layers` for `n_layer`), is close as well.
fn similarity(left: &str, right: &str) -> f64 {
    let (left, right) = (left.to_lowercase(), right.to_lowercase());
    // The edit distance is quadratic; nothing this long is a misspelling.
    if left.len() > 100 {
        return 0.0;
    }
    let (shorter, longer) = if left.len() < right.len() { (&left, &right) } else { (&right, &left) };
    let singular = shorter.strip_suffix('s').unwrap_or(shorter);
    let part = match singular.len() >= 3 && longer.contains(singular) {
        true => CLOSE + (1.0 - CLOSE) * singular.len() as f64 / longer.len() as f64,
        false => 0.0,
    };
    strsim::normalized_damerau_levenshtein(&left, &right).max(part)
}
