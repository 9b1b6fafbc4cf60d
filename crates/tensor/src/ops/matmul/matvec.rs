//! GEMMs with few rows, as in a generation step, which are bound by reading b once. Tiles would leave most threads
//! idle, and split-K would need a second launch.

use super::plan::with_epilogue;
use super::{DType, Dims, MatMul};
use crate::gpu::{Buffer, Launch, Operand, Plan, Value, buffer, param};
use crate::ops::quantized;
use crate::shader;

/// Largest number of rows of a.
pub(in crate::ops) const MOST_ROWS: usize = 4;
/// Threads of a workgroup.
const THREADS: usize = 256;
/// Workgroups that are enough for every GPU to read as fast as it can.
const ENOUGH_WORKGROUPS: usize = 128;

/// Whether it is such a GEMM.
pub(super) fn is_for(op: &MatMul, d: &Dims) -> bool {
    d.m <= MOST_ROWS && d.k > 0 && d.batch == 1 && !op.trans_a && !op.sums
}

/// A norm of the residual stream, applied to rows before the GEMM.
pub(in crate::ops) struct NormPrologue {
    pub rms: bool,
    pub eps: f32,
    pub has_bias: bool,
    /// The type of the branch to add, if any.
    pub branch: Option<DType>,
}

impl NormPrologue {
    /// Workgroup memory in bytes: per row element, and fixed.
    pub const WORKGROUP_BYTES: [usize; 2] = [4, 5 * 1024];

    /// Inputs: x, the weight and the bias of the norm, the branch, then b and the bias of the product. Outputs: the
    /// product, and with a branch the sum.
    fn buffers(&self, op: &MatMul, lanes: usize, b: &'static str) -> Vec<Buffer> {
        let row = |name, dtype: DType, operand| buffer(name, dtype.wgsl(lanes), operand);
        let mut buffers =
            vec![row("x", DType::F32, Operand::Input(0)), row("norm_weight", DType::F32, Operand::Input(1))];
        buffers.extend(self.has_bias.then(|| row("norm_bias", DType::F32, Operand::Input(2))));
        let mut next = 2 + self.has_bias as usize;
        if let Some(dtype) = self.branch {
            buffers.extend([row("branch", dtype, Operand::Input(next)), row("stream", DType::F32, Operand::Output(1))]);
            next += 1;
        }
        buffers.push(buffer("b", b, Operand::Input(next)));
        buffers.extend(op.bias.then(|| buffer("bias", "f32", Operand::Input(next + 1))));
        buffers.push(buffer("c", op.out.name(), Operand::Output(0)));
        buffers
    }
}

/// One launch, with a and b of these types.
pub(super) fn plan(op: &MatMul, d: &Dims, a: DType, b: DType) -> Plan {
    let shape = Layout::of(op, d);
    let operands = vec![
        buffer("a", a.wgsl(shape.lanes_a()), Operand::Input(0)),
        buffer("b", b.wgsl(shape.lanes), Operand::Input(1)),
    ];
    let buffers = with_epilogue(op, operands, op.out.name());
    shape.launch(op, d, [a, b], op.epilogue.name(), None, buffers)
}

/// `op(norm(x + branch)) b`, with GELU of that if asked: one launch. b is of this type.
pub(in crate::ops) fn plan_normed(
    op: &MatMul,
    [m, n, k]: [usize; 3],
    dtype: DType,
    gelu: bool,
    norm: &NormPrologue,
) -> Plan {
    let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
    let shape = Layout::of(op, &d);
    let buffers = norm.buffers(op, shape.lanes_a(), dtype.wgsl(shape.lanes));
    shape.launch(op, &d, [DType::F32, dtype], if gelu { "gelu_only" } else { "" }, Some(norm), buffers)
}

/// How b is read.
struct Layout {
    /// Elements of a vector of b.
    lanes: usize,
    trans_b: bool,
    /// What a row of b has of vectors, or the number of its rows.
    outputs: usize,
    /// Of k.
    steps: usize,
    /// Threads that share an output.
    share: usize,
}

impl Layout {
    fn of(op: &MatMul, d: &Dims) -> Layout {
        let vector = if op.trans_b { d.k.is_multiple_of(4) } else { d.n.is_multiple_of(4) };
        let lanes = if vector { 4 } else { 1 };
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
        Layout { lanes, trans_b: op.trans_b, outputs, steps, share }
    }

    /// Elements of a vector of a.
    fn lanes_a(&self) -> usize {
        if self.trans_b { self.lanes } else { 1 }
    }

    fn launch(
        &self,
        op: &MatMul,
        d: &Dims,
        [a, b]: [DType; 2],
        epilogue: &'static str,
        norm: Option<&NormPrologue>,
        buffers: Vec<Buffer>,
    ) -> Plan {
        let &Layout { lanes, trans_b, outputs, steps, share } = self;
        let mut values: Vec<(&'static str, Value)> = vec![
            ("T_a", a.name().into()),
            ("T_b", b.name().into()),
            ("T_out", op.out.name().into()),
            ("rows", d.m.into()),
            ("share", share.into()),
            ("vector", (lanes == 4).into()),
            ("trans_b", trans_b.into()),
            ("bias", op.bias.into()),
            ("accumulate", op.accumulate.into()),
            ("epilogue", epilogue.into()),
            ("norm", norm.map_or("", |norm| if norm.rms { "rms" } else { "layer" }).into()),
            ("quantized", b.is_quantized().into()),
        ];
        let mut params = vec![param("n", d.n), param("outputs", outputs), param("steps", steps)];
        if b.is_quantized() {
            values.extend(quantized::shader_values(b));
            params.extend(quantized::shader_params(b, d.n * d.k));
        }
        if let Some(norm) = norm {
            values.extend([
                ("steps", steps.into()),
                ("norm_bias", norm.has_bias.into()),
                ("branch", norm.branch.is_some().into()),
                ("T_branch", norm.branch.unwrap_or_default().name().into()),
            ]);
            params.extend([param("per_element", 1.0 / d.k as f32), param("eps", norm.eps)]);
        }
        let workgroups = outputs.div_ceil(THREADS / share);
        Plan::one(Launch { shader: shader!(matvec), values, buffers, params, workgroups })
    }
}
