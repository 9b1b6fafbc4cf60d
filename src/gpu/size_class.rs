//! The sizes of the buffers that a pool hands out.

/// Offsets of slices and sizes of buffers are multiples of this: WebGPU's default binding alignment.
pub(super) const ALIGN: usize = 256;

/// Rounds up to one of eight sizes per power of two, so that at most an eighth of a buffer is wasted and
/// tensors of nearly equal size share their buffers.
pub(crate) fn size_class(size: usize) -> usize {
    let size = size.max(ALIGN);
    let step = (size.next_power_of_two() / 16).max(ALIGN);
    size.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_waste_at_most_an_eighth_and_stay_aligned() {
        for size in (1..5_000).chain([1 << 20, (1 << 20) + 1, 123_456_789]) {
            let class = size_class(size);
            assert!(class >= size && class.is_multiple_of(ALIGN), "{size} -> {class}");
            assert!(class <= (size + size / 8).max(size + ALIGN), "{size} -> {class}");
        }
    }
}
