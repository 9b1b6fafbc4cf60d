//! The launches of a GEMM on the GPU: an optional transpose of b, the tiles, and the split-K reduction.

use super::select::TileConfig;
use super::tiles::{MmaKind, Tile};
use super::{DType, Dims, Epilogue, MatMul, Spec};
use crate::gpu::{Buffer, Launch, Limits, Operand, Plan, Value, buffer, param};
use crate::ops::quantized::{Rows, dequantize};
use crate::shader;

/// A GEMM with its tile, split-K and scratch buffers.
struct Launches<'a> {
    op: &'a MatMul,
    dims: &'a Dims,
    /// Of a and b.
    dtype: DType,
    config: TileConfig,
    /// Whether b is read transposed, which it is not once it has been transposed in scratch memory.
    trans_b: bool,
    /// Split-K: `splits` consecutive workgroups compute one tile, each over `k_slice` of k.
    splits: usize,
    k_slice: usize,
    /// The scratch buffer of the partial results of split-K, after that of b if it has one; that of their column sums
    /// is the next.
    partial: usize,
}

impl MatMul {
    /// With b quantized: its values are written to scratch memory, and read from there.
    pub(super) fn plan_quantized(&self, d: &Dims, b: &Spec, dtype: DType, config: TileConfig, limits: &Limits) -> Plan {
        let mut plan = Plan::default();
        plan.scratch.push(dtype.size_bytes() * d.n * d.k);
        plan.launches.push(dequantize(
            b,
            dtype,
            [Operand::Input(1), Operand::Scratch(0)],
            Rows::Range(0..b.shape.rows()),
        ));
        self.add_tiles(plan, d, dtype, TileConfig { transpose_b: false, ..config }, limits)
    }

    pub(super) fn plan(&self, d: &Dims, dtype: DType, config: TileConfig, limits: &Limits) -> Plan {
        let mut plan = Plan::default();
        if config.transpose_b {
            plan.scratch.push(dtype.size_bytes() * d.n * d.k);
            plan.launches.push(transpose_b(d, dtype));
        }
        self.add_tiles(plan, d, dtype, config, limits)
    }

    /// Of a plan whose first launch has written b to scratch memory, if it has one.
    fn add_tiles(&self, mut plan: Plan, d: &Dims, dtype: DType, config: TileConfig, limits: &Limits) -> Plan {
        debug_assert!(!self.accumulate || self.epilogue == Epilogue::None, "the epilogue reads one tensor");
        debug_assert!(
            !self.sums
                || self.trans_a && !self.trans_b && !self.bias && d.batch == 1 && self.epilogue == Epilogue::None,
            "only the GEMM of a weight gradient sums columns"
        );
        debug_assert!(
            d.k > 0 || config.tile.mma != MmaKind::SplitFp16,
            "the k loop of split-fp16 peels off its last step"
        );
        let (k_slice, splits) = config.tile.k_slices(d, config.splits);
        let partial = plan.scratch.len();
        let trans_b = self.trans_b && !config.transpose_b;
        let launches = Launches { op: self, dims: d, dtype, config, trans_b, splits, k_slice, partial };
        plan.launches.push(launches.tiles(limits));
        if splits > 1 {
            plan.scratch.push(splits * d.m * d.n * 4);
            plan.scratch.extend(self.sums.then_some(splits * d.n * 4));
            plan.launches.push(split_k_reduce(self, [d.m, d.n], splits, partial));
        }
        plan
    }
}

impl Launches<'_> {
    /// Computes every tile of the result, or of each split's part of it.
    fn tiles(&self, limits: &Limits) -> Launch {
        let Launches { dims: d, config, splits, .. } = *self;
        let (tiles_m, tiles_n) = (d.m.div_ceil(config.tile.bm), d.n.div_ceil(config.tile.bn));
        let coop = config.tile.mma != MmaKind::Fma;
        Launch {
            shader: if coop { shader!(matmul_coop) } else { shader!(matmul) },
            values: self.values_of_tiles(limits),
            buffers: self.buffers_of_tiles(limits),
            params: vec![
                param("m", d.m),
                param("n", d.n),
                param("k", d.k),
                // Elements between consecutive matrices of the batch; 0 broadcasts one matrix.
                param("stride_a", d.stride_a),
                param("stride_b", d.stride_b),
                param("stride_c", d.m * d.n),
                param("tiles_m", tiles_m),
                param("tiles_n", tiles_n),
                param("splits", splits),
                param("k_slice", self.k_slice),
                param("batches", d.batch),
            ],
            workgroups: tiles_m * tiles_n * splits * d.batch,
        }
    }

    /// Whether a, b and c can be read in vectors of four: their rows must start on 16 bytes.
    fn whole_vectors(&self) -> [bool; 3] {
        let (op, d) = (self.op, self.dims);
        let by_four = |contiguous: usize, stride: usize| contiguous.is_multiple_of(4) && stride.is_multiple_of(4);
        [
            by_four(if op.trans_a { d.m } else { d.k }, d.stride_a),
            by_four(if self.trans_b { d.k } else { d.n }, d.stride_b),
            d.n.is_multiple_of(4),
        ]
    }

    /// Whether the tiles' results leave as vectors of eight f16. Not where the epilogue reads, which has been slower so
    /// (docs/lab/experiments.md).
    fn stores_eight(&self, limits: &Limits) -> bool {
        let Tile { tn, mma, .. } = self.config.tile;
        let reads = self.op.accumulate || self.op.epilogue == Epilogue::Multiply;
        mma == MmaKind::Coop
            && self.out() == DType::F16
            && self.dims.n.is_multiple_of(8)
            && tn.is_multiple_of(2 * limits.coop_matrix as usize)
            && !self.trans_b
            && !reads
    }

    /// Type of the split-K partial results, or of the result.
    fn out(&self) -> DType {
        if self.splits > 1 { DType::F32 } else { self.op.out }
    }

    fn values_of_tiles(&self, limits: &Limits) -> Vec<(&'static str, Value)> {
        let (op, d, split) = (self.op, self.dims, self.splits > 1);
        let Tile { bm, bn, bk, tm, tn, mma } = self.config.tile;
        let mut values: Vec<(&'static str, Value)> = vec![
            ("T_in", self.dtype.name().into()),
            ("T_out", self.out().name().into()),
            ("BM", bm.into()),
            ("BN", bn.into()),
            ("BK", bk.into()),
            ("TM", tm.into()),
            ("TN", tn.into()),
            ("trans_a", op.trans_a.into()),
            ("trans_b", self.trans_b.into()),
            ("edge_m", (!d.m.is_multiple_of(bm)).into()),
            ("edge_n", (!d.n.is_multiple_of(bn)).into()),
            ("edge_k", (!d.k.is_multiple_of(bk)).into()),
            ("bias", (op.bias && !split).into()),
            ("accumulate", (op.accumulate && !split).into()),
            ("sums", op.sums.into()),
            ("epilogue", if split { "" } else { op.epilogue.name() }.into()),
        ];
        if mma == MmaKind::Fma {
            let [a, b, c] = self.whole_vectors();
            values.extend([("vec_a", a.into()), ("vec_b", b.into()), ("vec_c", c.into())]);
        } else {
            values.extend([
                ("side", limits.coop_matrix.into()),
                ("subgroup", limits.subgroup_size.into()),
                ("split_k", split.into()),
                ("batched", (d.batch > 1).into()),
                ("split_fp16", (mma == MmaKind::SplitFp16).into()),
                ("eight", self.stores_eight(limits).into()),
                // Where matrices are small there are many in a step already.
                ("unroll", if limits.coop_matrix == 16 { self.config.tile.unroll(d.k) } else { 1 }.into()),
            ]);
        }
        values
    }

    /// The operands, and the result with the epilogue's buffers or the split-K partial results.
    fn buffers_of_tiles(&self, limits: &Limits) -> Vec<Buffer> {
        let coop = self.config.tile.mma != MmaKind::Fma;
        let [lanes_a, lanes_b, lanes_c] = self.whole_vectors().map(|whole| if whole || coop { 4 } else { 1 });
        let b = if self.partial > 0 { Operand::ReadScratch(0) } else { Operand::Input(1) };
        let operands =
            vec![buffer("a", self.dtype.wgsl(lanes_a), Operand::Input(0)), buffer("b", self.dtype.wgsl(lanes_b), b)];
        let c = if self.stores_eight(limits) { "vec4<u32>" } else { self.out().wgsl(lanes_c) };
        if self.splits > 1 {
            [operands, partials(self.op, self.partial, ["c", "sums"], c, Operand::Scratch)].concat()
        } else {
            with_epilogue(self.op, operands, c)
        }
    }
}

/// The scratch buffers, from this one on, of the partial results of split-K and, if they are wanted, of their column
/// sums.
fn partials(
    op: &MatMul,
    first: usize,
    names: [&'static str; 2],
    element: &'static str,
    operand: fn(usize) -> Operand,
) -> Vec<Buffer> {
    let mut buffers = vec![buffer(names[0], element, operand(first))];
    buffers.extend(op.sums.then_some(buffer(names[1], "f32", operand(first + 1))));
    buffers
}

/// Adds the partial results (M, N) of all slices of k and applies the epilogue. They are in the scratch buffer
/// `partial`, their column sums in the next.
pub(in crate::ops) fn split_k_reduce(op: &MatMul, [m, n]: [usize; 2], splits: usize, partial: usize) -> Launch {
    // Four elements to a thread.
    let vector = if n.is_multiple_of(4) { 4 } else { 1 };
    let element = DType::F32.wgsl(vector);
    let partials = partials(op, partial, ["partial", "partial_sums"], element, Operand::ReadScratch);
    let len = m * n / vector;
    Launch {
        shader: shader!(split_k_reduce),
        values: vec![
            ("pass", "sum".into()),
            ("T_in", "f32".into()),
            ("T_out", op.out.name().into()),
            ("bias", op.bias.into()),
            ("accumulate", op.accumulate.into()),
            ("sums", op.sums.into()),
            ("epilogue", op.epilogue.name().into()),
            ("vector", vector.into()),
        ],
        buffers: with_epilogue(op, partials, op.out.wgsl(vector)),
        params: vec![param("len", len), param("n", n), param("splits", splits)],
        workgroups: (len + if op.sums { n } else { 0 }).div_ceil(256),
    }
}

/// `buffers`, then those of the epilogue.
pub(super) fn with_epilogue(op: &MatMul, mut buffers: Vec<Buffer>, element: &'static str) -> Vec<Buffer> {
    let factors = buffer("factors", element, Operand::Input(2 + op.bias as usize));
    let activated = buffer("activated", element, Operand::Output(1));
    buffers.extend(op.bias.then_some(buffer("bias", "f32", Operand::Input(2))));
    buffers.extend((op.epilogue == Epilogue::Multiply).then_some(factors));
    buffers.push(buffer("c", element, Operand::Output(0)));
    buffers.extend((op.epilogue == Epilogue::Gelu).then_some(activated));
    buffers.extend(op.sums.then_some(buffer("sums", "f32", Operand::Output(1))));
    buffers
}

/// Writes b (N, K) to the plan's first scratch buffer as (K, N).
fn transpose_b(d: &Dims, dtype: DType) -> Launch {
    const SIDE: usize = 32;
    let down = d.n.div_ceil(SIDE);
    Launch {
        shader: shader!(split_k_reduce),
        values: vec![("pass", "transpose".into()), ("T_in", dtype.name().into()), ("T_out", dtype.name().into())],
        buffers: vec![
            buffer("x", dtype.name(), Operand::Input(1)),
            buffer("result", dtype.name(), Operand::Scratch(0)),
        ],
        params: vec![param("rows", d.n), param("cols", d.k), param("down", down)],
        workgroups: down * d.k.div_ceil(SIDE),
    }
}
