//! Which of the tiles computes a matrix product, and how k is shared out: the one of which the shortest time is expected.

use super::{Dims, MatMul};
use crate::gpu::Limits;
use crate::tensor::DType;
use std::cell::RefCell;
use std::collections::HashMap;

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub tile: Tile,
    /// Into how many pieces k is cut: more than one where the output has few tiles and k is long, as for weight gradients.
    pub splits: usize,
    /// Whether to write b (N, K) out as (K, N) first: loading it so costs less, and with many rows of a that pays.
    pub transpose_b: bool,
}

/// What multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Multiplier {
    /// Fused multiply-adds of f32, of operands that are f32 or f16.
    Fma,
    /// Matrix units, f16 operands.
    Units,
    /// Matrix units, f32 operands: products of their halves.
    Halves,
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
    pub by: Multiplier,
    /// TFLOP/s when there is enough to do: neither operand transposed, b, a, both. Of FMAs `measure` finds those of other GPUs.
    pub rates: [f64; 4],
    /// Workgroups that share a multiprocessor.
    resident: usize,
    /// The part of the rate that one of them reaches alone; two reach twice as much, but never more than all.
    alone: f64,
    /// Microseconds that those which share a multiprocessor take besides the products: to begin, and to bring the result out.
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
            by: Multiplier::Fma,
            rates: [49.0, 45.5, 51.0, 43.0],
            resident: 1,
            alone: 1.0,
            ends: 2.7,
        },
        Tile {
            bm: 256,
            bn: 128,
            bk: 16,
            tm: 8,
            tn: 16,
            by: Multiplier::Fma,
            rates: [47.5, 45.5, 53.0, 43.0],
            resident: 1,
            alone: 1.0,
            ends: 3.0,
        },
        Tile {
            bm: 128,
            bn: 128,
            bk: 16,
            tm: 8,
            tn: 16,
            by: Multiplier::Fma,
            rates: [44.5, 47.0, 48.5, 44.0],
            resident: 2,
            alone: 0.6,
            ends: 3.2,
        },
        Tile {
            bm: 64,
            bn: 128,
            bk: 16,
            tm: 8,
            tn: 8,
            by: Multiplier::Fma,
            rates: [43.5, 41.0, 47.5, 38.0],
            resident: 4,
            alone: 0.86,
            ends: 1.4,
        },
        Tile {
            bm: 64,
            bn: 64,
            bk: 16,
            tm: 4,
            tn: 8,
            by: Multiplier::Fma,
            rates: [35.5, 33.5, 40.5, 33.0],
            resident: 4,
            alone: 0.85,
            ends: 1.0,
        },
        Tile {
            bm: 32,
            bn: 32,
            bk: 16,
            tm: 4,
            tn: 4,
            by: Multiplier::Fma,
            rates: [26.5, 24.5, 31.5, 25.0],
            resident: 12,
            alone: 0.49,
            ends: 0.9,
        },
    ];

    /// Those for matrix units and f32 operands; b is never (N, K) there, so two rates of each do not matter.
    pub const HALVES: [Tile; 2] = [
        Tile {
            bm: 128,
            bn: 128,
            bk: 32,
            tm: 64,
            tn: 32,
            by: Multiplier::Halves,
            rates: [97.0, 86.0, 94.0, 86.0],
            resident: 1,
            alone: 1.0,
            ends: 3.2,
        },
        Tile {
            bm: 64,
            bn: 64,
            bk: 32,
            tm: 32,
            tn: 32,
            by: Multiplier::Halves,
            rates: [52.5, 62.0, 66.0, 62.0],
            resident: 2,
            alone: 1.0,
            ends: 1.7,
        },
    ];

    /// Those for matrix units and f16 operands.
    pub const UNITS: [Tile; 3] = [
        Tile {
            bm: 128,
            bn: 128,
            bk: 32,
            tm: 64,
            tn: 64,
            by: Multiplier::Units,
            rates: [250.0, 175.0, 260.0, 145.0],
            resident: 2,
            alone: 0.75,
            ends: 4.5,
        },
        Tile {
            bm: 128,
            bn: 64,
            bk: 32,
            tm: 64,
            tn: 32,
            by: Multiplier::Units,
            rates: [175.0, 163.0, 200.0, 150.0],
            resident: 3,
            alone: 0.7,
            ends: 3.4,
        },
        Tile {
            bm: 64,
            bn: 64,
            bk: 32,
            tm: 32,
            tn: 32,
            by: Multiplier::Units,
            rates: [163.0, 140.0, 182.0, 118.0],
            resident: 3,
            alone: 0.65,
            ends: 2.4,
        },
    ];

    pub fn fits(&self, limits: &Limits) -> bool {
        let parts = self.bm / self.tm * (self.bn / self.tn);
        let (bytes, threads) = if self.by == Multiplier::Fma {
            (self.bk * (self.bm / 4 + 1 + self.bn / 4 + 1) * 16, parts)
        } else {
            let side = limits.matrix_units as usize;
            if side == 0 || limits.subgroup_size == 0 {
                return false;
            }
            let threads = parts * limits.subgroup_size as usize;
            if threads < self.bm.max(self.bn) / 4 {
                return false; // Threads load whole lines of a tile.
            }
            // Both operands' tiles, whichever way they lie; halves are two each, and those of b lie one way alone.
            let along_k = |length: usize| 8 * length * (self.bk / 4 + 2);
            let across = |length: usize| 8 * self.bk * (length / 4 + 2);
            let staged = match self.by {
                Multiplier::Halves => 2 * (along_k(self.bm).max(across(self.bm)) + across(self.bn)) + 16 * (parts + 1),
                _ => along_k(self.bm).max(across(self.bm)) + along_k(self.bn).max(across(self.bn)),
            };
            // One of each subgroup's matrices on the way out, or before that the sums of columns of b.
            let out = (parts * side * (side / 4 + 1)).max(threads) * 16;
            (staged + out, threads)
        };
        bytes <= limits.workgroup_bytes as usize && threads <= limits.workgroup_threads as usize
    }

    /// Bytes to count for an element of an operand.
    fn operand_bytes(&self) -> usize {
        if self.by == Multiplier::Units { 2 } else { 4 }
    }

    fn count(&self, d: &Dims) -> usize {
        d.m.div_ceil(self.bm) * d.n.div_ceil(self.bn) * d.batch
    }

    /// The length of the pieces if k is cut into about `splits`, and how many there are.
    pub fn pieces(&self, d: &Dims, splits: usize) -> (usize, usize) {
        let piece = d.k.div_ceil(splits).next_multiple_of(self.bk).max(self.bk);
        (piece, d.k.div_ceil(piece).max(1))
    }

    /// Microseconds to expect: those of the multiprocessor that has most to do.
    fn estimate(&self, kernel: &MatMul, d: &Dims, layout: usize, splits: usize) -> f64 {
        let (piece, splits) = self.pieces(d, splits);
        let overhangs = !d.m.is_multiple_of(self.bm) || !d.n.is_multiple_of(self.bn);
        let mut rate = self.rates[layout] * if overhangs { OVERHANGING } else { 1.0 };
        if kernel.sums && self.by == Multiplier::Fma {
            // For each column that a thread loads an addition, beside its multiplications.
            let threads = self.bm / self.tm * (self.bn / self.tn);
            rate /= 1.0 + ADDITION * self.bn as f64 / (threads * self.tm * self.tn) as f64;
        }
        // What a workgroup reads at its end delays the next, if no other computes meanwhile.
        let waits = kernel.accumulate && splits == 1 && self.by == Multiplier::Fma && self.resident == 1;
        let ends = self.ends + if waits { READING } else { 0.0 };
        let work = MULTIPROCESSORS as f64 * 2.0 * (self.bm * self.bn * piece) as f64 / (rate * 1e6);
        let workgroups = (self.count(d) * splits).div_ceil(MULTIPROCESSORS);
        let (full, rest) = (workgroups / self.resident, (workgroups % self.resident) as f64);
        let last = if rest > 0.0 { rest * work / (self.alone * rest).min(1.0) + ends } else { 0.0 };
        let sum = if splits > 1 { LAUNCH + ((splits + 1) * d.m * d.n * 4) as f64 / BANDWIDTH } else { 0.0 };
        LAUNCH + full as f64 * (self.resident as f64 * work + ends) + last + sum
    }
}

/// Choices that are remembered: far more than a training step needs. Lengths of text may differ without end.
const MOST_REMEMBERED: usize = 4096;

/// What was chosen on a device: a training step asks for the same few dozen products each time, and to compare all that could
/// compute them takes the host longer than to record one.
struct Chosen {
    limits: Limits,
    choices: HashMap<(MatMul, Dims, DType), Choice>,
}

thread_local! {
    static CHOSEN: RefCell<Option<Chosen>> = const { RefCell::new(None) };
}

impl Choice {
    /// [`Choice::best`], or what it was the last time.
    pub fn remembered(kernel: &MatMul, d: &Dims, operands: DType, limits: &Limits) -> Choice {
        CHOSEN.with_borrow_mut(|chosen| {
            let useless = |c: &Chosen| c.limits != *limits || c.choices.len() >= MOST_REMEMBERED;
            if chosen.as_ref().is_some_and(useless) {
                *chosen = None;
            }
            let chosen = chosen.get_or_insert_with(|| Chosen { limits: limits.clone(), choices: HashMap::new() });
            *chosen.choices.entry((*kernel, *d, operands)).or_insert_with(|| Choice::best(kernel, d, operands, limits))
        })
    }

    /// With b as it is stored.
    pub fn new(tile: Tile, splits: usize) -> Choice {
        Choice { tile, splits, transpose_b: false }
    }

    /// The fastest that the device can run: on matrix units if it has them, for f16 always and for f32 where they are so fast
    /// that it pays, and if rows are whole vectors.
    pub fn best(kernel: &MatMul, d: &Dims, operands: DType, limits: &Limits) -> Choice {
        let lines = [if kernel.trans_a { d.m } else { d.k }, if kernel.trans_b { d.k } else { d.n }, d.n];
        let whole = [d.stride_a, d.stride_b].into_iter().chain(lines).all(|length| length.is_multiple_of(4));
        let fitting = |tiles: &[Tile]| tiles.iter().copied().filter(|t| t.fits(limits)).collect::<Vec<_>>();
        let units = fitting(match operands {
            DType::F16 if whole => &Tile::UNITS,
            // Their loop ends at its last step: there must be one.
            DType::F32 if whole && d.k > 0 && limits.f32_on_units => &Tile::HALVES,
            _ => &[],
        });
        let fma = if operands == DType::F16 && !units.is_empty() { vec![] } else { fitting(&Tile::ALL) };
        let fastest = |tiles: &[Tile], splits: &dyn Fn(Tile) -> Vec<usize>| -> Option<Choice> {
            let choices = tiles.iter().flat_map(|&tile| {
                Choice::orders(kernel, d, tile, limits).into_iter().flat_map(move |transpose_b| {
                    splits(tile).into_iter().map(move |splits| Choice { tile, splits, transpose_b })
                })
            });
            let estimated = choices.map(|choice| (choice.estimate(kernel, d), choice));
            estimated.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, choice)| choice)
        };
        // What the pieces give must be bound at once.
        let bound = limits.binding_bytes as usize / (4 * d.m * d.n).max(1);
        let most = if d.batch == 1 { (d.k / SHORTEST_PIECE).min(bound).clamp(1, MOST_PIECES) } else { 1 };
        // Splits that give each multiprocessor one workgroup, two, .. as many as it holds, and twice, three times, .. that.
        let filling = |tile: Tile| {
            let each = (0..tile.resident).chain((1..=8).map(|times| times * tile.resident));
            // An empty product has no tiles.
            let tiles = tile.count(d).max(1);
            let mut splits: Vec<usize> = each.map(|each| (each * MULTIPROCESSORS / tiles).clamp(1, most)).collect();
            splits.dedup();
            splits
        };
        let best = fastest(&[fma, units].concat(), &filling).expect("the smallest tile runs everywhere");
        // What multiplies and the pieces of k decide the bits of the result: they follow from the shape and the limits. Every
        // tile of FMAs sums each piece in the same order, so which of those runs may be measured.
        let Some(measured) = limits.matmul_rates.as_ref().filter(|_| best.tile.by == Multiplier::Fma) else {
            return best;
        };
        let rated = Tile::ALL.into_iter().zip(measured.iter()).filter(|(tile, _)| tile.fits(limits));
        let rated: Vec<Tile> =
            rated.map(|(tile, gflops)| Tile { rates: gflops.map(|g| f64::from(g) / 1e3), ..tile }).collect();
        fastest(&rated, &|_| vec![best.splits]).unwrap_or(best)
    }

    /// Whether b may be transposed first: no, and if it is (N, K) and that fits, yes. Halves are made of b (K, N) alone.
    fn orders(kernel: &MatMul, d: &Dims, tile: Tile, limits: &Limits) -> Vec<bool> {
        let bytes = tile.operand_bytes() * d.n * d.k;
        let may = kernel.trans_b && d.batch == 1 && bytes <= limits.binding_bytes as usize;
        let as_it_is = !(kernel.trans_b && tile.by == Multiplier::Halves);
        as_it_is.then_some(false).into_iter().chain(may.then_some(true)).collect()
    }

    /// Microseconds to expect.
    fn estimate(&self, kernel: &MatMul, d: &Dims) -> f64 {
        let trans_b = kernel.trans_b && !self.transpose_b;
        let layout = 2 * kernel.trans_a as usize + trans_b as usize;
        let bytes = 2 * self.tile.operand_bytes() * d.n * d.k; // read and written
        let transpose = if self.transpose_b { LAUNCH + bytes as f64 / BANDWIDTH } else { 0.0 };
        transpose + self.tile.estimate(kernel, d, layout, self.splits)
    }
}

/// What checking every load against the edges leaves of the rate.
const OVERHANGING: f64 = 0.88;

/// Those of an H200, on which the tiles were measured.
pub(in crate::ops) const MULTIPROCESSORS: usize = 132;

/// Bytes per microsecond of memory, and microseconds that a launch costs.
const BANDWIDTH: f64 = 3.3e6;
const LAUNCH: f64 = 2.4;

/// How many multiplications cost what adding up an element of a column costs, and microseconds of reading what is added to.
const ADDITION: f64 = 3.0;
const READING: f64 = 10.0;

/// Pieces of k should be long enough to outweigh the second pass over their results.
const SHORTEST_PIECE: usize = 128;
const MOST_PIECES: usize = 64;
