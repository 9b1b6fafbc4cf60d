//! Matrix transpose.

use rayon::prelude::*;

/// Side of a tile that fits in registers and L1 cache lines.
const SIDE: usize = 16;
/// Columns of x that a task copies: several neighbouring lines of the cache for each row, which may be a page away from
/// the next.
const STRIP: usize = 4 * SIDE;

/// Writes `rows` rows of x, `ld` elements apart, as the columns of `out` (.., rows).
///
/// # Panics
/// If a row reaches beyond the slice.
pub fn transpose<T: Copy + Default + Send + Sync>(x: &[T], ld: usize, out: &mut [T], rows: usize) {
    out.par_chunks_mut((STRIP * rows).max(1)).enumerate().for_each(|(strip, out)| {
        let width = out.len() / rows;
        for top in (0..rows).step_by(SIDE) {
            let height = SIDE.min(rows - top);
            for left in (0..width).step_by(SIDE) {
                let across = SIDE.min(width - left);
                let mut square = [[T::default(); SIDE]; SIDE];
                for (r, line) in square.iter_mut().enumerate().take(height) {
                    line[..across].copy_from_slice(&x[(top + r) * ld + strip * STRIP + left..][..across]);
                }
                for c in 0..across {
                    let mut line = [T::default(); SIDE];
                    for r in 0..SIDE {
                        line[r] = square[r][c];
                    }
                    out[(left + c) * rows + top..][..height].copy_from_slice(&line[..height]);
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        for (rows, columns, ld) in [(1, 1, 1), (3, 130, 130), (70, 17, 20), (16, 64, 64), (0, 3, 3)] {
            let x: Vec<u32> = (0..(rows * ld) as u32).collect();
            let mut out = vec![u32::MAX; rows * columns];
            transpose(&x, ld, &mut out, rows);
            for (r, c) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                assert_eq!(out[c * rows + r], x[r * ld + c], "{rows} {columns} {ld}");
            }
        }
    }
}
