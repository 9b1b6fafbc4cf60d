//! Reads parameters that are several stored tensors, one after the other.

/// Reads the elements from `first` on, as many as `out` has, of parts that have so many elements each: `read` gets a
/// part, the first of its elements, and the place for as many as are wanted of it.
pub(super) fn read_joined<P>(
    parts: &[P],
    len: impl Fn(&P) -> usize,
    first: usize,
    out: &mut [f32],
    read: impl Fn(&P, usize, &mut [f32]),
) {
    let (mut begin, end) = (0, first + out.len());
    for part in parts {
        let len = len(part);
        let (from, to) = (first.max(begin), end.min(begin + len));
        if from < to {
            read(part, from - begin, &mut out[from - first..to - first]);
        }
        begin += len;
    }
}
