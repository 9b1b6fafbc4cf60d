//! Lookups along a dimension by index, and scattered sums. Shapes: x (outer, V, inner), and
//!
//! | op | index | y | derivative |
//! |---|---|---|---|
//! | gather | (outer, n, inner) | y[o, j, i] = x[o, index[o, j, i], i] | dx: scatter_add of dy |
//! | index_select | (n) | y[o, j, i] = x[o, index[j], i] | dx: sums of rows of dy |
//! | scatter_add | (outer, n, inner) | y = x; y[o, index[o, j, i], i] += source[o, j, i] | dx = dy; dsource: gather |
//!
//! All are table lookups of single elements or of rows of `inner`. [`RowNumbers`] computes the row ids;
//! [`Tensor::embedding`] does the rest, with its sorted, deterministic gradient. An index that is not below V therefore
//! returns NaN, adds nothing, and gets no gradient.

use super::embedding::EmbeddingBackward;
use super::*;
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::{Grads, run};
use rayon::prelude::*;

/// Rows of fewer elements are selected from a transposed tensor, where they are long: the gradient of a table has a
/// workgroup for each of its rows, and took 1.5 s for columns of 16,384 x 768 on an H200.
const SHORT_ROW: usize = 64;

/// The number of each row that an index asks for, `u32::MAX` where there is none: (o V + index) inner + i for the
/// elements (o, j, i) of (outer, n, inner), along which the index repeats.
struct RowNumbers {
    name: &'static str,
    outer: usize,
    n: usize,
    inner: usize,
    /// V.
    rows: usize,
}

impl RowNumbers {
    /// That of element `at`.
    #[inline(always)]
    fn number(&self, at: usize, index: u32) -> u32 {
        match (index as usize) < self.rows {
            true => ((at / (self.n * self.inner) * self.rows + index as usize) * self.inner + at % self.inner) as u32,
            false => u32::MAX,
        }
    }
}

impl Kernel for RowNumbers {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_dtype(self.name, DType::U32, inputs)?;
        let table = Shape::from([self.outer, self.rows, self.inner]);
        if table.elements() >= u32::MAX as usize {
            return Err(shape_error(self.name, "less than 2^32 - 1 elements", table));
        }
        Ok(vec![Spec::new([self.outer * self.n * self.inner], DType::U32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(0, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let index = inputs[0].u32();
        outputs[0].u32().par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, numbers)| {
            for (at, number) in (chunk * CHUNK..).zip(numbers) {
                *number = self.number(at, index[at % index.len()]);
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let len = outputs[0].shape.elements();
        Plan::one(Launch {
            shader: shader!(gather),
            values: vec![],
            buffers: vec![buffer("index", "u32", Operand::Input(0)), buffer("numbers", "u32", Operand::Output(0))],
            params: vec![
                param("len", len),
                param("len_index", inputs[0].shape.elements()),
                param("block", self.n * self.inner),
                param("inner", self.inner),
                param("rows", self.rows),
            ],
            workgroups: len.div_ceil(256),
        })
    }
}

/// The sums of sources by the numbers of their rows. Inputs: source, numbers.
struct ScatterAdd {
    /// That of the sums.
    shape: Shape,
}

impl ScatterAdd {
    fn kernel(&self) -> EmbeddingBackward {
        EmbeddingBackward { vocabulary: self.shape.elements(), c: 1, first: 0, accumulate: false }
    }
}

impl Kernel for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), &inputs[..1])?;
        Ok(vec![Spec::new(self.shape.clone(), DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        self.kernel().cost(inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        self.kernel().cpu(inputs, outputs);
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], limits: &Limits) -> Plan {
        self.kernel().gpu(inputs, outputs, limits)
    }
}

impl Op for ScatterAdd {
    fn saves(&self) -> Saves {
        Saves { inputs: &[1], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, dy.reshape([dy.len(), 1])?.embedding(saved.input(1)?)?)
    }
}

impl Tensor {
    /// The shape of the part of this tensor that an index reaches: as long in every dimension but `dim`.
    fn reached_by(&self, op: &'static str, dim: usize, index: &Tensor) -> Result<Shape> {
        let (shape, index) = (self.shape(), index.shape());
        let reached = |i: usize| if i == dim { shape[i] } else { index[i] };
        if index.len() != shape.len() || (0..shape.len()).any(|i| reached(i) > shape[i]) {
            return Err(shape_error(op, format!("an index of at most {shape} but in dimension {dim}"), index));
        }
        Ok((0..shape.len()).map(reached).collect::<Vec<_>>().into())
    }

    /// `torch.gather`: the elements of dimension `dim` at `index` (u32). The index has the same rank, and may be
    /// shorter in other dimensions. The result is NaN where the index is out of range.
    ///
    /// # Errors
    /// If the shapes do not fit, this tensor is neither f32 nor f16, or the index is not u32.
    pub fn gather(&self, dim: impl Into<Dim>, index: &Tensor) -> Result<Tensor> {
        let dim = dim.into();
        if self.dtype() == DType::F16 {
            return in_f32(self, |x| x.gather(dim, index));
        }
        expect_f32("gather", &[self.spec()])?;
        let dim = dim.number("gather", self.shape())?;
        let reached = self.reached_by("gather", dim, index)?;
        let longer = (0..reached.len()).filter(|&i| reached[i] < self.shape()[i]);
        let x = longer.into_iter().try_fold(self.clone(), |x, i| x.narrow(i, 0, reached[i]))?;
        let numbers = run(&element_numbers("gather", dim, &reached, index.shape()), &[index])?.remove(0);
        x.reshape([x.len(), 1])?.embedding(&numbers)?.reshape(index.shape().clone())
    }

    /// `torch.index_select`: the slices of dimension `dim` at `index` (n, u32): (B, T, C).index_select(1, index) is (B,
    /// n, C). The result is NaN where the index is out of range.
    ///
    /// # Errors
    /// If there is no such dimension, the index is not one-dimensional u32, or this tensor is neither f32 nor f16.
    pub fn index_select(&self, dim: impl Into<Dim>, index: &Tensor) -> Result<Tensor> {
        let dim = dim.into();
        if self.dtype() == DType::F16 {
            return in_f32(self, |x| x.index_select(dim, index));
        }
        expect_f32("index_select", &[self.spec()])?;
        expect_dtype("index_select", DType::U32, &[index.spec()])?;
        let shape = self.shape();
        let dim = dim.number("index_select", shape)?;
        let [n] = &index.shape()[..] else { return Err(shape_error("index_select", "an index (n)", index.shape())) };
        let (outer, inner): (usize, usize) = (shape[..dim].iter().product(), shape[dim + 1..].iter().product());
        let selected = [&shape[..dim], &[*n], &shape[dim + 1..]].concat();
        if outer > 1 && inner < SHORT_ROW {
            let first = |x: &Tensor| x.permute(&[1, 0, 2]);
            let table = first(&self.reshape([outer, shape[dim], inner])?)?.reshape([shape[dim], outer * inner])?;
            return first(&table.embedding(index)?.reshape([*n, outer, inner])?)?.reshape(selected);
        }
        let numbers = RowNumbers { name: "index_select", outer, n: *n, inner: 1, rows: shape[dim] };
        let numbers = run(&numbers, &[index])?.remove(0);
        self.reshape([outer * shape[dim], inner])?.embedding(&numbers)?.reshape(selected)
    }

    /// `torch.scatter_add`: adds each element of `source` at the position of dimension `dim` given by `index` (u32).
    /// Index and source have one shape, of this tensor's rank, and at most its length in dimensions other than `dim`.
    /// Elements with an index out of range are not added.
    ///
    /// # Errors
    /// If the shapes do not fit, a tensor is not f32 or the index not u32.
    pub fn scatter_add(&self, dim: impl Into<Dim>, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        expect_f32("scatter_add", &[self.spec(), source.spec()])?;
        let dim = dim.into().number("scatter_add", self.shape())?;
        if index.shape() != source.shape() {
            return Err(shape_error("scatter_add", format!("a source {}", index.shape()), source.shape()));
        }
        let shape = self.reached_by("scatter_add", dim, index)?;
        let numbers = run(&element_numbers("scatter_add", dim, &shape, index.shape()), &[index])?.remove(0);
        let border: Vec<(usize, usize)> =
            self.shape().iter().zip(shape.iter()).map(|(own, its)| (0, own - its)).collect();
        let sums = apply_one(ScatterAdd { shape }, &[source, &numbers])?;
        let sums = if sums.shape() == self.shape() { sums } else { sums.pad(&border, 0.0)? };
        self.add(&sums)
    }
}

/// Those of single elements of x.
fn element_numbers(name: &'static str, dim: usize, x: &Shape, index: &Shape) -> RowNumbers {
    let outer = x[..dim].iter().product();
    let inner = x[dim + 1..].iter().product();
    RowNumbers { name, outer, n: index[dim], inner, rows: x[dim] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn what_is_not_below_the_length_is_nan_and_adds_nothing() {
        for device in Device::for_tests() {
            let x = Tensor::from_f32(&[1.0, 2.0, 3.0, 4.0], [2, 2], &device).unwrap().requires_grad().unwrap();
            let index = Tensor::from_u32(&[1, 2, u32::MAX, 0], [2, 2], &device).unwrap();
            let ones = Tensor::full(1.0, [2, 2], &device).unwrap();
            let y = x.gather(1, &index).unwrap();
            y.backward_with(&ones).unwrap();
            let y = y.to_f32().unwrap();
            assert!(y[0] == 2.0 && y[1].is_nan() && y[2].is_nan() && y[3] == 3.0, "{device}: {y:?}");
            assert_eq!(x.grad().unwrap().to_f32().unwrap(), [0.0, 1.0, 1.0, 0.0], "{device}");
            let y = x.scatter_add(0, &index, &ones).unwrap().to_f32().unwrap();
            assert_eq!(y, [1.0, 3.0, 4.0, 4.0], "{device}");
            let rows = x.index_select(0, &Tensor::from_u32(&[1, 2], [2], &device).unwrap()).unwrap();
            let rows = rows.to_f32().unwrap();
            assert!(rows[..2] == [3.0, 4.0] && rows[2].is_nan() && rows[3].is_nan(), "{device}: {rows:?}");
        }
    }
}
