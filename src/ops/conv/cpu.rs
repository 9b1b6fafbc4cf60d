//! Convolution on the CPU: blocks of pixels are gathered into scratch memory, a row for each element of the kernel
//! (im2col), and multiplied by `gemm`. Blocks follow from the shapes alone, so the number of threads does not change a
//! result.

use super::geometry::{Axis, Geometry};
use crate::cpu::{Matrix, product, tiles, with_scratch};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of a gathered block: half a megabyte stays in the second-level cache.
const BLOCK: usize = 1 << 17;

/// What a kernel reads, in both dimensions, and the width of its source.
#[derive(Clone, Copy)]
struct Window {
    axes: [Axis; 2],
    /// Height and width of the source.
    source: [usize; 2],
}

impl Window {
    fn pixels(&self) -> usize {
        self.axes[0].count * self.axes[1].count
    }

    fn taps(&self) -> usize {
        self.axes[0].taps * self.axes[1].taps
    }

    /// Whether what it gathers of a channel is the channel itself.
    fn is_identity(&self) -> bool {
        let plain = |axis: &Axis, size| (axis.count, axis.taps, axis.stride, axis.start) == (size, 1, 1, 0);
        plain(&self.axes[0], self.source[0]) && plain(&self.axes[1], self.source[1])
    }

    /// Writes to `out` (rows, pixels) what elements `rows` of (channels, taps) read of `source` (channels, H, W) for
    /// these pixels.
    fn gather(&self, source: &[f32], rows: Range<usize>, pixels: Range<usize>, out: &mut [f32]) {
        let [vertical, horizontal] = self.axes;
        let [height, width] = self.source;
        for (row, out) in rows.zip(out.chunks_exact_mut(pixels.len())) {
            let (channel, tap) = (row / self.taps(), row % self.taps());
            let plane = &source[channel * height * width..][..height * width];
            let dy = vertical.start + (tap / horizontal.taps) as isize * vertical.step;
            let x = horizontal.start + (tap % horizontal.taps) as isize * horizontal.step;
            // Lines of small images are so short that a division for each would cost more than what it copies.
            let (mut a, mut b) = (pixels.start / horizontal.count, pixels.start % horizontal.count);
            let mut rest = out;
            while !rest.is_empty() {
                let here = (horizontal.count - b).min(rest.len());
                let (line, others) = rest.split_at_mut(here);
                let y = a as isize * vertical.stride + dy;
                match usize::try_from(y) {
                    Ok(y) if y < height => {
                        let from = x + b as isize * horizontal.stride;
                        gather_line(&plane[y * width..][..width], from, horizontal.stride, line);
                    }
                    _ => line.fill(0.0),
                }
                rest = others;
                (a, b) = (a + 1, 0);
            }
        }
    }
}

/// `line[i] = source[x + i stride]`, zero where that is outside.
fn gather_line(source: &[f32], x: isize, stride: isize, line: &mut [f32]) {
    let width = source.len() as isize;
    // The first i that is inside, and the first that is beyond.
    let first_at = |bound: isize| {
        let apart = (bound - x).max(0) as usize;
        if stride == 1 { apart.min(line.len()) } else { apart.div_ceil(stride as usize).min(line.len()) }
    };
    let (from, to) = (first_at(0), first_at(width));
    let (before, rest) = line.split_at_mut(from);
    let (inside, after) = rest.split_at_mut(to - from);
    before.iter_mut().chain(after).for_each(|outside| *outside = 0.0);
    if inside.is_empty() {
        return;
    }
    let first = (x + from as isize * stride) as usize;
    if stride == 1 {
        inside.copy_from_slice(&source[first..][..to - from]);
    } else if stride == 2 {
        // In pairs, of which the last may be half: a loop that compilers turn into shuffles.
        let (last, others) = inside.split_last_mut().expect("it is not empty");
        *last = source[first + 2 * others.len()];
        others.iter_mut().zip(source[first..].chunks_exact(2)).for_each(|(line, pair)| *line = pair[0]);
    } else {
        inside.iter_mut().zip(source[first..].iter().step_by(stride as usize)).for_each(|(line, x)| *line = *x);
    }
}

/// Pixels of a block: about [`BLOCK`] gathered elements, and blocks of equal size.
fn block(rows: usize, pixels: usize) -> usize {
    let most = (BLOCK / rows.max(1)).clamp(64, 4096);
    pixels.div_ceil(pixels.div_ceil(most).max(1)).max(1)
}

/// result = the convolution of the image with the weight, plus the bias of each channel if there is one.
pub(super) fn forward(g: &Geometry, image: &[f32], weight: &[f32], bias: Option<&[f32]>, result: &mut [f32]) {
    let window = Window { axes: [g.forward(0), g.forward(1)], source: g.image };
    convolve(g, window, [g.c_in, g.c_out], image, weight, bias, result);
}

/// The gradient of the image from that of the result; or the forward pass of the transposed convolution, with a bias.
pub(super) fn input_gradient(
    g: &Geometry,
    grad_result: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    grad_image: &mut [f32],
) {
    let residues = (0..g.residues(0)).flat_map(|y| (0..g.residues(1)).map(move |x| [y, x]));
    for [y, x] in residues {
        let axes = [g.input_gradient(0, y), g.input_gradient(1, x)];
        let window = Window { axes, source: g.result };
        let (k, kernel) = (g.c_out * window.taps(), g.kernel_size());
        // (groups, c_in, c_out taps): rows of neighbouring elements, as the forward pass has them.
        with_scratch(g.groups() * g.c_in * k, |rows| {
            rows.par_chunks_mut(k.max(1)).enumerate().for_each(|(row, out)| {
                let (group, c_in) = (row / g.c_in, row % g.c_in);
                for (i, out) in out.iter_mut().enumerate() {
                    let (c_out, tap) = (i / window.taps(), i % window.taps());
                    let [j, i] = [tap / axes[1].taps, tap % axes[1].taps];
                    let element = (axes[0].first + j * axes[0].every) * g.kernel[1] + axes[1].first + i * axes[1].every;
                    *out = weight[((group * g.c_out + c_out) * g.c_in + c_in) * kernel + element];
                }
            });
            convolve(g, window, [g.c_out, g.c_in], grad_result, rows, bias, grad_image);
        });
    }
}

/// target (B, groups m, pixels) = weight (groups, m, channels taps) times what the window gathers of the source (B,
/// groups channels, H, W).
fn convolve(
    g: &Geometry,
    window: Window,
    [channels, m]: [usize; 2],
    source: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    target: &mut [f32],
) {
    let (k, pixels) = (channels * window.taps(), window.pixels());
    if pixels == 0 || target.is_empty() {
        return;
    }
    let of_source = channels * window.source[0] * window.source[1];
    let columns = block(k, pixels);
    // The product for a block of pixels of an image's group, handed to `multiply` with the gathered matrix (k, pixels).
    let gathered = |part: usize, range: Range<usize>, multiply: &mut dyn FnMut(Matrix, Matrix)| {
        let source = &source[part * of_source..][..of_source];
        let weight = Matrix::rows(&weight[part % g.groups() * m * k..][..m * k], k);
        if window.is_identity() {
            return multiply(weight, Matrix::rows(source, pixels).skip_columns(range.start));
        }
        with_scratch(k * range.len(), |block| {
            window.gather(source, 0..k, range.clone(), block);
            multiply(weight, Matrix::rows(block, range.len()));
        });
    };
    let bias_of = |part: usize| bias.map(|bias| &bias[part % g.groups() * m..][..m]);
    if window.axes.iter().all(|axis| axis.apart == 1) {
        let across = pixels.div_ceil(columns);
        tiles(target, pixels, m, columns).enumerate().for_each(|(i, mut tile)| {
            let (part, first) = (i / across, i % across * columns);
            if let Some(bias) = bias_of(part) {
                bias.iter().enumerate().for_each(|(row, bias)| tile.row(row).fill(*bias));
            }
            let range = first..(first + columns).min(pixels);
            gathered(part, range, &mut |a, b| tile.product(0..m, bias.is_some(), k, a, b));
        });
        return;
    }
    // Pixels that are apart: through scratch memory, one image's group after the other.
    let [vertical, horizontal] = window.axes;
    let width = g.image[1];
    target.par_chunks_mut(m * g.image_pixels()).enumerate().for_each(|(part, target)| {
        for first in (0..pixels).step_by(columns) {
            let range = first..(first + columns).min(pixels);
            with_scratch(m * range.len(), |block| {
                let sizes = [m, range.len(), k];
                gathered(part, range.clone(), &mut |a, b| product(block, range.len(), false, sizes, a, b));
                for (row, block) in block.chunks_exact(range.len()).enumerate() {
                    let bias = bias_of(part).map_or(0.0, |bias| bias[row]);
                    let plane = &mut target[row * g.image_pixels()..][..g.image_pixels()];
                    for (pixel, value) in range.clone().zip(block) {
                        let y = vertical.at + pixel / horizontal.count * vertical.apart;
                        let x = horizontal.at + pixel % horizontal.count * horizontal.apart;
                        plane[y * width + x] = value + bias;
                    }
                }
            });
        }
    });
}

/// Columns of the weight's gradient that a task computes.
const COLUMNS: usize = 96;

/// The gradient of the weight (groups c_out, c_in taps), added to what is there if `accumulate`: a task has some
/// columns of a group, and goes through all images.
pub(super) fn weight_gradient(
    g: &Geometry,
    image: &[f32],
    grad_result: &[f32],
    accumulate: bool,
    grad_weight: &mut [f32],
) {
    let window = Window { axes: [g.forward(0), g.forward(1)], source: g.image };
    let (n, pixels) = (g.c_in * window.taps(), window.pixels());
    if g.batch == 0 && !accumulate {
        grad_weight.fill(0.0);
    }
    let columns = n.div_ceil(n.div_ceil(COLUMNS));
    let across = n.div_ceil(columns);
    let of_image = g.c_in * g.image_pixels();
    tiles(grad_weight, n, g.c_out, columns).enumerate().for_each(|(i, mut tile)| {
        let (group, first) = (i / across, i % across * columns);
        let rows = first..(first + columns).min(n);
        let at_once = block(rows.len(), pixels);
        for (number, part) in (0..g.batch).map(|image| image * g.groups() + group).enumerate() {
            let image = &image[part * of_image..][..of_image];
            let dy = Matrix::rows(&grad_result[part * g.c_out * pixels..][..g.c_out * pixels], pixels);
            for first in (0..pixels).step_by(at_once) {
                let range = first..(first + at_once).min(pixels);
                let add = accumulate || number + first > 0;
                with_scratch(rows.len() * range.len(), |block| {
                    window.gather(image, rows.clone(), range.clone(), block);
                    let gathered = Matrix::rows(block, range.len()).transposed();
                    tile.product(0..g.c_out, add, range.len(), dy.skip_columns(first), gathered);
                });
            }
        }
    });
}
