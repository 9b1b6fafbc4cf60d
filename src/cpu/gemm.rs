//! Matrix products on slices, by the crate `gemm`: the one place that hands it pointers.

/// A matrix somewhere in a slice: element (r, c) is `data[r * row_step + c * column_step]`.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub data: &'a [f32],
    row_step: usize,
    column_step: usize,
}

impl Matrix<'_> {
    /// Rows of neighbouring elements, `row_step` apart.
    pub fn rows(data: &[f32], row_step: usize) -> Matrix<'_> {
        Matrix { data, row_step, column_step: 1 }
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Matrix { row_step: self.column_step, column_step: self.row_step, ..self }
    }

    /// Without its first `count` rows.
    pub fn skip_rows(self, count: usize) -> Self {
        Matrix { data: &self.data[count * self.row_step..], ..self }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        rows == 0 || columns == 0 || (rows - 1) * self.row_step + (columns - 1) * self.column_step < self.data.len()
    }
}

/// out (m, n) = a (m, k) b (k, n), or, with `add`, added to it, on this thread. Rows of `out` are `step` apart.
///
/// # Panics
/// If a matrix reaches beyond its slice.
pub fn product(out: &mut [f32], step: usize, add: bool, [m, n, k]: [usize; 3], a: Matrix, b: Matrix) {
    assert!(step >= n, "product: rows of the result overlap");
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
