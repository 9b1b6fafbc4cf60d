//! Attention of f16, or of f32 as split-fp16, on cooperative matrices (tensor cores): `shaders/attention_coop_*.wgsl`.

use super::{Attention, BACKWARD, Dims, FORWARD, QueryBlock, backward_start, buffers, launched_heads, query_blocks};
use crate::gpu::{Launch, Limits, Operand, Plan, Value, buffer, param};
use crate::shader;
use crate::tensor::DType;

/// Tile sizes. A row of a workgroup is a query, or a key in the pass over keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoopTiling {
    /// Side length of a cooperative matrix, and threads per subgroup.
    side: u32,
    subgroup: u32,
    /// Subgroups per workgroup.
    subgroups: u32,
    /// Queries per subgroup, in units of `side`. More mean fewer loads from workgroup memory per MMA, but more
    /// registers.
    fragments: u32,
    /// Whether elements are f32, multiplied as split-fp16.
    split_fp16: bool,
}

/// Columns per tile. More would use more workgroup memory and so lower the occupancy.
const COLS: u32 = 16;

impl CoopTiling {
    /// The fastest tiling; `None` if the device has no cooperative matrices for such heads, or is faster without.
    pub fn choose(d: Dims, dtype: DType, limits: &Limits) -> Option<CoopTiling> {
        CoopTiling::fitting(d, dtype, limits).filter(|tiling| !tiling.split_fp16 || split_fp16_pays(d))
    }

    /// A valid tiling; `None` if the device has no cooperative matrices for such heads.
    pub fn fitting(d: Dims, dtype: DType, limits: &Limits) -> Option<CoopTiling> {
        let (side, subgroup) = (limits.coop_matrix, limits.subgroup_size);
        // Whole rows of scores for each thread or parts of one.
        let split_fp16 = dtype == DType::F32 && limits.split_fp16;
        let usable = (dtype == DType::F16 || split_fp16) && side > 0 && subgroup > 0 && subgroup.is_multiple_of(side);
        if !usable || !(COLS / 4).is_multiple_of(subgroup / side) || !d.head_size.is_multiple_of(side as usize) {
            return None;
        }
        let subgroups = if d.time > 64 { 4 } else { 2 };
        // Up to T = 256 half the rows are enough (an H200): beyond the diagonal twice as many would compute much for
        // nothing. Up to 64 there are two subgroups, and so no more than that.
        // Halves take twice the registers.
        let fragments = if d.head_size <= 64 && !(65..=256).contains(&d.time) && !split_fp16 { 2 } else { 1 };
        let tiling = CoopTiling { side, subgroup, subgroups, fragments, split_fp16 };
        let smallest_block = tiling.dtype().size_bytes() * d.heads() * d.time * tiling.block_multiple();
        let fits =
            ["forward", "keys", "queries"].iter().all(|pass| tiling.workgroup_bytes(pass, d) <= limits.workgroup_bytes)
                && subgroups * subgroup <= limits.workgroup_threads
                && smallest_block <= limits.binding_bytes as usize;
        fits.then_some(tiling)
    }

    /// Element type in memory.
    fn dtype(&self) -> DType {
        if self.split_fp16 { DType::F32 } else { DType::F16 }
    }

    /// Fragments in a pass: one in the pass over keys, whose two results need twice the registers.
    fn fragments(&self, pass: &str) -> u32 {
        if pass == "keys" { 1 } else { self.fragments }
    }

    /// Rows per workgroup.
    fn rows(&self, pass: &str) -> usize {
        (self.subgroups * self.fragments(pass) * self.side) as usize
    }

    /// Whether four f16 are loaded as two u32, which is faster on an H200 but for two fragments forward.
    fn words(&self, pass: &str) -> bool {
        !self.split_fp16 && (pass != "forward" || self.fragments == 1)
    }

    fn workgroup_bytes(&self, pass: &str, d: Dims) -> u32 {
        let line = COLS / 4 + 2;
        let vector = 2 * 4 * if self.split_fp16 { 2 } else { 1 };
        let staged = vector * COLS * (d.head_size as u32 / 4 + 2);
        let scores = 16 * self.subgroups * self.side * line;
        let weights = vector * self.rows(pass) as u32 * line;
        match pass {
            "forward" => 2 * staged + scores + weights + 4 * self.fragments * self.subgroups * self.subgroup + 16,
            "keys" => 2 * staged + scores + weights + 8 * COLS,
            _ => staged + scores + vector * COLS * (self.rows(pass) as u32 / 4 + 2),
        }
    }

    /// The number of queries in a query block is a multiple of this.
    fn block_multiple(&self) -> usize {
        self.rows("queries").max(COLS as usize)
    }

    fn launch(
        &self,
        op: &Attention,
        pass: &'static str,
        d: Dims,
        block: QueryBlock,
        operands: &[(&'static str, Operand)],
    ) -> Launch {
        let rows = self.rows(pass);
        let mut values: Vec<(&'static str, Value)> = vec![
            ("pass", pass.into()),
            ("side", self.side.into()),
            ("subgroup", self.subgroup.into()),
            ("subgroups", self.subgroups.into()),
            ("fragments", self.fragments(pass).into()),
            ("cols", COLS.into()),
            ("split_fp16", self.split_fp16.into()),
            ("words", self.words(pass).into()),
            ("edge", (!d.time.is_multiple_of(rows) || !d.time.is_multiple_of(COLS as usize)).into()),
        ];
        values.extend(op.values(d));
        let end = d.time.min(block.begin + block.rows);
        let blocks = match pass {
            "forward" => d.time.div_ceil(rows),
            "keys" => end.div_ceil(rows),
            _ => (end - block.begin).div_ceil(rows),
        };
        let vector = self.dtype().wgsl(4);
        let (mut buffers, params) = (buffers(operands, vector, vector), op.params(d, block));
        if self.words(pass) {
            let read = |name| matches!(name, "qkv" | "dy") || (name == "block_ds" && pass == "queries");
            buffers.iter_mut().filter(|buffer| read(buffer.name)).for_each(|buffer| buffer.element = "vec2<u32>");
        }
        let shader = match pass {
            "forward" => shader!(attention_coop_forward),
            _ => shader!(attention_coop_backward),
        };
        Launch { shader, values, buffers, params, workgroups: launched_heads(pass, d) * blocks }
    }

    pub fn forward(&self, op: &Attention, d: Dims) -> Plan {
        let mut operands = op.with_documents(&FORWARD, 1);
        let mut plan = Plan { scratch: Vec::new(), launches: Vec::new() };
        if self.split_fp16 {
            operands.push(("scales", scales(d, &[(d.packed_heads(), Operand::Input(0))], &mut plan)));
        }
        plan.launches.push(self.launch(op, "forward", d, QueryBlock::default(), &operands));
        plan
    }

    /// The backward passes after `delta`, which computes D.
    pub fn backward(&self, op: &Attention, d: Dims, delta: Launch, limits: &Limits) -> Plan {
        let rows = d.query_block_rows(self.block_multiple(), self.dtype().size_bytes(), limits);
        let mut operands = op.with_documents(&BACKWARD, 4);
        let mut plan = backward_start(d, delta, rows, self.dtype());
        if self.split_fp16 {
            let of = [(d.packed_heads(), Operand::Input(0)), (d.n_head, Operand::Input(3))];
            operands.push(("scales", scales(d, &of, &mut plan)));
        }
        plan.launches.extend(query_blocks(d, rows, |pass, block| self.launch(op, pass, d, block, &operands)));
        plan
    }
}

/// Whether f32 attention is faster as split-fp16 than with FMA, which has shorter dependency chains. Relative step time
/// on an H200: 0.92 with 48 heads of T = 1024 and 1.05 with 24 of 512; at 256 1.02, 1.00 and 0.99 with 96, 192 and 384;
/// at 128 1.04 with 384.
fn split_fp16_pays(d: Dims) -> bool {
    d.time >= 256 && d.heads() * d.time * d.time >= 12 << 20
}

/// Adds to a plan the computation of the scales (B, heads) of tensors (B, T, heads, head_size). The returned operand
/// holds them in order.
fn scales(d: Dims, of: &[(usize, Operand)], plan: &mut Plan) -> Operand {
    let scratch = plan.scratch.len();
    let mut first = 0;
    for &(heads, x) in of {
        plan.launches.push(Launch {
            shader: shader!(attention_scales),
            values: vec![("head_size", d.head_size.into())],
            buffers: vec![buffer("x", "vec4<f32>", x), buffer("scales", "f32", Operand::Scratch(scratch))],
            params: vec![param("batch", d.batch), param("time", d.time), param("heads", heads), param("first", first)],
            workgroups: d.batch * heads,
        });
        first += d.batch * heads;
    }
    plan.scratch.push(4 * first);
    Operand::ReadScratch(scratch)
}
