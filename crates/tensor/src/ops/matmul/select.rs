//! Selects the tile and split-K of a GEMM by the shortest estimated time.
//!
//! [`TileConfig::select`] is a pure function of the GEMM and the [`Limits`]. The MMA instruction and split-K affect the
//! bits of the result, so they depend only on the shape, the limits and the built-in model; measured throughput
//! ([`Limits::matmul_throughput`]) chooses between FMA tiles, which all give the same bits.

use super::tiles::{MmaKind, PerfModel, Tile, TilePerf};
use super::{Dims, Epilogue, MatMul};
use crate::gpu::Limits;
use crate::tensor::DType;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

/// A slice of k shorter than this does not outweigh the reduction of the partial results.
const MIN_K_SLICE: usize = 128;
const MAX_SPLITS: usize = 64;

/// How a GEMM is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TileConfig {
    pub tile: Tile,
    /// Split-K: slices of k that different workgroups compute. More than one where the output has few tiles and k is
    /// long, as for weight gradients.
    pub splits: usize,
    /// Whether to transpose b (N, K) to (K, N) first: it loads faster, which pays off for many rows of a.
    pub transpose_b: bool,
}

/// A supported tile, and its performance on the device.
type Candidate = (Tile, TilePerf);

impl TileConfig {
    /// With b as it is stored.
    pub fn new(tile: Tile, splits: usize) -> TileConfig {
        TileConfig { tile, splits, transpose_b: false }
    }

    /// [`TileConfig::select`], cached per device.
    pub fn cached(kernel: &MatMul, d: &Dims, operands: DType, limits: &Limits) -> TileConfig {
        let select = || TileConfig::select(kernel, d, operands, limits);
        match limits.choices.get::<TileCache>() {
            Some(cache) => cache.get_or_insert_with((*kernel, *d, operands), select),
            None => select(),
        }
    }

    /// The fastest supported configuration. Cooperative matrices require rows of whole vectors; they serve f16, and f32
    /// with [`Limits::split_fp16`] where that is faster.
    pub fn select(kernel: &MatMul, d: &Dims, operands: DType, limits: &Limits) -> TileConfig {
        let model = PerfModel::of(limits);
        let rows = [if kernel.trans_a { d.m } else { d.k }, if kernel.trans_b { d.k } else { d.n }, d.n];
        let vectors = [d.stride_a, d.stride_b].into_iter().chain(rows).all(|length| length.is_multiple_of(4));
        let coop = match operands {
            DType::F16 if vectors => fitting(&Tile::COOP, &model.coop, limits),
            // Its k loop peels off the last step, so there must be one.
            DType::F32 if vectors && d.k > 0 && limits.split_fp16 => {
                fitting(&Tile::SPLIT_FP16, &model.split_fp16, limits)
            }
            _ => vec![],
        };
        let fma =
            if operands == DType::F16 && !coop.is_empty() { vec![] } else { fitting(&Tile::FMA, &model.fma, limits) };
        let splits = |tile: &(Tile, TilePerf)| split_candidates(tile, d, limits, model.sm_count);
        let best = fastest(kernel, d, &[fma, coop].concat(), limits, model, &splits);
        let best = best.expect("the smallest tile runs everywhere");
        // All FMA tiles sum a slice of k in the same order, so which of them runs may follow from measurements.
        let Some(measured) = limits.matmul_throughput.as_ref().filter(|_| best.tile.mma == MmaKind::Fma) else {
            return best;
        };
        let model = model.autotuned(measured);
        let tiles = fitting(&Tile::FMA, &model.fma, limits);
        fastest(kernel, d, &tiles, limits, &model, &|_| vec![best.splits]).unwrap_or(best)
    }

    /// Estimated microseconds.
    fn estimate(&self, kernel: &MatMul, d: &Dims, perf: &TilePerf, model: &PerfModel) -> f64 {
        let trans_b = kernel.trans_b && !self.transpose_b;
        let layout = 2 * kernel.trans_a as usize + trans_b as usize;
        let bytes = 2 * self.tile.operand_bytes() * d.n * d.k; // read and written
        let transpose = if self.transpose_b { model.launch_us + bytes as f64 / model.bandwidth } else { 0.0 };
        transpose + self.estimate_gemm(kernel, d, perf, model, layout)
    }

    /// Estimated microseconds without transposing b: those of the SM with the most work.
    fn estimate_gemm(&self, kernel: &MatMul, d: &Dims, perf: &TilePerf, model: &PerfModel, layout: usize) -> f64 {
        let tile = &self.tile;
        let (k_slice, splits) = tile.k_slices(d, self.splits);
        let partial = !d.m.is_multiple_of(tile.bm) || !d.n.is_multiple_of(tile.bn);
        let mut throughput = perf.throughput[layout] * if partial { model.partial_tile_efficiency } else { 1.0 };
        if kernel.sums && tile.mma == MmaKind::Fma {
            // One addition for each element of b that a thread loads, beside its multiplications.
            let threads = tile.bm / tile.tm * (tile.bn / tile.tn);
            let work = (threads * tile.tm * tile.tn) as f64;
            throughput /= 1.0 + model.column_sum_cost * tile.bn as f64 / work;
        }
        // Reading in the epilogue delays the next workgroup if no other computes meanwhile.
        let exposed = kernel.accumulate && splits == 1 && tile.mma == MmaKind::Fma && perf.blocks_per_sm == 1;
        let moves_more = splits > 1 || kernel.accumulate || kernel.epilogue != Epilogue::None;
        let overhead_us = perf.overhead_us[moves_more as usize] + if exposed { model.accumulate_read_us } else { 0.0 };
        let flops = 2.0 * (tile.bm * tile.bn * k_slice) as f64;
        let block_us = model.sm_count as f64 * flops / (throughput * 1e6);
        let blocks = (tile.count(d) * splits).div_ceil(model.sm_count);
        let (rounds, rest) = (blocks / perf.blocks_per_sm, (blocks % perf.blocks_per_sm) as f64);
        let last = if rest > 0.0 {
            rest * block_us / (perf.single_block_efficiency * rest).min(1.0) + overhead_us
        } else {
            0.0
        };
        let reduction =
            if splits > 1 { model.launch_us + ((splits + 1) * d.m * d.n * 4) as f64 / model.bandwidth } else { 0.0 };
        let full = rounds as f64 * (perf.blocks_per_sm as f64 * block_us + overhead_us);
        model.launch_us + full + last + reduction
    }
}

/// The tiles that the device can run.
fn fitting(tiles: &[Tile], perf: &[TilePerf], limits: &Limits) -> Vec<Candidate> {
    tiles.iter().copied().zip(perf.iter().copied()).filter(|(tile, _)| tile.fits(limits)).collect()
}

/// The configuration with the shortest estimate, of these tiles with these splits.
fn fastest(
    kernel: &MatMul,
    d: &Dims,
    tiles: &[Candidate],
    limits: &Limits,
    model: &PerfModel,
    splits: &dyn Fn(&Candidate) -> Vec<usize>,
) -> Option<TileConfig> {
    let configs = tiles.iter().flat_map(|candidate| {
        let (tile, perf) = *candidate;
        layouts_of_b(kernel, d, &tile, limits).into_iter().flat_map(move |transpose_b| {
            let config = move |splits| (TileConfig { tile, splits, transpose_b }, perf);
            splits(candidate).into_iter().map(config)
        })
    });
    let estimated = configs.map(|(config, perf)| (config.estimate(kernel, d, &perf, model), config));
    estimated.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, config)| config)
}

/// The values of `transpose_b` to compare: false, and true if b is (N, K) and its copy can be bound. Split-fp16 takes b
/// as (K, N) only.
fn layouts_of_b(kernel: &MatMul, d: &Dims, tile: &Tile, limits: &Limits) -> Vec<bool> {
    let bytes = tile.operand_bytes() * d.n * d.k;
    let transposable = kernel.trans_b && d.batch == 1 && bytes <= limits.binding_bytes as usize;
    let as_stored = !(kernel.trans_b && tile.mma == MmaKind::SplitFp16);
    as_stored.then_some(false).into_iter().chain(transposable.then_some(true)).collect()
}

/// The splits of k to compare: those with which each SM gets one workgroup, two, and so on up to as many as it holds,
/// then two to eight times that.
fn split_candidates((tile, perf): &Candidate, d: &Dims, limits: &Limits, sm_count: usize) -> Vec<usize> {
    // The partial results are one binding.
    let bindable = limits.binding_bytes as usize / (4 * d.m * d.n).max(1);
    let most = if d.batch == 1 { (d.k / MIN_K_SLICE).min(bindable).clamp(1, MAX_SPLITS) } else { 1 };
    let per_sm = (0..perf.blocks_per_sm).chain((1..=8).map(|times| times * perf.blocks_per_sm));
    // An empty GEMM has no tiles.
    let tiles = tile.count(d).max(1);
    let mut splits: Vec<usize> = per_sm.map(|blocks| (blocks * sm_count / tiles).clamp(1, most)).collect();
    splits.dedup();
    splits
}

/// Cache key of a choice under fixed limits.
type Key = (MatMul, Dims, DType);

/// The choices made under one device's limits. A training step asks for the same few dozen GEMMs each time, and to
/// compare all configurations takes the host longer than to record one. A hash table of fixed size without locks:
/// entries stay, and when the slots of a key are all taken, it is computed each time.
pub(super) struct TileCache {
    slots: Box<[Slot]>,
}

type Slot = OnceLock<Box<(Key, TileConfig)>>;

impl TileCache {
    /// Far more than a training step needs.
    const SLOTS: usize = 4096;
    const PROBES: usize = 16;

    fn get_or_insert_with(&self, key: Key, select: impl Fn() -> TileConfig) -> TileConfig {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let first = hasher.finish() as usize;
        for probe in 0..TileCache::PROBES {
            let slot = &self.slots[first.wrapping_add(probe) % TileCache::SLOTS];
            let (owner, config) = &**slot.get_or_init(|| Box::new((key, select())));
            if *owner == key {
                return *config;
            }
        }
        select()
    }
}

impl Default for TileCache {
    fn default() -> TileCache {
        TileCache { slots: (0..TileCache::SLOTS).map(|_| OnceLock::new()).collect() }
    }
}
