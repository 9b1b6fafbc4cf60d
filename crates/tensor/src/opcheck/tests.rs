use super::*;
use crate::gpu::{Launch, Limits, Operand, Plan, Shader, Value, buffer, gpu_for_tests, param};
use crate::profile::Cost;
use crate::tensor::{DType, Grads, Op, Saved, Saves, Spec, View, ViewMut, apply};
use crate::{Device, Error, Result};

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_f32(values, [values.len()], &Device::Cpu).unwrap()
}

/// 301 numbers in -2..2, more than a workgroup has threads.
fn many() -> Tensor {
    let values: Vec<f32> = (0..301).map(|i| (i as f32 * 0.7).sin() * 2.0).collect();
    Tensor::from_f32(&values, [7, 43], &Device::Cpu).unwrap()
}

/// y = x^2 with parts that tests replace by wrong ones.
#[derive(Clone)]
struct Square {
    wgsl: &'static str,
    outputs: fn(&Spec) -> Vec<Spec>,
    cpu: fn(&[f32], &mut [f32]),
    backward: fn(&Saved, &Tensor, &mut Grads) -> Result<()>,
    values: Vec<(&'static str, Value)>,
    /// Beside `len`.
    param: Option<f32>,
    workgroups: Option<usize>,
}

const SQUARE: &str = "{{ interface }}\n{{ for_each(1) }}\ny[i] = x[i] * x[i];\n}";

impl Default for Square {
    fn default() -> Square {
        Square {
            wgsl: SQUARE,
            outputs: |x| vec![x.clone()],
            cpu: |x, y| y.iter_mut().zip(x).for_each(|(y, x)| *y = x * x),
            backward: |saved, dy, grads| grads.accumulate(0, saved.input(0)?.mul(dy)?.scale(2.0)?),
            values: Vec::new(),
            param: None,
            workgroups: None,
        }
    }
}

impl Kernel for Square {
    fn name(&self) -> &'static str {
        "square"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        match inputs[0].dtype {
            DType::F32 => Ok((self.outputs)(inputs[0])),
            other => Err(Error::DType { op: "square", expected: "f32", got: other.name() }),
        }
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: inputs[0].shape.elements() as f64, bytes: 2.0 * inputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        (self.cpu)(inputs[0].f32(), outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        let mut params = vec![param("len", len)];
        params.extend(self.param.map(|value| param("k", value)));
        Plan::one(Launch {
            shader: Shader::checked("square", self.wgsl),
            values: self.values.clone(),
            buffers: vec![buffer("x", "f32", Operand::Input(0)), buffer("y", "f32", Operand::Output(0))],
            params,
            workgroups: self.workgroups.unwrap_or(len.div_ceil(256)),
        })
    }
}

impl Op for Square {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        (self.backward)(saved, dy, grads)
    }
}

/// Sum and index of the maximum of every row: two outputs of which one has no gradient, workgroup memory.
#[derive(Clone)]
struct Rows;

const ROWS: &str = "{{ interface }}
var<workgroup> parts: array<f32, 64>;
{{ entry(64) }}
    if (workgroup >= params.rows) { return; }
    let row = workgroup * params.columns;
    parts[thread] = 0.0;
    for (var c = thread; c < params.columns; c += 64u) { parts[thread] += x[row + c]; }
    workgroupBarrier();
    if (thread == 0u) {
        var sum = 0.0;
        for (var t = 0u; t < 64u; t++) { sum += parts[t]; }
        sums[workgroup] = sum;
        var best = 0u;
        for (var c = 1u; c < params.columns; c++) { if (x[row + c] > x[row + best]) { best = c; } }
        highest[workgroup] = best;
    }
}";

impl Kernel for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        match (&inputs[0].shape[..], inputs[0].dtype) {
            (&[rows, columns], DType::F32) if columns > 0 => {
                Ok(vec![Spec::new([rows], DType::F32), Spec::new([rows], DType::U32)])
            }
            _ => Err(Error::Shape { op: "rows", expected: "f32 (R, C)".into(), got: inputs[0].to_string() }),
        }
    }

    fn cost(&self, _: &[&Spec], _: &[&Spec]) -> Cost {
        Cost::default()
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let columns = inputs[0].spec.shape.last_dim();
        let [sums, highest] = outputs else { return };
        for (i, row) in inputs[0].f32().chunks(columns).enumerate() {
            sums.f32()[i] = row.iter().sum();
            highest.u32()[i] = (0..columns).fold(0, |best, c| if row[c] > row[best] { c } else { best }) as u32;
        }
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let rows = outputs[0].shape.elements();
        let written = [("sums", "f32", Operand::Output(0)), ("highest", "u32", Operand::Output(1))];
        let buffers = [("x", "f32", Operand::Input(0))].into_iter().chain(written);
        Plan::one(Launch {
            shader: Shader::checked("rows", ROWS),
            values: Vec::new(),
            buffers: buffers.map(|(name, element, operand)| buffer(name, element, operand)).collect(),
            params: vec![param("rows", rows), param("columns", inputs[0].shape.last_dim())],
            workgroups: rows,
        })
    }
}

impl Op for Rows {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, dy.reshape([dy.len(), 1])?.expand(saved.input(0)?.shape().clone())?)
    }
}

#[test]
fn an_op_that_is_right_passes_every_check() {
    let report = check(&Square::default(), &[[many()], [tensor(&[0.5])]], [1e-5; 2]).unwrap().into_result().unwrap();
    assert_eq!(report.gpus.is_empty(), gpu_for_tests().is_none());
    let expected = if report.gpus.is_empty() { 14 } else { 30 };
    assert!(report.checks.len() >= expected, "{} checks: {:#?}", report.checks.len(), report.checks);
    check(&Rows, &[[many()]], [1e-4, 1e-5]).unwrap().into_result().unwrap();
}

/// What the report says, where something must be wrong.
fn problems(op: &Square, set: &[Tensor]) -> String {
    let report = check(op, &[set], [1e-5; 2]).unwrap();
    report.into_result().unwrap_err().to_string()
}

#[test]
fn what_is_wrong_is_named() {
    let x = [many()];
    let wrong =
        Square { backward: |saved, dy, grads| grads.accumulate(0, saved.input(0)?.mul(dy)?), ..Square::default() };
    let said = problems(&wrong, &x);
    assert!(said.contains("gradient of input 0: along a random direction"), "{said}");
    let panics = Square { cpu: |x, y| y[1] = x[1], ..Square::default() };
    let said = problems(&panics, &[tensor(&[3.0])]);
    assert!(said.contains("on the CPU: the op panics: index out of bounds"), "{said}");
    let unwritten = Square { cpu: |x, y| y[0] = x[0].powi(2), ..Square::default() };
    let said = problems(&unwritten, &x);
    assert!(said.contains("cpu writes every element: element 1 of output 0 depends on what"), "{said}");
    let infinite = Square { cpu: |_, y| y.fill(f32::INFINITY), ..Square::default() };
    assert!(problems(&infinite, &x).contains("is finite: element 0 is inf"));
    // Of an operand that `output_specs` should have refused.
    let accepts_all =
        Square { outputs: |_| vec![Spec::new([1], DType::F32)], cpu: |x, y| y[0] = x[0], ..Square::default() };
    let said = problems(&accepts_all, &[tensor(&[1.0])]);
    assert!(said.contains("input 0 as f32 (0) is accepted: the op panics"), "{said}");
    assert!(check::<_, [Tensor; 1]>(&Square::default(), &[], [1e-5; 2]).unwrap().into_result().is_err());
    assert!(check(&Square::default(), &[x], [f64::NAN, 0.0]).is_err());
}

#[test]
fn a_derivative_that_makes_no_sense_is_an_error() {
    for (backward, expected) in [
        ((|_, _, _| Ok(())) as fn(&Saved, &Tensor, &mut Grads) -> Result<()>, "backward says 0.000000"),
        (|saved, _, grads| grads.accumulate(0, saved.output(0)?.clone()), "reads output 0, which its `saves` does not"),
        (|saved, _, grads| grads.accumulate(0, saved.input(1)?.clone()), "reads input 1, which its `saves` does not"),
        (|_, dy, grads| grads.accumulate(1, dy.clone()), "gives a gradient of input 1, and it has 1"),
        (|_, dy, grads| grads.accumulate(0, dy.argmax(0)?), "gives u32 () as the gradient of input 0"),
        (|_, dy, grads| grads.accumulate(0, dy.sum(0)?), "expected an output f32 ()"),
    ] {
        let said = problems(&Square { backward, ..Square::default() }, &[tensor(&[1.0, 2.0])]);
        assert!(said.contains(expected), "{said}\n{expected}");
    }
}

#[test]
fn what_is_wrong_on_a_gpu_is_named() {
    if gpu_for_tests().is_none() {
        return;
    }
    let x = [many()];
    let wgsl = "{{ interface }}\n{{ for_each(1) }}\ny[i] = x[i] * abs(x[i]);\n}";
    let said = problems(&Square { wgsl, ..Square::default() }, &x);
    assert!(said.contains("agrees with the CPU: output 0:"), "{said}");
    let wgsl = "{{ interface }}\n{{ for_each(1) }}\nif (i < 300u) { y[i] = x[i] * x[i]; }\n}";
    let said = problems(&Square { wgsl, ..Square::default() }, &x);
    assert!(said.contains("writes every element: element 300 of output 0"), "{said}");
}

#[test]
fn wgsl_that_does_not_compile_is_an_error_with_its_line() {
    if cfg!(not(feature = "gpu")) {
        return;
    }
    for (wgsl, expected) in [
        (
            "{{ interface }}\n{{ for_each(1) }}\nlet a = x[i];\ny[i] = a * b;\n}",
            "WGSL of square, line 4, `y[i] = a * b;`",
        ),
        (
            "{{ interface }}\nfn two() -> f32 { return 2u; }\n{{ for_each(1) }}\ny[i] = two();\n}",
            "WGSL of square, line 2, `fn",
        ),
        ("{{ interface }}\n{{ for_each(1) }}\nx[i] = 1.0;\ny[i] = 1.0;\n}", "WGSL of square, line 3"),
        ("{{ interface }}\n{{ for_each(1) }}\ny[i] = x[i]\n}", "expected"),
        ("{{ interface }}\n{{ for_each(1) }}\ny[i] = x[i];\n{% nonsense %}\n}", "WGSL of square, line 4: its template"),
        ("{{ interface }}\n{{ for_each(1) }}\ny[i] = {{ unknown }};\n}", "WGSL of square, line 3: its template"),
        ("fn main() {}", "it needs exactly one entry point"),
    ] {
        let op = Square { wgsl, ..Square::default() };
        let said = problems(&op, &[many()]);
        assert!(said.contains(expected), "{said}\n{expected}");
        let Some(gpu) = gpu_for_tests().map(Device::Gpu) else { continue };
        let x = many().to_device(&gpu).unwrap();
        // It stays one, and the GPU stays usable.
        for _ in 0..2 {
            let error = apply(op.clone(), &[&x]).map(drop).unwrap_err();
            assert!(matches!(error, Error::Wgsl { op: "square", .. }), "{error}");
            assert!(said.contains(&error.to_string()), "{said}\n{error}");
        }
        assert_eq!(
            apply(Square::default(), &[&x]).unwrap()[0].to_f32().unwrap()[1],
            0.7f32.sin().mul_add(2.0, 0.0).powi(2)
        );
    }
}

#[test]
fn shaders_of_one_name_are_told_apart_by_their_text_and_values() {
    let Some(gpu) = gpu_for_tests().map(Device::Gpu) else { return };
    let x = tensor(&[3.0, -1.0]).to_device(&gpu).unwrap();
    let run = |op: Square| apply(op, &[&x]).map(|y| y[0].to_f32().unwrap());
    assert_eq!(run(Square::default()).unwrap(), [9.0, 1.0]);
    let wgsl = "{{ interface }}\n{{ for_each(1) }}\ny[i] = x[i] + 1.0;\n}";
    assert_eq!(run(Square { wgsl, ..Square::default() }).unwrap(), [4.0, 0.0]);
    let wgsl = "{{ interface }}\n{{ for_each(1) }}\ny[i] = {{ k }}.0;\n}";
    for (k, expected) in [(5u32, [5.0, 5.0]), (6, [6.0, 6.0])] {
        assert_eq!(run(Square { wgsl, values: vec![("k", k.into())], ..Square::default() }).unwrap(), expected);
    }
    // A parameter that the values say nothing of.
    let error = run(Square { param: Some(1.0), ..Square::default() }).unwrap_err();
    assert!(error.to_string().contains("declare different buffers or parameters"), "{error}");
}

#[test]
fn launches_that_no_gpu_can_run_are_refused() {
    let Some(gpu) = gpu_for_tests().map(Device::Gpu) else { return };
    let x = tensor(&[3.0]).to_device(&gpu).unwrap();
    let error = apply(Square { workgroups: Some(usize::MAX), ..Square::default() }, &[&x]).map(drop).unwrap_err();
    assert!(matches!(error, Error::GpuLimit { .. }), "{error}");
    assert_eq!(apply(Square::default(), &[&x]).unwrap()[0].to_f32().unwrap(), [9.0]);
}

#[test]
fn an_op_without_inputs_or_outputs_is_refused() {
    let error = apply(Square::default(), &[]).map(drop).unwrap_err();
    assert!(matches!(error, Error::Shape { op: "square", .. }), "{error}");
    let error = apply(Square { outputs: |_| Vec::new(), ..Square::default() }, &[&many()]).map(drop).unwrap_err();
    assert!(matches!(error, Error::Shape { op: "square", .. }), "{error}");
}

#[test]
fn the_profile_has_it_by_its_name() {
    for device in Device::for_tests() {
        let x = many().to_device(&device).unwrap();
        device.time_kernels(true);
        apply(Square::default(), &[&x]).unwrap();
        device.synchronize().unwrap();
        let profile = device.profiler().take();
        // Without timestamps it is counted only.
        let counted = profile.kernels.contains_key("square") || profile.recorded.contains_key("square");
        assert!(counted, "{device}");
    }
}
