//! GEMMs of a few rows, as of a step of generation: all that takes time is to read b, once. Tiles would leave most of
//! their threads without a row, and split-K, which gives them work, is a launch of its own.

use super::plan::with_epilogue;
use super::{DType, Dims, MatMul};
use crate::gpu::{Launch, Operand, Plan, buffer, param};
use crate::shader;

/// Rows of a that a thread multiplies with what it reads of b.
const MOST_ROWS: usize = 4;
/// Threads of a workgroup.
const THREADS: usize = 256;
/// Workgroups that are enough for every GPU to read as fast as it can.
const ENOUGH_WORKGROUPS: usize = 128;

/// Whether it is such a GEMM.
pub(super) fn is_for(op: &MatMul, d: &Dims) -> bool {
    d.m <= MOST_ROWS && d.k > 0 && d.batch == 1 && !op.trans_a && !op.sums
}

/// One launch.
pub(super) fn plan(op: &MatMul, d: &Dims, dtype: DType) -> Plan {
    let vector = if op.trans_b { d.k.is_multiple_of(4) } else { d.n.is_multiple_of(4) };
    let lanes = if vector { 4 } else { 1 };
    // What a row of b has of vectors, or the number of its rows.
    let (outputs, steps) = if op.trans_b { (d.n, d.k / lanes) } else { (d.n / lanes, d.k) };
    let share = if op.trans_b {
        // Some eight steps for each thread.
        (steps / 8).next_power_of_two().clamp(8, THREADS)
    } else {
        // Outputs side by side, so that a row of b is read in pieces of 32 bytes at least, but enough workgroups.
        let most = 1 << (outputs / ENOUGH_WORKGROUPS).max(1).ilog2();
        let side_by_side: usize = usize::clamp(most, 8 / lanes, 32);
        THREADS / side_by_side
    };
    let operands = vec![
        buffer("a", dtype.wgsl(if op.trans_b { lanes } else { 1 }), Operand::Input(0)),
        buffer("b", dtype.wgsl(lanes), Operand::Input(1)),
    ];
    Plan::one(Launch {
        shader: shader!("matvec"),
        values: vec![
            ("T_in", dtype.name().into()),
            ("T_out", op.out.name().into()),
            ("rows", d.m.into()),
            ("share", share.into()),
            ("vector", vector.into()),
            ("trans_b", op.trans_b.into()),
            ("bias", op.bias.into()),
            ("accumulate", op.accumulate.into()),
            ("epilogue", op.epilogue.name().into()),
        ],
        buffers: with_epilogue(op, operands, op.out.name()),
        params: vec![param("n", d.n), param("outputs", outputs), param("steps", steps)],
        workgroups: outputs.div_ceil(THREADS / share),
    })
}
