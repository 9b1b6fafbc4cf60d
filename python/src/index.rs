//! `x[...]`: whole numbers, slices, `None`, `...`, and tensors or lists of ids.

use crate::arguments::dim as dim_of;
use crate::convert::of_array;
use crate::errors::OrRaise;
use crate::tensor::PyTensor;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PyInt, PySlice, PyTuple};
use rustyflow::{DType, Tensor};

/// One part of an index.
enum Part {
    /// One element, whose dimension goes.
    At(i64),
    Slice {
        start: usize,
        stop: usize,
        step: usize,
    },
    /// A new dimension of length 1.
    New,
    /// Ids, each of them the number of an element.
    Ids(Tensor),
}

#[pymethods]
impl PyTensor {
    /// `x[0]`, `x[:, 1:5:2]`, `x[..., None]`, `x[ids]`; and `x[rows, columns]` of two tensors of ids. Copies.
    fn __getitem__(&self, py: Python, index: &Bound<PyAny>) -> PyResult<PyTensor> {
        let x = self.get();
        let given: Vec<Bound<PyAny>> = match index.cast::<PyTuple>() {
            Ok(tuple) => tuple.iter().collect(),
            Err(_) => vec![index.clone()],
        };
        let parts = parts(&given, &x)?;
        let ids = parts.iter().filter(|part| matches!(part, Part::Ids(_))).count();
        if ids > 1 {
            return pairs(py, &x, parts);
        }
        py.detach(|| apply(x, parts)).or_raise_index()
    }

    fn __setitem__(&self, _index: &Bound<PyAny>, _value: &Bound<PyAny>) -> PyResult<()> {
        Err(PyTensor::refuse_assignment())
    }
}

/// The parts of an index, `...` replaced by slices of the whole.
fn parts(given: &[Bound<PyAny>], x: &Tensor) -> PyResult<Vec<Part>> {
    let is_ellipsis = |part: &Bound<PyAny>| part.is_instance_of::<PyEllipsis>();
    let takes = given.iter().filter(|part| !part.is_none() && !is_ellipsis(part)).count();
    let rank = x.shape().len();
    if takes > rank {
        let message = format!("{takes} indices are too many for a tensor of {rank} dimensions");
        return Err(PyIndexError::new_err(message));
    }
    let (mut parts, mut dim, mut seen) = (Vec::new(), 0, false);
    for part in given {
        if part.is_none() {
            parts.push(Part::New);
        } else if is_ellipsis(part) {
            if std::mem::replace(&mut seen, true) {
                return Err(PyIndexError::new_err("an index has at most one ..."));
            }
            for length in &x.shape()[dim..dim + rank - takes] {
                parts.push(Part::Slice { start: 0, stop: *length, step: 1 });
            }
            dim += rank - takes;
        } else {
            parts.push(one(part, x.shape()[dim], x)?);
            dim += 1;
        }
    }
    Ok(parts)
}

/// A part that takes one dimension, of this length.
fn one(part: &Bound<PyAny>, length: usize, x: &Tensor) -> PyResult<Part> {
    if let Ok(slice) = part.cast::<PySlice>() {
        let slice = slice.indices(length as isize)?;
        if slice.step < 0 {
            return Err(PyValueError::new_err("a slice of a tensor goes forward; use flip()"));
        }
        let start = slice.start as usize;
        return Ok(Part::Slice { start, stop: (slice.stop as usize).max(start), step: slice.step as usize });
    }
    if part.is_instance_of::<pyo3::types::PyBool>() {
        return Err(PyTypeError::new_err("a tensor is not indexed by truth values; use where()"));
    }
    if part.is_instance_of::<PyInt>() {
        return Ok(Part::At(part.extract()?));
    }
    let ids = match part.cast::<PyTensor>() {
        Ok(ids) => ids.get().get(),
        Err(_) => ids_of(part, length, x)?,
    };
    if ids.dtype() != DType::U32 {
        return Err(PyTypeError::new_err(format!("a tensor is indexed by ids of u32, not by {}", ids.dtype().name())));
    }
    Ok(Part::Ids(ids))
}

/// A list or an array of whole numbers, those below 0 counted from the end.
fn ids_of(part: &Bound<PyAny>, length: usize, x: &Tensor) -> PyResult<Tensor> {
    let array = crate::convert::numpy(part.py())?.call_method1("asarray", (part,))?;
    let kind: char = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let empty = array.getattr("size")?.extract::<usize>()? == 0;
    if !(kind == 'i' || kind == 'u' || empty) {
        return Err(PyTypeError::new_err(format!("{} does not index a tensor", part.get_type().name()?)));
    }
    if !empty {
        let [least, most] = ["min", "max"].map(|end| array.call_method0(end)?.call_method0("item")?.extract::<i64>());
        let (least, most) = (least?, most?);
        if least < -(length as i64) || most >= length as i64 {
            let message = format!("indices from {least} to {most} are not all within a length of {length}");
            return Err(PyIndexError::new_err(message));
        }
    }
    let array = array.call_method1("astype", ("i8",))?;
    let array = if length > 0 { array.call_method1("__mod__", (length,))? } else { array };
    of_array(&array, Some(DType::U32), &x.device())
}

/// A place counted from the end if it is below 0.
fn place(index: i64, length: usize) -> Result<usize, Failed> {
    let counted = if index < 0 { index + length as i64 } else { index };
    match usize::try_from(counted) {
        Ok(place) if place < length => Ok(place),
        _ => Err(Failed::Outside(format!("index {index} is outside of a dimension of length {length}"))),
    }
}

/// Why an index gives nothing.
enum Failed {
    Outside(String),
    Library(rustyflow::Error),
}

impl From<rustyflow::Error> for Failed {
    fn from(error: rustyflow::Error) -> Failed {
        Failed::Library(error)
    }
}

trait OrRaiseIndex {
    fn or_raise_index(self) -> PyResult<PyTensor>;
}

impl OrRaiseIndex for Result<Tensor, Failed> {
    fn or_raise_index(self) -> PyResult<PyTensor> {
        self.map(PyTensor::new).map_err(|failed| match failed {
            Failed::Outside(message) => PyIndexError::new_err(message),
            Failed::Library(error) => crate::errors::exception(error),
        })
    }
}

fn apply(mut x: Tensor, parts: Vec<Part>) -> Result<Tensor, Failed> {
    // Of x the dimension that the next part takes, and the shape of the result so far.
    let (mut dim, mut shape) = (0, Vec::new());
    for part in parts {
        match part {
            Part::New => shape.push(1),
            Part::At(index) => {
                let place = place(index, x.shape()[dim])?;
                x = if x.shape()[dim] == 1 { x } else { x.narrow(dim, place, 1)? };
                dim += 1;
            }
            Part::Slice { start, stop, step } => {
                if (start, step) != (0, 1) || stop < x.shape()[dim] {
                    x = x.slice(dim, start..stop, step)?;
                }
                shape.push(x.shape()[dim]);
                dim += 1;
            }
            Part::Ids(ids) => {
                x = match (dim, x.shape().len()) {
                    (0, 2) => {
                        let rows = x.embedding(&ids.reshape([ids.len()])?)?;
                        rows.reshape([ids.len(), x.shape()[1]])?
                    }
                    _ => x.index_select(dim, &ids.reshape([ids.len()])?)?,
                };
                shape.extend(ids.shape().iter());
                dim += 1;
            }
        }
    }
    shape.extend(&x.shape()[dim..]);
    if x.shape()[..] == shape[..] { Ok(x) } else { Ok(x.reshape(shape)?) }
}

/// `x[rows, columns]`: the elements at pairs of ids in the first two dimensions.
fn pairs(py: Python, x: &Tensor, parts: Vec<Part>) -> PyResult<PyTensor> {
    let mut parts = parts.into_iter();
    let (Some(Part::Ids(rows)), Some(Part::Ids(columns))) = (parts.next(), parts.next()) else {
        return Err(PyIndexError::new_err("two tensors of ids index the first two dimensions"));
    };
    let is_whole = |(i, part): (usize, Part)| match part {
        Part::Slice { start: 0, stop, step: 1 } => x.shape().get(i + 2) == Some(&stop),
        _ => false,
    };
    if !parts.enumerate().all(is_whole) {
        return Err(PyIndexError::new_err("after two tensors of ids an index has whole dimensions alone"));
    }
    let (n, m) = (x.shape()[0], x.shape()[dim_of(1, x.shape().len())?]);
    let flat = py.detach(|| {
        if rows.shape() != columns.shape() {
            let (expected, got) = (rows.shape().to_string(), columns.shape().to_string());
            return Err(rustyflow::Error::Shape { op: "index", expected, got });
        }
        let (rows_of, columns_of) = (rows.to_u32()?, columns.to_u32()?);
        Ok(rows_of.into_iter().zip(columns_of).collect::<Vec<_>>())
    });
    let flat = flat.or_raise()?;
    if let Some((row, column)) = flat.iter().find(|(row, column)| *row as usize >= n || *column as usize >= m) {
        return Err(PyIndexError::new_err(format!("({row}, {column}) is outside of a tensor of {}", x.shape())));
    }
    let ids: Vec<u32> = flat.iter().map(|(row, column)| row * m as u32 + column).collect();
    let apply = || -> rustyflow::Result<Tensor> {
        let rest = &x.shape()[2..];
        let ids = Tensor::from_u32(&ids, [ids.len()], &x.device())?;
        let y = x.reshape([&[n * m], rest].concat())?.index_select(0, &ids)?;
        y.reshape([&rows.shape()[..], rest].concat())
    };
    py.detach(apply).map(PyTensor::new).or_raise()
}
