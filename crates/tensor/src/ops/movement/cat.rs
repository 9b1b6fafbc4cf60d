//! Concatenation along a dimension. Shapes: (outer, n_i, inner) -> (outer, sum of n_i, inner).

use super::*;
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use rayon::prelude::*;

/// Inputs: the tensors, at least one.
struct Cat {
    name: &'static str,
    dim: usize,
    /// Those of the inputs.
    shapes: Vec<Shape>,
}

impl Cat {
    /// Contiguous elements of each input in the result.
    fn widths(&self) -> Vec<usize> {
        self.shapes.iter().map(|shape| shape[self.dim..].iter().product()).collect()
    }

    /// Copies rows of every input behind each other.
    fn join<T: Copy + Send + Sync>(&self, inputs: &[&[T]], y: &mut [T]) {
        if y.is_empty() {
            return;
        }
        let widths = self.widths();
        let width: usize = widths.iter().sum();
        // Whole rows, or parts of one.
        let chunk = CHUNK.min(width * (CHUNK / width).max(1));
        let mut starts = vec![0];
        starts.extend(widths.iter().scan(0, |end, width| {
            *end += width;
            Some(*end)
        }));
        y.par_chunks_mut(chunk).enumerate().for_each(|(i, mut y)| {
            let mut at = i * chunk;
            while !y.is_empty() {
                let (row, within) = (at / width, at % width);
                // The last that begins here or before, so that empty ones are passed over.
                let input = starts.partition_point(|start| *start <= within) - 1;
                let len = (starts[input + 1] - within).min(y.len());
                let (run, others) = y.split_at_mut(len);
                let from = row * widths[input] + within - starts[input];
                run.copy_from_slice(&inputs[input][from..from + len]);
                at += len;
                y = others;
            }
        });
    }
}

impl Kernel for Cat {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (first, dim) = (inputs[0], self.dim);
        expect_dtype(self.name, first.dtype, inputs)?;
        if dim >= first.shape.len() {
            return Err(shape_error(self.name, format!("tensors that have dimension {dim}"), first));
        }
        let alike = |shape: &Shape| {
            shape.len() == first.shape.len() && (0..shape.len()).all(|i| i == dim || shape[i] == first.shape[i])
        };
        if let Some(other) = inputs.iter().find(|input| !alike(&input.shape)) {
            return Err(shape_error(self.name, format!("{first} but for dimension {dim}"), other));
        }
        let mut shape = first.shape.to_vec();
        shape[dim] = inputs.iter().fold(0, |sum: usize, input| sum.saturating_add(input.shape[dim]));
        Ok(vec![Spec::new(shape, first.dtype)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(0, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        match outputs[0].spec.dtype {
            DType::U32 => self.join(&inputs.iter().map(View::u32).collect::<Vec<_>>(), outputs[0].u32()),
            _ => self.join(&inputs.iter().map(View::f32).collect::<Vec<_>>(), outputs[0].f32()),
        }
    }

    /// A launch for each input.
    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        if outputs[0].shape.elements() == 0 {
            return Plan::default(); // whose dimensions need not fit parameters
        }
        let widths = self.widths();
        let width: usize = widths.iter().sum();
        let by_four = widths.iter().all(|width| width.is_multiple_of(4));
        let vector = if by_four { 4 } else { 1 };
        // Bits are copied, whatever they mean.
        let dtype = if inputs[0].dtype == DType::F16 { DType::F16 } else { DType::U32 };
        let element = dtype.wgsl(vector);
        let launch = |(i, before): (usize, usize)| {
            let len = self.shapes[i].elements() / vector;
            Launch {
                shader: shader!(cat),
                values: vec![("type", element.into())],
                buffers: vec![buffer("x", element, Operand::Input(i)), buffer("result", element, Operand::Output(0))],
                params: vec![
                    param("len", len),
                    param("width", widths[i] / vector),
                    param("result_width", width / vector),
                    param("start", before / vector),
                ],
                workgroups: len.div_ceil(256),
            }
        };
        let starts = (0..widths.len()).map(|i| (i, widths[..i].iter().sum()));
        Plan { scratch: Vec::new(), launches: starts.map(launch).collect() }
    }
}

impl Op for Cat {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let mut start = 0;
        for (i, shape) in self.shapes.iter().enumerate() {
            let count = shape[self.dim];
            if grads.needs_grad(i) {
                let span = Span::new(dy.shape()[self.dim], start, count, 1);
                let copy = copy_of_span("cat_backward", dy.shape(), self.dim, span);
                grads.accumulate(i, grads.run_one(&copy, &[dy])?)?;
            }
            start += count;
        }
        Ok(())
    }
}

fn cat(name: &'static str, tensors: &[&Tensor], dim: Dim) -> Result<Tensor> {
    let Some(first) = tensors.first() else { return Err(shape_error(name, "at least one tensor", "none")) };
    let dim = first.dim_number(name, dim)?;
    apply_one(Cat { name, dim, shapes: tensors.iter().map(|x| x.shape().clone()).collect() }, tensors)
}

impl Tensor {
    /// Concatenates tensors along dimension `dim`: (2, C) and (3, C) to (5, C). Copies.
    ///
    /// # Errors
    /// If the list is empty, the dimension does not exist, there are more than six, or the tensors differ in type or in
    /// another dimension.
    pub fn cat(tensors: &[&Tensor], dim: impl Into<Dim>) -> Result<Tensor> {
        cat("cat", tensors, dim.into())
    }

    /// Stacks tensors of one shape along a new dimension `dim`: three of (B, C) to (B, 3, C) for dimension 1. Copies.
    ///
    /// # Errors
    /// If the list is empty, the tensors differ in shape or type, or the result would have no dimension `dim` or more
    /// than six.
    pub fn stack(tensors: &[&Tensor], dim: impl Into<Dim>) -> Result<Tensor> {
        let Some(first) = tensors.first() else { return Err(shape_error("stack", "at least one tensor", "none")) };
        let (dim, rank) = (dim.into(), first.shape().len());
        let Some(dim) = dim.of_rank(rank + 1) else {
            let expected = format!("a new dimension from -{} to {rank}", rank + 1);
            return Err(shape_error("stack", expected, format!("dimension {dim} of tensors {}", first.shape())));
        };
        if let Some(other) = tensors.iter().find(|x| x.shape() != first.shape()) {
            return Err(shape_error("stack", first.shape().to_string(), other.shape()));
        }
        let with_one = |x: &&Tensor| x.reshape([&x.shape()[..dim], &[1], &x.shape()[dim..]].concat());
        let each = tensors.iter().map(with_one).collect::<Result<Vec<_>>>()?;
        cat("stack", &each.iter().collect::<Vec<_>>(), dim.into())
    }
}
