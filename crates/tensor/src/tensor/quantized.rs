//! Weights in blocks of 8 or 4 bits, frozen: how they lie in memory, and their conversion on the CPU.
//!
//! | type | block | value of a code q | bits |
//! |---|---|---|---|
//! | `q8_0` | 32 | d q, -127 <= q <= 127, d = absmax / 127 in f16 | 8.5 |
//! | `q4_0` | 32 | d (q - 8), d = m / -8 in f16, m the element of the largest magnitude | 4.5 |
//! | `nf4` | 64 | absmax NF4\[q\] (Dettmers et al. 2023), absmax in 8 bits (double quantization) | 4.13 |
//!
//! Values of `q8_0` and `q4_0` are ggml's: quantized again they keep their bits (of `q4_0`, unless an importance matrix
//! chose the scales). Of `nf4`, absmax of each block is `c * number + mean`: `mean` is that of all blocks, c the
//! largest distance to it among 256 blocks, and `number` one of the 256 of dynamic quantization ([`Codebook`]); as in
//! bitsandbytes.
//!
//! A tensor is a matrix (N, K) whose rows have whole blocks. It lies in words of u32, of which the lowest bits are the
//! first elements:
//!
//! ```text
//! codes, four or eight to a word | scales: f16, two to a word                              q8_0, q4_0
//! codes, eight to a word         | absmax codes, four to a word | c | mean | 256 numbers   nf4
//! ```

use super::codebook::Codebook;
use super::source::count_read;
use super::{DType, Source};
use crate::cpu::vectorized;
use half::f16;
use rayon::prelude::*;
use std::sync::LazyLock;

/// The quantiles of the normal distribution that `nf4` has, as bitsandbytes rounds them.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Blocks of `nf4` whose absmax share a scale.
const COARSE: usize = 256;

/// Elements whose values are decoded at a time: they stay in the nearest cache.
pub(crate) const STEP: usize = 512;

/// Elements that a thread converts at a time: whole blocks, and whole words of scales.
const PART: usize = 1 << 14;

static NUMBERS: LazyLock<Codebook> = LazyLock::new(|| Codebook::new(true));

/// Where the parts of a quantized tensor begin, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    pub scales: usize,
    /// Of `nf4`: c of 256 blocks each, the mean, and the numbers.
    pub coarse: usize,
    pub mean: usize,
    pub numbers: usize,
    pub end: usize,
}

impl DType {
    /// Whether elements are quantized in blocks.
    pub fn is_quantized(self) -> bool {
        self.block() > 1
    }

    /// Elements that share a scale; 1 of types that have none.
    pub fn block(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::U32 => 1,
            DType::Q8_0 | DType::Q4_0 => 32,
            DType::Nf4 => 64,
        }
    }
}

impl Parts {
    pub fn of(dtype: DType, elements: usize) -> Parts {
        let blocks = elements / dtype.block();
        let (scales, words) = match dtype {
            DType::Q8_0 => (elements.div_ceil(4), blocks.div_ceil(2)),
            DType::Q4_0 => (elements.div_ceil(8), blocks.div_ceil(2)),
            _ => (elements.div_ceil(8), blocks.div_ceil(4)),
        };
        let coarse = scales + words;
        let mean = coarse + blocks.div_ceil(COARSE);
        let end = if dtype == DType::Nf4 { mean + 1 + 256 } else { coarse };
        Parts { scales, coarse, mean, numbers: mean + 1, end }
    }
}

/// The words of a quantized tensor of so many elements.
pub(super) fn encode(dtype: DType, source: &(impl Source + ?Sized), elements: usize) -> Vec<u32> {
    let (parts, block) = (Parts::of(dtype, elements), dtype.block());
    let mut words = vec![0; parts.end];
    let (codes, rest) = words.split_at_mut(parts.scales);
    let codes = codes.par_chunks_mut(PART / if dtype == DType::Q8_0 { 4 } else { 8 }).enumerate();
    let read = |part: usize| {
        let mut values = vec![0.0; PART.min(elements - part * PART)];
        source.read(part * PART, &mut values);
        count_read(values.len());
        values
    };
    if dtype == DType::Nf4 {
        let mut absmax = vec![0.0; elements / block];
        codes.zip(absmax.par_chunks_mut(PART / block)).for_each(|((part, codes), absmax)| {
            let blocks = codes.chunks_mut(block / 8).zip(absmax);
            read(part).chunks(block).zip(blocks).for_each(|(x, (codes, absmax))| *absmax = encode_nf4(x, codes));
        });
        encode_absmax(&absmax, parts, &mut words);
        return words;
    }
    codes.zip(rest.par_chunks_mut(PART / block / 2)).for_each(|((part, codes), scales)| {
        let values = read(part);
        for (i, x) in values.chunks(block).enumerate() {
            let scale = match dtype {
                DType::Q8_0 => encode_q8_0(x, &mut codes[i * block / 4..][..block / 4]),
                _ => encode_q4_0(x, &mut codes[i * block / 8..][..block / 8]),
            };
            scales[i / 2] |= u32::from(scale.to_bits()) << (16 * (i % 2));
        }
    });
    words
}

fn encode_q8_0(x: &[f32], codes: &mut [u32]) -> f16 {
    let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (codes, x) in codes.iter_mut().zip(x.chunks(4)) {
        *codes = u32::from_le_bytes(std::array::from_fn(|i| (x[i] * inverse).round() as i8 as u8));
    }
    f16::from_f32(scale)
}

fn encode_q4_0(x: &[f32], codes: &mut [u32]) -> f16 {
    let largest = x.iter().fold(0.0, |largest: f32, x| if x.abs() > largest.abs() { *x } else { largest });
    let scale = largest / -8.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (codes, x) in codes.iter_mut().zip(x.chunks(8)) {
        *codes = nibbles(x.iter().map(|x| ((x * inverse + 8.5) as u32).min(15)));
    }
    f16::from_f32(scale)
}

/// Returns the largest magnitude.
fn encode_nf4(x: &[f32], codes: &mut [u32]) -> f32 {
    let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    let divisor = if largest == 0.0 { 1.0 } else { largest };
    let code = |x: &f32| NF4.windows(2).filter(|pair| x / divisor > 0.5 * (pair[0] + pair[1])).count() as u32;
    for (codes, x) in codes.iter_mut().zip(x.chunks(8)) {
        *codes = nibbles(x.iter().map(code));
    }
    largest
}

fn nibbles(codes: impl Iterator<Item = u32>) -> u32 {
    codes.enumerate().fold(0, |word, (i, code)| word | code << (4 * i))
}

/// Double quantization: what follows the codes of `nf4`.
fn encode_absmax(absmax: &[f32], parts: Parts, words: &mut [u32]) {
    let sum: f64 = absmax.iter().map(|x| f64::from(*x)).sum();
    let mean = (sum / absmax.len().max(1) as f64) as f32;
    words[parts.mean] = mean.to_bits();
    for (word, number) in words[parts.numbers..].iter_mut().zip(NUMBERS.numbers) {
        *word = number.to_bits();
    }
    for (group, absmax) in absmax.chunks(COARSE).enumerate() {
        let largest = absmax.iter().fold(0.0, |largest: f32, x| largest.max((x - mean).abs()));
        let divisor = if largest == 0.0 { 1.0 } else { largest };
        words[parts.coarse + group] = largest.to_bits();
        for (i, x) in absmax.iter().enumerate() {
            let at = group * COARSE + i;
            words[parts.scales + at / 4] |= u32::from(NUMBERS.nearest((x - mean) / divisor)) << (8 * (at % 4));
        }
    }
}

/// The values of whole blocks of a quantized tensor of so many elements, from this element on.
pub(crate) fn decode(dtype: DType, words: &[u32], elements: usize, first: usize, out: &mut [f32]) {
    let parts = Parts::of(dtype, elements);
    vectorized(
        #[inline(always)]
        || {
            for (i, out) in out.chunks_mut(STEP).enumerate() {
                decode_step(dtype, words, parts, first + i * STEP, out);
            }
        },
    );
}

/// [`decode`] of at most [`STEP`] elements, for a `vectorized` loop: in passes that compilers make vectors of.
#[inline(always)]
pub(crate) fn decode_step(dtype: DType, words: &[u32], parts: Parts, first: usize, out: &mut [f32]) {
    if dtype == DType::Q8_0 {
        let codes: &[i8] = bytemuck::cast_slice(&words[first / 4..][..out.len() / 4]);
        for (x, code) in out.iter_mut().zip(codes) {
            *x = *code as f32;
        }
    } else {
        let (mut codes, bytes) = ([0; STEP], bytemuck::cast_slice::<u32, u8>(&words[first / 8..][..out.len() / 8]));
        for (pair, byte) in codes.chunks_exact_mut(2).zip(bytes) {
            (pair[0], pair[1]) = (byte & 15, byte >> 4);
        }
        for (x, code) in out.iter_mut().zip(&codes) {
            *x = if dtype == DType::Q4_0 { *code as f32 - 8.0 } else { NF4[(*code & 15) as usize] };
        }
    }
    let block = dtype.block();
    for (i, block_of_out) in out.chunks_mut(block).enumerate() {
        let scale = scale_of(dtype, words, parts, first / block + i);
        for x in block_of_out {
            *x *= scale;
        }
    }
}

/// The f16 in the lower bits, finite, as f32: without a call, in a loop of products.
#[inline(always)]
pub(crate) fn widened(bits: u32) -> f32 {
    // f32's exponents begin 112 lower.
    let magnitude = ((bits & 0x7fff) << 13) + (112 << 23);
    // Subnormal ones: the implicit bit is added and subtracted, because arithmetic on subnormal f32 is slow.
    let tiny = f32::from_bits(magnitude + (1 << 23)) - f32::from_bits(113 << 23);
    let magnitude = if bits & 0x7c00 == 0 { tiny.to_bits() } else { magnitude };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// What the codes of a block are multiplied by.
#[inline(always)]
fn scale_of(dtype: DType, words: &[u32], parts: Parts, block: usize) -> f32 {
    match dtype {
        DType::Nf4 => {
            let code = words[parts.scales + block / 4] >> (8 * (block % 4)) & 255;
            let coarse = f32::from_bits(words[parts.coarse + block / COARSE]);
            NUMBERS.numbers[code as usize] * coarse + f32::from_bits(words[parts.mean])
        }
        _ => widened(words[parts.scales + block / 2] >> (16 * (block % 2))),
    }
}

/// All values, by all threads.
pub(super) fn decode_all(dtype: DType, bytes: &[u8], elements: usize) -> Vec<f32> {
    let (words, mut values): (Vec<u32>, _) = (bytemuck::pod_collect_to_vec(bytes), vec![0.0; elements]);
    let parts = values.par_chunks_mut(PART).enumerate();
    parts.for_each(|(part, out)| decode(dtype, &words, elements, part * PART, out));
    values
}
