//! Attention on the CPU: one task per batch item and head, blocks of query rows within it, matrix products by `gemm`.
//!
//! A task holds a block of S, `BLOCK` rows by T, never all of it. It adds everything up in one order, so the number of
//! threads changes nothing.

use super::{Attention, Dims};
use crate::cpu::math;
use crate::ops::random::drop_threshold;
use rayon::prelude::*;

/// Query rows at a time: enough for `gemm` to be fast, few enough that a block of S stays in the second-level cache.
const BLOCK: usize = 64;

/// A matrix somewhere in a slice: element (r, c) is `data[r * row_step + c * column_step]`.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    data: &'a [f32],
    row_step: usize,
    column_step: usize,
}

impl Matrix<'_> {
    fn rows(data: &[f32], row_step: usize) -> Matrix<'_> {
        Matrix { data, row_step, column_step: 1 }
    }

    fn transposed(self) -> Self {
        Matrix { row_step: self.column_step, column_step: self.row_step, ..self }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        (rows - 1) * self.row_step + (columns - 1) * self.column_step < self.data.len()
    }
}

/// out (m, n) = a (m, k) b (k, n), or, with `add`, added to it. Rows of `out` are `step` apart.
fn product(out: &mut [f32], step: usize, add: bool, [m, n, k]: [usize; 3], a: Matrix, b: Matrix) {
    assert!(a.holds(m, k) && b.holds(k, n) && Matrix::rows(out, step).holds(m, n), "product: out of bounds");
    // SAFETY: all three matrices lie within their slices (checked above), and `out` is borrowed for this call alone.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            step as isize,
            add,
            a.data.as_ptr(),
            a.column_step as isize,
            a.row_step as isize,
            b.data.as_ptr(),
            b.column_step as isize,
            b.row_step as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Lanes of sums and maxima: several independent chains, which the compiler turns into vectors.
const LANES: usize = 16;

fn maximum(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b))
}

/// x = exp(scale * x - shift); the sum of the new values.
fn exponentials(x: &mut [f32], scale: f32, shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = math::exp(scale * *x - shift);
            *lane += *x;
        }
    }
    let mut sum: f32 = lanes.iter().sum();
    for x in rest {
        *x = math::exp(scale * *x - shift);
        sum += *x;
    }
    sum
}

impl Attention {
    /// Multiplies a row of P by what dropout keeps of it.
    fn drop_out(&self, batch_head: usize, time: usize, i: usize, row: &mut [f32]) {
        let Some((p, key)) = self.dropout else { return };
        let key = key.row((batch_head * time + i) as u32);
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

/// Copies what tasks computed per head, (B, n_head) of (T, `parts`, head_size), to (B, T, `parts`, n_head, head_size).
fn interleave(d: Dims, parts: usize, heads: &[Vec<f32>], out: &mut [f32]) {
    out.par_chunks_mut(parts * d.width()).enumerate().for_each(|(row, out)| {
        let (b, t) = (row / d.time, row % d.time);
        for (i, out) in out.chunks_mut(d.head_size).enumerate() {
            let (part, h) = (i / d.n_head, i % d.n_head);
            let from = (t * parts + part) * d.head_size;
            out.copy_from_slice(&heads[b * d.n_head + h][from..from + d.head_size]);
        }
    });
}

/// y (B, T, C) and L (B, n_head, T) of qkv (B, T, 3C).
pub(super) fn forward(op: &Attention, d: Dims, qkv: &[f32], y: &mut [f32], lse: &mut [f32]) {
    if d.time == 0 {
        return;
    }
    let heads: Vec<Vec<f32>> =
        lse.par_chunks_mut(d.time).enumerate().map(|(head, lse)| forward_head(op, d, qkv, head, lse)).collect();
    interleave(d, 1, &heads, y);
}

/// y (T, head_size) of one head.
fn forward_head(op: &Attention, d: Dims, qkv: &[f32], batch_head: usize, lse: &mut [f32]) -> Vec<f32> {
    let (hs, step, scale) = (d.head_size, 3 * d.width(), Attention::scale(d));
    let [q, k, v] = [0, 1, 2].map(|part| Matrix::rows(&qkv[packed_at(d, batch_head, part)..], step));
    let mut y = vec![0.0; d.time * hs];
    let mut scores = vec![0.0; BLOCK.min(d.time) * d.time];
    for start in (0..d.time).step_by(BLOCK) {
        let rows = BLOCK.min(d.time - start);
        let keys = start + rows; // no row of the block sees more
        let q = Matrix::rows(&q.data[start * step..], step);
        product(&mut scores, keys, false, [rows, keys, hs], q, k.transposed());
        for r in 0..rows {
            let i = start + r;
            let (row, masked) = scores[r * keys..][..keys].split_at_mut(i + 1);
            masked.fill(0.0);
            let top = scale * maximum(row);
            let sum = exponentials(row, scale, top);
            lse[i] = top + sum.ln();
            let share = 1.0 / sum;
            row.iter_mut().for_each(|p| *p *= share);
            op.drop_out(batch_head, d.time, i, row);
        }
        product(&mut y[start * hs..], hs, false, [rows, hs, keys], Matrix::rows(&scores, keys), v);
    }
    y
}

/// dqkv (B, T, 3C) of qkv (B, T, 3C), y (B, T, C), L (B, n_head, T) and dy (B, T, C).
pub(super) fn backward(op: &Attention, d: Dims, inputs: [&[f32]; 4], dqkv: &mut [f32]) {
    if d.time == 0 {
        return;
    }
    let heads: Vec<Vec<f32>> =
        (0..d.heads()).into_par_iter().map(|batch_head| backward_head(op, d, inputs, batch_head)).collect();
    interleave(d, 3, &heads, dqkv);
}

/// dq | dk | dv (T, 3, head_size) of one head.
fn backward_head(op: &Attention, d: Dims, inputs: [&[f32]; 4], batch_head: usize) -> Vec<f32> {
    let [qkv, y, lse, dy] = inputs;
    let (hs, scale) = (d.head_size, Attention::scale(d));
    let (step, y_step, out_step) = (3 * d.width(), d.width(), 3 * hs);
    let [q, k, v] = [0, 1, 2].map(|part| Matrix::rows(&qkv[packed_at(d, batch_head, part)..], step));
    let y_at = batch_head / d.n_head * d.time * y_step + batch_head % d.n_head * hs;
    let lse = &lse[batch_head * d.time..][..d.time];
    let mut out = vec![0.0; d.time * out_step];
    let scratch = || vec![0.0; BLOCK.min(d.time) * d.time];
    let (mut p, mut kept, mut ds) = (scratch(), scratch(), scratch());
    for start in (0..d.time).step_by(BLOCK) {
        let rows = BLOCK.min(d.time - start);
        let keys = start + rows;
        let q = Matrix::rows(&q.data[start * step..], step);
        let y = Matrix::rows(&y[y_at + start * y_step..], y_step);
        let dy = Matrix::rows(&dy[y_at + start * y_step..], y_step);
        product(&mut p, keys, false, [rows, keys, hs], q, k.transposed());
        product(&mut ds, keys, false, [rows, keys, hs], dy, v.transposed()); // dy v^T, made dS below
        for r in 0..rows {
            let i = start + r;
            let (p, p_masked) = p[r * keys..][..keys].split_at_mut(i + 1);
            let (ds, ds_masked) = ds[r * keys..][..keys].split_at_mut(i + 1);
            let (kept, kept_masked) = kept[r * keys..][..keys].split_at_mut(i + 1);
            p_masked.fill(0.0);
            ds_masked.fill(0.0);
            kept_masked.fill(0.0);
            exponentials(p, scale, lse[i]);
            kept.copy_from_slice(p);
            op.drop_out(batch_head, d.time, i, kept);
            let delta: f32 = (0..hs).map(|c| y.data[r * y_step + c] * dy.data[r * y_step + c]).sum();
            for ((ds, p), kept) in ds.iter_mut().zip(p.iter()).zip(kept.iter()) {
                *ds = (kept * *ds - p * delta) * scale;
            }
        }
        let (kept, ds) = (Matrix::rows(&kept, keys), Matrix::rows(&ds, keys));
        product(&mut out[start * out_step..], out_step, false, [rows, hs, keys], ds, k);
        product(&mut out[hs..], out_step, true, [keys, hs, rows], ds.transposed(), q);
        product(&mut out[2 * hs..], out_step, true, [keys, hs, rows], kept.transposed(), dy);
    }
    out
}
