//! Attention on the CPU: one task per batch item and head, blocks of query rows within it, matmuls by `gemm`.
//!
//! A task holds a block of S, `BLOCK` rows by T, never all of it. It adds everything up in one order, so the number of
//! threads changes nothing. Rows of a block are computed whole, with -inf where a query must not look: e^-inf is 0, and
//! whole vectors cost less than the odd elements at a row's end.

use super::{Attention, Dims};
use crate::cpu::{Matrix, Tile, map_and_sum, math, maximum, product, sum_of, tiles, vectorized, with_scratch};
use crate::ops::random::drop_threshold;
use rayon::prelude::*;

/// Query rows at a time: enough for `gemm` to be fast, few enough that a block of S stays in the second-level cache.
const BLOCK: usize = 64;

/// x = exp(scale * x - shift); the sum of the new values.
#[inline(always)]
fn exponentials(x: &mut [f32], scale: f32, shift: f32) -> f32 {
    map_and_sum(
        x,
        #[inline(always)]
        |x| math::exp(scale * x - shift),
    )
}

impl Attention {
    /// Multiplies a row of P by what dropout keeps of it.
    fn drop_out(&self, batch_head: usize, time: usize, i: usize, row: &mut [f32]) {
        let Some((p, key)) = self.dropout else { return };
        let first = key.first_position(self.n_head * time);
        let key = key.row(first.wrapping_add((batch_head * time + i) as u32));
        let (threshold, scale) = (drop_threshold(p), 1.0 / (1.0 - p));
        for (j, x) in row.iter_mut().enumerate() {
            *x *= if key.bits(j as u32) >= threshold { scale } else { 0.0 };
        }
    }
}

/// Where in packed (B, T, 3C) a head's q (part 0), k or v begins; its rows are 3C apart.
fn packed_at(d: Dims, batch_head: usize, part: usize) -> usize {
    let (b, h) = (batch_head / d.n_head, batch_head % d.n_head);
    b * d.time * 3 * d.width() + part * d.width() + h * d.head_size
}

/// y (B, T, C) and L (B, n_head, T) of qkv (B, T, 3C).
pub(super) fn forward(op: &Attention, d: Dims, qkv: &[f32], y: &mut [f32], lse: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    let heads = tiles(y, [1, d.width()], d.time, d.head_size).zip(lse.par_chunks_mut(d.time)).enumerate();
    heads.for_each(|(head, (y, lse))| {
        let qkv = [0, 1, 2].map(|part| Matrix::rows(&qkv[packed_at(d, head, part)..], 3 * d.width()));
        forward_head(op, d, head, qkv, 0, y, Some(lse));
    });
}

/// y (1, n, C) of the queries in packed (1, n, 3C), of tokens that follow `before` others: the keys and values of all
/// are in the cache (before + n or more, 2C).
pub(super) fn cached(d: Dims, before: usize, qkv: &[f32], cache: &[f32], y: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    let op = Attention { n_head: d.n_head, dropout: None };
    tiles(y, [1, d.width()], d.time, d.head_size).enumerate().for_each(|(head, y)| {
        let q = Matrix::rows(&qkv[packed_at(d, head, 0)..], 3 * d.width());
        let [k, v] = [0, d.width()].map(|part| Matrix::rows(&cache[part + head * d.head_size..], 2 * d.width()));
        forward_head(&op, d, head, [q, k, v], before, y, None);
    });
}

/// y (T, head_size) and L (T) of the T queries of one head, whose first sees `before` keys before its own.
fn forward_head(
    op: &Attention,
    d: Dims,
    batch_head: usize,
    [q, k, v]: [Matrix; 3],
    before: usize,
    mut y: Tile,
    mut lse: Option<&mut [f32]>,
) {
    let (hs, scale) = (d.head_size, Attention::scale(d));
    with_scratch(BLOCK.min(d.time) * (before + d.time), |scores| {
        for start in (0..d.time).step_by(BLOCK) {
            let rows = BLOCK.min(d.time - start);
            let keys = before + start + rows; // no row of the block sees more
            product(scores, keys, false, [rows, keys, hs], q.skip_rows(start), k.transposed());
            vectorized(
                #[inline(always)]
                || {
                    for (r, row) in scores.chunks_exact_mut(keys).take(rows).enumerate() {
                        let i = start + r;
                        row[before + i + 1..].fill(f32::NEG_INFINITY);
                        let row_max = scale * maximum(row);
                        let sum = exponentials(row, scale, row_max);
                        if let Some(lse) = &mut lse {
                            lse[i] = row_max + sum.ln();
                        }
                        let inv_sum = 1.0 / sum;
                        for p in row.iter_mut() {
                            *p *= inv_sum;
                        }
                        op.drop_out(batch_head, d.time, i, &mut row[..=before + i]);
                    }
                },
            );
            y.product(0, start..start + rows, false, keys, Matrix::rows(scores, keys), v);
        }
    });
}

/// dqkv (B, T, 3C) of qkv (B, T, 3C), y (B, T, C), L (B, n_head, T) and dy (B, T, C).
pub(super) fn backward(op: &Attention, d: Dims, inputs: [&[f32]; 4], dqkv: &mut [f32]) {
    if dqkv.is_empty() {
        return;
    }
    let heads = tiles(dqkv, [3, d.width()], d.time, d.head_size).enumerate();
    heads.for_each(|(head, out)| backward_head(op, d, inputs, head, out));
}

/// dq, dk and dv (T, head_size) of one head: the parts of its tile.
fn backward_head(op: &Attention, d: Dims, inputs: [&[f32]; 4], batch_head: usize, mut out: Tile) {
    let [qkv, y, lse, dy] = inputs;
    let (hs, scale) = (d.head_size, Attention::scale(d));
    let (step, y_step) = (3 * d.width(), d.width());
    let [q, k, v] = [0, 1, 2].map(|part| Matrix::rows(&qkv[packed_at(d, batch_head, part)..], step));
    let y_at = batch_head / d.n_head * d.time * y_step + batch_head % d.n_head * hs;
    let lse = &lse[batch_head * d.time..][..d.time];
    let size = BLOCK.min(d.time) * d.time;
    // dk and dv are sums over blocks, the first of which does not see all keys.
    let sums = d.time > BLOCK;
    if sums {
        (0..d.time).for_each(|t| [1, 2].into_iter().for_each(|part| out.row(part, t).fill(0.0)));
    }
    with_scratch(3 * size, |scratch| {
        let (p, rest) = scratch.split_at_mut(size);
        let (ds, kept) = rest.split_at_mut(size);
        for start in (0..d.time).step_by(BLOCK) {
            let rows = BLOCK.min(d.time - start);
            let keys = start + rows;
            let q = q.skip_rows(start);
            let (y, dy) = (&y[y_at + start * y_step..], &dy[y_at + start * y_step..]);
            let dy_rows = Matrix::rows(dy, y_step);
            product(p, keys, false, [rows, keys, hs], q, k.transposed());
            product(ds, keys, false, [rows, keys, hs], dy_rows, v.transposed()); // dy v^T, made dS below
            vectorized(
                #[inline(always)]
                || {
                    for r in 0..rows {
                        let i = start + r;
                        let (p, ds, kept) =
                            (&mut p[r * keys..][..keys], &mut ds[r * keys..][..keys], &mut kept[r * keys..][..keys]);
                        p[i + 1..].fill(f32::NEG_INFINITY);
                        exponentials(p, scale, lse[i]);
                        let delta = sum_of([&y[r * y_step..][..hs], &dy[r * y_step..]], |[y, dy]| y * dy);
                        if op.dropout.is_some() {
                            kept.copy_from_slice(p);
                            op.drop_out(batch_head, d.time, i, &mut kept[..=i]);
                            for ((ds, p), kept) in ds.iter_mut().zip(&*p).zip(&*kept) {
                                *ds = (kept * *ds - p * delta) * scale;
                            }
                        } else {
                            for (ds, p) in ds.iter_mut().zip(&*p) {
                                *ds = p * (*ds - delta) * scale;
                            }
                        }
                        ds[i + 1..].fill(0.0); // 0 times what should not be seen is NaN if that is
                    }
                },
            );
            let kept = Matrix::rows(if op.dropout.is_some() { kept } else { p }, keys);
            let ds = Matrix::rows(ds, keys);
            out.product(0, start..keys, false, keys, ds, k);
            out.product(1, 0..keys, sums, rows, ds.transposed(), q);
            out.product(2, 0..keys, sums, rows, kept.transposed(), dy_rows);
        }
    });
}
