//! Encoding of values between ranks, and their sums.

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

/// The type of transferred values. Sums are always in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    F32,
    /// Half the bytes, with 11 bits of precision. Every rank's values are rounded, including its own, then the sums.
    /// Values above 65504 become infinite and values far below 6e-8 become 0, so scale them first.
    F16,
}

/// Values that are converted at a time: few enough that they stay in the first-level cache, and on the stack.
const PIECE: usize = 1024;

/// Values of a task: below that one thread is as fast as several.
const TASK: usize = 1 << 17;

impl Wire {
    /// Bytes of one value.
    pub fn width(self) -> usize {
        match self {
            Wire::F32 => size_of::<f32>(),
            Wire::F16 => size_of::<f16>(),
        }
    }

    /// Writes `values`, `n` of them, as `n * width` bytes.
    pub(super) fn encode(self, values: &[f32], bytes: &mut [u8]) {
        let tasks = bytes.par_chunks_mut(TASK * self.width()).zip(values.par_chunks(TASK));
        tasks.for_each(|(bytes, values)| self.encode_part(values, bytes));
    }

    fn encode_part(self, values: &[f32], bytes: &mut [u8]) {
        match self {
            Wire::F32 => bytes.copy_from_slice(bytemuck::cast_slice(values)),
            // The bytes may lie at odd addresses, so they are converted by way of an array of halves.
            Wire::F16 => {
                let mut piece = [f16::ZERO; PIECE];
                for (values, bytes) in values.chunks(PIECE).zip(bytes.chunks_mut(PIECE * self.width())) {
                    let halves = &mut piece[..values.len()];
                    halves.convert_from_f32_slice(values);
                    bytes.copy_from_slice(bytemuck::cast_slice(halves));
                }
            }
        }
    }

    /// Reads `n` values from `n * width` bytes.
    pub(super) fn decode(self, bytes: &[u8], values: &mut [f32]) {
        let tasks = values.par_chunks_mut(TASK).zip(bytes.par_chunks(TASK * self.width()));
        tasks.for_each(|(values, bytes)| self.decode_part(bytes, values));
    }

    /// Decodes the values of several parts.
    #[doc(hidden)]
    pub fn decoded(self, parts: &[&[u8]]) -> Vec<f32> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut values = vec![0.0; bytes / self.width()];
        let mut rest = &mut values[..];
        for part in parts {
            let (first, others) = rest.split_at_mut(part.len() / self.width());
            self.decode(part, first);
            rest = others;
        }
        values
    }

    fn decode_part(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Wire::F32 => bytemuck::cast_slice_mut(values).copy_from_slice(bytes),
            Wire::F16 => {
                let mut piece = [f16::ZERO; PIECE];
                for (values, bytes) in values.chunks_mut(PIECE).zip(bytes.chunks(PIECE * self.width())) {
                    let halves = &mut piece[..values.len()];
                    bytemuck::cast_slice_mut(halves).copy_from_slice(bytes);
                    halves.convert_to_f32_slice(values);
                }
            }
        }
    }

    /// Adds encoded `parts` of equal length, one per rank, in rank order, and encodes the sums.
    ///
    /// The sum starts with the first part, not with 0, so that a single rank's -0 stays -0.
    pub(super) fn sum(self, parts: &[&[u8]], sums: &mut [u8]) {
        let bytes = TASK * self.width();
        sums.par_chunks_mut(bytes).enumerate().for_each(|(task, sums)| {
            let (mut sum, mut part) = ([0.0; PIECE], [0.0; PIECE]);
            let mut at = task * bytes;
            for sums in sums.chunks_mut(PIECE * self.width()) {
                let length = sums.len() / self.width();
                let (sum, part) = (&mut sum[..length], &mut part[..length]);
                for (rank, encoded) in parts.iter().enumerate() {
                    let encoded = &encoded[at..][..sums.len()];
                    if rank == 0 {
                        self.decode_part(encoded, sum);
                    } else {
                        self.decode_part(encoded, part);
                        sum.iter_mut().zip(&*part).for_each(|(sum, value)| *sum += value);
                    }
                }
                self.encode_part(sum, sums);
                at += sums.len();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_keeps_every_bit() {
        let values: Vec<f32> = (0..3000).map(|i| f32::from_bits(i * 0x0012_3457)).collect();
        let (mut bytes, mut back) = (vec![0; 4 * 3000], vec![0.0; 3000]);
        Wire::F32.encode(&values, &mut bytes);
        Wire::F32.decode(&bytes, &mut back);
        assert!(values.iter().zip(&back).all(|(left, right)| left.to_bits() == right.to_bits()));
    }

    #[test]
    fn f16_rounds_to_nearest_even() {
        // 2049 and 2051 lie halfway between two halves.
        let values = [1.0, -0.0, 2049.0, 2051.0, 1e6, 1e-9].repeat(300);
        let (mut bytes, mut back) = (vec![0; 2 * 1800], vec![0.0; 1800]);
        Wire::F16.encode(&values, &mut bytes);
        Wire::F16.decode(&bytes, &mut back);
        assert_eq!(back, [1.0, -0.0, 2048.0, 2052.0, f32::INFINITY, 0.0].repeat(300));
    }

    #[test]
    fn sums_are_in_order_and_begin_with_the_first() {
        let bytes: Vec<Vec<u8>> = [[1e8_f32, -0.0], [1.0, -0.0], [-1e8, -0.0]]
            .iter()
            .map(|values| bytemuck::cast_slice(values).to_vec())
            .collect();
        let mut sums = [0; 8];
        Wire::F32.sum(&bytes.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut sums);
        let sums: Vec<f32> = bytemuck::pod_collect_to_vec(&sums);
        // 1e8 + 1 is 1e8 in f32.
        assert_eq!(sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>(), [0.0_f32.to_bits(), (-0.0_f32).to_bits()]);
    }
}
