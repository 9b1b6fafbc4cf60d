//! Attention on the CPU: one task per batch item and query head (in backward: key/value head), processed in blocks of
//! query rows with `gemm`.
//!
//! A task holds one block of S, `BLOCK` rows by the keys that any of them sees. Its summation order is fixed, so the
//! number of threads does not change the result. Rows of a block are computed in full, with -inf at masked keys:
//! exp(-inf) is 0, and full vectors cost less than a remainder at the end of a row.

use super::{Attention, Dims};
use crate::cpu::{
    Matrix, Tile, map_and_sum, math, maximum, packed_tiles, product, sum_of, tiles, vectorized, with_scratch,
};
use crate::ops::random::drop_threshold;
use rayon::prelude::*;
use std::ops::Range;

/// Query rows at a time: enough for `gemm` to be fast, few enough that a block of S stays in the second-level cache.
const BLOCK: usize = 64;

/// x = exp(scale * x - shift), in place; returns the sum.
#[inline(always)]
fn exponentials(x: &mut [f32], scale: f32, shift: f32) -> f32 {
    map_and_sum(
        x,
        #[inline(always)]
        |x| math::exp(scale * x - shift),
    )
}

impl Attention {
    /// Applies dropout to a row of P, from key `first` on.
    fn drop_out(&self, batch_head: usize, time: usize, i: usize, first: usize, row: &mut [f32]) {
        let Some((p, key)) = self.dropout else { return };
        let first_row = key.first_position(self.heads.n_head * time);
        let key = key.row(first_row.wrapping_add((batch_head * time + i) as u32));
        let (threshold, scale) = (drop_threshold(p), 1.0 / (1.0 - p));
        for (j, x) in row.iter_mut().enumerate() {
            *x *= if key.mask_bits((first + j) as u32) >= threshold { scale } else { 0.0 };
        }
    }

    /// The first key that query `i` sees.
    fn first_key(&self, i: usize, document_start: Option<u32>) -> usize {
        let of_window = self.heads.window.map_or(0, |window| (i + 1).saturating_sub(window));
        of_window.max(document_start.map_or(0, |start| start as usize)).min(i)
    }
}

/// Offsets of a head's q, k and v in a row of packed (B, T, P).
#[derive(Clone, Copy)]
struct PackedHeads {
    q: usize,
    k: usize,
    v: usize,
}

impl PackedHeads {
    /// For a query head and its key/value head.
    fn of(d: Dims, head: usize) -> PackedHeads {
        let kv = d.width() + head / d.group() * d.head_size;
        PackedHeads { q: head * d.head_size, k: kv, v: kv + d.kv_width() }
    }

    fn matrices(self, d: Dims, batch: usize, qkv: &[f32]) -> [Matrix<'_>; 3] {
        let rows = &qkv[batch * d.time * d.packed_width()..];
        [self.q, self.k, self.v].map(|at| Matrix::rows(&rows[at..], d.packed_width()))
    }
}

/// The document starts of a batch item's tokens.
fn of_item(starts: Option<&[u32]>, d: Dims, batch: usize) -> Option<&[u32]> {
    starts.map(|starts| &starts[batch * d.time..][..d.time])
}

/// y (B, T, C) and L (B, n_head, T) of qkv (B, T, P), and `starts` (B, T) if there are documents.
pub(super) fn forward(op: &Attention, d: Dims, qkv: &[f32], starts: Option<&[u32]>, y: &mut [f32], lse: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    let heads = tiles(y, d.width(), d.time, d.head_size).zip(lse.par_chunks_mut(d.time)).enumerate();
    heads.for_each(|(batch_head, (y, lse))| {
        let (batch, head) = (batch_head / d.n_head, batch_head % d.n_head);
        let qkv = PackedHeads::of(d, head).matrices(d, batch, qkv);
        forward_head(op, d, batch_head, qkv, (0, of_item(starts, d, batch)), y, Some(lse));
    });
}

/// The cached tokens of a sequence of a batch; `None` of an idle one.
type Before<'a> = &'a (dyn Fn(usize) -> Option<usize> + Sync);

/// y (B, n, C) of the queries in packed (B, n, P), of tokens that follow `before` others of their sequence: the keys
/// and values of all are in the cache (B, before + n or more, 2 n_kv_head head_size). 0 for idle sequences.
pub fn cached(op: &Attention, d: Dims, before: Before, qkv: &[f32], cache: &[f32], y: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    let of_sequence = cache.len() / d.batch;
    tiles(y, d.width(), d.time, d.head_size).enumerate().for_each(|(batch_head, mut y)| {
        let (batch, head) = (batch_head / d.n_head, batch_head % d.n_head);
        let Some(before) = before(batch) else {
            (0..d.time).for_each(|t| y.row(t).fill(0.0));
            return;
        };
        let [q, ..] = PackedHeads::of(d, head).matrices(d, batch, qkv);
        let kv_head = batch * of_sequence + head / d.group() * d.head_size;
        let [k, v] = [0, d.kv_width()].map(|part| Matrix::rows(&cache[part + kv_head..], 2 * d.kv_width()));
        forward_head(op, d, batch_head, [q, k, v], (before, None), y, None);
    });
}

/// y (T, head_size) and L (T) of one head's T queries, which follow `before` cached keys.
fn forward_head(
    op: &Attention,
    d: Dims,
    batch_head: usize,
    [q, k, v]: [Matrix; 3],
    (before, starts): (usize, Option<&[u32]>),
    mut y: Tile,
    mut lse: Option<&mut [f32]>,
) {
    let (hs, scale) = (d.head_size, Attention::scale(d));
    let first_key = |i: usize| op.first_key(before + i, starts.map(|starts| starts[i]));
    with_scratch(BLOCK.min(d.time) * (before + d.time), |scores| {
        for start in (0..d.time).step_by(BLOCK) {
            let rows = BLOCK.min(d.time - start);
            // No row of the block sees others than these.
            let first = first_key(start);
            let keys = before + start + rows - first;
            let (k, v) = (k.skip_rows(first), v.skip_rows(first));
            product(scores, keys, false, [rows, keys, hs], q.skip_rows(start), k.transposed());
            vectorized(
                #[inline(always)]
                || {
                    for (r, row) in scores.chunks_exact_mut(keys).take(rows).enumerate() {
                        let i = start + r;
                        row[..first_key(i) - first].fill(f32::NEG_INFINITY);
                        row[before + i + 1 - first..].fill(f32::NEG_INFINITY);
                        let row_max = scale * maximum(row);
                        let sum = exponentials(row, scale, row_max);
                        if let Some(lse) = &mut lse {
                            lse[i] = row_max + sum.ln();
                        }
                        let inv_sum = 1.0 / sum;
                        for p in row.iter_mut() {
                            *p *= inv_sum;
                        }
                        op.drop_out(batch_head, d.time, i, first, &mut row[..=before + i - first]);
                    }
                },
            );
            y.product(start..start + rows, false, keys, Matrix::rows(scores, keys), v);
        }
    });
}

/// dqkv (B, T, P) of qkv (B, T, P), y (B, T, C), L (B, n_head, T) and dy (B, T, C), and `starts` (B, T) if there are
/// documents.
pub(super) fn backward(op: &Attention, d: Dims, inputs: [&[f32]; 4], starts: Option<&[u32]>, dqkv: &mut [f32]) {
    if dqkv.is_empty() {
        return;
    }
    // Of each head of keys: the queries that read it, the keys and the values.
    let parts = [d.group() * d.head_size, d.head_size, d.head_size];
    packed_tiles(dqkv, d.time, d.n_kv_head, parts).enumerate().for_each(|(batch_kv_head, out)| {
        let starts = of_item(starts, d, batch_kv_head / d.n_kv_head);
        backward_kv_head(op, d, inputs, starts, batch_kv_head, out);
    });
}

/// Turns a query's scores `p` into P, and its dy v^T in `ds` into dS, for the keys `seen`; other elements become 0.
/// With dropout, `drop` computes P * Z in `kept`.
#[inline(always)]
fn score_gradients(
    [p, ds, kept]: [&mut [f32]; 3],
    seen: Range<usize>,
    [scale, lse, delta]: [f32; 3],
    drop: Option<impl FnOnce(&mut [f32])>,
) {
    p[..seen.start].fill(f32::NEG_INFINITY);
    p[seen.end..].fill(f32::NEG_INFINITY);
    exponentials(p, scale, lse);
    if let Some(drop) = drop {
        kept.copy_from_slice(p);
        drop(&mut kept[..seen.end]);
        for ((ds, p), kept) in ds.iter_mut().zip(&*p).zip(&*kept) {
            *ds = (kept * *ds - p * delta) * scale;
        }
    } else {
        for (ds, p) in ds.iter_mut().zip(&*p) {
            *ds = p * (*ds - delta) * scale;
        }
    }
    // 0 times what should not be seen is NaN if that is.
    ds[..seen.start].fill(0.0);
    ds[seen.end..].fill(0.0);
}

/// dq of the query heads that share one key/value head, and its dk and dv (T, head_size).
fn backward_kv_head(
    op: &Attention,
    d: Dims,
    inputs: [&[f32]; 4],
    starts: Option<&[u32]>,
    batch_kv_head: usize,
    [mut dq, mut dk, mut dv]: [Tile; 3],
) {
    let [qkv, y, lse, dy] = inputs;
    let (batch, kv_head) = (batch_kv_head / d.n_kv_head, batch_kv_head % d.n_kv_head);
    let (scale, y_step) = (Attention::scale(d), d.width());
    let (hs, size) = (d.head_size, BLOCK.min(d.time) * d.time);
    let first_key = |i: usize| op.first_key(i, starts.map(|starts| starts[i]));
    // dk and dv are sums over heads and blocks, the first of which does not see all keys.
    let sums = d.time > BLOCK || d.group() > 1;
    if sums {
        (0..d.time).for_each(|t| [&mut dk, &mut dv].into_iter().for_each(|sum| sum.row(t).fill(0.0)));
    }
    with_scratch(3 * size, |scratch| {
        let (p, rest) = scratch.split_at_mut(size);
        let (ds, kept) = rest.split_at_mut(size);
        for (member, start) in (0..d.group()).flat_map(|g| (0..d.time).step_by(BLOCK).map(move |start| (g, start))) {
            let head = kv_head * d.group() + member;
            let batch_head = batch * d.n_head + head;
            let lse = &lse[batch_head * d.time..][..d.time];
            let [q, k, v] = PackedHeads::of(d, head).matrices(d, batch, qkv);
            let rows = BLOCK.min(d.time - start);
            let first = first_key(start);
            let keys = start + rows - first;
            let (q, k, v) = (q.skip_rows(start), k.skip_rows(first), v.skip_rows(first));
            let y_at = (batch * d.time + start) * y_step + head * hs;
            let (y, dy) = (&y[y_at..], &dy[y_at..]);
            let dy_rows = Matrix::rows(dy, y_step);
            product(p, keys, false, [rows, keys, hs], q, k.transposed());
            product(ds, keys, false, [rows, keys, hs], dy_rows, v.transposed()); // dy v^T, made dS below
            vectorized(
                #[inline(always)]
                || {
                    for r in 0..rows {
                        let i = start + r;
                        let row = r * keys..(r + 1) * keys;
                        let tiles = [&mut p[row.clone()], &mut ds[row.clone()], &mut kept[row]];
                        let delta = sum_of([&y[r * y_step..][..hs], &dy[r * y_step..]], |[y, dy]| y * dy);
                        let drop = |kept: &mut [f32]| op.drop_out(batch_head, d.time, i, first, kept);
                        let drop = op.dropout.is_some().then_some(drop);
                        score_gradients(tiles, first_key(i) - first..i + 1 - first, [scale, lse[i], delta], drop);
                    }
                },
            );
            let kept = Matrix::rows(if op.dropout.is_some() { kept } else { p }, keys);
            let ds = Matrix::rows(ds, keys);
            dq.columns(member * hs..(member + 1) * hs).product(start..start + rows, false, keys, ds, k);
            dk.product(first..first + keys, sums, rows, ds.transposed(), q);
            dv.product(first..first + keys, sums, rows, kept.transposed(), dy_rows);
        }
    });
}
