use super::*;
use crate::gpu::gpu_for_tests;
use crate::tensor::{DType, no_grad};
use crate::{Device, Error, Result, Tensor};

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_f32(values, [values.len()], &Device::Cpu).unwrap()
}

/// 301 numbers in -2..2, more than a workgroup has threads.
fn many() -> Tensor {
    let values: Vec<f32> = (0..301).map(|i| (i as f32 * 0.7).sin() * 2.0).collect();
    Tensor::from_f32(&values, [7, 43], &Device::Cpu).unwrap()
}

/// y = x^2 with parts that tests replace by wrong ones.
fn square(wgsl: &'static str, factor: f32) -> Builder {
    CustomOp::elementwise("square", &["x"], "y")
        .wgsl(wgsl)
        .cpu(|x, y| y[0].f32().iter_mut().zip(x[0].f32()).for_each(|(y, x)| *y = x * x))
        .backward(move |grads| Ok(vec![Some(grads.input(0)?.mul(grads.output_grad(0)?)?.scale(factor)?)]))
}

fn right() -> CustomOp {
    square("y[i] = x[i] * x[i];", 2.0).build().unwrap()
}

/// Sum and index of the maximum of every row, times a number of its own that token ids choose: two outputs of which one
/// has no gradient, workgroup memory, and shapes of several kinds.
fn rows() -> CustomOp {
    let specs = |x: &[&Spec]| {
        let [rows, columns] = x[0].shape[..] else {
            return Err(Error::Shape { op: "rows", expected: "(R, C)".into(), got: x[0].to_string() });
        };
        for (i, wanted) in [Spec::new([rows, columns], DType::F32), Spec::new([rows], DType::U32)].iter().enumerate() {
            if x[i] != wanted || columns == 0 {
                return Err(Error::Shape { op: "rows", expected: wanted.to_string(), got: x[i].to_string() });
            }
        }
        Ok(vec![Spec::new([rows], DType::F32), Spec::new([rows], DType::U32)])
    };
    CustomOp::builder("rows", &["x", "ids"], &["sums", "highest"], specs)
        .size("columns", |x, _| x[0].shape.last_dim())
        .declarations("var<workgroup> parts: array<f32, 64>;\nfn weight(id: u32) -> f32 { return 1.0 + f32(id); }")
        .wgsl_by_workgroup(
            64,
            |x, _| x[0].shape.rows(),
            "if (workgroup >= params.len) { return; }
             let row = workgroup * params.columns;
             parts[thread] = 0.0;
             for (var c = thread; c < params.columns; c += 64u) { parts[thread] += x[row + c]; }
             workgroupBarrier();
             if (thread == 0u) {
                 var sum = 0.0;
                 for (var t = 0u; t < 64u; t++) { sum += parts[t]; }
                 sums[workgroup] = sum * weight(ids[workgroup]);
                 var best = 0u;
                 for (var c = 1u; c < params.columns; c++) { if (x[row + c] > x[row + best]) { best = c; } }
                 highest[workgroup] = best;
             }",
        )
        .cpu(|x, y| {
            let columns = x[0].spec.shape.last_dim();
            let rows = x[0].f32().chunks(columns).zip(x[1].u32());
            let (sums, highest) = y.split_at_mut(1);
            for (i, (row, id)) in rows.enumerate() {
                sums[0].f32()[i] = row.iter().sum::<f32>() * (1.0 + *id as f32);
                let best = (0..columns).fold(0, |best, c| if row[c] > row[best] { c } else { best });
                highest[0].u32()[i] = best as u32;
            }
        })
        .backward(|grads| {
            let x = grads.input(0)?;
            let ids: Vec<f32> = grads.input(1)?.to_u32()?.iter().map(|id| 1.0 + *id as f32).collect();
            let weights = Tensor::from_f32(&ids, [ids.len()], &x.device())?;
            let by_row = grads.output_grad(0)?.mul(&weights)?.reshape([ids.len(), 1])?;
            Ok(vec![Some(by_row.expand(x.shape().clone())?), None])
        })
        .tolerance(1e-4, 1e-5)
        .build()
        .unwrap()
}

#[test]
fn an_op_that_is_right_passes_every_check() {
    let report = check(&right(), &[[many()], [tensor(&[0.5])]]).unwrap().into_result().unwrap();
    assert_eq!(report.gpus.is_empty(), gpu_for_tests().is_none());
    let expected = if report.gpus.is_empty() { 14 } else { 30 };
    assert!(report.checks.len() >= expected, "{} checks: {:#?}", report.checks.len(), report.checks);
    let ids = Tensor::from_u32(&[0, 3, 1, 1, 0, 2, 5], [7], &Device::Cpu).unwrap();
    check(&rows(), &[[many(), ids]]).unwrap().into_result().unwrap();
}

/// What the report says, where something must be wrong.
fn problems(op: &CustomOp, set: &[Tensor]) -> String {
    let report = check(op, &[set]).unwrap();
    report.into_result().unwrap_err().to_string()
}

#[test]
fn what_is_wrong_is_named() {
    let x = [many()];
    let said = problems(&square("y[i] = x[i] * x[i];", 3.0).build().unwrap(), &x);
    assert!(said.contains("gradient of input 0: along a random direction"), "{said}");
    let panics = square("y[i] = x[i] * x[i];", 2.0).cpu(|x, y| y[0].f32()[1] = x[0].f32()[1]).build().unwrap();
    let said = problems(&panics, &[tensor(&[3.0])]);
    assert!(said.contains("on the CPU: a closure of the op panics: index out of bounds"), "{said}");
    let unwritten = square("y[i] = x[i] * x[i];", 2.0).cpu(|x, y| y[0].f32()[0] = x[0].f32()[0].powi(2)).build();
    let said = problems(&unwritten.unwrap(), &x);
    assert!(said.contains("cpu writes every element: element 1 of output 0 depends on what"), "{said}");
    let infinite = square("y[i] = 1.0 / (x[i] - x[i]);", 2.0).cpu(|_, y| y[0].f32().fill(f32::INFINITY)).build();
    assert!(problems(&infinite.unwrap(), &x).contains("is finite: element 0 is inf"));
    let grads = |given: fn(&OutputGrads) -> Result<Vec<Option<Tensor>>>| {
        let op = square("y[i] = x[i] * x[i];", 2.0).backward(given).build().unwrap();
        problems(&op, &[tensor(&[1.0, 2.0])])
    };
    assert!(grads(|_| Ok(vec![])).contains("square gave 0 gradients for 1 inputs"));
    assert!(grads(|_| Ok(vec![None])).contains("square gave nothing as the gradient of input 0, f32 (2)"));
    assert!(grads(|g| Ok(vec![Some(g.input(0)?.sum(0)?)])).contains("square gave f32 () as the gradient of input 0"));
    assert!(grads(|g| Ok(vec![Some(g.output(0)?.clone())])).contains("square asks for kept output 0"));
    assert!(grads(|g| Ok(vec![Some(g.input(1)?.clone())])).contains("square asks for kept input 1"));
    assert!(check::<[Tensor; 1]>(&right(), &[]).unwrap().into_result().is_err());
    // Of an operand that `specs` should have refused.
    let accepts_all = CustomOp::builder("first", &["x"], &["y"], |_| Ok(vec![Spec::new([1], DType::F32)]))
        .wgsl("y[i] = x[i];")
        .cpu(|x, y| y[0].f32()[0] = x[0].f32()[0])
        .build();
    let said = problems(&accepts_all.unwrap(), &[tensor(&[1.0])]);
    assert!(said.contains("input 0 as f32 (0) is accepted: a closure of the op panics"), "{said}");
}

#[test]
fn what_is_wrong_on_a_gpu_is_named() {
    if gpu_for_tests().is_none() {
        return;
    }
    let x = [many()];
    let said = problems(&square("y[i] = x[i] * abs(x[i]);", 2.0).build().unwrap(), &x);
    assert!(said.contains("agrees with the CPU: output 0:"), "{said}");
    let said = problems(&square("if (i < 300u) { y[i] = x[i] * x[i]; }", 2.0).build().unwrap(), &x);
    assert!(said.contains("writes every element: element 300 of output 0"), "{said}");
}

#[test]
fn wgsl_that_does_not_compile_is_an_error_with_its_line() {
    let bad = |declarations, body| {
        let op = square(body, 2.0).declarations(declarations).build().unwrap();
        let said = problems(&op, &[many()]);
        if let Some(gpu) = gpu_for_tests() {
            let x = many().to_device(&Device::Gpu(gpu)).unwrap();
            // It stays one, and the GPU stays usable.
            for _ in 0..2 {
                let error = op.apply(&[&x]).unwrap_err();
                assert!(matches!(error, Error::Wgsl { op: "square", .. }), "{error}");
                assert!(said.contains(&error.to_string()), "{said}\n{error}");
            }
            assert_eq!(right().apply_one(&[&x]).unwrap().to_f32().unwrap().len(), 301);
        }
        said
    };
    if cfg!(not(feature = "gpu")) {
        return;
    }
    let said = bad("", "let a = x[i];\ny[i] = a * b;");
    assert!(said.contains("square: line 2 of its wgsl, `y[i] = a * b;`") && said.contains("`b`"), "{said}");
    let said = bad("const one = 1.0;\nfn two() -> f32 { return 2u; }", "y[i] = two();");
    assert!(said.contains("line 2 of its declarations, `fn two() -> f32 { return 2u; }`"), "{said}");
    let said = bad("", "y[i] = x[i]");
    assert!(said.contains("square: ") && said.contains("expected"), "{said}");
    let said = bad("", "x[i] = 1.0;\ny[i] = 1.0;");
    assert!(said.contains("line 1 of its wgsl"), "{said}");
    // A text of braces is not taken for a template.
    let said = bad("", "{{ y[i] = {% nonsense %}; }}");
    assert!(said.contains("line 1 of its wgsl"), "{said}");
}

#[test]
fn ops_of_one_name_are_told_apart_by_their_text_types_and_parameters() {
    let Some(gpu) = gpu_for_tests().map(Device::Gpu) else { return };
    let x = tensor(&[3.0, -1.0]).to_device(&gpu).unwrap();
    let named = |wgsl| CustomOp::elementwise("same", &["x"], "y").wgsl(wgsl).cpu(|_, _| {});
    let run = |builder: Builder| builder.build().unwrap().apply_one(&[&x]).unwrap().to_f32().unwrap();
    assert_eq!(run(named("y[i] = x[i];")), [3.0, -1.0]);
    assert_eq!(run(named("y[i] = x[i] + 1.0;")), [4.0, 0.0]);
    assert_eq!(run(named("y[i] = f32(params.k);").param("k", 5u32)), [5.0, 5.0]);
    assert_eq!(run(named("y[i] = f32(params.k);").param("k", 6u32)), [6.0, 6.0]);
    assert_eq!(run(named("y[i] = f32(params.k);").param("k", 0.5)), [0.5, 0.5]);
    let doubled = named("y[i] = value();").declarations("fn value() -> f32 { return 2.0; }");
    assert_eq!(run(doubled), [2.0, 2.0]);
}

#[test]
fn the_profile_has_it_by_its_name() {
    for device in Device::for_tests() {
        let x = many().to_device(&device).unwrap();
        let op = CustomOp::elementwise("profiled", &["x"], "y")
            .wgsl("y[i] = x[i];")
            .cpu(|x, y| y[0].f32().copy_from_slice(x[0].f32()))
            .flops_per_element(2.0)
            .build();
        device.time_kernels(true);
        op.unwrap().apply(&[&x]).unwrap();
        device.synchronize().unwrap();
        let profile = device.profiler().take();
        let total = profile.kernels.get("profiled").copied();
        // Without timestamps it is counted only.
        assert!(total.is_some() || profile.recorded.contains_key("profiled"), "{device}");
        if let Some(total) = total {
            assert_eq!((total.calls, total.flops, total.bytes), (1, 602.0, 2.0 * 4.0 * 301.0), "{device}");
        }
    }
}

#[test]
fn parts_that_make_no_sense_are_refused() {
    let complete = |inputs| CustomOp::elementwise("op", inputs, "y").wgsl("y[i] = 1.0;").cpu(|_, _| {});
    let specs = |x: &[&Spec]| Ok(vec![x[0].clone()]);
    let nine = &["a", "b", "c", "d", "e", "f", "g", "h"];
    let params = (0..32).fold(complete(&["x"]), |op, i| op.param(["a", "b"][i % 2], 1.0));
    for (builder, what) in [
        (CustomOp::elementwise("op", &["x"], "y").cpu(|_, _| {}), "`wgsl` is missing"),
        (CustomOp::elementwise("op", &["x"], "y").wgsl(""), "`cpu` is missing"),
        (CustomOp::elementwise("", &["x"], "y"), "is no name"),
        (CustomOp::elementwise("a.html", &["x"], "y"), "is no name"),
        (complete(&["x y"]), "is no name"),
        (complete(&["1x"]), "is no name"),
        (complete(&["x", "x"]), "two operands are called x"),
        (complete(&["y"]), "two operands are called y"),
        (complete(&[]), "needs an input"),
        (CustomOp::builder("op", &["x"], &[], specs).wgsl("").cpu(|_, _| {}), "needs an input"),
        (complete(nine), "more than 8 operands"),
        (complete(&["x"]).param("len", 1u32), "two parameters are called len"),
        (params, "two parameters are called a"),
        (complete(&["x"]).keeps(&[1], &[]), "`keeps`"),
        (complete(&["x"]).keeps(&[], &[1]), "`keeps`"),
        (complete(&["x"]).wgsl_by_workgroup(0, |_, _| 1, ""), "workgroups of 0 threads"),
        (complete(&["x"]).wgsl_by_workgroup(257, |_, _| 1, ""), "workgroups of 257 threads"),
        (complete(&["x"]).tolerance(f64::NAN, 0.0), "tolerance"),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(what), "{error}: {what}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let op = right();
    let none: [&Tensor; 0] = [];
    let x = tensor(&[1.0]);
    let ids = Tensor::from_u32(&[1], [1], &Device::Cpu).unwrap();
    assert!(matches!(op.apply(&none), Err(Error::Shape { op: "square", .. })));
    assert!(matches!(op.apply(&[&x, &x]), Err(Error::Shape { op: "square", .. })));
    assert!(matches!(op.apply(&[&ids]), Err(Error::DType { op: "square", .. })));
    let sum = CustomOp::elementwise("sum", &["a", "b"], "y").wgsl("y[i] = a[i] + b[i];").cpu(|_, _| {});
    let sum = sum.build().unwrap();
    assert!(matches!(sum.apply(&[&x, &many()]), Err(Error::Shape { op: "sum", .. })));
    // Without a backward nothing is cut off silently.
    let error = sum.apply(&[&x.requires_grad().unwrap(), &x]).unwrap_err();
    assert!(matches!(&error, Error::Autograd(what) if what.contains("sum has no backward")), "{error}");
    assert!(no_grad(|| sum.apply(&[&x.requires_grad().unwrap(), &x])).is_ok());
    let too_few = CustomOp::builder("few", &["x"], &["y"], |_| Ok(vec![])).wgsl("").cpu(|_, _| {}).build().unwrap();
    assert!(matches!(too_few.apply(&[&x]), Err(Error::Shape { op: "few", .. })));
    let Some(gpu) = gpu_for_tests().map(Device::Gpu) else { return };
    assert!(matches!(sum.apply(&[&x, &x.to_device(&gpu).unwrap()]), Err(Error::DeviceMismatch { op: "sum", .. })));
    let endless =
        CustomOp::elementwise("endless", &["x"], "y").wgsl_by_workgroup(1, |_, _| usize::MAX, "").cpu(|_, _| {});
    let huge =
        CustomOp::elementwise("huge", &["x"], "y").size("n", |_, _| usize::MAX).wgsl("y[i] = 1.0;").cpu(|_, _| {});
    for op in [endless, huge] {
        let error = op.build().unwrap().apply(&[&x.to_device(&gpu).unwrap()]).unwrap_err();
        assert!(matches!(error, Error::GpuLimit { .. }), "{error}");
    }
}
