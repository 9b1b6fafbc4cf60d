//! Muon (Jordan et al. 2024), as `torch.optim.Muon`: momentum, made orthogonal matrix by matrix.
//!
//! ```text
//! m <- mu m + (1 - mu) g;   u = mu m + (1 - mu) g with Nesterov's momentum, else m
//! p <- p (1 - lr decay) - lr adjust orthogonal(u)                              orthogonal: newton_schulz.rs
//! adjust = sqrt(max(1, outputs / inputs)), or 0.2 sqrt(max(outputs, inputs))   Moonlight: Liu et al. 2025
//! ```
//! Of a weight that fuses several matrices each is made orthogonal by itself. Matrices of one shape make a batch (of
//! layerwise updates, those of one segment), so that the launches of an update do not grow with the number of layers; a
//! batch takes a bounded workspace. Where the norm of all gradients is not finite nothing changes, as in the other
//! rules (`update.rs`).

use super::group::Kind;
use super::int8::{self, BLOCK, RECORD_WORDS, record_len, table_of};
use super::layout::{ALIGN, Entry};
use super::newton_schulz::{self, Buffers};
use super::optimizer::{State, Step, bindable};
use super::update::{Factor, GradientScale};
use crate::cpu::CHUNK;
use crate::gpu::{Launch, Limits, Operand, Plan, Value, buffer, param};
use crate::nn::LinearLayout;
use crate::profile::{Cost, MemoryKind};
use crate::tensor::{DType, Kernel, Spec, View, ViewMut, run_into};
use crate::{Device, Error, Result, Tensor, shader};
use rayon::prelude::*;
use std::ops::Range;

/// The most bytes of the buffers that a batch of more than one matrix takes.
const WORKSPACE_BYTES: usize = 256 << 20;

/// How the learning rate follows from the shape of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdjustLr {
    /// sqrt(max(1, outputs / inputs)) times the learning rate.
    Original,
    /// 0.2 sqrt(max(outputs, inputs)) times: an update is as long as one of AdamW, and learning rates and weight decays
    /// of AdamW serve.
    MatchRmsAdamW,
}

/// The matrices of a group.
pub(super) struct Muon {
    batches: Vec<Batch>,
}

/// Matrices of one shape.
struct Batch {
    shape: MatrixShape,
    /// The part of the arenas that holds them.
    window: Range<usize>,
    /// (B, 2) of u32: the first element of each in the window, and how far apart its rows are.
    table: Tensor,
}

/// How a matrix is stored: rows of neighbouring elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MatrixShape {
    rows: usize,
    cols: usize,
    /// Whether a row holds the weights of one output, not of one input.
    outputs_first: bool,
}

impl MatrixShape {
    /// What the learning rate is multiplied by.
    fn adjust(&self, adjust_lr: AdjustLr) -> f64 {
        let [rows, cols] = [self.rows as f64, self.cols as f64];
        let [outputs, inputs] = if self.outputs_first { [rows, cols] } else { [cols, rows] };
        match adjust_lr {
            AdjustLr::Original => (outputs / inputs).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamW => 0.2 * outputs.max(inputs).sqrt(),
        }
    }
}

/// A matrix in a parameter.
struct Matrix {
    shape: MatrixShape,
    /// Elements from the start of the arena.
    offset: usize,
    /// Elements from one row to the next.
    ld: usize,
    /// The whole parameter.
    parameter: Range<usize>,
}

/// The matrices that the weight of a linear layer is made of.
fn matrices(entry: &Entry) -> Result<Vec<Matrix>> {
    let (Some(LinearLayout { outputs_first, outputs }), &[_, ld]) = (&entry.linear, &entry.shape[..]) else {
        return Err(Error::Invalid(format!("Muon updates only weights of linear layers, got {}", entry.name)));
    };
    let (outputs_first, inputs) = (*outputs_first, entry.shape.elements() / outputs.iter().sum::<usize>().max(1));
    let mut before = 0;
    let of_outputs = |&outputs: &usize| {
        let (rows, cols) = if outputs_first { (outputs, inputs) } else { (inputs, outputs) };
        let offset = entry.offset + before * if outputs_first { inputs } else { 1 };
        before += outputs;
        Matrix { shape: MatrixShape { rows, cols, outputs_first }, offset, ld, parameter: entry.range() }
    };
    Ok(outputs.iter().map(of_outputs).filter(|matrix| matrix.shape.rows * matrix.shape.cols > 0).collect())
}

impl Muon {
    /// Of these parameters.
    ///
    /// # Errors
    /// If one is no weight of a linear layer, or the device has no memory left.
    pub fn new<'a>(entries: impl Iterator<Item = &'a Entry>, device: &Device) -> Result<Muon> {
        let mut all: Vec<Matrix> = Vec::new();
        for entry in entries {
            all.extend(matrices(entry)?);
        }
        let mut batches = Vec::new();
        while let Some(first) = all.first() {
            let shape = first.shape;
            let (alike, others) = all.into_iter().partition::<Vec<_>, _>(|matrix| matrix.shape == shape);
            all = others;
            let mut rest = &alike[..];
            while !rest.is_empty() {
                let (batch, after) = rest.split_at(fitting(rest, device));
                batches.push(Batch::new(batch, device)?);
                rest = after;
            }
        }
        Ok(Muon { batches })
    }

    pub fn update(&self, state: &State, step: &Step, workspace: &Workspace) -> Result<()> {
        let Kind::Muon { momentum, nesterov, ns_steps, adjust_lr } = state.group.kind else {
            unreachable!("the group has matrices")
        };
        let (arena, start) = (step.parameters, state.segment.range.start);
        let momentum = momentum as f32;
        let is_int8 = state.tables.is_some();
        let ranges = arena.bindable_ranges(&state.segment.range);
        for range in &ranges {
            let counts = step.counts && range.start == start;
            let gradient = step.gradients.of(range);
            let kernel = Momentum { momentum, scale: step.scale, counts, is_int8 };
            let mut inputs = vec![&gradient, step.squares];
            inputs.extend(&state.tables);
            run_into(&kernel, &inputs, &[&state.moments_of(range)[0], step.skipped])?;
        }
        for Batch { shape, window, table } in &self.batches {
            let buffers = workspace.buffers(table.shape()[0], shape);
            let blend = if nesterov { momentum } else { 1.0 };
            // A binding starts where 64 records do.
            let before = if is_int8 { (window.start - start) % (64 * BLOCK) } else { 0 };
            let gather = Gather { shape: *shape, momentum: blend, scale: step.scale, before, is_int8 };
            let moments = &state.moments_of(&(window.start - before..window.end))[0];
            let gradients = step.gradients.of(window);
            let mut inputs = vec![&gradients, moments, step.squares, table];
            inputs.extend(&state.tables);
            run_into(&gather, &inputs, &[&buffers.x])?;
            let orthogonal = newton_schulz::orthogonalize(buffers, ns_steps)?;
            let kept = 1.0 - step.learning_rate * state.group.weight_decay;
            let rate = step.learning_rate * shape.adjust(adjust_lr);
            let scatter = Scatter { len: window.len(), kept: kept as f32, rate: rate as f32, scale: step.scale };
            run_into(&scatter, &[&orthogonal, step.squares, table], &[&arena.value(window)?])?;
        }
        // Of what is offloaded, the whole segment is copied once.
        let copied = if arena.is_offloaded() { vec![] } else { ranges };
        copied.iter().try_for_each(|range| arena.copy_values(range))
    }
}

/// How many of these matrices, which have one shape, make a batch.
fn fitting(matrices: &[Matrix], device: &Device) -> usize {
    let MatrixShape { rows, cols, .. } = matrices[0].shape;
    let window = |count: usize| matrices[count - 1].parameter.end - matrices[0].parameter.start;
    let fits = |count: &usize| {
        4 * count * newton_schulz::elements(rows, cols) <= WORKSPACE_BYTES
            && window(*count).max(count * rows * cols) <= bindable(device)
    };
    (2..=matrices.len()).take_while(fits).last().unwrap_or(1)
}

impl Batch {
    fn new(matrices: &[Matrix], device: &Device) -> Result<Batch> {
        let window = matrices[0].parameter.start..matrices[matrices.len() - 1].parameter.end;
        debug_assert!(window.start.is_multiple_of(ALIGN));
        let row = |matrix: &Matrix| [(matrix.offset - window.start) as u32, matrix.ld as u32];
        let table: Vec<u32> = matrices.iter().flat_map(row).collect();
        Ok(Batch { shape: matrices[0].shape, table: Tensor::from_u32(&table, [matrices.len(), 2], device)?, window })
    }
}

/// The memory of an update, which all batches use in turn.
pub(super) struct Workspace {
    /// For the matrices and for what they become, as many elements as the largest batch has.
    matrices: [Tensor; 2],
    /// For the products of matrices with themselves.
    grams: [Tensor; 2],
}

impl Workspace {
    /// For all of these; `None` if there are none.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn new<'a>(groups: impl Iterator<Item = &'a Muon>, device: &Device) -> Result<Option<Workspace>> {
        let batches: Vec<&Batch> = groups.flat_map(|muon| &muon.batches).collect();
        let sizes = batches.iter().map(|Batch { shape: MatrixShape { rows, cols, .. }, table, .. }| {
            let (count, side) = (table.shape()[0], rows.min(cols));
            (count * rows * cols, count * side * side)
        });
        let Some((matrix, gram)) = sizes.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))) else { return Ok(None) };
        let empty = |len| Tensor::empty(Spec::new([len], DType::F32), device, MemoryKind::Scratch);
        let workspace = Workspace { matrices: [empty(matrix)?, empty(matrix)?], grams: [empty(gram)?, empty(gram)?] };
        if device.is_gpu() {
            let shapes = batches.iter().map(|batch| [batch.table.shape()[0], batch.shape.rows, batch.shape.cols]);
            newton_schulz::reserve_scratch(shapes, device)?;
        }
        Ok(Some(workspace))
    }

    /// The part of it that a batch of so many matrices uses.
    fn buffers(&self, count: usize, &MatrixShape { rows, cols, .. }: &MatrixShape) -> Buffers {
        let side = rows.min(cols);
        let matrix = |i: usize| self.matrices[i].slice_flat(0, [count, rows, cols].into());
        let gram = |i: usize| self.grams[i].slice_flat(0, [count, side, side].into());
        Buffers { x: matrix(0), y: matrix(1), gram: gram(0), polynomial: gram(1) }
    }
}

/// m <- mu m + (1 - mu) g. Inputs: gradients (N), their norm, and where m is of 8 bits the tables of its codes.
/// Outputs, changed in place: m (N) or its records, the count of skipped updates (1) of u32.
struct Momentum {
    momentum: f32,
    scale: GradientScale,
    counts: bool,
    is_int8: bool,
}

/// The name that Muon's moment has.
const MOMENT: &str = "momentum_buffer";

impl Kernel for Momentum {
    fn name(&self) -> &'static str {
        "muon_momentum"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let records = || Spec::new([record_len(inputs[0].shape.elements(), 1)], DType::U32);
        let moments = if self.is_int8 { records() } else { inputs[0].clone() };
        Ok(vec![moments, Spec::new([1], DType::U32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let bytes = inputs[0].size_bytes() + 2 * outputs[0].size_bytes();
        Cost { flops: 4.0 * inputs[0].shape.elements() as f64, bytes: bytes as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [m, skipped] = outputs else { unreachable!("two outputs") };
        let factor = match self.scale.factor(inputs[1].f32()) {
            Factor::Is(factor) => factor,
            Factor::Overflow => return,
            Factor::NotFinite => return skipped.u32()[0] += u32::from(self.counts),
        };
        let mu = self.momentum;
        let update = |m: &mut [f32], g: &[f32]| {
            m.iter_mut().zip(g).for_each(|(m, g)| *m = mu * *m + (1.0 - mu) * (g * factor));
        };
        let g = inputs[0].f32();
        if !self.is_int8 {
            return m.f32().par_chunks_mut(CHUNK).zip(g.par_chunks(CHUNK)).for_each(|(m, g)| update(m, g));
        }
        let table = table_of(MOMENT);
        m.u32().par_chunks_mut(RECORD_WORDS).zip(g.par_chunks(BLOCK)).with_min_len(64).for_each(|(record, g)| {
            let mut moments = [0.0; BLOCK];
            table.decode(record, &mut moments);
            update(&mut moments, g);
            table.encode(&moments, record);
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        Plan::one(Launch {
            shader: shader!(muon),
            values: values("momentum", self.scale.mixed, self.is_int8),
            buffers: [buffer("gradients", "vec4<f32>", Operand::Input(0)), GradientScale::buffer(1)]
                .into_iter()
                .chain(self.is_int8.then_some(buffer("tables", "u32", Operand::Input(2))))
                .chain([
                    buffer("first", if self.is_int8 { "u32" } else { "vec4<f32>" }, Operand::Output(0)),
                    buffer("skipped", "u32", Operand::Output(1)),
                ])
                .collect(),
            params: vec![
                param("len", len),
                param("momentum", self.momentum),
                self.scale.param(),
                param("counts", u32::from(self.counts)),
            ],
            workgroups: len.div_ceil(1024),
        })
    }
}

/// What `shaders/muon.wgsl` is made from.
fn values(pass: &'static str, mixed: bool, is_int8: bool) -> Vec<(&'static str, Value)> {
    let mut values = vec![("pass", pass.into()), ("mixed", mixed.into()), ("int8", is_int8.into())];
    values.extend(is_int8.then(int8::shader_values).into_iter().flatten());
    values
}

/// u = mu m + (1 - mu) g of every matrix. Inputs: windows of the gradients and of m (N), the norm, the table (B, 2),
/// and where m is of 8 bits the tables of its codes. Output: (B, rows, cols).
struct Gather {
    shape: MatrixShape,
    momentum: f32,
    scale: GradientScale,
    /// How many elements of m come before its window.
    before: usize,
    is_int8: bool,
}

impl Kernel for Gather {
    fn name(&self) -> &'static str {
        "muon_gather"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([inputs[3].shape[0], self.shape.rows, self.shape.cols], DType::F32)])
    }

    fn cost(&self, _: &[&Spec], outputs: &[&Spec]) -> Cost {
        let len = outputs[0].shape.elements() as f64;
        Cost { flops: 4.0 * len, bytes: 12.0 * len }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [g, m, squares, table, ..] = inputs else { unreachable!("four inputs or five") };
        // Without an update nobody looks at what comes out.
        let factor = if let Factor::Is(factor) = self.scale.factor(squares.f32()) { factor } else { 0.0 };
        let (mu, MatrixShape { rows, cols, .. }) = (self.momentum, self.shape);
        let (g, table) = (g.f32(), table.u32());
        let blend = |u: &mut [f32], g: &[f32], m: &[f32]| {
            for ((u, g), m) in u.iter_mut().zip(g).zip(m) {
                *u = mu * m + (1.0 - mu) * (g * factor);
            }
        };
        outputs[0].f32().par_chunks_mut(cols).enumerate().for_each(|(i, u)| {
            let start = row_start(table, rows, i);
            if !self.is_int8 {
                return blend(u, &g[start..], &m.f32()[start..]);
            }
            let (mut done, mut moments) = (0, [0.0; BLOCK]);
            while done < cols {
                let at = self.before + start + done;
                let now = (BLOCK - at % BLOCK).min(cols - done);
                table_of(MOMENT).decode(&m.u32()[at / BLOCK * RECORD_WORDS..][..RECORD_WORDS], &mut moments);
                blend(&mut u[done..done + now], &g[start + done..], &moments[at % BLOCK..]);
                done += now;
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let MatrixShape { rows, cols, .. } = self.shape;
        let len = inputs[3].shape[0] * rows * cols;
        Plan::one(Launch {
            shader: shader!(muon),
            values: values("gather", self.scale.mixed, self.is_int8),
            buffers: [
                buffer("gradients", "f32", Operand::Input(0)),
                buffer("first", if self.is_int8 { "u32" } else { "f32" }, Operand::Input(1)),
                GradientScale::buffer(2),
                buffer("table", "u32", Operand::Input(3)),
            ]
            .into_iter()
            .chain(self.is_int8.then_some(buffer("tables", "u32", Operand::Input(4))))
            .chain([buffer("matrices", "f32", Operand::Output(0))])
            .collect(),
            params: vec![
                param("len", len),
                param("rows", rows),
                param("cols", cols),
                param("before", self.before),
                param("momentum", self.momentum),
                self.scale.param(),
            ],
            workgroups: len.div_ceil(256),
        })
    }
}

/// Where row number `i` of all matrices starts in the window.
fn row_start(table: &[u32], rows: usize, i: usize) -> usize {
    let [offset, ld] = [table[i / rows * 2], table[i / rows * 2 + 1]].map(|n| n as usize);
    offset + i % rows * ld
}

/// p <- kept p - rate o of every matrix. Inputs: o (B, rows, cols), the norm, the table (B, 2). Output, changed in
/// place: a window of the values, (len).
struct Scatter {
    len: usize,
    kept: f32,
    rate: f32,
    scale: GradientScale,
}

impl Kernel for Scatter {
    fn name(&self) -> &'static str {
        "muon_update"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([self.len], DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        let len = inputs[0].shape.elements() as f64;
        Cost { flops: 3.0 * len, bytes: 12.0 * len }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [o, squares, table] = inputs else { unreachable!("three inputs") };
        if !matches!(self.scale.factor(squares.f32()), Factor::Is(_)) {
            return;
        }
        let &[_, rows, cols] = &o.spec.shape[..] else { unreachable!("a batch of matrices") };
        let table = table.u32();
        let mut places: Vec<(usize, &[f32])> =
            o.f32().chunks_exact(cols).enumerate().map(|(i, o)| (row_start(table, rows, i), o)).collect();
        places.sort_unstable_by_key(|(start, _)| *start);
        let (mut rest, mut before) = (outputs[0].f32(), 0);
        let mut updates: Vec<(&mut [f32], &[f32])> = Vec::with_capacity(places.len());
        for (start, o) in places {
            let (_, from) = rest.split_at_mut(start - before);
            let (p, after) = from.split_at_mut(cols);
            (rest, before) = (after, start + cols);
            updates.push((p, o));
        }
        updates.into_par_iter().with_min_len(16).for_each(|(p, o)| {
            p.iter_mut().zip(o).for_each(|(p, o)| *p = *p * self.kept - self.rate * o);
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let &[batch, rows, cols] = &inputs[0].shape[..] else { unreachable!("a batch of matrices") };
        let len = batch * rows * cols;
        Plan::one(Launch {
            shader: shader!(muon),
            values: values("scatter", self.scale.mixed, false),
            buffers: vec![
                buffer("matrices", "f32", Operand::Input(0)),
                GradientScale::buffer(1),
                buffer("table", "u32", Operand::Input(2)),
                buffer("values", "f32", Operand::Output(0)),
            ],
            params: vec![
                param("len", len),
                param("rows", rows),
                param("cols", cols),
                param("kept", self.kept),
                param("rate", self.rate),
                self.scale.param(),
            ],
            workgroups: len.div_ceil(256),
        })
    }
}

#[cfg(test)]
mod tests;
