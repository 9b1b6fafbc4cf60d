//! GEMMs of few rows with a quantized matrix on the CPU, as in a step of generation: bound by reading the matrix.
//!
//! Codes of `q8_0` and `q4_0` are multiplied as they are, with the rows of a in blocks of 32 numbers of 8 bits, as in
//! llama.cpp: x = d q, d = absmax / 127. Values of `nf4` are computed.

use super::decode_step;
use crate::cpu::{BLOCK, Dots, Numbers, WithDots, sum_of, vectorized, with_dots};
use crate::tensor::{DType, Parts, STEP, View, widened};
use rayon::prelude::*;

/// Elements of the matrix that a task multiplies, at least.
const TASK: usize = 1 << 15;
/// Rows of the matrix that are multiplied at a time.
const ROWS: usize = 4;
/// Blocks whose scales are computed together.
const GROUP: usize = 64;

/// a (M, K) times the transpose of a quantized matrix (N, K), plus the bias if it is not empty: (M, N), added to y if
/// asked.
pub(in crate::ops) fn few_rows(matrix: &View, a: &[f32], bias: &[f32], accumulate: bool, y: &mut [f32]) {
    if y.is_empty() {
        return;
    }
    let (n, k) = (matrix.spec.shape.rows(), matrix.spec.shape.last_dim());
    let (m, dtype) = (a.len() / k, matrix.spec.dtype);
    let matrix = Matrix { dtype, words: matrix.words(), parts: Parts::of(dtype, n * k), k };
    let rows = (TASK / k).next_multiple_of(ROWS).max(ROWS);
    let mut products = vec![0.0; n * m]; // (N, M)
    let tasks = products.par_chunks_mut(rows * m).enumerate();
    if dtype == DType::Nf4 {
        tasks.for_each(|(task, out)| matrix.by_values(task * rows, a, out));
    } else {
        let a: Vec<In8Bits> = a.chunks_exact(k).map(In8Bits::new).collect();
        tasks.for_each(|(task, out)| with_dots(ByCodes { matrix: &matrix, first: task * rows, a: &a, out }));
    }
    for (row, y) in y.chunks_exact_mut(n).enumerate() {
        for (column, y) in y.iter_mut().enumerate() {
            let before = if accumulate { *y } else { bias.get(column).copied().unwrap_or(0.0) };
            *y = before + products[column * m + row];
        }
    }
}

struct Matrix<'a> {
    dtype: DType,
    words: &'a [u32],
    parts: Parts,
    k: usize,
}

impl Matrix<'_> {
    /// The products of its rows from `first` on with those of a: (rows, M).
    fn by_values(&self, first: usize, a: &[f32], out: &mut [f32]) {
        let &Matrix { dtype, words, parts, k } = self;
        vectorized(
            #[inline(always)]
            || {
                let mut values = [0.0; STEP];
                for (i, out) in out.chunks_mut(a.len() / k).enumerate() {
                    for at in (0..k).step_by(STEP) {
                        let values = &mut values[..STEP.min(k - at)];
                        decode_step(dtype, words, parts, (first + i) * k + at, values);
                        for (row, out) in out.iter_mut().enumerate() {
                            *out += sum_of([&a[row * k + at..][..values.len()], values], |[x, w]| x * w);
                        }
                    }
                }
            },
        );
    }
}

/// A row of a in blocks of 8 bits.
struct In8Bits {
    codes: Vec<i16>,
    scales: Vec<f32>,
}

impl In8Bits {
    fn new(row: &[f32]) -> In8Bits {
        let (mut codes, mut scales) = (vec![0; row.len()], vec![0.0; row.len() / BLOCK]);
        let (blocks, _) = row.as_chunks::<BLOCK>();
        let out = codes.as_chunks_mut::<BLOCK>().0.iter_mut().zip(&mut scales);
        vectorized(
            #[inline(always)]
            || {
                for (x, (codes, scale)) in blocks.iter().zip(out) {
                    // A NaN or an infinity makes the block's sum NaN.
                    let mut largest = 0.0;
                    for x in x {
                        largest = if x.abs() > largest || x.is_nan() { x.abs() } else { largest };
                    }
                    let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
                    *scale = largest / 127.0;
                    for (code, x) in codes.iter_mut().zip(x) {
                        *code = (x * inverse).round_ties_even() as i16;
                    }
                }
            },
        );
        In8Bits { codes, scales }
    }
}

/// The products of rows of a matrix from `first` on with those of a: (rows, M).
struct ByCodes<'a> {
    matrix: &'a Matrix<'a>,
    first: usize,
    a: &'a [In8Bits],
    out: &'a mut [f32],
}

impl WithDots for ByCodes<'_> {
    #[inline(always)]
    fn run(self, dots: impl Dots) {
        let m = self.a.len();
        let whole = self.out.len() / (ROWS * m) * ROWS;
        let (groups, rest) = self.out.split_at_mut(whole * m);
        for (i, out) in groups.chunks_exact_mut(ROWS * m).enumerate() {
            multiply::<ROWS>(dots, self.matrix, self.first + i * ROWS, self.a, out);
        }
        for (i, out) in rest.chunks_exact_mut(m).enumerate() {
            multiply::<1>(dots, self.matrix, self.first + whole + i, self.a, out);
        }
    }
}

/// So many blocks from each of these places on.
#[inline(always)]
fn blocks_at<T, const R: usize>(codes: &[T], at: [usize; R], count: usize) -> [&[T]; R] {
    let mut blocks = [&codes[..0]; R];
    for (blocks, at) in blocks.iter_mut().zip(at) {
        *blocks = &codes[at..][..count];
    }
    blocks
}

/// Adds the products of blocks of R rows to their sums, block by block: memory answers several reads as fast as one.
#[inline(always)]
fn add_blocks<T, S: Copy, const R: usize>(
    sums: &mut [S; R],
    w: [&[T]; R],
    x: &[Numbers],
    scales: &[[f32; GROUP]; R],
    add: impl Fn(S, &T, &Numbers, f32) -> S,
) {
    for (block, x) in x.iter().enumerate().take(GROUP) {
        for row in 0..R {
            sums[row] = add(sums[row], &w[row][block], x, scales[row][block]);
        }
    }
}

/// The products of R rows of the matrix with those of a: (R, M).
#[inline(always)]
fn multiply<const R: usize>(dots: impl Dots, matrix: &Matrix, first: usize, a: &[In8Bits], out: &mut [f32]) {
    let &Matrix { dtype, words, parts, k } = matrix;
    let blocks = k / BLOCK;
    let scales_of_w = bytemuck::cast_slice::<u32, u16>(&words[parts.scales..]);
    let count = a.len();
    for (column, a) in a.iter().enumerate() {
        let (x, _) = a.codes.as_chunks::<BLOCK>();
        let mut sums = [dots.zeros(); R];
        for (group, (x, of_x)) in x.chunks(GROUP).zip(a.scales.chunks(GROUP)).enumerate() {
            let block = |row: usize| (first + row) * blocks + group * GROUP;
            let mut scales = [[0.0; GROUP]; R];
            for row in 0..R {
                let of_w = &scales_of_w[block(row)..][..of_x.len()];
                for ((scale, of_w), of_x) in scales[row].iter_mut().zip(of_w).zip(of_x) {
                    *scale = widened(u32::from(*of_w)) * of_x;
                }
            }
            let at: [usize; R] = std::array::from_fn(block);
            if dtype == DType::Q8_0 {
                let (codes, _) = bytemuck::cast_slice::<u32, i8>(words).as_chunks::<BLOCK>();
                add_blocks(
                    &mut sums,
                    blocks_at(codes, at, x.len()),
                    x,
                    &scales,
                    #[inline(always)]
                    |sums, w, x, scale| dots.add_8(sums, w, x, scale),
                );
            } else {
                let (codes, _) = bytemuck::cast_slice::<u32, u8>(words).as_chunks::<{ BLOCK / 2 }>();
                add_blocks(
                    &mut sums,
                    blocks_at(codes, at, x.len()),
                    x,
                    &scales,
                    #[inline(always)]
                    |sums, w, x, scale| dots.add_4(sums, w, x, scale),
                );
            }
        }
        for row in 0..R {
            out[row * count + column] = dots.sum(sums[row]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_are_rounded_to_8_bits_and_what_is_no_number_stays_none() {
        let row: Vec<f32> = (0..96).map(|i| (i as f32 * 0.7).sin() * if i < 32 { 0.0 } else { 3.0 }).collect();
        let rounded = In8Bits::new(&row);
        assert_eq!((rounded.scales[0], &rounded.codes[..32]), (0.0, &[0; 32][..]));
        for (i, x) in row.iter().enumerate() {
            let error = (f32::from(rounded.codes[i]) * rounded.scales[i / BLOCK] - x).abs();
            assert!(error <= 0.501 * rounded.scales[i / BLOCK], "{i}: {error}");
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let row: Vec<f32> = (0..32).map(|i| if i == 7 { bad } else { i as f32 }).collect();
            let rounded = In8Bits::new(&row);
            let sum: f32 = rounded.codes.iter().map(|code| f32::from(*code) * rounded.scales[0]).sum();
            assert!(!sum.is_finite(), "{bad}: {sum}");
        }
    }
}
