//! Which of the tiles computes a matrix product, and how k is shared out: the one of which the shortest time is expected.

use super::{Dims, MatMul};
use crate::gpu::Limits;
use crate::tensor::DType;

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub tile: Tile,
    /// Into how many pieces k is cut: more than one where the output has few tiles and k is long, as for weight gradients.
    pub splits: usize,
    /// Whether to write b (N, K) out as (K, N) first: loading it so costs less, and with many rows of a that pays.
    pub transpose_b: bool,
}

/// How the output is cut: into tiles of `bm` x `bn` for a workgroup, `bk` of k at a time, `tm` x `tn` for a thread or, on matrix
/// units, for a subgroup; and how that runs on a large GPU (measured on an H200 with its 132 multiprocessors, `docs/performance.md`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tile {
    pub bm: usize,
    pub bn: usize,
    pub bk: usize,
    pub tm: usize,
    pub tn: usize,
    /// Whether matrix units multiply, for which the operands must be f16.
    pub units: bool,
    /// TFLOP/s when there is enough to do: neither operand transposed, b, a, both. `measure` finds those of other GPUs.
    pub rates: [f64; 4],
    /// Workgroups that run at the same time.
    slots: f64,
    /// What a last, incomplete round costs at least, of a full one: the fewer workgroups share a multiprocessor, the
    /// less can the others hurry when one of them is missing.
    tail: f64,
    /// Microseconds that a round takes besides the products: to begin, and to bring the result out.
    ends: f64,
}

impl Tile {
    /// The more a thread computes, the fewer loads it needs for each product; the smaller the tile, the better a small
    /// output spreads. The last three run within WebGPU's default limits.
    pub const ALL: [Tile; 6] = [
        Tile {
            bm: 128,
            bn: 256,
            bk: 16,
            tm: 8,
            tn: 16,
            units: false,
            rates: [49.0, 45.0, 49.8, 43.0],
            slots: 132.0,
            tail: 1.0,
            ends: 0.0,
        },
        Tile {
            bm: 256,
            bn: 128,
            bk: 16,
            tm: 8,
            tn: 16,
            units: false,
            rates: [47.5, 45.0, 49.5, 43.0],
            slots: 132.0,
            tail: 1.0,
            ends: 0.0,
        },
        Tile {
            bm: 128,
            bn: 128,
            bk: 16,
            tm: 8,
            tn: 16,
            units: false,
            rates: [45.0, 45.5, 49.0, 43.0],
            slots: 264.0,
            tail: 1.0,
            ends: 0.0,
        },
        Tile {
            bm: 64,
            bn: 128,
            bk: 16,
            tm: 8,
            tn: 8,
            units: false,
            rates: [43.0, 39.5, 37.0, 36.0],
            slots: 528.0,
            tail: 0.5,
            ends: 0.0,
        },
        Tile {
            bm: 64,
            bn: 64,
            bk: 16,
            tm: 4,
            tn: 8,
            units: false,
            rates: [35.0, 33.5, 37.0, 33.0],
            slots: 800.0,
            tail: 0.25,
            ends: 0.0,
        },
        Tile {
            bm: 32,
            bn: 32,
            bk: 16,
            tm: 4,
            tn: 4,
            units: false,
            rates: [14.0, 14.0, 14.0, 14.0],
            slots: 1600.0,
            tail: 0.1,
            ends: 0.0,
        },
    ];

    /// Those for matrix units.
    pub const UNITS: [Tile; 3] = [
        Tile {
            bm: 128,
            bn: 128,
            bk: 32,
            tm: 64,
            tn: 64,
            units: true,
            rates: [272.0, 150.0, 283.0, 140.0],
            slots: 396.0,
            tail: 0.9,
            ends: 16.0,
        },
        Tile {
            bm: 128,
            bn: 64,
            bk: 32,
            tm: 64,
            tn: 32,
            units: true,
            rates: [206.0, 165.0, 250.0, 150.0],
            slots: 660.0,
            tail: 1.0,
            ends: 10.0,
        },
        Tile {
            bm: 64,
            bn: 64,
            bk: 32,
            tm: 32,
            tn: 32,
            units: true,
            rates: [165.0, 145.0, 200.0, 130.0],
            slots: 1056.0,
            tail: 0.6,
            ends: 9.0,
        },
    ];

    pub fn fits(&self, limits: &Limits) -> bool {
        let parts = self.bm / self.tm * (self.bn / self.tn);
        let (bytes, threads) = if self.units {
            let side = limits.matrix_units as usize;
            if side == 0 || limits.subgroup_size == 0 {
                return false;
            }
            // Both operands' tiles, whichever way they lie, and one of each subgroup's matrices on the way out.
            let staged = |length: usize| 8 * (length * (self.bk / 4 + 2)).max(self.bk * (length / 4 + 2));
            let out = parts * side * (side / 4 + 1) * 16;
            let threads = parts * limits.subgroup_size as usize;
            if threads < self.bm.max(self.bn) / 4 {
                return false; // Threads load whole lines of a tile.
            }
            (staged(self.bm) + staged(self.bn) + out, threads)
        } else {
            (self.bk * (self.bm / 4 + 1 + self.bn / 4 + 1) * 16, parts)
        };
        bytes <= limits.workgroup_bytes as usize && threads <= limits.workgroup_threads as usize
    }

    /// Bytes to count for an element of an operand.
    fn operand_bytes(&self) -> usize {
        if self.units { 2 } else { 4 }
    }

    fn count(&self, d: &Dims) -> usize {
        d.m.div_ceil(self.bm) * d.n.div_ceil(self.bn) * d.batch
    }

    /// The length of the pieces if k is cut into about `splits`, and how many there are.
    pub fn pieces(&self, d: &Dims, splits: usize) -> (usize, usize) {
        let piece = d.k.div_ceil(splits).next_multiple_of(self.bk).max(self.bk);
        (piece, d.k.div_ceil(piece).max(1))
    }

    /// Microseconds to expect.
    fn estimate(&self, d: &Dims, layout: usize, splits: usize) -> f64 {
        let (piece, splits) = self.pieces(d, splits);
        let rounds = (self.count(d) * splits) as f64 / self.slots;
        let rest = if rounds.fract() > 0.0 { rounds.fract().max(self.tail) } else { 0.0 };
        let overhangs = !d.m.is_multiple_of(self.bm) || !d.n.is_multiple_of(self.bn);
        let rate = self.rates[layout] * if overhangs { OVERHANGING } else { 1.0 };
        let round = self.ends + self.slots * 2.0 * (self.bm * self.bn * piece) as f64 / (rate * 1e6);
        let sum = if splits > 1 { LAUNCH + ((splits + 1) * d.m * d.n * 4) as f64 / BANDWIDTH } else { 0.0 };
        (rounds.trunc() + rest) * round + sum
    }
}

impl Choice {
    /// With b as it is stored.
    pub fn new(tile: Tile, splits: usize) -> Choice {
        Choice { tile, splits, transpose_b: false }
    }

    /// The fastest that the device can run: on matrix units if it has them and the operands are f16, in rows of whole vectors.
    pub fn best(kernel: &MatMul, d: &Dims, operands: DType, limits: &Limits) -> Choice {
        let lines = [if kernel.trans_a { d.m } else { d.k }, if kernel.trans_b { d.k } else { d.n }, d.n];
        let whole = [d.stride_a, d.stride_b].into_iter().chain(lines).all(|length| length.is_multiple_of(4));
        let units: Vec<Tile> = Tile::UNITS.into_iter().filter(|t| t.fits(limits)).collect();
        if operands == DType::F16 && whole && !units.is_empty() {
            return Choice::among(&units, kernel, d, &Limits { matmul_rates: None, ..limits.clone() });
        }
        let fitting: Vec<Tile> = Tile::ALL.into_iter().filter(|t| t.fits(limits)).collect();
        Choice::among(&fitting, kernel, d, limits)
    }

    /// The fastest of these tiles.
    fn among(fitting: &[Tile], kernel: &MatMul, d: &Dims, limits: &Limits) -> Choice {
        let fastest = |tiles: &[Tile], splits: &dyn Fn(Tile) -> Vec<usize>| -> Option<Choice> {
            let choices = tiles.iter().flat_map(|&tile| {
                Choice::orders(kernel, d, tile, limits).flat_map(move |transpose_b| {
                    splits(tile).into_iter().map(move |splits| Choice { tile, splits, transpose_b })
                })
            });
            choices.min_by(|a, b| a.estimate(kernel, d).total_cmp(&b.estimate(kernel, d)))
        };
        // What the pieces give must be bound at once.
        let bound = limits.binding_bytes as usize / (4 * d.m * d.n).max(1);
        let most = if d.batch == 1 { (d.k / SHORTEST_PIECE).min(bound).clamp(1, MOST_PIECES) } else { 1 };
        // Splits that fill one, two, .. rounds.
        let filling = |tile: Tile| {
            let pieces = |rounds: f64| (rounds * tile.slots / tile.count(d) as f64) as usize;
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0].map(|rounds| pieces(rounds).clamp(1, most)).to_vec()
        };
        let best = fastest(fitting, &filling).expect("the smallest tile runs everywhere");
        // The pieces of k decide in which order products are summed, and so the bits of the result: they follow from the
        // shape and the limits. Every tile sums each piece in the same order, so which one runs may be measured.
        let Some(measured) = &limits.matmul_rates else { return best };
        let rated = Tile::ALL.into_iter().zip(measured.iter()).filter(|(tile, _)| tile.fits(limits));
        let rated: Vec<Tile> =
            rated.map(|(tile, gflops)| Tile { rates: gflops.map(|g| f64::from(g) / 1e3), ..tile }).collect();
        fastest(&rated, &|_| vec![best.splits]).unwrap_or(best)
    }

    /// Whether b may be transposed first: no, and if there is one and it fits, yes.
    fn orders(kernel: &MatMul, d: &Dims, tile: Tile, limits: &Limits) -> impl Iterator<Item = bool> + use<> {
        let bytes = tile.operand_bytes() * d.n * d.k;
        let may = kernel.trans_b && d.batch == 1 && bytes <= limits.binding_bytes as usize;
        [false].into_iter().chain(may.then_some(true))
    }

    /// Microseconds to expect.
    fn estimate(&self, kernel: &MatMul, d: &Dims) -> f64 {
        let trans_b = kernel.trans_b && !self.transpose_b;
        let layout = 2 * kernel.trans_a as usize + trans_b as usize;
        let bytes = 2 * self.tile.operand_bytes() * d.n * d.k; // read and written
        let transpose = if self.transpose_b { LAUNCH + bytes as f64 / BANDWIDTH } else { 0.0 };
        transpose + self.tile.estimate(d, layout, self.splits)
    }
}

/// What checking every load against the edges leaves of the rate.
const OVERHANGING: f64 = 0.88;

/// Bytes per microsecond of memory, and microseconds that one more launch costs.
const BANDWIDTH: f64 = 2.5e6;
const LAUNCH: f64 = 3.0;

/// Pieces of k should be long enough to outweigh the second pass over their results.
const SHORTEST_PIECE: usize = 256;
const MOST_PIECES: usize = 64;
