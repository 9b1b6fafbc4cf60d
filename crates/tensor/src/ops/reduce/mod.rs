//! Reductions over any dimensions. Shapes: (outer, n, inner) -> (outer, inner), where n is the product of the reduced
//! dimensions, outer and inner those of the others before and after them. If reduced dimensions are not adjacent, x is
//! permuted.
//!
//! | op | y | dx |
//! |---|---|---|
//! | sum | sum over n of x | dy |
//! | mean | sum / n | dy / n |
//! | max, min | largest, smallest x (unspecified if one is NaN) | dy / k at the k elements that equal y, else 0 |
//! | prod | product of x | dy times the product of the others |
//! | var | sum of (x - mean)^2 / (n - correction) | 2 dy (x - mean) / (n - correction) |
//! | logsumexp | log of the sum of e^x | dy e^(x - y) |
//! | argmax, argmin | number of the first largest, smallest x, u32 | none |
//!
//! Sums are computed in chunks whose partial sums are then added, in an order that depends on the shape alone: the same
//! input gives the same bits, and the rounding error grows with log n instead of n. Variance and logsumexp take two
//! passes: the first computes the mean or maximum that the second subtracts.

mod backward;
mod kernel;
mod sum_rows;

pub(super) use sum_rows::SumRows;

use super::dims::distinct;
use super::*;
use crate::profile::MemoryKind;
use crate::tensor::{Edge, Grads, run, run_as};
use backward::{BroadcastDim, Derivative, ReduceBackward};
use kernel::{Reduce, ReduceDims, ReduceKind};

impl Op for Reduce {
    fn saves(&self) -> Saves {
        match self.kind {
            ReduceKind::Max | ReduceKind::Min | ReduceKind::LogSumExpAbout => Saves { inputs: &[0], outputs: &[0] },
            ReduceKind::Prod => Saves { inputs: &[0], outputs: &[] },
            ReduceKind::SquaresAbout => Saves { inputs: &[0, 1], outputs: &[] },
            _ => Saves::default(),
        }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let &Reduce { kind, dims, factor, ref from, ref to, .. } = self;
        let (name, derivative) = match kind {
            ReduceKind::Max => ("max_backward", Derivative::Extreme),
            ReduceKind::Min => ("min_backward", Derivative::Extreme),
            ReduceKind::Prod => ("prod_backward", Derivative::Prod),
            ReduceKind::LogSumExpAbout => ("logsumexp_backward", Derivative::LogSumExp),
            ReduceKind::SquaresAbout => ("var_backward", Derivative::Deviation(2.0 * factor)),
            _ => {
                let kernel = BroadcastDim { dims, factor, to: from.clone() };
                return grads.accumulate(0, grads.run_one(&kernel, &[dy])?);
            }
        };
        let reduced = |kind, inputs: &[&Tensor]| {
            let (from, to) = (from.clone(), to.clone());
            grads.run_one(&Reduce { name, kind, dims, factor: 1.0, from, to }, inputs)
        };
        let x = saved.input(0)?;
        let kernel = ReduceBackward { name, derivative, dims };
        let dx = match derivative {
            Derivative::Extreme => {
                let y = saved.output(0)?;
                grads.run_one(&kernel, &[x, y, &reduced(ReduceKind::CountEqual, &[x, y])?, dy])?
            }
            Derivative::Prod => {
                let (others, zeros) =
                    (reduced(ReduceKind::ProdOfOthers, &[x])?, reduced(ReduceKind::CountZeros, &[x])?);
                grads.run_one(&kernel, &[x, &others, &zeros, dy])?
            }
            Derivative::LogSumExp => grads.run_one(&kernel, &[x, saved.output(0)?, dy])?,
            Derivative::Deviation(_) => grads.run_one(&kernel, &[x, saved.input(1)?, dy])?,
        };
        grads.accumulate(0, dx)
    }
}

/// Sums `x` over the dimensions that were broadcast from `shape`.
pub(super) fn sum_to(x: Tensor, shape: &Shape) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(x);
    }
    let dtype = x.dtype();
    let mut x = x.to_dtype(DType::F32)?;
    let before = x.shape().len() - shape.len();
    let repeated = |dim: usize| dim < before || shape[dim - before] != x.shape()[dim];
    // The lengths of neighbouring dimensions that are all repeated, or none.
    let mut groups: Vec<(bool, usize)> = Vec::new();
    for dim in (0..x.shape().len()).filter(|&dim| x.shape()[dim] != 1) {
        match groups.last_mut() {
            Some((of, size)) if *of == repeated(dim) => *size *= x.shape()[dim],
            _ => groups.push((repeated(dim), x.shape()[dim])),
        }
    }
    while let Some(group) = groups.iter().rposition(|(repeated, _)| *repeated) {
        let size = |groups: &[(bool, usize)]| groups.iter().map(|(_, size)| size).product();
        let dims = ReduceDims { outer: size(&groups[..group]), n: groups[group].1, inner: size(&groups[group + 1..]) };
        let to = Shape::from([dims.outer, dims.inner]);
        let sum = Reduce { name: "sum", kind: ReduceKind::Sum, dims, factor: 1.0, from: x.shape().clone(), to };
        x = run_as(MemoryKind::Gradients, &sum, &[&x])?.remove(0);
        groups.remove(group);
    }
    x.view(shape.clone(), Edge::None).to_dtype(dtype)
}

/// A tensor with adjacent reduced dimensions, and the output's shapes.
struct Sides {
    x: Tensor,
    dims: ReduceDims,
    to: Shape,
}

impl Tensor {
    fn sides(&self, op: &'static str, dims: &[Dim], keepdim: bool) -> Result<Sides> {
        expect_f32(op, &[self.spec()])?;
        let (shape, rank) = (self.shape(), self.shape().len());
        let numbers = distinct(op, dims, shape)?;
        let (dropped, kept): (Vec<usize>, Vec<usize>) = (0..rank).partition(|dim| numbers.contains(dim));
        let to: Vec<usize> = match keepdim {
            true => (0..rank).map(|dim| if numbers.contains(&dim) { 1 } else { shape[dim] }).collect(),
            false => kept.iter().map(|&dim| shape[dim]).collect(),
        };
        // Those of length 1 lie anywhere.
        let reduced: Vec<usize> = dropped.iter().copied().filter(|&dim| shape[dim] != 1).collect();
        let (first, last) = (reduced.first().copied().unwrap_or(rank), reduced.last().copied().unwrap_or(rank));
        let between = kept.iter().any(|&dim| (first..last).contains(&dim) && shape[dim] != 1);
        let x = if between { self.permute(&[&kept[..], &dropped].concat())? } else { self.clone() };
        let size = |dims: &mut dyn Iterator<Item = usize>| dims.fold(1, |n: usize, dim| n.wrapping_mul(shape[dim]));
        let dims = ReduceDims {
            outer: size(&mut kept.iter().copied().filter(|&dim| between || dim < first)),
            n: size(&mut reduced.into_iter()),
            inner: size(&mut kept.iter().copied().filter(|&dim| !between && dim >= first)),
        };
        Ok(Sides { x, dims, to: to.into() })
    }

    fn reduce(&self, op: Reduction, dims: &[Dim], keepdim: bool) -> Result<Tensor> {
        in_f32(self, |x| x.reduce_f32(op, dims, keepdim))
    }

    fn reduce_f32(&self, op: Reduction, dims: &[Dim], keepdim: bool) -> Result<Tensor> {
        let Sides { x, dims, to } = self.sides(op.name(), dims, keepdim)?;
        let mean = 1.0 / dims.n as f32;
        let (about, kind, factor) = match op {
            Reduction::Sum => (None, ReduceKind::Sum, 1.0),
            Reduction::Mean => (None, ReduceKind::Sum, mean),
            Reduction::Max => (None, ReduceKind::Max, 1.0),
            Reduction::Min => (None, ReduceKind::Min, 1.0),
            Reduction::Prod => (None, ReduceKind::Prod, 1.0),
            Reduction::LogSumExp => (Some((ReduceKind::FiniteMax, 1.0)), ReduceKind::LogSumExpAbout, 1.0),
            Reduction::ArgMax => (Some((ReduceKind::Max, 1.0)), ReduceKind::FirstEqual, 1.0),
            Reduction::ArgMin => (Some((ReduceKind::Min, 1.0)), ReduceKind::FirstEqual, 1.0),
            Reduction::Var { correction } => {
                let factor = 1.0 / dims.n.saturating_sub(correction) as f32;
                (Some((ReduceKind::Sum, mean)), ReduceKind::SquaresAbout, factor)
            }
        };
        let kernel = |(kind, factor)| {
            let (from, to) = (x.shape().clone(), to.clone());
            Reduce { name: op.name(), kind, dims, factor, from, to }
        };
        let about = about.map(|about| run(&kernel(about), &[&x])).transpose()?;
        let inputs: Vec<&Tensor> = std::iter::once(&x).chain(about.iter().flatten()).collect();
        match kind {
            ReduceKind::FirstEqual => Ok(run(&kernel((kind, factor)), &inputs)?.remove(0)),
            _ => apply_one(kernel((kind, factor)), &inputs),
        }
    }
}

/// The reductions.
#[derive(Debug, Clone, Copy)]
enum Reduction {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    LogSumExp,
    ArgMax,
    ArgMin,
    Var { correction: usize },
}

impl Reduction {
    fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Prod => "prod",
            Reduction::LogSumExp => "logsumexp",
            Reduction::ArgMax => "argmax",
            Reduction::ArgMin => "argmin",
            Reduction::Var { .. } => "var",
        }
    }
}

/// Each row defines two `Tensor` methods; the second keeps the reduced dimensions with length 1.
macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $keepdim:ident ($($arg:ident: $type:ty = $sample:literal)?) $op:expr;)*) => {
        /// Every row's name and methods, for tests and benchmarks.
        #[allow(clippy::type_complexity)] // A name for the type would be said here alone.
        pub const METHODS: &[(&str, fn(&Tensor, &[usize]) -> Result<Tensor>)] = &[$(
            (stringify!($name), |x, dims| x.$name(dims $(, { let $arg: $type = $sample; $arg })?)),
            (stringify!($keepdim), |x, dims| x.$keepdim(dims $(, { let $arg: $type = $sample; $arg })?)),
        )*];

        impl Tensor {
            $($(#[$doc])*
            ///
            /// # Errors
            /// If the tensor is neither f32 nor f16, has no such dimension, or a dimension is repeated.
            pub fn $name(&self, dims: impl Dims $(, $arg: $type)?) -> Result<Tensor> {
                self.reduce($op, &dims.dims(self.shape().len()), false)
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`], but the dimensions stay, with length 1.")]
            ///
            /// # Errors
            /// As without `keepdim`.
            pub fn $keepdim(&self, dims: impl Dims $(, $arg: $type)?) -> Result<Tensor> {
                self.reduce($op, &dims.dims(self.shape().len()), true)
            })*
        }
    };
}

reductions! {
    /// The sum over dimensions, which are dropped: of (B, T, C), `sum(-1)` is (B, T), `sum([0, 1])` is (C), and
    /// `sum(..)` is a scalar.
    sum sum_keepdim () Reduction::Sum;
    /// The mean over dimensions, which are dropped. NaN if they are empty.
    mean mean_keepdim () Reduction::Mean;
    /// The largest value along dimensions, which are dropped; they must not be empty. Equal ones share the gradient.
    max max_keepdim () Reduction::Max;
    /// The smallest value along dimensions, which are dropped; they must not be empty. Equal ones share the gradient.
    min min_keepdim () Reduction::Min;
    /// The product over dimensions, which are dropped.
    prod prod_keepdim () Reduction::Prod;
    /// The variance over dimensions, which are dropped: the sum of squares about the mean, divided by their number less
    /// `correction`, which is 1 for that of a sample.
    var var_keepdim (correction: usize = 1) Reduction::Var { correction };
    /// The logarithm of the sum of e^x over dimensions, which are dropped; nothing overflows.
    logsumexp logsumexp_keepdim () Reduction::LogSumExp;
    /// The number, u32, of the first of the largest values along dimensions, which are dropped and must not be empty.
    /// Several are numbered together, row-major. Without a gradient.
    argmax argmax_keepdim () Reduction::ArgMax;
    /// The number, u32, of the first of the smallest values along dimensions, which are dropped and must not be empty.
    /// Several are numbered together, row-major. Without a gradient.
    argmin argmin_keepdim () Reduction::ArgMin;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn reductions_of_nothing_are_as_in_pytorch() {
        for device in Device::for_tests() {
            let x = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap();
            let values = |y: Result<Tensor>| y.unwrap().to_f32().unwrap();
            assert_eq!(values(x.sum(1)), [0.0; 6], "{device}");
            assert_eq!(values(x.prod([1])), [1.0; 6], "{device}");
            assert_eq!(values(x.logsumexp(..)), [f32::NEG_INFINITY], "{device}");
            assert!(values(x.mean([0, 1])).iter().all(|y| y.is_nan()), "{device}");
            assert!(values(x.var([1, 2], 0)).iter().all(|y| y.is_nan()), "{device}");
            assert!(values(x.sum_keepdim(0)).is_empty(), "{device}");
            assert!(matches!(x.argmax(1), Err(Error::Shape { op: "argmax", .. })), "{device}");
        }
    }

    #[test]
    fn of_equal_elements_the_first_is_the_largest() {
        for device in Device::for_tests() {
            let x = Tensor::from_f32(&[1.0, 3.0, 3.0, 0.0, 3.0, 0.0], [2, 3], &device).unwrap();
            let numbers = |y: Result<Tensor>| y.unwrap().to_u32().unwrap();
            assert_eq!(numbers(x.argmax(1)), [1, 1], "{device}");
            assert_eq!(numbers(x.argmax(0)), [0, 0, 0], "{device}");
            assert_eq!(numbers(x.argmin_keepdim(..)), [3], "{device}");
            // Several dimensions are numbered together.
            let y = x.reshape([3, 1, 2]).unwrap();
            assert_eq!(numbers(y.argmax([0, 2])), [1], "{device}");
            // (2, 3, 4), of which the middle stays: the last element of each.
            let ascending: Vec<f32> = (0..24).map(|i| i as f32).collect();
            let x = Tensor::from_f32(&ascending, [2, 3, 4], &device).unwrap();
            assert_eq!(numbers(x.argmax([2, 0])), [7, 7, 7], "{device}");
            assert_eq!(numbers(x.argmin([0, 2])), [0, 0, 0], "{device}");
        }
    }

    #[test]
    fn log_sum_exp_of_what_is_infinite_is_that() {
        for device in Device::for_tests() {
            let inf = f32::INFINITY;
            let x = Tensor::from_f32(&[-inf, -inf, 1.0, -inf, inf, 0.0], [3, 2], &device).unwrap();
            assert_eq!(x.logsumexp(1).unwrap().to_f32().unwrap(), [-inf, 1.0, inf], "{device}");
        }
    }
}
