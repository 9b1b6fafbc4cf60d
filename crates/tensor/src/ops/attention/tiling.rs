//! The sizes of attention, and its tiling on the GPU.

use crate::gpu::Limits;
use crate::ops::matmul::H200;

/// Problem sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dims {
    pub(super) batch: usize,
    pub(super) time: usize,
    pub(super) n_head: usize,
    pub(super) n_kv_head: usize,
    pub(super) head_size: usize,
}

impl Dims {
    /// B * n_head: independent attention problems.
    pub(super) fn heads(self) -> usize {
        self.batch * self.n_head
    }

    /// B * n_kv_head: key/value heads.
    pub(super) fn kv_heads(self) -> usize {
        self.batch * self.n_kv_head
    }

    /// Query heads per key/value head.
    pub(super) fn group(self) -> usize {
        self.n_head / self.n_kv_head
    }

    /// C.
    pub(super) fn width(self) -> usize {
        self.n_head * self.head_size
    }

    /// Query, key and value heads in qkv.
    pub(super) fn packed_heads(self) -> usize {
        self.n_head + 2 * self.n_kv_head
    }

    /// Elements of a token's keys, or of its values.
    pub(super) fn kv_width(self) -> usize {
        self.n_kv_head * self.head_size
    }

    /// P.
    pub(super) fn packed_width(self) -> usize {
        self.width() + 2 * self.kv_width()
    }

    /// Elements of a head per load: four if the head size is a multiple of four, else one.
    pub(super) fn lanes(self) -> usize {
        if self.head_size.is_multiple_of(4) { 4 } else { 1 }
    }

    /// Queries per query block, a multiple of `row`. The pass over keys stores dS of the block, `bytes` per element, so
    /// that the pass over queries need not recompute it. Limited to about five times the memory of qkv and to the
    /// binding size; larger blocks read and write dk and dv less often.
    pub(super) fn query_block_rows(self, row: usize, bytes: usize, limits: &Limits) -> usize {
        let bound = limits.binding_bytes as usize / (bytes * self.heads() * self.time).max(1);
        let most = (16 * self.head_size).min(bound).min(self.time.next_multiple_of(row)) / row * row;
        most.max(row)
    }
}

/// Tile sizes of S.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiling {
    /// Rows per workgroup and columns per tile.
    pub(super) rows: u32,
    pub(super) cols: u32,
    /// Rows per thread, with four columns of each.
    pub(super) rows_per_thread: u32,
    /// Vectors of four head elements staged at a time: 4 or 8.
    pub(super) span: u32,
    /// Vectors in the stage.
    pub(super) stage: u32,
}

/// The queries whose dS backward holds in memory at a time; empty for other passes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueryBlock {
    pub(super) begin: usize,
    pub(super) rows: usize,
}

impl Tiling {
    /// Large tiles: fewer loads per FMA, more workgroup memory.
    pub(super) const LARGE: Tiling = Tiling { rows: 128, cols: 64, rows_per_thread: 8, span: 4, stage: 1024 }; // 48 KiB
    pub(super) const MIDDLE: Tiling = Tiling { rows: 64, cols: 64, rows_per_thread: 4, span: 8, stage: 1024 }; // 32 KiB
    /// Small tiles, within WebGPU's default limits.
    pub(super) const SMALL: Tiling = Tiling { rows: 32, cols: 32, rows_per_thread: 4, span: 8, stage: 512 }; // 12 KiB

    /// The tiling that is fastest on an H200 (`docs/lab/experiments.md`) among those that the device supports. For a
    /// short T, large tiles waste work on the diagonal, so small ones are faster; they also serve a long T if large
    /// ones exceed the limits. Medium tiles have four times the threads of small ones for twice the rows: faster where
    /// a large GPU can hold all workgroups at once.
    pub(super) fn choose(d: Dims, limits: &Limits) -> Tiling {
        let fits = |t: &Tiling| {
            t.workgroup_bytes() <= limits.workgroup_bytes
                && t.threads() <= limits.workgroup_threads
                && d.heads() * d.time * t.rows as usize * 4 <= limits.binding_bytes as usize // the smallest query block
        };
        let few = d.heads() * Tiling::MIDDLE.blocks(d.time) < 2 * H200.sm_count;
        let best = if few && d.time > Tiling::SMALL.rows as usize {
            Tiling::MIDDLE
        } else if d.time >= 1024 {
            Tiling::LARGE
        } else {
            Tiling::SMALL
        };
        Some(best).filter(fits).unwrap_or(Tiling::SMALL)
    }

    /// Workgroups for this number of rows of a head.
    pub(super) fn blocks(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows as usize)
    }

    pub(super) fn threads(&self) -> u32 {
        self.rows / self.rows_per_thread * (self.cols / 4)
    }

    pub(super) fn workgroup_bytes(&self) -> u32 {
        16 * (self.rows * self.cols / 4 + self.stage)
    }

    /// Whether there are partial tiles: beyond T, or staged chunks or threads of a row beyond the head size.
    pub(super) fn overhangs(&self, d: Dims) -> bool {
        let whole = d.time.is_multiple_of(self.rows as usize) && d.time.is_multiple_of(self.cols as usize);
        let groups = (d.head_size as u32).div_ceil(4);
        let chunks = groups.div_ceil(self.span);
        !whole
            || !groups.is_multiple_of(chunks)
            || !groups.is_multiple_of(self.cols / 4)
            || !d.head_size.is_multiple_of(4)
    }

    /// Groups of four columns whose values, `groups` vectors each, the stage holds: a power of two, so that they divide
    /// a tile.
    pub(super) fn staged(&self, groups: u32) -> u32 {
        let most = (self.stage / (4 * groups)).clamp(1, self.cols / 4);
        1 << most.ilog2()
    }
}
