//! Dimension arguments of ops; negative ones count from the last, as in PyTorch.

use super::*;
use std::fmt;
use std::ops::RangeFull;

/// A dimension of a tensor: 0 is the first, -1 the last. Converts from any integer: `x.sum(-1)`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dim(i128);

impl Dim {
    /// Its number in a tensor of this shape.
    pub(super) fn number(self, op: &'static str, shape: &Shape) -> Result<usize> {
        self.of_rank(shape.len()).ok_or_else(|| {
            let expected = match shape.len() {
                0 => "a tensor that has dimensions".to_string(),
                rank => format!("a dimension from -{rank} to {}", rank - 1),
            };
            shape_error(op, expected, format!("dimension {self} of {shape}"))
        })
    }

    /// Its index in a tensor of this rank, if valid.
    pub(super) fn of_rank(self, rank: usize) -> Option<usize> {
        let from_first = if self.0 < 0 { self.0 + rank as i128 } else { self.0 };
        usize::try_from(from_first).ok().filter(|dim| *dim < rank)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Dimensions of a tensor: one, several, or `..` for all.
pub trait Dims {
    /// Those that are meant, of a tensor of this rank.
    fn dims(&self, rank: usize) -> Vec<Dim>;
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Dim {
            fn from(dim: $integer) -> Dim {
                Dim(dim as i128)
            }
        }

        impl Dims for $integer {
            fn dims(&self, _: usize) -> Vec<Dim> {
                vec![(*self).into()]
            }
        }
    )*};
}

integers!(usize, isize, i32, i64);

impl<D: Into<Dim> + Copy> Dims for &[D] {
    fn dims(&self, _: usize) -> Vec<Dim> {
        self.iter().map(|dim| (*dim).into()).collect()
    }
}

impl<D: Into<Dim> + Copy, const N: usize> Dims for [D; N] {
    fn dims(&self, rank: usize) -> Vec<Dim> {
        self.as_slice().dims(rank)
    }
}

impl Dims for RangeFull {
    fn dims(&self, rank: usize) -> Vec<Dim> {
        (0..rank).map(Dim::from).collect()
    }
}

/// The indices of these dimensions in a tensor of this shape; an error for duplicates.
pub(super) fn distinct(op: &'static str, dims: &[Dim], shape: &Shape) -> Result<Vec<usize>> {
    let numbers = dims.iter().map(|dim| dim.number(op, shape)).collect::<Result<Vec<usize>>>()?;
    match (1..numbers.len()).any(|i| numbers[..i].contains(&numbers[i])) {
        true => Err(shape_error(op, "each dimension at most once", format!("{dims:?} of {shape}"))),
        false => Ok(numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn dimensions_are_counted_from_both_ends() {
        assert_eq!([-2i64, -1, 0, 1].map(|dim| Dim::from(dim).of_rank(2)), [Some(0), Some(1), Some(0), Some(1)]);
        let beyond = [Dim::from(-3), 2i64.into(), i64::MIN.into(), isize::MAX.into(), usize::MAX.into()];
        assert!(beyond.iter().all(|dim| dim.of_rank(2).is_none()), "{beyond:?}");
    }

    #[test]
    fn a_dimension_out_of_range_is_refused_with_what_there_is() {
        let x = Tensor::zeros([2, 3], DType::F32, &Device::Cpu).unwrap();
        let message = |y: Result<Tensor>| y.unwrap_err().to_string();
        assert_eq!(message(x.sum(-4)), "sum: expected a dimension from -2 to 1, got dimension -4 of (2, 3)");
        assert_eq!(message(x.narrow(2, 0, 1)), "narrow: expected a dimension from -2 to 1, got dimension 2 of (2, 3)");
        let scalar = x.sum(..).unwrap();
        assert_eq!(message(scalar.mean(-1)), "mean: expected a tensor that has dimensions, got dimension -1 of ()");
        // The same dimension by two names.
        assert_eq!(message(x.sum([1, -1])), "sum: expected each dimension at most once, got [1, -1] of (2, 3)");
    }

    #[test]
    fn negative_dimensions_are_those_from_the_last() {
        for device in Device::for_tests() {
            let x = Tensor::from_f32(&(0..24).map(|i| i as f32).collect::<Vec<_>>(), [2, 3, 4], &device).unwrap();
            let ids = Tensor::from_u32(&[1, 0], [2], &device).unwrap();
            let places = Tensor::from_u32(&[2, 0, 1, 1, 0, 2, 0, 1], [2, 1, 4], &device).unwrap();
            let source = Tensor::full(1.0, [2, 1, 4], &device).unwrap();
            let pairs: Vec<[Result<Tensor>; 2]> = vec![
                [x.sum(-1), x.sum(2)],
                [x.mean_keepdim(-2), x.mean_keepdim(1)],
                [x.var([-1, 0], 1), x.var([2, 0], 1)],
                [x.logsumexp(&[-3i64, -1][..]), x.logsumexp([0, 2])],
                [x.permute(&[-1, 0, -2]), x.permute(&[2, 0, 1])],
                [x.narrow(-1, 1, 2), x.narrow(2, 1, 2)],
                [x.slice(-2, 0..3, 2), x.slice(1, 0..3, 2)],
                [x.split(1, -2).map(|mut parts| parts.remove(1)), x.split(1, 1).map(|mut parts| parts.remove(1))],
                [x.flip(&[-1, 0]), x.flip(&[2, 0])],
                [Tensor::cat(&[&x, &x], -2), Tensor::cat(&[&x, &x], 1)],
                [Tensor::stack(&[&x, &x], -1), Tensor::stack(&[&x, &x], 3)],
                [Tensor::stack(&[&x, &x], -4), Tensor::stack(&[&x, &x], 0)],
                [x.gather(-2, &places), x.gather(1, &places)],
                [x.index_select(-1, &ids), x.index_select(2, &ids)],
                [x.scatter_add(-2, &places, &source), x.scatter_add(1, &places, &source)],
            ];
            for (i, [negative, positive]) in pairs.into_iter().map(|pair| pair.map(Result::unwrap)).enumerate() {
                assert_eq!(negative.shape(), positive.shape(), "{device}: pair {i}");
                assert_eq!(negative.to_f32().unwrap(), positive.to_f32().unwrap(), "{device}: pair {i}");
            }
        }
    }
}
