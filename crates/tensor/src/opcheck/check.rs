//! One call that runs the library's own op tests on any op.

use super::compare::{caught, expect_written, gradients, loss, moved, numbers, outputs, uniform};
use super::{Report, Subject};
use crate::gpu::{AdapterChoice, Gpu, Limits, adapters, check_launch, translate};
use crate::tensor::{DType, Kernel, Op, Spec, Tensor, apply};
use crate::testing::difference;
use crate::{Device, Error, Result};

/// Tests `op` on each of these input sets (use odd sizes, more than 256 elements, and values away from kinks):
///
/// - its WGSL compiles within WebGPU's default limits, and translates to SPIR-V, Metal and HLSL, also for GPUs with
///   immediates;
/// - the CPU and every GPU of this machine, software ones included, compute the same within `atol + rtol |value|`
///   (`tolerance` is both: 1e-5 each suits an elementwise op, sums of many terms need more), finite, and write every
///   element;
/// - the gradients of f32 inputs through f32 outputs, if there are any, agree with finite differences (of steps around
///   0.02), and those of GPUs with the CPU's;
/// - operands of other types, ranks and lengths are refused with an error, or, if its `output_specs` accepts them,
///   computed alike everywhere, and never end in a panic.
///
/// Failures are in the report, which [`Report::into_result`] turns into an error.
///
/// # Errors
/// [`Error::Invalid`] if a tolerance is negative or not finite; errors of reading the inputs.
pub fn check<O, S>(op: &O, sets: &[S], tolerance: [f64; 2]) -> Result<Report>
where
    O: Kernel + Op + Clone + 'static,
    S: AsRef<[Tensor]>,
{
    if !tolerance.iter().all(|t| t.is_finite() && *t >= 0.0) {
        return Err(Error::Invalid(format!("{}: a tolerance of {tolerance:?}; use numbers from 0", op.name())));
    }
    let mut report = Report { op: op.name(), checks: Vec::new(), gpus: Vec::new() };
    let op = &Subject { kernel: op, apply: &|inputs| apply(op.clone(), inputs), tolerance };
    let gpus = open_gpus(&mut report);
    let sets = sets.iter().map(|set| moved(set.as_ref(), &Device::Cpu)).collect::<Result<Vec<_>>>()?;
    if sets.is_empty() {
        report.add("inputs".into(), Some("no input sets to test it with".into()));
    }
    for (i, set) in sets.iter().enumerate() {
        let operands = set.iter().map(|x| x.spec().to_string()).collect::<Vec<_>>().join(", ");
        let place = format!("set {i} ({operands})");
        if check_values(op, set, &gpus, &place, &mut report) {
            check_gradients(op, set, &gpus, &place, &mut report);
        }
    }
    if let Some(set) = sets.first() {
        check_other_operands(op, set, &gpus, &mut report);
    }
    Ok(report)
}

fn open_gpus(report: &mut Report) -> Vec<Device> {
    let mut gpus = Vec::new();
    for info in adapters() {
        let choice = AdapterChoice { index: Some(info.index), allow_software: true, ..AdapterChoice::default() };
        match Gpu::open(&choice) {
            Ok(gpu) => gpus.push(Device::Gpu(gpu)),
            Err(error) => report.add(format!("opening gpu:{}", info.index), Some(error.to_string())),
        }
    }
    report.gpus = gpus.iter().map(Device::describe).collect();
    gpus
}

/// The deviation of an op's results, if any.
fn within(op: &Subject, inputs: &[Tensor], got: &[f64], want: &[f64]) -> Option<String> {
    // f16 has 11 bits, and drivers may round to either neighbour.
    let f16 = if inputs.iter().any(|x| x.dtype() == DType::F16) { 2e-3 } else { 0.0 };
    let [atol, rtol] = op.tolerance.map(|t| t.max(f16));
    difference(got, want, |_, want: f64| atol + rtol * want.abs())
}

/// Translations, and the values on every device. Whether the CPU could compute it.
fn check_values(op: &Subject, set: &[Tensor], gpus: &[Device], place: &str, report: &mut Report) -> bool {
    let specs: Vec<&Spec> = set.iter().map(Tensor::spec).collect();
    let wanted = match caught(|| op.kernel.output_specs(&specs)) {
        Ok(wanted) => wanted,
        Err(problem) => {
            report.add(format!("{place}: shapes"), Some(problem));
            return false;
        }
    };
    check_translations(op, &specs, &wanted.iter().collect::<Vec<_>>(), place, report);
    let values = match caught(|| outputs(op, set)) {
        Ok(values) => values,
        Err(problem) => {
            report.add(format!("{place}: on the CPU"), Some(problem));
            return false;
        }
    };
    for (i, output) in values.iter().enumerate() {
        let bad = output.iter().position(|y| !y.is_finite());
        let problem = bad.map(|at| format!("element {at} is {}", output[at]));
        report.add(format!("{place}: output {i} on the CPU is finite"), problem);
    }
    for device in [&Device::Cpu].into_iter().chain(gpus) {
        let written = caught(|| moved(set, device).and_then(|set| expect_written(op, &set)));
        report.add(format!("{place}: {device} writes every element"), written.err());
    }
    for device in gpus {
        let what = format!("{place}: {device} agrees with the CPU");
        compare(op, set, device, &values, what, report);
    }
    true
}

fn compare(op: &Subject, set: &[Tensor], device: &Device, want: &[Vec<f64>], what: String, report: &mut Report) {
    let problem = match caught(|| outputs(op, &moved(set, device)?)) {
        Ok(got) => (0..).zip(got.iter().zip(want)).find_map(|(i, (got, want))| {
            within(op, set, got, want).map(|difference| format!("output {i}: {difference}"))
        }),
        Err(problem) => Some(problem),
    };
    report.add(what, problem);
}

fn check_translations(op: &Subject, inputs: &[&Spec], outputs: &[&Spec], place: &str, report: &mut Report) {
    // Without the feature there is nothing that could translate.
    if cfg!(not(feature = "gpu")) {
        return;
    }
    let f16 = inputs.iter().chain(outputs).any(|spec| spec.dtype == DType::F16);
    let floor = Limits { f16, ..Limits::WEBGPU_DEFAULT };
    for (limits, of) in
        [(floor.clone(), "within WebGPU's default limits"), (Limits { immediates: true, ..floor }, "with immediates")]
    {
        let translated = caught(|| Ok(op.kernel.gpu(inputs, outputs, &limits))).and_then(|plan| {
            plan.launches.iter().try_for_each(|launch| {
                check_launch(op.kernel.name(), launch, &limits).map_err(|error| error.to_string())?;
                translate(launch, &limits)
            })
        });
        report.add(format!("{place}: WGSL {of}"), translated.err());
    }
}

fn check_gradients(op: &Subject, set: &[Tensor], gpus: &[Device], place: &str, report: &mut Report) {
    let analytic = match caught(|| gradients(op, set)) {
        Ok(Some(analytic)) => analytic,
        Ok(None) => return,
        Err(problem) => return report.add(format!("{place}: backward on the CPU"), Some(problem)),
    };
    for (i, gradient) in analytic.iter().enumerate() {
        if let Some(gradient) = gradient {
            let problem = match caught(|| slopes(op, set, i, gradient)) {
                Ok(problem) => problem,
                Err(problem) => Some(problem),
            };
            report.add(format!("{place}: gradient of input {i}"), problem);
        }
    }
    for device in gpus {
        let problem = match caught(|| gradients(op, &moved(set, device)?)) {
            Ok(got) => (0..).zip(got.iter().flatten().zip(&analytic)).find_map(|(i, (got, want))| {
                let difference = within(op, set, got.as_ref()?, want.as_ref()?)?;
                Some(format!("of input {i}: {difference}"))
            }),
            Err(problem) => Some(problem),
        };
        report.add(format!("{place}: gradients on {device} agree with the CPU's"), problem);
    }
}

/// The deviation of input `i`'s gradient g, if any: along a random direction v, the slope of the loss must be g . v =
/// (F(x + hv) - F(x - hv)) / 2h + O(h^2). Richardson extrapolation of two steps removes the h^2 term, so h can be large
/// compared with f32 rounding. Three directions are tested.
fn slopes(op: &Subject, set: &[Tensor], i: usize, gradient: &[f64]) -> Result<Option<String>> {
    if gradient.iter().any(|g| !g.is_finite()) {
        return Ok(Some("it is not finite".into()));
    }
    let x = set[i].to_f32()?;
    for seed in [13, 14, 15] {
        let direction = uniform(x.len(), 10 * seed + i as u64);
        let shifted = |h: f32| {
            let moved: Vec<f32> = x.iter().zip(&direction).map(|(x, v)| x + h * v).collect();
            let mut set = set.to_vec();
            set[i] = Tensor::from_f32(&moved, set[i].shape().clone(), &Device::Cpu)?;
            loss(op, &set)
        };
        let slope = |h: f32| Ok::<f64, crate::Error>((shifted(h)? - shifted(-h)?) / (2.0 * f64::from(h)));
        let h = 2e-2;
        let numerical = (4.0 * slope(h / 2.0)? - slope(h)?) / 3.0;
        let analytic: f64 = gradient.iter().zip(&direction).map(|(g, v)| g * f64::from(*v)).sum();
        // Rounding of F (about 1e-7 of the sum of its terms) divided by h, and what is left of the truncation.
        let scale = gradient.iter().map(|g| g.abs()).sum::<f64>() / (gradient.len().max(1) as f64).sqrt();
        let bound = 2e-3 * scale.max(analytic.abs()) + 2e-4;
        if !numerical.is_finite() || (numerical - analytic).abs() > bound {
            let what = "along a random direction the slope of the loss is";
            return Ok(Some(format!("{what} {numerical:.6}, backward says {analytic:.6} (allowed {bound:.1e})")));
        }
    }
    Ok(None)
}

/// Each operand of every other type, of another rank, longer or empty in each dimension.
fn check_other_operands(op: &Subject, set: &[Tensor], gpus: &[Device], report: &mut Report) {
    for (i, x) in set.iter().enumerate() {
        let (dims, dtype) = (x.shape().to_vec(), x.dtype());
        let mut others: Vec<Spec> = [DType::F32, DType::F16, DType::U32]
            .into_iter()
            .filter(|other| *other != dtype)
            .map(|other| Spec::new(dims.clone(), other))
            .collect();
        others.extend([[&[1], &dims[..]].concat(), vec![]].map(|dims| Spec::new(dims, dtype)));
        for dim in 0..dims.len() {
            for len in [dims[dim] + 1, 0] {
                let mut dims = dims.clone();
                dims[dim] = len;
                others.push(Spec::new(dims, dtype));
            }
        }
        for spec in others {
            let what = format!("input {i} as {spec}");
            let mut other = set.to_vec();
            match like(x, &spec) {
                Ok(tensor) => other[i] = tensor,
                Err(error) => {
                    report.add(what, Some(error.to_string()));
                    continue;
                }
            }
            let specs: Vec<&Spec> = other.iter().map(Tensor::spec).collect();
            let accepted = caught(|| Ok(op.kernel.output_specs(&specs).is_ok()));
            match accepted {
                Ok(false) => report.add(format!("{what} is refused"), None),
                Err(problem) => report.add(what, Some(problem)),
                Ok(true) => match caught(|| outputs(op, &other)) {
                    Err(problem) => report.add(format!("{what} is accepted"), Some(problem)),
                    Ok(values) => {
                        report.add(format!("{what}, accepted, is computed"), None);
                        for device in gpus.iter().filter(|gpu| spec.dtype != DType::F16 || gpu.has_f16()) {
                            compare(op, &other, device, &values, format!("{what}, accepted, on {device}"), report);
                        }
                    }
                },
            }
        }
    }
}

/// A tensor of this spec with the values of `x`, over and over: they are some that the op is defined for.
fn like(x: &Tensor, spec: &Spec) -> Result<Tensor> {
    let values = numbers(x)?;
    let cycled = values.iter().cycle().take(spec.shape.elements());
    match spec.dtype {
        DType::U32 => {
            Tensor::from_u32(&cycled.map(|v| *v as u32).collect::<Vec<_>>(), spec.shape.clone(), &Device::Cpu)
        }
        dtype => {
            let values: Vec<f32> = cycled.map(|v| *v as f32).collect();
            Tensor::from_f32(&values, spec.shape.clone(), &Device::Cpu)?.to_dtype(dtype)
        }
    }
}
