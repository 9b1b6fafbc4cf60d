//! Attention of f16 on cooperative matrices (tensor cores): `shaders/attention_coop_*.wgsl`.

use super::{Attention, BACKWARD, Dims, FORWARD, QueryBlock, buffers, launched_heads};
use crate::gpu::{Launch, Limits, Operand, Plan, Value};
use crate::shader;
use crate::tensor::DType;

/// How the work is cut. A row of a workgroup is a query, in the pass over keys a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoopTiling {
    /// The side of a cooperative matrix, and the threads that hold one.
    side: u32,
    subgroup: u32,
    /// Of a workgroup.
    subgroups: u32,
    /// Times `side`: the queries of a subgroup. More need fewer loads from workgroup memory for each product, but
    /// registers.
    fragments: u32,
}

/// Columns of a tile. More would take more workgroup memory, and so leave fewer workgroups to fill the waits of one
/// another.
const COLS: u32 = 16;

impl CoopTiling {
    /// `None` if the device has no cooperative matrices that take such heads.
    pub fn choose(d: Dims, dtype: DType, limits: &Limits) -> Option<CoopTiling> {
        let (side, subgroup) = (limits.coop_matrix, limits.subgroup_size);
        // Whole rows of scores for each thread or parts of one.
        let usable = dtype == DType::F16 && side > 0 && subgroup > 0 && subgroup.is_multiple_of(side);
        if !usable || !(COLS / 4).is_multiple_of(subgroup / side) || !d.head_size.is_multiple_of(side as usize) {
            return None;
        }
        let subgroups = if d.time > 64 { 4 } else { 2 };
        // Up to T = 256 half the rows are enough (an H200): beyond the diagonal twice as many would compute much for
        // nothing. Up to 64 there are two subgroups, and so no more than that.
        let fragments = if d.head_size <= 64 && !(65..=256).contains(&d.time) { 2 } else { 1 };
        let tiling = CoopTiling { side, subgroup, subgroups, fragments };
        let smallest_block = 2 * d.heads() * d.time * tiling.block_multiple();
        let fits =
            ["forward", "keys", "queries"].iter().all(|pass| tiling.workgroup_bytes(pass, d) <= limits.workgroup_bytes)
                && subgroups * subgroup <= limits.workgroup_threads
                && smallest_block <= limits.binding_bytes as usize;
        fits.then_some(tiling)
    }

    /// Of the pass over keys: it has two results, for as many registers.
    fn fragments(&self, pass: &str) -> u32 {
        if pass == "keys" { 1 } else { self.fragments }
    }

    /// Rows of a workgroup.
    fn rows(&self, pass: &str) -> usize {
        (self.subgroups * self.fragments(pass) * self.side) as usize
    }

    fn workgroup_bytes(&self, pass: &str, d: Dims) -> u32 {
        let line = COLS / 4 + 2;
        let staged = 8 * COLS * (d.head_size as u32 / 4 + 2);
        let scores = 16 * self.subgroups * self.side * line;
        let weights = 8 * self.rows(pass) as u32 * line;
        match pass {
            "forward" => 2 * staged + scores + weights + 4 * self.fragments * self.subgroups * self.subgroup + 16,
            "keys" => 2 * staged + scores + weights + 8 * COLS,
            _ => staged + scores + 8 * COLS * (self.rows(pass) as u32 / 4 + 2),
        }
    }

    /// What the queries of a query block are a multiple of.
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
            ("edge", (!d.time.is_multiple_of(rows) || !d.time.is_multiple_of(COLS as usize)).into()),
        ];
        values.extend(op.values(d));
        let end = d.time.min(block.begin + block.rows);
        let blocks = match pass {
            "forward" => d.time.div_ceil(rows),
            "keys" => end.div_ceil(rows),
            _ => (end - block.begin).div_ceil(rows),
        };
        let (buffers, params) = (buffers(operands, "vec4<f16>", "vec4<f16>"), op.params(d, block));
        let shader = match pass {
            "forward" => shader!("attention_coop_forward"),
            _ => shader!("attention_coop_backward"),
        };
        Launch { shader, values, buffers, params, workgroups: launched_heads(pass, d) * blocks }
    }

    pub fn forward(&self, op: &Attention, d: Dims) -> Plan {
        Plan::one(self.launch(op, "forward", d, QueryBlock::default(), &op.with_documents(&FORWARD, 1)))
    }

    /// The passes after the one that finds D, which is `delta`.
    pub fn backward(&self, op: &Attention, d: Dims, delta: Launch, limits: &Limits) -> Plan {
        let rows = d.query_block_rows(self.block_multiple(), DType::F16.size_bytes(), limits);
        let operands = op.with_documents(&BACKWARD, 4);
        op.backward_plan(d, delta, rows, DType::F16, |pass, block| self.launch(op, pass, d, block, &operands))
    }
}
