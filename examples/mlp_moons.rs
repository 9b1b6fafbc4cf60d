//! micrograd's demonstration: a network of two hidden layers of 16 learns to tell two moons apart.
//!
//!     cargo run --release --example mlp_moons -- [FOLDER] [STEPS]
//!
//! Max-margin loss with L2, SGD whose rate falls from 1, 100 steps of all 100 points: 100% accuracy
//! (github.com/karpathy/micrograd, demo.ipynb). Writes `mlp_moons.svg`, the points on what the network makes of the
//! plane, into FOLDER, target/examples if there is none.

mod common;

use common::{COLOURS, Outcome, Svg, arguments, exit, shade, uniform};
use rustyflow::fit::{Trainer, TrainerOptions};
use rustyflow::nn::{Dropout, Linear, Module, Parameter, init_keys, join};
use rustyflow::optim::{Kind, LearningRate};
use rustyflow::tensor::no_grad;
use rustyflow::{Device, Result, Tensor};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const POINTS: usize = 100;

/// 2 inputs, 16 and 16 hidden neurons with ReLU, one score.
struct Mlp([Linear; 3]);

impl Mlp {
    fn new(seed: u64) -> Result<Mlp> {
        let mut keys = init_keys(seed);
        // micrograd draws from [-1, 1], which has this standard deviation.
        let std = 1.0 / 3f32.sqrt();
        let mut layer = |inputs, outputs| Linear::new(inputs, outputs, true, std, keys());
        Ok(Mlp([layer(2, 16)?, layer(16, 16)?, layer(16, 1)?]))
    }

    /// (N, 2) -> (N, 1)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [first, second, last] = &self.0;
        let off = Dropout::off();
        let hidden = first.forward(x, &off)?.relu()?; // (N, 16)
        let hidden = second.forward(&hidden, &off)?.relu()?; // (N, 16)
        last.forward(&hidden, &off)
    }
}

impl Module for Mlp {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        for (i, layer) in self.0.iter_mut().enumerate() {
            layer.visit_parameters(&join(prefix, &format!("layers.{i}")), visit);
        }
    }
}

/// Points of two interleaved half circles, with noise, and on which each is: 1 or -1.
fn moons() -> (Vec<[f32; 2]>, Vec<f32>) {
    let mut state = 1337;
    let points = (0..POINTS).map(|i| {
        let angle = std::f32::consts::PI * (i / 2) as f32 / (POINTS / 2 - 1) as f32;
        let (x, y) = if i % 2 == 0 { (angle.cos(), angle.sin()) } else { (1.0 - angle.cos(), 0.5 - angle.sin()) };
        // The sum of twelve uniform numbers is nearly normal, of variance 1.
        let mut noise = || 0.1 * ((0..12).map(|_| uniform(&mut state)).sum::<f32>() - 6.0);
        [x + noise(), y + noise()]
    });
    (points.collect(), (0..POINTS).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect())
}

/// What part of the points the network tells right, after so many steps.
pub fn run(folder: &Path, steps: usize, device: &Device) -> Outcome<f64> {
    let (points, sides) = moons();
    let x = Tensor::from_f32(points.as_flattened(), [POINTS, 2], device)?;
    let y = Tensor::from_f32(&sides, [POINTS, 1], device)?;
    let one = Tensor::full(1.0, [1], device)?;

    let mut model = Mlp::new(3)?;
    let sgd = Kind::Sgd { momentum: 0.0, nesterov: false };
    // The gradient of 1e-4 sum p^2.
    let options = TrainerOptions::new(sgd, LearningRate::linear(1.0, 0.1, steps)).weight_decay(2e-4);
    let mut trainer = Trainer::new(&mut model, device, options)?;

    let started = Instant::now();
    for step in 0..steps {
        // mean(relu(1 - y score))
        let update = trainer.step(|| one.sub(&model.forward(&x)?.mul(&y)?)?.relu()?.mean(..))?;
        if (step + 1) % steps.div_ceil(10) == 0 {
            println!("step {:4}  loss {:.4}", step + 1, update.numbers()?.loss);
        }
    }
    device.synchronize()?;
    let elapsed = started.elapsed();
    println!("{steps} steps, {:.4} ms each", 1e3 * elapsed.as_secs_f64() / steps as f64);

    let scores = no_grad(|| model.forward(&x))?.to_f32()?;
    let right = scores.iter().zip(&sides).filter(|(score, side)| (**score > 0.0) == (**side > 0.0)).count();
    let accuracy = right as f64 / POINTS as f64;
    println!("accuracy {:.0}%", 100.0 * accuracy);
    println!("{}", draw(&model, &points, &sides, device)?.save(folder, "mlp_moons.svg")?.display());
    Ok(accuracy)
}

/// The points on the plane in the colours of the scores.
fn draw(model: &Mlp, points: &[[f32; 2]], sides: &[f32], device: &Device) -> Result<Svg> {
    const CELLS: usize = 80;
    let (size, [left, top], span) = (480.0, [-1.5, 1.75], [4.0, 3.0]);
    let at = |i: usize, of: f64| (i as f64 + 0.5) / CELLS as f64 * of;
    let cells = (0..CELLS * CELLS).map(|i| [left + at(i % CELLS, span[0]), top - at(i / CELLS, span[1])]);
    let cells: Vec<f32> = cells.flatten().map(|x| x as f32).collect();
    let cells = Tensor::from_f32(&cells, [CELLS * CELLS, 2], device)?;
    let scores = no_grad(|| model.forward(&cells))?.to_f32()?;
    let (wide, high) = (size, size * span[1] / span[0]);
    let mut svg = Svg::new(wide, high);
    let cell = [wide / CELLS as f64, high / CELLS as f64];
    for (i, score) in scores.iter().enumerate() {
        let strong = if *score > 0.0 { COLOURS[0] } else { COLOURS[1] };
        let part = 0.15 + 0.45 * f64::from(score.abs().min(1.0));
        let corner = [(i % CELLS) as f64 * cell[0], (i / CELLS) as f64 * cell[1]];
        // A little larger, so that no gap shows between neighbours.
        svg.rect(corner, cell.map(|side| side + 0.3), &shade(strong, part));
    }
    for ([x, y], side) in points.iter().zip(sides) {
        let place = [(f64::from(*x) - left) / span[0] * wide, (top - f64::from(*y)) / span[1] * high];
        svg.circle(place, 4.0, if *side > 0.0 { COLOURS[0] } else { COLOURS[1] });
    }
    Ok(svg)
}

#[allow(dead_code)] // A test runs the rest.
fn main() -> ExitCode {
    exit(|| {
        rustyflow::set_threads(0);
        let (folder, steps) = arguments(100)?;
        run(&folder, steps, &Device::Cpu).map(|_| ())
    })
}
