//! Ops that only move elements, of any type. Results are copies, so tensors stay contiguous.
//!
//! | op | y | dx |
//! |---|---|---|
//! | permute | the dimensions in another order | permute by the inverse order |
//! | narrow, slice, split | every step-th element of a range of a dimension | dy there, 0 elsewhere |
//! | flip | dimensions backwards | flip |
//! | expand | repeated along dimensions of length 1 | the sum over the repetitions |
//! | pad | x within a border of one value | the part of dy that is x |
//! | cat, stack | tensors one after the other | the parts of dy |
//!
//! Two kernels implement all but cat: [`StridedCopy`] reads x at strides, [`Window`] writes x into a larger tensor.
//! Each is the derivative of the other, or of itself.

mod cat;
mod strided;
mod window;

use super::axes::{Axis, MAX_RANK, collapse, strides};
use super::dims::distinct;
use super::reduce::sum_to;
use super::*;
use crate::tensor::{Grads, record, run};
use std::ops::Range;
use strided::StridedCopy;
use window::{Span, Window};

/// An op of one tensor on the tape: how the gradient is moved back.
enum Back {
    Copy(StridedCopy),
    Window(Window),
    /// Over what was repeated.
    Sum(Shape),
}

impl Op for Back {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        match self {
            Back::Copy(copy) => grads.accumulate(0, grads.run_one(copy, &[dy])?),
            // Of a few elements of a large x that has a gradient already, adding touches these alone.
            Back::Window(window) if dy.dtype() == DType::F32 => {
                grads.accumulate_with(0, &[dy], |accumulate| Window { accumulate, ..window.clone() })
            }
            Back::Window(window) => grads.accumulate(0, grads.run_one(window, &[dy])?),
            Back::Sum(shape) => grads.accumulate(0, sum_to(dy.detach(), shape)?),
        }
    }
}

impl Tensor {
    fn moved(&self, kernel: &dyn Kernel, back: Back) -> Result<Tensor> {
        Ok(record(Box::new(back), &[self], run(kernel, &[self])?).remove(0))
    }

    /// Fails if there are more dimensions than kernels take.
    fn expect_few_dims(&self, op: &'static str) -> Result<()> {
        match self.shape().len() > MAX_RANK {
            true => Err(shape_error(op, format!("a tensor of at most {MAX_RANK} dimensions"), self.shape())),
            false => Ok(()),
        }
    }

    /// The number of a dimension, if there are not too many in all.
    fn dim_number(&self, op: &'static str, dim: Dim) -> Result<usize> {
        self.expect_few_dims(op)?;
        dim.number(op, self.shape())
    }

    /// Permutes the dimensions: (B, T, H, D).permute(&[0, 2, 1, 3]) is (B, H, T, D). Copies.
    ///
    /// # Errors
    /// If `dims` does not contain each dimension once, or there are more than six.
    pub fn permute(&self, dims: &[impl Into<Dim> + Copy]) -> Result<Tensor> {
        self.permuted(&dims.dims(self.shape().len()))
    }

    fn permuted(&self, dims: &[Dim]) -> Result<Tensor> {
        self.expect_few_dims("permute")?;
        let numbers = distinct("permute", dims, self.shape())?;
        if numbers.len() != self.shape().len() {
            let got = format!("{dims:?} of {}", self.shape());
            return Err(shape_error("permute", "each dimension once", got));
        }
        let mut inverse = vec![0; numbers.len()];
        numbers.iter().enumerate().for_each(|(i, &dim)| inverse[dim] = i);
        let copy = |shape: &Shape, dims: &[usize]| {
            let strides = strides(shape);
            let axes = dims.iter().map(|&dim| (shape[dim], strides[dim]));
            StridedCopy::new("permute", axes, 0)
        };
        let kernel = copy(self.shape(), &numbers);
        let back = copy(&kernel.shape, &inverse);
        self.moved(&kernel, Back::Copy(back))
    }

    /// `len` elements of dimension `dim` from `start` on: (B, T, C).narrow(1, 2, 3) is (B, 3, C). Copies.
    ///
    /// # Errors
    /// If there is no such dimension, it has too few elements, or there are more than six dimensions.
    pub fn narrow(&self, dim: impl Into<Dim>, start: usize, len: usize) -> Result<Tensor> {
        self.slice_as("narrow", dim.into(), start..start.saturating_add(len), 1)
    }

    /// Every `step`-th element of a range of dimension `dim`: x.slice(0, 1..6, 2) has elements 1, 3 and 5. Copies.
    ///
    /// # Errors
    /// If there is no such dimension, the range does not lie within it, the step is 0, or there are more than six
    /// dimensions.
    pub fn slice(&self, dim: impl Into<Dim>, range: Range<usize>, step: usize) -> Result<Tensor> {
        self.slice_as("slice", dim.into(), range, step)
    }

    fn slice_as(&self, op: &'static str, dim: Dim, range: Range<usize>, step: usize) -> Result<Tensor> {
        let dim = self.dim_number(op, dim)?;
        let shape = self.shape();
        if step == 0 || range.start > range.end || range.end > shape[dim] {
            let expected = format!("a range within the {} elements of dimension {dim}, and steps", shape[dim]);
            return Err(shape_error(op, expected, format!("{range:?} by {step}")));
        }
        let span = Span::new(shape[dim], range.start, range.len().div_ceil(step), step);
        let kernel = copy_of_span(op, shape, dim, span);
        self.moved(&kernel, Back::Window(Window::at_dim("slice_backward", shape, dim, span)))
    }

    /// Splits dimension `dim` into parts of `size` elements; the last may be shorter. Copies.
    ///
    /// # Errors
    /// If there is no such dimension, `size` is 0, or there are more than six dimensions.
    pub fn split(&self, size: usize, dim: impl Into<Dim>) -> Result<Vec<Tensor>> {
        let dim = dim.into();
        let len = self.shape()[self.dim_number("split", dim)?];
        if size == 0 {
            return Err(shape_error("split", "parts that are not empty", size));
        }
        // An empty dimension is one empty part, as in PyTorch.
        let starts = (0..len.max(1)).step_by(size);
        starts.map(|start| self.slice_as("split", dim, start..len.min(start.saturating_add(size)), 1)).collect()
    }

    /// Reverses the order of elements along these dimensions. Copies.
    ///
    /// # Errors
    /// If there is no such dimension, one is named twice, or there are more than six.
    pub fn flip(&self, dims: &[impl Into<Dim> + Copy]) -> Result<Tensor> {
        self.flipped(&dims.dims(self.shape().len()))
    }

    fn flipped(&self, dims: &[Dim]) -> Result<Tensor> {
        self.expect_few_dims("flip")?;
        let dims = distinct("flip", dims, self.shape())?;
        let (shape, strides) = (self.shape(), strides(self.shape()));
        let sign = |dim: usize| if dims.contains(&dim) { -1 } else { 1 };
        let last = dims.iter().map(|&dim| shape[dim].saturating_sub(1).wrapping_mul(strides[dim] as usize));
        let last = last.fold(0, usize::wrapping_add);
        let axes = (0..shape.len()).map(|dim| (shape[dim], sign(dim) * strides[dim]));
        let kernel = StridedCopy::new("flip", axes, last);
        self.moved(&kernel, Back::Copy(kernel.clone()))
    }

    /// Broadcasts to this shape: (3, 1).expand([2, 3, 4]) has every element eight times. Copies.
    ///
    /// # Errors
    /// If a dimension is neither 1 nor that of `shape`, or `shape` has more than six.
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.expand_to(shape.into())
    }

    fn expand_to(&self, to: Shape) -> Result<Tensor> {
        let (from, strides) = (self.shape(), strides(self.shape()));
        let fits = |(from, to): (&usize, &usize)| *from == 1 || from == to;
        expect_countable("expand", &to)?;
        if from.len() > to.len() || to.len() > MAX_RANK || !from.iter().rev().zip(to.iter().rev()).all(fits) {
            let expected = format!("a shape of at most {MAX_RANK} dimensions that {from} can be repeated to");
            return Err(shape_error("expand", expected, to));
        }
        let stride = |dim: usize| match (dim + from.len()).checked_sub(to.len()) {
            Some(its) if from[its] != 1 => strides[its],
            _ => 0,
        };
        let kernel = StridedCopy::new("expand", (0..to.len()).map(|dim| (to[dim], stride(dim))), 0);
        self.moved(&kernel, Back::Sum(from.clone()))
    }

    /// Pads each dimension with `value`: `padding` has the elements (before, after) of each dimension. For u32, `value`
    /// is converted to an integer.
    ///
    /// # Errors
    /// If `padding` does not have one pair per dimension, or there are more than six dimensions.
    pub fn pad(&self, padding: &[(usize, usize)], value: f32) -> Result<Tensor> {
        self.expect_few_dims("pad")?;
        let shape = self.shape();
        if padding.len() != shape.len() {
            let expected = format!("what stands before and after each dimension of {shape}");
            return Err(shape_error("pad", expected, format!("{padding:?}")));
        }
        let span = |(&count, &(before, after)): (&usize, &(usize, usize))| {
            Span::new(before.saturating_add(count).saturating_add(after), before, count, 1)
        };
        let spans: Vec<Span> = shape.iter().zip(padding).map(span).collect();
        expect_countable("pad", &spans.iter().map(Span::size).collect::<Vec<_>>().into())?;
        let kernel = Window { name: "pad", value, accumulate: false, spans };
        let back = kernel.copy("pad_backward");
        self.moved(&kernel, Back::Copy(back))
    }
}

/// An error if the number of elements overflows.
fn expect_countable(op: &'static str, shape: &Shape) -> Result<()> {
    match shape.elements() > isize::MAX as usize {
        true => Err(shape_error(op, format!("at most {} elements", isize::MAX), shape)),
        false => Ok(()),
    }
}

/// The part of a tensor of this shape that is a span of one dimension.
fn copy_of_span(name: &'static str, shape: &Shape, dim: usize, span: Span) -> StridedCopy {
    Window::at_dim(name, shape, dim, span).copy(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn refuses_dimensions_that_are_missing_or_named_twice() {
        let x = Tensor::from_f32(&[0.0; 6], [2, 3], &Device::Cpu).unwrap();
        for dims in [&[0][..], &[0, 0], &[0, 2], &[0, 1, 2]] {
            assert!(matches!(x.permute(dims), Err(Error::Shape { op: "permute", .. })), "{dims:?}");
        }
    }

    #[test]
    fn token_ids_are_moved_and_padded() {
        for device in Device::for_tests() {
            let ids = Tensor::from_u32(&[1, 2, 3, 4, 5, u32::MAX], [2, 3], &device).unwrap();
            let same = |y: Result<Tensor>, want: &[u32]| assert_eq!(y.unwrap().to_u32().unwrap(), want, "{device}");
            same(ids.slice(1, 0..3, 2), &[1, 3, 4, u32::MAX]);
            same(ids.flip(&[1]), &[3, 2, 1, u32::MAX, 5, 4]);
            same(ids.pad(&[(0, 1), (1, 0)], 7.0), &[7, 1, 2, 3, 7, 4, 5, u32::MAX, 7, 7, 7, 7]);
            same(Tensor::cat(&[&ids, &ids.narrow(1, 0, 1).unwrap()], 1), &[1, 2, 3, 1, 4, 5, u32::MAX, 4]);
        }
    }

    #[test]
    fn what_has_no_elements_has_dimensions_of_any_length() {
        for device in Device::for_tests() {
            let x = Tensor::zeros([1 << 40, 0, 1 << 40], DType::F32, &device).unwrap();
            let shapes = [
                x.permute(&[2, 0, 1]).unwrap(),
                x.flip(&[0, 2]).unwrap(),
                x.slice(2, 5..1 << 39, 3).unwrap(),
                x.pad(&[(0, 1), (0, 0), (3, 0)], 1.0).unwrap(),
                x.expand([2, 1 << 40, 0, 1 << 40]).unwrap(),
                Tensor::cat(&[&x, &x], 0).unwrap(),
                x.tril(0).unwrap(),
            ];
            assert!(shapes.iter().all(|y| y.to_bytes().unwrap().is_empty()), "{device}");
        }
    }

    #[test]
    fn parts_of_a_split_are_as_in_pytorch() {
        let x = Tensor::from_f32(&[0.0; 10], [5, 2], &Device::Cpu).unwrap();
        let shapes = |parts: Vec<Tensor>| parts.iter().map(|part| part.shape().to_vec()).collect::<Vec<_>>();
        assert_eq!(shapes(x.split(2, 0).unwrap()), [[2, 2], [2, 2], [1, 2]]);
        assert_eq!(shapes(x.split(9, 1).unwrap()), [[5, 2]]);
        assert_eq!(shapes(x.narrow(0, 5, 0).unwrap().split(3, 0).unwrap()), [[0, 2]]);
    }
}
