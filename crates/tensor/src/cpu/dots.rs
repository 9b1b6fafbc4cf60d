//! Integer dot products of blocks of 8 or 4 bits with numbers of 8 bits, for GEMMs that are bound by reading a
//! quantized matrix.
//!
//! A block of 32 products is added up in sixteen lanes, each of two neighbours, and the lanes in f32 times a scale:
//!
//! ```text
//! lanes[l] += scale (w[2l] x[2l] + w[2l+1] x[2l+1])        l < 16
//! ```
//! All vector extensions give the same bits.

use super::lanes::total;
use super::vectorized;

/// Products that share a scale.
pub const BLOCK: usize = 32;
const LANES: usize = BLOCK / 2;

/// A block of codes of 8 bits, and of 4 bits: two to a byte, the lower ones first, each of which stands for eight less.
pub type Codes8 = [i8; BLOCK];
pub type Codes4 = [u8; BLOCK / 2];
/// A block of numbers of 8 bits.
pub type Numbers = [i16; BLOCK];

/// Multiplies blocks.
pub trait Dots: Copy {
    /// The sums of a row, lane by lane.
    type Lanes: Copy;

    fn zeros(self) -> Self::Lanes;

    /// With the products of a block of 8 bits.
    fn add_8(self, lanes: Self::Lanes, w: &Codes8, x: &Numbers, scale: f32) -> Self::Lanes;

    /// With those of a block of 4 bits.
    fn add_4(self, lanes: Self::Lanes, w: &Codes4, x: &Numbers, scale: f32) -> Self::Lanes;

    /// The sum of the lanes, pair by pair: each of the first half with one of the second, and so on.
    fn sum(self, lanes: Self::Lanes) -> f32;
}

/// Work that is generic over the vector extension. Callees must be `#[inline(always)]`.
pub trait WithDots {
    fn run(self, dots: impl Dots);
}

/// Runs it with the widest vector extension that this processor supports.
#[inline(always)]
pub fn with_dots(body: impl WithDots) {
    #[cfg(target_arch = "x86_64")]
    match pulp::Arch::new() {
        pulp::Arch::V4(simd) => return simd.vectorize(InSimd { dots: x86::V4(simd), body }),
        pulp::Arch::V3(simd) => return simd.vectorize(InSimd { dots: x86::V3(simd), body }),
        _ => {}
    }
    vectorized(
        #[inline(always)]
        || body.run(Plain),
    );
}

/// Portable loops, which compilers vectorize.
#[derive(Clone, Copy)]
struct Plain;

impl Dots for Plain {
    type Lanes = [f32; LANES];

    #[inline(always)]
    fn zeros(self) -> [f32; LANES] {
        [0.0; LANES]
    }

    #[inline(always)]
    fn add_8(self, mut lanes: [f32; LANES], w: &Codes8, x: &Numbers, scale: f32) -> [f32; LANES] {
        for (l, lane) in lanes.iter_mut().enumerate() {
            let product = |i: usize| i32::from(i16::from(w[i])) * i32::from(x[i]);
            *lane += scale * (product(2 * l) + product(2 * l + 1)) as f32;
        }
        lanes
    }

    #[inline(always)]
    fn add_4(self, mut lanes: [f32; LANES], w: &Codes4, x: &Numbers, scale: f32) -> [f32; LANES] {
        for (l, lane) in lanes.iter_mut().enumerate() {
            let [low, high] = [w[l] & 15, w[l] >> 4].map(|code| i32::from(code) - 8);
            *lane += scale * (low * i32::from(x[2 * l]) + high * i32::from(x[2 * l + 1])) as f32;
        }
        lanes
    }

    #[inline(always)]
    fn sum(self, lanes: [f32; LANES]) -> f32 {
        total(&lanes)
    }
}

#[cfg(target_arch = "x86_64")]
struct InSimd<D, B> {
    dots: D,
    body: B,
}

#[cfg(target_arch = "x86_64")]
impl<D: Dots, B: WithDots> pulp::NullaryFnOnce for InSimd<D, B> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.body.run(self.dots);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Codes4, Codes8, Dots, Numbers};
    use pulp::cast;
    use std::arch::x86_64::{__m128, __m128i, __m256, __m256i, __m512, __m512i};

    /// AVX-512.
    #[derive(Clone, Copy)]
    pub struct V4(pub pulp::x86::V4);

    impl Dots for V4 {
        type Lanes = __m512;

        #[inline(always)]
        fn zeros(self) -> __m512 {
            cast([0.0_f32; 16])
        }

        #[inline(always)]
        fn add_8(self, lanes: __m512, w: &Codes8, x: &Numbers, scale: f32) -> __m512 {
            let words = self.0.avx512bw._mm512_cvtepi8_epi16(cast(*w));
            self.add(lanes, words, x, scale)
        }

        #[inline(always)]
        fn add_4(self, lanes: __m512, w: &Codes4, x: &Numbers, scale: f32) -> __m512 {
            let f = self.0.avx512f;
            let codes = f._mm512_cvtepu8_epi32(cast(*w));
            // The higher four bits to the higher word.
            let both = f._mm512_or_si512(codes, f._mm512_slli_epi32::<12>(codes));
            let words = f._mm512_and_si512(both, f._mm512_set1_epi32(0x000f_000f));
            self.add(lanes, self.0.avx512bw._mm512_sub_epi16(words, f._mm512_set1_epi16(8)), x, scale)
        }

        #[inline(always)]
        fn sum(self, lanes: __m512) -> f32 {
            V3(*self.0).sum(cast(lanes))
        }
    }

    impl V4 {
        #[inline(always)]
        fn add(self, lanes: __m512, words: __m512i, x: &Numbers, scale: f32) -> __m512 {
            let f = self.0.avx512f;
            let products = f._mm512_cvtepi32_ps(self.0.avx512bw._mm512_madd_epi16(words, cast(*x)));
            f._mm512_add_ps(lanes, f._mm512_mul_ps(f._mm512_set1_ps(scale), products))
        }
    }

    /// AVX2.
    #[derive(Clone, Copy)]
    pub struct V3(pub pulp::x86::V3);

    impl Dots for V3 {
        type Lanes = [__m256; 2];

        #[inline(always)]
        fn zeros(self) -> [__m256; 2] {
            cast([0.0_f32; 16])
        }

        #[inline(always)]
        fn add_8(self, lanes: [__m256; 2], w: &Codes8, x: &Numbers, scale: f32) -> [__m256; 2] {
            let [low, high]: [__m128i; 2] = cast(*w);
            let avx2 = self.0.avx2;
            self.add(lanes, [avx2._mm256_cvtepi8_epi16(low), avx2._mm256_cvtepi8_epi16(high)], x, scale)
        }

        #[inline(always)]
        fn add_4(self, lanes: [__m256; 2], w: &Codes4, x: &Numbers, scale: f32) -> [__m256; 2] {
            let [low, high]: [u64; 2] = cast(*w);
            self.add(lanes, [self.words(low), self.words(high)], x, scale)
        }

        #[inline(always)]
        fn sum(self, [first, second]: [__m256; 2]) -> f32 {
            let sse = self.0.sse;
            let [first, second]: [__m128; 2] = cast(self.0.avx._mm256_add_ps(first, second));
            let four = sse._mm_add_ps(first, second);
            let two = sse._mm_add_ps(four, sse._mm_movehl_ps(four, four));
            let sum: [f32; 4] = cast(sse._mm_add_ss(two, sse._mm_shuffle_ps::<1>(two, two)));
            sum[0]
        }
    }

    impl V3 {
        /// Codes of 4 bits in words.
        #[inline(always)]
        fn words(self, w: u64) -> __m256i {
            let (avx, avx2) = (self.0.avx, self.0.avx2);
            let codes = avx2._mm256_cvtepu8_epi32(cast([w, 0]));
            let both = avx2._mm256_or_si256(codes, avx2._mm256_slli_epi32::<12>(codes));
            let words = avx2._mm256_and_si256(both, avx._mm256_set1_epi32(0x000f_000f));
            avx2._mm256_sub_epi16(words, avx._mm256_set1_epi16(8))
        }

        #[inline(always)]
        fn add(self, lanes: [__m256; 2], words: [__m256i; 2], x: &Numbers, scale: f32) -> [__m256; 2] {
            let (avx, x): (_, [__m256i; 2]) = (self.0.avx, cast(*x));
            let mut sums = lanes;
            for half in 0..2 {
                let products = avx._mm256_cvtepi32_ps(self.0.avx2._mm256_madd_epi16(words[half], x[half]));
                sums[half] = avx._mm256_add_ps(lanes[half], avx._mm256_mul_ps(avx._mm256_set1_ps(scale), products));
            }
            sums
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of seven blocks of each type, with extreme values among them: each lane, and their sum.
    type Results = [[f32; LANES + 1]; 2];

    struct Sums<'a>(&'a mut Results);

    impl WithDots for Sums<'_> {
        #[inline(always)]
        fn run(self, dots: impl Dots) {
            for lane in 0..LANES + 1 {
                let mut sums = [dots.zeros(); 2];
                for block in 0..7_usize {
                    let number = |i: usize| (block * 131 + i * i * 37) % 255;
                    let is_there = |i: usize| lane == LANES || i / 2 == lane;
                    let x: Numbers = std::array::from_fn(|i| match block {
                        _ if !is_there(i) => 0,
                        3 => -127,
                        _ => number(i + 5) as i16 - 127,
                    });
                    let w: Codes8 = std::array::from_fn(|i| if block == 3 { -128 } else { number(i) as u8 as i8 });
                    let nibbles: Codes4 = std::array::from_fn(|i| number(i) as u8 ^ block as u8);
                    let scale = 0.37 * (block as f32 - 2.5);
                    sums = [dots.add_8(sums[0], &w, &x, scale), dots.add_4(sums[1], &nibbles, &x, scale)];
                }
                self.0.iter_mut().zip(sums).for_each(|(results, sums)| results[lane] = dots.sum(sums));
            }
        }
    }

    #[test]
    fn every_vector_extension_gives_the_same_bits() {
        let results = || [[0.0; LANES + 1]; 2];
        let mut plain = results();
        Sums(&mut plain).run(Plain);
        assert!(plain.iter().flatten().all(|sum| *sum != 0.0));
        let mut widest = results();
        with_dots(Sums(&mut widest));
        assert_eq!(widest, plain);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            let mut narrow = results();
            simd.vectorize(InSimd { dots: x86::V3(simd), body: Sums(&mut narrow) });
            assert_eq!(narrow, plain);
        }
    }
}
