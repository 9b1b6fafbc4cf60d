//! Recurrent layers over whole sequences: the tanh RNN (Elman 1990), LSTM (Hochreiter and Schmidhuber 1997) and GRU
//! (Cho et al. 2014), with PyTorch's gates, names and shapes.
//!
//! ```text
//! x (T, B, I), h and for an LSTM c (L D, B, H) -> y (T, B, D H), and the states after the last step
//! W_ih (G H, I), W_hh (G H, H), b_ih and b_hh (G H)       G gates, L layers, D directions
//! ```
//! One call computes one layer. It replaces the layer's part of the states and returns the others unchanged, so a stack
//! passes its states from layer to layer.
//!
//! W_ih x of all steps is one GEMM before the recurrence. For ids (T, B), which stand for one-hot vectors, it is a
//! lookup of columns of W_ih. Both biases are added there, except b_hh of a GRU, which the reset gate multiplies. A
//! step is the GEMM `h W_hh^T` (`+ b_hh`) and one kernel for all gates (`cell.rs`); a backward step is the kernel of
//! the gate gradients and one GEMM. The gradient of W_hh is one GEMM over all steps.

mod cell;

use super::reduce::SumRows;
use super::*;
use crate::profile::MemoryKind;
use crate::tensor::{Grads, common_device, record, run, run_into};
use cell::{Cell, CellBackward, CellKind, CopyPart, Sizes};

/// The parameters of one direction of a recurrent layer, under PyTorch's names.
#[derive(Debug, Clone, Copy)]
pub struct RecurrentRef<'a> {
    /// (G H, I)
    pub weight_ih: &'a Tensor,
    /// (G H, H)
    pub weight_hh: &'a Tensor,
    /// `bias_ih` and `bias_hh`, (G H).
    pub bias: Option<[&'a Tensor; 2]>,
}

/// One layer. Inputs: the states, then of each direction what x contributes to the gates (T, B, G H), W_hh, and, if a
/// GRU has biases, b_hh. Outputs: y and the states.
struct Recurrence {
    kind: CellKind,
    sizes: Sizes,
    layer: usize,
    /// Whether b_hh is an input.
    bias: bool,
    /// (L D, B, H)
    states: Shape,
    kept: Vec<Kept>,
}

/// Saved tensors of one direction for backward.
struct Kept {
    weight_hh: Tensor,
    /// (T, B, S H): see [`CellKind::saved`].
    gates: Tensor,
    /// (T, B, H), the states before each step.
    h_prev: Tensor,
    c_prev: Option<Tensor>,
}

impl Recurrence {
    /// Where a direction's part of the states begins.
    fn part(&self, direction: usize) -> usize {
        (self.layer * self.sizes.directions + direction) * self.sizes.batch * self.sizes.hidden
    }

    fn state_shape(&self) -> Shape {
        [self.sizes.batch, self.sizes.hidden].into()
    }

    /// A copy of a direction's part of one of the states.
    fn take(&self, states: &Tensor, direction: usize, kind: MemoryKind) -> Result<Tensor> {
        let part = Tensor::empty(Spec::new(self.state_shape(), DType::F32), &states.device(), kind)?;
        let copy = CopyPart { from: self.part(direction), to: 0, len: part.len(), of: part.shape().clone() };
        run_into(&copy, &[states], &[&part])?;
        Ok(part)
    }

    fn put(&self, part: &Tensor, states: &Tensor, direction: usize) -> Result<()> {
        let copy = CopyPart { from: 0, to: self.part(direction), len: part.len(), of: states.shape().clone() };
        run_into(&copy, &[part], &[states])
    }

    /// The steps of one direction in the order in which they are computed: the second begins at the end.
    fn steps(&self, direction: usize) -> Vec<usize> {
        let steps = 0..self.sizes.steps;
        if direction == 0 { steps.collect() } else { steps.rev().collect() }
    }

    /// Computes one direction: writes its part of y and of the states, and keeps what backward needs if `keep`.
    fn forward(
        &self,
        direction: usize,
        x_gates: &Tensor,
        (weight_hh, bias_hh): (&Tensor, Option<&Tensor>),
        states: &[Tensor],
        y: &Tensor,
        keep: bool,
    ) -> Result<Kept> {
        let Sizes { steps, batch, hidden, .. } = self.sizes;
        let kept_steps = if keep { steps } else { 1 };
        let kept = |width: usize| {
            let spec = Spec::new([kept_steps, batch, width], DType::F32);
            Tensor::empty(spec, &y.device(), MemoryKind::Activations)
        };
        let current: Vec<Tensor> = (states.iter())
            .map(|states| self.take(states, direction, MemoryKind::Activations))
            .collect::<Result<_>>()?;
        let (gates, h_prev) = (kept(self.kind.saved() * hidden)?, kept(hidden)?);
        let c_prev = (states.len() > 1).then(|| kept(hidden)).transpose()?;
        // The CPU would transpose the weight anew for each step.
        let trans_b = steps == 1 || y.device().is_gpu();
        let weight = if trans_b { weight_hh.detach() } else { weight_hh.detach().permute(&[1, 0])? };
        let product = MatMul { trans_b, bias: bias_hh.is_some(), ..MatMul::default() };
        for step in self.steps(direction) {
            let h_gates = run(&product, &present(&[Some(&current[0]), Some(&weight), bias_hh]))?.remove(0);
            let cell = Cell { kind: self.kind, sizes: self.sizes, step, kept_steps, direction };
            let outputs = [Some(&current[0]), Some(y), Some(&gates), Some(&h_prev), current.get(1), c_prev.as_ref()];
            run_into(&cell, &[x_gates, &h_gates], &present(&outputs))?;
        }
        current.iter().zip(states).try_for_each(|(part, states)| self.put(part, states, direction))?;
        Ok(Kept { weight_hh: weight_hh.detach(), gates, h_prev, c_prev })
    }

    /// Gradients of one direction, whose inputs begin with number `first`; `states` are those of the final states,
    /// which become those of the initial ones.
    fn direction_backward(
        &self,
        direction: usize,
        first: usize,
        dy: &Tensor,
        states: &[Tensor],
        grads: &mut Grads,
    ) -> Result<()> {
        let Sizes { steps, batch, hidden, .. } = self.sizes;
        let Kept { weight_hh, gates, h_prev, c_prev } = &self.kept[direction];
        let width = self.kind.gates() * hidden;
        let make = |shape: Shape| Tensor::empty(Spec::new(shape, DType::F32), &dy.device(), MemoryKind::Gradients);
        let current: Vec<Tensor> =
            (states.iter()).map(|states| self.take(states, direction, MemoryKind::Gradients)).collect::<Result<_>>()?;
        let (x_grad, step_grad) = (make([steps, batch, width].into())?, make([batch, width].into())?);
        // A GRU's reset gate stands between the two.
        let h_grad = (self.kind == CellKind::Gru).then(|| make([steps, batch, width].into())).transpose()?;
        let prev = match self.kind {
            CellKind::Rnn => None,
            CellKind::Lstm => c_prev.as_ref(),
            CellKind::Gru => Some(h_prev),
        };
        let product = MatMul { accumulate: self.kind == CellKind::Gru, ..MatMul::default() };
        for step in self.steps(direction).into_iter().rev() {
            let cell = CellBackward { kind: self.kind, sizes: self.sizes, step, direction };
            let inputs = present(&[Some(dy), Some(gates), prev]);
            let outputs = [Some(&current[0]), Some(&x_grad), Some(&step_grad), current.get(1), h_grad.as_ref()];
            run_into(&cell, &inputs, &present(&outputs))?;
            run_into(&product, &[&step_grad, weight_hh], &[&current[0]])?;
        }
        current.iter().zip(states).try_for_each(|(part, states)| self.put(part, states, direction))?;
        let h_grad = h_grad.as_ref().unwrap_or(&x_grad).as_rows();
        grads.accumulate_with(first + 1, &[&h_grad, &h_prev.as_rows()], |accumulate| MatMul {
            trans_a: true,
            accumulate,
            ..MatMul::default()
        })?;
        if self.bias {
            grads.accumulate_with(first + 2, &[&h_grad], |accumulate| SumRows {
                accumulate,
                len: width,
                outputs: 1,
            })?;
        }
        grads.accumulate(first, x_grad)
    }
}

/// Those that are there.
fn present<'a>(tensors: &[Option<&'a Tensor>]) -> Vec<&'a Tensor> {
    tensors.iter().copied().flatten().collect()
}

impl Op for Recurrence {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Sizes { steps, batch, hidden, directions } = self.sizes;
        let device = self.kept[0].gates.device();
        let zeros = |shape: Shape| Tensor::zeros_as(MemoryKind::Gradients, shape, DType::F32, &device);
        let dy = match &grad_output[0] {
            Some(dy) => dy.clone(),
            None => zeros([steps, batch, directions * hidden].into())?,
        };
        // Those of other layers are passed on, and those of this one replaced.
        let states = grad_output[1..].iter().map(|gradient| match gradient {
            Some(gradient) => grads.run_one(&CopyPart::whole(gradient.shape()), &[gradient]),
            None => zeros(self.states.clone()),
        });
        let states = states.collect::<Result<Vec<Tensor>>>()?;
        for direction in 0..directions {
            let first = states.len() + direction * (2 + self.bias as usize);
            self.direction_backward(direction, first, &dy, &states, grads)?;
        }
        states.into_iter().enumerate().try_for_each(|(i, gradient)| grads.accumulate(i, gradient))
    }
}

/// Fails unless everything fits; the sizes.
fn check(kind: CellKind, layer: usize, x: &Tensor, directions: &[RecurrentRef], states: &[&Tensor]) -> Result<Sizes> {
    let op = kind.op();
    let parameters =
        directions.iter().flat_map(|d| [d.weight_ih, d.weight_hh].into_iter().chain(d.bias.into_iter().flatten()));
    let all: Vec<&Tensor> = [x].into_iter().chain(states.iter().copied()).chain(parameters).collect();
    common_device(op, &all)?;
    let has_ids = x.dtype() == DType::U32;
    expect_f32(op, &all.iter().skip(has_ids as usize).map(|tensor| tensor.spec()).collect::<Vec<_>>())?;
    let (steps, batch, inputs) = match (&x.shape()[..], directions) {
        (&[steps, batch, inputs], _) if !has_ids => (steps, batch, inputs),
        (&[steps, batch], [first, ..]) if has_ids => (steps, batch, first.weight_ih.shape().last_dim()),
        _ => return Err(shape_error(op, "x of shape (T, B, I), or ids (T, B)", x.shape())),
    };
    if steps == 0 || !matches!(directions.len(), 1 | 2) {
        let got = format!("{steps} steps, {} directions", directions.len());
        return Err(shape_error(op, "a step or more, and one or two directions", got));
    }
    let hidden = states[0].shape().last_dim();
    let fits = |tensor: &Tensor, shape: &[usize], what: &str| match tensor.shape()[..] == *shape {
        true => Ok(()),
        false => Err(shape_error(op, format!("{what} of shape {}", Shape::from(shape)), tensor.shape())),
    };
    for state in states {
        let of_layers = |parts: usize| layer < parts / directions.len();
        let expected = || format!("states (L D, {batch}, H) of more than {layer} layers, all alike");
        if !matches!(state.shape()[..], [parts, b, h] if h > 0 && b == batch && of_layers(parts))
            || state.shape() != states[0].shape()
        {
            return Err(shape_error(op, expected(), state.shape()));
        }
    }
    let width = kind.gates() * hidden;
    for direction in directions {
        fits(direction.weight_ih, &[width, inputs], "weight_ih")?;
        fits(direction.weight_hh, &[width, hidden], "weight_hh")?;
        direction.bias.into_iter().flatten().try_for_each(|bias| fits(bias, &[width], "a bias"))?;
        if direction.bias.is_some() != directions[0].bias.is_some() {
            return Err(shape_error(op, "biases in both directions or in none", "some"));
        }
    }
    Ok(Sizes { steps, batch, hidden, directions: directions.len() })
}

/// The part of one direction's gates that comes from x and the biases (T, B, G H).
fn gates_of_x(kind: CellKind, x: &Tensor, direction: &RecurrentRef) -> Result<Tensor> {
    let bias = match (kind, direction.bias) {
        (_, None) => None,
        (CellKind::Gru, Some([bias_ih, _])) => Some(bias_ih.clone()),
        (_, Some([bias_ih, bias_hh])) => Some(bias_ih.add(bias_hh)?),
    };
    let bias = bias.as_ref();
    if x.dtype() != DType::U32 {
        return x.linear(direction.weight_ih, true, bias);
    }
    let columns = direction.weight_ih.permute(&[1, 0])?; // (I, G H)
    bias.map_or(Ok(columns.clone()), |bias| columns.add(bias))?.embedding(x)
}

fn recurrence<'a>(
    kind: CellKind,
    layer: usize,
    x: &Tensor,
    directions: &[RecurrentRef<'a>],
    states: &[&Tensor],
) -> Result<Vec<Tensor>> {
    let sizes = check(kind, layer, x, directions, states)?;
    let Sizes { steps, batch, hidden, .. } = sizes;
    let x_gates = directions.iter().map(|direction| gates_of_x(kind, x, direction)).collect::<Result<Vec<_>>>()?;
    let spec = Spec::new([steps, batch, sizes.directions * hidden], DType::F32);
    let y = Tensor::empty(spec, &x.device(), MemoryKind::Activations)?;
    // The others' are in `x_gates`.
    let bias_of_h =
        |direction: &RecurrentRef<'a>| direction.bias.filter(|_| kind == CellKind::Gru).map(|[_, b_hh]| b_hh);
    let bias = bias_of_h(&directions[0]).is_some();
    let mut op = Recurrence { kind, sizes, layer, bias, states: states[0].shape().clone(), kept: Vec::new() };
    let copy = |state: &&Tensor| Ok(run(&CopyPart::whole(state.shape()), &[state])?.remove(0));
    let finals = states.iter().map(copy).collect::<Result<Vec<Tensor>>>()?;
    let mut inputs = states.to_vec();
    for (direction, x_gates) in directions.iter().zip(&x_gates) {
        inputs.extend([x_gates, direction.weight_hh]);
        inputs.extend(bias_of_h(direction));
    }
    let keep = inputs.iter().any(|input| input.needs_grad());
    for (number, (direction, x_gates)) in directions.iter().zip(&x_gates).enumerate() {
        let recurrent = (direction.weight_hh, bias_of_h(direction));
        op.kept.push(op.forward(number, x_gates, recurrent, &finals, &y, keep)?);
    }
    Ok(record(Box::new(op), &inputs, [y].into_iter().chain(finals).collect()))
}

impl Tensor {
    /// Layer `layer` of a tanh RNN, in one or two directions: x (T, B, I) and states h (L D, B, H) -> y (T, B, D H),
    /// and the states with this layer's replaced. h' = tanh(W_ih x + b_ih + W_hh h + b_hh). x may be u32 ids (T, B),
    /// for which W_ih x is column `id` of W_ih, or NaN if out of range.
    ///
    /// # Errors
    /// If another tensor is not f32 or its shape does not fit, T is 0, or there are not one or two directions.
    pub fn rnn(&self, layer: usize, directions: &[RecurrentRef], h: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut outputs = recurrence(CellKind::Rnn, layer, self, directions, &[h])?;
        Ok((outputs.remove(0), outputs.remove(0)))
    }

    /// [`Tensor::rnn`] of an LSTM, with gates i, f, g, o and two states: c' = f c + i g, h' = o tanh(c').
    ///
    /// # Errors
    /// Those of [`Tensor::rnn`].
    pub fn lstm(
        &self,
        layer: usize,
        directions: &[RecurrentRef],
        states: [&Tensor; 2],
    ) -> Result<(Tensor, [Tensor; 2])> {
        let mut outputs = recurrence(CellKind::Lstm, layer, self, directions, &states)?;
        Ok((outputs.remove(0), [outputs.remove(0), outputs.remove(0)]))
    }

    /// [`Tensor::rnn`] of a GRU, with gates r, z, n: n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h' = (1 - z) n + z h.
    ///
    /// # Errors
    /// Those of [`Tensor::rnn`].
    pub fn gru(&self, layer: usize, directions: &[RecurrentRef], h: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut outputs = recurrence(CellKind::Gru, layer, self, directions, &[h])?;
        Ok((outputs.remove(0), outputs.remove(0)))
    }
}
