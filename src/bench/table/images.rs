//! Layers of convolutional and recurrent networks.

use super::{Row, Sizes};
use crate::ops::inputs::{AROUND_ZERO, Values};
use crate::ops::{ConvOptions, PoolOptions, RecurrentRef};
use crate::{Result, Tensor};

/// The layers of ResNet-18 (He et al. 2016) on images of 224 x 224 pixels, or of a quarter of its channels and
/// pixels.
pub(super) fn images(s: &Sizes) -> Vec<Row> {
    let (batch, part) = if s.width < 512 { (2 * s.batch, 4) } else { (4 * s.batch, 1) };
    let conv = |c_in: usize, c_out: usize, size: usize, kernel: usize, stride: usize| {
        let (c_in, c_out, size) = (if c_in > 3 { c_in / part } else { c_in }, c_out / part, size / part);
        let bound = 1.0 / ((c_in * kernel * kernel) as f32).sqrt();
        let weight = (vec![c_out, c_in, kernel, kernel], Values::Uniform(-bound, bound));
        let inputs = vec![(vec![batch, c_in, size, size], AROUND_ZERO), weight];
        let shape = format!("{batch}x{c_in}x{size}x{size} to {c_out}, {kernel}x{kernel}, stride {stride}");
        let options = ConvOptions { stride: [stride; 2], padding: [kernel / 2; 2], ..ConvOptions::default() };
        Row::both("conv2d", shape, inputs, &[1], move |x| x[0].conv2d(&x[1], None, options))
    };
    let first = (vec![batch, 64 / part, 112 / part, 112 / part], AROUND_ZERO);
    let shape = move || format!("{batch}x{}x{1}x{1}", 64 / part, 112 / part);
    let parameters = || vec![(vec![64 / part], AROUND_ZERO); 2];
    let norm = |op, apply: fn(&[Tensor]) -> Result<Tensor>| {
        Row::both(op, shape(), [vec![first.clone()], parameters()].concat(), &[1, 2], apply)
    };
    let pool = |op, apply: fn(&[Tensor]) -> Result<Tensor>| Row::both(op, shape(), vec![first.clone()], &[], apply);
    vec![
        norm("batch_norm", |x| {
            let running = [Tensor::full(0.0, [x[1].len()], &x[0].device())?, x[1].detach().scale(1.0)?];
            x[0].batch_norm([&running[0], &running[1]], &x[1], &x[2], Some(0.1), 1e-5)
        }),
        norm("group_norm", |x| x[0].group_norm(8, &x[1], &x[2], 1e-5)),
        pool("max_pool2d", |x| {
            x[0].max_pool2d(PoolOptions { stride: [2; 2], padding: [1; 2], ..PoolOptions::new([3; 2]) })
        }),
        pool("avg_pool2d", |x| x[0].avg_pool2d(PoolOptions::new([2; 2]))),
        pool("adaptive_avg_pool2d", |x| x[0].adaptive_avg_pool2d([1; 2])),
        conv(3, 64, 224, 7, 2),
        conv(64, 64, 56, 3, 1),
        conv(64, 128, 56, 3, 2),
        conv(64, 128, 56, 1, 2),
        conv(128, 128, 28, 3, 1),
        conv(256, 256, 14, 3, 1),
        conv(512, 512, 7, 3, 1),
    ]
}

/// Layers of B texts in half a context of steps.
pub(super) fn recurrent(s: &Sizes) -> Vec<Row> {
    let (steps, batch, c) = (s.context / 2, s.batch, s.width);
    let row = |cell: &'static str, gates: usize, states: usize| {
        let parameters = [vec![gates * c, c], vec![gates * c, c], vec![gates * c], vec![gates * c]];
        let shapes = [vec![vec![steps, batch, c]], vec![vec![1, batch, c]; states], parameters.to_vec()].concat();
        // Weights so small that no gate is at its end.
        let bound = 1.0 / (c as f32).sqrt();
        let inputs = shapes.into_iter().map(|shape| (shape, Values::Uniform(-bound, bound))).collect();
        let parameters: &[usize] = if states == 2 { &[3, 4, 5, 6] } else { &[2, 3, 4, 5] };
        Row::both(cell, format!("{steps} steps of {batch}x{c}"), inputs, parameters, move |x| {
            let [weight_ih, weight_hh, bias_ih, bias_hh] = &x[1 + states..] else { unreachable!("four parameters") };
            let direction = [RecurrentRef { weight_ih, weight_hh, bias: Some([bias_ih, bias_hh]) }];
            Ok(match cell {
                "lstm" => x[0].lstm(0, &direction, [&x[1], &x[2]])?.0,
                "gru" => x[0].gru(0, &direction, &x[1])?.0,
                _ => x[0].rnn(0, &direction, &x[1])?.0,
            })
        })
    };
    vec![row("rnn", 1, 1), row("lstm", 4, 2), row("gru", 3, 1)]
}
