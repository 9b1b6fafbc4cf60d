//! Makes matrices orthogonal, nearly: X = U S V^T becomes U S' V^T, with S' between 0.7 and 1.2 or so.
//!
//! ```text
//! X <- X / max(|X|, 1e-7)                                                      Frobenius' norm, so that S <= 1
//! X <- a X + b (X X^T) X + c (X X^T)^2 X, several times                        a, b, c of Jordan et al. 2024
//! ```
//! As a polynomial of the Gram matrix of the shorter side: G = X X^T and P = a I + b G + c G^2, X <- P X; or G = X^T X
//! and X <- X P where X has more rows than columns. In f32.

use crate::cpu::{CHUNK, sum_of, vectorized};
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::ops::MatMul;
use crate::pool::size_class;
use crate::profile::{Cost, MemoryKind};
use crate::tensor::{DType, Kernel, Spec, View, ViewMut, run_into};
use crate::{Device, Result, Shape, Tensor, shader};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Coefficients whose slope at zero is as steep as can be (Jordan et al. 2024).
const A: f32 = 3.4445;
const B: f32 = -4.7750;
const C: f32 = 2.0315;

/// The smallest norm that is divided by.
const EPS: f32 = 1e-7;

/// What a batch of N matrices takes.
pub(super) struct Buffers {
    /// (N, R, C): the matrices.
    pub x: Tensor,
    /// (N, R, C).
    pub y: Tensor,
    /// (N, S, S), with S the shorter of R and C.
    pub gram: Tensor,
    /// (N, S, S).
    pub polynomial: Tensor,
}

/// Elements of the buffers of a matrix of this shape.
pub(super) fn elements(rows: usize, cols: usize) -> usize {
    let side = rows.min(cols);
    2 * rows * cols + 2 * side * side
}

/// The kernels of one iteration: of the Gram matrix, its square, and the product with a polynomial of it.
fn gemms(rows: usize, cols: usize) -> [MatMul; 3] {
    let is_tall = rows > cols;
    let gram = MatMul { trans_a: is_tall, trans_b: !is_tall, ..MatMul::default() };
    [gram, MatMul::default(), MatMul::default()]
}

/// x (N, R, C) made orthogonal in `steps` iterations; in one of the buffers.
pub(super) fn orthogonalize(buffers: Buffers, steps: usize) -> Result<Tensor> {
    let Buffers { mut x, mut y, gram, polynomial } = buffers;
    let &[_, rows, cols] = &x.shape()[..] else { unreachable!("a batch of matrices") };
    run_into(&Normalize { spec: x.spec().clone() }, &[], &[&x])?;
    let [of_gram, square, product] = gemms(rows, cols);
    for _ in 0..steps {
        run_into(&of_gram, &[&x, &x], &[&gram])?;
        run_into(&square, &[&gram, &gram], &[&polynomial])?;
        run_into(&Polynomial, &[&gram], &[&polynomial])?;
        let factors = if rows > cols { [&x, &polynomial] } else { [&polynomial, &x] };
        run_into(&product, &factors, &[&y])?;
        std::mem::swap(&mut x, &mut y);
    }
    Ok(x)
}

/// Takes the scratch memory of the GEMMs of these batches (N, R, C), and gives it back: the device keeps it, so that
/// none fails halfway for want of it.
///
/// # Errors
/// If the device has no memory left.
pub(super) fn reserve_scratch(batches: impl Iterator<Item = [usize; 3]>, device: &Device) -> Result<()> {
    let mut most: BTreeMap<usize, usize> = BTreeMap::new();
    for [count, rows, cols] in batches {
        for scratch in scratch(count, rows, cols, device.limits()) {
            let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
            scratch.into_iter().for_each(|size| *counts.entry(size_class(size)).or_default() += 1);
            for (class, count) in counts {
                let most = most.entry(class).or_default();
                *most = count.max(*most);
            }
        }
    }
    let sizes = most.into_iter().flat_map(|(class, count)| std::iter::repeat_n(class, count));
    let take = |bytes: usize| Tensor::empty(Spec::new([bytes / 4], DType::F32), device, MemoryKind::Scratch);
    sizes.map(take).collect::<Result<Vec<_>>>().map(drop)
}

/// The sizes in bytes of the scratch buffers of each kernel.
fn scratch(count: usize, rows: usize, cols: usize, limits: &Limits) -> Vec<Vec<usize>> {
    let side = rows.min(cols);
    let [x, gram] = [[count, rows, cols], [count, side, side]].map(|shape| Spec::new(shape, DType::F32));
    let factors = if rows > cols { [&x, &gram] } else { [&gram, &x] };
    let [of_gram, square, product] = gemms(rows, cols);
    let plans = [
        Normalize { spec: x.clone() }.gpu(&[], &[&x], limits),
        of_gram.gpu(&[&x, &x], &[&gram], limits),
        square.gpu(&[&gram, &gram], &[&gram], limits),
        product.gpu(&factors, &[&x], limits),
    ];
    plans.into_iter().map(|plan| plan.scratch).collect()
}

/// (N, R, C) -> how many matrices, and the elements of each.
fn sizes(shape: &Shape) -> (usize, usize) {
    (shape[0], shape[1] * shape[2])
}

/// Divides each matrix of (N, R, C), in place, by its norm.
struct Normalize {
    spec: Spec,
}

impl Normalize {
    /// Workgroups for each matrix, at most.
    const PARTS: usize = 64;
}

impl Kernel for Normalize {
    fn name(&self) -> &'static str {
        "muon_normalize"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![self.spec.clone()])
    }

    fn cost(&self, _: &[&Spec], outputs: &[&Spec]) -> Cost {
        let len = outputs[0].shape.elements() as f64;
        Cost { flops: 3.0 * len, bytes: 12.0 * len }
    }

    fn cpu(&self, _: &[View], outputs: &mut [ViewMut]) {
        let (_, len) = sizes(&outputs[0].spec.shape);
        outputs[0].f32().par_chunks_mut(len).for_each(|x| {
            let of_chunk = |x: &[f32]| {
                let squares = x.chunks(256).map(|x| f64::from(vectorized(|| sum_of([x], |[x]| x * x))));
                squares.sum::<f64>()
            };
            let squares: Vec<f64> = x.par_chunks(CHUNK).map(of_chunk).collect();
            let factor = 1.0 / (squares.iter().sum::<f64>().sqrt() as f32).max(EPS);
            x.par_chunks_mut(CHUNK).for_each(|x| x.iter_mut().for_each(|x| *x *= factor));
        });
    }

    fn gpu(&self, _: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let (count, len) = sizes(&outputs[0].shape);
        let parts = len.div_ceil(1024).min(Normalize::PARTS);
        let pass = |pass: &'static str, sums| Launch {
            shader: shader!(newton_schulz),
            values: vec![("pass", pass.into())],
            buffers: vec![buffer("x", "f32", Operand::Output(0)), buffer("sums", "f32", sums)],
            params: vec![param("len", len), param("parts", parts), param("eps", EPS)],
            workgroups: count * parts,
        };
        Plan {
            scratch: vec![4 * count * parts],
            launches: vec![pass("squares", Operand::Scratch(0)), pass("normalize", Operand::ReadScratch(0))],
        }
    }
}

/// P = a I + b G + c P, in place, from G and P = G^2: (N, S, S).
struct Polynomial;

impl Kernel for Polynomial {
    fn name(&self) -> &'static str {
        "muon_polynomial"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        let len = inputs[0].shape.elements() as f64;
        Cost { flops: 4.0 * len, bytes: 12.0 * len }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let side = inputs[0].spec.shape.last_dim();
        let rows = outputs[0].f32().par_chunks_mut(side).zip(inputs[0].f32().par_chunks(side)).enumerate();
        rows.with_min_len(16).for_each(|(row, (p, g))| {
            p.iter_mut().zip(g).for_each(|(p, g)| *p = B * g + C * *p);
            p[row % side] += A;
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let (len, side) = (inputs[0].shape.elements(), inputs[0].shape.last_dim());
        Plan::one(Launch {
            shader: shader!(newton_schulz),
            values: vec![("pass", "polynomial".into())],
            buffers: vec![buffer("gram", "f32", Operand::Input(0)), buffer("polynomial", "f32", Operand::Output(0))],
            params: vec![param("len", len), param("side", side), param("a", A), param("b", B), param("c", C)],
            workgroups: len.div_ceil(256),
        })
    }
}
