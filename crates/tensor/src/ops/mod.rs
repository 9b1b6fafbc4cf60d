//! Every operation on tensors, one file each (or one small family), with its formula, shapes, CPU and GPU kernel and
//! derivative. The GPU code is in `shaders/`, in the files that an op's `shader!` names.
//!
//! An op is a type that implements [`Kernel`] and, if it can be differentiated, [`Op`]; a method of [`Tensor`] applies
//! it. A row in `cases` gives it gradient checks and a comparison of CPU and GPU, one in `src/bench/table/` a
//! benchmark.

mod attention;
mod axes;
mod batch_norm;
mod binary;
mod broadcast;
mod cast;
mod compare;
mod conv;
mod cross_entropy;
#[cfg(test)]
mod cut_matrices_tests;
mod dims;
mod dropout;
mod embedding;
mod feed_forward;
mod gather;
mod layer_norm;
mod linear_cross_entropy;
mod losses;
mod low_rank;
mod matmul;
mod movement;
mod norm_linear;
mod pool;
mod quantized;
pub mod random;
mod recurrent;
mod reduce;
mod reshape;
mod rope;
pub mod sample;
mod softmax;
mod swiglu;
mod triangular;
mod unary;

#[cfg(feature = "cases")]
pub mod cases;
pub mod inputs;

#[cfg(test)]
mod accumulation;
#[cfg(test)]
mod boundary;
pub(crate) use attention::MAX_HEAD_SIZE;
pub use attention::{AttentionMask, AttentionOptions, Heads};
pub use binary::METHODS as BINARY;
pub use compare::COMPARISONS;
pub use conv::ConvOptions;
pub use cross_entropy::{Criterion, IGNORED};
pub use dims::{Dim, Dims};
pub use embedding::add_rows;
pub use losses::METHODS as LOSSES;
pub use losses::Reduction;
pub(crate) use matmul::MatMul;
pub use matmul::{Effort, GemmCase, MatmulTuning, Throughput, TunedGemm, compare_tiles};
pub(crate) use norm_linear::LinearRef;
pub use norm_linear::NormRef;
pub use pool::PoolOptions;
pub use recurrent::RecurrentRef;
pub use reduce::METHODS as REDUCTIONS;
pub use unary::METHODS as UNARY;

use crate::cpu::CHUNK;
use crate::gpu::Launch;
use crate::profile::Cost;
use crate::tensor::{DType, Kernel, Op, Saved, Saves, Shape, Spec, Tensor, View, ViewMut};
use crate::{Error, Result};

/// The one output of an op that has one.
fn apply_one(op: impl Kernel + Op + 'static, inputs: &[&Tensor]) -> Result<Tensor> {
    Ok(crate::tensor::apply(op, inputs)?.remove(0))
}

/// A shape error of `op`.
fn shape_error(op: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
    Error::Shape { op, expected: expected.into(), got: got.to_string() }
}

/// Fails unless every spec is f32.
fn expect_f32(op: &'static str, specs: &[&Spec]) -> Result<()> {
    expect_dtype(op, DType::F32, specs)
}

/// Fails unless every spec has this type.
fn expect_dtype(op: &'static str, expected: DType, specs: &[&Spec]) -> Result<()> {
    match specs.iter().find(|s| s.dtype != expected) {
        Some(s) => Err(Error::DType { op, expected: expected.name(), got: s.dtype.name() }),
        None => Ok(()),
    }
}

/// Fails unless all specs are f32, or all f16.
fn expect_float(op: &'static str, specs: &[&Spec]) -> Result<()> {
    match specs.first() {
        Some(first) if first.dtype == DType::F16 => expect_dtype(op, DType::F16, specs),
        _ => expect_f32(op, specs),
    }
}

/// What `op` makes of x, computed in f32 if that is f16; what it makes is then f16 too, unless it is u32.
fn in_f32(x: &Tensor, op: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if x.dtype() != DType::F16 {
        return op(x);
    }
    let y = op(&x.to_dtype(DType::F32)?)?;
    if y.dtype() == DType::U32 { Ok(y) } else { y.to_dtype(DType::F16) }
}

/// The cost of a kernel that reads its inputs once, writes its outputs once, and does `flops` operations.
fn streaming_cost(flops: usize, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
    let bytes: usize = inputs.iter().chain(outputs).map(|s| s.size_bytes()).sum();
    Cost { flops: flops as f64, bytes: bytes as f64 }
}
