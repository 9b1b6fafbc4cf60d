//! Reorders dimensions. Shapes: y has dimension `dims[i]` of x as its dimension i. A copy: tensors stay contiguous.
//! dx is dy under the inverse order.

use super::*;
use crate::gpu::{Limits, Operand, Param, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

/// The most dimensions.
const MAX_RANK: usize = 5;

struct Permute {
    dims: Vec<usize>,
}

/// A dimension of y: its length, and how far apart its elements are in x.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    size: usize,
    stride: usize,
}

impl Permute {
    /// The dimensions of y, as few as describe it: those of length 1 are left out, and those that are neighbours in x
    /// too are joined. Never empty.
    fn axes(&self, shape: &[usize]) -> Vec<Axis> {
        let mut axes: Vec<Axis> = Vec::new();
        for &dim in &self.dims {
            let (size, stride) = (shape[dim], shape[dim + 1..].iter().product());
            match axes.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.stride == size * stride => *last = Axis { size: last.size * size, stride },
                _ => axes.push(Axis { size, stride }),
            }
        }
        if axes.is_empty() {
            axes.push(Axis { size: 1, stride: 1 });
        }
        axes
    }

    fn inverse(&self) -> Permute {
        let mut dims = vec![0; self.dims.len()];
        for (i, &dim) in self.dims.iter().enumerate() {
            dims[dim] = i;
        }
        Permute { dims }
    }
}

fn copy<T: Copy + Send + Sync>(axes: &[Axis], x: &[T], y: &mut [T]) {
    let (inner, outer) = axes.split_last().expect("axes are never empty");
    let rows = (CHUNK / inner.size.max(1)).max(1);
    y.par_chunks_mut((rows * inner.size).max(1)).enumerate().for_each(|(chunk, y)| {
        for (row, y) in y.chunks_mut(inner.size).enumerate() {
            let mut rest = chunk * rows + row;
            let mut start = 0;
            for axis in outer.iter().rev() {
                start += rest % axis.size * axis.stride;
                rest /= axis.size;
            }
            if inner.stride == 1 {
                y.copy_from_slice(&x[start..start + inner.size]);
            } else {
                for (y, x) in y.iter_mut().zip(x[start..].iter().step_by(inner.stride)) {
                    *y = *x;
                }
            }
        }
    });
}

impl Kernel for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let shape = &inputs[0].shape;
        if inputs[0].dtype == DType::F16 {
            return Err(Error::DType { op: self.name(), expected: "f32 or u32", got: inputs[0].dtype.name() });
        }
        let mut sorted = self.dims.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..shape.len()) || shape.len() > MAX_RANK {
            let expected = format!("a tensor of at most {MAX_RANK} dimensions and each of them once");
            return Err(shape_error(self.name(), expected, format!("{:?} of {shape}", self.dims)));
        }
        Ok(vec![Spec::new(self.dims.iter().map(|&dim| shape[dim]).collect::<Vec<_>>(), inputs[0].dtype)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(0, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let axes = self.axes(&inputs[0].spec.shape);
        match inputs[0].spec.dtype {
            DType::U32 => copy(&axes, inputs[0].u32(), outputs[0].u32()),
            _ => copy(&axes, inputs[0].f32(), outputs[0].f32()),
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let mut axes = self.axes(&inputs[0].shape);
        let mut len = inputs[0].shape.elements();
        let rank = axes.len();
        // Four elements at a time where the innermost dimension stays innermost: then every other stride is a multiple
        // of its length.
        let by_four = axes[rank - 1].stride == 1 && axes[rank - 1].size.is_multiple_of(4);
        if by_four {
            len /= 4;
            axes[rank - 1].size /= 4;
            axes[..rank - 1].iter_mut().for_each(|axis| axis.stride /= 4);
        }
        // Bits are copied, whatever they mean.
        let element = if by_four { "vec4<u32>" } else { "u32" };
        let names: [[&str; 2]; MAX_RANK] = [
            ["size0", "stride0"],
            ["size1", "stride1"],
            ["size2", "stride2"],
            ["size3", "stride3"],
            ["size4", "stride4"],
        ];
        let mut params: Vec<Param> = vec![param("len", len)];
        params.extend(
            names
                .iter()
                .zip(&axes)
                .flat_map(|([size, stride], axis)| [param(size, axis.size), param(stride, axis.stride)]),
        );
        Plan::one(Launch {
            shader: shader!("permute"),
            values: vec![("type", element.into()), ("rank", rank.into())],
            buffers: vec![buffer("x", element, Operand::Input(0)), buffer("result", element, Operand::Output(0))],
            params,
            workgroups: len.div_ceil(256),
        })
    }
}

impl Op for Permute {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, grads.run_one(&self.inverse(), &[dy])?)
    }
}

impl Tensor {
    /// The dimensions in another order: (B, T, H, D).permute(&[0, 2, 1, 3]) is (B, H, T, D). Copies.
    ///
    /// # Errors
    /// If `dims` does not name each dimension once, there are more than five, or the elements are f16.
    pub fn permute(&self, dims: &[usize]) -> Result<Tensor> {
        apply_one(Permute { dims: dims.to_vec() }, &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_stay_neighbours_are_joined() {
        let axes = |dims: &[usize]| Permute { dims: dims.to_vec() }.axes(&[2, 3, 1, 5]);
        assert_eq!(axes(&[0, 1, 2, 3]), [Axis { size: 30, stride: 1 }]);
        assert_eq!(axes(&[3, 2, 0, 1]), [Axis { size: 5, stride: 1 }, Axis { size: 6, stride: 5 }]);
    }

    #[test]
    fn refuses_dimensions_that_are_missing_or_named_twice() {
        let x = Tensor::from_f32(&[0.0; 6], [2, 3], &crate::Device::Cpu).unwrap();
        for dims in [&[0][..], &[0, 0], &[0, 2], &[0, 1, 2]] {
            assert!(matches!(x.permute(dims), Err(Error::Shape { op: "permute", .. })), "{dims:?}");
        }
    }
}
