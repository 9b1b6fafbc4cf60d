//! GEMM of an indirectly addressed matrix with one packed in panels of columns: a convolution reads its image this way,
//! without im2col copies.
//!
//! ```text
//! out[r, c] = sum over i of source[rows[r] + places[i]] panel[i, c]
//! ```
//! Eight rows by one panel are accumulated in registers in the order of i, so the split among threads does not change
//! the result.

use super::vectorized;
use pulp::{Arch, Simd, WithSimd};

/// Rows that are computed at once: with the columns of a panel they are half of AVX-512's registers.
pub const ROWS: usize = 8;
/// Columns of a panel; the last of a matrix may have half as many.
pub const PANEL: usize = 32;
const HALF: usize = PANEL / 2;

/// The columns of a panel that begins with column `first` of `n`.
pub fn panel_width(first: usize, n: usize) -> usize {
    if n - first <= HALF { HALF } else { PANEL }
}

/// Elements of a packed matrix (k, n).
pub fn packed_len(k: usize, n: usize) -> usize {
    k * n.next_multiple_of(HALF)
}

/// Packs columns `first..` of a matrix (k, n) as one panel (k, [`panel_width`]), with zeros for columns that are not
/// there. The matrix is stored transposed: column c is `columns[c * ld..][..k]`.
pub fn pack_panel(columns: &[f32], ld: usize, [k, n]: [usize; 2], first: usize, panel: &mut [f32]) {
    let width = panel_width(first, n);
    vectorized(
        #[inline(always)]
        || {
            for (half, left) in (0..width).step_by(HALF).zip((first..).step_by(HALF)) {
                let present = HALF.min(n.saturating_sub(left));
                for top in (0..k).step_by(HALF) {
                    let height = HALF.min(k - top);
                    let mut square = [[0.0; HALF]; HALF];
                    for (c, line) in square.iter_mut().enumerate().take(present) {
                        let column = &columns[(left + c) * ld + top..][..height];
                        match column.first_chunk() {
                            Some(column) => *line = *column,
                            None => line[..height].copy_from_slice(column),
                        }
                    }
                    let lines = panel[top * width..][..height * width].chunks_exact_mut(width);
                    for (r, out) in lines.enumerate() {
                        let mut line = [0.0; HALF];
                        for c in 0..HALF {
                            line[c] = square[c][r];
                        }
                        out[half..half + HALF].copy_from_slice(&line);
                    }
                }
            }
        },
    );
}

/// Where the factors of a sum stand, from where those of a row begin.
pub struct Places {
    list: Vec<usize>,
    largest: usize,
}

impl Places {
    pub fn new(list: Vec<usize>) -> Places {
        let largest = list.iter().copied().max().unwrap_or(0);
        Places { list, largest }
    }

    pub fn list(&self) -> &[usize] {
        &self.list
    }
}

/// Multiplies each eight of `rows` with a panel (places, width), and hands their number and results (8, [`PANEL`]) to
/// `store`. Columns beyond the width are left as they were before.
///
/// # Panics
/// If the panel has another size, or a row reaches beyond the source.
pub fn panel_product(
    source: &[f32],
    rows: &[[usize; ROWS]],
    places: &Places,
    panel: &[f32],
    store: impl FnMut(usize, &[[f32; PANEL]; ROWS]),
) {
    let len = places.list.len();
    let width = panel.len().checked_div(len).unwrap_or(PANEL);
    assert!(matches!(width, HALF | PANEL) && panel.len() == len * width, "panel_product: a panel");
    Arch::new().dispatch(Product { source, rows, places, panel, width, store });
}

struct Product<'a, F> {
    source: &'a [f32],
    rows: &'a [[usize; ROWS]],
    places: &'a Places,
    panel: &'a [f32],
    width: usize,
    store: F,
}

impl<F: FnMut(usize, &[[f32; PANEL]; ROWS])> WithSimd for Product<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let mut out = [[0.0; PANEL]; ROWS];
        for (number, rows) in self.rows.iter().enumerate() {
            let mut last = 0;
            for row in rows {
                last = last.max(*row);
            }
            let end = last.checked_add(self.places.largest);
            assert!(self.places.list.is_empty() || end.is_some_and(|end| end < self.source.len()), "panel_product");
            // Two vectors of columns, or one where the sums of two would not fit the registers.
            let two = S::REGISTER_COUNT >= 32 && 2 * S::F32_LANES <= self.width;
            let columns = if two { 2 * S::F32_LANES } else { S::F32_LANES };
            for first in (0..self.width).step_by(columns) {
                // SAFETY: every row reaches no further than the source, as was checked; the panel has `width` columns
                // for each place, and `first` is followed by as many as are computed: lanes are a power of two, at
                // most sixteen.
                unsafe {
                    if two {
                        block::<S, 2>(simd, &self, rows, first, &mut out);
                    } else {
                        block::<S, 1>(simd, &self, rows, first, &mut out);
                    }
                }
            }
            (self.store)(number, &out);
        }
    }
}

/// V vectors of columns from `first` on.
#[inline(always)]
unsafe fn block<S: Simd, const V: usize>(
    simd: S,
    product: &Product<impl Sized>,
    rows: &[usize; ROWS],
    first: usize,
    out: &mut [[f32; PANEL]; ROWS],
) {
    let lanes = S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); V]; ROWS];
    let mut at = [product.source.as_ptr(); ROWS];
    // SAFETY: the caller's.
    unsafe {
        for (at, row) in at.iter_mut().zip(rows) {
            *at = at.add(*row);
        }
        let mut b = product.panel.as_ptr().wrapping_add(first);
        for place in &product.places.list {
            let mut columns = [simd.splat_f32s(0.0); V];
            for (v, columns) in columns.iter_mut().enumerate() {
                *columns = b.add(v * lanes).cast::<S::f32s>().read_unaligned();
            }
            for r in 0..ROWS {
                let a = simd.splat_f32s(*at[r].add(*place));
                for v in 0..V {
                    sums[r][v] = simd.mul_add_e_f32s(a, columns[v], sums[r][v]);
                }
            }
            b = b.wrapping_add(product.width);
        }
        for (out, sums) in out.iter_mut().zip(&sums) {
            for (v, sum) in sums.iter().enumerate() {
                out.as_mut_ptr().add(first + v * lanes).cast::<S::f32s>().write_unaligned(*sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_a_plain_loop() {
        // 48 columns: a whole panel and half of one; 45 of them are there. Sums of small integers are exact.
        let (k, n) = (37, 45);
        let source: Vec<f32> = (0..500).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
        let places = Places::new((0..k).map(|i| i * i % 100).collect());
        let rows: Vec<[usize; ROWS]> = (0..3).map(|t| std::array::from_fn(|r| (t * 131 + r * 17) % 400)).collect();
        for first in [0, PANEL] {
            let width = panel_width(first, n);
            let columns: Vec<f32> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
            let mut panel = vec![f32::NAN; k * width];
            pack_panel(&columns, k, [k, n], first, &mut panel);
            let mut seen = 0;
            panel_product(&source, &rows, &places, &panel, |number, out| {
                seen += 1;
                for (r, c) in (0..ROWS).flat_map(|r| (0..width).map(move |c| (r, c))) {
                    let factor = |i: usize| if first + c < n { b[i * n + first + c] } else { 0.0 };
                    let want: f32 = (0..k).map(|i| source[rows[number][r] + places.list[i]] * factor(i)).sum();
                    assert_eq!(out[r][c], want, "{number} {r} {c}");
                }
            });
            assert_eq!(seen, rows.len());
        }
    }

    #[test]
    #[should_panic(expected = "panel_product")]
    fn a_row_stays_within_the_source() {
        let places = Places::new(vec![0, 3]);
        panel_product(&[0.0; 10], &[[0, 0, 0, 0, 0, 0, 0, 7]], &places, &[0.0; 2 * HALF], |_, _| ());
    }
}
