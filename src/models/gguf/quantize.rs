//! Supported number types of GGUF files, and ggml's quantized blocks (ggml-quants.c).
//!
//! A block is 32 numbers of a row that share a scale d, which is an f16:
//! - q8_0: d = max|x| / 127, q = round(x / d) as an i8, half away from zero; x ~ d q
//! - q4_0: d = m / -8 with m the number of the largest magnitude, q = floor(x / d + 8.5), at most 15, in four bits;
//!   x ~ d (q - 8). A byte holds q of number i in its lower half and of number i + 16 in its upper one.

use half::{bf16, f16};

/// Numbers of a row that share a scale.
const BLOCK: usize = 32;

/// Storage type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgmlType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
}

impl GgmlType {
    pub const ALL: [GgmlType; 5] = [GgmlType::F32, GgmlType::F16, GgmlType::Bf16, GgmlType::Q8_0, GgmlType::Q4_0];

    /// Its name on the command line, such as `f32`.
    pub fn name(self) -> &'static str {
        match self {
            GgmlType::F32 => "f32",
            GgmlType::F16 => "f16",
            GgmlType::Bf16 => "bf16",
            GgmlType::Q8_0 => "q8_0",
            GgmlType::Q4_0 => "q4_0",
        }
    }

    /// Its number in a file (`ggml_type`).
    pub(super) fn code(self) -> u32 {
        match self {
            GgmlType::F32 => 0,
            GgmlType::F16 => 1,
            GgmlType::Bf16 => 30,
            GgmlType::Q8_0 => 8,
            GgmlType::Q4_0 => 2,
        }
    }

    /// The `llama_ftype` of a file with mostly this type.
    pub(super) fn file_type(self) -> u32 {
        match self {
            GgmlType::F32 => 0,
            GgmlType::F16 => 1,
            GgmlType::Bf16 => 32,
            GgmlType::Q8_0 => 7,
            GgmlType::Q4_0 => 2,
        }
    }

    /// Whether it is quantized in blocks.
    pub fn is_quantized(self) -> bool {
        matches!(self, GgmlType::Q8_0 | GgmlType::Q4_0)
    }

    /// How many numbers are stored together, in how many bytes.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            GgmlType::F32 => (1, 4),
            GgmlType::F16 | GgmlType::Bf16 => (1, 2),
            GgmlType::Q8_0 => (BLOCK, 2 + BLOCK),
            GgmlType::Q4_0 => (BLOCK, 2 + BLOCK / 2),
        }
    }

    /// Size in bytes of `elements` numbers in whole blocks.
    pub(super) fn size_bytes(self, elements: usize) -> usize {
        let (numbers, bytes) = self.block();
        elements / numbers * bytes
    }

    /// Adds these numbers, of whole blocks, to `bytes`; fails with one that the type has no place for.
    pub(super) fn encode(self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), f32> {
        match self {
            GgmlType::F32 => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            GgmlType::F16 => values.iter().try_for_each(|x| add_f16(*x, *x, bytes))?,
            GgmlType::Bf16 => bytes.extend(values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())),
            GgmlType::Q8_0 => values.chunks_exact(BLOCK).try_for_each(|block| encode_q8_0(block, bytes))?,
            GgmlType::Q4_0 => values.chunks_exact(BLOCK).try_for_each(|block| encode_q4_0(block, bytes))?,
        }
        Ok(())
    }

    /// Adds the numbers in these bytes, of whole blocks, to `values`.
    pub(super) fn decode(self, bytes: &[u8], values: &mut Vec<f32>) {
        let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        let blocks = || bytes.chunks_exact(self.block().1).map(|block| block.split_at(2));
        let scale = |d: &[u8]| f16::from_le_bytes([d[0], d[1]]).to_f32();
        match self {
            GgmlType::F32 => values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            GgmlType::F16 => values.extend(pairs().map(|pair| f16::from_le_bytes(pair).to_f32())),
            GgmlType::Bf16 => values.extend(pairs().map(|pair| bf16::from_le_bytes(pair).to_f32())),
            GgmlType::Q8_0 => {
                values.extend(blocks().flat_map(|(d, q)| q.iter().map(move |q| scale(d) * f32::from(*q as i8))));
            }
            GgmlType::Q4_0 => values.extend(blocks().flat_map(|(d, q)| {
                let lower = q.iter().map(|q| q & 15);
                let upper = q.iter().map(|q| q >> 4);
                lower.chain(upper).map(move |q| scale(d) * (f32::from(q) - 8.0))
            })),
        }
    }
}

/// Appends a number as f16; if it overflows, the error names `told`.
fn add_f16(x: f32, told: f32, bytes: &mut Vec<u8>) -> Result<(), f32> {
    let half = f16::from_f32(x);
    if half.is_infinite() && x.is_finite() {
        return Err(told);
    }
    bytes.extend(half.to_le_bytes());
    Ok(())
}

/// The number of the largest magnitude, the first of equals.
fn largest(block: &[f32]) -> f32 {
    block.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most })
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn encode_q8_0(block: &[f32], bytes: &mut Vec<u8>) -> Result<(), f32> {
    let most = largest(block);
    let d = most.abs() / 127.0;
    add_f16(d, most, bytes)?;
    // f32::round rounds half away from zero, as C's roundf.
    bytes.extend(block.iter().map(|x| (x * inverse(d)).round() as i8 as u8));
    Ok(())
}

fn encode_q4_0(block: &[f32], bytes: &mut Vec<u8>) -> Result<(), f32> {
    let most = largest(block);
    let d = most / -8.0;
    add_f16(d, most, bytes)?;
    let q = |x: &f32| ((x * inverse(d) + 8.5) as u8).min(15);
    let (lower, upper) = block.split_at(BLOCK / 2);
    bytes.extend(lower.iter().zip(upper).map(|(lower, upper)| q(lower) | q(upper) << 4));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(dtype: GgmlType, values: &[f32]) -> Vec<f32> {
        let (mut bytes, mut back) = (vec![], vec![]);
        dtype.encode(values, &mut bytes).unwrap();
        assert_eq!(bytes.len(), dtype.size_bytes(values.len()));
        dtype.decode(&bytes, &mut back);
        back
    }

    fn numbers() -> Vec<f32> {
        (0..128).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0 * if i < 64 { 1.0 } else { 0.1 }).collect()
    }

    #[test]
    fn numbers_come_back_within_half_a_step_of_their_type() {
        let values = numbers();
        assert_eq!(round_trip(GgmlType::F32, &values), values);
        for (dtype, steps) in [(GgmlType::Q8_0, 127.0), (GgmlType::Q4_0, 8.0)] {
            for (block, back) in values.chunks(BLOCK).zip(round_trip(dtype, &values).chunks(BLOCK)) {
                let step = largest(block).abs() / steps;
                // Half a step, and what the scale loses as f16: 2^-12 of it for each of 127 steps.
                let beyond = block.iter().zip(back).filter(|(x, y)| (*x - *y).abs() > 0.54 * step).count();
                // Of q4_0 the opposite of the largest has no code: 7 of 8 steps stand for it.
                let allowed = if dtype == GgmlType::Q4_0 { 2 } else { 0 };
                assert!(beyond <= allowed, "{dtype:?}: {beyond}");
            }
        }
        for (dtype, bits) in [(GgmlType::F16, 11), (GgmlType::Bf16, 8)] {
            for (x, y) in values.iter().zip(round_trip(dtype, &values)) {
                // Half a unit in the last place; below 2^-14 f16 keeps fewer bits.
                assert!((x - y).abs() <= x.abs() * 0.5f32.powi(bits) + 3e-8, "{dtype:?}: {x} {y}");
            }
        }
    }

    #[test]
    fn a_block_of_zeros_stays_one() {
        for dtype in GgmlType::ALL {
            assert_eq!(round_trip(dtype, &[0.0; 32]), [0.0; 32], "{dtype:?}");
        }
    }

    #[test]
    fn what_a_type_has_no_place_for_is_an_error() {
        let mut values = numbers()[..32].to_vec();
        values[5] = -7e4;
        assert_eq!(GgmlType::F16.encode(&values, &mut vec![]), Err(-7e4));
        assert_eq!(GgmlType::Q8_0.encode(&values, &mut vec![]), Ok(()));
        values[5] = -1e7;
        assert_eq!(GgmlType::Q8_0.encode(&values, &mut vec![]), Err(-1e7));
        assert_eq!(GgmlType::Q4_0.encode(&values, &mut vec![]), Err(-1e7));
        assert_eq!(GgmlType::Bf16.encode(&values, &mut vec![]), Ok(()));
    }
}
