//! Binary cross-entropy of logits a against probabilities b, with weights c of positives. Shapes: a and b (...), c
//! broadcast to (...) -> (...).
//!
//! y = (1 - b) a + (1 + (c - 1) b) log(1 + e^-a)
//! da = dy ((1 - b) - (1 + (c - 1) b) sigmoid(-a))    db = dy ((c - 1) log(1 + e^-a) - a)

use super::pointwise::expect_same_shape;
use super::*;
use crate::cpu::{math, vectorized, with_scratch};
use crate::gpu::{Limits, Plan};
use crate::ops::axes::for_each_run;
use crate::ops::broadcast::{broadcast_axes, broadcast_shape, operand_run, strided_plan};
use crate::tensor::{Edge, Grads};
use rayon::prelude::*;

/// The output to compute from a, b, c and, for gradients, dy.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Value,
    GradA,
    GradB,
}

/// Inputs: a, b, c, and for gradients dy.
struct WeightedBce {
    name: &'static str,
    part: Part,
}

pub(super) fn apply(name: &'static str, [x, target, weight]: [&Tensor; 3]) -> Result<Tensor> {
    expect_same_shape(name, x, target)?;
    if !matches!(weight.edge(), Edge::None) {
        return Err(Error::Autograd(format!("{name}: the weight of positives has no gradient; detach it")));
    }
    apply_one(WeightedBce { name, part: Part::Value }, &[x, target, weight])
}

/// log(1 + e^-x)
#[inline(always)]
fn softplus_of_negative(x: f32) -> f32 {
    (-x).max(0.0) + (1.0 + math::exp(-x.abs())).ln()
}

impl WeightedBce {
    #[inline(always)]
    fn compute(part: Part, a: f32, b: f32, c: f32) -> f32 {
        match part {
            Part::Value => (1.0 - b) * a + (1.0 + (c - 1.0) * b) * softplus_of_negative(a),
            Part::GradA => (1.0 - b) - (1.0 + (c - 1.0) * b) * math::sigmoid(-a),
            Part::GradB => (c - 1.0) * softplus_of_negative(a) - a,
        }
    }
}

impl Kernel for WeightedBce {
    fn name(&self) -> &'static str {
        if self.part == Part::Value { self.name } else { "weighted_bce_backward" }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_f32(self.name(), inputs)?;
        let to = broadcast_shape(self.name(), [&inputs[0].shape, &inputs[1].shape, &inputs[2].shape])?;
        if to != inputs[0].shape {
            let expected = format!("a weight of positives that is broadcast to {}", inputs[0].shape);
            return Err(shape_error(self.name(), expected, &inputs[2].shape));
        }
        Ok(vec![Spec::new(to, DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(8 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let shapes = [0, 1, 2].map(|i: usize| &inputs[i].spec.shape);
        let axes = broadcast_axes(&outputs[0].spec.shape, shapes);
        let operands = [0, 1, 2].map(|i: usize| inputs[i].f32());
        let grad_output = inputs.get(3).map(View::f32);
        let part = self.part;
        outputs[0].f32().par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
            with_scratch(3 * CHUNK, |scratch| {
                let mut at = chunk * CHUNK;
                for_each_run(&axes, 0, at, y, |places, y| {
                    let mut scratch = scratch.chunks_mut(CHUNK);
                    let [a, b, c] = std::array::from_fn(|i| {
                        let scratch = scratch.next().expect("there is some for each operand");
                        operand_run(operands[i], places[i], &axes, i, y.len(), scratch)
                    });
                    let dy = grad_output.map(|dy| &dy[at..at + y.len()]);
                    at += y.len();
                    vectorized(
                        #[inline(always)]
                        || {
                            for (((y, a), b), c) in y.iter_mut().zip(a).zip(b).zip(c) {
                                *y = WeightedBce::compute(part, *a, *b, *c);
                            }
                            for (y, dy) in y.iter_mut().zip(dy.unwrap_or_default()) {
                                *y *= dy;
                            }
                        },
                    );
                });
            });
        });
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let expression = match self.part {
            Part::Value => {
                "(1.0 - b) * a + (1.0 + (c - 1.0) * b) * (max(-a, vec4<f32>(0.0)) + log(1.0 + exp(-abs(a))))"
            }
            Part::GradA => "dy * ((1.0 - b) - (1.0 + (c - 1.0) * b) / (1.0 + exp(a)))",
            Part::GradB => "dy * ((c - 1.0) * (max(-a, vec4<f32>(0.0)) + log(1.0 + exp(-abs(a)))) - a)",
        };
        let shapes = [&inputs[0].shape, &inputs[1].shape, &inputs[2].shape];
        let axes = broadcast_axes(&outputs[0].shape, shapes);
        match outputs[0].shape.elements() {
            0 => Plan::default(), // whose dimensions need not fit parameters
            _ => strided_plan(expression, self.part != Part::Value, [DType::F32; 3], &axes, &[], outputs[0]),
        }
    }
}

impl Op for WeightedBce {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1, 2], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        for (i, part) in [(0, Part::GradA), (1, Part::GradB)] {
            if grads.needs_grad(i) {
                let kernel = WeightedBce { name: self.name, part };
                let inputs = [saved.input(0)?, saved.input(1)?, saved.input(2)?, dy];
                grads.accumulate(i, grads.run_one(&kernel, &inputs)?)?;
            }
        }
        Ok(())
    }
}
