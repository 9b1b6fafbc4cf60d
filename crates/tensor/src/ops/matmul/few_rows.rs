//! GEMMs of few rows on the CPU, as in a step of generation: bound by reading b once.

use super::{Dims, MatMul, cpu::Operands};
use crate::cpu::{sum_of, threads, tiles, vectorized};
use rayon::prelude::*;

/// Elements of b that a task multiplies, at least.
const TASK: usize = 1 << 15;
/// Columns of b that are added up at a time: their sums stay in the nearest cache.
const COLUMNS: usize = 512;

/// `y = a op(b) [+ bias]`, or `y += a op(b)` with `accumulate`.
pub(super) fn compute(kernel: &MatMul, d: &Dims, operands: Operands, y: &mut [f32]) {
    let Operands { a, b, bias, .. } = operands;
    let &Dims { m, n, k, .. } = d;
    if y.is_empty() {
        return;
    }
    // As many columns of y for each task as share few threads evenly.
    let least = (TASK / k).max(1);
    let width = n.div_ceil(4 * threads()).clamp(least.min(n), COLUMNS.max(least));
    tiles(y, n, m, width).enumerate().for_each(|(task, mut tile)| {
        let first = task * width;
        for row in 0..m {
            let (a, y) = (&a[row * k..][..k], tile.row(row));
            match kernel.bias {
                true => y.copy_from_slice(&bias[first..][..y.len()]),
                false if !kernel.accumulate => y.fill(0.0),
                false => {}
            }
            vectorized(
                #[inline(always)]
                || match kernel.trans_b {
                    true => {
                        for (y, b) in y.iter_mut().zip(b[first * k..].chunks_exact(k)) {
                            *y += sum_of([a, b], |[a, b]| a * b);
                        }
                    }
                    false => add_columns(a, &b[first..], n, y),
                },
            );
        }
    });
}

/// Adds a (K) b (K, columns of y), whose rows are `n` apart, to y: four rows of b at a time.
#[inline(always)]
fn add_columns(a: &[f32], b: &[f32], n: usize, y: &mut [f32]) {
    let (fours, rest) = a.as_chunks::<4>();
    for (i, a) in fours.iter().enumerate() {
        let row = |j: usize| &b[(4 * i + j) * n..][..y.len()];
        let rows = [row(0), row(1), row(2), row(3)];
        for (c, y) in y.iter_mut().enumerate() {
            *y += (a[0] * rows[0][c] + a[1] * rows[1][c]) + (a[2] * rows[2][c] + a[3] * rows[3][c]);
        }
    }
    for (i, a) in rest.iter().enumerate() {
        let row = &b[(4 * fours.len() + i) * n..][..y.len()];
        y.iter_mut().zip(row).for_each(|(y, b)| *y += a * b);
    }
}
