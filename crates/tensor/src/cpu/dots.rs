//! Integer dot products of blocks of 8 or 4 bits with numbers of 8 bits, for GEMMs that are bound by reading a
//! quantized matrix.
//!
//! A block of 32 products is added up in sixteen lanes, each of two neighbours, and the lanes in f32 times a scale.
//! Several rows are multiplied at a time, because memory answers several reads as fast as one:
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

/// The sums of one row, lane by lane.
pub type Lanes = [f32; LANES];

/// A block of codes of 8 bits, and of 4 bits: two to a byte, the lower ones first, each of which stands for eight less.
pub type Codes8 = [i8; BLOCK];
pub type Codes4 = [u8; BLOCK / 2];
/// A block of numbers of 8 bits.
pub type Numbers = [i16; BLOCK];

/// Blocks that are multiplied in one call, at most.
pub const GROUP: usize = 64;

/// Multiplies blocks of R rows with those of x, of which there are as many in each.
pub trait Dots: Copy {
    /// Adds the products of blocks of 8 bits.
    fn add_8<const R: usize>(
        self,
        lanes: &mut [Lanes; R],
        w: [&[Codes8]; R],
        x: &[Numbers],
        scales: &[[f32; GROUP]; R],
    );

    /// Adds those of blocks of 4 bits.
    fn add_4<const R: usize>(
        self,
        lanes: &mut [Lanes; R],
        w: [&[Codes4]; R],
        x: &[Numbers],
        scales: &[[f32; GROUP]; R],
    );

    /// The sum of the lanes, pair by pair: each of the first half with one of the second, and so on.
    fn sum(self, lanes: &Lanes) -> f32;
}

/// For each block of each row: its number, the row's, the codes, those of x and the scale.
macro_rules! for_blocks {
    ($w:ident, $x:ident, $scales:ident, |$row:ident, $codes:ident, $numbers:ident, $scale:ident| $body:block) => {
        // Of equal length, so that no index needs a check.
        let count = $x.len().min(GROUP);
        let ($w, $x) = ($w.map(|w| &w[..count]), &$x[..count]);
        for block in 0..count {
            let $numbers = &$x[block];
            for $row in 0..R {
                let ($codes, $scale) = (&$w[$row][block], $scales[$row][block]);
                $body
            }
        }
    };
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
    #[inline(always)]
    fn add_8<const R: usize>(
        self,
        lanes: &mut [Lanes; R],
        w: [&[Codes8]; R],
        x: &[Numbers],
        scales: &[[f32; GROUP]; R],
    ) {
        for_blocks!(w, x, scales, |row, w, x, scale| {
            for (l, lane) in lanes[row].iter_mut().enumerate() {
                let product = |i: usize| i32::from(i16::from(w[i])) * i32::from(x[i]);
                *lane += scale * (product(2 * l) + product(2 * l + 1)) as f32;
            }
        });
    }

    #[inline(always)]
    fn add_4<const R: usize>(
        self,
        lanes: &mut [Lanes; R],
        w: [&[Codes4]; R],
        x: &[Numbers],
        scales: &[[f32; GROUP]; R],
    ) {
        for_blocks!(w, x, scales, |row, w, x, scale| {
            for (l, lane) in lanes[row].iter_mut().enumerate() {
                let [low, high] = [w[l] & 15, w[l] >> 4].map(|code| i32::from(code) - 8);
                *lane += scale * (low * i32::from(x[2 * l]) + high * i32::from(x[2 * l + 1])) as f32;
            }
        });
    }

    #[inline(always)]
    fn sum(self, lanes: &Lanes) -> f32 {
        total(lanes)
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
    use super::{Codes4, Codes8, Dots, GROUP, Lanes, Numbers};
    use pulp::cast;
    use std::arch::x86_64::{__m128, __m128i, __m256, __m256i, __m512, __m512i};

    /// AVX-512.
    #[derive(Clone, Copy)]
    pub struct V4(pub pulp::x86::V4);

    impl Dots for V4 {
        #[inline(always)]
        fn add_8<const R: usize>(
            self,
            lanes: &mut [Lanes; R],
            w: [&[Codes8]; R],
            x: &[Numbers],
            scales: &[[f32; GROUP]; R],
        ) {
            let mut sums: [__m512; R] = lanes.map(cast);
            for_blocks!(w, x, scales, |row, w, x, scale| {
                let words = self.0.avx512bw._mm512_cvtepi8_epi16(cast(*w));
                sums[row] = self.add(sums[row], self.0.avx512bw._mm512_madd_epi16(words, cast(*x)), scale);
            });
            *lanes = sums.map(cast);
        }

        #[inline(always)]
        fn add_4<const R: usize>(
            self,
            lanes: &mut [Lanes; R],
            w: [&[Codes4]; R],
            x: &[Numbers],
            scales: &[[f32; GROUP]; R],
        ) {
            let (f, bw) = (self.0.avx512f, self.0.avx512bw);
            let mut sums: [__m512; R] = lanes.map(cast);
            for_blocks!(w, x, scales, |row, w, x, scale| {
                let codes = f._mm512_cvtepu8_epi32(cast(*w));
                // The higher four bits to the higher word.
                let both = f._mm512_or_si512(codes, f._mm512_slli_epi32::<12>(codes));
                let words = f._mm512_and_si512(both, f._mm512_set1_epi32(0x000f_000f));
                let words = bw._mm512_sub_epi16(words, f._mm512_set1_epi16(8));
                sums[row] = self.add(sums[row], bw._mm512_madd_epi16(words, cast(*x)), scale);
            });
            *lanes = sums.map(cast);
        }

        #[inline(always)]
        fn sum(self, lanes: &Lanes) -> f32 {
            V3(*self.0).sum(lanes)
        }
    }

    impl V4 {
        #[inline(always)]
        fn add(self, sums: __m512, products: __m512i, scale: f32) -> __m512 {
            let f = self.0.avx512f;
            f._mm512_add_ps(sums, f._mm512_mul_ps(f._mm512_set1_ps(scale), f._mm512_cvtepi32_ps(products)))
        }
    }

    /// AVX2.
    #[derive(Clone, Copy)]
    pub struct V3(pub pulp::x86::V3);

    impl Dots for V3 {
        #[inline(always)]
        fn add_8<const R: usize>(
            self,
            lanes: &mut [Lanes; R],
            w: [&[Codes8]; R],
            x: &[Numbers],
            scales: &[[f32; GROUP]; R],
        ) {
            let avx2 = self.0.avx2;
            let mut sums: [[__m256; 2]; R] = lanes.map(cast);
            for_blocks!(w, x, scales, |row, w, x, scale| {
                let (w, x): ([__m128i; 2], [__m256i; 2]) = (cast(*w), cast(*x));
                for half in 0..2 {
                    let product = avx2._mm256_madd_epi16(avx2._mm256_cvtepi8_epi16(w[half]), x[half]);
                    sums[row][half] = self.add(sums[row][half], product, scale);
                }
            });
            *lanes = sums.map(cast);
        }

        #[inline(always)]
        fn add_4<const R: usize>(
            self,
            lanes: &mut [Lanes; R],
            w: [&[Codes4]; R],
            x: &[Numbers],
            scales: &[[f32; GROUP]; R],
        ) {
            let (avx, avx2) = (self.0.avx, self.0.avx2);
            let mut sums: [[__m256; 2]; R] = lanes.map(cast);
            for_blocks!(w, x, scales, |row, w, x, scale| {
                let (w, x): ([u64; 2], [__m256i; 2]) = (cast(*w), cast(*x));
                for half in 0..2 {
                    let codes = avx2._mm256_cvtepu8_epi32(cast([w[half], 0]));
                    let both = avx2._mm256_or_si256(codes, avx2._mm256_slli_epi32::<12>(codes));
                    let words = avx2._mm256_and_si256(both, avx._mm256_set1_epi32(0x000f_000f));
                    let words = avx2._mm256_sub_epi16(words, avx._mm256_set1_epi16(8));
                    sums[row][half] = self.add(sums[row][half], avx2._mm256_madd_epi16(words, x[half]), scale);
                }
            });
            *lanes = sums.map(cast);
        }

        #[inline(always)]
        fn sum(self, lanes: &Lanes) -> f32 {
            let sse = self.0.sse;
            let [first, second]: [__m256; 2] = cast(*lanes);
            let [first, second]: [__m128; 2] = cast(self.0.avx._mm256_add_ps(first, second));
            let four = sse._mm_add_ps(first, second);
            let two = sse._mm_add_ps(four, sse._mm_movehl_ps(four, four));
            let sum: [f32; 4] = cast(sse._mm_add_ss(two, sse._mm_shuffle_ps::<1>(two, two)));
            sum[0]
        }
    }

    impl V3 {
        #[inline(always)]
        fn add(self, sums: __m256, products: __m256i, scale: f32) -> __m256 {
            let avx = self.0.avx;
            avx._mm256_add_ps(sums, avx._mm256_mul_ps(avx._mm256_set1_ps(scale), avx._mm256_cvtepi32_ps(products)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of seven blocks of two rows, with extreme values among them.
    struct Sums<'a>(&'a mut [[Lanes; 2]; 2], &'a mut [f32; 4]);

    impl WithDots for Sums<'_> {
        #[inline(always)]
        fn run(self, dots: impl Dots) {
            let number = |block: usize, i: usize| (block * 131 + i * i * 37) % 255;
            let x: [Numbers; 7] = std::array::from_fn(|block| {
                std::array::from_fn(|i| if block == 3 { -127 } else { number(block, i + 5) as i16 - 127 })
            });
            let w: [Codes8; 8] = std::array::from_fn(|block| {
                std::array::from_fn(|i| if block == 3 { -128 } else { number(block, i) as u8 as i8 })
            });
            let nibbles: [Codes4; 8] =
                std::array::from_fn(|block| std::array::from_fn(|i| number(block, i) as u8 ^ block as u8));
            let scales = [0.37, -1.9].map(|scale| std::array::from_fn(|block| scale * (block as f32 - 2.5)));
            dots.add_8(&mut self.0[0], [&w[..7], &w[1..]], &x, &scales);
            dots.add_4(&mut self.0[1], [&nibbles[1..], &nibbles[..7]], &x, &scales);
            self.0.iter().flatten().zip(self.1).for_each(|(lanes, sum)| *sum = dots.sum(lanes));
        }
    }

    #[test]
    fn every_vector_extension_gives_the_same_bits() {
        let results = || ([[[0.0; LANES]; 2]; 2], [0.0; 4]);
        let mut plain = results();
        Sums(&mut plain.0, &mut plain.1).run(Plain);
        assert!(plain.0.iter().flatten().flatten().chain(&plain.1).all(|sum| *sum != 0.0));
        let mut widest = results();
        with_dots(Sums(&mut widest.0, &mut widest.1));
        assert_eq!(widest, plain);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            let mut narrow = results();
            simd.vectorize(InSimd { dots: x86::V3(simd), body: Sums(&mut narrow.0, &mut narrow.1) });
            assert_eq!(narrow, plain);
        }
    }
}
