//! The fields of a request: each is read with its type and range, and an error names it. Unknown fields are ignored;
//! null is like a missing field.

use super::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Bytes of a text in [`Fields::texts`]: each is searched for at every token.
const LONGEST_TEXT: usize = 1024;

type Read<T> = Result<T, ApiError>;

/// The fields of an object.
pub(in crate::serve) struct Fields<'a>(&'a Map<String, Value>);

/// The object in a body.
pub(in crate::serve) fn parse(body: &[u8]) -> Read<Map<String, Value>> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::invalid("the body must be a JSON object")),
        Err(error) => Err(ApiError::invalid(format!("the body is not JSON: {error}"))),
    }
}

impl<'a> Fields<'a> {
    pub fn new(object: &'a Map<String, Value>) -> Fields<'a> {
        Fields(object)
    }

    /// A field that is there.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn read<T>(&self, name: &str, expected: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Read<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(name, expected, value))
    }

    pub fn text(&self, name: &str) -> Read<Option<&'a str>> {
        self.read(name, "a string", Value::as_str)
    }

    pub fn boolean(&self, name: &str) -> Read<Option<bool>> {
        self.read(name, "true or false", Value::as_bool)
    }

    /// A number within a range.
    pub fn number(&self, name: &str, range: RangeInclusive<f64>) -> Read<Option<f64>> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, &expected, |value| value.as_f64().filter(|number| range.contains(number)))
    }

    /// A whole number within a range, which may be written as 5.0.
    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Read<Option<i64>> {
        let expected = match *range.end() {
            i64::MAX => format!("an integer of {} or more", range.start()),
            end => format!("an integer from {} to {end}", range.start()),
        };
        self.read(name, &expected, |value| integer(value).filter(|number| range.contains(number)))
    }

    /// A string or a list of up to `most`, none of them empty or long.
    pub fn texts(&self, name: &str, most: usize) -> Read<Vec<String>> {
        let expected = format!("a string, or a list of up to {most} strings, each of 1 to {LONGEST_TEXT} bytes");
        let fits = |text: &&str| (1..=LONGEST_TEXT).contains(&text.len());
        let of = |value: &Value| value.as_str().filter(fits).map(String::from);
        let texts = self.read(name, &expected, |value| match value {
            Value::Array(all) if all.len() <= most => all.iter().map(of).collect(),
            one => of(one).map(|text| vec![text]),
        })?;
        Ok(texts.unwrap_or_default())
    }

    pub fn object(&self, name: &str) -> Read<Option<&'a Map<String, Value>>> {
        self.read(name, "an object", Value::as_object)
    }

    pub fn list(&self, name: &str) -> Read<Option<&'a Vec<Value>>> {
        self.read(name, "a list", Value::as_array)
    }

    /// Refuses a field that would change the answer, unless it has a value that asks for nothing.
    pub fn unsupported(&self, name: &str, is_nothing: impl FnOnce(&Value) -> bool) -> Read<()> {
        match self.get(name) {
            Some(value) if !is_nothing(value) => {
                Err(ApiError::field(name, format!("{name} is not supported yet; leave it out")))
            }
            _ => Ok(()),
        }
    }
}

/// A field with a value of another kind or outside its range.
pub(super) fn wrong(name: &str, expected: &str, got: &Value) -> ApiError {
    let mut shown = got.to_string();
    if shown.chars().count() > 60 {
        shown = shown.chars().take(60).chain("..".chars()).collect();
    }
    ApiError::field(name, format!("{name}: expected {expected}, got {shown}"))
}

/// A whole number, or a float without a fraction.
pub(super) fn integer(value: &Value) -> Option<i64> {
    let of_float = |float: f64| (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(of_float))
}

/// Token ids of a list, each below `vocabulary`.
pub(in crate::serve) fn token_ids(name: &str, list: &[Value], vocabulary: usize) -> Read<Vec<u32>> {
    let id = |value: &Value| {
        let id = integer(value).and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < vocabulary);
        id.ok_or_else(|| wrong(name, &format!("token ids below {vocabulary}"), value))
    };
    list.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn values_are_checked_by_type_and_range() {
        let object = object(json!({
            "x": 0.5, "n": 3.0, "null": null, "word": "a", "list": ["a", "b"], "half": 1.5, "empty": [""],
        }));
        let fields = Fields::new(&object);
        assert_eq!(fields.number("x", 0.0..=1.0), Ok(Some(0.5)));
        assert_eq!(fields.integer("n", 1..=i64::MAX), Ok(Some(3)));
        assert_eq!((fields.text("null"), fields.text("missing")), (Ok(None), Ok(None)));
        assert_eq!(fields.texts("list", 2).unwrap(), ["a", "b"]);
        assert_eq!(fields.texts("word", 2).unwrap(), ["a"]);
        let told = |error: ApiError| error.message;
        assert_eq!(told(fields.number("x", 1.0..=2.0).unwrap_err()), "x: expected a number from 1 to 2, got 0.5");
        assert!(told(fields.integer("half", 0..=9).unwrap_err()).contains("an integer from 0 to 9, got 1.5"));
        assert!(told(fields.text("n").unwrap_err()).contains("n: expected a string, got 3"));
        assert!(fields.texts("list", 1).is_err() && fields.texts("empty", 1).is_err());
        assert!(told(fields.unsupported("word", |_| false).unwrap_err()).contains("not supported yet"));
        assert_eq!(fields.unsupported("null", |_| false), Ok(()));
        assert_eq!(token_ids("prompt", &[json!(1), json!(2.0)], 3), Ok(vec![1, 2]));
        assert!(token_ids("prompt", &[json!(3)], 3).is_err() && token_ids("prompt", &[json!("1")], 3).is_err());
    }

    #[test]
    fn a_body_is_an_object() {
        assert!(parse(b"{\"a\": 1}").is_ok());
        for body in [&b""[..], b"[1]", b"{", b"\xff", b"null"] {
            assert_eq!(parse(body).unwrap_err().status, 400);
        }
    }
}
