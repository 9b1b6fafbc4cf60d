//! Elementwise functions of two tensors. The second may lack leading dimensions: its shape must be a suffix of the
//! first's, and it is repeated over the rest. Shapes: (..., S), (S) -> (..., S).
//!
//! An op is one row of [`functions!`]: its name, then y, da and db as WGSL and as Rust.
//!
//! The gradient of a repeated b is the sum over its repetitions, in two passes without races ([`SumRows`]).

use super::reduce::SumRows;
use super::*;
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

/// What is computed from a, b and, for gradients, dy: an index into the arrays of a [`Function`].
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Value,
    GradA,
    /// Per element of a; the sum over repetitions comes after.
    GradB,
}

/// (a, b, dy, result).
type Compute = fn(&[f32], &[f32], &[f32], &mut [f32]);

/// An elementwise function of two tensors, written for both devices.
struct Function {
    name: &'static str,
    /// Whether the gradients do without a and b.
    linear: bool,
    /// y, da and db in terms of `a`, `b` and `dy`: vec4<f32>.
    wgsl: [&'static str; 3],
    cpu: [Compute; 3],
}

/// Each row defines a `Tensor` method and its gradients: y, da and db as WGSL on vectors, then as Rust on numbers.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident, linear: $linear:literal:
        $y_wgsl:literal, $da_wgsl:literal, $db_wgsl:literal,
        |$a:ident, $b:ident, $dy:ident| $y:expr, $da:expr, $db:expr;)*) => {
        /// The rows, by the names of their methods.
        #[allow(non_upper_case_globals)] // They are named as the methods are.
        mod rows {
            use super::*;

            $(#[allow(unused_variables)] // Not every gradient looks at all three.
            pub(super) static $name: Function = Function {
                name: stringify!($name),
                linear: $linear,
                wgsl: [$y_wgsl, $da_wgsl, $db_wgsl],
                cpu: [
                    |a, b, dy, y| map(a, b, dy, y, |$a, $b, $dy| $y),
                    |a, b, dy, y| map(a, b, dy, y, |$a, $b, $dy| $da),
                    |a, b, dy, y| map(a, b, dy, y, |$a, $b, $dy| $db),
                ],
            };)*
        }

        /// Every row's name and method: what is tested and timed of one is tested and timed of all.
        #[allow(clippy::type_complexity)]
        pub(crate) const METHODS: &[(&str, fn(&Tensor, &Tensor) -> Result<Tensor>)] =
            &[$((stringify!($name), Tensor::$name),)*];

        impl Tensor {
            $($(#[$doc])*
            ///
            /// The shape of `other` must end this tensor's shape.
            ///
            /// # Errors
            /// If it does not, or a tensor is not f32.
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                apply_one(Binary(&rows::$name), &[self, other])
            })*
        }
    };
}

functions! {
    /// `self + other`.
    add, linear: true: "a + b", "dy", "dy", |a, b, dy| a + b, dy, dy;
    /// `self - other`.
    sub, linear: true: "a - b", "dy", "-dy", |a, b, dy| a - b, dy, -dy;
    /// `self * other`, elementwise.
    mul, linear: false: "a * b", "dy * b", "dy * a", |a, b, dy| a * b, dy * b, dy * a;
    /// `self / other`, elementwise.
    div, linear: false: "a / b", "dy / b", "-dy * a / (b * b)", |a, b, dy| a / b, dy / b, -dy * a / (b * b);
    /// The larger of both, elementwise. Between equals each gets half the gradient, as in PyTorch.
    maximum, linear: false: "select(b, a, a > b)", "dy * wins(a, b)", "dy * wins(b, a)",
        |a, b, dy| if a > b { a } else { b }, dy * wins(a, b), dy * wins(b, a);
}

/// How much of the gradient of a maximum goes to the first of two.
fn wins(a: f32, b: f32) -> f32 {
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

/// A row applied to two tensors.
#[derive(Clone, Copy)]
struct Binary(&'static Function);

impl Binary {
    fn compute(self, part: Part, a: &[f32], b: &[f32], dy: &[f32], result: &mut [f32]) {
        (self.0.cpu[part as usize])(a, b, dy, result);
    }

    fn plan(self, part: Part, a: &Spec, b: &Spec) -> Plan {
        let elements = a.shape.elements();
        let len_b = b.shape.elements();
        // Vectors of b line up with those of a if b is repeated in whole vectors, or not at all.
        let vec_b = len_b.is_multiple_of(4) || len_b == elements;
        let mut buffers = vec![
            buffer("first", "vec4<f32>", Operand::Input(0)),
            buffer("second", DType::F32.wgsl(if vec_b { 4 } else { 1 }), Operand::Input(1)),
        ];
        buffers.extend((part != Part::Value).then_some(buffer("grad_output", "vec4<f32>", Operand::Input(2))));
        buffers.push(buffer("result", "vec4<f32>", Operand::Output(0)));
        Plan::one(Launch {
            shader: shader!("binary"),
            values: vec![
                ("expression", self.0.wgsl[part as usize].into()),
                ("gradient", (part != Part::Value).into()),
                ("vec_b", vec_b.into()),
            ],
            buffers,
            params: vec![param("len", elements), param("len_b", len_b)],
            workgroups: elements.div_ceil(1024),
        })
    }
}

impl Kernel for Binary {
    fn name(&self) -> &'static str {
        self.0.name
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
        self.plan(Part::Value, inputs[0], inputs[1])
    }
}

impl Op for Binary {
    fn saves(&self) -> Saves {
        // A linear function needs only the shape of b, but that of a is the output's and b is small or shared anyway.
        Saves { inputs: if self.0.linear { &[1] } else { &[0, 1] }, outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let b = saved.input(1);
        let a = if saved.has_input(0) { saved.input(0) } else { dy };
        let gradient = |grads: &Grads, part: Part| match self.0.wgsl[part as usize] {
            "dy" => Ok(dy.detach()), // Nothing to launch.
            _ => grads.run_one(&Gradient { op: *self, part }, &[a, b, dy]),
        };
        if grads.needs_grad(0) {
            let da = gradient(grads, Part::GradA)?;
            grads.accumulate(0, da)?;
        }
        if grads.needs_grad(1) {
            let db = gradient(grads, Part::GradB)?;
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
        self.op.plan(self.part, inputs[0], inputs[1])
    }
}
