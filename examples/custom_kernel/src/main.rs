//! An op that rustyflow has not, in an application: "snake", x + sin(a x)^2 / a (Ziyin, Hartwig, Ueda 2020, "Neural
//! Networks Fail to Learn Periodic Functions and How to Fix It"). Tests it on the CPU and every GPU, then fits a
//! network to a sine with it and with ReLU, and draws both beyond the numbers that they were fitted to.
//!
//! ```text
//! cargo run --release --manifest-path examples/custom_kernel/Cargo.toml -- [cpu|gpu|gpu:0] [snake.svg]
//! ```

mod picture;

use rustyflow_tensor::gpu::{Buffer, Launch, Limits, Operand, Plan, Shader, buffer, param};
use rustyflow_tensor::nn::{Dropout, Linear, Module, Parameter, init_keys};
use rustyflow_tensor::optim::{Kind, Optimizer, ParameterArena};
use rustyflow_tensor::profile::Cost;
use rustyflow_tensor::tensor::{Grads, Kernel, Op, Saved, Saves, Spec, View, ViewMut, apply};
use rustyflow_tensor::{DType, Device, Error, Result, Tensor, opcheck};

/// y = x + sin(a x)^2 / a. Of f32 of any shape.
#[derive(Clone)]
struct Snake {
    a: f32,
}

/// dx = (1 + sin(2 a x)) dy. Inputs: x, dy.
struct SnakeBackward {
    a: f32,
}

/// One thread for each element.
fn plan(name: &'static str, source: &'static str, buffers: Vec<Buffer>, len: usize, a: f32) -> Plan {
    let params = vec![param("len", len), param("a", a)];
    let shader = Shader::checked(name, source);
    Plan::one(Launch { shader, values: Vec::new(), buffers, params, workgroups: len.div_ceil(256) })
}

fn cost(flops: usize, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
    let bytes: usize = inputs.iter().chain(outputs).map(|spec| spec.size_bytes()).sum();
    Cost { flops: (flops * outputs[0].shape.elements()) as f64, bytes: bytes as f64 }
}

impl Kernel for Snake {
    fn name(&self) -> &'static str {
        "snake"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        match inputs[0].dtype {
            DType::F32 => Ok(vec![inputs[0].clone()]),
            other => Err(Error::DType { op: "snake", expected: "f32", got: other.name() }),
        }
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        cost(5, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        for (y, x) in outputs[0].f32().iter_mut().zip(inputs[0].f32()) {
            *y = x + (self.a * x).sin().powi(2) / self.a;
        }
    }

    fn gpu(&self, _: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let source = "{{ interface }}
            {{ for_each(1) }}
                let s = sin(params.a * x[i]);
                y[i] = x[i] + s * s / params.a;
            }";
        let buffers = vec![buffer("x", "f32", Operand::Input(0)), buffer("y", "f32", Operand::Output(0))];
        plan("snake", source, buffers, outputs[0].shape.elements(), self.a)
    }
}

impl Op for Snake {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, grads.run_one(&SnakeBackward { a: self.a }, &[saved.input(0)?, dy])?)
    }
}

impl Kernel for SnakeBackward {
    fn name(&self) -> &'static str {
        "snake_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        cost(5, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let pairs = inputs[0].f32().iter().zip(inputs[1].f32());
        for (dx, (x, dy)) in outputs[0].f32().iter_mut().zip(pairs) {
            *dx = dy * (1.0 + (2.0 * self.a * x).sin());
        }
    }

    fn gpu(&self, _: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let source = "{{ interface }}
            {{ for_each(1) }}
                dx[i] = dy[i] * (1.0 + sin(2.0 * params.a * x[i]));
            }";
        let read = [("x", Operand::Input(0)), ("dy", Operand::Input(1)), ("dx", Operand::Output(0))];
        let buffers = read.map(|(name, operand)| buffer(name, "f32", operand)).to_vec();
        plan("snake_backward", source, buffers, outputs[0].shape.elements(), self.a)
    }
}

/// 1 -> 64 -> 64 -> 1, with a function between.
struct Net {
    layers: [Linear; 3],
}

impl Net {
    fn new() -> Result<Net> {
        let mut key = init_keys(1);
        let mut linear = |inputs, outputs, std| Linear::new(inputs, outputs, true, std, key());
        Ok(Net { layers: [linear(1, 64, 1.0)?, linear(64, 64, 0.125)?, linear(64, 1, 0.125)?] })
    }

    /// (N, 1) -> (N, 1)
    fn forward(&self, x: &Tensor, activation: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let off = Dropout::off();
        let h = activation(&self.layers[0].forward(x, &off)?)?;
        self.layers[2].forward(&activation(&self.layers[1].forward(&h, &off)?)?, &off)
    }
}

impl Module for Net {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.visit_parameters(&format!("{prefix}layers.{i}"), visit);
        }
    }
}

/// Fits sin(2 x) within 3 of 0; the mean square error there, and what the network makes of `xs`.
fn fit(device: &Device, activation: &dyn Fn(&Tensor) -> Result<Tensor>, xs: &[f32]) -> Result<(f32, Vec<f32>)> {
    let mut net = Net::new()?;
    let parameters = ParameterArena::new(&mut net, device, DType::F32)?;
    let kind = Kind::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    let mut optimizer = Optimizer::new(&parameters, kind, 0.0, 1.0)?;
    let inputs: Vec<f32> = (0..256).map(|i| (i as f32 / 255.0 - 0.5) * 6.0).collect();
    let wanted: Vec<f32> = inputs.iter().map(|x| (2.0 * x).sin()).collect();
    let (x, y) = (Tensor::from_f32(&inputs, [256, 1], device)?, Tensor::from_f32(&wanted, [256, 1], device)?);
    let mut error = f32::INFINITY;
    for step in 0..400 {
        parameters.zero_gradients();
        let difference = net.forward(&x, activation)?.sub(&y)?;
        let loss = difference.mul(&difference)?.mean(..)?;
        loss.backward()?;
        optimizer.step(&parameters, 5e-3 * (1.0 - step as f64 / 400.0))?;
        if step == 399 {
            error = loss.item()?;
        }
    }
    let ys = net.forward(&Tensor::from_f32(xs, [xs.len(), 1], device)?, activation)?.to_f32()?;
    Ok((error, ys))
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let device = Device::open(args.next().as_deref().unwrap_or("auto"))?;
    let file = args.next().unwrap_or_else(|| "snake.svg".to_string());

    let snake = Snake { a: 2.0 };
    let numbers: Vec<f32> = (0..301).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
    let odd = Tensor::from_f32(&numbers, [7, 43], &Device::Cpu)?;
    println!("{}", opcheck::check(&snake, &[[odd]], [1e-5; 2])?.into_result()?);

    let xs: Vec<f32> = (0..241).map(|i| (i as f32 / 240.0 - 0.5) * 12.0).collect();
    let ((of_snake, snake_ys), report) =
        device.profile(|| fit(&device, &|x| Ok(apply(snake.clone(), &[x])?.remove(0)), &xs))?;
    println!("{report}");
    let (of_relu, relu_ys) = fit(&device, &|x| x.relu(), &xs)?;
    println!("mean square error on {}: snake {of_snake:.2e}, relu {of_relu:.2e}", device.describe());
    let sine: Vec<f32> = xs.iter().map(|x| (2.0 * x).sin()).collect();
    let curves = [("sin(2 x)", "#888", &sine), ("snake", "#c33", &snake_ys), ("relu", "#36c", &relu_ys)];
    std::fs::write(&file, picture::svg(&xs, &curves)).map_err(|e| Error::io("write", &file, e))?;
    println!("drawn in {file}");
    if of_snake < 1e-2 { Ok(()) } else { Err(Error::Invalid("snake did not learn the sine".into())) }
}
