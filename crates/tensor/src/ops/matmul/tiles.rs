//! The tile configurations of the GEMM kernels, and the performance model of the GPU that they were timed on.

use super::Dims;
use crate::gpu::{GpuModel, Limits};

/// The instructions that multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MmaKind {
    /// f32 fused multiply-adds; the operands are f32 or f16.
    Fma,
    /// Cooperative matrices (tensor cores); the operands are f16.
    Coop,
    /// Cooperative matrices; the operands are f32, each split into two f16 (3xFP16 emulation).
    SplitFp16,
}

/// A block of the output: `bm` x `bn` for a workgroup, `bk` of k at a time, `tm` x `tn` for a thread (`Fma`) or for a
/// subgroup (`Coop`, `SplitFp16`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    pub bm: usize,
    pub bn: usize,
    pub bk: usize,
    pub tm: usize,
    pub tn: usize,
    pub mma: MmaKind,
}

impl Tile {
    /// Larger blocks per thread need fewer loads per FMA; smaller tiles spread a small output over more SMs. The last
    /// three fit WebGPU's default limits.
    pub const FMA: [Tile; 6] = [
        Tile::new(MmaKind::Fma, [128, 256, 16], [8, 16]),
        Tile::new(MmaKind::Fma, [256, 128, 16], [8, 16]),
        Tile::new(MmaKind::Fma, [128, 128, 16], [8, 16]),
        Tile::new(MmaKind::Fma, [64, 128, 16], [8, 8]),
        Tile::new(MmaKind::Fma, [64, 64, 16], [4, 8]),
        Tile::new(MmaKind::Fma, [32, 32, 16], [4, 4]),
    ];

    /// For f32 operands; b is always (K, N).
    pub const SPLIT_FP16: [Tile; 2] = [
        Tile::new(MmaKind::SplitFp16, [128, 128, 32], [64, 32]),
        Tile::new(MmaKind::SplitFp16, [64, 64, 32], [32, 32]),
    ];

    /// For f16 operands. Tiles of 96 columns divide, for example, 384 columns evenly among the SMs of more GPUs.
    pub const COOP: [Tile; 4] = [
        Tile::new(MmaKind::Coop, [128, 128, 32], [64, 64]),
        Tile::new(MmaKind::Coop, [128, 96, 32], [64, 48]),
        Tile::new(MmaKind::Coop, [128, 64, 32], [64, 32]),
        Tile::new(MmaKind::Coop, [64, 64, 32], [32, 32]),
    ];

    const fn new(mma: MmaKind, [bm, bn, bk]: [usize; 3], [tm, tn]: [usize; 2]) -> Tile {
        Tile { bm, bn, bk, tm, tn, mma }
    }

    /// Whether the device has the instructions, workgroup memory and threads for it.
    pub fn fits(&self, limits: &Limits) -> bool {
        let blocks = self.bm / self.tm * (self.bn / self.tn);
        let (bytes, threads) = if self.mma == MmaKind::Fma {
            (self.bk * (self.bm / 4 + 1 + self.bn / 4 + 1) * 16, blocks)
        } else {
            let side = limits.coop_matrix as usize;
            if side == 0 || limits.subgroup_size == 0 {
                return false;
            }
            let threads = blocks * limits.subgroup_size as usize;
            // Threads load whole rows of a staged tile, all of them equally many vectors. Of an operand with k
            // contiguous, as b of split-fp16 never is, a subgroup's TM or TN rows are whole groups: those that all
            // threads load at once, or those of a matrix.
            let group = side.max(threads * 4 / self.bk);
            if threads < self.bm.max(self.bn) / 4
                || !(self.bk * self.bn / 4).is_multiple_of(threads)
                || !self.tm.is_multiple_of(group)
                || self.mma == MmaKind::Coop && !self.tn.is_multiple_of(group)
            {
                return false;
            }
            // The staged tiles of both operands in either layout; split-fp16 stages two of each, with b as (K, N) only.
            let along_k = |length: usize| 8 * length * (self.bk / 4 + 2);
            let across = |length: usize| 8 * self.bk * (length / 4 + 2);
            let staged = match self.mma {
                MmaKind::SplitFp16 => 2 * (along_k(self.bm).max(across(self.bm)) + across(self.bn)) + 16 * (blocks + 1),
                _ => along_k(self.bm).max(across(self.bm)) + along_k(self.bn).max(across(self.bn)),
            };
            // One fragment of each subgroup on its way to storage, or before that the column sums of b: a vector for
            // each thread and each column of its loads.
            let columns = if threads.is_multiple_of(self.bn / 4) { 1 } else { 3 };
            let out = (blocks * side * (side / 4)).max(columns * threads) * 16;
            (staged + out, threads)
        };
        bytes <= limits.workgroup_bytes as usize && threads <= limits.workgroup_threads as usize
    }

    /// Bytes of an operand's element, as the performance model counts them.
    pub fn operand_bytes(&self) -> usize {
        if self.mma == MmaKind::Coop { 2 } else { 4 }
    }

    /// Workgroups per slice of k.
    pub fn count(&self, d: &Dims) -> usize {
        d.m.div_ceil(self.bm) * d.n.div_ceil(self.bn) * d.batch
    }

    /// Split-K in about `splits` slices: length of a slice, a multiple of the k loop's step, and number of slices.
    pub fn k_slices(&self, d: &Dims, splits: usize) -> (usize, usize) {
        let whole = self.bk * self.unroll(d.k);
        let k_slice = d.k.div_ceil(splits).next_multiple_of(whole).max(self.bk);
        (k_slice, d.k.div_ceil(k_slice).max(1))
    }

    /// Unroll factor of the k loop, in steps of `bk` that divide k evenly. With f16 operands, four is faster on an
    /// H200; the split-fp16 loop is too long for the instruction caches, and the FMA kernel unrolls itself.
    pub fn unroll(&self, k: usize) -> usize {
        let whole = |turn: &usize| k > 0 && k.is_multiple_of(turn * self.bk);
        if self.mma == MmaKind::Coop { [4, 2].into_iter().find(whole).unwrap_or(1) } else { 1 }
    }

    /// "128x256x16 by 8x16": its key in a tuning file.
    pub fn name(&self) -> String {
        let Tile { bm, bn, bk, tm, tn, .. } = self;
        format!("{bm}x{bn}x{bk} by {tm}x{tn}")
    }
}

/// Performance of one tile on a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TilePerf {
    /// TFLOP/s of a large GEMM by layout: neither operand transposed, b, a, both.
    pub throughput: [f64; 4],
    /// Workgroups that an SM holds at once (occupancy).
    pub blocks_per_sm: usize,
    /// The fraction of the throughput that one workgroup per SM reaches; two reach twice that, up to 1.
    pub single_block_efficiency: f64,
    /// Time per wave of workgroups outside the k loop (start and epilogue): if only results are stored; and if f32
    /// slices of k are, or the epilogue accesses another matrix.
    pub overhead_us: [f64; 2],
}

/// The cost model of a GPU: [`super::select`] estimates the time of every tile by it.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::ops) struct PerfModel {
    /// Whether its figures were fitted to timings on that GPU.
    pub(super) fitted: bool,
    pub sm_count: usize,
    /// Bytes per microsecond.
    pub(super) bandwidth: f64,
    pub(super) launch_us: f64,
    /// Throughput factor of partial tiles, which check bounds.
    pub(super) partial_tile_efficiency: f64,
    /// Multiplications that cost as much as one addition to a column sum.
    pub(super) column_sum_cost: f64,
    /// Time to read what an accumulating epilogue adds to.
    pub(super) accumulate_read_us: f64,
    /// In the order of [`Tile::FMA`].
    pub(super) fma: [TilePerf; 6],
    /// In the order of [`Tile::SPLIT_FP16`].
    pub(super) split_fp16: [TilePerf; 2],
    /// In the order of [`Tile::COOP`].
    pub(super) coop: [TilePerf; 4],
}

const fn perf(throughput: [f64; 4], blocks_per_sm: usize, single_block_efficiency: f64, overhead_us: f64) -> TilePerf {
    TilePerf { throughput, blocks_per_sm, single_block_efficiency, overhead_us: [overhead_us; 2] }
}

/// NVIDIA H200 (driver 580, Vulkan), fitted to 4700 timed GEMMs: `docs/lab/experiments.md`.
pub(in crate::ops) const H200: PerfModel = PerfModel {
    fitted: true,
    sm_count: 132,
    bandwidth: 3.3e6,
    launch_us: 2.4,
    partial_tile_efficiency: 0.88,
    column_sum_cost: 3.0,
    accumulate_read_us: 10.0,
    fma: [
        perf([49.0, 45.5, 51.0, 43.0], 1, 1.0, 2.7),
        perf([47.5, 45.5, 53.0, 43.0], 1, 1.0, 3.0),
        perf([44.5, 47.0, 48.5, 44.0], 2, 0.6, 3.2),
        perf([43.5, 41.0, 47.5, 38.0], 4, 0.86, 1.4),
        perf([35.5, 33.5, 40.5, 33.0], 4, 0.85, 1.0),
        perf([26.5, 24.5, 31.5, 25.0], 12, 0.49, 0.9),
    ],
    // b is never (N, K), so the throughput of those two layouts does not matter.
    split_fp16: [perf([97.0, 86.0, 94.0, 86.0], 1, 1.0, 3.2), perf([52.5, 62.0, 66.0, 62.0], 2, 1.0, 1.7)],
    coop: [
        // The first overhead is by three GEMMs of shakespeare-char within a step (docs/lab/experiments.md).
        TilePerf { overhead_us: [2.4, 4.5], ..perf([250.0, 175.0, 260.0, 145.0], 2, 0.75, 4.5) },
        perf([230.0, 160.0, 215.0, 120.0], 2, 0.72, 3.4),
        perf([175.0, 163.0, 200.0, 150.0], 3, 0.7, 3.4),
        perf([163.0, 140.0, 182.0, 118.0], 3, 0.65, 2.4),
    ],
};

/// The starting guess for a GPU that nobody fitted a model to: the proportions of the H200. A factor common to all
/// rates would cancel out, because the choice compares times. Autotuning replaces the throughput of the FMA tiles and
/// scales the bandwidth ([`PerfModel::autotuned`]). WebGPU does not report the number of SMs; it stays that of a large
/// GPU, because too many slices of k cost a small GPU less than too few cost a large one.
pub(in crate::ops) const GENERIC: PerfModel = PerfModel { fitted: false, ..H200 };

impl PerfModel {
    /// The built-in performance model for a device.
    pub fn of(limits: &Limits) -> &'static PerfModel {
        match limits.gpu_model {
            GpuModel::H200 => &H200,
            GpuModel::Unknown => &GENERIC,
        }
    }

    /// The model with the measured throughput of the FMA tiles: GFLOP/s by layout, in the order of [`Tile::FMA`].
    pub(super) fn autotuned(&self, measured: &[[u32; 4]]) -> PerfModel {
        let mut model = self.clone();
        if let Some(speed) = self.relative_speed(measured).filter(|_| !self.fitted) {
            model.bandwidth *= speed;
        }
        for (perf, gflops) in model.fma.iter_mut().zip(measured) {
            perf.throughput = gflops.map(|gflops| f64::from(gflops) / 1e3);
        }
        model
    }

    /// The median ratio of measured throughput to this model's; `None` if no tile was measured. The layout with both
    /// operands transposed is not timed and does not count.
    pub(super) fn relative_speed(&self, measured: &[[u32; 4]]) -> Option<f64> {
        let ratios = |(perf, gflops): (&TilePerf, &[u32; 4])| {
            [0, 1, 2].map(|layout| f64::from(gflops[layout]) / (1e3 * perf.throughput[layout]))
        };
        let mut speeds: Vec<f64> = self.fma.iter().zip(measured).flat_map(ratios).filter(|s| *s > 0.0).collect();
        speeds.sort_by(f64::total_cmp);
        speeds.get(speeds.len() / 2).copied()
    }
}
