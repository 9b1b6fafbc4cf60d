//! GEMMs with some rows of a large classifier at a time: with one in several buffers, as those hold them; with a
//! quantized one, so that the values of all are never in memory. Those of Llama 3's, 128,256 x 4,096, would take 1 GiB
//! in f16.

use super::super::cast::Cast;
use super::super::matmul::MatMul;
use super::super::quantized::Dequantize;
use super::{WHOLE_TILES, is_read_in_chunks};
use crate::profile::MemoryKind;
use crate::tensor::{Spec, no_grad, run_as, run_into};
use crate::{DType, Result, Tensor};
use std::ops::Range;

/// Values that may be in memory at once.
const MOST_BYTES: usize = 512 << 20;
/// Values of a slice of a larger weight, and logits of a chunk, which are in memory twice. Every chunk reads the weight
/// twice: chunks are many enough to be small beside the weight, and few enough for that to take a few hundredths of a
/// step.
const SLICE_BYTES: usize = 128 << 20;
const CHUNKS: usize = 4;

/// How many rows of a weight (V, C) make a slice, unless GEMMs take all.
pub(super) fn rows(weight: &Tensor, dtype: DType, has_bias: bool) -> Option<usize> {
    if weight.is_in_parts() {
        return Some(weight.row_parts()[0].0.len());
    }
    let row_bytes = dtype.size_bytes() * weight.shape().last_dim();
    let is_sliced = weight.dtype().is_quantized() && is_read_in_chunks(weight) && !has_bias;
    (is_sliced && weight.shape()[0] * row_bytes > MOST_BYTES).then(|| whole_tiles(SLICE_BYTES / row_bytes))
}

/// How many of `rows` rows of logits make a chunk.
pub(super) fn chunk_rows(rows: usize, vocab: usize, dtype: DType) -> usize {
    whole_tiles(SLICE_BYTES / (dtype.size_bytes() * vocab)).min(whole_tiles(rows / CHUNKS))
}

/// The whole tiles among so many rows, at least one.
fn whole_tiles(rows: usize) -> usize {
    (rows / WHOLE_TILES * WHOLE_TILES).max(WHOLE_TILES)
}

fn slices(weight: &Tensor, slice: usize) -> impl Iterator<Item = Range<usize>> {
    let vocab = weight.shape()[0];
    (0..vocab).step_by(slice).map(move |start| start..vocab.min(start + slice))
}

fn values(weight: &Tensor, rows: Range<usize>, to: DType) -> Result<Tensor> {
    if !weight.dtype().is_quantized() {
        return Ok(weight.rows(rows.start, rows.len()));
    }
    Ok(run_as(MemoryKind::Scratch, &Dequantize { to, rows }, &[weight])?.remove(0))
}

/// h weight^T [+ bias]: h (R, C), weight (V, C), bias (V) -> (R, V).
pub(super) fn logits(h: &Tensor, weight: &Tensor, bias: Option<&Tensor>, slice: usize) -> Result<Tensor> {
    let product = MatMul { trans_b: true, bias: bias.is_some(), out: h.dtype(), ..MatMul::default() };
    let part = |rows: Range<usize>| {
        let bias = bias.map(|bias| bias.rows(rows.start, rows.len()));
        let weight = values(weight, rows, h.dtype())?;
        let inputs: Vec<&Tensor> = [h, &weight].into_iter().chain(&bias).collect();
        Ok(run_as(MemoryKind::Scratch, &product, &inputs)?.remove(0))
    };
    let parts = slices(weight, slice).map(part).collect::<Result<Vec<Tensor>>>()?;
    no_grad(|| Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1))
}

/// dh = dx weight: dx (R, V), weight (V, C) -> (R, C), a sum in f32.
pub(super) fn gradient(dx: &Tensor, weight: &Tensor, slice: usize, dh: &Tensor) -> Result<()> {
    let sum = match dh.dtype() {
        DType::F32 => dh.clone(),
        _ => Tensor::empty(Spec::new(dh.shape().clone(), DType::F32), &dh.device(), MemoryKind::Scratch)?,
    };
    for rows in slices(weight, slice) {
        let dx = no_grad(|| dx.narrow(1, rows.start, rows.len()))?;
        let product = MatMul { accumulate: rows.start > 0, out: DType::F32, ..MatMul::default() };
        run_into(&product, &[&dx, &values(weight, rows, dx.dtype())?], &[&sum])?;
    }
    match dh.dtype() {
        DType::F32 => Ok(()),
        to => run_into(&Cast { from: DType::F32, to }, &[&sum], &[dh]),
    }
}
