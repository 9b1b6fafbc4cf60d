//! Rows of a table by their number. Shapes: table (V, C), ids (...) of u32 -> y (..., C).
//!
//! y[i] = table[ids[i]]; dtable[v] = sum of dy[i] over the i with ids[i] = v.
//!
//! An id that is not below V gives a row of NaN, on every device, and contributes nothing to the gradient: a launch
//! cannot fail, and NaN is noticed by whatever watches the loss.
//!
//! Backward sorts the positions by id, so that each row of the table has one owner that adds its gradients up in the
//! order of the positions: the same bits every time, without atomics. The sort compares every pair of positions, which
//! for the 16 Ki of a training step takes less time than reading their gradients; it is not meant for millions.

use super::*;
use crate::cpu::with_scratch;
use crate::gpu::{Limits, Operand, Plan, Value};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

/// Inputs: table, ids.
struct Embedding {
    vocabulary: usize,
    c: usize,
}

/// dtable. Inputs: dy, ids.
pub(super) struct TableGradient {
    pub vocabulary: usize,
    pub c: usize,
    pub accumulate: bool,
}

/// Elements that a shader moves at once, and the type that holds them.
fn vector(c: usize) -> (usize, Value) {
    if c.is_multiple_of(4) { (4, "vec4<f32>".into()) } else { (1, "f32".into()) }
}

impl Kernel for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), &inputs[..1])?;
        expect_dtype(self.name(), DType::U32, &inputs[1..])?;
        if inputs[0].shape.len() != 2 {
            return Err(shape_error(self.name(), "a table (V, C)", inputs[0]));
        }
        Ok(vec![Spec::new([&inputs[1].shape[..], &[self.c]].concat(), DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // One row read for each written.
        let bytes = inputs[1].size_bytes() + 2 * outputs[0].size_bytes();
        Cost { flops: 0.0, bytes: bytes as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (table, ids) = (inputs[0].f32(), inputs[1].u32());
        if self.c == 0 {
            return;
        }
        outputs[0].f32().par_chunks_mut(self.c).zip(ids).for_each(|(y, &id)| match id as usize {
            id if id < self.vocabulary => y.copy_from_slice(&table[id * self.c..][..self.c]),
            _ => y.fill(f32::NAN),
        });
    }

    fn gpu(&self, _: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let (vector, type_name) = vector(self.c);
        let len = outputs[0].shape.elements() / vector;
        Plan::one(Launch {
            shader: shader!("embedding"),
            values: vec![("mode", "forward".into()), ("T", type_name)],
            bindings: vec![Operand::Input(0), Operand::Input(1), Operand::Output(0)],
            // NaN comes as a parameter because WGSL has no way to write it.
            params: vec![len as u32, (self.c / vector) as u32, self.vocabulary as u32, f32::NAN.to_bits()],
            workgroups: len.div_ceil(256),
        })
    }
}

impl Op for Embedding {
    fn saves(&self) -> Saves {
        Saves { inputs: &[1], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, upstream: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &upstream[0] else { return Ok(()) };
        let &Embedding { vocabulary, c } = self;
        grads.compute(0, &[dy, saved.input(1)], |accumulate| TableGradient { vocabulary, c, accumulate })
    }
}

impl Kernel for TableGradient {
    fn name(&self) -> &'static str {
        "embedding_backward"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([self.vocabulary, self.c], DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        // Each gradient is read and added once; how many rows of the table are touched depends on the ids.
        streaming_cost(inputs[0].shape.elements(), inputs, &[])
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (dy, ids) = (inputs[0].f32(), inputs[1].u32());
        let c = self.c;
        // Rows of the table per task: some hundred tasks, because ids are not spread evenly.
        let rows = self.vocabulary.div_ceil(256).max(1);
        with_scratch(ids.len(), |order| {
            let order: &mut [u32] = bytemuck::cast_slice_mut(order);
            (0..).zip(&mut *order).for_each(|(i, place)| *place = i);
            order.sort_unstable_by_key(|&i| (ids[i as usize], i)); // equal ids in the order of their positions
            let order = &*order;
            outputs[0].f32().par_chunks_mut((rows * c).max(1)).enumerate().for_each(|(task, table)| {
                if !self.accumulate {
                    table.fill(0.0);
                }
                let first = task * rows;
                let start = order.partition_point(|&i| (ids[i as usize] as usize) < first);
                for &i in &order[start..] {
                    let row = ids[i as usize] as usize - first;
                    let Some(sum) = table.get_mut(row * c..(row + 1) * c) else { break };
                    sum.iter_mut().zip(&dy[i as usize * c..]).for_each(|(sum, dy)| *sum += dy);
                }
            });
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let positions = inputs[1].shape.elements();
        let (vector, type_name) = vector(self.c);
        let width = self.c / vector;
        // Threads that share a run: few when most ids are rare, many when the whole vocabulary is used over and over.
        let lanes = if positions >= 16 * self.vocabulary { 16 } else { 4 };
        let cols = (256 / lanes).min(width.next_power_of_two());
        let lanes = 256 / cols;
        let blocks = width.div_ceil(cols);
        let len = self.vocabulary * self.c;
        let zero = Launch {
            shader: shader!("embedding"),
            values: vec![("mode", "zero".into())],
            bindings: vec![Operand::Output(0)],
            params: vec![len as u32],
            workgroups: len.div_ceil(256),
        };
        let sort = Launch {
            shader: shader!("embedding"),
            values: vec![("mode", "sort".into())],
            bindings: vec![Operand::Input(1), Operand::Scratch(0), Operand::Scratch(1)],
            params: vec![positions as u32, self.vocabulary as u32],
            workgroups: positions.div_ceil(32),
        };
        let add = Launch {
            shader: shader!("embedding"),
            values: vec![
                ("mode", "add".into()),
                ("T", type_name),
                ("cols", (cols as u32).into()),
                ("lanes", (lanes as u32).into()),
            ],
            bindings: vec![
                Operand::Input(1),
                Operand::ReadScratch(0),
                Operand::ReadScratch(1),
                Operand::Input(0),
                Operand::Output(0),
            ],
            params: vec![width as u32, blocks as u32, positions as u32],
            workgroups: positions * blocks,
        };
        Plan {
            scratch: vec![4 * positions; 2],
            launches: (!self.accumulate).then_some(zero).into_iter().chain([sort, add]).collect(),
        }
    }
}

impl Tensor {
    /// The rows of this table (V, C) that `ids` (...) of u32 name: (..., C). An id that is not below V gives NaN.
    ///
    /// # Errors
    /// If this is not a table of f32 or the ids are not u32.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        let (vocabulary, c) = (self.shape().rows(), self.shape().last_dim());
        apply_one(Embedding { vocabulary, c }, &[self, ids])
    }
}
