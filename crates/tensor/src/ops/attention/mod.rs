//! Causal self-attention, all heads at once, without a T x T matrix in memory.
//! Shapes: packed qkv (B, T, P), q | k | v along the last dimension: n_head query heads, n_kv_head key heads and as
//! many value heads of head_size each -> y (B, T, C) of C = n_head head_size.
//!
//! Each n_head / n_kv_head query heads in turn read the same keys and values (grouped-query attention, Ainslie et al.
//! 2023; multi-query attention, Shazeer 2019, with one). A query sees the keys from its first key up to itself: the
//! first is 0, or so that there are no more than `window` of them (Beltagy et al. 2020), or where its document begins,
//! whichever comes last.
//!
//! Per query head, with rows i (queries) and first_i <= j <= i (keys):
//! ```text
//! S = q k^T / sqrt(head_size)    L_i = log sum_j exp(S_ij)    P_ij = exp(S_ij - L_i)    y = (P * Z) v
//! ```
//! where Z is 1, or for dropout 0 with probability p and else 1/(1-p). With D_i = dy_i . y_i:
//! ```text
//! dv = (P * Z)^T dy    dP = Z * (dy v^T)    dS = P * (dP - D) / sqrt(head_size)    dq = dS k    dk = dS^T q
//! ```
//! FlashAttention-2 (Dao 2023): forward walks over tiles of S with running row maxima and sums, keeping only y and L;
//! backward computes the tiles again. dk and dv belong to the workgroup of a block of keys, dq to that of a block of
//! queries, so nothing is added across workgroups and the result is the same every time. For the second not to compute
//! dS once more, the GPU keeps it for a block of queries at a time, as many as make it grow with T and not with T x T.
//!
//! Of f16, and of f32 where GEMMs run as split-fp16, cooperative matrices multiply (`coop.rs`). Generation keeps
//! keys and values (`cached.rs`). With masks, or of a sequence to another, attention is made of matmuls
//! (`dot_product.rs`).

mod cached;
mod coop;
mod cpu;
mod dot_product;
mod heads;
mod masked_softmax;
mod tiling;

pub(super) use cached::copy_kv;
pub use dot_product::{AttentionMask, AttentionOptions};
pub use heads::Heads;

use super::random::{Key, drop_threshold};
use super::*;
use crate::gpu::{Buffer, Limits, Operand, Param, Plan, Value, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use coop::CoopTiling;
use tiling::{Dims, QueryBlock, Tiling};

/// Attention of packed qkv, and if there are `documents` of the first position (B, T), u32, of each token's document. A
/// second output is L (B, n_head, T), which backward needs.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    pub heads: Heads,
    pub documents: bool,
    /// Dropout probability of the elements of P, and the random key.
    pub dropout: Option<(f32, Key)>,
}

/// Largest head size: beyond it, a thread's accumulators would not fit in registers.
pub(crate) const MAX_HEAD_SIZE: usize = 128;

/// Bindings of the forward pass.
const FORWARD: [(&str, Operand); 3] =
    [("qkv", Operand::Input(0)), ("result", Operand::Output(0)), ("lse", Operand::Output(1))];

/// Bindings of the backward passes over keys and over queries.
const BACKWARD: [(&str, Operand); 6] = [
    ("qkv", Operand::Input(0)),
    ("lse", Operand::Input(2)),
    ("dy", Operand::Input(3)),
    ("delta", Operand::ReadScratch(0)),
    ("result", Operand::Output(0)),
    // dS^T of the query block: (B n_head, T, query_rows).
    ("block_ds", Operand::Scratch(1)),
];

/// Buffer types: statistics are f32, dS^T is `ds`, all others are `element`.
fn buffers(operands: &[(&'static str, Operand)], element: &'static str, ds: &'static str) -> Vec<Buffer> {
    let element_of = |name| match name {
        "lse" | "delta" | "scales" => "f32",
        DOCUMENTS => "u32",
        "block_ds" => ds,
        _ => element,
    };
    operands.iter().map(|&(name, operand)| buffer(name, element_of(name), operand)).collect()
}

/// The buffer of document starts.
const DOCUMENTS: &str = "document_starts";

impl Attention {
    fn dims(&self, qkv: &Spec) -> Dims {
        let [batch, time, width] = qkv.shape[..] else { unreachable!("`output_specs` has checked the shape") };
        let Heads { n_head, n_kv_head, .. } = self.heads;
        Dims { batch, time, n_head, n_kv_head, head_size: width / (n_head + 2 * n_kv_head) }
    }

    /// Template values for the mask, shared by all shaders.
    fn values(&self, dims: Dims) -> [(&'static str, Value); 5] {
        [
            ("head_size", dims.head_size.into()),
            ("group", dims.group().into()),
            ("window", self.heads.window.is_some().into()),
            ("documents", self.documents.into()),
            ("dropout", self.dropout.is_some().into()),
        ]
    }

    /// These operands, and with documents their starts, which are input `at`.
    fn with_documents(&self, operands: &[(&'static str, Operand)], at: usize) -> Vec<(&'static str, Operand)> {
        let documents = self.documents.then_some((DOCUMENTS, Operand::Input(at)));
        operands.iter().copied().chain(documents).collect()
    }

    fn scale(dims: Dims) -> f32 {
        1.0 / (dims.head_size as f32).sqrt()
    }

    /// FLOPs of `count` GEMMs over the visible part of S, its lower half or a band of it. Ignores documents, whose
    /// starts are not known here.
    fn flops(&self, qkv: &Spec, count: usize) -> usize {
        let d = self.dims(qkv);
        let window = self.heads.window.unwrap_or(d.time).min(d.time);
        count * d.heads() * window * (2 * d.time - window) * d.head_size
    }

    fn launch(
        &self,
        pass: &'static str,
        dims: Dims,
        dtype: DType,
        tiling: Tiling,
        block: QueryBlock,
        operands: &[(&'static str, Operand)],
    ) -> Launch {
        let shader = match pass {
            "forward" => shader!(attention_forward),
            _ => shader!(attention_backward),
        };
        let mut values: Vec<(&'static str, Value)> = vec![
            ("pass", pass.into()),
            ("T", dtype.name().into()),
            ("vector", (dims.lanes() == 4).into()),
            ("rows", tiling.rows.into()),
            ("cols", tiling.cols.into()),
            ("rows_per_thread", tiling.rows_per_thread.into()),
            ("span", tiling.span.into()),
            ("stage", tiling.stage.into()),
            ("staged", tiling.staged((dims.head_size as u32).div_ceil(4)).into()),
            ("edge", tiling.overhangs(dims).into()),
        ];
        values.extend(self.values(dims));
        let end = dims.time.min(block.begin + block.rows);
        let blocks = match pass {
            "forward" => tiling.blocks(dims.time),
            "keys" => tiling.blocks(end),
            _ => tiling.blocks(end - block.begin),
        };
        let buffers = buffers(operands, dtype.wgsl(dims.lanes()), "vec4<f32>");
        let params = self.params(dims, block);
        Launch { shader, values, buffers, params, workgroups: launched_heads(pass, dims) * blocks }
    }

    fn params(&self, dims: Dims, block: QueryBlock) -> Vec<Param> {
        let (p, key) = self.dropout.unwrap_or((0.0, Key::new(0)));
        vec![
            param("time", dims.time),
            param("n_head", dims.n_head),
            param("n_kv_head", dims.n_kv_head),
            param("batch", dims.batch),
            // Beyond T all keys are within the window: no sum of positions overflows.
            param("window", self.heads.window.unwrap_or(dims.time).min(dims.time)),
            param("scale", Attention::scale(dims)),
            param("key0", key.words[0]),
            param("key1", key.words[1]),
            param("drop_threshold", drop_threshold(p)),
            param("keep_scale", 1.0 / (1.0 - p)),
            // The queries whose dS is in memory: the first, and how many there is room for.
            param("query_begin", block.begin),
            param("query_rows", block.rows),
            // The row of P, among all (B n_head T) of the whole batch, that dropout counts from: above 0 for a slice of
            // it.
            param("mask_row", key.first_position(dims.n_head * dims.time)),
        ]
    }

    fn forward_plan(&self, dims: Dims, dtype: DType, tiling: Tiling) -> Plan {
        let operands = self.with_documents(&FORWARD, 1);
        Plan::one(self.launch("forward", dims, dtype, tiling, QueryBlock::default(), &operands))
    }

    /// D = rowsum(dy * y).
    fn delta(&self, dims: Dims, dtype: DType) -> Launch {
        let operands = [("y", Operand::Input(1)), ("dy", Operand::Input(3)), ("delta", Operand::Scratch(0))];
        let width = dims.head_size / dims.lanes();
        // Two loads of each for each thread of a head of 64.
        let lanes = width.div_ceil(2).next_power_of_two().min(16);
        Launch {
            shader: shader!(attention_delta),
            values: vec![
                ("T", dtype.name().into()),
                ("vector", (dims.lanes() == 4).into()),
                ("width", width.into()),
                ("lanes", lanes.into()),
            ],
            buffers: buffers(&operands, dtype.wgsl(dims.lanes()), "f32"),
            params: self.params(dims, QueryBlock::default()),
            workgroups: (dims.heads() * dims.time).div_ceil(256 / lanes),
        }
    }

    fn backward_tiled(&self, dims: Dims, dtype: DType, tiling: Tiling, limits: &Limits) -> Plan {
        let rows = dims.query_block_rows(tiling.rows as usize, DType::F32.size_bytes(), limits);
        let operands = self.with_documents(&BACKWARD, 4);
        let mut plan = backward_start(dims, self.delta(dims, dtype), rows, DType::F32);
        let launch = |pass, block| self.launch(pass, dims, dtype, tiling, block, &operands);
        plan.launches.extend(query_blocks(dims, rows, launch));
        plan
    }
}

/// D (B, n_head, T), computed by `delta`, and scratch memory for dS^T of a query block (B, n_head, T, rows).
fn backward_start(dims: Dims, delta: Launch, rows: usize, dtype: DType) -> Plan {
    let lines = dims.heads() * dims.time;
    Plan { scratch: vec![4 * lines, dtype.size_bytes() * lines * rows], launches: vec![delta] }
}

/// The passes over keys and over queries, for each block of `rows` queries.
fn query_blocks(dims: Dims, rows: usize, launch: impl Fn(&'static str, QueryBlock) -> Launch) -> Vec<Launch> {
    let blocks = (0..dims.time).step_by(rows).map(|begin| QueryBlock { begin, rows });
    blocks.flat_map(|block| ["keys", "queries"].map(|pass| launch(pass, block))).collect()
}

/// Heads with workgroups in a pass: key/value heads in the pass over keys, else query heads.
fn launched_heads(pass: &str, dims: Dims) -> usize {
    if pass == "keys" { dims.kv_heads() } else { dims.heads() }
}

impl Kernel for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        if inputs[0].dtype == DType::U32 {
            expect_f32(self.name(), inputs)?;
        }
        let Heads { n_head, n_kv_head, window } = self.heads;
        let packed = self.heads.packed().unwrap_or(0);
        if n_kv_head == 0 || !n_head.is_multiple_of(n_kv_head) || window == Some(0) {
            return Err(Error::Invalid(format!(
                "attention: n_head must be a multiple of n_kv_head, and the window at least 1, got {:?}",
                self.heads
            )));
        }
        let (batch, time, head_size) = match inputs[0].shape[..] {
            [batch, time, width]
                if packed > 0 && width.is_multiple_of(packed) && (1..=MAX_HEAD_SIZE).contains(&(width / packed)) =>
            {
                (batch, time, width / packed)
            }
            _ => {
                let heads = format!("({n_head} + 2 * {n_kv_head}) heads");
                let expected = format!("packed (B, T, {heads} * head size of 1 to {MAX_HEAD_SIZE})");
                return Err(shape_error(self.name(), expected, inputs[0]));
            }
        };
        if self.documents {
            expect_dtype(self.name(), DType::U32, &inputs[1..2])?;
            if inputs[1].shape[..] != [batch, time] {
                return Err(shape_error(self.name(), format!("document starts ({batch}, {time})"), inputs[1]));
            }
        }
        Ok(vec![
            Spec::new([batch, time, n_head * head_size], inputs[0].dtype),
            Spec::new([batch, n_head, time], DType::F32),
        ])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Two matmuls of 2 FLOPs per element of the lower half.
        streaming_cost(self.flops(inputs[0], 2), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [y, lse] = outputs else { unreachable!("two outputs") };
        let starts = self.documents.then(|| inputs[1].u32());
        cpu::forward(self, self.dims(inputs[0].spec), inputs[0].f32(), starts, y.f32(), lse.f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        let dims = self.dims(inputs[0]);
        if let Some(tiling) = CoopTiling::choose(dims, inputs[0].dtype, limits) {
            return tiling.forward(self, dims);
        }
        self.forward_plan(dims, inputs[0].dtype, Tiling::choose(dims, limits))
    }
}

impl Op for Attention {
    fn saves(&self) -> Saves {
        Saves { inputs: if self.documents { &[0, 1] } else { &[0] }, outputs: &[0, 1] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let mut inputs = vec![saved.input(0)?, saved.output(0)?, saved.output(1)?, dy];
        inputs.extend(self.documents.then(|| saved.input(1)).transpose()?);
        grads.accumulate(0, grads.run_one(&AttentionBackward(*self), &inputs)?)
    }
}

/// dqkv (B, T, P). Inputs: qkv, y, L, dy, and document starts, if any.
struct AttentionBackward(Attention);

impl Kernel for AttentionBackward {
    fn name(&self) -> &'static str {
        "attention_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(self.0.flops(inputs[0], 5), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [qkv, y, lse, dy] = [0, 1, 2, 3].map(|i| inputs[i].f32());
        let starts = self.0.documents.then(|| inputs[4].u32());
        cpu::backward(&self.0, self.0.dims(inputs[0].spec), [qkv, y, lse, dy], starts, outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        let (op, dims, dtype) = (&self.0, self.0.dims(inputs[0]), inputs[0].dtype);
        match CoopTiling::choose(dims, dtype, limits) {
            Some(tiling) => tiling.backward(op, dims, op.delta(dims, dtype), limits),
            None => op.backward_tiled(dims, dtype, Tiling::choose(dims, limits), limits),
        }
    }
}

impl Tensor {
    /// Causal attention of packed (B, T, P) queries, keys and values (in this order along the last dimension, the heads
    /// of each after one another) -> (B, T, C). `documents` (B, T), u32, has the position in the row where each token's
    /// document starts, nondecreasing along a row; a token attends only to its own document. `dropout` drops attention
    /// probabilities, not outputs.
    ///
    /// # Errors
    /// If the tensor is not (B, T, P), f32 or f16, of heads of 1 to 128 elements, `n_kv_head` does not divide `n_head`,
    /// the window is 0, or the probability of dropout is not in 0..1.
    pub fn causal_attention(
        &self,
        heads: Heads,
        documents: Option<&Tensor>,
        dropout: Option<(f32, Key)>,
    ) -> Result<Tensor> {
        if let Some((p, _)) = dropout
            && !(0.0..1.0).contains(&p)
        {
            return Err(Error::Invalid(format!("attention: the probability of dropout must be in 0..1, got {p}")));
        }
        let inputs: Vec<&Tensor> = [self].into_iter().chain(documents).collect();
        apply_one(Attention { heads, documents: documents.is_some(), dropout }, &inputs)
    }
}

#[cfg(test)]
mod tests;
