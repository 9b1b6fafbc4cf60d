//! Elementwise functions of two tensors, broadcast as in NumPy (`broadcast.rs`).
//!
//! An op is one row of [`functions!`]: its name, then y, da and db as WGSL and as Rust.
//!
//! The gradient of a broadcast operand is the sum over the broadcast dimensions, in two passes without races
//! ([`SumRows`], [`sum_to`]).

use super::broadcast::{broadcast_shape, only_b_repeats, plan, zip};
use super::reduce::{SumRows, sum_to};
use super::*;
use crate::cpu::vectorized;
use crate::gpu::{Limits, Param, Plan, param};
use crate::tensor::Grads;

/// The output to compute: an index into the arrays of a [`Function`].
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Value,
    /// Per element of y, as for `GradB`; the sum over broadcast dimensions follows.
    GradA,
    GradB,
}

/// (a, b, dy, constant, result), all of one length; dy may be empty if the function does not use it.
type ZipWith = fn(&[f32], &[f32], &[f32], f32, &mut [f32]);

/// An elementwise function of two tensors, written for both devices.
pub(super) struct Function {
    pub name: &'static str,
    /// The name of its constant parameter; without one, the constant is 0.
    pub constant: Option<&'static str>,
    /// Whether the gradients do not depend on a and b.
    pub linear: bool,
    /// y, da and db in terms of `a`, `b`, `dy` and a constant such as `params.delta`: vec4<f32>.
    pub wgsl: [&'static str; 3],
    pub cpu: [ZipWith; 3],
}

/// A [`Function`]: y, da and db as WGSL on vectors, then as Rust on numbers.
macro_rules! function {
    ($name:ident($($constant:ident)?), linear: $linear:literal:
        $y_wgsl:literal, $da_wgsl:literal, $db_wgsl:literal,
        |$a:ident, $b:ident, $dy:ident| $y:expr, $da:expr, $db:expr) => {
        Function {
            name: stringify!($name),
            constant: [$(Some(stringify!($constant)),)? None][0],
            linear: $linear,
            wgsl: [$y_wgsl, $da_wgsl, $db_wgsl],
            cpu: [
                function!(@cpu ($($constant)?) |$a, $b, $dy| $y),
                function!(@cpu ($($constant)?) |$a, $b, $dy| $da),
                function!(@cpu ($($constant)?) |$a, $b, $dy| $db),
            ],
        }
    };
    (@cpu ($($constant:ident)?) |$a:ident, $b:ident, $dy:ident| $result:expr) => {
        |a, b, dy, _constant, y| {
            $(let $constant = _constant;)?
            #[allow(unused_variables)] // Not every part looks at all three.
            let () = map(a, b, dy, y, #[inline(always)] |$a: f32, $b: f32, $dy: f32| $result);
        }
    };
}
pub(super) use function;

/// Each row defines a `Tensor` method and its gradients: y, da and db as WGSL on vectors, then as Rust on numbers.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident, linear: $linear:literal:
        $y_wgsl:literal, $da_wgsl:literal, $db_wgsl:literal,
        |$a:ident, $b:ident, $dy:ident| $y:expr, $da:expr, $db:expr;)*) => {
        /// The rows, named like their methods.
        #[allow(non_upper_case_globals)] // They are named as the methods are.
        mod rows {
            use super::*;

            $(pub(super) static $name: Function = function!($name(), linear: $linear:
                $y_wgsl, $da_wgsl, $db_wgsl, |$a, $b, $dy| $y, $da, $db);)*
        }

        /// Every row's name and method, for tests and benchmarks.
        #[allow(clippy::type_complexity)] // A name for the type would be said here alone.
        pub const METHODS: &[(&str, fn(&Tensor, &Tensor) -> Result<Tensor>)] =
            &[$((stringify!($name), Tensor::$name),)*];

        impl Tensor {
            $($(#[$doc])*
            ///
            /// Shapes are broadcast as in NumPy.
            ///
            /// # Errors
            /// If the shapes cannot be broadcast, or the tensors are not both f32 or both f16.
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                Binary::apply(&rows::$name, 0.0, [self, other])
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
    /// The elementwise maximum. On ties, each operand gets half the gradient, as in PyTorch.
    maximum, linear: false: "select(b, a, a > b)", "dy * wins(a, b)", "dy * wins(b, a)",
        |a, b, dy| if a > b { a } else { b }, dy * wins(a, b), dy * wins(b, a);
    /// The elementwise minimum. On ties, each operand gets half the gradient, as in PyTorch.
    minimum, linear: false: "select(b, a, a < b)", "dy * wins(b, a)", "dy * wins(a, b)",
        |a, b, dy| if a < b { a } else { b }, dy * wins(b, a), dy * wins(a, b);
    /// `self ^ other`, elementwise. A negative base requires an integer exponent, and then the exponent's gradient is
    /// NaN.
    pow, linear: false: "power(a, b)", "dy * power_by_base(a, b)", "dy * power_by_exponent(a, b)",
        |a, b, dy| a.powf(b), dy * power_by_base(a, b), dy * power_by_exponent(a, b);
}

/// The share of a maximum's gradient that goes to the first operand.
#[inline(always)]
fn wins(a: f32, b: f32) -> f32 {
    if a > b {
        1.0
    } else if a == b {
        0.5
    } else {
        0.0
    }
}

/// The derivative of a^b with respect to a: 0 where b is 0.
#[inline(always)]
pub(super) fn power_by_base(a: f32, b: f32) -> f32 {
    if b == 0.0 { 0.0 } else { b * a.powf(b - 1.0) }
}

/// The derivative of a^b with respect to b: 0 where a is 0, unless a^b is infinite there.
#[inline(always)]
fn power_by_exponent(a: f32, b: f32) -> f32 {
    if a == 0.0 && b >= 0.0 { 0.0 } else { a.powf(b) * a.ln() }
}

/// y[i] = f(a[i], b[i], dy[i]); `dy` may be empty if f does not use it.
pub(super) fn map(a: &[f32], b: &[f32], dy: &[f32], y: &mut [f32], f: impl Fn(f32, f32, f32) -> f32) {
    vectorized(
        #[inline(always)]
        || match dy {
            [] => y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = f(*a, *b, 0.0)),
            dy => y.iter_mut().zip(a).zip(b).zip(dy).for_each(|(((y, a), b), dy)| *y = f(*a, *b, *dy)),
        },
    );
}

/// A row applied to two tensors of these shapes.
pub(super) struct Binary {
    function: &'static Function,
    constant: f32,
    shapes: [Shape; 2],
}

impl Binary {
    /// # Errors
    /// If the shapes cannot be broadcast, or the tensors are not both f32 or both f16.
    pub fn apply(function: &'static Function, constant: f32, operands: [&Tensor; 2]) -> Result<Tensor> {
        let shapes = operands.map(|x| x.shape().clone());
        apply_one(Binary { function, constant, shapes }, &operands)
    }
}

impl Function {
    fn compute(&self, part: Part, constant: f32, inputs: &[View], dy: &[f32], output: &mut ViewMut) {
        let [a, b] = [0, 1].map(|i: usize| (&inputs[i].spec.shape, inputs[i].f32()));
        let f = self.cpu[part as usize];
        zip(&output.spec.shape, [a, b], dy, output.f32(), |a, b, dy, y| f(a, b, dy, constant, y));
    }

    fn plan(&self, part: Part, constant: f32, inputs: &[&Spec], to: &Spec) -> Plan {
        let constants: Vec<Param> = self.constant.map(|name| param(name, constant)).into_iter().collect();
        plan(self.wgsl[part as usize], part != Part::Value, [inputs[0], inputs[1]], &constants, to)
    }
}

impl Kernel for Binary {
    fn name(&self) -> &'static str {
        self.function.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_float(self.name(), inputs)?;
        Ok(vec![Spec::new(broadcast_shape(self.name(), [&inputs[0].shape, &inputs[1].shape])?, inputs[0].dtype)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        self.function.compute(Part::Value, self.constant, inputs, &[], &mut outputs[0]);
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        self.function.plan(Part::Value, self.constant, inputs, outputs[0])
    }
}

impl Op for Binary {
    fn saves(&self) -> Saves {
        Saves { inputs: if self.function.linear { &[] } else { &[0, 1] }, outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let kept = |i| if saved.has_input(i) { saved.input(i) } else { Ok(dy) };
        let (a, b) = (kept(0)?, kept(1)?);
        let gradient = |grads: &Grads, part: Part| match self.function.wgsl[part as usize] {
            "dy" => Ok(dy.detach()), // Nothing to launch.
            _ => {
                let kernel = Gradient { function: self.function, constant: self.constant, part };
                grads.run_one(&kernel, &[a, b, dy])
            }
        };
        let [a, b] = &self.shapes;
        if grads.needs_grad(0) {
            let da = gradient(grads, Part::GradA)?;
            grads.accumulate(0, sum_to(da, a)?)?;
        }
        if grads.needs_grad(1) {
            let db = gradient(grads, Part::GradB)?;
            // Sums of rows are f32.
            if only_b_repeats(dy.shape(), a, b) && b.elements() != db.len() && db.dtype() == DType::F32 {
                let len = b.elements();
                grads.accumulate_with(1, &[&db], |accumulate| SumRows { accumulate, len, outputs: 1 })?;
            } else {
                grads.accumulate(1, sum_to(db, b)?)?;
            }
        }
        Ok(())
    }
}

/// The gradient with respect to a or b, before the sum over broadcast dimensions. Inputs: a, b, dy.
struct Gradient {
    function: &'static Function,
    constant: f32,
    part: Part,
}

impl Kernel for Gradient {
    fn name(&self) -> &'static str {
        "binary_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[2].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(2 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        self.function.compute(self.part, self.constant, inputs, inputs[2].f32(), &mut outputs[0]);
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        self.function.plan(self.part, self.constant, inputs, outputs[0])
    }
}
