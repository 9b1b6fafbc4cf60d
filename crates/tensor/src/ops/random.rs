//! Counter-based random numbers: a pure function of a key and a position, so every device draws the same numbers in any
//! order, and backward draws again instead of storing them.

/// A stream of random numbers, for a tensor or a slice of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub words: [u32; 2],
    /// Start of the slice along the first dimension of the whole tensor. Ops that draw a number per element count
    /// positions from there, so a batch computed in slices draws the numbers of the whole batch.
    pub slice_start: u32,
}

impl Key {
    /// The stream of `seed`; nearby seeds have unrelated streams.
    pub fn new(seed: u64) -> Key {
        let mut state = seed;
        let z = splitmix64(&mut state);
        Key { words: [z as u32, (z >> 32) as u32], slice_start: 0 }
    }

    /// 32 random bits; `random_bits` in `shaders/common.wgsl`.
    #[inline(always)]
    pub fn bits(self, counter: u32) -> u32 {
        mix_bits(mix_bits(counter ^ self.words[0]) ^ self.words[1])
    }

    /// The stream whose number 0 of [`Key::bits`] is number `counter` of this one.
    pub fn at(self, counter: u32) -> Key {
        Key { words: [self.words[0] ^ counter, self.words[1]], ..self }
    }

    /// 32 random bits for dropout: SplitMix32 after `counter` steps (Steele, Lea, Flood 2014; each key has its own
    /// step). Half the cost of [`Key::bits`], because attention kernels draw one per attention weight. `mask_bits4` in
    /// `shaders/common.wgsl`.
    #[inline(always)]
    pub fn mask_bits(self, counter: u32) -> u32 {
        mix_bits(counter.wrapping_mul(self.words[1] | 1).wrapping_add(self.words[0]))
    }

    /// The stream of one row, for matrices with more elements than 32 bits can index.
    pub fn row(self, row: u32) -> Key {
        Key { words: [mix_bits(row ^ self.words[0]), self.words[1]], ..self }
    }

    /// The same stream for a slice from index `start` of the first dimension on.
    pub fn slice(self, start: usize) -> Key {
        Key { slice_start: start as u32, ..self }
    }

    /// The position of the slice's first element, with `each` elements per index of the first dimension. Positions are
    /// modulo 2^32, as in kernels.
    pub fn first_position(self, each: usize) -> u32 {
        self.slice_start.wrapping_mul(each as u32)
    }
}

/// The next number of SplitMix64 (Steele, Lea, Flood 2014); any state is valid.
pub fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// "lowbias32" (Wellons 2018): every input bit flips every output bit with probability 0.5 +- 0.0002.
#[inline(always)]
pub fn mix_bits(value: u32) -> u32 {
    let x = (value ^ (value >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// The threshold of [`Key::mask_bits`] at which an element is kept with probability `1 - p`.
pub fn drop_threshold(p: f32) -> u32 {
    (f64::from(p) * 4_294_967_296.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements are dropped independently: of as many as asked, whatever their neighbours in the row, the same elements
    /// of the next row and those under another key are. All within four standard deviations.
    #[test]
    fn dropped_elements_are_independent() {
        const COUNT: u32 = 1 << 20;
        const T: u32 = 256;
        for (seed, p) in [(1, 0.2), (2, 0.5), (3, 0.05)] {
            let threshold = drop_threshold(p);
            let (key, other) = (Key::new(seed), Key::new(seed + 100));
            // As dropout draws for all elements of a tensor, and for rows of attention's weights.
            let flat = |key: Key, i: u32| key.mask_bits(i) < threshold;
            let in_rows = |key: Key, i: u32| key.row(i / T).mask_bits(i % T) < threshold;
            for dropped in [&flat as &dyn Fn(Key, u32) -> bool, &in_rows] {
                let of =
                    |key: Key| (0..COUNT + T).map(|i| f64::from(dropped(key, i)) - f64::from(p)).collect::<Vec<f64>>();
                let (values, under_other) = (of(key), of(other));
                let variance = f64::from(p) * f64::from(1.0 - p);
                let deviations = |sum: f64, variance: f64| (sum / (f64::from(COUNT) * variance).sqrt()).abs();
                let mean = deviations(values[..COUNT as usize].iter().sum(), variance);
                assert!(mean < 4.0, "seed {seed}: {mean}");
                for lag in [1, 2, 3, 4, 7, 8, 16, 64, T as usize] {
                    let products = values.iter().zip(&values[lag..]).take(COUNT as usize).map(|(a, b)| a * b);
                    let correlation = deviations(products.sum(), variance * variance);
                    assert!(correlation < 4.0, "seed {seed}, {lag} apart: {correlation}");
                }
                let products = values.iter().zip(&under_other).take(COUNT as usize).map(|(a, b)| a * b);
                let correlation = deviations(products.sum(), variance * variance);
                assert!(correlation < 4.0, "seed {seed}, two keys: {correlation}");
            }
        }
    }
}
