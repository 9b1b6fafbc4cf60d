//! GEMMs by the crate `gemm-f32`, and matrices whose disjoint tiles are written by several threads: the only place with
//! pointers to elements.

use gemm_common::Parallelism;
use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;

/// A strided matrix in a slice: element (r, c) is `data[r * row_stride + c * column_stride]`.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub data: &'a [f32],
    row_stride: usize,
    column_stride: usize,
}

impl Matrix<'_> {
    /// A row-major matrix with this row stride.
    pub fn rows(data: &[f32], row_stride: usize) -> Matrix<'_> {
        Matrix { data, row_stride, column_stride: 1 }
    }

    /// The transposed view.
    pub fn transposed(self) -> Self {
        Matrix { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// Without its first `count` rows.
    pub fn skip_rows(self, count: usize) -> Self {
        Matrix { data: &self.data[count * self.row_stride..], ..self }
    }

    /// Without its first `count` columns.
    pub fn skip_columns(self, count: usize) -> Self {
        Matrix { data: &self.data[count * self.column_stride..], ..self }
    }

    /// Whether its first `rows` by `columns` elements lie within the slice.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        let last = |rows: usize, columns: usize| {
            (rows - 1).checked_mul(self.row_stride)?.checked_add((columns - 1).checked_mul(self.column_stride)?)
        };
        rows == 0 || columns == 0 || last(rows, columns).is_some_and(|last| last < self.data.len())
    }
}

/// A disjoint tile of a matrix; other threads may hold the other tiles.
pub struct Tile<'a> {
    first: *mut f32,
    /// Elements from one row to the next (the leading dimension).
    ld: usize,
    rows: usize,
    columns: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: a tile is the only way to reach its elements (`tiles` and `packed_tiles` hand out each once), as a mutable
// slice is.
unsafe impl Send for Tile<'_> {}

/// The tiles of at most `rows` by `columns` that make up a matrix (.., `width`), row of tiles by row of tiles.
///
/// # Panics
/// If the matrix has not whole rows, or a tile would be empty.
pub fn tiles(
    matrix: &mut [f32],
    width: usize,
    rows: usize,
    columns: usize,
) -> impl IndexedParallelIterator<Item = Tile<'_>> {
    assert!(rows > 0 && columns > 0 && width > 0 && matrix.len().is_multiple_of(width), "tiles: of whole rows");
    let (height, across) = (matrix.len() / width, width.div_ceil(columns));
    let first = Shared(matrix.as_mut_ptr());
    (0..height.div_ceil(rows) * across).into_par_iter().map(move |i| {
        let (top, left) = (i / across * rows, i % across * columns);
        let (rows, columns) = (rows.min(height - top), columns.min(width - left));
        // SAFETY: (top, left) lies within the matrix.
        let first = unsafe { first.pointer().add(top * width + left) };
        Tile { first, ld: width, rows, columns, matrix: PhantomData }
    })
}

/// Of a matrix whose columns are `parts` one after another, each of `count` equal sections: for each `rows` rows and
/// each number below `count` that section of every part. `parts` has the columns of a section.
///
/// # Panics
/// If the parts are not the whole width, the matrix has not whole bands of rows, or a tile would be empty.
pub fn packed_tiles<const N: usize>(
    matrix: &mut [f32],
    rows: usize,
    count: usize,
    parts: [usize; N],
) -> impl IndexedParallelIterator<Item = [Tile<'_>; N]> {
    let width = count.checked_mul(parts.iter().sum()).expect("packed_tiles: a row is a part of the matrix");
    assert!(rows > 0 && width > 0 && !parts.contains(&0), "packed_tiles: of whole rows");
    assert!(matrix.len().is_multiple_of(rows * width), "packed_tiles: of whole bands");
    let bands = matrix.len() / (rows * width);
    let first = Shared(matrix.as_mut_ptr());
    (0..bands * count).into_par_iter().map(move |i| {
        let (top, section) = (i / count * rows, i % count);
        let mut left = 0;
        parts.map(|columns| {
            // SAFETY: the section lies within the matrix: the parts before it end at `left`.
            let first = unsafe { first.pointer().add(top * width + left + section * columns) };
            left += count * columns;
            Tile { first, ld: width, rows, columns, matrix: PhantomData }
        })
    })
}

/// A pointer that threads may share, because of what lies behind it each takes another part.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: see `tiles`.
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

impl Shared {
    /// A method, so that closures take the whole struct and not the bare pointer in it.
    fn pointer(self) -> *mut f32 {
        self.0
    }
}

impl Tile<'_> {
    fn at(&self, row: usize) -> *mut f32 {
        assert!(row < self.rows, "a tile's row {row} of {}", self.rows);
        // SAFETY: the row lies within the matrix.
        unsafe { self.first.add(row * self.ld) }
    }

    /// A row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        // SAFETY: it lies within the matrix and is reached through the tile alone, which is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.at(row), self.columns) }
    }

    /// Some of its columns.
    ///
    /// # Panics
    /// If there are no such columns.
    pub fn columns(&mut self, columns: Range<usize>) -> Tile<'_> {
        assert!(columns.end <= self.columns && !columns.is_empty(), "a tile's columns {columns:?} of {}", self.columns);
        // SAFETY: the columns lie within the tile, which is borrowed as long as this one is there.
        let first = unsafe { self.first.add(columns.start) };
        Tile { first, columns: columns.len(), matrix: PhantomData, ..*self }
    }

    /// Computes these rows as a (rows, k) b (k, columns), or adds it with `add`, on this thread.
    ///
    /// # Panics
    /// If there are no such rows, or a or b reaches beyond its slice.
    pub fn product(&mut self, rows: Range<usize>, add: bool, k: usize, a: Matrix, b: Matrix) {
        let (m, n) = (rows.len(), self.columns);
        assert!(rows.end <= self.rows && a.holds(m, k) && b.holds(k, n), "product: out of bounds");
        // SAFETY: a and b lie within their slices and the rows within the tile, whose elements are reached through it
        // alone.
        unsafe { multiply(self.at(rows.start), self.ld, add, [m, n, k], a, b) }
    }
}

/// out (m, n) = a (m, k) b (k, n), or += with `add`, on this thread. `ld` is the row stride of `out`.
///
/// # Panics
/// If a matrix reaches beyond its slice.
pub fn product(out: &mut [f32], ld: usize, add: bool, [m, n, k]: [usize; 3], a: Matrix, b: Matrix) {
    assert!(ld >= n, "product: rows of the result overlap");
    assert!(a.holds(m, k) && b.holds(k, n) && Matrix::rows(out, ld).holds(m, n), "product: out of bounds");
    // SAFETY: all three matrices lie within their slices (checked above), and `out` is borrowed for this call alone.
    unsafe { multiply(out.as_mut_ptr(), ld, add, [m, n, k], a, b) }
}

/// The product of matrices that lie within their slices, to memory that is this call's alone.
unsafe fn multiply(out: *mut f32, ld: usize, add: bool, [m, n, k]: [usize; 3], a: Matrix, b: Matrix) {
    // The kernels write down columns. Rows are those of the transpose, b^T a^T; a single column is one already.
    let (m, n, a, b) = if ld == 1 { (m, n, a, b) } else { (n, m, b.transposed(), a.transposed()) };
    // SAFETY: the caller's.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            m,
            n,
            k,
            out,
            ld as isize,
            1,
            add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_element_once() {
        let (width, height) = (7, 5);
        let mut matrix = vec![0.0; height * width];
        // Rows of tiles 2, 2 and 1 high; columns 3, 3 and 1 wide.
        tiles(&mut matrix, width, 2, 3).enumerate().for_each(|(i, mut tile)| {
            (0..if i < 6 { 2 } else { 1 }).for_each(|row| tile.row(row).iter_mut().for_each(|x| *x += i as f32 + 1.0));
        });
        let want = |i: usize| (i / width / 2 * 3 + i % width / 3) as f32 + 1.0;
        assert!(matrix.iter().enumerate().all(|(i, x)| *x == want(i)), "{matrix:?}");
    }

    #[test]
    fn packed_tiles_cover_every_element_once() {
        // Two bands of three rows; parts of 2 x 4 and 2 x 1 columns, of the first of which halves are reached apart.
        let mut matrix = vec![0.0; 2 * 3 * 10];
        packed_tiles(&mut matrix, 3, 2, [4, 1]).enumerate().for_each(|(i, [mut wide, mut narrow])| {
            for row in 0..3 {
                for half in 0..2 {
                    let mut columns = wide.columns(2 * half..2 * half + 2);
                    columns.row(row).iter_mut().for_each(|x| *x += (10 * i + half) as f32 + 1.0);
                }
                narrow.row(row).iter_mut().for_each(|x| *x += (10 * i + 5) as f32);
            }
        });
        let want = |i: usize| {
            let (band, column) = (i / 30, i % 10);
            let (section, add) = if column < 8 { (column / 4, column % 4 / 2 + 1) } else { (column - 8, 5) };
            (10 * (2 * band + section) + add) as f32
        };
        assert!(matrix.iter().enumerate().all(|(i, x)| *x == want(i)), "{matrix:?}");
    }

    #[test]
    #[should_panic(expected = "a tile's row 1 of 1")]
    fn the_last_tile_ends_with_the_matrix() {
        tiles(&mut [0.0; 5], 1, 2, 1).for_each(|mut tile| tile.row(1).fill(1.0));
    }

    #[test]
    #[should_panic(expected = "a tile's columns 1..3 of 2")]
    fn columns_end_with_their_tile() {
        packed_tiles(&mut [0.0; 4], 1, 2, [2]).for_each(|[mut tile]| tile.columns(1..3).row(0).fill(1.0));
    }

    #[test]
    fn strides_that_overflow_hold_nothing() {
        let data = [0.0; 4];
        assert!(Matrix::rows(&data, 2).holds(2, 2) && Matrix::rows(&data, usize::MAX).holds(1, 4));
        // 2 * (usize::MAX / 2 + 1) wraps to 0.
        assert!(!Matrix::rows(&data, usize::MAX / 2 + 1).holds(3, 1));
        assert!(!Matrix::rows(&data, usize::MAX / 2 + 1).transposed().holds(1, 3));
        assert!(!Matrix::rows(&data, usize::MAX).holds(2, 2));
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn a_product_stays_within_its_tile() {
        let (mut matrix, ones) = (vec![0.0; 12], vec![1.0; 12]);
        let ones = Matrix::rows(&ones, 2);
        tiles(&mut matrix, 4, 2, 2).for_each(|mut tile| tile.product(1..3, false, 2, ones, ones));
    }
}
