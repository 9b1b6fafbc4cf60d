//! Number types of GGUF files, and ggml's quantized blocks (ggml-quants.c).
//!
//! A block is some numbers of a row that share a scale d, which is an f16. Of 32 numbers:
//! - q8_0: d = max|x| / 127, q = round(x / d) as an i8, half away from zero; x ~ d q
//! - q4_0: d = m / -8 with m the number of the largest magnitude, q = floor(x / d + 8.5), at most 15, in four bits;
//!   x ~ d (q - 8). A byte holds q of number i in its lower half and of number i + 16 in its upper one.
//! - q5_0: x ~ d (q - 16), the fifth bits in 32 bits of their own; q4_1, q5_1: x ~ d q + m with an f16 m.
//!
//! Of 256 numbers, in parts with scales s of their own:
//! - q4_k, q5_k: eight parts, x ~ (d s) q - (dmin m) with s and m of six bits
//! - q6_k: sixteen parts, x ~ (d s) (q - 32) with s an i8

use half::{bf16, f16};

/// Numbers that share a scale.
const BLOCK: usize = 32;
/// Numbers of a block with parts.
pub(super) const SUPER_BLOCK: usize = 256;

/// Storage type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgmlType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4K,
    Q5K,
    Q6K,
}

impl GgmlType {
    /// All that are read.
    pub const ALL: [GgmlType; 11] = [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::Bf16,
        GgmlType::Q8_0,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q4K,
        GgmlType::Q5K,
        GgmlType::Q6K,
    ];
    /// Those that are written.
    pub const WRITTEN: [GgmlType; 5] = [GgmlType::F32, GgmlType::F16, GgmlType::Bf16, GgmlType::Q8_0, GgmlType::Q4_0];

    /// Its name, such as `f32`.
    pub fn name(self) -> &'static str {
        match self {
            GgmlType::F32 => "f32",
            GgmlType::F16 => "f16",
            GgmlType::Bf16 => "bf16",
            GgmlType::Q8_0 => "q8_0",
            GgmlType::Q4_0 => "q4_0",
            GgmlType::Q4_1 => "q4_1",
            GgmlType::Q5_0 => "q5_0",
            GgmlType::Q5_1 => "q5_1",
            GgmlType::Q4K => "q4_k",
            GgmlType::Q5K => "q5_k",
            GgmlType::Q6K => "q6_k",
        }
    }

    /// Its number in a file (`ggml_type`).
    pub(super) fn code(self) -> u32 {
        match self {
            GgmlType::F32 => 0,
            GgmlType::F16 => 1,
            GgmlType::Q4_0 => 2,
            GgmlType::Q4_1 => 3,
            GgmlType::Q5_0 => 6,
            GgmlType::Q5_1 => 7,
            GgmlType::Q8_0 => 8,
            GgmlType::Q4K => 12,
            GgmlType::Q5K => 13,
            GgmlType::Q6K => 14,
            GgmlType::Bf16 => 30,
        }
    }

    /// The `llama_ftype` of a file with mostly this type; `None` if there are no such files of ours.
    pub(super) fn file_type(self) -> Option<u32> {
        match self {
            GgmlType::F32 => Some(0),
            GgmlType::F16 => Some(1),
            GgmlType::Bf16 => Some(32),
            GgmlType::Q8_0 => Some(7),
            GgmlType::Q4_0 => Some(2),
            _ => None,
        }
    }

    /// Whether it is quantized in blocks.
    pub fn is_quantized(self) -> bool {
        self.block().0 > 1
    }

    /// How many numbers are stored together, in how many bytes.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            GgmlType::F32 => (1, 4),
            GgmlType::F16 | GgmlType::Bf16 => (1, 2),
            GgmlType::Q8_0 => (BLOCK, 2 + BLOCK),
            GgmlType::Q4_0 => (BLOCK, 2 + BLOCK / 2),
            GgmlType::Q4_1 => (BLOCK, 4 + BLOCK / 2),
            GgmlType::Q5_0 => (BLOCK, 6 + BLOCK / 2),
            GgmlType::Q5_1 => (BLOCK, 8 + BLOCK / 2),
            GgmlType::Q4K => (SUPER_BLOCK, 16 + SUPER_BLOCK / 2),
            GgmlType::Q5K => (SUPER_BLOCK, 16 + SUPER_BLOCK * 5 / 8),
            GgmlType::Q6K => (SUPER_BLOCK, 18 + SUPER_BLOCK * 3 / 4),
        }
    }

    /// Size in bytes of `elements` numbers in whole blocks.
    pub(super) fn size_bytes(self, elements: usize) -> usize {
        let (numbers, bytes) = self.block();
        elements / numbers * bytes
    }

    /// Adds these numbers, of whole blocks, to `bytes`; fails with one that the type has no place for. Of a type that
    /// is not [written](GgmlType::WRITTEN) that is the first.
    pub(super) fn encode(self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), f32> {
        match self {
            GgmlType::F32 => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            GgmlType::F16 => values.iter().try_for_each(|x| add_f16(*x, *x, bytes))?,
            GgmlType::Bf16 => bytes.extend(values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())),
            GgmlType::Q8_0 => values.chunks_exact(BLOCK).try_for_each(|block| encode_q8_0(block, bytes))?,
            GgmlType::Q4_0 => values.chunks_exact(BLOCK).try_for_each(|block| encode_q4_0(block, bytes))?,
            _ => values.first().map_or(Ok(()), |value| Err(*value))?,
        }
        Ok(())
    }

    /// The numbers in these bytes, of whole blocks.
    pub(super) fn decode(self, bytes: &[u8], values: &mut [f32]) {
        let (numbers, size) = self.block();
        let blocks = values.chunks_exact_mut(numbers).zip(bytes.chunks_exact(size));
        match self {
            GgmlType::F32 => blocks.for_each(|(x, b)| x[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            GgmlType::F16 => blocks.for_each(|(x, b)| x[0] = half(b, 0)),
            GgmlType::Bf16 => blocks.for_each(|(x, b)| x[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            GgmlType::Q8_0 => blocks.for_each(|(x, b)| {
                let d = half(b, 0);
                x.iter_mut().zip(&b[2..]).for_each(|(x, q)| *x = d * f32::from(*q as i8));
            }),
            GgmlType::Q4_0 => blocks.for_each(|(x, b)| {
                let d = half(b, 0);
                each_nibble(&b[2..], |i, q| x[i] = d * (f32::from(q) - 8.0));
            }),
            GgmlType::Q4_1 => blocks.for_each(|(x, b)| {
                let (d, m) = (half(b, 0), half(b, 2));
                each_nibble(&b[4..], |i, q| x[i] = d * f32::from(q) + m);
            }),
            GgmlType::Q5_0 => blocks.for_each(|(x, b)| {
                let (d, fifth) = (half(b, 0), fifth_bits(&b[2..]));
                each_nibble(&b[6..], |i, q| x[i] = d * (f32::from(q | fifth(i)) - 16.0));
            }),
            GgmlType::Q5_1 => blocks.for_each(|(x, b)| {
                let (d, m, fifth) = (half(b, 0), half(b, 2), fifth_bits(&b[4..]));
                each_nibble(&b[8..], |i, q| x[i] = d * f32::from(q | fifth(i)) + m);
            }),
            GgmlType::Q4K => blocks.for_each(|(x, b)| decode_with_minima(b, &[], &b[16..], x)),
            GgmlType::Q5K => blocks.for_each(|(x, b)| decode_with_minima(b, &b[16..48], &b[48..], x)),
            GgmlType::Q6K => blocks.for_each(|(x, b)| decode_q6_k(b, x)),
        }
    }
}

/// The f16 at byte `at`.
fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Calls `each` with the number and the four bits of every number of a block of 32.
fn each_nibble(bytes: &[u8], mut each: impl FnMut(usize, u8)) {
    for (i, byte) in bytes.iter().enumerate() {
        each(i, byte & 15);
        each(i + BLOCK / 2, byte >> 4);
    }
}

/// The fifth bit of every number of a block, in its place.
fn fifth_bits(bytes: &[u8]) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    move |i| ((bits >> i & 1) << 4) as u8
}

/// A block of q4_k or q5_k: d, dmin, twelve bytes with scales and minima, fifth bits or none, and four bits each.
fn decode_with_minima(block: &[u8], fifths: &[u8], nibbles: &[u8], values: &mut [f32]) {
    let (d, dmin, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    let of_part = |part: usize| match part {
        0..4 => (packed[part] & 63, packed[part + 4] & 63),
        _ => (packed[part + 4] & 15 | packed[part - 4] >> 6 << 4, packed[part + 4] >> 4 | packed[part] >> 6 << 4),
    };
    for (part, values) in values.chunks_exact_mut(BLOCK).enumerate() {
        let (scale, minimum) = of_part(part);
        let (d, m) = (d * f32::from(scale), dmin * f32::from(minimum));
        let bytes = &nibbles[part / 2 * BLOCK..];
        for (i, value) in values.iter_mut().enumerate() {
            let fifth = fifths.get(i).map_or(0, |bits| (bits >> part & 1) << 4);
            *value = d * f32::from(bytes[i] >> (part % 2 * 4) & 15 | fifth) - m;
        }
    }
}

/// A block of q6_k: lower four bits, upper two, scales and d.
fn decode_q6_k(block: &[u8], values: &mut [f32]) {
    let (lower, rest) = block.split_at(128);
    let (upper, scales) = rest.split_at(64);
    let d = half(scales, 16);
    for (i, value) in values.iter_mut().enumerate() {
        // Of each half of the block a quarter lies in every two bits.
        let (half, quarter, at) = (i / 128, i % 128 / 32, i % 32);
        let four = lower[64 * half + 32 * (quarter % 2) + at] >> (quarter / 2 * 4) & 15;
        let two = upper[32 * half + at] >> (2 * quarter) & 3;
        *value = d * f32::from(scales[i / 16] as i8) * (f32::from(four | two << 4) - 32.0);
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
        let (mut bytes, mut back) = (vec![], vec![f32::NAN; values.len()]);
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
        for dtype in GgmlType::WRITTEN {
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
