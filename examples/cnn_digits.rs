//! A small convolutional network reads handwritten digits of 8x8 pixels (data/digits.csv.gz).
//!
//!     cargo run --release --example cnn_digits -- [FOLDER] [EPOCHS]
//!
//! Every fifth of the 1797 images, in a random order, is held out; the network tells at least 98% of them right. Writes
//! `cnn_digits.svg`, the confusion matrix and some held-out digits with what they were read as, into FOLDER,
//! target/examples if there is none.

mod common;

use common::{COLOURS, Outcome, Svg, arguments, exit, shade, uniform};
use flate2::read::GzDecoder;
use rustyflow::fit::{Array, Arrays, DataLoader, LoaderOptions, Trainer, TrainerOptions};
use rustyflow::nn::{Conv2d, Dropout, Linear, Module, Parameter, init_keys, join};
use rustyflow::ops::{ConvOptions, Criterion, PoolOptions};
use rustyflow::optim::{Kind, LearningRate};
use rustyflow::tensor::no_grad;
use rustyflow::{Device, Result, Tensor};
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const BATCH: usize = 64;
const SIDE: usize = 8;

/// Two convolutions of 3x3, each with ReLU and a maximum over 2x2, then a linear layer.
struct Cnn {
    conv: [Conv2d; 2],
    head: Linear,
}

impl Cnn {
    fn new(seed: u64) -> Result<Cnn> {
        let mut keys = init_keys(seed);
        let options = ConvOptions { padding: [1; 2], ..ConvOptions::default() };
        let mut conv = |channels| Conv2d::new(channels, [3; 2], options, true, &mut keys);
        let conv = [conv([1, 16])?, conv([16, 32])?];
        Ok(Cnn { conv, head: Linear::new(32 * 4, 10, true, 0.05, keys())? })
    }

    /// (B, 1, 8, 8) -> logits (B, 10)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let halved = PoolOptions::new([2; 2]);
        let x = self.conv[0].forward(x)?.relu()?.max_pool2d(halved)?; // (B, 16, 4, 4)
        let x = self.conv[1].forward(&x)?.relu()?.max_pool2d(halved)?; // (B, 32, 2, 2)
        self.head.forward(&x.reshape([x.shape()[0], 32 * 4])?, &Dropout::off())
    }
}

impl Module for Cnn {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        for (i, conv) in self.conv.iter_mut().enumerate() {
            conv.visit_parameters(&join(prefix, &format!("conv.{i}")), visit);
        }
        self.head.visit_parameters(&join(prefix, "head"), visit);
    }
}

/// Images, and the digits that they are of.
struct Digits {
    pixels: Vec<f32>,
    classes: Vec<u32>,
}

impl Digits {
    /// All of the file, in a random order: pixels from 0 to 1.
    fn read() -> Outcome<Digits> {
        let mut text = String::new();
        GzDecoder::new(&include_bytes!("../data/digits.csv.gz")[..]).read_to_string(&mut text)?;
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for line in text.lines() {
            rows.push(line.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?);
        }
        let mut state = 5;
        for last in (1..rows.len()).rev() {
            rows.swap(last, (uniform(&mut state) * (last + 1) as f32) as usize);
        }
        let pixels = rows.iter().flat_map(|row| row[..SIDE * SIDE].iter().map(|pixel| pixel / 16.0)).collect();
        Ok(Digits { pixels, classes: rows.iter().map(|row| row[SIDE * SIDE] as u32).collect() })
    }

    /// The first `count`, and the rest.
    fn split(mut self, count: usize) -> [Digits; 2] {
        let (pixels, classes) = (self.pixels.split_off(count * SIDE * SIDE), self.classes.split_off(count));
        [self, Digits { pixels, classes }]
    }

    fn len(&self) -> usize {
        self.classes.len()
    }
}

/// What part of the held-out digits the network reads right, after so many epochs.
pub fn run(folder: &Path, epochs: usize, device: &Device) -> Outcome<f64> {
    let digits = Digits::read()?;
    let held_out = digits.len() / 5;
    let [held_out, digits] = digits.split(held_out);
    let images = Array::f32(&digits.pixels, [digits.len(), 1, SIDE, SIDE])?;
    let data = Arrays::new(vec![images, Array::u32(&digits.classes, [digits.len()])?])?;
    let loader = DataLoader::new(data, LoaderOptions::of(BATCH).shuffled(1).drop_last(), device)?;

    let mut model = Cnn::new(1)?;
    let adam = Kind::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    let steps = epochs * loader.batches_per_epoch();
    let options = TrainerOptions::new(adam, LearningRate::one_cycle(0.01, steps));
    let mut trainer = Trainer::new(&mut model, device, options)?;

    let started = Instant::now();
    for batch in loader.epochs(0..epochs as u64)? {
        let batch = batch?;
        let (epoch, is_last) = (batch.epoch, batch.number + 1 == loader.batches_per_epoch());
        let [x, y] = batch.take()?; // (B, 1, 8, 8), (B)
        let update = trainer.step(|| model.forward(&x)?.cross_entropy(&y, Criterion::default()))?;
        if is_last {
            println!("epoch {:2}  loss {:.4}", epoch + 1, update.numbers()?.loss);
        }
    }
    device.synchronize()?;
    println!("{steps} steps, {:.4} ms each", 1e3 * started.elapsed().as_secs_f64() / steps as f64);

    let x = Tensor::from_f32(&held_out.pixels, [held_out.len(), 1, SIDE, SIDE], device)?;
    let read = no_grad(|| model.forward(&x)?.argmax(1))?.to_u32()?;
    let right = read.iter().zip(&held_out.classes).filter(|(read, class)| read == class).count();
    let accuracy = right as f64 / held_out.len() as f64;
    println!("{right} of {} held-out digits, {:.2}%", held_out.len(), 100.0 * accuracy);
    println!("{}", draw(&held_out, &read).save(folder, "cnn_digits.svg")?.display());
    Ok(accuracy)
}

/// The confusion matrix, and beside it 35 digits, those first that were misread.
fn draw(digits: &Digits, read: &[u32]) -> Svg {
    let mut svg = Svg::new(820.0, 380.0);
    let mut counts = [[0; 10]; 10];
    digits.classes.iter().zip(read).for_each(|(class, read)| counts[*class as usize][*read as usize] += 1);
    let place = |i: usize| 50.0 + 30.0 * i as f64;
    svg.text([200.0, 24.0], 13.0, "#000", "the digit (rows), read as (columns)");
    for (class, row) in counts.iter().enumerate() {
        svg.text([38.0, place(class) + 20.0], 12.0, "#000", &class.to_string());
        svg.text([place(class) + 15.0, 44.0], 12.0, "#000", &class.to_string());
        let total: usize = row.iter().sum();
        for (as_digit, &count) in row.iter().enumerate() {
            let strong = if class == as_digit { COLOURS[0] } else { COLOURS[3] };
            let corner = [place(as_digit), place(class)];
            svg.rect(corner, [29.0; 2], &shade(strong, 0.05 + 0.8 * count as f64 / total.max(1) as f64));
            if count > 0 {
                svg.text([corner[0] + 14.5, corner[1] + 19.0], 11.0, "#000", &count.to_string());
            }
        }
    }
    let mut order: Vec<usize> = (0..digits.len()).collect();
    order.sort_by_key(|&i| digits.classes[i] == read[i]);
    for (tile, &i) in order.iter().take(35).enumerate() {
        let [x, y] = [400.0 + 58.0 * (tile % 7) as f64, 20.0 + 70.0 * (tile / 7) as f64];
        for (p, pixel) in digits.pixels[i * SIDE * SIDE..][..SIDE * SIDE].iter().enumerate() {
            let corner = [x + 6.0 * (p % SIDE) as f64, y + 6.0 * (p / SIDE) as f64];
            svg.rect(corner, [6.2; 2], &shade("#000000", f64::from(*pixel)));
        }
        let (class, read) = (digits.classes[i], read[i]);
        let text = if class == read { format!("{read}") } else { format!("{read}, not {class}") };
        svg.text([x + 24.0, y + 61.0], 11.0, if class == read { "#000" } else { COLOURS[3] }, &text);
    }
    svg
}

#[allow(dead_code)] // A test runs the rest.
fn main() -> ExitCode {
    exit(|| {
        rustyflow::set_threads(0);
        let (folder, epochs) = arguments(15)?;
        run(&folder, epochs, &Device::Cpu).map(|_| ())
    })
}
