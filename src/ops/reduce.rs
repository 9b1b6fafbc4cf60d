//! Reductions of one dimension. Shapes: (outer, n, inner) -> (outer, inner), where n is the reduced dimension, outer
//! the product of those before it and inner of those after it.
//!
//! | op | y | dx |
//! |---|---|---|
//! | sum | sum over n of x | dy |
//! | mean | sum / n | dy / n |
//! | max | largest x over n (unspecified if one is NaN) | dy at the first largest x, else 0 |
//!
//! `SumRows` adds up the rows of (R, len): the gradient of anything that was broadcast over rows, or of two such
//! things at once.
//!
//! Sums run in chunks whose partial sums are then added, in an order that depends on the shape alone: the same input
//! gives the same bits, and the rounding error grows with the logarithm of n rather than with n.

use super::*;
use crate::cpu::{sum_of, vectorized, with_scratch};
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::profile::MemoryKind;
use crate::shader;
use crate::tensor::{Edge, Grads, Shape, run_as};
use rayon::prelude::*;

/// How the elements of a dimension become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReduceKind {
    Sum,
    Mean,
    Max,
}
use ReduceKind::*;

/// Reduces dimension `dim`, which is dropped from the shape.
struct Reduce {
    kind: ReduceKind,
    dim: usize,
    /// The input's shape, which backward needs even where it does not need the input.
    from: Shape,
}

/// (R, outputs * len) -> outputs of (len): sums over the rows of anything whose elements are a multiple of that, of one
/// output's columns after the other's. Adds to the outputs instead of replacing them if `accumulate`.
pub(super) struct SumRows {
    pub accumulate: bool,
    pub len: usize,
    /// One or two.
    pub outputs: usize,
}

/// What is reduced: x is (outer, n, inner), y is (outer, inner).
#[derive(Clone, Copy)]
struct ReduceDims {
    outer: usize,
    n: usize,
    inner: usize,
}

impl ReduceDims {
    fn of(shape: &Shape, dim: usize) -> ReduceDims {
        ReduceDims { outer: shape[..dim].iter().product(), n: shape[dim], inner: shape[dim + 1..].iter().product() }
    }

    fn elements(self) -> usize {
        self.outer * self.n * self.inner
    }
}

impl ReduceKind {
    /// What the reduced values are multiplied by.
    fn factor(self, n: usize) -> f32 {
        if self == Mean { 1.0 / n as f32 } else { 1.0 }
    }
}

/// A row of workgroups that keeps the largest GPUs busy: eight of 256 threads on each of 128 processors.
const WORKGROUPS: usize = 1024;
/// So few outputs leave many processors idle: more threads share each.
const FEW_WORKGROUPS: usize = 128;

/// The launches that reduce `Input(0)` to `Output(0)`, or to two outputs that halve `inner`.
fn reduce_plan(kind: ReduceKind, dims: ReduceDims, input: DType, accumulate: bool, outputs: usize) -> Plan {
    let mut plan = Plan::default();
    let first = (Operand::Input(0), input);
    let (input, rest) = match split(dims) {
        (_, 1) => (first, dims.n),
        (chunk, chunks) => {
            plan.scratch.push(4 * dims.outer * chunks * dims.inner);
            let factorless = if kind == Mean { Sum } else { kind };
            plan.launches.push(reduce_launch(factorless, dims, chunk, 1.0, false, first, vec![Operand::Scratch(0)]));
            ((Operand::ReadScratch(0), DType::F32), chunks)
        }
    };
    let factor = kind.factor(dims.n);
    let results = (0..outputs).map(Operand::Output).collect();
    plan.launches.push(reduce_launch(kind, ReduceDims { n: rest, ..dims }, rest, factor, accumulate, input, results));
    plan
}

/// The dims in units of what the shader calls an element: four where each output's part of inner is a multiple of four,
/// and inner wide enough for it.
fn in_vectors(dims: ReduceDims, outputs: usize) -> (ReduceDims, &'static str) {
    if (dims.inner / outputs).is_multiple_of(4) && dims.inner >= 128 {
        (ReduceDims { inner: dims.inner / 4, ..dims }, "vec4<f32>")
    } else {
        (dims, "f32")
    }
}

/// Outputs per workgroup, and threads that share each.
fn tile(dims: ReduceDims, type_name: &str) -> (usize, usize) {
    // At least 128 bytes of neighbouring outputs: a cache line of a row.
    let most = if type_name == "f32" || dims.outer * dims.inner > 32 * FEW_WORKGROUPS { 8 } else { 32 };
    let lanes = if dims.inner >= 32 {
        dims.n.next_power_of_two().min(most)
    } else {
        // A few elements for each thread; with fewer lanes than this, rows further apart are read together.
        dims.n.div_ceil(4).next_power_of_two().min(256 / dims.inner.next_power_of_two())
    };
    (256 / lanes, lanes)
}

/// Rows per chunk, and how many chunks: enough workgroups, but no chunk so short that the second pass costs more.
fn split(dims: ReduceDims) -> (usize, usize) {
    let (dims, type_name) = in_vectors(dims, 1);
    let (cols, lanes) = tile(dims, type_name);
    let blocks = (dims.outer * dims.inner).div_ceil(cols).max(1);
    let chunks = WORKGROUPS.div_ceil(blocks).min(dims.n.div_ceil(16 * lanes)).max(1);
    let chunk = dims.n.div_ceil(chunks).max(1);
    (chunk, dims.n.div_ceil(chunk).max(1))
}

fn reduce_launch(
    kind: ReduceKind,
    dims: ReduceDims,
    chunk: usize,
    factor: f32,
    accumulate: bool,
    (input, dtype): (Operand, DType),
    results: Vec<Operand>,
) -> Launch {
    let (dims, type_name) = in_vectors(dims, results.len());
    let ReduceDims { outer, n, inner } = dims;
    let (cols, lanes) = tile(dims, type_name);
    let outputs = outer * inner;
    let blocks = outputs.div_ceil(cols);
    let chunks = n.div_ceil(chunk.max(1)).max(1);
    let lanes_of_type = if type_name == "f32" { 1 } else { 4 };
    let mut buffers = vec![buffer("x", dtype.wgsl(lanes_of_type), input)];
    let names = ["result", "second"].into_iter().zip(&results);
    buffers.extend(names.map(|(name, result)| buffer(name, type_name, *result)));
    Launch {
        shader: shader!("reduce"),
        values: vec![
            ("mode", "reduce".into()),
            ("kind", if kind == Max { "max" } else { "sum" }.into()),
            ("T", type_name.into()),
            ("T_in", dtype.name().into()),
            ("cols", cols.into()),
            ("lanes", lanes.into()),
            ("inner_is_one", (inner == 1).into()),
            ("accumulate", accumulate.into()),
            ("results", results.len().into()),
        ],
        buffers,
        params: vec![
            param("outputs", outputs),
            param("n", n),
            param("inner", inner),
            param("chunk", chunk),
            param("chunks", chunks),
            param("blocks", blocks),
            param("factor", factor),
        ],
        workgroups: blocks * chunks,
    }
}

/// y (outer, inner) from x (outer, n, inner).
fn reduce_cpu(kind: ReduceKind, dims: ReduceDims, accumulate: bool, x: &[f32], y: &mut [f32]) {
    let ReduceDims { outer, n, inner } = dims;
    let factor = kind.factor(n);
    if y.is_empty() {
        return;
    }
    // Rows per task: about 32 Ki elements, unless `outer` alone makes enough tasks.
    let chunk = if outer >= 64 { n } else { (32_768 / inner).max(1) }.max(1);
    let chunks = n.div_ceil(chunk).max(1);
    // (outer, chunks, inner), then the totals (outer, inner).
    with_scratch(outer * (chunks + 1) * inner, |scratch| {
        let (partials, totals) = scratch.split_at_mut(outer * chunks * inner);
        partials.par_chunks_mut(inner).enumerate().for_each(|(task, partial)| {
            let (o, c) = (task / chunks, task % chunks);
            let rows = &x[(o * n + c * chunk) * inner..(o * n + ((c + 1) * chunk).min(n)) * inner];
            vectorized(
                #[inline(always)]
                || reduce_rows(kind, rows, partial),
            );
        });
        let sums = y.par_chunks_mut(inner).zip(totals.par_chunks_mut(inner)).zip(partials.par_chunks(chunks * inner));
        sums.for_each(|((y, total), partials)| {
            vectorized(
                #[inline(always)]
                || reduce_rows(kind, partials, total),
            );
            for (y, total) in y.iter_mut().zip(total) {
                *y = if accumulate { *y + factor * *total } else { factor * *total };
            }
        });
    });
}

/// Reduces rows of `y.len()` elements to one.
#[inline(always)]
fn reduce_rows(kind: ReduceKind, rows: &[f32], y: &mut [f32]) {
    match (kind, y) {
        (Max, [y]) => *y = rows.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        (Max, y) => {
            y.fill(f32::NEG_INFINITY);
            for row in rows.chunks_exact(y.len()) {
                for (y, x) in y.iter_mut().zip(row) {
                    *y = y.max(*x);
                }
            }
        }
        (_, [y]) => *y = sum_of([rows], |[x]| x),
        (_, y) => {
            y.fill(0.0);
            for row in rows.chunks_exact(y.len()) {
                for (y, x) in y.iter_mut().zip(row) {
                    *y += x;
                }
            }
        }
    }
}

impl Kernel for Reduce {
    fn name(&self) -> &'static str {
        match self.kind {
            Sum => "sum",
            Mean => "mean",
            Max => "max",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), inputs)?;
        let shape = &inputs[0].shape;
        if self.dim >= shape.len() {
            return Err(shape_error(self.name(), format!("a tensor that has dimension {}", self.dim), shape));
        }
        if shape[self.dim] == 0 && self.kind == Max {
            return Err(shape_error(self.name(), "a dimension that is not empty", shape));
        }
        let kept = [&shape[..self.dim], &shape[self.dim + 1..]].concat();
        Ok(vec![Spec::new(kept, DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let dims = ReduceDims::of(&inputs[0].spec.shape, self.dim);
        reduce_cpu(self.kind, dims, false, inputs[0].f32(), outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        reduce_plan(self.kind, ReduceDims::of(&inputs[0].shape, self.dim), DType::F32, false, 1)
    }
}

impl Op for Reduce {
    fn saves(&self) -> Saves {
        match self.kind {
            Sum | Mean => Saves::default(),
            Max => Saves { inputs: &[0], outputs: &[0] },
        }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let dims = ReduceDims::of(&self.from, self.dim);
        let dx = match self.kind {
            Sum | Mean => {
                let factor = self.kind.factor(dims.n);
                grads.run_one(&BroadcastDim { dims, factor, to: self.from.clone() }, &[dy])?
            }
            Max => grads.run_one(&MaxBackward(dims), &[saved.input(0), saved.output(0), dy])?,
        };
        grads.accumulate(0, dx)
    }
}

/// The sum of `x` over what was repeated to its shape from this one.
pub(super) fn sum_to(mut x: Tensor, shape: &Shape) -> Result<Tensor> {
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
        let from = Shape::from([size(&groups[..group]), groups[group].1, size(&groups[group + 1..])]);
        let sum = Reduce { kind: Sum, dim: 1, from: from.clone() };
        x = run_as(MemoryKind::Gradients, &sum, &[&x.view(from, Edge::None)])?.remove(0);
        groups.remove(group);
    }
    Ok(if x.shape() == shape { x } else { x.view(shape.clone(), Edge::None) })
}

impl Kernel for SumRows {
    fn name(&self) -> &'static str {
        "sum_rows"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        if inputs[0].dtype == DType::U32 {
            expect_f32(self.name(), inputs)?;
        }
        let inner = self.outputs * self.len;
        if inner == 0 || !inputs[0].shape.elements().is_multiple_of(inner) {
            return Err(shape_error(self.name(), format!("rows of {inner} elements"), inputs[0]));
        }
        Ok(vec![Spec::new([self.len], DType::F32); self.outputs])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let dims = self.dims(inputs[0].spec);
        let x = inputs[0].f32();
        if let [output] = outputs {
            return reduce_cpu(Sum, dims, self.accumulate, x, output.f32());
        }
        with_scratch(dims.inner, |sums| {
            reduce_cpu(Sum, dims, false, x, sums);
            for (output, sums) in outputs.iter_mut().zip(sums.chunks_exact(self.len)) {
                for (y, sum) in output.f32().iter_mut().zip(sums) {
                    *y = if self.accumulate { *y + sum } else { *sum };
                }
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        reduce_plan(Sum, self.dims(inputs[0]), inputs[0].dtype, self.accumulate, self.outputs)
    }
}

impl SumRows {
    fn dims(&self, input: &Spec) -> ReduceDims {
        let inner = self.outputs * self.len;
        ReduceDims { outer: 1, n: input.shape.elements() / inner, inner }
    }
}

/// dx (outer, n, inner) = factor * dy (outer, inner).
struct BroadcastDim {
    dims: ReduceDims,
    factor: f32,
    to: Shape,
}

impl Kernel for BroadcastDim {
    fn name(&self) -> &'static str {
        "sum_backward"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.to.clone(), DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let ReduceDims { n, inner, .. } = self.dims;
        let dy = inputs[0].f32();
        outputs[0].f32().par_chunks_mut(inner.max(1)).enumerate().for_each(|(row, dx)| {
            let from = row / n * inner;
            for (dx, dy) in dx.iter_mut().zip(&dy[from..from + inner]) {
                *dx = self.factor * dy;
            }
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let ReduceDims { n, inner, .. } = self.dims;
        let len = self.dims.elements();
        Plan::one(Launch {
            shader: shader!("reduce"),
            values: vec![("mode", "broadcast".into()), ("cols", 0usize.into()), ("lanes", 0usize.into())],
            buffers: vec![buffer("grad_output", "f32", Operand::Input(0)), buffer("result", "f32", Operand::Output(0))],
            params: vec![param("len", len), param("n", n), param("inner", inner), param("factor", self.factor)],
            workgroups: len.div_ceil(256),
        })
    }
}

/// dx = dy at the first x that equals y, else 0. Inputs: x (outer, n, inner), y and dy (outer, inner).
struct MaxBackward(ReduceDims);

impl Kernel for MaxBackward {
    fn name(&self) -> &'static str {
        "max_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let ReduceDims { n, inner, .. } = self.0;
        let (x, y, dy) = (inputs[0].f32(), inputs[1].f32(), inputs[2].f32());
        let dx = outputs[0].f32();
        dx.par_chunks_mut((n * inner).max(1)).enumerate().for_each(|(outer, dx)| {
            let x = &x[outer * n * inner..][..n * inner];
            dx.fill(0.0);
            for i in 0..inner {
                let output = outer * inner + i;
                if let Some(first) = (0..n).find(|row| x[row * inner + i] == y[output]) {
                    dx[first * inner + i] = dy[output];
                }
            }
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = self.0.elements();
        Plan::one(Launch {
            shader: shader!("reduce"),
            values: vec![("mode", "max_backward".into()), ("cols", 0usize.into()), ("lanes", 0usize.into())],
            buffers: vec![
                buffer("x", "f32", Operand::Input(0)),
                buffer("maximum", "f32", Operand::Input(1)),
                buffer("grad_output", "f32", Operand::Input(2)),
                buffer("result", "f32", Operand::Output(0)),
            ],
            params: vec![param("len", len), param("n", self.0.n), param("inner", self.0.inner)],
            workgroups: len.div_ceil(256),
        })
    }
}

impl Tensor {
    fn reduce(&self, kind: ReduceKind, dim: usize) -> Result<Tensor> {
        apply_one(Reduce { kind, dim, from: self.shape().clone() }, &[self])
    }

    /// The sum over dimension `dim`, which is dropped: (B, T, C).sum(1) is (B, C).
    ///
    /// # Errors
    /// If the tensor is not f32 or has no such dimension.
    pub fn sum(&self, dim: usize) -> Result<Tensor> {
        self.reduce(Sum, dim)
    }

    /// The mean over dimension `dim`, which is dropped.
    ///
    /// # Errors
    /// If the tensor is not f32 or has no such dimension.
    pub fn mean(&self, dim: usize) -> Result<Tensor> {
        self.reduce(Mean, dim)
    }

    /// The largest value along dimension `dim`, which is dropped. Its gradient goes to the first of equal ones.
    ///
    /// # Errors
    /// If the tensor is not f32, has no such dimension, or that dimension is empty.
    pub fn max(&self, dim: usize) -> Result<Tensor> {
        self.reduce(Max, dim)
    }
}
