//! Gradients of reductions: dx (outer, n, inner) from operands of the output's shape (outer, inner).

use super::kernel::ReduceDims;
use super::*;
use crate::cpu::{math, vectorized};
use crate::gpu::{Limits, Operand, Plan, Value, buffer, param};
use crate::shader;
use rayon::prelude::*;

/// dx = factor * dy. Input: dy.
pub(super) struct BroadcastDim {
    pub dims: ReduceDims,
    pub factor: f32,
    /// The shape of dx.
    pub to: Shape,
}

impl Kernel for BroadcastDim {
    fn name(&self) -> &'static str {
        "sum_backward"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.to.clone(), DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let ReduceDims { n, inner, .. } = self.dims;
        let dy = inputs[0].f32();
        outputs[0].f32().par_chunks_mut(inner.max(1)).enumerate().for_each(|(row, dx)| {
            let from = row / n * inner;
            for (dx, dy) in dx.iter_mut().zip(&dy[from..from + inner]) {
                *dx = self.factor * dy;
            }
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let (n, len) = (self.dims.n, self.dims.elements());
        if len == 0 {
            return Plan::default(); // whose dimensions need not fit parameters
        }
        let Vectors { elements, values, of_output, inner } = vectors(self.dims);
        let of_thread = if self.dims.vector().1 { 4 * elements } else { elements };
        Plan::one(Launch {
            shader: shader!(reduce),
            values: [vec![("mode", "broadcast".into())], values].concat(),
            buffers: vec![
                buffer("grad_output", of_output, Operand::Input(0)),
                buffer("result", DType::F32.wgsl(elements), Operand::Output(0)),
            ],
            params: vec![param("len", len), param("n", n), param("inner", inner), param("factor", self.factor)],
            workgroups: len.div_ceil(256 * of_thread),
        })
    }
}

/// How the threads of a gradient divide its elements.
struct Vectors {
    /// Of each thread.
    elements: usize,
    values: Vec<(&'static str, Value)>,
    /// The type of what belongs to the outputs of a thread.
    of_output: &'static str,
    /// In units of those.
    inner: usize,
}

fn vectors(dims: ReduceDims) -> Vectors {
    let (elements, along_n) = dims.vector();
    let width = if along_n { 1 } else { elements };
    let values = [("vector", elements.into()), ("along_n", along_n.into())];
    let unused = [("cols", 0usize.into()), ("lanes", 0usize.into())];
    let values = values.into_iter().chain(unused).collect();
    Vectors { elements, values, of_output: DType::F32.wgsl(width), inner: dims.inner / width }
}

/// Formula of a gradient in terms of x, dy and two operands by output, `c` and `d`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Derivative {
    /// Maximum or minimum c, shared by d elements.
    Extreme,
    /// Product: c is that of the nonzero elements, d the number of zeros.
    Prod,
    /// Logsumexp, whose value is c.
    LogSumExp,
    /// factor * dy * (x - c): variance about c.
    Deviation(f32),
}

/// dx, in the shape of x. Inputs: x, c, d if there is one, dy.
pub(super) struct ReduceBackward {
    pub name: &'static str,
    pub derivative: Derivative,
    pub dims: ReduceDims,
}

impl ReduceBackward {
    fn wgsl(&self) -> &'static str {
        match self.derivative {
            Derivative::Extreme => "select(0.0, dy / d, x == c)",
            Derivative::Prod => "dy * select(select(0.0, c / x, d == 0.0), select(0.0, c, d == 1.0), x == 0.0)",
            // All of nothing but -infinity is 0.
            Derivative::LogSumExp => "dy * exp(x - select(c, 0.0, c < -3.4028234e38))",
            Derivative::Deviation(_) => "dy * params.factor * (x - c)",
        }
    }

    fn has_d(&self) -> bool {
        matches!(self.derivative, Derivative::Extreme | Derivative::Prod)
    }

    /// dx of contiguous elements, each with its own output or all with the same one.
    #[inline(always)]
    fn row(&self, x: &[f32], c: &[f32], d: &[f32], dy: &[f32], dx: &mut [f32]) {
        match self.derivative {
            Derivative::Extreme => map(x, c, d, dy, dx, |x, c, d, dy| if x == c { dy / d } else { 0.0 }),
            Derivative::Prod => map(x, c, d, dy, dx, |x, c, d, dy| match (x == 0.0, d == 0.0, d == 1.0) {
                (true, _, true) => dy * c,
                (false, true, _) => dy * (c / x),
                _ => 0.0,
            }),
            Derivative::LogSumExp => {
                map(x, c, c, dy, dx, |x, c, _, dy| dy * math::exp(x - if c == f32::NEG_INFINITY { 0.0 } else { c }))
            }
            Derivative::Deviation(factor) => map(x, c, c, dy, dx, |x, c, _, dy| dy * factor * (x - c)),
        }
    }
}

/// `f` of x and of what belongs to its output: as many as x, or one.
#[inline(always)]
fn map(x: &[f32], c: &[f32], d: &[f32], dy: &[f32], dx: &mut [f32], f: impl Fn(f32, f32, f32, f32) -> f32) {
    if let ([c], [d], [dy]) = (c, d, dy) {
        return dx.iter_mut().zip(x).for_each(|(dx, x)| *dx = f(*x, *c, *d, *dy));
    }
    for ((((dx, x), c), d), dy) in dx.iter_mut().zip(x).zip(c).zip(d).zip(dy) {
        *dx = f(*x, *c, *d, *dy);
    }
}

impl Kernel for ReduceBackward {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(3 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let ReduceDims { n, inner, .. } = self.dims;
        let (x, c, d) = (inputs[0].f32(), inputs[1].f32(), inputs[if self.has_d() { 2 } else { 1 }].f32());
        let dy = inputs[inputs.len() - 1].f32();
        // Elements of one output are a row; else those side by side are.
        let width = if inner == 1 { n } else { inner }.max(1);
        let rows = outputs[0].f32().par_chunks_mut(width).zip(x.par_chunks(width));
        rows.enumerate().for_each(|(row, (dx, x))| {
            let first = if inner == 1 { row } else { row / n * inner };
            let of_outputs = first..first + inner;
            let [c, d, dy] = [c, d, dy].map(|values| &values[of_outputs.clone()]);
            vectorized(
                #[inline(always)]
                || self.row(x, c, d, dy, dx),
            );
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let (n, len, has_d) = (self.dims.n, self.dims.elements(), self.has_d());
        if len == 0 {
            return Plan::default(); // whose dimensions need not fit parameters
        }
        let factor = if let Derivative::Deviation(factor) = self.derivative { factor } else { 1.0 };
        let Vectors { elements, values, of_output, inner } = vectors(self.dims);
        let of_x = DType::F32.wgsl(elements);
        let mut buffers =
            vec![buffer("x_values", of_x, Operand::Input(0)), buffer("c_values", of_output, Operand::Input(1))];
        buffers.extend(has_d.then_some(buffer("d_values", of_output, Operand::Input(2))));
        buffers.push(buffer("grad_output", of_output, Operand::Input(buffers.len())));
        buffers.push(buffer("result", of_x, Operand::Output(0)));
        Plan::one(Launch {
            shader: shader!(reduce),
            values: [
                vec![("mode", "backward".into()), ("expression", self.wgsl().into()), ("has_d", has_d.into())],
                values,
            ]
            .concat(),
            buffers,
            params: vec![param("len", len), param("n", n), param("inner", inner), param("factor", factor)],
            workgroups: len.div_ceil(256 * elements),
        })
    }
}
