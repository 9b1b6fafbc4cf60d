//! Every row of the table of ops: its gradient against numerical differentiation, and the GPU against the CPU. Beside
//! it, promises of single ops that a row cannot express.

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod losses;
mod row_ops;

use rustyflow_tensor::ops::cases::{self, Case};
use rustyflow_tensor::{DType, Device, Tensor};
use std::collections::HashMap;

/// What an input is: a leaf, to whose gradient an op's backward adds in place, or an intermediate result, whose
/// gradient it writes anew.
#[derive(Debug, Clone, Copy)]
enum Input {
    Leaf,
    Intermediate,
}

/// Applies the case to inputs drawn from a fixed seed; the output, and the gradient of each f32 input for an output
/// gradient that is the same on every device.
fn forward_and_backward(case: &Case, device: &Device, kind: Input) -> (Vec<f32>, Vec<Option<Vec<f32>>>) {
    let inputs: Vec<Tensor> = case.draw(device, 7).unwrap().iter().map(leaf).collect();
    let given = inputs.iter().map(|x| match kind {
        Input::Intermediate if x.grad().is_some() => x.scale(1.0).unwrap(),
        _ => x.clone(),
    });
    let y = (case.apply)(&given.collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let grad_output = common::uniform(y.len(), 11);
    let grad_output = Tensor::from_f32(&grad_output, y.shape().clone(), device).unwrap();
    y.backward_with(&grad_output).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let grads = inputs.iter().map(|x| x.grad().map(|g| g.to_f32().unwrap())).collect();
    (y.to_f32().unwrap(), grads)
}

fn leaf(x: &Tensor) -> Tensor {
    if x.dtype() == DType::F32 { x.requires_grad().unwrap() } else { x.clone() }
}

/// sum(y * grad_output), in f64.
fn objective(case: &Case, inputs: &[Tensor]) -> f64 {
    let y = rustyflow_tensor::tensor::no_grad(|| (case.apply)(inputs)).unwrap().to_f32().unwrap();
    let grad_output = common::uniform(y.len(), 11);
    y.iter().zip(&grad_output).map(|(y, u)| f64::from(*y) * f64::from(*u)).sum()
}

/// The slope of the objective along a random direction must be the gradient's: (F(x + hv) - F(x - hv)) / 2h = g . v.
#[test]
fn gradients_agree_with_finite_differences() {
    let mut checked = 0;
    for case in cases::all().into_iter().filter(|c| c.smooth) {
        let (_, grads) = forward_and_backward(&case, &Device::Cpu, Input::Leaf);
        let inputs = case.draw(&Device::Cpu, 7).unwrap();
        for (i, grad) in grads.iter().enumerate() {
            let Some(grad) = grad else { continue };
            let direction = common::uniform(grad.len(), 13 + i as u64);
            let shifted = |h: f32| {
                let x = inputs[i].to_f32().unwrap();
                let x: Vec<f32> = x.iter().zip(&direction).map(|(x, v)| x + h * v).collect();
                let mut inputs = inputs.clone();
                inputs[i] = Tensor::from_f32(&x, inputs[i].shape().clone(), &Device::Cpu).unwrap();
                objective(&case, &inputs)
            };
            // Richardson extrapolation of two steps removes the h^2 term, so h can stay large against f32 rounding.
            let slope = |h: f32| (shifted(h) - shifted(-h)) / (2.0 * f64::from(h));
            let h = 2e-2;
            let numerical = (4.0 * slope(h / 2.0) - slope(h)) / 3.0;
            let analytic: f64 = grad.iter().zip(&direction).map(|(g, v)| f64::from(*g) * f64::from(*v)).sum();
            assert!(grad.iter().all(|g| g.is_finite()), "{}: the gradient of input {i} is not finite", case.name);
            // Rounding of F (about 1e-7 of the sum of its terms) divided by h, and what is left of the truncation.
            let scale: f64 = grad.iter().map(|g| f64::from(g.abs())).sum::<f64>() / (grad.len() as f64).sqrt();
            let bound = 2e-3 * scale.max(analytic.abs()) + 2e-4;
            assert!(
                (numerical - analytic).abs() <= bound,
                "{}: input {i}: numerical {numerical}, analytic {analytic}, bound {bound}",
                case.name
            );
            checked += 1;
        }
    }
    assert!(checked >= 48, "only {checked} gradients were checked");
}

fn assert_agrees_with_cpu(gpu: &Device, cases: impl Iterator<Item = Case>) {
    let mut failures = Vec::new();
    for case in cases {
        let (y, grads) = forward_and_backward(&case, &Device::Cpu, Input::Leaf);
        // The gradient is the same, but other kernels compute it.
        for (device, kind) in [(gpu, Input::Leaf), (gpu, Input::Intermediate), (&Device::Cpu, Input::Intermediate)] {
            let (other_y, other_grads) = forward_and_backward(&case, device, kind);
            let what = format!("{device}, {kind:?}");
            let output = format!("{what}: output");
            failures.extend(common::differences(&case.name, &output, &other_y, &y, case.atol, case.rtol));
            assert_eq!(grads.len(), other_grads.len(), "{}", case.name);
            for (i, (grad, other_grad)) in grads.iter().zip(&other_grads).enumerate() {
                assert_eq!(grad.is_some(), other_grad.is_some(), "{}: {what}: gradient of input {i}", case.name);
                if let (Some(grad), Some(other_grad)) = (grad, other_grad) {
                    let what = format!("{what}: gradient of input {i}");
                    failures.extend(common::differences(&case.name, &what, other_grad, grad, case.atol, case.rtol));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures.join("\n"));
}

/// Half of the cases each, so that two cores are busy.
#[test]
fn gpu_agrees_with_cpu_in_f32_in_even_cases() {
    agree_in_f32(0);
}

#[test]
fn gpu_agrees_with_cpu_in_f32_in_odd_cases() {
    agree_in_f32(1);
}

fn agree_in_f32(first: usize) {
    let Some(gpu) = common::gpu() else { return };
    assert_agrees_with_cpu(&gpu, f32_cases(|seen| seen < PER_KIND).skip(first).step_by(2));
}

/// The further cases of the same ops and variants.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn gpu_agrees_with_cpu_in_f32_in_all_shapes() {
    let Some(gpu) = common::gpu() else { return };
    assert_agrees_with_cpu(&gpu, f32_cases(|seen| seen >= PER_KIND));
}

/// How many shapes of an op's variant the quick tests take: each may be a shader of its own to compile.
const PER_KIND: usize = 3;

/// Cases in f32 by how many of their kind come before. Names of a kind differ in numbers alone.
fn f32_cases(is_wanted: impl Fn(usize) -> bool) -> impl Iterator<Item = Case> {
    let mut seen = HashMap::<String, usize>::new();
    cases::all().into_iter().filter(|case| !case.f16).filter(move |case| {
        let kind = case.name.replace(|letter: char| letter.is_ascii_digit(), "");
        let count = seen.entry(kind).or_default();
        *count += 1;
        is_wanted(*count - 1)
    })
}

/// Those of [`gpu_agrees_with_cpu_in_f16`], but quick.
#[test]
fn gpu_agrees_with_cpu_in_some_cases_of_f16() {
    let Some(gpu) = common::gpu().filter(Device::has_f16) else { return };
    assert_agrees_with_cpu(&gpu, cases::all().into_iter().filter(|case| case.f16).step_by(8));
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn gpu_agrees_with_cpu_in_f16() {
    // WebGPU's default limits do not include f16: it is refused there, which src/ops/boundary.rs checks.
    let Some(gpu) = common::gpu().filter(Device::has_f16) else { return };
    // Where it is about cooperative matrices, only what multiplies matrices: that driver compiles and computes slowly.
    let on_tensor_cores = ["attention", "matmul", "feed_forward", "add_low_rank", "linear_cross_entropy"];
    // Continuous integration has time for one: src/ops/matmul/tests.rs runs matmuls, tests/mixed.rs the others.
    let on_tensor_cores = &on_tensor_cores[..if std::env::var_os("CI").is_some() { 1 } else { 5 }];
    let all = std::env::var_os("RUSTYFLOW_REQUIRE_COOP").is_none();
    let is_wanted = |case: &Case| all || on_tensor_cores.iter().any(|op| case.name.starts_with(op));
    assert_agrees_with_cpu(&gpu, cases::all().into_iter().filter(|case| case.f16 && is_wanted(case)));
}

/// Outputs and gradients of every case for both kinds of inputs, as bits, computed on so many threads of the CPU.
fn bits_on_threads(count: usize) -> Vec<(String, Vec<u32>)> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap();
    let bits = |case: &Case, kind| {
        let (y, grads) = forward_and_backward(case, &Device::Cpu, kind);
        let numbers: Vec<u32> = y.into_iter().chain(grads.into_iter().flatten().flatten()).map(f32::to_bits).collect();
        (format!("{} of {kind:?}", case.name), numbers)
    };
    pool.install(|| {
        let kinds = [Input::Leaf, Input::Intermediate];
        cases::all().iter().flat_map(|case| kinds.map(|kind| bits(case, kind))).collect()
    })
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn every_number_of_threads_gives_the_same_bits() {
    let alone = bits_on_threads(1);
    for threads in [2, 3] {
        let among_several = bits_on_threads(threads);
        assert_eq!(among_several.len(), alone.len());
        for ((name, bits), (_, want)) in among_several.iter().zip(&alone) {
            assert!(bits == want, "{name}: {threads} threads");
        }
    }
}
