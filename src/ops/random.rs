//! Counter-based random numbers: a pure function of a key and a position, so every device draws the same,
//! in any order, and backward can draw again instead of remembering.

/// A stream of random numbers, for a tensor or a slice of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub words: [u32; 2],
    /// The index along the first dimension of the whole tensor where the slice begins. Ops that draw a number for each
    /// element of a tensor count positions from there, so that a batch computed in slices draws the numbers of the
    /// whole.
    pub slice_start: u32,
}

impl Key {
    /// The stream that `seed` stands for; nearby seeds give unrelated streams.
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

    /// The stream of one row, for positions in a matrix that 32 bits could not number.
    pub fn row(self, row: u32) -> Key {
        Key { words: [mix_bits(row ^ self.words[0]), self.words[1]], ..self }
    }

    /// The same stream for a slice that begins at index `start` of the first dimension.
    pub fn slice(self, start: usize) -> Key {
        Key { slice_start: start as u32, ..self }
    }

    /// The position of the slice's first element, where each index of the first dimension has `each` of them. Positions
    /// count modulo 2^32, as they do in kernels.
    pub fn first_position(self, each: usize) -> u32 {
        self.slice_start.wrapping_mul(each as u32)
    }
}

/// The next number of a generator whose state may be anything (Steele, Lea, Flood 2014).
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

/// What [`Key::bits`] must reach so that an element is kept with probability `1 - p`.
pub fn drop_threshold(p: f32) -> u32 {
    (f64::from(p) * 4_294_967_296.0) as u32
}
