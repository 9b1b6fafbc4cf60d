//! The 256 numbers of block-wise dynamic quantization (Dettmers et al. 2022), those of bitsandbytes: 0, 1, and in each
//! of seven decades below 1 numbers at equal distances, twice as many as in the decade before:
//!
//! ```text
//! 10^(d - 6) (0.1 + 0.9 (j + 1/2) / n),  d = 0..7,  j = 0..n     n = 2^d with both signs, or 2^(d + 1) without
//! ```

/// The numbers of all codes, in ascending order, and where to look for a number. Lengths are powers of two, which masks
/// bound, so that loops over many numbers become vectors.
pub(crate) struct Codebook {
    pub numbers: [f32; 256],
    /// The code of 0.
    pub zero: u8,
    /// For each cell of magnitudes with the same exponent and upper seven bits of the significand, the code that is
    /// nearest to its smallest one. No cell has numbers of more than two codes. [`CELLS`] of them are used.
    pub cells: Box<[u32; 4096]>,
    /// Half way from the number of each code to the next.
    middles: [f32; 256],
}

/// Upper 16 bits of 2^-23: magnitudes of 0 are smaller.
pub(crate) const FIRST_CELL: usize = 104 << 7;
/// The last is that of 1.
pub(crate) const CELLS: usize = (127 << 7) - FIRST_CELL + 1;

impl Codebook {
    pub fn new(signed: bool) -> Codebook {
        let mut all = vec![0.0, 1.0];
        for decade in 0..7 {
            let count = 1 << if signed { decade } else { decade + 1 };
            let power = 10f64.powi(decade - 6);
            let magnitudes = (0..count).map(|j| power * (0.1 + 0.9 * (f64::from(j) + 0.5) / f64::from(count)));
            all.extend(magnitudes.flat_map(|x| if signed { vec![x, -x] } else { vec![x] }));
        }
        all.sort_by(f64::total_cmp);
        let numbers: [f32; 256] = std::array::from_fn(|code| all[code] as f32);
        let middles: [f32; 256] = std::array::from_fn(|code| 0.5 * (numbers[code] + numbers[(code + 1).min(255)]));
        let zero = if signed { 127 } else { 0 };
        let (mut cells, mut code) = (Box::new([0; 4096]), usize::from(zero));
        for (cell, nearest) in cells.iter_mut().enumerate().take(CELLS) {
            let smallest = if cell == 0 { 0.0 } else { f32::from_bits(((FIRST_CELL + cell) << 16) as u32) };
            while smallest > middles[code] {
                code += 1;
            }
            *nearest = code as u32;
        }
        Codebook { numbers, zero, cells, middles }
    }

    /// The code of the number that is nearest to x, at most 1 in magnitude; of two the one nearer to 0.
    #[inline(always)]
    pub fn nearest(&self, x: f32) -> u8 {
        let magnitude = x.abs().min(1.0);
        let cell = (magnitude.to_bits() >> 16).saturating_sub(FIRST_CELL as u32);
        let mut code = self.cells[(cell & 4095) as usize];
        code += u32::from(magnitude > self.middles[(code & 255) as usize]);
        // The negative numbers lie before 0 as the positive ones after it, but for 1.
        let mirrored = (2 * u32::from(self.zero)).saturating_sub(code);
        (if x < 0.0 { mirrored } else { code }) as u8
    }
}
