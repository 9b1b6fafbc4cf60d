//! Reads x at strides, which may be 0 or negative: y[i0, i1, ..] = x[offset + i0 stride0 + i1 stride1 + ..].

use super::*;
use crate::cpu::transpose;
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::ops::axes::{axis_params, for_each_run};
use crate::shader;
use rayon::prelude::*;

/// x -> y of this shape.
#[derive(Clone)]
pub(super) struct StridedCopy {
    pub name: &'static str,
    pub shape: Shape,
    axes: Vec<Axis<1>>,
    /// The place of y's first element in x.
    offset: usize,
}

impl StridedCopy {
    /// `dims` has size and stride of each dimension of y.
    pub fn new(name: &'static str, dims: impl Iterator<Item = (usize, isize)>, offset: usize) -> StridedCopy {
        let axes: Vec<Axis<1>> = dims.map(|(size, stride)| Axis { size, strides: [stride] }).collect();
        let shape = axes.iter().map(|axis| axis.size).collect::<Vec<_>>().into();
        StridedCopy { name, shape, axes: collapse(axes), offset }
    }

    fn copy<T: Copy + Default + Send + Sync>(&self, x: &[T], y: &mut [T]) {
        // The transpose of a matrix.
        if let [Axis { strides: [1], .. }, Axis { size, strides: [ld] }] = self.axes[..]
            && ld > 1
        {
            return transpose(&x[self.offset..], ld as usize, y, size);
        }
        let inner = self.axes.last().expect("axes are never empty").strides[0];
        y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
            for_each_run(&self.axes, self.offset, chunk * CHUNK, y, |[place], y| match inner {
                0 => y.fill(x[place]),
                1 => y.copy_from_slice(&x[place..place + y.len()]),
                2.. => y.iter_mut().zip(x[place..].iter().step_by(inner as usize)).for_each(|(y, x)| *y = *x),
                _ => {
                    let backwards = x[..=place].iter().rev().step_by(inner.unsigned_abs());
                    y.iter_mut().zip(backwards).for_each(|(y, x)| *y = *x);
                }
            });
        });
    }
}

impl Kernel for StridedCopy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.shape.clone(), inputs[0].dtype)])
    }

    fn cost(&self, _: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Elements that are repeated or left out are not read.
        Cost { flops: 0.0, bytes: 2.0 * outputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        match inputs[0].spec.dtype {
            DType::U32 => self.copy(inputs[0].u32(), outputs[0].u32()),
            _ => self.copy(inputs[0].f32(), outputs[0].f32()),
        }
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let (mut axes, mut offset, mut len) = (self.axes.clone(), self.offset, outputs[0].shape.elements());
        if len == 0 {
            return Plan::default(); // whose other dimensions need not fit parameters
        }
        let (inner, outer) = axes.split_last_mut().expect("axes are never empty");
        // Four elements at a time where all that is read begins at a multiple of four.
        let whole = |stride: isize| stride % 4 == 0;
        let by_four = inner.strides == [1]
            && inner.size.is_multiple_of(4)
            && offset.is_multiple_of(4)
            && outer.iter().all(|axis| whole(axis.strides[0]));
        if by_four {
            inner.size /= 4;
            outer.iter_mut().for_each(|axis| axis.strides[0] /= 4);
            (len, offset) = (len / 4, offset / 4);
        }
        // Bits are copied, whatever they mean.
        let dtype = if inputs[0].dtype == DType::F16 { DType::F16 } else { DType::U32 };
        let element = dtype.wgsl(if by_four { 4 } else { 1 });
        Plan::one(Launch {
            shader: shader!(strided),
            values: vec![("type", element.into()), ("rank", axes.len().into())],
            buffers: vec![buffer("x", element, Operand::Input(0)), buffer("result", element, Operand::Output(0))],
            params: [vec![param("len", len), param("offset", offset)], axis_params(&axes)].concat(),
            workgroups: len.div_ceil(256),
        })
    }
}
