//! LoRA adapters (Hu et al. 2021): the weight W of a linear layer is frozen, and two low-rank matrices beside it are
//! trained. In DoRA (Liu et al. 2024) the length m of every row of the sum is trained too:
//!
//! ```text
//! LoRA   y = W x + s B A x
//! DoRA   y = g (W x + s B A x)    g = m / |W + s B A|    by rows; m starts as |W|
//! ```
//! As in PEFT, the norm |W + s B A| is constant in backward.

use super::{Dropout, Parameter};
use crate::cpu::CHUNK;
use crate::ops::random::Key;
use crate::profile::MemoryKind;
use crate::tensor::{Spec, no_grad, weights_device};
use crate::{DType, Device, Error, Result, Shape, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// The least |W + s B A|^2 that divides.
const SMALLEST_SQUARE: f32 = 1e-24;

/// Adds `s B A x` to the output of a linear layer, for all of its outputs or some. Each matrix of a fused weight has
/// its own A and B.
#[derive(Clone)]
pub struct LowRank {
    /// (n r, inputs): the A of n matrices, concatenated.
    pub a: Parameter,
    /// (adapted outputs, r): the B of all matrices, concatenated.
    pub b: Parameter,
    /// (outputs, n r): s in the rows of a matrix's outputs and the columns of its A, 0 elsewhere. Not trained.
    pub scales: Parameter,
    /// DoRA's; `None` for LoRA.
    pub magnitudes: Option<Magnitudes>,
    /// Output range of each adapted matrix.
    adapted: Vec<Range<usize>>,
}

/// The trained magnitudes of DoRA.
#[derive(Clone)]
pub struct Magnitudes {
    /// m, (adapted outputs).
    pub trained: Parameter,
    /// |W|^2 by rows, (outputs). Not trained.
    pub squares: Parameter,
}

impl LowRank {
    /// An adapter of this rank for these output ranges, on the CPU. As in PEFT, A is uniform within 1 / sqrt(inputs)
    /// and B is zero, so it initially adds nothing.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(
        inputs: usize,
        outputs: usize,
        adapted: &[Range<usize>],
        rank: usize,
        scale: f32,
        key: Key,
    ) -> Result<LowRank> {
        let columns = adapted.len().saturating_mul(rank);
        let bound = 1.0 / (inputs as f32).sqrt();
        let a = made([columns, inputs], |i| bound * (key.bits(i as u32) as f32 / 2_147_483_648.0 - 1.0))?;
        let b = made([adapted.iter().map(Range::len).sum(), rank], |_| 0.0)?;
        let scale_at = |i: usize| if adapted[i % columns / rank].contains(&(i / columns)) { scale } else { 0.0 };
        let mut scales = Parameter::from(made([outputs, columns], scale_at)?);
        scales.freeze();
        Ok(LowRank { a: a.into(), b: b.into(), scales, magnitudes: None, adapted: adapted.to_vec() })
    }

    /// Trains magnitudes too (DoRA), which start as the norms of the rows of this frozen weight on the CPU: (outputs,
    /// inputs), or (inputs, outputs) without `outputs_first`.
    ///
    /// # Errors
    /// If the shape does not fit, or memory runs out.
    pub fn train_magnitudes(&mut self, weight: &Tensor, outputs_first: bool) -> Result<()> {
        let (outputs, inputs) = (self.scales.shape()[0], self.a.shape().last_dim());
        let expected = if outputs_first { [outputs, inputs] } else { [inputs, outputs] };
        if weight.shape()[..] != expected {
            let (expected, got) = (Shape::from(expected).to_string(), weight.shape().to_string());
            return Err(Error::Shape { op: "train_magnitudes", expected, got });
        }
        let (mut squares, trained): (Parameter, Tensor) = match weights_device() {
            Some(device) => {
                let made = |len: usize| Tensor::empty(Spec::new([len], DType::F32), &device, MemoryKind::Parameters);
                (made(outputs)?.into(), made(self.b.shape()[0])?)
            }
            None => {
                let weight = weight.detach().to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                let squares = weight.mul(&weight)?.sum(if outputs_first { 1 } else { 0 })?;
                let norms = self.of_adapted(&squares)?.sqrt()?;
                (squares.into(), norms)
            }
        };
        squares.freeze();
        self.magnitudes = Some(Magnitudes { trained: trained.into(), squares });
        Ok(())
    }

    /// (outputs, n r): B repeated for every A, so that one GEMM serves all matrices. `scales` is 0 in the blocks of
    /// other matrices.
    pub fn wide_b(&self) -> Result<Tensor> {
        let rank = self.b.shape().last_dim();
        let rows = self.among_all(&self.b, |rows| Tensor::full(0.0, [rows, rank], &self.b.device()))?;
        match self.adapted.len() {
            1 => Ok(rows),
            matrices => Tensor::cat(&vec![&rows; matrices], 1),
        }
    }

    /// (outputs, ..): `own`, (adapted outputs, ..), with `filling` in the rows of the other outputs.
    fn among_all(&self, own: &Tensor, filling: impl Fn(usize) -> Result<Tensor>) -> Result<Tensor> {
        let outputs = self.scales.shape()[0];
        if own.shape()[0] == outputs {
            return Ok(own.clone());
        }
        let (mut parts, mut row, mut from) = (Vec::new(), 0, 0);
        let end = std::iter::once(outputs..outputs);
        for matrix in self.adapted.iter().cloned().chain(end) {
            if row < matrix.start {
                parts.push(filling(matrix.start - row)?);
            }
            if !matrix.is_empty() {
                parts.push(own.narrow(0, from, matrix.len())?);
            }
            (row, from) = (matrix.end, from + matrix.len());
        }
        Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
    }

    /// (adapted outputs): those of (outputs).
    fn of_adapted(&self, all: &Tensor) -> Result<Tensor> {
        let parts = self.adapted.iter().filter(|matrix| !matrix.is_empty());
        let parts = parts.map(|matrix| all.narrow(0, matrix.start, matrix.len())).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
    }

    /// g of DoRA, (outputs) of f32, which multiplies what [`LowRank::add_to`] returns for this weight, without a bias;
    /// `None` for LoRA.
    ///
    /// # Errors
    /// If the weight is not that of the adapter.
    pub(super) fn gain(&self, weight: &Tensor, outputs_first: bool) -> Result<Option<Tensor>> {
        let Some(Magnitudes { trained, squares }) = &self.magnitudes else { return Ok(None) };
        // |W + C A|^2 = |W|^2 + <C, 2 W A^T + C A A^T> by rows, with C = s B: nothing of the size of W is made.
        let norms = no_grad(|| {
            let scaled = self.wide_b()?.mul(&self.scales)?;
            let operand = self.a.operand().to_dtype(weight.operand_dtype())?;
            let product = operand.linear(weight, outputs_first, None)?.to_dtype(DType::F32)?; // (n r, outputs)
            let gram = self.a.matmul_transposed(&self.a, false, true)?;
            let added = product.permute(&[1, 0])?.scale(2.0)?.add(&scaled.matmul(&gram)?)?.mul(&scaled)?.sum(1)?;
            // Rows of zeros have no direction.
            self.of_adapted(&squares.add(&added)?)?.clamp(SMALLEST_SQUARE, f32::MAX)?.sqrt()
        })?;
        let gains = trained.div(&norms)?;
        let one = |outputs| Tensor::full(1.0, [outputs], &trained.device());
        self.among_all(&gains, one).map(Some)
    }

    /// Adds the adapter's output for x (..., inputs) to y (..., outputs). Both have one type.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn add_to(&self, y: Tensor, x: &Tensor, dropout: &Dropout) -> Result<Tensor> {
        let x = dropout.apply_to_adapter(x)?;
        y.add_low_rank(&x, &self.a.operand().to_dtype(x.dtype())?, &self.wide_b()?, &self.scales)
    }
}

/// A matrix on the CPU whose elements are computed from their index.
fn made(shape: [usize; 2], value: impl Fn(usize) -> f32 + Sync) -> Result<Tensor> {
    if let Some(device) = weights_device() {
        return Tensor::empty(Spec::new(shape, DType::F32), &device, MemoryKind::Parameters);
    }
    let tensor = Tensor::empty(Spec::new(shape, DType::F32), &Device::Cpu, MemoryKind::Other)?;
    let mut values = vec![0.0; tensor.len()];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        values.iter_mut().enumerate().for_each(|(i, v)| *v = value(chunk * CHUNK + i));
    });
    tensor.write_bytes(bytemuck::cast_slice(&values))?;
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_first_a_is_uniform_and_nothing_is_added() {
        let outputs = 0..6;
        let low_rank = LowRank::new(400, 6, &[outputs], 100, 2.0, Key::new(5)).unwrap();
        let a = low_rank.a.to_f32().unwrap();
        let square: f64 = a.iter().map(|a| f64::from(a * a)).sum::<f64>() / a.len() as f64;
        // Of a uniform distribution within 1/20, a third of its square; the standard error is 0.5%.
        assert!((square * 1200.0 - 1.0).abs() < 0.02 && a.iter().all(|a| a.abs() <= 0.05), "{square}");
        let x = Tensor::full(1.0, [3, 400], &Device::Cpu).unwrap();
        let y = Tensor::full(7.0, [3, 6], &Device::Cpu).unwrap();
        assert_eq!(low_rank.add_to(y, &x, &Dropout::off()).unwrap().to_f32().unwrap(), [7.0; 18]);
    }

    #[test]
    fn matrices_that_are_stored_as_one_have_columns_of_their_own() {
        // Outputs 0 and 1 by the first column, 3 by the second; 2 is not adapted.
        let low_rank = LowRank::new(1, 4, &[0..2, 3..4], 1, 0.5, Key::new(5)).unwrap();
        assert_eq!(low_rank.scales.to_f32().unwrap(), [0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.5]);
        assert!(low_rank.a.is_trainable() && low_rank.b.is_trainable() && !low_rank.scales.is_trainable());
        low_rank.a.write_bytes(bytemuck::cast_slice(&[1.0f32, 10.0])).unwrap();
        assert_eq!(low_rank.b.len(), 3, "zeros of the wide B are no parameters");
        low_rank.b.write_bytes(bytemuck::cast_slice(&[1.0f32, 1.0, 2.0])).unwrap();
        let (x, y) =
            (Tensor::full(2.0, [1, 1], &Device::Cpu).unwrap(), Tensor::full(0.0, [1, 4], &Device::Cpu).unwrap());
        assert_eq!(low_rank.add_to(y, &x, &Dropout::off()).unwrap().to_f32().unwrap(), [1.0, 1.0, 0.0, 20.0]);
    }
}
