//! Triangular parts of matrices. Shapes: (.., rows, columns) -> (.., rows, columns). The gradient is the same part of
//! dy.

use super::*;
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

#[derive(Clone)]
struct Triangular {
    /// Whether the elements on and above the diagonal stay, or those on and below it.
    upper: bool,
    /// The column in which the diagonal crosses row 0.
    diagonal: i32,
}

impl Triangular {
    /// The columns of a row that stay.
    fn kept(&self, row: usize, columns: usize) -> std::ops::Range<usize> {
        let crossing = row as i64 + i64::from(self.diagonal);
        let before = |column: i64| column.clamp(0, columns as i64) as usize;
        if self.upper { before(crossing)..columns } else { 0..before(crossing + 1) }
    }
}

impl Kernel for Triangular {
    fn name(&self) -> &'static str {
        if self.upper { "triu" } else { "tril" }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        if inputs[0].dtype == DType::U32 {
            expect_f32(self.name(), inputs)?;
        }
        if inputs[0].shape.len() < 2 {
            return Err(shape_error(self.name(), "matrices", inputs[0]));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(0, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [.., rows, columns] = inputs[0].spec.shape[..] else { unreachable!("checked by output_specs") };
        let width = columns.max(1);
        let matrices = outputs[0].f32().par_chunks_mut(width).zip(inputs[0].f32().par_chunks(width));
        matrices.enumerate().for_each(|(i, (y, x))| {
            let kept = self.kept(i % rows, columns);
            y.fill(0.0);
            y[kept.clone()].copy_from_slice(&x[kept]);
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let [.., rows, columns] = inputs[0].shape[..] else { unreachable!("checked by output_specs") };
        let (len, dtype) = (inputs[0].shape.elements(), inputs[0].dtype.name());
        if len == 0 {
            return Plan::default(); // whose dimensions need not fit parameters
        }
        Plan::one(Launch {
            shader: shader!(triangular),
            values: vec![("T", dtype.into()), ("upper", self.upper.into())],
            buffers: vec![buffer("x", dtype, Operand::Input(0)), buffer("result", dtype, Operand::Output(0))],
            params: vec![
                param("len", len),
                param("rows", rows),
                param("columns", columns),
                param("diagonal", self.diagonal as u32),
            ],
            workgroups: len.div_ceil(256),
        })
    }
}

impl Op for Triangular {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, grads.run_one(self, &[dy])?)
    }
}

impl Tensor {
    fn triangular(&self, upper: bool, diagonal: i64) -> Result<Tensor> {
        // No matrix reaches further, and sums with rows stay within 32 bits.
        let diagonal = diagonal.clamp(-(1 << 30), 1 << 30) as i32;
        apply_one(Triangular { upper, diagonal }, &[self])
    }

    /// The lower triangle of matrices (.., rows, columns), with zeros above a diagonal: 0 is the main diagonal, 1 the
    /// one above it.
    ///
    /// # Errors
    /// If there are fewer than two dimensions, or the tensor is u32.
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        self.triangular(false, diagonal)
    }

    /// The upper triangle of matrices (.., rows, columns), with zeros below a diagonal: 0 is the main diagonal, 1 the
    /// one above it.
    ///
    /// # Errors
    /// If there are fewer than two dimensions, or the tensor is u32.
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        self.triangular(true, diagonal)
    }
}
