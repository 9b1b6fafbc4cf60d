//! The loop dimensions of a strided kernel: length, and stride in every operand.

use crate::gpu::{Param, param};

/// The most dimensions after neighbours are merged: the strides of three operands then fit the parameters of a launch.
pub(super) const MAX_RANK: usize = 6;

/// A dimension of the output, and its strides in N operands: 0 if the operand is broadcast, negative if it is reversed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis<const N: usize> {
    pub size: usize,
    pub strides: [isize; N],
}

/// Merges dimensions: removes those of length 1 and joins those that are contiguous in every operand. Never empty.
/// Lengths beside one of 0 may wrap.
pub(super) fn collapse<const N: usize>(axes: impl IntoIterator<Item = Axis<N>>) -> Vec<Axis<N>> {
    let mut joined: Vec<Axis<N>> = Vec::new();
    for axis in axes.into_iter().filter(|axis| axis.size != 1) {
        let follows =
            |outer: &Axis<N>| (0..N).all(|i| outer.strides[i] == axis.strides[i].wrapping_mul(axis.size as isize));
        match joined.last_mut() {
            Some(outer) if follows(outer) => *outer = Axis { size: outer.size.wrapping_mul(axis.size), ..axis },
            _ => joined.push(axis),
        }
    }
    if joined.is_empty() {
        joined.push(Axis { size: 1, strides: [0; N] });
    }
    joined
}

/// Row-major strides, in elements. They may wrap only for an empty tensor.
pub(super) fn strides(shape: &[usize]) -> Vec<isize> {
    let product = |dims: &[usize]| dims.iter().fold(1, |product: usize, dim| product.wrapping_mul(*dim));
    (0..shape.len()).map(|dim| product(&shape[dim + 1..]) as isize).collect()
}

/// Iterates over `y`, whose first element has index `start`, by runs along the innermost dimension. `body` receives the
/// offset of a run's first element in each operand, and the run.
#[inline(always)]
pub(super) fn for_each_run<const N: usize, T>(
    axes: &[Axis<N>],
    offset: usize,
    mut start: usize,
    mut y: &mut [T],
    mut body: impl FnMut([usize; N], &mut [T]),
) {
    let (inner, outer) = axes.split_last().expect("axes are never empty");
    while !y.is_empty() {
        let (within, mut rest) = (start % inner.size, start / inner.size);
        let mut places = inner.strides.map(|stride| offset as isize + within as isize * stride);
        for axis in outer.iter().rev() {
            let index = (rest % axis.size) as isize;
            rest /= axis.size;
            places.iter_mut().zip(axis.strides).for_each(|(place, stride)| *place += index * stride);
        }
        let (run, others) = y.split_at_mut((inner.size - within).min(y.len()));
        start += run.len();
        y = others;
        body(places.map(|place| place as usize), run);
    }
}

/// Sizes and strides as shader parameters: `size0`, `a0`, `b0` ... for the outermost dimension. Strides are modulo
/// 2^32, as shaders compute offsets.
pub(super) fn axis_params<const N: usize>(axes: &[Axis<N>]) -> Vec<Param> {
    const NAMES: [[&str; 4]; MAX_RANK] = [
        ["size0", "a0", "b0", "c0"],
        ["size1", "a1", "b1", "c1"],
        ["size2", "a2", "b2", "c2"],
        ["size3", "a3", "b3", "c3"],
        ["size4", "a4", "b4", "c4"],
        ["size5", "a5", "b5", "c5"],
    ];
    let of_axis = |(names, axis): (&[&'static str; 4], &Axis<N>)| {
        let strides: Vec<Param> = names[1..].iter().zip(axis.strides).map(|(name, s)| param(name, s as u32)).collect();
        [vec![param(names[0], axis.size)], strides].concat()
    };
    NAMES.iter().zip(axes).flat_map(of_axis).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_and_dimensions_of_one_left_out() {
        let axes = |all: &[(usize, isize)]| collapse(all.iter().map(|&(size, a)| Axis { size, strides: [a] }));
        assert_eq!(axes(&[(2, 15), (3, 5), (1, 5), (5, 1)]), [Axis { size: 30, strides: [1] }]);
        let apart = [Axis { size: 5, strides: [1] }, Axis { size: 6, strides: [5] }];
        assert_eq!(axes(&[(5, 1), (1, 7), (2, 15), (3, 5)]), apart);
        assert_eq!(axes(&[(4, 0), (2, 0)]), [Axis { size: 8, strides: [0] }]);
        assert_eq!(axes(&[(4, -2), (2, -1)]), [Axis { size: 8, strides: [-1] }]);
        assert_eq!(axes(&[]), [Axis { size: 1, strides: [0] }]);
    }

    #[test]
    fn runs_may_begin_and_end_within_a_dimension() {
        // (2, 3) of x (3, 2) transposed, from its fifth element backwards.
        let axes = [Axis { size: 2, strides: [-1] }, Axis { size: 3, strides: [-2] }];
        let mut seen = Vec::new();
        for_each_run(&axes, 5, 1, &mut [0; 4], |[place], run| seen.push((place, run.len())));
        assert_eq!(seen, [(3, 2), (4, 2)]);
    }
}
