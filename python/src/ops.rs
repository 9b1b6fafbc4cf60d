//! Methods of `Tensor` that compute element by element, row by row or over dimensions, by PyTorch's names.

use crate::arguments::{dim as dim_of, dims as dims_of};
use crate::errors::OrRaise;
use crate::operators::{Operand, is_set, number};
use crate::tensor::{PyTensor, cast, compute, compute_two};
use pyo3::prelude::*;
use rustyflow::{Result, Tensor};

/// Methods of one tensor without arguments.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $($(#[$doc])*
            fn $name(&self, py: Python) -> PyResult<PyTensor> {
                let x = self.get();
                compute(py, || x.$name())
            })*
        }
    };
}

unary! {
    /// `-x`.
    neg;
    /// `e^x`.
    exp;
    /// The natural logarithm.
    log;
    /// The square root.
    sqrt;
    /// The sine of an angle in radians.
    sin;
    /// The cosine of an angle in radians.
    cos;
    /// `max(x, 0)`.
    relu;
    /// GELU in the tanh form of GPT-2.
    gelu;
    /// `x sigmoid(x)`.
    silu;
    /// `1 / (1 + e^-x)`.
    sigmoid;
    /// The hyperbolic tangent.
    tanh;
    /// `|x|`.
    abs;
    /// -1, 0 or 1; its gradient is 0.
    sign;
    /// The largest whole number that is not larger; its gradient is 0.
    floor;
    /// `log(1 + e^x)`.
    softplus;
    /// `x min(max(x + 3, 0), 6) / 6`.
    hardswish;
}

/// Methods of two tensors, or a tensor and a number, whose shapes are broadcast.
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $($(#[$doc])*
            fn $name(&self, py: Python, other: Operand) -> PyResult<PyTensor> {
                let x = self.get();
                let other = other.beside(&x)?;
                compute(py, || x.$name(&other))
            })*
        }
    };
}

binary! {
    /// `x + other`.
    add;
    /// `x - other`.
    sub;
    /// `x * other`, elementwise.
    mul;
    /// `x / other`, elementwise.
    div;
    /// `x ** other`, elementwise.
    pow;
    /// The larger of both, elementwise.
    maximum;
    /// The smaller of both, elementwise.
    minimum;
    /// 1 where `x == other`, else 0, in f32.
    eq;
    /// 1 where `x != other`, else 0, in f32.
    ne;
    /// 1 where `x < other`, else 0, in f32.
    lt;
    /// 1 where `x <= other`, else 0, in f32.
    le;
    /// 1 where `x > other`, else 0, in f32.
    gt;
    /// 1 where `x >= other`, else 0, in f32.
    ge;
}

/// Reductions over `dim`: a number, several, or all dimensions if it is left out.
macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident: $method:ident $keepdim:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $($(#[$doc])*
            #[pyo3(signature = (dim = None, keepdim = false))]
            fn $name(&self, py: Python, dim: Option<&Bound<PyAny>>, keepdim: bool) -> PyResult<PyTensor> {
                let x = self.get();
                let dims = dims_of(dim, x.shape().len())?;
                compute(py, || if keepdim { x.$keepdim(&dims[..]) } else { x.$method(&dims[..]) })
            })*
        }
    };
}

reductions! {
    /// The sum over dimensions: of (B, T, C), `sum(1)` is (B, C), `sum((0, 1))` is (C), `sum()` is ().
    sum: sum sum_keepdim;
    /// The mean over dimensions.
    mean: mean mean_keepdim;
    /// The product over dimensions.
    prod: prod prod_keepdim;
    /// The largest value along dimensions; equal ones share the gradient.
    amax: max max_keepdim;
    /// The smallest value along dimensions; equal ones share the gradient.
    amin: min min_keepdim;
    /// The logarithm of the sum of e^x over dimensions.
    logsumexp: logsumexp logsumexp_keepdim;
    /// The number, u32, of the first of the largest values along dimensions.
    argmax: argmax argmax_keepdim;
    /// The number, u32, of the first of the smallest values along dimensions.
    argmin: argmin argmin_keepdim;
}

/// Along any dimension what `f` computes along the last.
fn along(x: &Tensor, dim: usize, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let rank = x.shape().len();
    if rank == 0 || dim == rank - 1 {
        return f(x);
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(dim, rank - 1);
    f(&x.permute(&order)?)?.permute(&order)
}

#[pymethods]
impl PyTensor {
    /// The variance over dimensions; `correction` 1 is that of a sample.
    #[pyo3(signature = (dim = None, correction = 1, keepdim = false))]
    fn var(&self, py: Python, dim: Option<&Bound<PyAny>>, correction: usize, keepdim: bool) -> PyResult<PyTensor> {
        let x = self.get();
        let dims = dims_of(dim, x.shape().len())?;
        compute(py, || if keepdim { x.var_keepdim(&dims[..], correction) } else { x.var(&dims[..], correction) })
    }

    /// The standard deviation over dimensions; `correction` 1 is that of a sample.
    #[pyo3(signature = (dim = None, correction = 1, keepdim = false))]
    fn std(&self, py: Python, dim: Option<&Bound<PyAny>>, correction: usize, keepdim: bool) -> PyResult<PyTensor> {
        let variance = self.var(py, dim, correction, keepdim)?.get();
        compute(py, || variance.sqrt())
    }

    /// The largest value, or along one dimension `dim` the largest values and their numbers: (values, indices).
    #[pyo3(signature = (dim = None, keepdim = false))]
    fn max<'py>(&self, py: Python<'py>, dim: Option<i64>, keepdim: bool) -> PyResult<Bound<'py, PyAny>> {
        let x = self.get();
        let Some(dim) = dim else { return Ok(Bound::new(py, compute(py, || x.max(..))?)?.into_any()) };
        let dim = dim_of(dim, x.shape().len())?;
        let both = compute_two(py, || match keepdim {
            true => Ok((x.max_keepdim(dim)?, x.argmax_keepdim(dim)?)),
            false => Ok((x.max(dim)?, x.argmax(dim)?)),
        });
        Ok(both?.into_pyobject(py)?.into_any())
    }

    /// The smallest value, or along one dimension `dim` the smallest values and their numbers: (values, indices).
    #[pyo3(signature = (dim = None, keepdim = false))]
    fn min<'py>(&self, py: Python<'py>, dim: Option<i64>, keepdim: bool) -> PyResult<Bound<'py, PyAny>> {
        let x = self.get();
        let Some(dim) = dim else { return Ok(Bound::new(py, compute(py, || x.min(..))?)?.into_any()) };
        let dim = dim_of(dim, x.shape().len())?;
        let both = compute_two(py, || match keepdim {
            true => Ok((x.min_keepdim(dim)?, x.argmin_keepdim(dim)?)),
            false => Ok((x.min(dim)?, x.argmin(dim)?)),
        });
        Ok(both?.into_pyobject(py)?.into_any())
    }

    /// e^x over its sum along `dim`.
    #[pyo3(signature = (dim = -1))]
    fn softmax(&self, py: Python, dim: i64) -> PyResult<PyTensor> {
        let x = self.get();
        let dim = dim_of(dim, x.shape().len())?;
        compute(py, || along(&x, dim, Tensor::softmax))
    }

    /// The logarithm of `softmax`.
    #[pyo3(signature = (dim = -1))]
    fn log_softmax(&self, py: Python, dim: i64) -> PyResult<PyTensor> {
        let x = self.get();
        let dim = dim_of(dim, x.shape().len())?;
        compute(py, || along(&x, dim, Tensor::log_softmax))
    }

    /// `1 / x`.
    fn reciprocal(&self, py: Python) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.recip())
    }

    /// x, but at least `min` and at most `max`.
    #[pyo3(signature = (min = None, max = None))]
    fn clamp(&self, py: Python, min: Option<f32>, max: Option<f32>) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.clamp(min.unwrap_or(f32::NEG_INFINITY), max.unwrap_or(f32::INFINITY)))
    }

    /// x where it is positive, else `negative_slope` times x.
    #[pyo3(signature = (negative_slope = 0.01))]
    fn leaky_relu(&self, py: Python, negative_slope: f32) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.leaky_relu(negative_slope))
    }

    /// x where it is positive, else `alpha (e^x - 1)`.
    #[pyo3(signature = (alpha = 1.0))]
    fn elu(&self, py: Python, alpha: f32) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || x.elu(alpha))
    }
}

#[pymethods]
impl PyTensor {
    /// `value` where `mask` is not 0, else these elements.
    fn masked_fill(&self, py: Python, mask: &PyTensor, value: f64) -> PyResult<PyTensor> {
        let (x, mask) = (self.get(), mask.get());
        compute(py, || mask.where_cond(&cast(&number(value, &x)?, x.dtype())?, &x))
    }

    /// Of a mask: 1 if all elements are not 0, else 0, (). Of none 1.
    fn all(&self, py: Python) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || is_set(&x)?.prod(..))
    }

    /// Of a mask: 1 if an element is not 0, else 0, (). Of none 0.
    fn any(&self, py: Python) -> PyResult<PyTensor> {
        let x = self.get();
        compute(py, || is_set(&is_set(&x)?.sum(..)?))
    }
}

/// `a` where `condition` is not 0, else `b`; shapes broadcast.
#[pyfunction(name = "where")]
fn choose(py: Python, condition: &PyTensor, a: Operand, b: Operand) -> PyResult<PyTensor> {
    let condition = condition.get();
    let (a, b) = (a.beside(&condition)?, b.beside(&condition)?);
    compute(py, || condition.where_cond(&a, &b))
}

/// Tensors one after the other along `dim`: (2, C) and (3, C) are (5, C).
#[pyfunction]
#[pyo3(signature = (tensors, dim = 0))]
fn cat(py: Python, tensors: Vec<Py<PyTensor>>, dim: i64) -> PyResult<PyTensor> {
    let tensors: Vec<Tensor> = tensors.iter().map(|tensor| tensor.get().get()).collect();
    let dim = dim_of(dim, tensors.first().map_or(1, |first| first.shape().len()))?;
    compute(py, || Tensor::cat(&tensors.iter().collect::<Vec<_>>(), dim))
}

/// Tensors of one shape along a new dimension `dim`: three of (B, C) are (B, 3, C) for dimension 1.
#[pyfunction]
#[pyo3(signature = (tensors, dim = 0))]
fn stack(py: Python, tensors: Vec<Py<PyTensor>>, dim: i64) -> PyResult<PyTensor> {
    let tensors: Vec<Tensor> = tensors.iter().map(|tensor| tensor.get().get()).collect();
    let dim = dim_of(dim, tensors.first().map_or(1, |first| first.shape().len() + 1))?;
    compute(py, || Tensor::stack(&tensors.iter().collect::<Vec<_>>(), dim))
}

/// The square root of the sum of squares of all elements of tensors together, such as the norm of gradients.
#[pyfunction]
fn total_norm(py: Python, tensors: Vec<Py<PyTensor>>) -> PyResult<f64> {
    let tensors: Vec<Tensor> = tensors.iter().map(|tensor| tensor.get().get().detach()).collect();
    let squares = py.detach(|| {
        let each = tensors.iter().map(|x| x.mul(x)?.sum(..)?.item().map(f64::from));
        each.sum::<Result<f64>>()
    });
    squares.map(f64::sqrt).or_raise()
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(choose, m)?)?;
    m.add_function(wrap_pyfunction!(cat, m)?)?;
    m.add_function(wrap_pyfunction!(stack, m)?)?;
    m.add_function(wrap_pyfunction!(total_norm, m)?)
}
