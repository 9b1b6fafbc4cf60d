//! Matrix multiplication (GEMM), with every combination of transposed operands.
//!
//! ```text
//! y = op(a) op(b) [+ bias]            op(x) = x or its transpose
//!   (M, K) (K, N)       -> (M, N)
//!   (..., K) (K, N)     -> (..., N)   b shared by all leading dimensions (a linear layer)
//!   (B, M, K) (B, K, N) -> (B, M, N)
//! dL/da = dy op(b)^T,  dL/db = op(a)^T dy,  dL/dbias = sum of the rows of dy
//! ```
//! The CPU uses the crate `gemm-f32` (`cpu.rs`), the GPU `shaders/matmul*.wgsl` (`plan.rs`). `tiles.rs` has the tile
//! configurations and the performance model, `select.rs` the choice of tile and split-K, `autotune.rs` the measurements
//! (timed by `timing.rs`), `tuned.rs` the resulting speedups.

mod autotune;
mod cpu;
pub(super) mod matvec;
mod plan;
mod select;
mod tiles;
mod timing;
mod tuned;

pub use autotune::{Effort, MatmulTuning, Throughput};

pub(super) use plan::split_k_reduce;
use select::TileConfig;
pub(super) use tiles::H200;
pub use tuned::{GemmCase, TunedGemm, compare_tiles};

use super::reduce::SumRows;
use super::*;
use crate::cpu::with_scratch;
use crate::gpu::{Limits, Plan};
use crate::tensor::{Edge, Grads, no_grad, run};

/// Fused computation on the result before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Epilogue {
    #[default]
    None,
    /// The first output is GELU's derivative at y, for backward, and the second gelu(y).
    Gelu,
    /// y is multiplied elementwise by one more input of its shape.
    Multiply,
}

impl Epilogue {
    /// Its name in the shaders.
    fn name(self) -> &'static str {
        match self {
            Epilogue::None => "",
            Epilogue::Gelu => "gelu",
            Epilogue::Multiply => "multiply",
        }
    }
}

/// `y = op(a) op(b) [+ bias]`, or `y += op(a) op(b)` with `accumulate`, then the epilogue. Inputs: a, b, a vector (N)
/// with `bias`, and the epilogue's operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct MatMul {
    pub trans_a: bool,
    pub trans_b: bool,
    pub bias: bool,
    pub accumulate: bool,
    pub epilogue: Epilogue,
    /// Whether a second output (N) gets the column sums of b (added with `accumulate`). In the GEMM of a weight
    /// gradient they are the bias gradient, so dy is not read again. Only for a (K, M) and b (K, N).
    pub sums: bool,
    /// Type of the result. The operands are both f32 or both f16, or b is quantized; accumulation is in f32.
    pub out: DType,
}

/// The sizes of a (batched) GEMM, and the elements between the matrices of a batch; 0 broadcasts one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Dims {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    stride_a: usize,
    stride_b: usize,
}

impl MatMul {
    fn dims(&self, a: &Shape, b: &Shape) -> Option<Dims> {
        let (k_b, n) = match (&b[..], self.trans_b) {
            ([.., k, n], false) | ([.., n, k], true) => (*k, *n),
            _ => return None,
        };
        let (batch, m, k, stride_a, stride_b) = match (&a[..], &b[..], self.trans_a) {
            (&[k, m], [_, _], true) => (1, m, k, 0, 0),
            (&[batch, k, m], [_, _], true) => (batch, m, k, k * m, 0),
            (&[.., k], [_, _], false) if a.len() >= 2 => (1, a.rows(), k, 0, 0),
            // Only backward uses a shared a: `Tensor::matmul` refuses it.
            (&[k, m], &[batch, ..], true) => (batch, m, k, 0, k_b * n),
            (&[m, k], &[batch, ..], false) => (batch, m, k, 0, k_b * n),
            (&[batch, k, m], &[batch_b, ..], true) if batch == batch_b => (batch, m, k, k * m, k_b * n),
            (&[batch, m, k], &[batch_b, ..], false) if batch == batch_b => (batch, m, k, m * k, k_b * n),
            _ => return None,
        };
        (k == k_b).then_some(Dims { batch, m, n, k, stride_a, stride_b })
    }

    fn checked_dims(&self, inputs: &[&Spec]) -> Dims {
        self.dims(&inputs[0].shape, &inputs[1].shape).expect("output_specs checked the shapes")
    }
}

impl Kernel for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let is_quantized = inputs[1].dtype.is_quantized();
        if !is_quantized {
            expect_dtype("matmul", inputs[0].dtype, &inputs[1..2])?;
        }
        if !matches!(inputs[0].dtype, DType::F32 | DType::F16) {
            expect_f32("matmul", inputs)?;
        }
        if is_quantized && (inputs[1].shape.len() != 2 || self.trans_a || self.sums) {
            return Err(shape_error("matmul", "a quantized matrix (N, K) on the right", inputs[1]));
        }
        let (a, b) = (&inputs[0].shape, &inputs[1].shape);
        let Some(Dims { m, n, .. }) = self.dims(a, b) else {
            let t = |transposed| if transposed { "^T" } else { "" };
            return Err(shape_error(
                "matmul",
                "shapes (..., M, K) and (K, N), or two batches of equal length",
                format!("{a}{} and {b}{}", t(self.trans_a), t(self.trans_b)),
            ));
        };
        if self.bias {
            expect_f32("matmul", &inputs[2..3])?;
            if inputs[2].shape[..] != [n] {
                return Err(shape_error("matmul", format!("a bias of shape ({n})"), &inputs[2].shape));
            }
        }
        let shape = match (&a[..], &b[..], self.trans_a) {
            (_, &[batch, _, _], _) | (&[batch, _, _], _, true) => Shape::from([batch, m, n]),
            (_, _, true) => Shape::from([m, n]),
            _ => a.with_last_dim(n),
        };
        let outputs = if self.epilogue == Epilogue::Gelu { 2 } else { 1 };
        let sums = self.sums.then(|| Spec::new([n], DType::F32));
        Ok(vec![Spec::new(shape, self.out); outputs].into_iter().chain(sums).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let Dims { batch, m, n, k, .. } = self.checked_dims(inputs);
        streaming_cost(2 * batch * m * n * k, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let d = self.checked_dims(&inputs.iter().map(|v| v.spec).collect::<Vec<_>>());
        let (y, more) = outputs.split_first_mut().expect("a result");
        let (activated, sums) = more.split_at_mut((self.epilogue == Epilogue::Gelu) as usize);
        if self.sums {
            SumRows { accumulate: self.accumulate, len: d.n, outputs: 1 }.cpu(&inputs[1..2], sums);
        }
        let empty: &[f32] = &[];
        let bias = if self.bias { inputs[2].f32() } else { empty };
        let factors = if self.epilogue == Epilogue::Multiply { inputs[2 + self.bias as usize].f32() } else { empty };
        let activated = activated.first_mut().map_or(&mut [][..], |output| output.f32());
        let a = inputs[0].f32();
        if !inputs[1].spec.dtype.is_quantized() {
            return cpu::compute(self, &d, cpu::Operands { a, b: inputs[1].f32(), bias, factors }, y.f32(), activated);
        }
        if self.trans_b && matvec::is_for(self, &d) && self.epilogue == Epilogue::None {
            return quantized::few_rows(&inputs[1], a, bias, self.accumulate, y.f32());
        }
        with_scratch(d.n * d.k, |b| {
            quantized::decode_rows(&inputs[1], 0, b);
            cpu::compute(self, &d, cpu::Operands { a, b, bias, factors }, y.f32(), activated);
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        let d = self.checked_dims(inputs);
        let (dtype, b) = (inputs[0].dtype, inputs[1]);
        let is_quantized = b.dtype.is_quantized();
        if matvec::is_for(self, &d) && (self.trans_b || !is_quantized) {
            return matvec::plan(self, &d, dtype, b.dtype);
        }
        let config = TileConfig::cached(self, &d, dtype, limits);
        match is_quantized {
            true => self.plan_quantized(&d, b, dtype, config, limits),
            false => self.plan(&d, dtype, config, limits),
        }
    }
}

impl Op for MatMul {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1], outputs: &[] }
    }

    /// Activations that a frozen weight was multiplied with are not needed.
    fn saves_for(&self, wanted: &dyn Fn(usize) -> bool) -> Saves {
        if wanted(1) { self.saves() } else { Saves { inputs: &[1], outputs: &[] } }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let product =
            |out, trans_a, trans_b| move |accumulate| MatMul { trans_a, trans_b, accumulate, out, ..MatMul::default() };
        if grads.needs_grad(0) {
            // da = dy op(b)^T, itself transposed if a is stored so. Both operands are of one type.
            let b = saved.input(1)?;
            let out = grads.dtype(0, dy);
            if self.trans_a {
                grads.accumulate_with(0, &[b, dy], product(out, self.trans_b, true))?;
            } else {
                grads.accumulate_with(0, &[dy, b], product(out, false, !self.trans_b))?;
            }
        }
        if self.bias {
            // `linear` alone has a bias, and transposes no x.
            if !self.trans_b && grads.needs_grad(1) {
                let a = saved.input(0)?;
                return linear_gradients(grads, [1, 2], &a.as_rows(), &dy.as_rows(), grads.dtype(1, a));
            }
            let len = dy.shape().last_dim();
            grads.accumulate_with(2, &[dy], |accumulate| SumRows { accumulate, len, outputs: 1 })?;
        }
        if !grads.needs_grad(1) {
            return Ok(());
        }
        let (a, b) = (saved.input(0)?, saved.input(1)?);
        let out = grads.dtype(1, b);
        // db = op(a)^T dy, itself transposed if b is stored so. A shared b sums over the whole batch: as one long
        // GEMM where the rows of a follow each other, else matrix by matrix.
        let shared = b.shape().len() == 2 && a.shape().len() > 2;
        let (flat_a, flat_dy);
        let (a, dy) = if shared && !self.trans_a {
            (flat_a, flat_dy) = (a.as_rows(), dy.as_rows());
            (&flat_a, &flat_dy)
        } else {
            (a, dy)
        };
        let (left, right, kernel) = if self.trans_b {
            (dy, a, product(out, true, self.trans_a))
        } else {
            (a, dy, product(out, !self.trans_a, false))
        };
        if shared && self.trans_a {
            let per_batch = grads.run_one(&kernel(false), &[left, right])?;
            return grads.accumulate(1, per_batch.sum(0)?);
        }
        grads.accumulate_with(1, &[left, right], kernel)
    }
}

/// Computes the gradients of inputs number `weight` (K, N) and `bias` (N) from x (R, K) and dy (R, N), in one GEMM if
/// both are wanted. That of the weight is of type `out`.
pub(super) fn linear_gradients(
    grads: &mut Grads,
    [weight, bias]: [usize; 2],
    x: &Tensor,
    dy: &Tensor,
    out: DType,
) -> Result<()> {
    let product = |accumulate| MatMul { trans_a: true, accumulate, out, ..MatMul::default() };
    // An empty weight has no tile that could sum the columns of dy.
    let empty = x.shape().last_dim() == 0;
    if grads.needs_grad(weight) && grads.needs_grad(bias) && !empty {
        return grads
            .accumulate_all_with(&[weight, bias], &[x, dy], |accumulate| MatMul { sums: true, ..product(accumulate) });
    }
    let len = dy.shape().last_dim();
    grads.accumulate_with(bias, &[dy], |accumulate| SumRows { accumulate, len, outputs: 1 })?;
    grads.accumulate_with(weight, &[x, dy], product)
}

impl Tensor {
    /// This tensor as a matrix (R, C) of its rows, without history.
    pub(super) fn as_rows(&self) -> Tensor {
        self.view([self.shape().rows(), self.shape().last_dim()].into(), Edge::None)
    }

    /// The matrix product `self other`: (..., M, K) (K, N) -> (..., M, N), or (B, M, K) (B, K, N) -> (B, M, N).
    ///
    /// # Errors
    /// If the shapes do not fit or the tensors are not both f32 or both f16.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        self.matmul_transposed(other, false, false)
    }

    /// The matrix product of `self` and `other`, with the last two dimensions of each optionally transposed.
    ///
    /// # Errors
    /// If the shapes do not fit or the tensors are not both f32 or both f16.
    pub fn matmul_transposed(&self, other: &Tensor, trans_a: bool, trans_b: bool) -> Result<Tensor> {
        let (a, b) = (self.shape(), other.shape());
        if b.len() > 2 && a.len() != b.len() {
            return Err(shape_error("matmul", "a batch on the left too", format!("{a} and {b}")));
        }
        apply_one(MatMul { trans_a, trans_b, out: self.dtype(), ..MatMul::default() }, &[self, other])
    }

    /// `self weight^T [+ bias]` as f32: (..., K) and (N, K), both f32 or both f16, and an f32 bias (N) -> (..., N). For
    /// inference: nothing is recorded on the tape.
    ///
    /// # Errors
    /// If the shapes do not fit or the tensors are not both f32 or both f16.
    pub fn linear_to_f32(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if weight.shape().len() != 2 {
            return Err(shape_error("linear_to_f32", "a weight of two dimensions", weight.shape()));
        }
        if weight.is_in_parts() {
            let of_rows = |weight: &Tensor, bias: Option<&Tensor>| self.linear_to_f32(weight, bias);
            return no_grad(|| self.linear_by_parts("linear_to_f32", weight, bias, &of_rows));
        }
        let op = MatMul { trans_b: true, bias: bias.is_some(), ..MatMul::default() };
        let inputs: Vec<&Tensor> = [self, weight].into_iter().chain(bias).collect();
        Ok(run(&op, &inputs)?.remove(0))
    }

    /// What `of_rows` gives for the rows in each buffer of a weight (N, K) and their part of the bias, side by side.
    fn linear_by_parts(
        &self,
        op: &'static str,
        weight: &Tensor,
        bias: Option<&Tensor>,
        of_rows: &dyn Fn(&Tensor, Option<&Tensor>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        weight.expect_leaf(op)?;
        let outputs = weight.shape()[0];
        if let Some(bias) = bias.filter(|bias| bias.shape()[..] != [outputs]) {
            return Err(shape_error(op, format!("a bias of shape ({outputs})"), bias.shape()));
        }
        let columns = weight.row_parts().into_iter().map(|(rows, weight)| {
            let bias = bias.map(|bias| bias.narrow(0, rows.start, rows.len())).transpose()?;
            of_rows(&weight, bias.as_ref())
        });
        let columns = columns.collect::<Result<Vec<Tensor>>>()?;
        Tensor::cat(&columns.iter().collect::<Vec<_>>(), self.shape().len() - 1)
    }

    /// `self weight + bias`: (..., K) -> (..., N) with a weight (K, N), the layout of GPT-2's `Conv1D`; or, with
    /// `outputs_first`, `self weight^T + bias` with a weight (N, K), the layout of `torch.nn.Linear`. The bias is (N).
    ///
    /// # Errors
    /// If the shapes do not fit, `self` and `weight` are not both f32 or both f16, or the bias is not f32.
    pub fn linear(&self, weight: &Tensor, outputs_first: bool, bias: Option<&Tensor>) -> Result<Tensor> {
        if weight.shape().len() != 2 {
            return Err(shape_error("linear", "a weight of two dimensions", weight.shape()));
        }
        if outputs_first && weight.is_in_parts() {
            return self.linear_by_parts("linear", weight, bias, &|weight, bias| self.linear(weight, true, bias));
        }
        let op = MatMul { trans_b: outputs_first, bias: bias.is_some(), out: self.dtype(), ..MatMul::default() };
        let inputs: Vec<&Tensor> = [self, weight].into_iter().chain(bias).collect();
        apply_one(op, &inputs)
    }
}

#[cfg(test)]
mod select_tests;
#[cfg(test)]
mod tests;
