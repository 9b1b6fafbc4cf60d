//! Multi-threaded memory copies.

use rayon::prelude::*;

/// Bytes that a thread copies at a time: below that one is as fast as several.
const TASK: usize = 1 << 20;

/// Copies `from` to `to`; large copies use rayon's threads.
///
/// # Panics
/// If they differ in length.
pub fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "bytes to copy, and room for them");
    if from.len() <= TASK {
        return to.copy_from_slice(from);
    }
    to.par_chunks_mut(TASK).zip(from.par_chunks(TASK)).for_each(|(to, from)| to.copy_from_slice(from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_whatever_the_number_of_tasks() {
        for len in [0, 1, TASK, TASK + 1, 3 * TASK - 1] {
            let from: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
            let mut to = vec![0; len];
            copy(&from, &mut to);
            assert!(from == to, "{len} bytes");
        }
    }
}
