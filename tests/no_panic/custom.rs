//! Ops of applications: parts that are missing, too many or of nothing, and operands that they do not take.

use super::{Defined, HUGE, Refused, Row, ids, zeros};
use rustyflow::custom::{Builder, CustomOp, OutputGrads, check};
use rustyflow::{Device, Error, Result, Tensor};

/// y = x.
fn copy() -> Builder {
    let builder = CustomOp::elementwise("copy", &["x"], "y").wgsl("y[i] = x[i];");
    builder.cpu(|inputs, outputs| outputs[0].f32().copy_from_slice(inputs[0].f32()))
}

/// No outputs are given, where one is promised.
fn of_no_outputs() -> Builder {
    let builder = CustomOp::builder("none", &["x"], &["y"], |_| Ok(Vec::new())).wgsl("");
    builder.cpu(|_, _| ())
}

/// What backward says to an op whose derivative asks for this.
fn asked(device: &Device, ask: fn(&OutputGrads) -> Result<Tensor>) -> Result<()> {
    let op = copy().backward(move |grads| Ok(vec![Some(ask(grads)?)])).build()?;
    op.apply_one(&[&zeros([3], device)?.requires_grad()?])?.sum(..)?.backward()
}

pub fn rows() -> Vec<Row> {
    vec![
        ("CustomOp::elementwise", Refused, |_| CustomOp::elementwise("", &[], "").build().map(drop)),
        ("CustomOp::elementwise", Refused, |_| {
            let names = &["a", "b", "c", "d", "e", "f", "g", "h", "i"];
            CustomOp::elementwise("many", names, "y").wgsl("").cpu(|_, _| ()).build().map(drop)
        }),
        ("CustomOp::builder", Refused, |_| CustomOp::builder("none", &["x"], &[], |_| Ok(vec![])).build().map(drop)),
        ("CustomOp::builder", Refused, |d| of_no_outputs().build()?.apply(&[&zeros([3], d)?]).map(drop)),
        ("CustomOp::apply", Refused, |_| copy().build()?.apply(&[]).map(drop)),
        ("CustomOp::apply", Refused, |d| copy().build()?.apply(&[&ids([3], d)?]).map(drop)),
        ("CustomOp::apply", Refused, |d| copy().build()?.apply(&[&zeros([3], d)?.requires_grad()?]).map(drop)),
        ("CustomOp::apply_one", Refused, |d| {
            let x = zeros([3], d)?;
            copy().build()?.apply_one(&[&x, &x]).map(drop)
        }),
        ("CustomOp::apply_one", Defined, |d| copy().build()?.apply_one(&[&zeros([0], d)?])?.to_f32().map(drop)),
        ("Builder::wgsl", Refused, |_| CustomOp::elementwise("half", &["x"], "y").wgsl("").build().map(drop)),
        ("Builder::cpu", Refused, |_| CustomOp::elementwise("half", &["x"], "y").cpu(|_, _| ()).build().map(drop)),
        ("Builder::wgsl_by_workgroup", Refused, |_| copy().wgsl_by_workgroup(0, |_, _| 1, "").build().map(drop)),
        ("Builder::declarations", Refused, |d| {
            let set = [zeros([3], d)?];
            check(&copy().declarations("what is no WGSL").build()?, &[set])?.into_result().map(drop)
        }),
        ("Builder::param", Refused, |_| copy().param("len", 1u32).build().map(drop)),
        ("Builder::param", Refused, |_| {
            let builder = CustomOp::builder("none", &["x"], &[], |_| Ok(vec![]));
            builder.param("a", f32::NAN).param("a", 1u32).build().map(drop)
        }),
        ("Builder::param", Refused, |_| copy().param("a", HUGE).build().map(drop)),
        ("Builder::size", Refused, |d| {
            let op = copy().size("size", |_, _| HUGE).build()?;
            if d.is_gpu() { op.apply(&[&zeros([3], d)?]).map(drop) } else { Err(Error::Invalid("of GPUs".into())) }
        }),
        ("Builder::backward", Refused, |d| {
            let op = copy().backward(|_| Ok(vec![])).build()?;
            op.apply_one(&[&zeros([3], d)?.requires_grad()?])?.sum(..)?.backward()
        }),
        ("Builder::keeps", Refused, |_| copy().keeps(&[HUGE], &[]).build().map(drop)),
        ("Builder::flops_per_element", Defined, |d| {
            copy().flops_per_element(f64::NAN).build()?.apply(&[&zeros([3], d)?]).map(drop)
        }),
        ("Builder::tolerance", Refused, |_| copy().tolerance(f64::NAN, -1.0).build().map(drop)),
        ("OutputGrads::input", Refused, |d| asked(d, |grads| grads.input(HUGE).cloned())),
        ("OutputGrads::output", Refused, |d| asked(d, |grads| grads.output(0).cloned())),
        ("OutputGrads::output_grad", Refused, |d| asked(d, |grads| grads.output_grad(HUGE).cloned())),
        ("OutputGrads::needs_grad", Defined, |d| {
            asked(d, |grads| {
                assert!(grads.needs_grad(0) && !grads.needs_grad(HUGE));
                grads.output_grad(0).cloned()
            })
        }),
        ("check", Refused, |_| check::<[Tensor; 1]>(&copy().build()?, &[])?.into_result().map(drop)),
    ]
}
