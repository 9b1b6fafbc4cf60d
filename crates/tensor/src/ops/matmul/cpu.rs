//! GEMM on the CPU. Each task computes a block of rows with bias and epilogue, while it is in the cache, by `gemm` on
//! its own thread; or a block of columns, if there are more columns than rows and no epilogue, and no bias or few rows.
//!
//! `gemm` on one thread reaches 90 to 98% of a core's peak on blocks of 64 rows or more. Its own threading scales less
//! well: it packs one operand on one thread, and leaves bias and GELU as separate passes.

use super::{Dims, Epilogue, MatMul, unary};
use crate::cpu::{Matrix, product, threads, tiles, transpose, vectorized, with_scratch};
use rayon::prelude::*;

/// Tasks per thread: two, to balance threads that are delayed.
const TASKS_PER_THREAD: usize = 2;

/// Elements between columns of a transposed b from which on it pays to transpose it first: with 512 the 768x128
/// GEMMs of a small GPT take 0.93 ms instead of 1.05, with 128 they would take 1.04 instead of 0.92.
const FAR_APART: usize = 512;

/// So few rows do not make up for a copy of b, which `gemm` makes of columns that are not whole vectors.
const FEW_ROWS: usize = 64;
/// Numbers of the widest vector.
const LANES: usize = 16;

/// The inputs. Slices that the kernel does not use are empty.
pub(super) struct Operands<'a> {
    pub a: &'a [f32],
    pub b: &'a [f32],
    /// (N).
    pub bias: &'a [f32],
    /// For [`Epilogue::Multiply`]: the shape of the result.
    pub factors: &'a [f32],
}

/// `y`; or, if that is the epilogue, GELU's derivative there and `activated`, GELU of it.
pub(super) fn compute(kernel: &MatMul, d: &Dims, operands: Operands, y: &mut [f32], activated: &mut [f32]) {
    let plain = (!kernel.bias || d.m <= FEW_ROWS) && kernel.epilogue == Epilogue::None;
    if d.batch == 1 && d.n > d.m && d.m * d.k > 0 && plain {
        return in_columns(kernel, d, operands, y);
    }
    let rows = if d.batch == 1 { block_rows(d.m, d.n, threads()) } else { d.m };
    // Each task would pack b for itself, and slowly if its columns are far apart.
    if d.batch == 1 && kernel.trans_b && rows < d.m && d.k >= FAR_APART {
        with_scratch(d.n * d.k, |b| {
            transpose(operands.b, d.k, b, d.n);
            in_blocks(&MatMul { trans_b: false, ..*kernel }, d, rows, Operands { b, ..operands }, y, activated);
        });
    } else {
        in_blocks(kernel, d, rows, operands, y, activated);
    }
}

/// Rows per task; the last task has the remainder. `gemm` sums each element in the same order for any block, unless it
/// is very small or has at most 64 rows and columns. A block is that small only if the whole matrix is, so the number
/// of threads does not change the result.
fn block_rows(m: usize, n: usize, threads: usize) -> usize {
    let (typical, least) = if n > 64 { (64, 32) } else { (80, 65) };
    let most = m / typical;
    let tasks = if most < threads { most } else { (most / threads).min(TASKS_PER_THREAD) * threads };
    let mut rows = (1..=tasks).rev().map(|tasks| m.div_ceil(tasks).next_multiple_of(LANES));
    rows.find(|rows| m.is_multiple_of(*rows) || m % rows >= least).unwrap_or(m)
}

/// By blocks of columns: with many columns, tasks for blocks of rows would each pack all of b.
fn in_columns(kernel: &MatMul, d: &Dims, operands: Operands, y: &mut [f32]) {
    let &Dims { m, n, k, .. } = d;
    let a = stored(operands.a, kernel.trans_a, m, k);
    let b = stored(operands.b, kernel.trans_b, k, n);
    // Columns that fill no vector are multiplied by themselves, so that `gemm` reads the others where they lie.
    let apart = if m <= FEW_ROWS && !kernel.trans_b && n > LANES { n % LANES } else { 0 };
    let columns = block_rows(n - apart, m, threads());
    tiles(y, n, m, columns).enumerate().for_each(|(i, mut tile)| {
        let first = i * columns;
        let all = first..(first + columns).min(n);
        if kernel.bias {
            (0..m).for_each(|row| tile.row(row).copy_from_slice(&operands.bias[all.clone()]));
        }
        for part in [all.start..all.end.min(n - apart), all.start.max(n - apart)..all.end] {
            if !part.is_empty() {
                let mut tile = tile.columns(part.start - first..part.end - first);
                let b = b.skip_columns(part.start);
                tile.product(0..m, kernel.accumulate || kernel.bias, k, a, b);
            }
        }
    });
}

/// A view of a matrix with these rows and columns, stored as it is or transposed.
fn stored(data: &[f32], transposed: bool, rows: usize, columns: usize) -> Matrix<'_> {
    if transposed { Matrix::rows(data, rows).transposed() } else { Matrix::rows(data, columns) }
}

/// By blocks of `rows` rows of one matrix, or by whole matrices of a batch.
fn in_blocks(kernel: &MatMul, d: &Dims, rows: usize, operands: Operands, y: &mut [f32], activated: &mut [f32]) {
    let &Dims { batch, m, n, k, stride_a, stride_b } = d;
    let Operands { a, b, bias, factors } = operands;
    let block = |i: usize, y: &mut [f32]| {
        let (batch, first) = if batch == 1 { (0, i * rows) } else { (i, 0) };
        debug_assert!(!(kernel.bias && kernel.accumulate), "the bias would replace what is to be added to");
        if kernel.bias {
            y.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(bias));
        }
        let a = stored(&a[batch * stride_a..], kernel.trans_a, m, k).skip_rows(first);
        let b = stored(&b[batch * stride_b..], kernel.trans_b, k, n);
        product(y, n, kernel.accumulate || kernel.bias, [y.len() / n, n, k], a, b);
    };
    let size = (rows * n).max(1);
    let blocks = y.par_chunks_mut(size);
    match kernel.epilogue {
        Epilogue::None => blocks.enumerate().for_each(|(i, y)| block(i, y)),
        Epilogue::Gelu => blocks.zip(activated.par_chunks_mut(size)).enumerate().for_each(|(i, (y, activated))| {
            block(i, y);
            vectorized(
                #[inline(always)]
                || {
                    for (y, activated) in y.iter_mut().zip(activated) {
                        [*activated, *y] = unary::gelu_and_derivative(*y);
                    }
                },
            );
        }),
        Epilogue::Multiply => blocks.zip(factors.par_chunks(size)).enumerate().for_each(|(i, (y, factors))| {
            block(i, y);
            y.iter_mut().zip(factors).for_each(|(y, factor)| *y *= factor);
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result's bits, computed on so many threads.
    fn on_threads(count: usize, kernel: &MatMul, [m, n, k]: [usize; 3]) -> Vec<u32> {
        let values = |len: usize, step: f32| (0..len).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
        let (a, b) = (values(m * k, 0.7), values(k * n, 1.3));
        let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap();
        pool.install(|| {
            let (mut y, mut activated) = (vec![0.0; m * n], vec![0.0; m * n]);
            let operands = Operands { a: &a, b: &b, bias: &values(n, 0.3), factors: &[] };
            compute(kernel, &d, operands, &mut y, &mut activated);
            y.iter().chain(&activated).map(|x| x.to_bits()).collect()
        })
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        // The last are longer than what `gemm` adds up at a time, by which its smallest GEMMs differ from the rest.
        // Even blocks of 577 rows would leave the last thread of nine a single one.
        let sizes = [
            [768, 384, 128],
            [203, 70, 96],
            [577, 70, 96],
            [640, 48, 771],
            [128, 96, 1031],
            [70, 577, 96],
            [128, 513, 771],
            // Few rows, with columns left over that fill no vector.
            [20, 650, 300],
        ];
        for sizes in sizes {
            for (trans_a, trans_b) in [(false, false), (false, true), (true, false)] {
                // The second is cut into blocks of columns where it has more columns than rows.
                let plain = MatMul { trans_a, trans_b, ..MatMul::default() };
                for kernel in [MatMul { bias: true, epilogue: Epilogue::Gelu, ..plain }, plain] {
                    let alone = on_threads(1, &kernel, sizes);
                    for threads in [2, 3, 8, 9] {
                        let same = on_threads(threads, &kernel, sizes) == alone;
                        assert!(same, "{kernel:?} {sizes:?}: {threads} threads");
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_are_as_even_as_they_can_be() {
        let blocks = |m: usize, n, threads| m.div_ceil(block_rows(m, n, threads));
        assert_eq!([(768, 1), (768, 2), (768, 4), (768, 64)].map(|(m, t)| blocks(m, 384, t)), [2, 4, 8, 12]);
        assert_eq!([(128, 128), (128, 64), (63, 128), (1, 50_304)].map(|(m, n)| blocks(m, n, 2)), [2, 1, 1, 1]);
    }
}
