//! `x[...]` and `x[...] = y`: whole numbers, slices, `None`, `...`, tensors or lists of ids, and masks.

use crate::arguments::dim as dim_of;
use crate::convert::{numpy, of_array};
use crate::errors::OrRaise;
use crate::operators::Operand;
use crate::tensor::{PyTensor, cast};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PyInt, PyList, PySlice, PyTuple};
use rustyflow::{DType, Device, Error, Tensor};

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
    /// `x[0]`, `x[:, 1:5:2]`, `x[..., None]`, `x[ids]`; `x[rows, columns]` of two tensors of ids; and `x[x > 0]`, where
    /// a mask (f32, or of bools) is not 0. Copies.
    fn __getitem__(&self, py: Python, index: &Bound<PyAny>) -> PyResult<PyTensor> {
        get(py, &self.get(), index).map(PyTensor::new)
    }

    /// `x[index] = value`, of a number or of what has the shape of `x[index]` or is repeated to it. From then on the
    /// object stands for a tensor with these elements, through which gradients flow to `value` and to what stays. A
    /// leaf that requires a gradient is written where it is, and only within `no_grad`. Of an element that is named
    /// twice the last value stays.
    fn __setitem__(&self, py: Python, index: &Bound<PyAny>, value: Operand) -> PyResult<()> {
        let x = self.get();
        let count = u32::try_from(x.len()).map_err(|_| PyValueError::new_err("more than 2^32 elements"))?;
        let all = Tensor::from_u32(&(0..count).collect::<Vec<_>>(), x.shape().clone(), &Device::Cpu).or_raise()?;
        let places = get(py, &all, index)?;
        let value = value.beside(&x)?;
        let result = py.detach(|| assign(&x, &places, &value)).or_raise()?;
        self.become_(py, &PyTensor::new(result))
    }
}

/// `x[index]`.
fn get(py: Python, x: &Tensor, index: &Bound<PyAny>) -> PyResult<Tensor> {
    if let Some(mask) = mask(index)? {
        return py.detach(|| masked(x, &mask)).or_raise_index();
    }
    let given: Vec<Bound<PyAny>> = match index.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![index.clone()],
    };
    let parts = parts(&given, x)?;
    let ids = parts.iter().filter(|part| matches!(part, Part::Ids(_))).count();
    if ids > 1 {
        return pairs(py, x, parts);
    }
    py.detach(|| apply(x.clone(), parts)).or_raise_index()
}

/// The mask that an index is: a tensor of f32, or what NumPy makes an array of bools of.
fn mask(index: &Bound<PyAny>) -> PyResult<Option<Tensor>> {
    if let Ok(tensor) = index.cast::<PyTensor>() {
        let tensor = tensor.get().get();
        return Ok((tensor.dtype() == DType::F32).then_some(tensor));
    }
    if !(index.is_instance_of::<PyList>() || index.hasattr("dtype")?) {
        return Ok(None);
    }
    let array = numpy(index.py())?.call_method1("asarray", (index,))?;
    let is_mask = array.getattr("dtype")?.getattr("kind")?.extract::<char>()? == 'b';
    is_mask.then(|| of_array(&array, None, &Device::Cpu)).transpose()
}

/// The elements, or rows, of x where a mask of its first dimensions is not 0: (n, ...).
fn masked(x: &Tensor, mask: &Tensor) -> Result<Tensor, Failed> {
    let rank = mask.shape().len();
    if x.shape().get(..rank) != Some(&mask.shape()[..]) {
        let message =
            format!("a mask has the first dimensions of what it chooses from, {}, not {}", x.shape(), mask.shape());
        return Err(Failed::Outside(message));
    }
    let marked = mask.to_f32()?.into_iter().zip(0..).filter(|(mark, _)| *mark != 0.0);
    let places: Vec<u32> = marked.map(|(_, place)| place).collect();
    let ids = Tensor::from_u32(&places, [places.len()], &x.device())?;
    select(&x.reshape([&[mask.len()], &x.shape()[rank..]].concat())?, 0, &ids)
}

/// x with `value` at these places, of its elements counted in order.
fn assign(x: &Tensor, places: &Tensor, value: &Tensor) -> rustyflow::Result<Tensor> {
    let value = cast(value, x.dtype())?;
    let fits = |_| Error::Shape {
        op: "index assignment",
        expected: format!("a number, or what repeats to {}", places.shape()),
        got: value.shape().to_string(),
    };
    let value = value.expand(places.shape().clone()).map_err(fits)?;
    let places = places.to_u32()?;
    if x.dtype() == DType::U32 {
        let mut ids = x.to_u32()?;
        places.into_iter().zip(value.to_u32()?).for_each(|(place, id)| ids[place as usize] = id);
        return Tensor::from_u32(&ids, x.shape().clone(), &x.device());
    }
    if places.is_empty() {
        return Ok(x.clone());
    }
    let (mut is_written, mut source) = (vec![0.0; x.len()], vec![0; x.len()]);
    for (place, number) in places.iter().zip(0..) {
        is_written[*place as usize] = 1.0;
        source[*place as usize] = number;
    }
    let is_written = Tensor::from_f32(&is_written, x.shape().clone(), &x.device())?;
    let source = Tensor::from_u32(&source, [x.len()], &x.device())?;
    let written = value.reshape([places.len()])?.index_select(0, &source)?.reshape(x.shape().clone())?;
    is_written.where_cond(&written, x)
}

/// The rows of `dim` that `ids` (n) name, also of ids.
fn select(x: &Tensor, dim: usize, ids: &Tensor) -> Result<Tensor, Failed> {
    if x.dtype() != DType::U32 {
        return Ok(x.index_select(dim, ids)?);
    }
    let (length, inner) = (x.shape()[dim], x.shape()[dim + 1..].iter().product::<usize>());
    let (values, rows) = (x.to_u32()?, ids.to_u32()?);
    if let Some(row) = rows.iter().find(|row| **row as usize >= length) {
        return Err(Failed::Outside(format!("index {row} is outside of a dimension of length {length}")));
    }
    let mut selected = Vec::new();
    for outer in values.chunks((length * inner).max(1)) {
        rows.iter().for_each(|row| selected.extend_from_slice(&outer[*row as usize * inner..][..inner]));
    }
    let shape = [&x.shape()[..dim], &[rows.len()], &x.shape()[dim + 1..]].concat();
    Ok(Tensor::from_u32(&selected, shape, &x.device())?)
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
        Ok(ids) => ids.get().get().to_device(&x.device()).or_raise()?,
        Err(_) => ids_of(part, length, x)?,
    };
    if ids.dtype() != DType::U32 {
        let message = format!("a tensor is indexed by ids of u32, or by one mask alone, not by {}", ids.dtype().name());
        return Err(PyTypeError::new_err(message));
    }
    Ok(Part::Ids(ids))
}

/// A list or an array of whole numbers, those below 0 counted from the end.
fn ids_of(part: &Bound<PyAny>, length: usize, x: &Tensor) -> PyResult<Tensor> {
    let array = numpy(part.py())?.call_method1("asarray", (part,))?;
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
    Library(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Library(error)
    }
}

trait OrRaiseIndex {
    fn or_raise_index(self) -> PyResult<Tensor>;
}

impl OrRaiseIndex for Result<Tensor, Failed> {
    fn or_raise_index(self) -> PyResult<Tensor> {
        self.map_err(|failed| match failed {
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
                x = match (dim, x.shape().len(), x.dtype()) {
                    (0, 2, DType::F32) => {
                        let rows = x.embedding(&ids.reshape([ids.len()])?)?;
                        rows.reshape([ids.len(), x.shape()[1]])?
                    }
                    _ => select(&x, dim, &ids.reshape([ids.len()])?)?,
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
fn pairs(py: Python, x: &Tensor, parts: Vec<Part>) -> PyResult<Tensor> {
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
            return Err(Error::Shape { op: "index", expected, got });
        }
        let (rows_of, columns_of) = (rows.to_u32()?, columns.to_u32()?);
        Ok(rows_of.into_iter().zip(columns_of).collect::<Vec<_>>())
    });
    let flat = flat.or_raise()?;
    if let Some((row, column)) = flat.iter().find(|(row, column)| *row as usize >= n || *column as usize >= m) {
        return Err(PyIndexError::new_err(format!("({row}, {column}) is outside of a tensor of {}", x.shape())));
    }
    let ids: Vec<u32> = flat.iter().map(|(row, column)| row * m as u32 + column).collect();
    let apply = || {
        let rest = &x.shape()[2..];
        let ids = Tensor::from_u32(&ids, [ids.len()], &x.device())?;
        let y = select(&x.reshape([&[n * m], rest].concat())?, 0, &ids)?;
        Ok(y.reshape([&rows.shape()[..], rest].concat())?)
    };
    py.detach(apply).or_raise_index()
}
