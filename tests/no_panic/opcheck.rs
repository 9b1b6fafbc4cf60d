//! Ops of applications: derivatives that ask for what there is not, WGSL that does not compile.

use super::{Defined, HUGE, Refused, Row, ids, zeros};
use rustyflow::gpu::{Launch, Limits, Operand, Plan, Shader, buffer, param};
use rustyflow::opcheck::check;
use rustyflow::profile::Cost;
use rustyflow::tensor::{DType, Grads, Kernel, Op, Saved, Saves, Spec, View, ViewMut, apply};
use rustyflow::{Error, Result, Tensor};

/// y = x of f32, with this body and derivative.
#[derive(Clone)]
struct Copy(&'static str, fn(&Saved, &Tensor, &mut Grads) -> Result<()>);

const COPY: Copy = Copy("y[i] = x[i];", |_, dy, grads| grads.accumulate(0, dy.clone()));

impl Kernel for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        match inputs[0].dtype {
            DType::F32 => Ok(vec![inputs[0].clone()]),
            other => Err(Error::DType { op: "copy", expected: "f32", got: other.name() }),
        }
    }

    fn cost(&self, _: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: f64::NAN, bytes: f64::NAN }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        outputs[0].f32().copy_from_slice(inputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        Plan::one(Launch {
            shader: Shader::checked("copy", "{{ interface }}\n{{ for_each(1) }}\n{{ body }}\n}"),
            values: vec![("body", self.0.into())],
            buffers: vec![buffer("x", "f32", Operand::Input(0)), buffer("y", "f32", Operand::Output(0))],
            params: vec![param("len", len)],
            workgroups: len.div_ceil(256),
        })
    }
}

impl Op for Copy {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        grad_output[0].iter().try_for_each(|dy| (self.1)(saved, dy, grads))
    }
}

/// Differentiates a copy by this.
fn differentiated(device: &rustyflow::Device, backward: fn(&Saved, &Tensor, &mut Grads) -> Result<()>) -> Result<()> {
    apply(Copy(COPY.0, backward), &[&zeros([3], device)?.requires_grad()?])?[0].sum(..)?.backward()
}

pub fn rows() -> Vec<Row> {
    vec![
        ("apply", Defined, |d| apply(COPY, &[&zeros([0], d)?])?[0].to_f32().map(drop)),
        ("apply", Refused, |_| apply(COPY, &[]).map(drop)),
        ("apply", Refused, |d| apply(COPY, &[&ids([3], d)?]).map(drop)),
        ("apply", Refused, |d| differentiated(d, |saved, _, grads| grads.accumulate(0, saved.input(HUGE)?.clone()))),
        ("apply", Refused, |d| differentiated(d, |saved, _, grads| grads.accumulate(0, saved.output(0)?.clone()))),
        ("apply", Refused, |d| differentiated(d, |_, dy, grads| grads.accumulate(HUGE, dy.clone()))),
        ("apply", Defined, |d| {
            differentiated(d, |saved, dy, grads| {
                assert!(grads.needs_grad(0) && !grads.needs_grad(HUGE) && !saved.has_input(HUGE));
                grads.accumulate(0, dy.clone())
            })
        }),
        ("check", Refused, |d| {
            check(&Copy("what is no WGSL", COPY.1), &[[zeros([3], d)?]], [0.0; 2])?.into_result().map(drop)
        }),
        ("check", Refused, |_| check::<_, [Tensor; 1]>(&COPY, &[], [0.0; 2])?.into_result().map(drop)),
        ("check", Refused, |d| check(&COPY, &[[zeros([3], d)?]], [f64::NAN, -1.0]).map(drop)),
        ("Shader::checked", Defined, |_| {
            assert!(Shader::checked("", "").checked);
            Ok(())
        }),
    ]
}
