//! An op that rustyflow has not, in an application: "snake", x + sin(a x)^2 / a (Ziyin, Hartwig, Ueda 2020, "Neural
//! Networks Fail to Learn Periodic Functions and How to Fix It"). Tests it on the CPU and every GPU, then fits a
//! network to a sine with it and with ReLU, and draws both beyond the numbers that they were fitted to.
//!
//! ```text
//! cargo run --release --manifest-path examples/custom_kernel/Cargo.toml -- [cpu|gpu|gpu:0] [snake.svg]
//! ```

mod picture;

use rustyflow_tensor::custom::{self, CustomOp};
use rustyflow_tensor::nn::{Dropout, Linear, Module, Parameter, init_keys};
use rustyflow_tensor::optim::{Kind, Optimizer, ParameterArena};
use rustyflow_tensor::{DType, Device, Result, Tensor};

const A: f32 = 2.0;

/// y = x + sin(a x)^2 / a, dy/dx = 1 + sin(2 a x).
fn snake() -> Result<CustomOp> {
    let slope = CustomOp::elementwise("snake_backward", &["x", "dy"], "dx")
        .param("a", A)
        .wgsl("dx[i] = dy[i] * (1.0 + sin(2.0 * params.a * x[i]));")
        .cpu(|inputs, outputs| {
            let pairs = inputs[0].f32().iter().zip(inputs[1].f32());
            for (dx, (x, dy)) in outputs[0].f32().iter_mut().zip(pairs) {
                *dx = dy * (1.0 + (2.0 * A * x).sin());
            }
        })
        .build()?;
    CustomOp::elementwise("snake", &["x"], "y")
        .param("a", A)
        .wgsl("let s = sin(params.a * x[i]);\ny[i] = x[i] + s * s / params.a;")
        .cpu(|inputs, outputs| {
            for (y, x) in outputs[0].f32().iter_mut().zip(inputs[0].f32()) {
                *y = x + (A * x).sin().powi(2) / A;
            }
        })
        .backward(move |grads| Ok(vec![Some(slope.apply_one(&[grads.input(0)?, grads.output_grad(0)?])?)]))
        .build()
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

    let snake = snake()?;
    let numbers: Vec<f32> = (0..301).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
    let odd = Tensor::from_f32(&numbers, [7, 43], &Device::Cpu)?;
    println!("{}", custom::check(&snake, &[[odd]])?.into_result()?);

    let xs: Vec<f32> = (0..241).map(|i| (i as f32 / 240.0 - 0.5) * 12.0).collect();
    let ((of_snake, snake_ys), report) = device.profile(|| fit(&device, &|x| snake.apply_one(&[x]), &xs))?;
    println!("{report}");
    let (of_relu, relu_ys) = fit(&device, &|x| x.relu(), &xs)?;
    println!("mean square error on {}: snake {of_snake:.2e}, relu {of_relu:.2e}", device.describe());
    let sine: Vec<f32> = xs.iter().map(|x| (2.0 * x).sin()).collect();
    let curves = [("sin(2 x)", "#888", &sine), ("snake", "#c33", &snake_ys), ("relu", "#36c", &relu_ys)];
    std::fs::write(&file, picture::svg(&xs, &curves)).map_err(|e| rustyflow_tensor::Error::io("write", &file, e))?;
    println!("drawn in {file}");
    if of_snake < 1e-2 { Ok(()) } else { Err(rustyflow_tensor::Error::Invalid("snake did not learn the sine".into())) }
}
