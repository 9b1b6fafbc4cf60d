//! Comparisons, which return masks, and selection by a mask. Shapes are broadcast.
//!
//! | op | y | derivative |
//! |---|---|---|
//! | eq ne lt le gt ge | 1 where it holds, else 0, in f32 | none |
//! | where_cond | a where the mask is not 0, else b | da = dy where it is not 0, db = dy where it is |

use super::axes::for_each_run;
use super::broadcast::{Zip, broadcast_axes, broadcast_shape, operand_run, plan, strided_plan, zip};
use super::reduce::sum_to;
use super::*;
use crate::cpu::{vectorized, with_scratch};
use crate::gpu::{Limits, Plan};
use crate::tensor::{Grads, run};
use rayon::prelude::*;

/// A comparison, written for both devices.
struct Comparison {
    name: &'static str,
    wgsl: &'static str,
    f32: Zip<f32>,
    u32: Zip<u32>,
}

/// A row of [`comparisons!`]. Inputs: a and b, both f32 or both u32.
struct Compare(&'static Comparison);

/// Each row defines a `Tensor` method: its operator in WGSL, which is Rust's.
macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident $operator:tt;)*) => {
        /// Every row's name and method, for tests and benchmarks.
        #[allow(clippy::type_complexity)] // A name for the type would be said here alone.
        pub const COMPARISONS: &[(&str, fn(&Tensor, &Tensor) -> Result<Tensor>)] =
            &[$((stringify!($name), Tensor::$name),)*];

        impl Tensor {
            $($(#[$doc])*
            ///
            /// An f32 mask: 1 where true, 0 where false, without a gradient. Shapes are broadcast as in NumPy.
            ///
            /// # Errors
            /// If the shapes do not fit, or the tensors are not of one type.
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                static COMPARISON: Comparison = Comparison {
                    name: stringify!($name),
                    wgsl: concat!("select(vec4<f32>(0.0), vec4<f32>(1.0), a ", stringify!($operator), " b)"),
                    f32: |a, b, _, y| map(a, b, y, #[inline(always)] |a, b| a $operator b),
                    u32: |a, b, _, y| map(a, b, y, #[inline(always)] |a, b| a $operator b),
                };
                Ok(run(&Compare(&COMPARISON), &[self, other])?.remove(0))
            })*
        }
    };
}

comparisons! {
    /// Whether `self == other`, elementwise.
    eq ==;
    /// Whether `self != other`, elementwise.
    ne !=;
    /// Whether `self < other`, elementwise.
    lt <;
    /// Whether `self <= other`, elementwise.
    le <=;
    /// Whether `self > other`, elementwise.
    gt >;
    /// Whether `self >= other`, elementwise.
    ge >=;
}

fn map<T: Copy>(a: &[T], b: &[T], y: &mut [f32], holds: impl Fn(T, T) -> bool) {
    vectorized(
        #[inline(always)]
        || y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = if holds(*a, *b) { 1.0 } else { 0.0 }),
    );
}

impl Kernel for Compare {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_dtype(self.name(), inputs[0].dtype, inputs)?;
        Ok(vec![Spec::new(broadcast_shape(self.name(), [&inputs[0].shape, &inputs[1].shape])?, DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (to, [a, b]) = (&outputs[0].spec.shape, [&inputs[0], &inputs[1]]);
        let shapes = [&a.spec.shape, &b.spec.shape];
        match a.spec.dtype {
            DType::U32 => zip(to, [(shapes[0], a.u32()), (shapes[1], b.u32())], &[], outputs[0].f32(), self.0.u32),
            _ => zip(to, [(shapes[0], a.f32()), (shapes[1], b.f32())], &[], outputs[0].f32(), self.0.f32),
        }
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        plan(self.0.wgsl, false, [inputs[0], inputs[1]], &[], outputs[0])
    }
}

/// Inputs: mask, a, b.
struct Where {
    /// Those of a and of b.
    shapes: [Shape; 2],
}

/// dy where the mask is not 0, or where it is 0; else 0. Inputs: mask, dy.
struct Masked {
    inverted: bool,
}

impl Kernel for Where {
    fn name(&self) -> &'static str {
        "where_cond"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        if inputs[0].dtype == DType::U32 {
            expect_f32(self.name(), &inputs[..1])?;
        }
        expect_float(self.name(), &inputs[1..])?;
        let shapes = [&inputs[0].shape, &inputs[1].shape, &inputs[2].shape];
        Ok(vec![Spec::new(broadcast_shape(self.name(), shapes)?, inputs[1].dtype)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let shapes = [0, 1, 2].map(|i: usize| &inputs[i].spec.shape);
        let axes = broadcast_axes(&outputs[0].spec.shape, shapes);
        let operands = [0, 1, 2].map(|i: usize| inputs[i].f32());
        outputs[0].f32().par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
            with_scratch(3 * CHUNK, |scratch| {
                for_each_run(&axes, 0, chunk * CHUNK, y, |places, y| {
                    let mut scratch = scratch.chunks_mut(CHUNK);
                    let [mask, a, b] = std::array::from_fn(|i| {
                        let scratch = scratch.next().expect("there is some for each operand");
                        operand_run(operands[i], places[i], &axes, i, y.len(), scratch)
                    });
                    vectorized(
                        #[inline(always)]
                        || {
                            for (((y, mask), a), b) in y.iter_mut().zip(mask).zip(a).zip(b) {
                                *y = if *mask != 0.0 { *a } else { *b };
                            }
                        },
                    );
                });
            });
        });
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let shapes = [&inputs[0].shape, &inputs[1].shape, &inputs[2].shape];
        let axes = broadcast_axes(&outputs[0].shape, shapes);
        let types = [0, 1, 2].map(|i: usize| inputs[i].dtype);
        match outputs[0].shape.elements() {
            0 => Plan::default(), // whose dimensions need not fit parameters
            _ => strided_plan("select(c, b, a != vec4<f32>(0.0))", false, types, &axes, &[], outputs[0]),
        }
    }
}

impl Op for Where {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        for (i, inverted) in [(1, false), (2, true)] {
            if grads.needs_grad(i) {
                let gradient = grads.run_one(&Masked { inverted }, &[saved.input(0)?, dy])?;
                grads.accumulate(i, sum_to(gradient, &self.shapes[i - 1])?)?;
            }
        }
        Ok(())
    }
}

impl Kernel for Masked {
    fn name(&self) -> &'static str {
        "where_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[1].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [mask, dy] = [0, 1].map(|i: usize| (&inputs[i].spec.shape, inputs[i].f32()));
        let f: Zip<f32> = match self.inverted {
            false => |mask, dy, _, dx| {
                select(
                    mask,
                    dy,
                    dx,
                    #[inline(always)]
                    |mask| mask != 0.0,
                )
            },
            true => |mask, dy, _, dx| {
                select(
                    mask,
                    dy,
                    dx,
                    #[inline(always)]
                    |mask| mask == 0.0,
                )
            },
        };
        zip(&outputs[0].spec.shape, [mask, dy], &[], outputs[0].f32(), f);
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let expression = match self.inverted {
            false => "select(vec4<f32>(0.0), b, a != vec4<f32>(0.0))",
            true => "select(vec4<f32>(0.0), b, a == vec4<f32>(0.0))",
        };
        plan(expression, false, [inputs[0], inputs[1]], &[], outputs[0])
    }
}

fn select(mask: &[f32], dy: &[f32], dx: &mut [f32], takes: impl Fn(f32) -> bool) {
    vectorized(
        #[inline(always)]
        || dx.iter_mut().zip(mask).zip(dy).for_each(|((dx, mask), dy)| *dx = if takes(*mask) { *dy } else { 0.0 }),
    );
}

impl Tensor {
    /// `a` where this mask is not 0, else `b`; as `torch.where`. Shapes are broadcast as in NumPy. The mask gets no
    /// gradient.
    ///
    /// # Errors
    /// If the shapes do not fit, the mask is neither f32 nor f16, or `a` and `b` are not both f32 or both f16.
    pub fn where_cond(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        apply_one(Where { shapes: [a.shape().clone(), b.shape().clone()] }, &[&self.detach(), a, b])
    }
}
