//! Agreement with PyTorch: every op, every optimizer over ten steps, and schedules, on the CPU and on the GPU.

mod common;
#[path = "common/golden.rs"]
mod golden;
#[path = "common/golden_ops.rs"]
mod golden_ops;

use golden::{Comparison, Golden, number};
use rustyflow_tensor::nn::{LinearLayout, Module, Parameter};
use rustyflow_tensor::optim::{AdjustLr, Group, Kind, LearningRate, MomentDtype, Optimizer, ParameterArena};
use rustyflow_tensor::{DType, Device, Tensor};
use serde_json::Value;

/// Computes the cases in f32, or those that have inputs of f16 with these; `tolerance` gives the largest error of an op
/// from PyTorch's own.
fn check_ops(device: &Device, of_f16: bool, tolerance: impl Fn(f32) -> f32) {
    let golden = Golden::read("ops");
    let mut comparison = Comparison::default();
    let (mut executed, mut gradients) = (0, 0);
    let halves = |case: &Value| case.get("halves").map_or(0, |halves| halves.as_u64().unwrap() as usize);
    let cases = golden.description["cases"].as_array().unwrap().iter();
    for case in cases.filter(|case| (halves(case) > 0) == of_f16) {
        let (name, op) = (case["name"].as_str().unwrap(), case["op"].as_str().unwrap());
        let tolerance = tolerance(golden.float32_error(op));
        let count = case["inputs"].as_u64().unwrap() as usize;
        let inputs: Vec<Tensor> = (0..count)
            .map(|i| {
                let x = golden.tensor(&format!("{name}/in{i}"), device);
                if x.dtype() == DType::F32 { x.requires_grad().unwrap() } else { x }
            })
            .collect();
        let operand = |(i, x): (usize, &Tensor)| if i < halves(case) { x.to_dtype(DType::F16) } else { Ok(x.clone()) };
        let operands = inputs.iter().enumerate().map(operand).collect::<Result<Vec<_>, _>>().unwrap();
        let y = golden_ops::apply(op, &case["attrs"], &operands).unwrap_or_else(|e| panic!("{name}: {e}"));
        let y = y.to_dtype(DType::F32).unwrap();
        let grad_output = golden.tensor(&format!("{name}/grad_out0"), device);
        // PyTorch's scalars have no dimensions.
        assert!(
            y.shape() == grad_output.shape() || y.len() == 1,
            "{name}: {} is not {}",
            y.shape(),
            grad_output.shape()
        );
        let grad_output = Tensor::from_f32(&grad_output.to_f32().unwrap(), y.shape().clone(), device).unwrap();
        y.backward_with(&grad_output).unwrap_or_else(|e| panic!("{name}: {e}"));
        let want = golden.values(&format!("{name}/out0"));
        comparison.check(op, &format!("{name}: output"), &y.to_f32().unwrap(), &want, tolerance);
        for (i, gradient) in inputs.iter().enumerate().filter_map(|(i, x)| Some((i, x.grad()?))) {
            let want = golden.values(&format!("{name}/grad_in{i}"));
            let what = format!("{name}: gradient of input {i}");
            comparison.check(op, &what, &gradient.to_f32().unwrap(), &want, tolerance);
            gradients += 1;
        }
        executed += 1;
    }
    // Counted apart from the files, so that a case that is lost there is missed here.
    let of_kind = |name: &&&str| name.contains("/grad_in") && name.contains("_f16/") == of_f16;
    let stored = golden.file().names().iter().filter(of_kind).count();
    assert_eq!((executed, gradients), (if of_f16 { 30 } else { 311 }, stored), "cases executed, gradients compared");
    comparison.finish(device);
}

#[test]
fn ops_agree_with_pytorch_on_the_cpu() {
    // As good as PyTorch's float32, up to other roundings and another order of summation.
    check_ops(&Device::Cpu, false, |pytorch| 5e-7 + 4.0 * pytorch);
}

#[test]
fn ops_agree_with_pytorch_on_the_gpu() {
    let Some(gpu) = common::gpu() else { return };
    // GPUs may divide with an error of 2.5 units in the last place and compute exp, sin and their like with more:
    // 3e-7 and about 1e-6 near 1, of which a gradient takes a few.
    check_ops(&gpu, false, |pytorch| 5e-6 + 4.0 * pytorch);
}

#[test]
fn ops_of_f16_agree_with_pytorch() {
    for device in [Device::Cpu].into_iter().chain(common::gpu()).filter(|device| !device.is_gpu() || device.has_f16()) {
        // Results are rounded to 11 bits, and so are gradients, of what was saved as such: 2^-11 = 4.9e-4 each.
        check_ops(&device, true, |_| 1e-3);
    }
}

/// Parameters alone.
struct Parameters(Vec<(String, Parameter)>);

impl Module for Parameters {
    fn visit_parameters(&mut self, _: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.0.iter_mut().for_each(|(name, parameter)| visit(name, parameter));
    }
}

fn muon(settings: &Value) -> Kind {
    Kind::Muon {
        momentum: number(settings, "momentum"),
        nesterov: settings["nesterov"].as_bool().unwrap(),
        ns_steps: number(settings, "ns_steps") as usize,
        adjust_lr: match settings["adjust_lr"].as_str().unwrap() {
            "original" => AdjustLr::Original,
            _ => AdjustLr::MatchRmsAdamW,
        },
    }
}

/// The rule of a case that all parameters are updated by.
fn elementwise(case: &str, settings: &Value) -> Kind {
    let of = |name: &str| number(settings, name);
    match case {
        "adamw" => Kind::AdamW { beta1: of("beta1"), beta2: of("beta2"), eps: of("eps") },
        "lion" => Kind::Lion { beta1: of("beta1"), beta2: of("beta2") },
        "adam" => Kind::Adam { beta1: of("beta1"), beta2: of("beta2"), eps: of("eps") },
        "sgd" | "sgd-plain" | "nag" => Kind::Sgd { momentum: of("momentum"), nesterov: case == "nag" },
        case if case.starts_with("rmsprop") => {
            let centered = settings["centered"].as_bool().unwrap();
            Kind::RmsProp { alpha: of("alpha"), eps: of("eps"), momentum: of("momentum"), centered }
        }
        case => panic!("no rule of the name {case}"),
    }
}

/// Ten steps of given gradients, `scripts/make_optimizer_goldens.py` says how. PyTorch's own float32 is off by 3e-7.
fn check_optimizers(device: &Device) {
    let golden = Golden::read("optimizers");
    let adamw = &golden.description["adamw"];
    let [beta1, beta2, eps, weight_decay] = ["beta1", "beta2", "eps", "weight_decay"].map(|name| number(adamw, name));
    let mut comparison = Comparison::default();
    for (case, settings) in golden.description["cases"].as_object().unwrap() {
        let mut parameters = Parameters(Vec::new());
        for description in golden.description["parameters"].as_array().unwrap() {
            let name = description["name"].as_str().unwrap();
            let linear = description["linear"].as_object().map(|linear| LinearLayout {
                outputs_first: linear["outputs_first"].as_bool().unwrap(),
                outputs: serde_json::from_value(linear["outputs"].clone()).unwrap(),
            });
            let weight = golden.tensor(&format!("weight.{name}"), &Device::Cpu);
            let mut parameter = Parameter::from(weight);
            parameter.linear = linear;
            parameters.0.push((name.to_string(), parameter));
        }
        let kinds = match case.as_str() {
            case if case.starts_with("muon") => [muon(settings), Kind::AdamW { beta1, beta2, eps }],
            case => [elementwise(case.trim_end_matches("-int8"), settings); 2],
        };
        let is_other = |_: &str, parameter: &Parameter| usize::from(parameter.linear.is_none());
        let arena = ParameterArena::grouped(&mut parameters, device, DType::F32, &is_other).unwrap();
        let moment_dtype = if case.ends_with("-int8") { MomentDtype::Int8 } else { MomentDtype::F32 };
        let group = |number: usize| Group { moment_dtype, ..Group::new(kinds[number], weight_decay) };
        let mut optimizer = Optimizer::with_groups(&arena, &group, number(settings, "grad_clip")).unwrap();
        for (step, learning_rate) in golden.description["lr"].as_array().unwrap().iter().enumerate() {
            for (name, tensor) in parameters.parameters() {
                let gradient = golden.values(&format!("grad.{step}.{name}"));
                tensor.grad().unwrap().write_bytes(bytemuck::cast_slice(&gradient)).unwrap();
            }
            optimizer.step(&arena, learning_rate.as_f64().unwrap()).unwrap();
        }
        for (name, tensor) in parameters.parameters() {
            let (got, want) = (tensor.to_f32().unwrap(), golden.values(&format!("after10.{case}.{name}")));
            comparison.check(case, &format!("{case}: {name} after ten steps"), &got, &want, 3e-6);
        }
    }
    comparison.finish(device);
}

/// PyTorch's schedulers multiply the last rate by something, step by step, which leaves a few bits.
#[test]
fn learning_rates_are_those_of_pytorch() {
    let golden = Golden::read("optimizers");
    let schedules = golden.description["schedules"].as_object().unwrap();
    assert_eq!(schedules.len(), 8);
    for (name, settings) in schedules {
        let of = |key: &str| number(settings, key);
        let (peak, total) = (of("peak"), || of("total_steps") as usize);
        let rate = match settings["kind"].as_str().unwrap() {
            "constant" => LearningRate::constant(peak),
            "linear" => LearningRate::linear(peak, of("minimum"), total()),
            "cosine" => LearningRate::cosine(peak, of("minimum"), total()),
            "step" => LearningRate::step(peak, of("every") as usize, of("factor")),
            "exponential" => LearningRate::exponential(peak, of("factor")),
            "one-cycle" => LearningRate::one_cycle(peak, total()),
            kind => panic!("no schedule of the name {kind}"),
        };
        let rate = rate.warm_up(settings["warmup_steps"].as_u64().unwrap_or(0) as usize);
        for (step, want) in settings["rates"].as_array().unwrap().iter().enumerate() {
            let (got, want) = (rate.of_step(step), want.as_f64().unwrap());
            assert!((got - want).abs() <= 1e-12 * want, "{name}, step {step}: {got}, PyTorch has {want}");
        }
    }
}

#[test]
fn optimizers_update_as_in_pytorch_on_the_cpu() {
    check_optimizers(&Device::Cpu);
}

#[test]
fn optimizers_update_as_in_pytorch_on_the_gpu() {
    let Some(gpu) = common::gpu() else { return };
    check_optimizers(&gpu);
}
