//! The valid range of a key.

use std::fmt;
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::ops::RangeBounds;

use serde_json::{Value, json};

/// An interval of numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    low: Bound<f64>,
    high: Bound<f64>,
}

impl Range {
    pub const ANY: Range = Range { low: Unbounded, high: Unbounded };

    pub const fn at_least(low: f64) -> Range {
        Range { low: Included(low), high: Unbounded }
    }

    pub const fn above(low: f64) -> Range {
        Range { low: Excluded(low), high: Unbounded }
    }

    pub const fn and_at_most(self, high: f64) -> Range {
        Range { high: Included(high), ..self }
    }

    pub const fn and_below(self, high: f64) -> Range {
        Range { high: Excluded(high), ..self }
    }

    pub fn contains(&self, x: f64) -> bool {
        (self.low, self.high).contains(&x)
    }

    /// Its text after the type in a table; empty for [`Range::ANY`].
    pub fn in_table(&self) -> String {
        match (self.low, self.high) {
            (Unbounded, Unbounded) => String::new(),
            (Excluded(low), Excluded(high)) => format!(" in ({low}, {high})"),
            (Included(low), Excluded(high)) => format!(" in [{low}, {high})"),
            (Excluded(low), Included(high)) => format!(" in ({low}, {high}]"),
            _ => format!(", {self}"),
        }
    }

    /// Adds the bounds to a JSON Schema.
    pub fn add_to(&self, schema: &mut Value) {
        let number = |x: f64| if x.fract() == 0.0 { json!(x as i64) } else { json!(x) };
        match self.low {
            Included(low) => schema["minimum"] = number(low),
            Excluded(low) => schema["exclusiveMinimum"] = number(low),
            Unbounded => {}
        }
        match self.high {
            Included(high) => schema["maximum"] = number(high),
            Excluded(high) => schema["exclusiveMaximum"] = number(high),
            Unbounded => {}
        }
    }
}

/// In the words of an error; nothing for [`Range::ANY`].
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (Unbounded, Unbounded) => Ok(()),
            (Included(low), Included(high)) => write!(f, "{low} to {high}"),
            (Excluded(low), Excluded(high)) => write!(f, "between {low} and {high}"),
            (Included(low), Unbounded) => write!(f, "at least {low}"),
            (Excluded(low), Unbounded) => write!(f, "above {low}"),
            (Unbounded, Included(high)) => write!(f, "at most {high}"),
            (Unbounded, Excluded(high)) => write!(f, "below {high}"),
            (Included(low), Excluded(high)) => write!(f, "at least {low} and below {high}"),
            (Excluded(low), Included(high)) => write!(f, "above {low} and at most {high}"),
        }
    }
}
