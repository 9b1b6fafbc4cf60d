//! Elementwise functions of one tensor, f32 or f16, computed in f32. Shapes: (...) -> (...).
//!
//! An op is one row of [`functions!`]: its name, the tensor saved for backward, y and dx as WGSL and as Rust.

use super::binary::power_by_base;
use super::*;
use crate::cpu::{math, vectorized};
use crate::gpu::{Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::Grads;
use rayon::prelude::*;

/// The tensor in terms of which the derivative is written, which the tape saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Nothing,
    Input,
    Output,
}

/// At most two; those that a function has not are 0.
type Constants = [f32; 2];

/// An elementwise function, written for both devices.
struct Function {
    name: &'static str,
    /// The names of its constants.
    constants: &'static [&'static str],
    keeps: Keeps,
    /// y, in terms of `x` and of constants such as `params.factor`: vec4<f32>.
    wgsl: &'static str,
    /// dx, in terms of `dy`, the constants, and the saved tensor, `x` or `y`.
    wgsl_derivative: &'static str,
    /// y of x.
    cpu: fn(&[f32], Constants, &mut [f32]),
    /// dx from the saved tensor and dy.
    cpu_derivative: fn(&[f32], &[f32], Constants, &mut [f32]),
}

/// Each row defines a `Tensor` method and its derivative: y and dx as WGSL on vectors, then as Rust on numbers. Its
/// arguments are constants, each with a value that it is tested with.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($constant:ident = $sample:literal),*) keeps $keeps:ident:
        $wgsl:literal, $derivative:literal,
        |$x:ident| $y:expr, |$kept:ident, $dy:ident| $dx:expr;)*) => {
        /// The rows, by the names of their methods.
        #[allow(non_upper_case_globals)] // They are named as the methods are.
        mod rows {
            use super::*;

            $(pub(super) static $name: Function = Function {
                name: stringify!($name),
                constants: &[$(stringify!($constant)),*],
                keeps: Keeps::$keeps,
                wgsl: $wgsl,
                wgsl_derivative: $derivative,
                #[allow(unused_variables)] // Not every derivative looks at all constants.
                cpu: |x, constants, y| {
                    let [$($constant,)* ..] = constants;
                    map(x, y, #[inline(always)] |$x: f32| $y)
                },
                #[allow(unused_variables)] // As above.
                cpu_derivative: |kept, dy, constants, dx| {
                    let [$($constant,)* ..] = constants;
                    map2(kept, dy, dx, #[inline(always)] |$kept: f32, $dy: f32| $dx)
                },
            };)*
        }

        /// Every row's name and method, for tests and benchmarks.
        pub const METHODS: &[(&str, fn(&Tensor) -> Result<Tensor>)] =
            &[$((stringify!($name), |x| x.$name($($sample),*)),)*];

        impl Tensor {
            $($(#[$doc])*
            ///
            /// # Errors
            /// If the tensor is neither f32 nor f16.
            pub fn $name(&self $(, $constant: f32)*) -> Result<Tensor> {
                apply_one(Unary { function: &rows::$name, constants: constants(&[$($constant),*]) }, &[self])
            })*
        }
    };
}

functions! {
    /// `-x`.
    neg() keeps Nothing: "-x", "-dy", |x| -x, |_kept, dy| -dy;
    /// `e^x`.
    exp() keeps Output: "exp(x)", "dy * y", |x| math::exp(x), |y, dy| dy * y;
    /// The natural logarithm.
    log() keeps Input: "log(x)", "dy / x", |x| x.ln(), |x, dy| dy / x;
    /// The square root.
    sqrt() keeps Output: "sqrt(x)", "dy * 0.5 / y", |x| x.sqrt(), |y, dy| dy * 0.5 / y;
    /// `1 / x`.
    recip() keeps Output: "1.0 / x", "-dy * y * y", |x| x.recip(), |y, dy| -dy * y * y;
    /// The sine of an angle in radians.
    sin() keeps Input: "sin4(x)", "dy * cos4(x)", |x| x.sin(), |x, dy| dy * x.cos();
    /// The cosine of an angle in radians.
    cos() keeps Input: "cos4(x)", "-dy * sin4(x)", |x| x.cos(), |x, dy| -dy * x.sin();
    /// `max(x, 0)`.
    relu() keeps Output: "max(x, vec4<f32>(0.0))", "select(vec4<f32>(0.0), dy, y > vec4<f32>(0.0))",
        |x| x.max(0.0), |y, dy| if y > 0.0 { dy } else { 0.0 };
    /// GELU (Hendrycks and Gimpel 2016) in the tanh form of GPT-2: `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    gelu() keeps Input: "gelu(x)", "dy * gelu_derivative(x)",
        |x| gelu_and_derivative(x)[0], |x, dy| dy * gelu_and_derivative(x)[1];
    /// `x sigmoid(x)`.
    silu() keeps Input: "x * sigmoid4(x)", "dy * (sigmoid4(x) + x * sigmoid4(x) * (1.0 - sigmoid4(x)))",
        |x| x * math::sigmoid(x), |x, dy| dy * (math::sigmoid(x) + x * math::sigmoid(x) * (1.0 - math::sigmoid(x)));
    /// `1 / (1 + e^-x)`.
    sigmoid() keeps Output: "sigmoid4(x)", "dy * y * (1.0 - y)", |x| math::sigmoid(x), |y, dy| dy * y * (1.0 - y);
    /// The hyperbolic tangent.
    tanh() keeps Output: "tanh4(x)", "dy * (1.0 - y * y)", |x| math::tanh(x), |y, dy| dy * (1.0 - y * y);
    /// `factor * x`.
    scale(factor = 0.37) keeps Nothing: "params.factor * x", "params.factor * dy",
        |x| factor * x, |_kept, dy| factor * dy;
    /// `|x|`. The gradient at 0 is 0, as in PyTorch.
    abs() keeps Input: "abs(x)", "dy * sign(x)", |x| x.abs(), |x, dy| dy * sign_of(x);
    /// -1, 0 or 1. The gradient is 0.
    sign() keeps Nothing: "sign(x)", "vec4<f32>(0.0)", |x| sign_of(x), |_kept, _dy| 0.0;
    /// The largest integer not above x. The gradient is 0.
    floor() keeps Nothing: "floor(x)", "vec4<f32>(0.0)", |x| x.floor(), |_kept, _dy| 0.0;
    /// x, but at least `min`, and at most `max`; infinities leave a side open. No gradient flows where x is outside.
    clamp(min = -0.5, max = 1.0) keeps Input: "min(max(x, vec4<f32>(params.min)), vec4<f32>(params.max))",
        "select(vec4<f32>(0.0), dy, (x >= vec4<f32>(params.min)) & (x <= vec4<f32>(params.max)))",
        |x| at_most(at_least(x, min), max), |x, dy| if x >= min && x <= max { dy } else { 0.0 };
    /// `x ^ exponent`. A negative x has a power if the exponent is whole.
    powf(exponent = 2.5) keeps Input: "power(x, vec4<f32>(params.exponent))",
        "dy * power_by_base(x, vec4<f32>(params.exponent))",
        |x| x.powf(exponent), |x, dy| dy * power_by_base(x, exponent);
    /// x where it is positive, else `negative_slope * x`.
    leaky_relu(negative_slope = 0.01) keeps Input: "select(params.negative_slope * x, x, x > vec4<f32>(0.0))",
        "select(params.negative_slope * dy, dy, x > vec4<f32>(0.0))",
        |x| if x > 0.0 { x } else { negative_slope * x }, |x, dy| if x > 0.0 { dy } else { negative_slope * dy };
    /// x where it is positive, else `alpha (e^x - 1)` (Clevert et al. 2015).
    elu(alpha = 1.3) keeps Input: "select(params.alpha * (exp(min(x, vec4<f32>(0.0))) - 1.0), x, x > vec4<f32>(0.0))",
        "select(dy * params.alpha * exp(min(x, vec4<f32>(0.0))), dy, x > vec4<f32>(0.0))",
        |x| if x > 0.0 { x } else { alpha * (math::exp(x) - 1.0) },
        |x, dy| if x > 0.0 { dy } else { dy * alpha * math::exp(x) };
    /// `log(1 + e^x)`.
    softplus() keeps Input: "max(x, vec4<f32>(0.0)) + log(1.0 + exp(-abs(x)))", "dy * sigmoid4(x)",
        |x| x.max(0.0) + (1.0 + math::exp(-x.abs())).ln(), |x, dy| dy * math::sigmoid(x);
    /// `x min(max(x + 3, 0), 6) / 6` (Howard et al. 2019).
    hardswish() keeps Input: "x * clamp(x + 3.0, vec4<f32>(0.0), vec4<f32>(6.0)) / 6.0",
        "dy * select(select(x / 3.0 + 0.5, vec4<f32>(1.0), x >= vec4<f32>(3.0)), vec4<f32>(0.0), x <= vec4<f32>(-3.0))",
        |x| x * at_most(at_least(x + 3.0, 0.0), 6.0) / 6.0,
        |x, dy| dy * if x <= -3.0 { 0.0 } else if x >= 3.0 { 1.0 } else { x / 3.0 + 0.5 };
}

/// As many as a kernel has room for.
fn constants(given: &[f32]) -> Constants {
    std::array::from_fn(|i| given.get(i).copied().unwrap_or(0.0))
}

/// -1, 0 or 1.
#[inline(always)]
fn sign_of(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}

/// The larger of both; NaN propagates.
#[inline(always)]
fn at_least(x: f32, bound: f32) -> f32 {
    if x < bound { bound } else { x }
}

/// The smaller of both; NaN propagates.
#[inline(always)]
fn at_most(x: f32, bound: f32) -> f32 {
    if x > bound { bound } else { x }
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

/// sqrt(2/pi), and the cubic coefficient of the tanh form of GELU.
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

/// GELU by (1 + tanh(z)) / 2 = sigmoid(2 z), without the cancellation where tanh(z) is near -1.
#[inline(always)]
pub(super) fn gelu_and_derivative(x: f32) -> [f32; 2] {
    let s = math::sigmoid(2.0 * GELU_SCALE * (x + GELU_CUBIC * x * x * x));
    [x * s, s + x * s * (1.0 - s) * 2.0 * GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * x * x)]
}

/// A row applied to a tensor.
#[derive(Clone, Copy)]
struct Unary {
    function: &'static Function,
    constants: Constants,
}

/// dx. Inputs: the saved tensor (dy if there is none), dy.
struct Derivative(Unary);

impl Unary {
    fn plan(self, derivative: bool, x: &Spec) -> Plan {
        let Unary { function, constants } = self;
        let elements = x.shape.elements();
        let kept = if function.keeps == Keeps::Output { "y" } else { "x" };
        let mut buffers = vec![buffer("operand", x.dtype.wgsl(4), Operand::Input(0))];
        buffers.extend(derivative.then_some(buffer("grad_output", x.dtype.wgsl(4), Operand::Input(1))));
        buffers.push(buffer("result", x.dtype.wgsl(4), Operand::Output(0)));
        let (operand, expression) = match derivative {
            true => (kept, function.wgsl_derivative),
            false => ("x", function.wgsl),
        };
        let constants = function.constants.iter().zip(constants).map(|(name, value)| param(name, value));
        Plan::one(Launch {
            shader: shader!(unary),
            values: vec![
                ("T", x.dtype.name().into()),
                ("operand_name", operand.into()),
                ("expression", expression.into()),
                ("derivative", derivative.into()),
            ],
            buffers,
            params: std::iter::once(param("len", elements)).chain(constants).collect(),
            workgroups: elements.div_ceil(1024),
        })
    }
}

impl Kernel for Unary {
    fn name(&self) -> &'static str {
        self.function.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        if inputs[0].dtype == DType::U32 {
            expect_f32(self.name(), inputs)?;
        }
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        (self.function.cpu)(inputs[0].f32(), self.constants, outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        self.plan(false, inputs[0])
    }
}

impl Op for Unary {
    fn saves(&self) -> Saves {
        match self.function.keeps {
            Keeps::Nothing => Saves::default(),
            Keeps::Input => Saves { inputs: &[0], outputs: &[] },
            Keeps::Output => Saves { inputs: &[], outputs: &[0] },
        }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let kept = match self.function.keeps {
            Keeps::Nothing => dy,
            Keeps::Input => saved.input(0)?,
            Keeps::Output => saved.output(0)?,
        };
        grads.accumulate(0, grads.run_one(&Derivative(*self), &[kept, dy])?)
    }
}

impl Kernel for Derivative {
    fn name(&self) -> &'static str {
        match self.0.function.name {
            "gelu" => "gelu_backward",
            "relu" => "relu_backward",
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
        (self.0.function.cpu_derivative)(inputs[0].f32(), inputs[1].f32(), self.0.constants, outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        self.0.plan(true, inputs[1])
    }
}
