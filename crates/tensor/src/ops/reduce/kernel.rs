//! The kernel of every reduction: y (outer, inner) from x (outer, n, inner), in up to two passes.

use super::*;
use crate::cpu::{math, maximum, minimum, product_of, sum_of, vectorized, with_scratch};
use crate::gpu::{Limits, Operand, Param, Plan, buffer, param};
use crate::shader;
use rayon::prelude::*;

/// How the elements become one. Some kinds compare each with a number `c` of its output, the second input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReduceKind {
    /// factor * the sum of x.
    Sum,
    Max,
    Min,
    Prod,
    /// The largest, or 0 if that is not finite.
    FiniteMax,
    /// factor * the sum of (x - c)^2.
    SquaresAbout,
    /// c + log of the sum of e^(x - c).
    LogSumExpAbout,
    /// The number of elements equal to c.
    CountEqual,
    /// The number of zeros.
    CountZeros,
    /// The product of nonzero elements.
    ProdOfOthers,
    /// The index (u32) of the first element equal to c; the last index if there is none.
    FirstEqual,
}
use ReduceKind::*;

/// Dimensions of a reduction: x is (outer, n, inner), y is (outer, inner).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ReduceDims {
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

impl ReduceDims {
    pub fn elements(self) -> usize {
        self.outer * self.n * self.inner
    }

    /// Elements of x per GPU thread, and whether they share one output: four if rows are whole vectors.
    pub fn vector(self) -> (usize, bool) {
        let along_n = self.inner == 1 && self.n.is_multiple_of(4);
        (if along_n || self.inner.is_multiple_of(4) { 4 } else { 1 }, along_n)
    }
}

impl ReduceKind {
    /// Shader expressions: initial value ("first": an element), map of an element `x`, combination of two values, and
    /// finish.
    fn wgsl(self) -> [&'static str; 4] {
        const SUM: &str = "a + b";
        let total = "params.factor * total";
        match self {
            Sum => ["0.0", "x", SUM, total],
            Max => ["first", "x", "max(a, b)", total],
            Min => ["first", "x", "min(a, b)", total],
            Prod => ["1.0", "x", "a * b", total],
            FiniteMax => ["first", "x", "max(a, b)", "select(T(0.0), total, abs(total) <= T(3.4028234e38))"],
            SquaresAbout => ["0.0", "(x - c) * (x - c)", SUM, total],
            LogSumExpAbout => ["0.0", "exp(x - c)", SUM, "log(total) + c"],
            CountEqual => ["0.0", "select(T(0.0), T(1.0), x == c)", SUM, total],
            CountZeros => ["0.0", "select(T(0.0), T(1.0), x == T(0.0))", SUM, total],
            ProdOfOthers => ["1.0", "select(x, T(1.0), x == T(0.0))", "a * b", total],
            FirstEqual => {
                ["0xffffffffu", "select(T(0xffffffffu), T(row), x == c)", "min(a, b)", "min(total, T(params.last))"]
            }
        }
    }

    /// That of y.
    fn dtype(self) -> DType {
        if self == FirstEqual { DType::U32 } else { DType::F32 }
    }

    /// Whether the second input says what elements are compared with.
    fn has_center(self) -> bool {
        matches!(self, SquaresAbout | LogSumExpAbout | CountEqual | FirstEqual)
    }
}

/// Reduces x, of a shape with these dims, to y. Inputs: x, and c (outer, inner) if the kind has it.
pub(super) struct Reduce {
    pub name: &'static str,
    pub kind: ReduceKind,
    pub dims: ReduceDims,
    pub factor: f32,
    /// The shape of x.
    pub from: Shape,
    /// The shape of y.
    pub to: Shape,
}

impl Kernel for Reduce {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name, inputs)?;
        if self.dims.n == 0 && matches!(self.kind, Max | Min) {
            return Err(shape_error(self.name, "dimensions that are not empty", inputs[0]));
        }
        Ok(vec![Spec::new(self.to.clone(), self.kind.dtype())])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let center = inputs.get(1).map_or(&[][..], View::f32);
        match self.kind {
            FirstEqual => first_equal(self.dims, inputs[0].f32(), center, outputs[0].u32()),
            kind => reduce_cpu(kind, self.dims, self.factor, false, inputs[0].f32(), center, outputs[0].f32()),
        }
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        reduce_plan(self.kind, self.dims, self.factor, DType::F32, false, 1)
    }
}

/// A row of workgroups that keeps the largest GPUs busy: eight of 256 threads on each of 128 processors.
const WORKGROUPS: usize = 1024;
/// So few outputs leave many processors idle: more threads share each.
const FEW_WORKGROUPS: usize = 128;

/// Operands of a reduction launch.
struct Pass {
    x: (Operand, DType),
    results: Vec<Operand>,
    accumulate: bool,
    has_center: bool,
    /// Parameter of the finish.
    number: Param,
}

/// The launches that reduce `Input(0)` to `Output(0)`, or to two outputs that halve `inner`.
pub(super) fn reduce_plan(
    kind: ReduceKind,
    dims: ReduceDims,
    factor: f32,
    input: DType,
    accumulate: bool,
    outputs: usize,
) -> Plan {
    let mut plan = Plan::default();
    let results = (0..outputs).map(Operand::Output).collect();
    let (chunk, chunks) = split(dims);
    let first = (Operand::Input(0), input);
    if dims.outer * dims.inner == 0 {
        return plan; // whose other dimensions need not fit parameters
    }
    let [identity, element, join, finish] = kind.wgsl();
    let number = match kind {
        FirstEqual => param("last", dims.n.saturating_sub(1)),
        _ => param("factor", factor),
    };
    if chunks == 1 {
        let pass = Pass { x: first, results, accumulate, has_center: kind.has_center(), number };
        plan.launches.push(reduce_launch(dims, dims.n, [identity, element, join, finish], pass));
        return plan;
    }
    let (results_of_chunks, has_center) = (vec![Operand::Scratch(0)], kind.has_center());
    let pass = Pass { x: first, results: results_of_chunks, accumulate: false, has_center, number };
    plan.launches.push(reduce_launch(dims, chunk, [identity, element, join, "total"], pass));
    let partials = (Operand::ReadScratch(0), kind.dtype());
    let pass = Pass { x: partials, results, accumulate, has_center: kind == LogSumExpAbout, number };
    plan.launches.push(reduce_launch(ReduceDims { n: chunks, ..dims }, chunks, [identity, "x", join, finish], pass));
    plan.scratch.push(4 * dims.outer * chunks * dims.inner);
    plan
}

/// The dimensions in shader elements: vectors of four if each output's part of inner is a multiple of four and inner is
/// wide enough.
fn in_vectors(dims: ReduceDims, outputs: usize) -> (ReduceDims, usize) {
    if (dims.inner / outputs).is_multiple_of(4) && dims.inner >= 128 {
        (ReduceDims { inner: dims.inner / 4, ..dims }, 4)
    } else {
        (dims, 1)
    }
}

/// Outputs per workgroup, and threads that share each.
fn tile(dims: ReduceDims, vector: usize) -> (usize, usize) {
    if dims.vector().1 {
        // Eight vectors for each thread where there are outputs enough.
        let each = if dims.outer >= 8 * WORKGROUPS { 8 } else { 2 };
        let lanes = (dims.n / 4).div_ceil(each).next_power_of_two().min(256);
        return (256 / lanes, lanes);
    }
    // At least 128 bytes of neighbouring outputs: a cache line of a row.
    let most = if vector == 1 || dims.outer * dims.inner > 32 * FEW_WORKGROUPS { 8 } else { 32 };
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
    let (dims, vector) = in_vectors(dims, 1);
    let (cols, lanes) = tile(dims, vector);
    let blocks = (dims.outer * dims.inner).div_ceil(cols).max(1);
    let chunks = WORKGROUPS.div_ceil(blocks).min(dims.n.div_ceil(16 * lanes)).max(1);
    let chunk = dims.n.div_ceil(chunks).max(1);
    let chunk = if dims.vector().1 { chunk.next_multiple_of(4) } else { chunk };
    (chunk, dims.n.div_ceil(chunk).max(1))
}

/// `steps` is what [`ReduceKind::wgsl`] says, or a part of it where partial results are written or read.
fn reduce_launch(dims: ReduceDims, chunk: usize, steps: [&'static str; 4], pass: Pass) -> Launch {
    let Pass { x: (x, dtype), results, accumulate, has_center, number } = pass;
    let (dims, vector) = in_vectors(dims, results.len());
    let ReduceDims { outer, n, inner } = dims;
    let (cols, lanes) = tile(dims, vector);
    let outputs = outer * inner;
    let blocks = outputs.div_ceil(cols);
    let chunks = n.div_ceil(chunk.max(1)).max(1);
    let [identity, element, join, finish] = steps;
    // Of numbers of rows, and of what counts.
    let total = if number.name == "last" { DType::U32 } else { DType::F32 };
    let wide = dims.vector().1;
    let mut buffers = vec![buffer("x_values", dtype.wgsl(if wide { 4 } else { vector }), x)];
    buffers.extend(has_center.then_some(buffer("center", DType::F32.wgsl(vector), Operand::Input(1))));
    let names = ["result", "second"].into_iter().zip(&results);
    buffers.extend(names.map(|(name, result)| buffer(name, total.wgsl(vector), *result)));
    Launch {
        shader: shader!(reduce),
        values: vec![
            ("mode", "reduce".into()),
            ("identity", identity.into()),
            ("element", element.into()),
            ("join", join.into()),
            ("finish", finish.into()),
            ("has_center", has_center.into()),
            ("T", total.wgsl(vector).into()),
            ("T_in", dtype.name().into()),
            ("X", if dtype == DType::U32 { DType::U32 } else { DType::F32 }.wgsl(vector).into()),
            ("cols", cols.into()),
            ("lanes", lanes.into()),
            ("inner_is_one", (inner == 1).into()),
            ("wide", wide.into()),
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
            number,
        ],
        workgroups: blocks * chunks,
    }
}

/// y (outer, inner) from x (outer, n, inner) and `center` (outer, inner), empty if the kind has none.
pub(super) fn reduce_cpu(
    kind: ReduceKind,
    dims: ReduceDims,
    factor: f32,
    accumulate: bool,
    x: &[f32],
    center: &[f32],
    y: &mut [f32],
) {
    let ReduceDims { outer, n, inner } = dims;
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
            let center = center.get(o * inner..(o + 1) * inner).unwrap_or_default();
            vectorized(
                #[inline(always)]
                || reduce_rows(kind, rows, center, partial),
            );
        });
        let sums = y.par_chunks_mut(inner).zip(totals.par_chunks_mut(inner)).zip(partials.par_chunks(chunks * inner));
        sums.enumerate().for_each(|(o, ((y, total), partials))| {
            let joined = match kind {
                Max | FiniteMax => Max,
                Min => Min,
                Prod | ProdOfOthers => Prod,
                _ => Sum,
            };
            vectorized(
                #[inline(always)]
                || reduce_rows(joined, partials, &[], total),
            );
            match kind {
                LogSumExpAbout => {
                    for ((y, total), c) in y.iter_mut().zip(total).zip(&center[o * inner..]) {
                        *y = total.ln() + c;
                    }
                }
                FiniteMax => {
                    y.iter_mut().zip(total).for_each(|(y, total)| *y = if total.is_finite() { *total } else { 0.0 });
                }
                _ => {
                    for (y, total) in y.iter_mut().zip(total) {
                        *y = if accumulate { *y + factor * *total } else { factor * *total };
                    }
                }
            }
        });
    });
}

/// Reduces rows of `y.len()` elements to one.
#[inline(always)]
fn reduce_rows(kind: ReduceKind, rows: &[f32], center: &[f32], y: &mut [f32]) {
    match kind {
        Max | FiniteMax => match y {
            [y] => *y = maximum(rows),
            y => join_rows(rows, y, f32::NEG_INFINITY, |y, x| y.max(x)),
        },
        Min => match y {
            [y] => *y = minimum(rows),
            y => join_rows(rows, y, f32::INFINITY, |y, x| y.min(x)),
        },
        Prod => match y {
            [y] => *y = product_of(rows, |x| x),
            y => join_rows(rows, y, 1.0, |y, x| y * x),
        },
        ProdOfOthers => match y {
            [y] => *y = product_of(rows, |x| if x == 0.0 { 1.0 } else { x }),
            y => join_rows(rows, y, 1.0, |y, x| if x == 0.0 { y } else { y * x }),
        },
        Sum => match y {
            [y] => *y = sum_of([rows], |[x]| x),
            y => join_rows(rows, y, 0.0, |y, x| y + x),
        },
        CountZeros => match y {
            [y] => *y = sum_of([rows], |[x]| if x == 0.0 { 1.0 } else { 0.0 }),
            y => join_rows(rows, y, 0.0, |y, x| if x == 0.0 { y + 1.0 } else { y }),
        },
        SquaresAbout => sum_about(rows, center, y, |x, c| (x - c) * (x - c)),
        LogSumExpAbout => sum_about(rows, center, y, |x, c| math::exp(x - c)),
        CountEqual => sum_about(rows, center, y, |x, c| if x == c { 1.0 } else { 0.0 }),
        FirstEqual => unreachable!("it has a loop of its own"),
    }
}

/// y = the rows joined one after the other.
#[inline(always)]
fn join_rows(rows: &[f32], y: &mut [f32], identity: f32, join: impl Fn(f32, f32) -> f32) {
    y.fill(identity);
    for row in rows.chunks_exact(y.len()) {
        for (y, x) in y.iter_mut().zip(row) {
            *y = join(*y, *x);
        }
    }
}

/// y = the sum of terms of x and c over the rows.
#[inline(always)]
fn sum_about(rows: &[f32], center: &[f32], y: &mut [f32], term: impl Fn(f32, f32) -> f32) {
    if let ([y], [c]) = (&mut *y, center) {
        *y = sum_of([rows], |[x]| term(x, *c));
        return;
    }
    y.fill(0.0);
    for row in rows.chunks_exact(y.len()) {
        for ((y, x), c) in y.iter_mut().zip(row).zip(center) {
            *y += term(*x, *c);
        }
    }
}

/// y = the index of the first row of x that equals c.
fn first_equal(dims: ReduceDims, x: &[f32], center: &[f32], y: &mut [u32]) {
    let ReduceDims { n, inner, .. } = dims;
    let last = n.saturating_sub(1) as u32;
    y.par_chunks_mut(inner.max(1)).zip(center.par_chunks(inner.max(1))).enumerate().for_each(|(o, (y, center))| {
        let x = &x[o * n * inner..(o + 1) * n * inner];
        if let ([y], [c]) = (&mut *y, center) {
            *y = x.iter().position(|x| x == c).map_or(last, |row| row as u32);
            return;
        }
        y.fill(last);
        // From the back, so that the first stays.
        for (row, x) in x.chunks_exact(inner).enumerate().rev() {
            for ((y, x), c) in y.iter_mut().zip(x).zip(center) {
                *y = if x == c { row as u32 } else { *y };
            }
        }
    });
}
