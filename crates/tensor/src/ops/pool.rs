//! Max and average pooling of images. Shapes: x (B, C, H, W) -> y (B, C, H', W').
//!
//! ```text
//! max_pool2d           y = largest x of the window, the first of equal ones; dx = dy where that came from
//! avg_pool2d           y = average of the window; dx = dy / its size, from every window that holds the pixel
//! adaptive_avg_pool2d  the same, with window i of rows floor(i H / H') to ceil((i + 1) H / H')
//! H' = (H + 2 p - d (K - 1) - 1) / s + 1              stride s, padding p, dilation d
//! ```
//! H' is rounded down, or up in ceil mode, which omits windows that would start beyond the image and its left padding.
//! Elements beyond the padding are neither candidates nor counted.
//!
//! Forward stores the index of each maximum in its plane. Backward gathers: each pixel reads the windows that may
//! contain it, in a fixed order.

use super::conv::positions;
use super::*;
use crate::gpu::{Buffer, Limits, Operand, Plan, buffer, param};
use crate::shader;
use crate::tensor::{Grads, apply};
use rayon::prelude::*;
use std::ops::Range;

/// Options of a pooling layer, (height, width) each, as in PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    pub kernel: [usize; 2],
    /// Step between windows, in pixels.
    pub stride: [usize; 2],
    /// Padding on each side, in pixels, at most half the kernel: ignored by the maximum, zeros in the average.
    pub padding: [usize; 2],
    /// Step between elements of a window, in pixels; 1 for averages.
    pub dilation: [usize; 2],
    /// Whether the average counts the padding.
    pub count_include_pad: bool,
    /// Whether the output size is rounded up, with partial windows at the end.
    pub ceil_mode: bool,
}

impl PoolOptions {
    /// Non-overlapping windows of this size, PyTorch's default.
    pub fn new(kernel: [usize; 2]) -> PoolOptions {
        let (padding, dilation) = ([0; 2], [1; 2]);
        PoolOptions { kernel, stride: kernel, padding, dilation, count_include_pad: true, ceil_mode: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PoolKind {
    Max,
    Average,
    AdaptiveAverage,
}
use PoolKind::*;

/// Outputs: y, and of the largest where they lie (u32, an index into the plane). Input: x.
#[derive(Clone, Copy)]
struct Pool {
    kind: PoolKind,
    /// Those of [`AdaptiveAverage`] are not used.
    options: PoolOptions,
    planes: usize,
    from: [usize; 2],
    to: [usize; 2],
}

/// dx. Inputs: dy, and of the largest where they lie.
struct PoolBackward(Pool);

impl Pool {
    /// The pixels of window `i` in one dimension, without the padding. Of the largest only with dilation 1.
    fn window(&self, dim: usize, i: usize) -> Range<usize> {
        let (from, to) = (self.from[dim], self.to[dim]);
        if self.kind == AdaptiveAverage {
            return i * from / to..((i + 1) * from).div_ceil(to);
        }
        let start = i * self.options.stride[dim];
        let end = start + self.options.kernel[dim];
        start.saturating_sub(self.options.padding[dim])..end.saturating_sub(self.options.padding[dim]).min(from)
    }

    /// How many elements of window `i` in one dimension the average counts.
    fn count(&self, dim: usize, i: usize) -> usize {
        let PoolOptions { kernel, stride, padding, .. } = self.options;
        match self.kind == Average && self.options.count_include_pad {
            true => kernel[dim].min(self.from[dim] + 2 * padding[dim] - i * stride[dim]),
            false => self.window(dim, i).len(),
        }
    }

    /// Calls `visit` with every output of a plane, its window, and the divisor of the average.
    fn windows(&self, mut visit: impl FnMut(usize, [Range<usize>; 2], f32)) {
        for i in 0..self.to[0] {
            for j in 0..self.to[1] {
                let count = self.count(0, i) * self.count(1, j);
                visit(i * self.to[1] + j, [self.window(0, i), self.window(1, j)], count as f32);
            }
        }
    }

    /// The elements of window `i` in one dimension that are inside, by their numbers.
    fn inside(&self, dim: usize, i: usize) -> Range<usize> {
        let PoolOptions { kernel, stride, padding, dilation, .. } = self.options;
        let number = |place: usize| place.saturating_sub(i * stride[dim]).div_ceil(dilation[dim]).min(kernel[dim]);
        number(padding[dim])..number(self.from[dim] + padding[dim])
    }

    /// The largest elements of a plane; `inside` has what is inside of each row and each column of windows.
    fn largest(&self, inside: &[Vec<Range<usize>>; 2], x: &[f32], y: &mut [f32], places: &mut [u32]) {
        let PoolOptions { kernel, stride, padding, dilation, .. } = self.options;
        let (width, [rows, columns]) = (self.from[1], inside);
        // Of a line, the windows without padding: they lie side by side.
        let is_whole = |columns: &Range<usize>| columns.len() == kernel[1];
        let first = columns.iter().position(is_whole).unwrap_or(columns.len());
        let whole = first..columns.iter().rposition(is_whole).map_or(first, |last| last + 1);
        let lines = y.chunks_exact_mut(self.to[1]).zip(places.chunks_exact_mut(self.to[1]));
        for (i, (rows, (y, places))) in rows.iter().zip(lines).enumerate() {
            let row_of = |k: usize| i * stride[0] + k * dilation[0] - padding[0];
            let column_of = |j: usize, l: usize| j * stride[1] + l * dilation[1] - padding[1];
            let mut done = 0..0;
            if rows.len() == kernel[0] && dilation == [1; 2] && !whole.is_empty() {
                let at = row_of(0) * width + column_of(whole.start, 0);
                let (y, places) = (&mut y[whole.clone()], &mut places[whole.clone()]);
                done = whole.clone();
                match (kernel, stride[1]) {
                    ([2, 2], 2) => largest_of_line::<2, 2>(x, at, width, y, places),
                    ([3, 3], 2) => largest_of_line::<3, 2>(x, at, width, y, places),
                    _ => done = 0..0,
                }
            }
            for j in (0..done.start).chain(done.end..self.to[1]) {
                // `pool` checks that every window has an element inside.
                let first = row_of(rows.start) * width + column_of(j, columns[j].start);
                (y[j], places[j]) = (x[first], first as u32);
                for line in rows.clone().map(|k| row_of(k) * width) {
                    for at in columns[j].clone().map(|l| line + column_of(j, l)) {
                        larger((&mut y[j], &mut places[j]), x[at], at as u32);
                    }
                }
            }
        }
    }

    fn shape(&self, spec: &Spec, [height, width]: [usize; 2]) -> Shape {
        [spec.shape[0], spec.shape[1], height, width].into()
    }

    fn plan(&self, pass: &'static str, buffers: Vec<Buffer>, each: [usize; 2]) -> Plan {
        let PoolOptions { kernel, stride, padding, dilation, count_include_pad, .. } = self.options;
        let len = self.planes * each[0] * each[1];
        let pairs = [
            (["from_h", "from_w"], self.from),
            (["to_h", "to_w"], self.to),
            (["kernel_h", "kernel_w"], kernel),
            (["stride_h", "stride_w"], stride),
            (["padding_h", "padding_w"], padding),
            (["dilation_h", "dilation_w"], dilation),
        ];
        let both = pairs.into_iter().flat_map(|(names, values)| [0, 1].map(|dim| param(names[dim], values[dim])));
        Plan::one(Launch {
            shader: shader!(pool),
            values: vec![
                ("pass", pass.into()),
                ("adaptive", (self.kind == AdaptiveAverage).into()),
                ("with_padding", (self.kind == Average && count_include_pad).into()),
            ],
            buffers,
            params: [param("len", len)].into_iter().chain(both).collect(),
            workgroups: len.div_ceil(256),
        })
    }
}

/// Updates the running maximum with an element; NaN propagates, as in PyTorch.
fn larger((largest, place): (&mut f32, &mut u32), x: f32, at: u32) {
    if x > *largest || x.is_nan() {
        (*largest, *place) = (x, at);
    }
}

/// The largest elements of windows of N x N elements side by side, S columns apart, of lines of this width; the first
/// window begins with element `first`. Which element is the largest cannot be foretold, so there is no branch on it:
/// first the largest number is found, then its place.
fn largest_of_line<const N: usize, const S: usize>(
    x: &[f32],
    first: usize,
    width: usize,
    y: &mut [f32],
    places: &mut [u32],
) {
    let reach = (y.len() - 1) * S + N;
    let lines: [&[f32]; N] = std::array::from_fn(|k| &x[first + k * width..][..reach]);
    let at = |j: usize, k: usize, l: usize| (first + k * width + j * S + l) as u32;
    for (j, (y, place)) in y.iter_mut().zip(places).enumerate() {
        let (mut largest, mut not_a_number) = (lines[0][j * S], false);
        for line in lines {
            for x in &line[j * S..j * S + N] {
                largest = if *x > largest { *x } else { largest };
                not_a_number |= x.is_nan();
            }
        }
        (*y, *place) = (largest, at(j, 0, 0));
        // From the last to the first: that of equal elements which comes first is the one.
        for (k, line) in lines.iter().enumerate().rev() {
            for l in (0..N).rev() {
                *place = if line[j * S + l] >= largest { at(j, k, l) } else { *place };
            }
        }
        if not_a_number {
            for (k, l) in (0..N).flat_map(|k| (0..N).map(move |l| (k, l))) {
                larger((y, place), lines[k][j * S + l], at(j, k, l));
            }
        }
    }
}

impl Kernel for Pool {
    fn name(&self) -> &'static str {
        match self.kind {
            Max => "max_pool2d",
            Average => "avg_pool2d",
            AdaptiveAverage => "adaptive_avg_pool2d",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let shape = self.shape(inputs[0], self.to);
        let places = (self.kind == Max).then(|| Spec::new(shape.clone(), DType::U32));
        Ok([Spec::new(shape, DType::F32)].into_iter().chain(places).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let window = match self.kind {
            AdaptiveAverage => self.from[0] * self.from[1] / (self.to[0] * self.to[1]),
            _ => self.options.kernel[0] * self.options.kernel[1],
        };
        streaming_cost(window * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [from, to] = [self.from, self.to].map(|[height, width]| height * width);
        let (y, places) = outputs.split_first_mut().expect("the first is y");
        let planes = y.f32().par_chunks_mut(to).zip(inputs[0].f32().par_chunks(from));
        if let [places] = places {
            let inside = [0, 1].map(|dim| (0..self.to[dim]).map(|i| self.inside(dim, i)).collect());
            let planes = planes.zip(places.u32().par_chunks_mut(to)).with_min_len((CHUNK / from).max(1));
            return planes.for_each(|((y, x), places)| self.largest(&inside, x, y, places));
        }
        planes.for_each(|(y, x)| {
            self.windows(|output, window, count| {
                let rows = window[0].clone().map(|row| &x[row * self.from[1]..][window[1].clone()]);
                y[output] = rows.map(|row| row.iter().sum::<f32>()).sum::<f32>() / count;
            });
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let mut buffers = vec![buffer("x", "f32", Operand::Input(0)), buffer("y", "f32", Operand::Output(0))];
        buffers.extend((self.kind == Max).then_some(buffer("places", "u32", Operand::Output(1))));
        self.plan(if self.kind == Max { "max" } else { "average" }, buffers, self.to)
    }
}

impl Op for Pool {
    fn saves(&self) -> Saves {
        Saves { inputs: &[], outputs: if self.kind == Max { &[1] } else { &[] } }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let inputs = if self.kind == Max { vec![dy, saved.output(1)?] } else { vec![dy] };
        grads.accumulate(0, grads.run_one(&PoolBackward(*self), &inputs)?)
    }
}

impl Kernel for PoolBackward {
    fn name(&self) -> &'static str {
        match self.0.kind {
            Max => "max_pool2d_backward",
            Average => "avg_pool2d_backward",
            AdaptiveAverage => "adaptive_avg_pool2d_backward",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.0.shape(inputs[0], self.0.from), DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let pool = &self.0;
        let [from, to] = [pool.from, pool.to].map(|[height, width]| height * width);
        let planes = outputs[0].f32().par_chunks_mut(from).zip(inputs[0].f32().par_chunks(to));
        if pool.kind == Max {
            return planes.zip(inputs[1].u32().par_chunks(to)).for_each(|((dx, dy), places)| {
                dx.fill(0.0);
                places.iter().zip(dy).for_each(|(place, dy)| dx[*place as usize] += dy);
            });
        }
        planes.for_each(|(dx, dy)| {
            dx.fill(0.0);
            pool.windows(|output, window, count| {
                let each = dy[output] / count;
                for row in window[0].clone() {
                    dx[row * pool.from[1]..][window[1].clone()].iter_mut().for_each(|dx| *dx += each);
                }
            });
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let pool = &self.0;
        let mut buffers = vec![buffer("grad_output", "f32", Operand::Input(0))];
        buffers.extend((pool.kind == Max).then_some(buffer("places", "u32", Operand::Input(1))));
        buffers.push(buffer("result", "f32", Operand::Output(0)));
        pool.plan(if pool.kind == Max { "max_backward" } else { "average_backward" }, buffers, pool.from)
    }
}

/// Pools x; `to` computes the output size of each dimension.
fn pool(
    op: &'static str,
    x: &Tensor,
    kind: PoolKind,
    options: PoolOptions,
    to: impl Fn(usize, usize) -> Option<usize>,
) -> Result<Tensor> {
    if x.dtype() == DType::F16 {
        return in_f32(x, |x| pool(op, x, kind, options, to));
    }
    expect_f32(op, &[x.spec()])?;
    let &[batch, channels, height, width] = &x.shape()[..] else {
        return Err(shape_error(op, "x (B, C, H, W)", x.shape()));
    };
    let (true, Some(to_h), Some(to_w)) = (height * width > 0, to(0, height), to(1, width)) else {
        return Err(shape_error(op, format!("an image at least as large as the windows, with {options:?}"), x.shape()));
    };
    let pool = Pool { kind, options, planes: batch * channels, from: [height, width], to: [to_h, to_w] };
    Ok(apply(pool, &[x])?.remove(0))
}

/// The size of a pooled dimension, if windows fit on it: each must have an element inside.
fn pooled(options: PoolOptions, dim: usize, size: usize) -> Option<usize> {
    let PoolOptions { kernel, stride, padding, dilation, ceil_mode, .. } = options;
    let (kernel, stride, padding, dilation) = (kernel[dim], stride[dim], padding[dim], dilation[dim]);
    if padding > kernel / 2 || (padding > 0 && dilation > size) {
        return None;
    }
    if !ceil_mode {
        return positions(size, kernel, stride, padding, dilation);
    }
    // As many as on a dimension that is longer by what a last window may lack, but for one behind the pixels.
    let lacking = stride.checked_sub(1)?;
    let count = positions(size.checked_add(lacking)?, kernel, stride, padding, dilation)?;
    Some(if (count - 1) * stride >= size + padding { count - 1 } else { count })
}

/// A method for sequences (B, C, L), which are images of height 1.
fn of_sequence(op: &'static str, x: &Tensor, pool: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let &[batch, channels, length] = &x.shape()[..] else {
        return Err(shape_error(op, "x (B, C, L)", x.shape()));
    };
    let y = pool(&x.reshape([batch, channels, 1, length])?)?;
    y.reshape([batch, channels, y.shape()[3]])
}

impl Tensor {
    /// The maximum of each window: (B, C, H, W) -> (B, C, H', W'). On ties, the first element gets the gradient.
    ///
    /// # Errors
    /// If the tensor is not f32 or f16 of four dimensions, no window fits, or the padding is more than half the kernel.
    pub fn max_pool2d(&self, options: PoolOptions) -> Result<Tensor> {
        pool("max_pool2d", self, Max, options, |dim, size| pooled(options, dim, size))
    }

    /// The average of each window: (B, C, H, W) -> (B, C, H', W').
    ///
    /// # Errors
    /// Those of [`Tensor::max_pool2d`], or if the windows are dilated.
    pub fn avg_pool2d(&self, options: PoolOptions) -> Result<Tensor> {
        let to = |dim: usize, size: usize| pooled(options, dim, size).filter(|_| options.dilation == [1; 2]);
        pool("avg_pool2d", self, Average, options, to)
    }

    /// The averages of `to` = (H', W') windows that cover the image evenly: (B, C, H, W) -> (B, C, H', W').
    ///
    /// # Errors
    /// If the tensor is not f32 or f16 of four dimensions, or there are no windows or too many.
    pub fn adaptive_avg_pool2d(&self, to: [usize; 2]) -> Result<Tensor> {
        // Kernels multiply the two with 32 bits.
        let fits = |to: usize, size: usize| to.checked_add(1)?.checked_mul(size).filter(|n| *n <= u32::MAX as usize);
        let to = |dim: usize, size: usize| fits(to[dim], size).map(|_| to[dim]).filter(|to| *to > 0);
        pool("adaptive_avg_pool2d", self, AdaptiveAverage, PoolOptions::new([1; 2]), to)
    }

    /// [`Tensor::max_pool2d`] of sequences (B, C, L), with the second (width) value of each option; the first values
    /// must suit a height of 1.
    ///
    /// # Errors
    /// Those of [`Tensor::max_pool2d`].
    pub fn max_pool1d(&self, options: PoolOptions) -> Result<Tensor> {
        of_sequence("max_pool1d", self, |x| x.max_pool2d(options))
    }

    /// [`Tensor::avg_pool2d`] of sequences (B, C, L): see [`Tensor::max_pool1d`].
    ///
    /// # Errors
    /// Those of [`Tensor::avg_pool2d`].
    pub fn avg_pool1d(&self, options: PoolOptions) -> Result<Tensor> {
        of_sequence("avg_pool1d", self, |x| x.avg_pool2d(options))
    }

    /// The averages of `to` windows that cover the sequences evenly: (B, C, L) -> (B, C, to).
    ///
    /// # Errors
    /// Those of [`Tensor::adaptive_avg_pool2d`].
    pub fn adaptive_avg_pool1d(&self, to: usize) -> Result<Tensor> {
        of_sequence("adaptive_avg_pool1d", self, |x| x.adaptive_avg_pool2d([1, to]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn of_equal_elements_the_first_gets_the_gradient() {
        for device in Device::for_tests() {
            let x = Tensor::from_f32(&[1.0; 16], [1, 1, 4, 4], &device).unwrap().requires_grad().unwrap();
            // Windows overlap, and the first element of those at the upper and left edge is padding.
            let options = PoolOptions { stride: [2; 2], padding: [1; 2], ..PoolOptions::new([3; 2]) };
            let y = x.max_pool2d(options).unwrap();
            y.backward_with(&Tensor::from_f32(&[1.0, 2.0, 4.0, 8.0], [1, 1, 2, 2], &device).unwrap()).unwrap();
            let mut want = [0.0; 16];
            (want[0], want[1], want[4], want[5]) = (1.0, 2.0, 4.0, 8.0);
            assert_eq!(x.grad().unwrap().to_f32().unwrap(), want, "{device}");
        }
    }

    #[test]
    fn what_is_not_a_number_is_the_largest_and_gets_the_gradient() {
        // A line of whole windows, which is computed without branches.
        let x = [1.0, f32::NAN, f32::NAN, 2.0, 7.0, 5.0, 3.0, 3.0, 2.0, 3.0, f32::NAN, 1.0, 7.0, 6.0, 3.0, 3.0];
        let want = [0.0, 1.0, 0.0, 0.0, 4.0, 0.0, 8.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]; // the last of two
        let x = Tensor::from_f32(&x, [1, 1, 2, 8], &Device::Cpu).unwrap().requires_grad().unwrap();
        let y = x.max_pool2d(PoolOptions::new([2; 2])).unwrap();
        let largest = y.to_f32().unwrap();
        assert!(largest[0].is_nan() && largest[1].is_nan() && largest[2..] == [7.0, 3.0], "{largest:?}");
        y.backward_with(&Tensor::from_f32(&[1.0, 2.0, 4.0, 8.0], [1, 1, 1, 4], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(x.grad().unwrap().to_f32().unwrap(), want);
    }

    #[test]
    fn a_window_without_an_element_inside_is_refused() {
        // Elements at -1 and 1 of a single pixel.
        let options = PoolOptions { padding: [1; 2], dilation: [2; 2], ..PoolOptions::new([2; 2]) };
        let x = Tensor::from_f32(&[1.0], [1, 1, 1, 1], &Device::Cpu).unwrap();
        assert!(matches!(x.max_pool2d(options), Err(Error::Shape { .. })));
    }
}
