//! Elementwise functions of two tensors. The second may lack leading dimensions: its shape must be a suffix of the
//! first's, and it is repeated over the rest. Shapes: (..., S), (S) -> (..., S).
//!
//! | op | y | dy/da | dy/db |
//! |---|---|---|---|
//! | add | a + b | 1 | 1 |
//! | sub | a - b | 1 | -1 |
//! | mul | a b | b | a |
//! | div | a / b | 1/b | -a/b^2 |
//! | maximum | max(a, b) | 1 if a > b, 1/2 if equal | 1 - that |
//!
//! The gradient of a repeated b is the sum over its repetitions, in two passes without races ([`SumRows`]).

use super::reduce::SumRows;
use super::*;
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

/// An elementwise function of two tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Maximum,
}
use Binary::*;

/// What is computed from a, b and, for gradients, dy.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Value,
    GradA,
    /// Per element of a; the sum over repetitions comes after.
    GradB,
}

impl Binary {
    fn compute(self, part: Part, a: &[f32], b: &[f32], dy: &[f32], y: &mut [f32]) {
        match (self, part) {
            (Add, Part::Value) => map(a, b, dy, y, |a, b, _| a + b),
            (Sub, Part::Value) => map(a, b, dy, y, |a, b, _| a - b),
            (Mul, Part::Value) => map(a, b, dy, y, |a, b, _| a * b),
            (Div, Part::Value) => map(a, b, dy, y, |a, b, _| a / b),
            (Maximum, Part::Value) => map(a, b, dy, y, |a, b, _| if a > b { a } else { b }),
            (Add, _) | (Sub, Part::GradA) => map(a, b, dy, y, |_, _, dy| dy),
            (Sub, Part::GradB) => map(a, b, dy, y, |_, _, dy| -dy),
            (Mul, Part::GradA) => map(a, b, dy, y, |_, b, dy| dy * b),
            (Mul, Part::GradB) => map(a, b, dy, y, |a, _, dy| dy * a),
            (Div, Part::GradA) => map(a, b, dy, y, |_, b, dy| dy / b),
            (Div, Part::GradB) => map(a, b, dy, y, |a, b, dy| -dy * a / (b * b)),
            (Maximum, Part::GradA) => map(a, b, dy, y, |a, b, dy| dy * share(a, b)),
            (Maximum, Part::GradB) => map(a, b, dy, y, |a, b, dy| dy * share(b, a)),
        }
    }
}

/// How much of the gradient the first of two goes to: PyTorch halves it between equals.
fn share(a: f32, b: f32) -> f32 {
    if a > b {
        1.0
    } else if a == b {
        0.5
    } else {
        0.0
    }
}

/// y[i] = f(a[i], b[i mod len b], dy[i]); `dy` may be empty where f does not look at it.
fn map(a: &[f32], b: &[f32], dy: &[f32], y: &mut [f32], f: impl Fn(f32, f32, f32) -> f32 + Sync) {
    // Chunks of whole repetitions of b, so that the inner loop runs over plain slices.
    let repetitions = (CHUNK / b.len().max(1)).max(1);
    let chunk = if b.len() < a.len() { repetitions * b.len() } else { CHUNK };
    y.par_chunks_mut(chunk).enumerate().for_each(|(i, y)| {
        let start = i * chunk;
        let span = b.len().min(y.len());
        for (j, y) in y.chunks_mut(span).enumerate() {
            let at = start + j * span;
            let a = &a[at..at + y.len()];
            let b = if b.len() < chunk { &b[..y.len()] } else { &b[at % b.len()..][..y.len()] };
            match dy.get(at..at + y.len()) {
                Some(dy) => y.iter_mut().zip(a).zip(b).zip(dy).for_each(|(((y, a), b), dy)| *y = f(*a, *b, *dy)),
                None => y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = f(*a, *b, 0.0)),
            }
        }
    });
}

fn plan(op: Binary, part: Part, a: &Spec, b: &Spec) -> Plan {
    let elements = a.shape.elements();
    let part = match part {
        Part::Value => "value",
        Part::GradA => "grad_a",
        Part::GradB => "grad_b",
    };
    let len_b = b.shape.elements();
    // Vectors of b line up with those of a if b is repeated in whole vectors, or not at all.
    let vec_b = len_b.is_multiple_of(4) || len_b == elements;
    let mut buffers = vec![
        buffer("a", "vec4<f32>", Operand::Input(0)),
        buffer("b", DType::F32.wgsl(if vec_b { 4 } else { 1 }), Operand::Input(1)),
    ];
    buffers.extend((part != "value").then_some(buffer("grad_output", "vec4<f32>", Operand::Input(2))));
    buffers.push(buffer("result", "vec4<f32>", Operand::Output(0)));
    Plan::one(Launch {
        shader: shader!("binary"),
        values: vec![("op", op.name().into()), ("part", part.into()), ("vec_b", vec_b.into())],
        buffers,
        params: vec![param("len", elements), param("len_b", len_b)],
        workgroups: elements.div_ceil(1024),
    })
}

impl Kernel for Binary {
    fn name(&self) -> &'static str {
        match self {
            Add => "add",
            Sub => "sub",
            Mul => "mul",
            Div => "div",
            Maximum => "maximum",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), inputs)?;
        let (a, b) = (&inputs[0].shape, &inputs[1].shape);
        if !a.ends_with(b) {
            return Err(shape_error(self.name(), format!("a second shape that ends the first, {a}"), b));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        self.compute(Part::Value, inputs[0].f32(), inputs[1].f32(), &[], outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan(*self, Part::Value, inputs[0], inputs[1])
    }
}

impl Op for Binary {
    fn saves(&self) -> Saves {
        // Add and sub need only the shape of b, but that of a is the upstream's and b is small or shared anyway.
        match self {
            Add | Sub => Saves { inputs: &[1], outputs: &[] },
            Mul | Div | Maximum => Saves { inputs: &[0, 1], outputs: &[] },
        }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let b = saved.input(1);
        let a = if saved.has_input(0) { saved.input(0) } else { dy };
        let gradient = |grads: &Grads, part| grads.run_one(&Gradient { op: *self, part }, &[a, b, dy]);
        if grads.needs_grad(0) {
            let da = if matches!(self, Add | Sub) { dy.detach() } else { gradient(grads, Part::GradA)? };
            grads.accumulate(0, da)?;
        }
        if grads.needs_grad(1) {
            let db = if *self == Add { dy.detach() } else { gradient(grads, Part::GradB)? };
            if b.len() == db.len() {
                grads.accumulate(1, db)?;
            } else {
                grads.accumulate_with(1, &[&db], |accumulate| SumRows { accumulate, len: b.len(), outputs: 1 })?;
            }
        }
        Ok(())
    }
}

/// The gradient with respect to a or (before summing repetitions) b. Inputs: a, b, dy.
struct Gradient {
    op: Binary,
    part: Part,
}

impl Kernel for Gradient {
    fn name(&self) -> &'static str {
        "binary_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(2 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (a, b, dy) = (inputs[0].f32(), inputs[1].f32(), inputs[2].f32());
        self.op.compute(self.part, a, b, dy, outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        plan(self.op, self.part, inputs[0], inputs[1])
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $op:expr;)*) => {
        impl Tensor {
            $($(#[$doc])*
            ///
            /// The shape of `other` must end this tensor's shape.
            ///
            /// # Errors
            /// If it does not, or a tensor is not f32.
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                apply_one($op, &[self, other])
            })*
        }
    };
}

methods! {
    /// `self + other`.
    add = Add;
    /// `self - other`.
    sub = Sub;
    /// `self * other`, elementwise.
    mul = Mul;
    /// `self / other`, elementwise.
    div = Div;
    /// The larger of both, elementwise.
    maximum = Maximum;
}
