//! Embedding lookup: rows of a table by id. Shapes: table (V, C), ids (...) of u32 -> y (..., C).
//!
//! y[i] = table[ids[i]]; dtable[v] = sum of dy[i] over the i with ids[i] = v.
//!
//! An id that is not below V returns a row of NaN on every device and contributes nothing to the gradient: a launch
//! cannot fail, and NaN shows in the loss.
//!
//! Backward sorts the positions by id (stable), so each table row's gradients are one run that is summed in a fixed
//! order: deterministic, without atomics. The GPU sorts blocks of positions by rank counting and merges them by binary
//! search. It then cuts the sorted positions into chunks of equal length, which balances the work when one row has most
//! gradients, and combines the sums of runs that cross chunks.

use super::reduce::SumRows;
use super::*;
use crate::cpu::with_scratch;
use crate::gpu::{Buffer, Limits, Operand, Param, Plan, Value, buffer, param};
use crate::shader;
use crate::tensor::{Edge, Gradient, Grads, record, run, run_into};
use rayon::prelude::*;
use std::ops::Range;

/// Inputs: table, ids.
struct Embedding {
    vocabulary: usize,
    c: usize,
    /// The id of the table's first row.
    first: usize,
    /// Whether the result keeps the rows of ids that the table has not; else they are NaN.
    keep: bool,
}

/// Rows of a table in several buffers. Inputs: ids, and the rows in each buffer.
struct EmbeddingOfParts {
    /// The numbers of the rows in each buffer.
    parts: Vec<Range<usize>>,
    c: usize,
    /// That of the whole table.
    gradient: Option<Gradient>,
}

/// table[ids[b, t]] + positions[start + t], (B, T, C). Inputs: table, ids (B, T), positions (P, C).
struct EmbeddingAt {
    table: Embedding,
    positions: usize,
    start: usize,
}

/// dtable. Inputs: dy, ids; for a table of selected rows, also the row of each id.
pub(super) struct EmbeddingBackward {
    pub vocabulary: usize,
    pub c: usize,
    /// The id of the table's first row.
    pub first: usize,
    pub accumulate: bool,
}

/// The row that a gradient of this id is added to: `row_of[id]` if there are such.
fn row_of(id: u32, rows: Option<&[u32]>) -> u32 {
    rows.map_or(id, |rows| rows.get(id as usize).copied().unwrap_or(u32::MAX))
}

/// The same among the rows from `first` on, as shaders count: rows before `first` wrap around to large numbers.
fn from_first(row: u32, first: usize) -> u32 {
    row.wrapping_sub(u32::try_from(first).expect("a row's number is an id"))
}

/// Positions that are sorted together, and the workgroups that share them.
const BLOCK: usize = 1024;
const SORTERS: usize = 32;

/// Elements that a shader moves at once, and the type that holds them.
fn vector(c: usize) -> (usize, &'static str) {
    if c.is_multiple_of(4) { (4, "vec4<f32>") } else { (1, "f32") }
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
        outputs[0].f32().par_chunks_mut(self.c).zip(ids).for_each(|(y, &id)| {
            match from_first(id, self.first) as usize {
                row if row < self.vocabulary => y.copy_from_slice(&table[row * self.c..][..self.c]),
                _ if self.keep => {}
                _ => y.fill(f32::NAN),
            }
        });
    }

    fn gpu(&self, _: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let mut launch = forward(self, outputs[0]);
        launch.values.extend([("positions", false.into()), ("keep", self.keep.into())]);
        Plan::one(launch)
    }
}

/// Writes the rows that the ids name.
fn forward(table: &Embedding, result: &Spec) -> Launch {
    let c = result.shape.last_dim();
    let (vector, type_name) = vector(c);
    let len = result.shape.elements() / vector;
    Launch {
        shader: shader!(embedding),
        values: vec![("mode", "forward".into()), ("T", type_name.into())],
        buffers: vec![
            buffer("table", type_name, Operand::Input(0)),
            buffer("ids", "u32", Operand::Input(1)),
            buffer("result", type_name, Operand::Output(0)),
        ],
        params: vec![
            param("len", len),
            param("width", c / vector),
            param("first", table.first),
            param("vocabulary", table.vocabulary),
            // As a parameter, because WGSL has no way to write it.
            param("nan", f32::NAN),
        ],
        workgroups: len.div_ceil(256),
    }
}

impl Kernel for EmbeddingAt {
    fn name(&self) -> &'static str {
        "embedding_at"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (ids, positions, c) = (inputs[1], inputs[2], self.table.c);
        let one = self.table.output_specs(&inputs[..2]);
        expect_f32(self.name(), &[positions])?;
        let end = self.start.saturating_add(ids.shape.last_dim());
        if ids.shape.len() != 2 || !matches!(positions.shape[..], [count, its_c] if its_c == c && end <= count) {
            let expected = format!("ids (B, T) and vectors ({end} or more, {c}) of positions");
            return Err(shape_error(self.name(), expected, format!("{} and {}", ids.shape, positions.shape)));
        }
        one
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Two rows read for each written.
        let bytes = inputs[1].size_bytes() + 3 * outputs[0].size_bytes();
        Cost { flops: outputs[0].shape.elements() as f64, bytes: bytes as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        self.table.cpu(&inputs[..2], outputs);
        let positions = &inputs[2].f32()[self.start * self.table.c..];
        let sequence = self.table.c * inputs[1].spec.shape.last_dim();
        outputs[0].f32().par_chunks_mut(sequence.max(1)).for_each(|y| {
            y.iter_mut().zip(positions).for_each(|(y, position)| *y += position);
        });
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let mut launch = forward(&self.table, outputs[0]);
        let type_name = launch.buffers[0].element;
        launch.values.extend([("positions", true.into()), ("keep", false.into())]);
        launch.buffers.push(buffer("positions", type_name, Operand::Input(2)));
        launch.params.extend([param("start", self.start), param("tokens", inputs[1].shape.last_dim())]);
        Plan::one(launch)
    }
}

impl Op for Embedding {
    fn saves(&self) -> Saves {
        Saves { inputs: &[1], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let (&Embedding { vocabulary, c, .. }, ids) = (self, saved.input(1)?);
        let kernel = |vocabulary| move |accumulate| EmbeddingBackward { vocabulary, c, first: 0, accumulate };
        match grads.sparse(0) {
            Some(sparse) => sparse.add(&[dy, ids, sparse.row_of()], kernel(sparse.rows())),
            None => grads.accumulate_with(0, &[dy, ids], kernel(vocabulary)),
        }
    }
}

impl Op for EmbeddingOfParts {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let (c, ids) = (self.c, saved.input(0)?);
        let kernel = |first, vocabulary| move |accumulate| EmbeddingBackward { vocabulary, c, first, accumulate };
        if let Some(sparse) = self.gradient.as_ref().and_then(Gradient::sparse) {
            return sparse.add(&[dy, ids, sparse.row_of()], kernel(0, sparse.rows()));
        }
        let mut parts = (1..).zip(&self.parts);
        parts.try_for_each(|(i, rows)| grads.accumulate_with(i, &[dy, ids], kernel(rows.start, rows.len())))
    }
}

impl Op for EmbeddingAt {
    fn saves(&self) -> Saves {
        self.table.saves()
    }

    /// The gradient of the vector of position `start + t` is the sum of `dy[b, t]` over the sequences b.
    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        self.table.backward(saved, grad_output, grads)?;
        let of_tokens = grad_output[0].as_ref().filter(|dy| grads.needs_grad(2) && !dy.is_empty());
        let Some(dy) = of_tokens else { return Ok(()) };
        let (start, t) = (self.start, saved.input(1)?.shape().last_dim());
        let sums = |accumulate| SumRows { accumulate, len: t * self.table.c, outputs: 1 };
        if t == self.positions {
            return grads.accumulate_with(2, &[dy], sums);
        }
        let used = grads.run_one(&sums(false), &[dy])?.reshape([t, self.table.c])?;
        grads.accumulate(2, used.pad(&[(start, self.positions - start - t), (0, 0)], 0.0)?)
    }
}

impl Kernel for EmbeddingBackward {
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
        let (dy, ids, rows_of) = (inputs[0].f32(), inputs[1].u32(), inputs.get(2).map(View::u32));
        let c = self.c;
        let row = |i: u32| from_first(row_of(ids[i as usize], rows_of), self.first);
        // Rows of the table per task: some hundred tasks, because ids are not spread evenly.
        let rows = self.vocabulary.div_ceil(256).max(1);
        with_scratch(ids.len(), |order| {
            let order: &mut [u32] = bytemuck::cast_slice_mut(order);
            (0..).zip(&mut *order).for_each(|(i, place)| *place = i);
            order.sort_unstable_by_key(|&i| (row(i), i)); // equal ids in the order of their positions
            let order = &*order;
            outputs[0].f32().par_chunks_mut((rows * c).max(1)).enumerate().for_each(|(task, table)| {
                if !self.accumulate {
                    table.fill(0.0);
                }
                let first = task * rows;
                let start = order.partition_point(|&i| (row(i) as usize) < first);
                for &i in &order[start..] {
                    let place = row(i) as usize - first;
                    let Some(sum) = table.get_mut(place * c..(place + 1) * c) else { break };
                    sum.iter_mut().zip(&dy[i as usize * c..]).for_each(|(sum, dy)| *sum += dy);
                }
            });
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let positions = inputs[1].shape.elements();
        let (vector, type_name) = vector(self.c);
        let width = self.c / vector;
        let blocks = positions.div_ceil(BLOCK);
        // Sorted places that a thread walks: many keep the partial sums of runs few, few keep a large GPU busy. Both
        // divide BLOCK.
        let chunk = if positions * width >= 1 << 20 { 32 } else { 8 };
        let chunks = positions.div_ceil(chunk);
        let len = self.vocabulary * self.c;
        let with = |mut launch: Launch, values: &[(&'static str, Value)]| {
            launch.values.extend_from_slice(values);
            launch
        };
        let sorting = [("block", BLOCK.into()), ("sorters", SORTERS.into())];
        let sum = |mode, buffers| {
            let params = vec![
                param("width", width),
                param("chunks", chunks),
                param("chunk", chunk),
                param("vocabulary", self.vocabulary),
            ];
            with(launch(mode, buffers, params, (chunks * width).div_ceil(64)), &[("T", type_name.into())])
        };
        let table = buffer("table", type_name, Operand::Output(0));
        let pairs = |name, operand| buffer(name, "vec2<u32>", operand);
        let sorted = pairs("sorted", Operand::ReadScratch(if blocks > 1 { 1 } else { 0 }));
        let mut launches = Vec::new();
        if !self.accumulate {
            let zero = vec![buffer("result", "f32", Operand::Output(0))];
            launches.push(launch("zero", zero, vec![param("len", len)], len.div_ceil(256)));
        }
        let mut buffers = vec![buffer("ids", "u32", Operand::Input(1)), pairs("blocks", Operand::Scratch(0))];
        let mut params =
            vec![param("positions", positions), param("first", self.first), param("vocabulary", self.vocabulary)];
        if let Some(row_of) = inputs.get(2) {
            buffers.push(buffer("row_of", "u32", Operand::Input(2)));
            params.push(param("ids_in_all", row_of.shape.elements()));
        }
        let sort = launch("sort", buffers, params, SORTERS * blocks);
        launches.push(with(with(sort, &sorting), &[("some_rows", (inputs.len() > 2).into())]));
        if blocks > 1 {
            let buffers = vec![pairs("blocks", Operand::ReadScratch(0)), pairs("sorted", Operand::Scratch(1))];
            let place = launch("place", buffers, vec![param("count", blocks)], blocks * (BLOCK / 64));
            launches.push(with(place, &sorting));
        }
        let partials = |operand| buffer("partials", type_name, operand);
        let dy = buffer("grad_output", type_name, Operand::Input(0));
        launches.push(sum("add", vec![sorted, table, partials(Operand::Scratch(2)), dy]));
        if chunks > 1 {
            launches.push(sum("join", vec![sorted, table, partials(Operand::ReadScratch(2))]));
        }
        // The pairs of (id, position), sorted in blocks and as a whole; a row for each chunk.
        let pairs = 8 * BLOCK * blocks;
        Plan { scratch: vec![pairs, if blocks > 1 { pairs } else { 0 }, 4 * chunks * self.c], launches }
    }
}

/// A launch of the backward's mode.
fn launch(mode: &'static str, buffers: Vec<Buffer>, params: Vec<Param>, workgroups: usize) -> Launch {
    Launch { shader: shader!(embedding), values: vec![("mode", mode.into())], buffers, params, workgroups }
}

/// Adds `rows` (N, C) to the rows `ids` (N, u32) of the gradient of a table (V, C). Skips ids that are not below V.
///
/// # Errors
/// If the shapes do not fit.
pub fn add_rows(table: &Gradient, rows: &Tensor, ids: &Tensor) -> Result<()> {
    let c = table.shape().last_dim();
    table.row_parts().into_iter().try_for_each(|(own, part)| {
        let (first, vocabulary) = (own.start, own.len());
        let kernel = |accumulate| EmbeddingBackward { vocabulary, c, first, accumulate };
        Gradient::add_outputs(&[&part], &[rows, ids], kernel)
    })
}

impl Tensor {
    /// The rows `ids` (..., u32) of this table (V, C) -> (..., C). A row is NaN if its id is not below V.
    ///
    /// # Errors
    /// If this tensor is not (V, C), f32 or quantized, or the ids are not u32.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        if self.dtype().is_quantized() {
            return self.quantized_rows(ids);
        }
        if self.is_in_parts() {
            return self.embedding_of_parts(ids);
        }
        let (vocabulary, c) = (self.shape().rows(), self.shape().last_dim());
        apply_one(Embedding { vocabulary, c, first: 0, keep: false }, &[self, ids])
    }

    /// [`Tensor::embedding`] of a table in several buffers.
    fn embedding_of_parts(&self, ids: &Tensor) -> Result<Tensor> {
        self.expect_leaf("embedding")?;
        let (parts, c) = (self.row_parts(), self.shape().last_dim());
        let mut y: Option<Tensor> = None;
        for (rows, part) in &parts {
            let kernel = Embedding { vocabulary: rows.len(), c, first: rows.start, keep: y.is_some() };
            match &y {
                Some(y) => run_into(&kernel, &[part, ids], &[y])?,
                None => y = Some(run(&kernel, &[part, ids])?.remove(0)),
            }
        }
        let y = y.expect("a table in several buffers has parts");
        let gradient = if let Edge::Leaf(gradient) = self.edge() { Some(gradient.clone()) } else { None };
        let (rows, parts): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let inputs: Vec<&Tensor> = std::iter::once(ids).chain(&parts).collect();
        Ok(record(Box::new(EmbeddingOfParts { parts: rows, c, gradient }), &inputs, vec![y]).remove(0))
    }

    /// The rows `ids` (B, T, u32) of this table (V, C), plus the rows `start..start + T` of `positions` (P, C) -> (B,
    /// T, C).
    ///
    /// # Errors
    /// Those of [`Tensor::embedding`], or if `start + T` exceeds P.
    pub fn embedding_at(&self, ids: &Tensor, positions: &Tensor, start: usize) -> Result<Tensor> {
        if self.is_in_parts() {
            return self.embedding(ids)?.add(&positions.narrow(0, start, ids.shape().last_dim())?);
        }
        let table = Embedding { vocabulary: self.shape().rows(), c: self.shape().last_dim(), first: 0, keep: false };
        apply_one(EmbeddingAt { table, positions: positions.shape().rows(), start }, &[self, ids, positions])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::tensor::SparseGradient;

    /// Of rows that collect apart and are added later, what the whole table would have collected.
    #[test]
    fn a_sparse_gradient_is_the_rows_of_the_whole_one() {
        for device in Device::for_tests() {
            for (vocabulary, c, len) in [(7, 4, 30), (300, 3, 1100), (40, 12, 1)] {
                let values: Vec<f32> = (0..vocabulary * c).map(|i| (i % 13) as f32 - 6.0).collect();
                let [dense, table] = [(); 2]
                    .map(|_| Tensor::from_f32(&values, [vocabulary, c], &device).unwrap().requires_grad().unwrap());
                // Of the even ids, which all that is read are; the last row is of none.
                let kept: Vec<u32> = (0..vocabulary as u32).step_by(2).chain([u32::MAX]).collect();
                let mut row_of = vec![u32::MAX; vocabulary];
                (0..).zip(&kept[..kept.len() - 1]).for_each(|(row, id)| row_of[*id as usize] = row);
                let row_of = Tensor::from_u32(&row_of, [vocabulary], &device).unwrap();
                let sparse = SparseGradient::new(row_of, kept.len());
                let crate::tensor::Edge::Leaf(gradient) = table.edge() else { unreachable!("a leaf") };
                let read = |table: &Tensor, step: u32| {
                    let ids: Vec<u32> = (0..len).map(|i| (i * i + step) % vocabulary as u32 / 2 * 2).collect();
                    let y = table.embedding(&Tensor::from_u32(&ids, [len as usize], &device).unwrap()).unwrap();
                    y.mul(&y).unwrap().sum(1).unwrap().sum(0).unwrap().backward().unwrap();
                };
                (0..3).for_each(|step| read(&dense, step));
                // One pass is added to the whole before, as that of a head is.
                read(&table, 0);
                gradient.collect_rows(Some(sparse.clone()));
                (1..3).for_each(|step| read(&table, step));
                gradient.collect_rows(None);
                let rows = sparse.take().unwrap();
                assert_eq!(rows.shape()[..], [kept.len(), c]);
                assert_eq!(rows.to_f32().unwrap()[(kept.len() - 1) * c..], vec![0.0; c]);
                assert_ne!(table.grad().unwrap().to_f32().unwrap(), dense.grad().unwrap().to_f32().unwrap());
                add_rows(gradient, &rows, &Tensor::from_u32(&kept, [kept.len()], &device).unwrap()).unwrap();
                // Whole numbers, whose sums are exact.
                assert_eq!(
                    table.grad().unwrap().to_f32().unwrap(),
                    dense.grad().unwrap().to_f32().unwrap(),
                    "{device}"
                );
                assert!(sparse.take().is_none());
            }
        }
    }

    /// As by the ops that it is made of, and so are the gradients.
    #[test]
    fn positions_are_added_from_the_start_on_to_every_sequence() {
        for device in Device::for_tests() {
            for (c, start, positions) in [(4, 2, 6), (3, 2, 6), (4, 0, 3), (3, 0, 3), (4, 0, 5)] {
                let numbers = |rows: usize, each: f32| {
                    let numbers: Vec<f32> = (0..rows * c).map(|i| each * i as f32).collect();
                    Tensor::from_f32(&numbers, [rows, c], &device).unwrap().requires_grad().unwrap()
                };
                let ids = Tensor::from_u32(&[4, 0, 1, 3, 3, 2], [2, 3], &device).unwrap();
                let numbered = Tensor::from_u32(&[start, start + 1, start + 2], [3], &device).unwrap();
                let of = |embed: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| {
                    let (table, positions) = (numbers(5, 1.0), numbers(positions, 100.0));
                    let y = embed(&table, &positions).unwrap();
                    y.mul(&y).unwrap().sum(..).unwrap().backward().unwrap();
                    [&y, table.grad().unwrap(), positions.grad().unwrap()]
                        .map(|t| (t.shape().clone(), t.to_f32().unwrap()))
                };
                let want = of(&|table, positions| table.embedding(&ids)?.add(&positions.embedding(&numbered)?));
                let got = of(&|table, positions| table.embedding_at(&ids, positions, start as usize));
                assert_eq!(got, want, "{device}: {c} wide, from {start} of {positions}");
            }
        }
    }
}
