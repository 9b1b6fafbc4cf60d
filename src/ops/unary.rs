//! Elementwise functions of one tensor. Shapes: any -> the same.
//!
//! | op | y | dy/dx |
//! |---|---|---|
//! | scale(c) | c x | c |
//! | neg | -x | -1 |
//! | exp | e^x | y |
//! | log | ln x | 1/x |
//! | sqrt | x^(1/2) | 1/(2y) |
//! | recip | 1/x | -y^2 |
//! | sin, cos | | cos x, -sin x |
//! | relu | max(x, 0) | 1 if x > 0 else 0 |
//! | gelu | x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016, the tanh form of GPT-2) | |
//! | silu | x sigmoid(x) | s + y (1 - s) |
//! | sigmoid | 1/(1 + e^-x) | y (1 - y) |
//! | tanh | | 1 - y^2 |

use super::*;
use crate::cpu::{math, vectorized};
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

/// An elementwise function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    Scale(f32),
    Neg,
    Exp,
    Log,
    Sqrt,
    Recip,
    Sin,
    Cos,
    Relu,
    Gelu,
    Silu,
    Sigmoid,
    Tanh,
}
use Unary::*;

/// sqrt(2/pi), and the cubic coefficient of the tanh form of GELU.
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

impl Unary {
    /// y = f(x).
    fn forward(self, x: &[f32], y: &mut [f32]) {
        match self {
            Scale(c) => map(x, y, |x| c * x),
            Neg => map(x, y, |x| -x),
            Exp => map(x, y, math::exp),
            Log => map(x, y, f32::ln),
            Sqrt => map(x, y, f32::sqrt),
            Recip => map(x, y, f32::recip),
            Sin => map(x, y, f32::sin),
            Cos => map(x, y, f32::cos),
            Relu => map(x, y, |x| x.max(0.0)),
            Gelu => map(x, y, gelu),
            Silu => map(x, y, |x| x * math::sigmoid(x)),
            Sigmoid => map(x, y, math::sigmoid),
            Tanh => map(x, y, math::tanh),
        }
    }

    /// dx = dy f'(s), where s is what was saved: the output where `saves` names it, else the input.
    fn derivative(self, s: &[f32], dy: &[f32], dx: &mut [f32]) {
        match self {
            Scale(c) => map2(s, dy, dx, |_, dy| c * dy),
            Neg => map2(s, dy, dx, |_, dy| -dy),
            Exp => map2(s, dy, dx, |y, dy| dy * y),
            Log => map2(s, dy, dx, |x, dy| dy / x),
            Sqrt => map2(s, dy, dx, |y, dy| dy * 0.5 / y),
            Recip => map2(s, dy, dx, |y, dy| -dy * y * y),
            Sin => map2(s, dy, dx, |x, dy| dy * x.cos()),
            Cos => map2(s, dy, dx, |x, dy| -dy * x.sin()),
            Relu => map2(s, dy, dx, |y, dy| if y > 0.0 { dy } else { 0.0 }),
            Gelu => map2(
                s,
                dy,
                dx,
                #[inline(always)]
                |x, dy| dy * gelu_derivative(x),
            ),
            Silu => map2(s, dy, dx, |x, dy| {
                let s = math::sigmoid(x);
                dy * (s + x * s * (1.0 - s))
            }),
            Sigmoid => map2(s, dy, dx, |y, dy| dy * y * (1.0 - y)),
            Tanh => map2(s, dy, dx, |y, dy| dy * (1.0 - y * y)),
        }
    }

    /// What the shader calls it, and its parameter.
    fn shader_values(self) -> (&'static str, f32) {
        match self {
            Scale(c) => ("scale", c),
            _ => (self.name(), 0.0),
        }
    }

    fn plan(self, derivative: bool, elements: usize) -> Plan {
        let (op, factor) = self.shader_values();
        let mut buffers = vec![buffer(if derivative { "saved" } else { "x" }, "vec4<f32>", Operand::Input(0))];
        buffers.extend(derivative.then_some(buffer("grad_output", "vec4<f32>", Operand::Input(1))));
        buffers.push(buffer("result", "vec4<f32>", Operand::Output(0)));
        Plan::one(Launch {
            shader: shader!("unary"),
            values: vec![("op", op.into()), ("derivative", derivative.into())],
            buffers,
            params: vec![param("len", elements), param("factor", factor)],
            workgroups: elements.div_ceil(1024),
        })
    }
}

fn map(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32 + Sync) {
    y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| {
        vectorized(
            #[inline(always)]
            || {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = f(*x);
                }
            },
        );
    });
}

fn map2(a: &[f32], b: &[f32], y: &mut [f32], f: impl Fn(f32, f32) -> f32 + Sync) {
    y.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK)).for_each(|((y, a), b)| {
        vectorized(
            #[inline(always)]
            || {
                for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                    *y = f(*a, *b);
                }
            },
        );
    });
}

/// (1 + tanh(z)) / 2 = sigmoid(2 z), without the cancellation where tanh(z) is near -1.
#[inline(always)]
fn gelu_sigmoid(x: f32) -> f32 {
    math::sigmoid(2.0 * GELU_SCALE * (x + GELU_CUBIC * x * x * x))
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * gelu_sigmoid(x)
}

#[inline(always)]
fn gelu_derivative(x: f32) -> f32 {
    gelu_and_derivative(x)[1]
}

#[inline(always)]
pub(super) fn gelu_and_derivative(x: f32) -> [f32; 2] {
    let s = gelu_sigmoid(x);
    [x * s, s + x * s * (1.0 - s) * 2.0 * GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * x * x)]
}

impl Kernel for Unary {
    fn name(&self) -> &'static str {
        match self {
            Scale(_) => "scale",
            Neg => "neg",
            Exp => "exp",
            Log => "log",
            Sqrt => "sqrt",
            Recip => "recip",
            Sin => "sin",
            Cos => "cos",
            Relu => "relu",
            Gelu => "gelu",
            Silu => "silu",
            Sigmoid => "sigmoid",
            Tanh => "tanh",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), inputs)?;
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        self.forward(inputs[0].f32(), outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        self.plan(false, inputs[0].shape.elements())
    }
}

impl Op for Unary {
    fn saves(&self) -> Saves {
        match self {
            Scale(_) | Neg => Saves::default(),
            Log | Sin | Cos | Gelu | Silu => Saves { inputs: &[0], outputs: &[] },
            Exp | Sqrt | Recip | Relu | Sigmoid | Tanh => Saves { inputs: &[], outputs: &[0] },
        }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let saves = self.saves();
        let point = match (saves.inputs, saves.outputs) {
            ([], []) => dy,
            ([], _) => saved.output(0),
            _ => saved.input(0),
        };
        grads.accumulate(0, grads.run_one(&Derivative(*self), &[point, dy])?)
    }
}

/// dx = dy * f'(saved). Inputs: saved, dy.
struct Derivative(Unary);

impl Kernel for Derivative {
    fn name(&self) -> &'static str {
        match self.0 {
            Gelu => "gelu_backward",
            Relu => "relu_backward",
            _ => "unary_backward",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[1].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(2 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        self.0.derivative(inputs[0].f32(), inputs[1].f32(), outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        self.0.plan(true, inputs[1].shape.elements())
    }
}

impl Tensor {
    /// `factor * x`.
    ///
    /// # Errors
    /// If the tensor is not f32.
    pub fn scale(&self, factor: f32) -> Result<Tensor> {
        apply_one(Scale(factor), &[self])
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $op:expr;)*) => {
        impl Tensor {
            $($(#[$doc])*
            ///
            /// # Errors
            /// If the tensor is not f32.
            pub fn $name(&self) -> Result<Tensor> {
                apply_one($op, &[self])
            })*
        }
    };
}

methods! {
    /// `-x`.
    neg = Neg;
    /// `e^x`.
    exp = Exp;
    /// The natural logarithm.
    log = Log;
    /// The square root.
    sqrt = Sqrt;
    /// `1 / x`.
    recip = Recip;
    /// The sine of an angle in radians.
    sin = Sin;
    /// The cosine of an angle in radians.
    cos = Cos;
    /// `max(x, 0)`.
    relu = Relu;
    /// GELU in the tanh form that GPT-2 uses.
    gelu = Gelu;
    /// `x * sigmoid(x)`.
    silu = Silu;
    /// `1 / (1 + e^-x)`.
    sigmoid = Sigmoid;
    /// The hyperbolic tangent.
    tanh = Tanh;
}
