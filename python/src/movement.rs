//! Methods of `Tensor` that change its shape or choose of its elements.

use crate::arguments::{dim as dim_of, dims as dims_of, integers, shape_of};
use crate::errors::OrRaise;
use crate::tensor::{PyTensor, compute};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustyflow::Tensor;

impl PyTensor {
    fn reshaped(&self, py: Python, shape: Vec<usize>) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.reshape(shape))
    }
}

#[pymethods]
impl PyTensor {
    /// The same elements in another shape: `x.reshape(2, -1)`.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, py: Python, shape: &Bound<PyTuple>) -> PyResult<PyTensor> {
        let x = self.get();
        let shape = shape_of(&integers(shape)?, x.len())?;
        compute(py, || x.reshape(shape))
    }

    /// The same as `reshape`.
    #[pyo3(signature = (*shape))]
    fn view(&self, py: Python, shape: &Bound<PyTuple>) -> PyResult<PyTensor> {
        self.reshape(py, shape)
    }

    /// Joins the dimensions from `start_dim` to `end_dim`.
    #[pyo3(signature = (start_dim = 0, end_dim = -1))]
    fn flatten(&self, py: Python, start_dim: i64, end_dim: i64) -> PyResult<PyTensor> {
        let x = self.get();
        let shape = x.shape();
        if shape.is_empty() {
            return self.reshaped(py, vec![1]);
        }
        let (start, end) = (dim_of(start_dim, shape.len())?, dim_of(end_dim, shape.len())?);
        if start > end {
            return Err(PyValueError::new_err(format!("flatten: dimension {start_dim} comes after {end_dim}")));
        }
        let joined = shape[start..=end].iter().fold(1, |product: usize, length| product.wrapping_mul(*length));
        self.reshaped(py, [&shape[..start], &[joined], &shape[end + 1..]].concat())
    }

    /// A dimension of length 1 before dimension `dim`.
    fn unsqueeze(&self, py: Python, dim: i64) -> PyResult<PyTensor> {
        let mut shape = self.get().shape().to_vec();
        shape.insert(dim_of(dim, shape.len() + 1)?, 1);
        self.reshaped(py, shape)
    }

    /// Without dimensions of length 1: all of them, or those of `dim` that are.
    #[pyo3(signature = (dim = None))]
    fn squeeze(&self, py: Python, dim: Option<&Bound<PyAny>>) -> PyResult<PyTensor> {
        let x = self.get();
        let named = dims_of(dim, x.shape().len())?;
        let stays = |(number, length): &(usize, &usize)| **length != 1 || !named.contains(number);
        let shape = x.shape().iter().enumerate().filter(stays).map(|(_, length)| *length).collect();
        self.reshaped(py, shape)
    }

    /// The dimensions in another order: (B, T, H, D).permute(0, 2, 1, 3) is (B, H, T, D). Copies.
    #[pyo3(signature = (*dims))]
    fn permute(&self, py: Python, dims: &Bound<PyTuple>) -> PyResult<PyTensor> {
        let x = self.get();
        let dims = integers(dims)?.into_iter().map(|dim| dim_of(dim, x.shape().len())).collect::<PyResult<Vec<_>>>()?;
        compute(py, || x.permute(&dims))
    }

    /// Two dimensions exchanged. Copies.
    fn transpose(&self, py: Python, dim0: i64, dim1: i64) -> PyResult<PyTensor> {
        let x = self.get();
        let rank = x.shape().len();
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(dim_of(dim0, rank)?, dim_of(dim1, rank)?);
        compute(py, || x.permute(&order))
    }

    /// (N, M) as (M, N). Copies.
    #[getter]
    #[pyo3(name = "T")]
    fn transposed(&self, py: Python) -> PyResult<PyTensor> {
        match self.ndim_of() {
            2 => self.transpose(py, 0, 1),
            rank => Err(PyValueError::new_err(format!("T: expected a matrix, got {rank} dimensions; use permute"))),
        }
    }

    /// The last two dimensions exchanged. Copies.
    #[getter]
    #[pyo3(name = "mT")]
    fn matrices_transposed(&self, py: Python) -> PyResult<PyTensor> {
        self.transpose(py, -2, -1)
    }

    /// `length` elements of dimension `dim` from `start` on. Copies.
    fn narrow(&self, py: Python, dim: i64, start: usize, length: usize) -> PyResult<PyTensor> {
        let x = self.get();
        let dim = dim_of(dim, x.shape().len())?;
        compute(py, || x.narrow(dim, start, length))
    }

    /// Parts of `split_size` elements along `dim`; the last may be shorter. Copies.
    #[pyo3(signature = (split_size, dim = 0))]
    fn split(&self, py: Python, split_size: usize, dim: i64) -> PyResult<Vec<PyTensor>> {
        let x = self.get();
        let dim = dim_of(dim, x.shape().len())?;
        let parts = py.detach(|| x.split(split_size, dim)).or_raise()?;
        Ok(parts.into_iter().map(PyTensor::new).collect())
    }

    /// `chunks` parts of `dim`, or fewer if its elements do not suffice. Copies.
    #[pyo3(signature = (chunks, dim = 0))]
    fn chunk(&self, py: Python, chunks: usize, dim: i64) -> PyResult<Vec<PyTensor>> {
        let length = self.get().shape()[dim_of(dim, self.ndim_of())?];
        if chunks == 0 {
            return Err(PyValueError::new_err("chunk: expected at least one"));
        }
        self.split(py, length.div_ceil(chunks).max(1), dim)
    }

    /// The elements of these dimensions backwards. Copies.
    #[pyo3(signature = (*dims))]
    fn flip(&self, py: Python, dims: &Bound<PyTuple>) -> PyResult<PyTensor> {
        let x = self.get();
        let dims = integers(dims)?.into_iter().map(|dim| dim_of(dim, x.shape().len())).collect::<PyResult<Vec<_>>>()?;
        compute(py, || x.flip(&dims))
    }

    /// Repeated to this shape, in which -1 leaves a length as it is: (3, 1).expand(2, 3, 4). Copies.
    #[pyo3(signature = (*shape))]
    fn expand(&self, py: Python, shape: &Bound<PyTuple>) -> PyResult<PyTensor> {
        let x = self.get();
        let mut given = integers(shape)?;
        let added = given.len().saturating_sub(x.shape().len());
        let own = |i: usize| i.checked_sub(added).and_then(|dim| x.shape().get(dim).copied());
        for (i, length) in given.iter_mut().enumerate().filter(|(_, length)| **length == -1) {
            *length = own(i).ok_or_else(|| PyValueError::new_err("expand: -1 has no length to keep"))? as i64;
        }
        let shape = crate::arguments::shape(&given)?;
        compute(py, || x.expand(shape))
    }

    /// A border of `value`: so many elements before and after those of the last dimension, then of the one before it,
    /// as `torch.nn.functional.pad` counts: `x.pad((1, 1))`. Copies.
    #[pyo3(signature = (padding, value = 0.0))]
    fn pad(&self, py: Python, padding: Vec<usize>, value: f32) -> PyResult<PyTensor> {
        let x = self.get();
        let rank = x.shape().len();
        if padding.len() % 2 == 1 || padding.len() / 2 > rank {
            let message = format!("pad: expected pairs for the last of {rank} dimensions, got {padding:?}");
            return Err(PyValueError::new_err(message));
        }
        let mut pairs: Vec<(usize, usize)> = padding.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        pairs.resize(rank, (0, 0));
        pairs.reverse();
        compute(py, || x.pad(&pairs, value))
    }

    /// What is on and below a diagonal of the last two dimensions, else 0.
    #[pyo3(signature = (diagonal = 0))]
    fn tril(&self, py: Python, diagonal: i64) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.tril(diagonal))
    }

    /// What is on and above a diagonal of the last two dimensions, else 0.
    #[pyo3(signature = (diagonal = 0))]
    fn triu(&self, py: Python, diagonal: i64) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.triu(diagonal))
    }

    /// The elements of `dim` that `index` (u32, of as many dimensions) names.
    fn gather(&self, py: Python, dim: i64, index: &PyTensor) -> PyResult<PyTensor> {
        let (x, index) = (self.get(), index.get());
        let dim = dim_of(dim, x.shape().len())?;
        compute(py, || x.gather(dim, &index))
    }

    /// The rows of `dim` that `index` (n), u32, names: (B, T, C) is (B, n, C) for dimension 1.
    fn index_select(&self, py: Python, dim: i64, index: &PyTensor) -> PyResult<PyTensor> {
        let (x, index) = (self.get(), index.get());
        let dim = dim_of(dim, x.shape().len())?;
        compute(py, || x.index_select(dim, &index))
    }

    /// These elements plus those of `src`, each at the place of `dim` that `index` names for it.
    fn scatter_add(&self, py: Python, dim: i64, index: &PyTensor, src: &PyTensor) -> PyResult<PyTensor> {
        let (x, index, src) = (self.get(), index.get(), src.get());
        let dim = dim_of(dim, x.shape().len())?;
        compute(py, || x.scatter_add(dim, &index, &src))
    }

    /// Of ids (...), u32, rows of `num_classes` numbers (..., C), f32: 1 at the id, else 0.
    fn one_hot(&self, py: Python, num_classes: usize) -> PyResult<PyTensor> {
        let ids = self.get();
        compute(py, || {
            let classes: Vec<u32> = (0..num_classes as u32).collect();
            let classes = Tensor::from_u32(&classes, [num_classes], &ids.device())?;
            ids.reshape([&ids.shape()[..], &[1]].concat())?.eq(&classes)
        })
    }
}

impl PyTensor {
    fn ndim_of(&self) -> usize {
        self.get().shape().len()
    }
}
