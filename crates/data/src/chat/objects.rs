//! Objects of Python and of Jinja2 that the engine lacks, or prints otherwise.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// The result of a dict's `keys()`, `values()` and `items()`.
#[derive(Debug)]
pub(super) struct DictView {
    /// `dict_keys` and so on, as it is printed.
    pub name: &'static str,
    pub items: Vec<Value>,
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.items.is_empty()
    }
}

/// The result of `map`, `select`, `batch` and other filters: its items come once, it is true even without any, and it
/// has no length.
#[derive(Debug)]
pub(super) struct Generator {
    left: Mutex<VecDeque<Value>>,
}

impl Generator {
    /// # Errors
    /// If `items` cannot be iterated over.
    pub fn value(items: &Value) -> Result<Value, Error> {
        Ok(Value::from_object(Generator { left: Mutex::new(items.try_iter()?.collect()) }))
    }

    pub fn is(value: &Value) -> bool {
        value.downcast_object_ref::<Generator>().is_some()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    /// None by place: the engine would count items.
    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(Value::UNDEFINED)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let generator = self.clone();
        let next = move || generator.left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        Enumerator::Iter(Box::new(std::iter::from_fn(next)))
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// Python's `range`.
#[derive(Debug)]
pub(super) struct Range {
    start: i64,
    stop: i64,
    step: i64,
}

impl Range {
    /// The most that Jinja2's sandbox makes.
    const MOST: usize = 100_000;

    /// # Errors
    /// If the step is 0, or there are too many numbers.
    pub fn value(first: i64, stop: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
        let wrong = |message: &str| Error::new(ErrorKind::InvalidOperation, message.to_string());
        let (start, stop) = stop.map_or((0, first), |stop| (first, stop));
        let range = Range { start, stop, step: step.unwrap_or(1) };
        if range.step == 0 {
            return Err(wrong("range: the step must not be zero"));
        }
        if range.len() > Range::MOST {
            return Err(wrong(&format!("range: more than {} numbers", Range::MOST)));
        }
        Ok(Value::from_object(range))
    }

    fn len(&self) -> usize {
        let [start, stop, step] = [self.start, self.stop, self.step].map(i128::from);
        let distance = if step > 0 { stop - start } else { start - stop };
        let steps = (distance + step.abs() - 1) / step.abs();
        usize::try_from(steps.max(0)).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "range({}, {})", self.start, self.stop),
            step => write!(f, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let place = key.as_usize().filter(|place| *place < self.len())?;
        Some(Value::from(self.start + place as i64 * self.step))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len())
    }
}

/// Jinja2's `cycler`.
#[derive(Debug)]
pub(super) struct Cycler {
    items: Vec<Value>,
    place: AtomicUsize,
}

impl Cycler {
    /// # Errors
    /// If there are no items.
    pub fn value(items: Vec<Value>) -> Result<Value, Error> {
        if items.is_empty() {
            return Err(Error::new(ErrorKind::InvalidOperation, "cycler: at least one item has to be provided"));
        }
        Ok(Value::from_object(Cycler { items, place: AtomicUsize::new(0) }))
    }

    fn current(&self) -> Value {
        self.items[self.place.load(Ordering::Relaxed)].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(self: &Arc<Self>, _: &mut State, method: &str, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        match method {
            "next" => {
                let current = self.current();
                let next = (self.place.load(Ordering::Relaxed) + 1) % self.items.len();
                self.place.store(next, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.place.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<jinja2.utils.Cycler object>")
    }
}
