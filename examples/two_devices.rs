//! A model whose first half is on one device and the second on another: activations go over, gradients come back.
//!
//!     cargo run --release --example two_devices -- [FOLDER] [STEPS] [--allow-software-gpu]
//!
//! The first half is on the GPU, the second on the CPU. It learns a curve, and so does the same model on the CPU alone:
//! both end alike. `--allow-software-gpu` takes a GPU that is a program on the processor, such as Mesa's lavapipe.
//! Writes `two_devices.svg`, both losses and both curves, into FOLDER, target/examples if there is none.

mod common;

use common::{COLOURS, Outcome, Svg, arguments, exit};
use rustyflow::gpu::{AdapterChoice, Gpu};
use rustyflow::nn::{Dropout, Linear, Module, init_keys};
use rustyflow::optim::{Kind, LearningRate, Optimizer, ParameterArena};
use rustyflow::tensor::no_grad;
use rustyflow::{DType, Device, Result, Tensor};
use std::path::Path;
use std::process::ExitCode;

const POINTS: usize = 64;
const WIDTH: usize = 32;

/// A part of the model on its device, with its own optimizer.
struct Half {
    layer: Linear,
    parameters: ParameterArena,
    optimizer: Optimizer,
}

impl Half {
    fn new(mut layer: Linear, device: &Device) -> Result<Half> {
        let parameters = ParameterArena::new(&mut layer, device, DType::F32)?;
        let adam = Kind::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
        let optimizer = Optimizer::new(&parameters, adam, 0.0, 0.0)?;
        Ok(Half { layer, parameters, optimizer })
    }

    fn device(&self) -> Device {
        self.parameters.values().device()
    }
}

/// 1 input, 32 hidden neurons on the first device; 1 output on the second.
struct Split([Half; 2]);

impl Split {
    fn new([first, second]: [&Device; 2]) -> Result<Split> {
        let mut keys = init_keys(1);
        let mut layer = |inputs, outputs, std| Linear::new(inputs, outputs, true, std, keys());
        Ok(Split([Half::new(layer(1, WIDTH, 2.0)?, first)?, Half::new(layer(WIDTH, 1, 0.2)?, second)?]))
    }

    /// (N, 1) -> (N, 1), from the first device to the second.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [first, second] = &self.0;
        let hidden = first.layer.forward(x, &Dropout::off())?.tanh()?; // (N, 32)
        second.layer.forward(&hidden.to_device(&second.device())?, &Dropout::off())
    }

    /// One update of both halves; the loss before it.
    fn step(&mut self, x: &Tensor, y: &Tensor, learning_rate: f64) -> Result<f32> {
        self.0.iter().for_each(|half| half.parameters.zero_gradients());
        let error = self.forward(x)?.sub(y)?;
        let loss = error.mul(&error)?.mean(..)?;
        // Backward goes through `to_device` as through any op: the gradient returns to the first device.
        loss.backward()?;
        for half in &mut self.0 {
            half.optimizer.step(&half.parameters, learning_rate)?;
        }
        loss.item()
    }

    /// The parameters of both halves.
    fn weights(&mut self) -> Result<Vec<f32>> {
        let tensors = self.0.iter_mut().flat_map(|half| half.layer.parameters());
        tensors.map(|(_, tensor)| tensor.to_f32()).collect::<Result<Vec<_>>>().map(|all| all.concat())
    }
}

/// The losses of a model whose halves are on these devices, the curve that it has learned, and its parameters.
fn train(devices: [&Device; 2], steps: usize) -> Result<[Vec<f32>; 3]> {
    let xs: Vec<f32> = (0..POINTS).map(|i| 2.0 * i as f32 / (POINTS - 1) as f32 - 1.0).collect();
    let ys: Vec<f32> = xs.iter().map(|x| target(*x)).collect();
    let x = Tensor::from_f32(&xs, [POINTS, 1], devices[0])?;
    let y = Tensor::from_f32(&ys, [POINTS, 1], devices[1])?;
    let mut model = Split::new(devices)?;
    let rate = LearningRate::cosine(0.02, 0.0, steps).warm_up(steps / 10);
    let losses = (0..steps).map(|step| model.step(&x, &y, rate.of_step(step))).collect::<Result<_>>()?;
    Ok([losses, no_grad(|| model.forward(&x))?.to_f32()?, model.weights()?])
}

fn target(x: f32) -> f32 {
    (5.0 * x).sin() * (1.0 - 0.5 * x)
}

/// The last loss, and how far the parameters are from those of one device alone.
pub fn run(folder: &Path, steps: usize, devices: [&Device; 2]) -> Outcome<[f32; 2]> {
    let [losses, curve, weights] = train(devices, steps)?;
    let [alone, alone_curve, alone_weights] = train([&Device::Cpu; 2], steps)?;
    let difference = weights.iter().zip(&alone_weights).map(|(a, b)| (a - b).abs());
    // Which takes a NaN for the largest.
    let difference = difference.max_by(f32::total_cmp).unwrap_or(0.0);
    let loss = losses[steps - 1];
    println!("first half on {}, second on {}", devices[0].describe(), devices[1].describe());
    println!("loss {loss:.6} after {steps} steps, {:.6} on the CPU alone", alone[steps - 1]);
    println!("parameters differ by {difference:.1e} at most");
    let mut svg = Svg::new(760.0, 300.0);
    let log = |losses: &[f32]| losses.iter().map(|loss| loss.max(1e-7).log10()).collect::<Vec<_>>();
    let targets: Vec<f32> = (0..POINTS).map(|i| target(2.0 * i as f32 / (POINTS - 1) as f32 - 1.0)).collect();
    panel(&mut svg, 20.0, "loss, powers of ten", &[&log(&losses), &log(&alone)]);
    panel(&mut svg, 400.0, "what was learned, and the points", &[&curve, &alone_curve, &targets]);
    svg.text([250.0, 295.0], 12.0, COLOURS[0], "two devices");
    svg.text([380.0, 295.0], 12.0, COLOURS[1], "one device (dashed)");
    println!("{}", svg.save(folder, "two_devices.svg")?.display());
    Ok([loss, difference])
}

/// Curves over their numbers, of which a third is drawn as points.
fn panel(svg: &mut Svg, left: f64, title: &str, curves: &[&[f32]]) {
    let (top, [wide, high]) = (30.0, [340.0, 240.0]);
    let all = || curves.iter().flat_map(|curve| curve.iter().copied());
    let (low, most) = all().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), y| (l.min(y), h.max(y)));
    let span = f64::from(most - low).max(1e-6);
    svg.frame([left, top], [wide, high], "#fff", COLOURS[4]);
    svg.text([left + wide / 2.0, top - 8.0], 13.0, "#000", &format!("{title} ({low:.2} to {most:.2})"));
    for (i, curve) in curves.iter().enumerate() {
        let x = |at: usize| left + wide * at as f64 / (curve.len() - 1).max(1) as f64;
        let y = |value: f32| top + 4.0 + (high - 8.0) * (1.0 - f64::from(value - low) / span);
        let points: Vec<[f64; 2]> = curve.iter().enumerate().map(|(at, value)| [x(at), y(*value)]).collect();
        match i {
            2 => points.iter().for_each(|point| svg.circle(*point, 2.5, COLOURS[4])),
            _ => svg.curve(&points, COLOURS[i], if i == 0 { "none" } else { "6 4" }),
        }
    }
}

#[allow(dead_code)] // A test runs the rest.
fn main() -> ExitCode {
    exit(|| {
        let (folder, steps) = arguments(400)?;
        let allow_software = std::env::args().any(|argument| argument == "--allow-software-gpu");
        let gpu = Device::Gpu(Gpu::open(&AdapterChoice { allow_software, ..AdapterChoice::default() })?);
        run(&folder, steps, [&gpu, &Device::Cpu]).map(|_| ())
    })
}
