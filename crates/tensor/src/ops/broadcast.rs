//! Elementwise functions with NumPy broadcasting: shapes are aligned at their last dimension, and an operand is
//! repeated along dimensions that it lacks or in which it has length 1.
//!
//! If only b is repeated, and as a whole, its index is a modulo of the index of a. All other shapes use strides.

use super::axes::{Axis, MAX_RANK, axis_params, collapse, for_each_run, strides};
use super::*;
use crate::cpu::with_scratch;
use crate::gpu::{Operand, Param, Plan, buffer, param};
use crate::shader;
use bytemuck::Pod;
use rayon::prelude::*;

/// (a, b, dy, result), all of one length; dy may be empty if the function does not use it.
pub(super) type Zip<T> = fn(&[T], &[T], &[f32], &mut [f32]);

/// The broadcast shape.
pub(super) fn broadcast_shape<const N: usize>(op: &'static str, shapes: [&Shape; N]) -> Result<Shape> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut to = vec![1; rank];
    for shape in shapes {
        for (to, &dim) in to[rank - shape.len()..].iter_mut().zip(shape.iter()).filter(|(_, dim)| **dim != 1) {
            if *to != 1 && *to != dim {
                let got = shapes.map(|shape| shape.to_string()).join(", ");
                return Err(shape_error(op, "shapes with equal dimensions or 1", got));
            }
            *to = dim;
        }
    }
    let to = Shape::from(to);
    if broadcast_axes(&to, shapes).len() > MAX_RANK {
        let got = shapes.map(|shape| shape.to_string()).join(", ");
        return Err(shape_error(op, format!("at most {MAX_RANK} dimensions that are repeated differently"), got));
    }
    Ok(to)
}

/// The dimensions of `to`, with the strides of operands broadcast to it.
pub(super) fn broadcast_axes<const N: usize>(to: &Shape, operands: [&Shape; N]) -> Vec<Axis<N>> {
    let of_operands = operands.map(|shape| strides(shape));
    collapse((0..to.len()).map(|dim| {
        let stride = |i: usize| match (dim + operands[i].len()).checked_sub(to.len()) {
            Some(its) if operands[i][its] != 1 => of_operands[i][its],
            _ => 0,
        };
        Axis { size: to[dim], strides: std::array::from_fn(stride) }
    }))
}

/// Whether b is repeated as a whole, and a not at all.
pub(super) fn only_b_repeats(to: &Shape, a: &Shape, b: &Shape) -> bool {
    let dims = &b[b.iter().take_while(|dim| **dim == 1).count()..];
    a.elements() == to.elements() && a.ends_with(dims)
}

/// y[i] = f(a[i], b[i], dy[i]), with a and b broadcast to `to`.
pub(super) fn zip<T: Pod + Send + Sync>(
    to: &Shape,
    [(a_shape, a), (b_shape, b)]: [(&Shape, &[T]); 2],
    dy: &[f32],
    y: &mut [f32],
    f: impl Fn(&[T], &[T], &[f32], &mut [f32]) + Sync,
) {
    let part = |at: usize, len: usize| dy.get(at..at + len).unwrap_or_default();
    if y.is_empty() {
        return;
    }
    if !only_b_repeats(to, a_shape, b_shape) {
        let axes = broadcast_axes(to, [a_shape, b_shape]);
        return y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
            with_scratch(2 * CHUNK, |scratch| {
                let (of_a, of_b) = scratch.split_at_mut(CHUNK);
                let mut at = chunk * CHUNK;
                for_each_run(&axes, 0, at, y, |[i, j], y| {
                    let run = |x, place, operand, scratch| operand_run(x, place, &axes, operand, y.len(), scratch);
                    let (a, b) = (run(a, i, 0, &mut *of_a), run(b, j, 1, &mut *of_b));
                    f(a, b, part(at, y.len()), y);
                    at += y.len();
                });
            });
        });
    }
    // Chunks of whole repetitions of b. Those of a short b are written out once, for loops that are worth it.
    let chunk = if b.len() == y.len() { CHUNK } else { (CHUNK / b.len()).max(1) * b.len() };
    let short = b.len() < chunk.min(y.len());
    with_scratch(if short { chunk.min(y.len()) } else { 0 }, |scratch| {
        let repeated: &mut [T] = bytemuck::cast_slice_mut(scratch);
        repeated.chunks_mut(b.len()).for_each(|repetition| repetition.copy_from_slice(&b[..repetition.len()]));
        let b = if short { &*repeated } else { b };
        y.par_chunks_mut(chunk).enumerate().for_each(|(i, y)| {
            let at = i * chunk;
            let b = if b.len() <= chunk { &b[..y.len()] } else { &b[at..at + y.len()] };
            f(&a[at..at + y.len()], b, part(at, y.len()), y);
        });
    });
}

/// A run of an operand: in place, or in `scratch` if one element is repeated.
pub(super) fn operand_run<'a, T: Pod, const N: usize>(
    x: &'a [T],
    place: usize,
    axes: &[Axis<N>],
    operand: usize,
    len: usize,
    scratch: &'a mut [f32],
) -> &'a [T] {
    let inner = axes.last().expect("axes are never empty");
    if inner.strides[operand] == 1 {
        return &x[place..place + len];
    }
    let repeated: &mut [T] = &mut bytemuck::cast_slice_mut(scratch)[..len];
    repeated.fill(x[place]);
    repeated
}

/// The launch of an expression in terms of `a`, `b`, of these constants as `params`, and for gradients of `dy`
/// (Input(2), a tensor like `to`).
pub(super) fn plan(
    expression: &'static str,
    gradient: bool,
    [a, b]: [&Spec; 2],
    constants: &[Param],
    to: &Spec,
) -> Plan {
    let elements = to.shape.elements();
    if elements == 0 {
        return Plan::default(); // whose dimensions need not fit parameters
    }
    if !only_b_repeats(&to.shape, &a.shape, &b.shape) {
        let axes = broadcast_axes(&to.shape, [&a.shape, &b.shape]);
        return strided_plan(expression, gradient, [a.dtype, b.dtype], &axes, constants, to);
    }
    let len_b = b.shape.elements();
    // Vectors of b line up with those of a if b is repeated in whole vectors, or not at all.
    let vec_b = len_b.is_multiple_of(4) || len_b == elements;
    let mut buffers = vec![
        buffer("a_values", a.dtype.wgsl(4), Operand::Input(0)),
        buffer("b_values", b.dtype.wgsl(if vec_b { 4 } else { 1 }), Operand::Input(1)),
    ];
    buffers.extend(gradient.then_some(buffer("grad_output", to.dtype.wgsl(4), Operand::Input(2))));
    buffers.push(buffer("result", to.dtype.wgsl(4), Operand::Output(0)));
    Plan::one(Launch {
        shader: shader!(binary),
        values: vec![
            ("expression", expression.into()),
            ("gradient", gradient.into()),
            ("strided", false.into()),
            ("T", computed(b.dtype).into()),
            ("T_a", a.dtype.name().into()),
            ("T_b", b.dtype.name().into()),
            ("T_out", to.dtype.name().into()),
            ("vec_b", vec_b.into()),
        ],
        buffers,
        params: [&[param("len", elements), param("len_b", len_b)], constants].concat(),
        workgroups: elements.div_ceil(1024),
    })
}

/// The compute type of this element type.
fn computed(dtype: DType) -> &'static str {
    if dtype == DType::U32 { "u32" } else { "f32" }
}

/// [`plan`] for operands of any strides: a, b, and with a third `c` too.
pub(super) fn strided_plan<const N: usize>(
    expression: &'static str,
    gradient: bool,
    types: [DType; N],
    axes: &[Axis<N>],
    constants: &[Param],
    to: &Spec,
) -> Plan {
    let elements = to.shape.elements();
    let names = ["a_values", "b_values", "c_values"];
    let operands = (0..N).map(|i| buffer(names[i], types[i].wgsl(1), Operand::Input(i)));
    let mut buffers: Vec<_> = operands.collect();
    buffers.extend(gradient.then_some(buffer("grad_output", to.dtype.wgsl(4), Operand::Input(N))));
    buffers.push(buffer("result", to.dtype.wgsl(4), Operand::Output(0)));
    let type_names = ["T_a", "T_b", "T_c"].into_iter().zip(types);
    let values = [
        ("expression", expression.into()),
        ("gradient", gradient.into()),
        ("strided", true.into()),
        ("T", computed(types[0]).into()),
        ("T_out", to.dtype.name().into()),
        ("operands", N.into()),
        ("rank", axes.len().into()),
    ];
    Plan::one(Launch {
        shader: shader!(binary),
        values: values.into_iter().chain(type_names.map(|(name, dtype)| (name, dtype.name().into()))).collect(),
        buffers,
        params: [&[param("len", elements)], &axis_params(axes)[..], constants].concat(),
        workgroups: elements.div_ceil(1024),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_lined_up_at_the_end() {
        let of = |a: &[usize], b: &[usize]| broadcast_shape("add", [&a.into(), &b.into()]).map(|shape| shape.to_vec());
        assert_eq!(of(&[3, 1], &[2, 1, 5]).unwrap(), [2, 3, 5]);
        assert_eq!(of(&[], &[4]).unwrap(), [4]);
        assert_eq!(of(&[0, 1], &[1, 3]).unwrap(), [0, 3]);
        for (a, b) in [(&[2][..], &[3][..]), (&[2, 3], &[2]), (&[0], &[2])] {
            assert!(matches!(of(a, b), Err(Error::Shape { op: "add", .. })), "{a:?} {b:?}");
        }
    }

    #[test]
    fn more_dimensions_than_a_launch_describes_are_refused() {
        let (a, b): (Vec<_>, Vec<_>) = (0..7).map(|i| if i % 2 == 0 { (2, 1) } else { (1, 2) }).unzip();
        assert!(broadcast_shape("add", [&a[1..].into(), &b[1..].into()]).is_ok());
        assert!(broadcast_shape("add", [&a.into(), &b.into()]).is_err());
        // Joined they are one.
        assert!(broadcast_shape("add", [&[2; 9].into(), &[2; 9].into()]).is_ok());
    }
}
