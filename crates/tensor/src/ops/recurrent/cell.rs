//! One step of a recurrent layer: all gates of all rows in one kernel, and their gradients in another.
//!
//! With a = W_ih x + b_ih, u = W_hh h + b_hh, s the logistic function, and dh the sum of dy and the next step's
//! gradient:
//!
//! ```text
//! RNN   h' = tanh(a + u)
//!       da = dh (1 - h'^2)
//! LSTM  i, f, o = s(a + u), g = tanh(a + u), c' = f c + i g, h' = o tanh c'
//!       dc' += dh o (1 - tanh^2 c'), di = dc' g, df = dc' c, dg = dc' i, do = dh tanh c', dc = dc' f
//! GRU   r, z = s(a + u), n = tanh(a_n + r u_n), h' = (1 - z) n + z h
//!       dz = dh (h - n), dn = dh (1 - z), du_n = da_n r, dr = da_n u_n, and dh z goes to h beside what W_hh gives
//! ```
//! each through the derivative of its own s or tanh.

use super::*;
use crate::cpu::{math, vectorized};
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use rayon::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellKind {
    Rnn,
    Lstm,
    Gru,
}

impl CellKind {
    /// Name of the op.
    pub fn op(self) -> &'static str {
        match self {
            CellKind::Rnn => "rnn",
            CellKind::Lstm => "lstm",
            CellKind::Gru => "gru",
        }
    }

    /// G: gates per element of h.
    pub fn gates(self) -> usize {
        match self {
            CellKind::Rnn => 1,
            CellKind::Lstm => 4,
            CellKind::Gru => 3,
        }
    }

    /// S: saved values per element of h: the gates, and u_n of a GRU.
    pub fn saved(self) -> usize {
        match self {
            CellKind::Rnn => 1,
            CellKind::Lstm | CellKind::Gru => 4,
        }
    }
}

/// T, B, H, D.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
    pub directions: usize,
}

impl Sizes {
    fn rows(&self, steps: usize, width: usize) -> Spec {
        Spec::new([steps, self.batch, width * self.hidden], DType::F32)
    }

    fn state(&self) -> Spec {
        Spec::new([self.batch, self.hidden], DType::F32)
    }

    /// (B, width) of a step in rows of `width`.
    fn of_step(&self, step: usize, width: usize) -> std::ops::Range<usize> {
        step * self.batch * width..(step + 1) * self.batch * width
    }

    /// Rows of a task: about a chunk of elements.
    fn rows_per_task(&self) -> usize {
        (CHUNK / self.hidden).max(1)
    }
}

/// A step. Inputs: what x and h contribute to the gates, (T, B, G H) and (B, G H). Outputs: h (B, H), which is
/// replaced, the step's part of y (T, B, D H), what is kept of each step, or of the last alone: the gates (T, B, S H)
/// and h before it (T, B, H); of an LSTM c (B, H), and what is kept of it.
pub(super) struct Cell {
    pub kind: CellKind,
    pub sizes: Sizes,
    pub step: usize,
    /// T or 1.
    pub kept_steps: usize,
    pub direction: usize,
}

/// Gradients of a step. Inputs: dy, the gates, and of an LSTM c before each step, of a GRU h. Outputs: dh (B, H), of
/// which a GRU leaves the part that does not go through W_hh; the gradients of the gates, of all steps (T, B, G H) and
/// of this one (B, G H); of an LSTM dc (B, H), which is replaced; of a GRU the gradients of what h contributed, of all
/// steps, which for the others are those of the gates. Those of this step are the latter.
pub(super) struct CellBackward {
    pub kind: CellKind,
    pub sizes: Sizes,
    pub step: usize,
    pub direction: usize,
}

/// Copies `len` elements, from place `from` of the input to place `to` of an output of shape `of`. The others stay.
pub(super) struct CopyPart {
    pub from: usize,
    pub to: usize,
    pub len: usize,
    pub of: Shape,
}

impl CopyPart {
    /// The whole of a tensor of this shape.
    pub fn whole(shape: &Shape) -> CopyPart {
        CopyPart { from: 0, to: 0, len: shape.elements(), of: shape.clone() }
    }
}

/// Part `k` of a row of parts of `n` elements.
#[inline(always)]
fn part(x: &[f32], n: usize, k: usize) -> &[f32] {
    &x[k * n..][..n]
}

/// The first N parts of a row of parts of `n` elements.
#[inline(always)]
fn parts_mut<const N: usize>(x: &mut [f32], n: usize) -> [&mut [f32]; N] {
    let mut rest = x;
    std::array::from_fn(|_| {
        let (first, others) = std::mem::take(&mut rest).split_at_mut(n);
        rest = others;
        first
    })
}

impl Cell {
    /// A row of each operand: `a` and `u`; then h, y, and what is kept.
    #[inline(always)]
    fn rnn(a: &[f32], u: &[f32], [h, y, gates, h_prev]: [&mut [f32]; 4]) {
        let n = h.len();
        let (a, u, y, gates) = (&a[..n], &u[..n], &mut y[..n], &mut gates[..n]);
        h_prev.copy_from_slice(h);
        for j in 0..n {
            h[j] = math::tanh(a[j] + u[j]);
            (y[j], gates[j]) = (h[j], h[j]);
        }
    }

    #[inline(always)]
    fn lstm(a: &[f32], u: &[f32], [h, y, gates, h_prev]: [&mut [f32]; 4], [c, c_prev]: [&mut [f32]; 2]) {
        let n = h.len();
        h_prev.copy_from_slice(h);
        c_prev.copy_from_slice(c);
        let [i, f, g, o] = parts_mut::<4>(gates, n);
        // A loop for each gate: few slices at a time.
        for (gate, k) in [&mut *i, &mut *f, &mut *o].into_iter().zip([0, 1, 3]) {
            for ((gate, a), u) in gate.iter_mut().zip(part(a, n, k)).zip(part(u, n, k)) {
                *gate = math::sigmoid(a + u);
            }
        }
        for ((g, a), u) in g.iter_mut().zip(part(a, n, 2)).zip(part(u, n, 2)) {
            *g = math::tanh(a + u);
        }
        let (c, y) = (&mut c[..n], &mut y[..n]);
        for j in 0..n {
            c[j] = f[j] * c[j] + i[j] * g[j];
            h[j] = o[j] * math::tanh(c[j]);
            y[j] = h[j];
        }
    }

    #[inline(always)]
    fn gru(a: &[f32], u: &[f32], [h, y, gates, h_prev]: [&mut [f32]; 4]) {
        let n = h.len();
        h_prev.copy_from_slice(h);
        let [r, z, new, u_new] = parts_mut::<4>(gates, n);
        for (k, gate) in [&mut *r, &mut *z].into_iter().enumerate() {
            for ((gate, a), u) in gate.iter_mut().zip(part(a, n, k)).zip(part(u, n, k)) {
                *gate = math::sigmoid(a + u);
            }
        }
        u_new.copy_from_slice(part(u, n, 2));
        let (a, y) = (part(a, n, 2), &mut y[..n]);
        for j in 0..n {
            new[j] = math::tanh(a[j] + r[j] * u_new[j]);
            h[j] = (1.0 - z[j]) * new[j] + z[j] * h[j];
            y[j] = h[j];
        }
    }
}

impl Kernel for Cell {
    fn name(&self) -> &'static str {
        match self.kind {
            CellKind::Rnn => "rnn_cell",
            CellKind::Lstm => "lstm_cell",
            CellKind::Gru => "gru_cell",
        }
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        let Cell { kind, sizes, kept_steps: kept, .. } = self;
        let (gates, state) = (sizes.rows(*kept, kind.saved()), sizes.rows(*kept, 1));
        let outputs = vec![sizes.state(), sizes.rows(sizes.steps, sizes.directions), gates, state.clone()];
        let of_lstm = (*kind == CellKind::Lstm).then(|| [sizes.state(), state]);
        Ok(outputs.into_iter().chain(of_lstm.into_iter().flatten()).collect())
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        // Both products of each gate, y, h before and after, of an LSTM c too, and what is kept.
        let states = if self.kind == CellKind::Lstm { 6 } else { 4 };
        let each = 2 * self.kind.gates() + self.kind.saved() + states;
        let elements = self.sizes.batch * self.sizes.hidden;
        let flops = 8 * inputs[1].shape.elements() as u64;
        Cost { flops: flops as f64, bytes: (4 * each * elements) as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let Sizes { hidden: n, directions, .. } = self.sizes;
        let slot = if self.kept_steps == 1 { 0 } else { self.step };
        let (gates, saved, width) = (self.kind.gates() * n, self.kind.saved() * n, directions * n);
        let of_step = |step, width| self.sizes.of_step(step, width);
        let a = &inputs[0].f32()[of_step(self.step, gates)];
        let rows = a.par_chunks(gates).zip(inputs[1].f32().par_chunks(gates));
        let mut outputs = outputs.iter_mut().map(ViewMut::f32);
        let mut next = || outputs.next().expect("output_specs has it");
        let (h, y) = (next().par_chunks_mut(n), next()[of_step(self.step, width)].par_chunks_mut(width));
        let kept = next()[of_step(slot, saved)].par_chunks_mut(saved);
        let h_prev = next()[of_step(slot, n)].par_chunks_mut(n);
        let rows = rows.zip(h.zip(y.zip(kept.zip(h_prev)))).with_min_len(self.sizes.rows_per_task());
        let from = self.direction * n;
        match self.kind {
            CellKind::Rnn => rows.for_each(|((a, u), (h, (y, (gates, h_prev))))| {
                vectorized(
                    #[inline(always)]
                    || Cell::rnn(a, u, [h, &mut y[from..], gates, h_prev]),
                );
            }),
            CellKind::Gru => rows.for_each(|((a, u), (h, (y, (gates, h_prev))))| {
                vectorized(
                    #[inline(always)]
                    || Cell::gru(a, u, [h, &mut y[from..], gates, h_prev]),
                );
            }),
            CellKind::Lstm => {
                let c = next().par_chunks_mut(n).zip(next()[of_step(slot, n)].par_chunks_mut(n));
                rows.zip(c).for_each(|(((a, u), (h, (y, (gates, h_prev)))), (c, c_prev))| {
                    vectorized(
                        #[inline(always)]
                        || Cell::lstm(a, u, [h, &mut y[from..], gates, h_prev], [c, c_prev]),
                    );
                });
            }
        }
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let slot = if self.kept_steps == 1 { 0 } else { self.step };
        let mut buffers = vec![
            buffer("x_gates", "f32", Input(0)),
            buffer("h_gates", "f32", Input(1)),
            buffer("h", "f32", Output(0)),
            buffer("y", "f32", Output(1)),
            buffer("kept_gates", "f32", Output(2)),
            buffer("h_prev", "f32", Output(3)),
        ];
        if self.kind == CellKind::Lstm {
            buffers.extend([buffer("c", "f32", Output(4)), buffer("c_prev", "f32", Output(5))]);
        }
        launch("forward", self.kind, self.sizes, [self.step, slot, self.direction], buffers)
    }
}

/// One thread for each element of h. `place` is the step, where it is kept, and the direction.
fn launch(
    pass: &'static str,
    kind: CellKind,
    sizes: Sizes,
    [step, slot, direction]: [usize; 3],
    buffers: Vec<crate::gpu::Buffer>,
) -> Plan {
    let Sizes { batch, hidden, directions, .. } = sizes;
    let len = batch * hidden;
    Plan::one(Launch {
        shader: shader!(recurrent),
        values: vec![("pass", pass.into()), ("cell", kind.op().into())],
        buffers,
        params: vec![
            param("len", len),
            param("hidden", hidden),
            param("directions", directions),
            param("direction", direction),
            // In units of a step's B H elements.
            param("step_at", step * len),
            param("slot_at", slot * len),
        ],
        workgroups: len.div_ceil(256),
    })
}

impl CellBackward {
    /// A row of each operand: dy and what was kept; then dh and the gradients.
    #[inline(always)]
    fn rnn(dy: &[f32], gates: &[f32], [dh, all, step]: [&mut [f32]; 3]) {
        let n = dh.len();
        let (dy, gates, all, step) = (&dy[..n], &gates[..n], &mut all[..n], &mut step[..n]);
        for j in 0..n {
            let da = (dh[j] + dy[j]) * (1.0 - gates[j] * gates[j]);
            (all[j], step[j]) = (da, da);
        }
    }

    #[inline(always)]
    fn lstm(dy: &[f32], gates: &[f32], c_prev: &[f32], [dh, all, step]: [&mut [f32]; 3], dc: &mut [f32]) {
        let n = dh.len();
        let (dy, c_prev, dc) = (&dy[..n], &c_prev[..n], &mut dc[..n]);
        let (i, f, g, o) = (part(gates, n, 0), part(gates, n, 1), part(gates, n, 2), part(gates, n, 3));
        let [di, df, dg, d_o] = parts_mut::<4>(step, n);
        // Known to be as long, or the loop keeps a check for which its last vector is computed by single numbers.
        let (di, df, dg, d_o) = (&mut di[..n], &mut df[..n], &mut dg[..n], &mut d_o[..n]);
        for j in 0..n {
            let (i, f, g, o, c) = (i[j], f[j], g[j], o[j], c_prev[j]);
            let tanh_c = math::tanh(f * c + i * g);
            let dh = dh[j] + dy[j];
            let dc_new = dc[j] + dh * o * (1.0 - tanh_c * tanh_c);
            di[j] = dc_new * g * i * (1.0 - i);
            df[j] = dc_new * c * f * (1.0 - f);
            dg[j] = dc_new * i * (1.0 - g * g);
            d_o[j] = dh * tanh_c * o * (1.0 - o);
            dc[j] = dc_new * f;
        }
        all.copy_from_slice(step);
    }

    #[inline(always)]
    fn gru(dy: &[f32], gates: &[f32], h_prev: &[f32], [dh, all, step]: [&mut [f32]; 3], of_h: &mut [f32]) {
        let n = dh.len();
        let (dy, h_prev) = (&dy[..n], &h_prev[..n]);
        let [r, z, new, u_new] = [0, 1, 2, 3].map(|k| part(gates, n, k));
        let ([dr, dz, du_new], [.., da_new]) = (parts_mut::<3>(step, n), parts_mut::<3>(all, n));
        for j in 0..n {
            let (r, z, new) = (r[j], z[j], new[j]);
            let d = dh[j] + dy[j];
            let da = d * (1.0 - z) * (1.0 - new * new);
            dr[j] = da * u_new[j] * r * (1.0 - r);
            dz[j] = d * (h_prev[j] - new) * z * (1.0 - z);
            du_new[j] = da * r;
            da_new[j] = da;
            dh[j] = d * z;
        }
        all[..2 * n].copy_from_slice(&step[..2 * n]);
        of_h.copy_from_slice(step);
    }
}

impl Kernel for CellBackward {
    fn name(&self) -> &'static str {
        match self.kind {
            CellKind::Rnn => "rnn_cell_backward",
            CellKind::Lstm => "lstm_cell_backward",
            CellKind::Gru => "gru_cell_backward",
        }
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        let CellBackward { kind, sizes, .. } = self;
        let (state, all) = (sizes.state(), sizes.rows(sizes.steps, kind.gates()));
        let step = sizes.rows(1, kind.gates());
        Ok(match kind {
            CellKind::Rnn => vec![state, all, step],
            CellKind::Lstm => vec![state.clone(), all, step, state],
            CellKind::Gru => vec![state, all.clone(), step, all],
        })
    }

    fn cost(&self, _: &[&Spec], outputs: &[&Spec]) -> Cost {
        let states = if self.kind == CellKind::Rnn { 2 } else { 4 };
        let each = self.kind.saved() + 2 * self.kind.gates() + states;
        let elements = self.sizes.batch * self.sizes.hidden;
        Cost { flops: (8 * outputs[2].shape.elements()) as f64, bytes: (4 * each * elements) as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let Sizes { hidden: n, directions, .. } = self.sizes;
        let (gates, saved, width) = (self.kind.gates() * n, self.kind.saved() * n, directions * n);
        let of_step = |width| self.sizes.of_step(self.step, width);
        let dy = inputs[0].f32()[of_step(width)].par_chunks(width);
        let rows = dy.zip(inputs[1].f32()[of_step(saved)].par_chunks(saved));
        let mut outputs = outputs.iter_mut().map(ViewMut::f32);
        let mut next = || outputs.next().expect("output_specs has it");
        let (dh, all) = (next().par_chunks_mut(n), next()[of_step(gates)].par_chunks_mut(gates));
        let step = next().par_chunks_mut(gates);
        let rows = rows.zip(dh.zip(all.zip(step))).with_min_len(self.sizes.rows_per_task());
        let from = self.direction * n;
        if self.kind == CellKind::Rnn {
            return rows.for_each(|((dy, kept), (dh, (all, step)))| {
                vectorized(
                    #[inline(always)]
                    || CellBackward::rnn(&dy[from..], kept, [dh, all, step]),
                );
            });
        }
        let prev = inputs[2].f32()[of_step(n)].par_chunks(n);
        if self.kind == CellKind::Lstm {
            rows.zip(prev.zip(next().par_chunks_mut(n))).for_each(|(((dy, kept), (dh, (all, step))), (c_prev, dc))| {
                vectorized(
                    #[inline(always)]
                    || CellBackward::lstm(&dy[from..], kept, c_prev, [dh, all, step], dc),
                );
            });
        } else {
            let of_h = next()[of_step(gates)].par_chunks_mut(gates);
            rows.zip(prev.zip(of_h)).for_each(|(((dy, kept), (dh, (all, step))), (h_prev, of_h))| {
                vectorized(
                    #[inline(always)]
                    || CellBackward::gru(&dy[from..], kept, h_prev, [dh, all, step], of_h),
                );
            });
        }
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let mut buffers = vec![
            buffer("dy", "f32", Input(0)),
            buffer("kept_gates", "f32", Input(1)),
            buffer("dh", "f32", Output(0)),
            buffer("x_grad", "f32", Output(1)),
            buffer("step_grad", "f32", Output(2)),
        ];
        buffers.extend(match self.kind {
            CellKind::Rnn => vec![],
            CellKind::Lstm => vec![buffer("c_prev", "f32", Input(2)), buffer("dc", "f32", Output(3))],
            CellKind::Gru => vec![buffer("h_prev", "f32", Input(2)), buffer("h_grad", "f32", Output(3))],
        });
        launch("backward", self.kind, self.sizes, [self.step, self.step, self.direction], buffers)
    }
}

impl Kernel for CopyPart {
    fn name(&self) -> &'static str {
        "copy_state"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.of.clone(), DType::F32)])
    }

    fn cost(&self, _: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: 0.0, bytes: (8 * self.len) as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        outputs[0].f32()[self.to..][..self.len].copy_from_slice(&inputs[0].f32()[self.from..][..self.len]);
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        Plan::one(Launch {
            shader: shader!(recurrent),
            values: vec![("pass", "copy".into()), ("cell", "".into())],
            buffers: vec![buffer("x", "f32", Operand::Input(0)), buffer("result", "f32", Operand::Output(0))],
            params: vec![param("len", self.len), param("from_at", self.from), param("to_at", self.to)],
            workgroups: self.len.div_ceil(256),
        })
    }
}
