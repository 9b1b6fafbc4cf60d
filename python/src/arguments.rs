//! Arguments that PyTorch takes in several forms: shapes, dimensions, types of elements.

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustyflow::{DType, Shape};

/// Whole numbers that were given one by one, `x.reshape(2, 3)`, or as one sequence, `x.reshape((2, 3))`.
pub fn integers(given: &Bound<PyTuple>) -> PyResult<Vec<i64>> {
    if given.len() == 1 {
        let only = given.get_item(0)?;
        return only.extract::<i64>().map(|number| vec![number]).or_else(|_| only.extract::<Vec<i64>>());
    }
    given.extract()
}

/// A shape as it was given, of lengths that are at least 0.
pub fn shape(given: &[i64]) -> PyResult<Shape> {
    let length = |&length: &i64| {
        usize::try_from(length).map_err(|_| PyValueError::new_err(format!("a length must be at least 0, not {length}")))
    };
    given.iter().map(length).collect::<PyResult<Vec<_>>>().map(Shape::from)
}

/// A shape in which one length may be -1: what the number of elements leaves for it.
pub fn shape_of(given: &[i64], elements: usize) -> PyResult<Shape> {
    let Some(open) = given.iter().position(|&length| length == -1) else { return shape(given) };
    let mut lengths = given.to_vec();
    lengths[open] = 1;
    let others = shape(&lengths)?.elements();
    if others == 0 || !elements.is_multiple_of(others) {
        let message = format!("reshape: {elements} elements do not fill {given:?}");
        return Err(PyValueError::new_err(message));
    }
    lengths[open] = (elements / others) as i64;
    shape(&lengths)
}

/// The dimension of this number in a tensor of `rank` dimensions; -1 is the last.
pub fn dim(number: i64, rank: usize) -> PyResult<usize> {
    let counted = if number < 0 { number + rank as i64 } else { number };
    if (0..rank as i64).contains(&counted) {
        return Ok(counted as usize);
    }
    Err(PyIndexError::new_err(format!("there is no dimension {number} in a tensor of {rank} dimensions")))
}

/// The dimensions that `None` (all), a number or a sequence of numbers mean.
pub fn dims(given: Option<&Bound<PyAny>>, rank: usize) -> PyResult<Vec<usize>> {
    let Some(given) = given else { return Ok((0..rank).collect()) };
    let numbers = given.extract::<i64>().map(|number| vec![number]).or_else(|_| given.extract::<Vec<i64>>())?;
    numbers.into_iter().map(|number| dim(number, rank)).collect()
}

/// A type of elements by the name that it has here, in NumPy or in PyTorch.
pub fn dtype(name: &str) -> PyResult<DType> {
    match name {
        "f32" | "float32" => Ok(DType::F32),
        "f16" | "float16" => Ok(DType::F16),
        "u32" | "uint32" => Ok(DType::U32),
        _ => Err(PyTypeError::new_err(format!(
            "{name:?} is no type of elements; there are \"f32\", \"f16\" and \"u32\""
        ))),
    }
}

/// One number for height and width, or a pair.
#[derive(Clone, Copy)]
pub struct Pair(pub [usize; 2]);

impl Pair {
    pub const ZERO: Pair = Pair([0; 2]);
    pub const ONE: Pair = Pair([1; 2]);
}

impl<'py> FromPyObject<'_, 'py> for Pair {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Pair> {
        given.extract::<usize>().map(|number| Pair([number; 2])).or_else(|_| given.extract().map(Pair))
    }
}
