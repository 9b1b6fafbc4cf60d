//! The sizes of the blocks that a pool hands out.

/// Offsets of slices and sizes of buffers are multiples of this: WebGPU's default binding alignment.
pub(crate) const ALIGN: usize = 256;

/// Rounds up to one of eight sizes per power of two, so that at most an eighth of a block is wasted and
/// tensors of nearly equal size share their blocks.
pub(crate) fn size_class(size: usize) -> usize {
    let size = size.max(ALIGN);
    // More than half of the address space is refused, whatever its class.
    let Some(power) = size.checked_next_power_of_two() else { return size };
    size.next_multiple_of((power / 16).max(ALIGN))
}

/// [`size_class`] where no block may be larger than `largest`, which is at least `size`.
#[cfg(feature = "gpu")]
pub(crate) fn size_class_within(size: usize, largest: u64) -> usize {
    size_class(size).min(usize::try_from(largest).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_waste_at_most_an_eighth_and_stay_aligned() {
        for size in (1..5_000).chain([1 << 20, (1 << 20) + 1, 123_456_789, usize::MAX / 2]) {
            let class = size_class(size);
            assert!(class >= size && class.is_multiple_of(ALIGN), "{size} -> {class}");
            assert!(class <= (size + size / 8).max(size + ALIGN), "{size} -> {class}");
        }
    }

    /// A driver whose largest buffer is 4094 MiB.
    #[cfg(feature = "gpu")]
    #[test]
    fn no_size_class_exceeds_the_largest_buffer() {
        let largest = (4096 << 20) - (2 << 20);
        assert_eq!(size_class(3900 << 20), 4096 << 20);
        assert_eq!(size_class_within(3900 << 20, largest), largest as usize);
        assert_eq!(size_class_within(100 << 20, largest), size_class(100 << 20));
    }

    #[test]
    fn the_size_of_a_class_is_its_own_class() {
        for size in (1..5_000).map(|i| i * i) {
            assert_eq!(size_class(size_class(size)), size_class(size), "{size}");
        }
        assert_eq!(size_class(usize::MAX), usize::MAX);
    }
}
