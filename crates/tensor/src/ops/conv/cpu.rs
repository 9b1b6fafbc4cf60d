//! Convolution on the CPU: eight pixels by 32 channels at a time (eight elements of the kernel by 32 channels for the
//! weight's gradient) are summed up in registers, from a copy of the image with zeros around it and from packed
//! weights (`cpu/panels.rs`). Each sum is in the order of channels and kernel elements, so neither the blocks in which
//! it is computed nor the number of threads change a result. The blocks of the weight's gradient follow from the shape.

use super::geometry::Geometry;
use super::window::{Layout, Window};
use crate::cpu::{
    PANEL, Places, ROWS, Tile, pack_panel, packed_len, panel_product, panel_width, threads, tiles, with_scratch,
};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of the source per block: a quarter of a megabyte leaves room for weights in the L2 cache.
const BLOCK: usize = 1 << 16;
/// Pixels per block.
const MOST_PIXELS: usize = 4096;

/// result = the convolution of the image with the weight, plus the bias of each channel if there is one.
pub(super) fn forward(g: &Geometry, image: &[f32], weight: &[f32], bias: Option<&[f32]>, result: &mut [f32]) {
    let window = Window { axes: [g.forward(0), g.forward(1)], source: g.image };
    let (k, m) = (g.c_in * window.taps(), g.c_out);
    let of_group = packed_len(k, m);
    with_scratch(g.groups() * of_group, |packed| {
        packed.par_chunks_mut(of_group).zip(weight.par_chunks(m * k)).for_each(|(packed, weight)| {
            let panels = (0..m).step_by(PANEL).zip(packed.chunks_mut(PANEL * k));
            panels.for_each(|(first, panel)| pack_panel(weight, k, [k, m], first, panel));
        });
        convolve(g, window, [g.c_in, m], image, packed, bias, result);
    });
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
        let (taps, kernel, m) = (window.taps(), g.kernel_size(), g.c_in);
        let elements: Vec<usize> = (0..taps)
            .map(|tap| {
                let [j, i] = [tap / axes[1].taps, tap % axes[1].taps];
                (axes[0].first + j * axes[0].every) * g.kernel[1] + axes[1].first + i * axes[1].every
            })
            .collect();
        // Panels (c_out taps, c_in) of each group.
        let (k, of_group) = (g.c_out * taps, packed_len(g.c_out * taps, m));
        with_scratch(g.groups() * of_group, |packed| {
            packed.par_chunks_mut(of_group.max(1)).zip(weight.par_chunks(g.c_out * m * kernel)).for_each(
                |(packed, weight)| {
                    for (first, panel) in (0..m).step_by(PANEL).zip(packed.chunks_mut(PANEL * k)) {
                        let width = panel_width(first, m);
                        for (of_output, lines) in weight.chunks_exact(m * kernel).zip(panel.chunks_mut(taps * width)) {
                            for (element, line) in elements.iter().zip(lines.chunks_exact_mut(width)) {
                                let columns = width.min(m - first);
                                let from = of_output[first * kernel + element..].iter().step_by(kernel);
                                line[..columns].iter_mut().zip(from).for_each(|(out, x)| *out = *x);
                                line[columns..].fill(0.0);
                            }
                        }
                    }
                },
            );
            convolve(g, window, [g.c_out, m], grad_result, packed, bias, grad_image);
        });
    }
}

/// Images and lines per block, for about [`BLOCK`] elements.
fn block(window: &Window, channels: usize) -> [usize; 2] {
    let [vertical, horizontal] = window.axes;
    let of_line = channels * horizontal.count.max(window.source[1]) * vertical.stride as usize;
    let most = (BLOCK / of_line).min(MOST_PIXELS / horizontal.count).max(1);
    // As even as they can be.
    let lines = vertical.count.div_ceil(vertical.count.div_ceil(most));
    [(most / vertical.count).max(1), lines]
}

/// Eight pixels of a block, or what is left of them: the number of each one's image, and its place there.
#[derive(Clone)]
struct Pixels {
    images: [usize; ROWS],
    targets: [usize; ROWS],
    count: usize,
}

/// Where the pixels of so many images, `apart` elements apart, and of these lines are read, in eights, of which the
/// last is filled up with the first of its pixels; and where they are in images of this width.
fn pixels(
    layout: &Layout,
    window: &Window,
    width: usize,
    [images, apart]: [usize; 2],
    lines: Range<usize>,
) -> (Vec<[usize; ROWS]>, Vec<Pixels>) {
    let [vertical, horizontal] = window.axes;
    let (begin, count) = (layout.begin(lines.start), images * lines.len() * horizontal.count);
    let mut rows = vec![[0; ROWS]; count.div_ceil(ROWS)];
    let mut pixels = vec![Pixels { images: [0; ROWS], targets: [0; ROWS], count: ROWS }; rows.len()];
    let mut number = 0;
    for image in 0..images {
        for (a, line) in lines.clone().enumerate() {
            let read = begin + image * apart + a * layout.line;
            let target = (vertical.at + line * vertical.apart) * width + horizontal.at;
            for b in 0..horizontal.count {
                let (eight, r) = (number / ROWS, number % ROWS);
                rows[eight][r] = read + b * layout.pixel;
                pixels[eight].images[r] = image;
                pixels[eight].targets[r] = target + b * horizontal.apart;
                number += 1;
            }
        }
    }
    if let (Some(rows), Some(pixels)) = (rows.last_mut(), pixels.last_mut()) {
        pixels.count = count - (count - 1) / ROWS * ROWS;
        let first = rows[0];
        rows[pixels.count..].fill(first);
    }
    (rows, pixels)
}

/// How a pass is shared out: a task has all pixels of some images, or some lines of one, and goes through them by
/// blocks of lines.
struct Cut {
    images: usize,
    lines_of_task: usize,
    tasks_of_image: usize,
    lines_of_block: usize,
}

impl Cut {
    /// Tasks of lines of an image only if lines are neighbours in the target.
    fn new(window: &Window, channels: usize, batch: usize, dense: bool) -> Cut {
        let ([images, lines], height) = (block(window, channels), window.axes[0].count);
        let enough = 2 * threads();
        let tasks = if dense { height.div_ceil(lines).max(enough.div_ceil(batch)).min(height) } else { 1 };
        let lines_of_task = height.div_ceil(tasks);
        Cut {
            images: images.min(batch.div_ceil(enough)),
            lines_of_task,
            tasks_of_image: height.div_ceil(lines_of_task),
            lines_of_block: lines.min(lines_of_task),
        }
    }

    /// The first image of a task, and its first line.
    fn first(&self, task: usize) -> (usize, usize) {
        (task / self.tasks_of_image * self.images, task % self.tasks_of_image * self.lines_of_task)
    }
}

/// target (B, groups m, pixels) = weight (groups, m, channels taps) times what the window reads of the source (B,
/// groups channels, H, W). The weight is packed, for each group panels (channels taps, m).
fn convolve(
    g: &Geometry,
    window: Window,
    [channels, m]: [usize; 2],
    source: &[f32],
    packed: &[f32],
    bias: Option<&[f32]>,
    target: &mut [f32],
) {
    let (k, groups, [vertical, horizontal]) = (channels * window.taps(), g.groups(), window.axes);
    if window.pixels() == 0 || target.is_empty() {
        return;
    }
    let plane = target.len() / (g.batch * groups * m);
    let dense = vertical.apart * horizontal.apart == 1;
    let width = if dense { horizontal.count } else { g.image[1] };
    let cut = Cut::new(&window, channels, g.batch, dense);
    let columns = if dense { cut.lines_of_task * width } else { plane };
    let layout = window.layout(channels, cut.lines_of_block);
    let of_source = channels * window.source[0] * window.source[1];
    let apart = layout.apart(groups * of_source);
    tiles(target, plane, cut.images * groups * m, columns).enumerate().for_each(|(task, mut tile)| {
        let (first_image, top) = cut.first(task);
        let images = cut.images.min(g.batch - first_image);
        let bottom = (top + cut.lines_of_task).min(vertical.count);
        let before = if dense { top * width } else { 0 };
        with_scratch(images * layout.copied, |copy| {
            for first in (top..bottom).step_by(cut.lines_of_block) {
                let lines = first..(first + cut.lines_of_block).min(bottom);
                let (rows, pixels) = pixels(&layout, &window, width, [images, apart], lines.clone());
                for group in 0..groups {
                    let part = |image: usize| &source[((first_image + image) * groups + group) * of_source..];
                    for (image, copy) in copy.chunks_exact_mut(layout.copied.max(1)).enumerate() {
                        layout.copy(&part(image)[..of_source], lines.clone(), copy);
                    }
                    let read = if layout.copied == 0 { part(0) } else { &*copy };
                    let packed = &packed[group * packed_len(k, m)..];
                    for column in (0..m).step_by(PANEL) {
                        let panel = &packed[column * k..(column + panel_width(column, m)) * k];
                        let target = Target {
                            channels: groups * m,
                            first: group * m + column,
                            count: PANEL.min(m - column),
                            before,
                            bias: bias.map(|bias| &bias[group * m + column..]),
                        };
                        panel_product(
                            read,
                            &rows,
                            &layout.places,
                            panel,
                            #[inline(always)]
                            |eight, out| target.store(&mut tile, &pixels[eight], out),
                        );
                    }
                }
            }
        });
    });
}

/// Which rows of a tile a panel's results are.
struct Target<'a> {
    /// Rows of an image, and the first of these.
    channels: usize,
    first: usize,
    count: usize,
    /// Pixels of an image before the tile's.
    before: usize,
    bias: Option<&'a [f32]>,
}

impl Target<'_> {
    #[inline(always)]
    fn store(&self, tile: &mut Tile, pixels: &Pixels, out: &[[f32; PANEL]; ROWS]) {
        let last = pixels.count - 1;
        let side_by_side = last == ROWS - 1
            && pixels.images[0] == pixels.images[last]
            && pixels.targets[last] - pixels.targets[0] == last;
        let mut columns = [[0.0; ROWS]; PANEL];
        for c in 0..panel_width(0, self.count) {
            for r in 0..ROWS {
                columns[c][r] = out[r][c];
            }
        }
        for (c, column) in columns.iter().enumerate().take(self.count) {
            let bias = match self.bias {
                Some(bias) => bias[c],
                None => 0.0,
            };
            if side_by_side {
                let row = tile.row(pixels.images[0] * self.channels + self.first + c);
                let line = &mut row[pixels.targets[0] - self.before..][..ROWS];
                for r in 0..ROWS {
                    line[r] = column[r] + bias;
                }
            } else {
                for r in 0..pixels.count {
                    let row = tile.row(pixels.images[r] * self.channels + self.first + c);
                    row[pixels.targets[r] - self.before] = column[r] + bias;
                }
            }
        }
    }
}

/// The gradient of the weight (groups c_out, c_in taps), added to what is there if `accumulate`: block after block of
/// images and lines, of each of which tasks have some elements of the kernel.
pub(super) fn weight_gradient(
    g: &Geometry,
    image: &[f32],
    grad_result: &[f32],
    accumulate: bool,
    grad_weight: &mut [f32],
) {
    let window = Window { axes: [g.forward(0), g.forward(1)], source: g.image };
    let (k, m) = (g.c_in * window.taps(), g.c_out);
    let ([images, lines], height) = (block(&window, g.c_in), window.axes[0].count);
    let images = images.min((MOST_PIXELS / window.pixels()).max(1));
    let pass = WeightGradient { g, window, layout: window.layout(g.c_in, lines), image, grad_result };
    let list = pass.layout.places.list();
    let elements: Vec<[usize; ROWS]> =
        list.chunks(ROWS).map(|eight| std::array::from_fn(|r| eight[r.min(eight.len() - 1)])).collect();
    let panels = m.div_ceil(PANEL);
    let of_group = elements.len() * panels * ROWS * PANEL;
    with_scratch(g.groups() * of_group, |sums| {
        sums.fill(0.0);
        for first_image in (0..g.batch).step_by(images) {
            let images = first_image..(first_image + images).min(g.batch);
            for first in (0..height).step_by(lines) {
                let lines = first..(first + lines).min(height);
                let places = pass.places(images.len(), lines.clone());
                for (group, sums) in sums.chunks_exact_mut(of_group).enumerate() {
                    pass.add_block(group, images.clone(), lines.clone(), &places, &elements, sums);
                }
            }
        }
        grad_weight.par_chunks_mut(m * k).zip(sums.par_chunks(of_group)).for_each(|(weight, sums)| {
            for (c, weight) in weight.chunks_exact_mut(k).enumerate() {
                for (eight, weight) in weight.chunks_mut(ROWS).enumerate() {
                    let sums = &sums[(eight * panels + c / PANEL) * ROWS * PANEL + c % PANEL..];
                    for (weight, sum) in weight.iter_mut().zip(sums.iter().step_by(PANEL)) {
                        *weight = if accumulate { *weight + sum } else { *sum };
                    }
                }
            }
        });
    });
}

struct WeightGradient<'a> {
    g: &'a Geometry,
    window: Window,
    layout: Layout,
    image: &'a [f32],
    grad_result: &'a [f32],
}

impl WeightGradient<'_> {
    fn of_image(&self) -> usize {
        self.g.c_in * self.g.image_pixels()
    }

    /// Where the pixels of so many images and of these lines are read.
    fn places(&self, images: usize, lines: Range<usize>) -> Places {
        let (layout, width) = (&self.layout, self.window.axes[1].count);
        let apart = layout.apart(self.g.groups() * self.of_image());
        let mut places = Vec::with_capacity(images * lines.len() * width);
        for image in 0..images {
            for line in 0..lines.len() {
                let first = layout.begin(lines.start) + image * apart + line * layout.line;
                places.extend((0..width).map(|column| first + column * layout.pixel));
            }
        }
        Places::new(places)
    }

    /// Adds the products of a block to the sums of a group, (k / 8, panels, 8, [`PANEL`]). `elements` has eight of the
    /// kernel for each of the first dimension.
    fn add_block(
        &self,
        group: usize,
        images: Range<usize>,
        lines: Range<usize>,
        places: &Places,
        elements: &[[usize; ROWS]],
        sums: &mut [f32],
    ) {
        let &WeightGradient { g, window, ref layout, image, grad_result } = self;
        let (m, count, plane, width) = (g.c_out, places.list().len(), window.pixels(), window.axes[1].count);
        let of_block = lines.len() * width;
        let part = |i: usize| (images.start + i) * g.groups() + group;
        with_scratch(packed_len(count, m) + images.len() * layout.copied, |scratch| {
            let (packed, copy) = scratch.split_at_mut(packed_len(count, m));
            // Panels of the gradient (pixels, m).
            for (first, panel) in (0..m).step_by(PANEL).zip(packed.chunks_mut(PANEL * count)) {
                panel.par_chunks_mut(of_block * panel_width(first, m)).enumerate().for_each(|(i, panel)| {
                    let dy = &grad_result[part(i) * m * plane + lines.start * width..];
                    pack_panel(dy, plane, [of_block, m], first, panel);
                });
            }
            copy.par_chunks_mut(layout.copied.max(1)).enumerate().for_each(|(i, copy)| {
                layout.copy(&image[part(i) * self.of_image()..][..self.of_image()], lines.clone(), copy);
            });
            let read = if layout.copied == 0 { &image[part(0) * self.of_image()..] } else { &*copy };
            let of_eight = m.div_ceil(PANEL) * ROWS * PANEL;
            sums.par_chunks_mut(of_eight).zip(elements.par_iter()).for_each(|(sums, rows)| {
                for (panel, sums) in packed.chunks(PANEL * count).zip(sums.chunks_exact_mut(ROWS * PANEL)) {
                    panel_product(
                        read,
                        std::slice::from_ref(rows),
                        places,
                        panel,
                        #[inline(always)]
                        |_, out| {
                            for (sum, x) in sums.iter_mut().zip(out.as_flattened()) {
                                *sum += x;
                            }
                        },
                    );
                }
            });
        });
    }
}
