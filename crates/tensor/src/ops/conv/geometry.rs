//! Index arithmetic of a convolution in one dimension, and the sizes of its GEMMs.
//!
//! The input gradient gathers from the result's gradient: for each kernel element k, pixel y of the image reads the
//! result at (y + padding - k dilation) / stride if that is an integer. Pixels with the same residue modulo the stride
//! use the same, evenly spaced kernel elements. So each residue is a convolution of stride 1 with these elements alone,
//! without multiplications by inserted zeros.

use super::*;

/// Options of a convolution, with (height, width) each, as in PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvOptions {
    /// Step between kernel positions, in pixels.
    pub stride: [usize; 2],
    /// Zero padding on each side of the image, in pixels.
    pub padding: [usize; 2],
    /// Step between kernel elements, in pixels.
    pub dilation: [usize; 2],
    /// Channel groups that are convolved independently.
    pub groups: usize,
}

impl Default for ConvOptions {
    /// Stride 1, no padding, no dilation, one group.
    fn default() -> ConvOptions {
        ConvOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }
    }
}

/// The sizes of a convolution from an image to a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub batch: usize,
    /// Channels of the image and of the result in each group.
    pub c_in: usize,
    pub c_out: usize,
    /// Height and width.
    pub image: [usize; 2],
    pub result: [usize; 2],
    pub kernel: [usize; 2],
    pub options: ConvOptions,
}

/// One dimension of what one GEMM reads and writes: for its pixel a below `count` and tap j below `taps`, the source at
/// a `stride` + `start` + j `step` times the kernel element `first` + j `every` goes to the target at `at` + a `apart`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    pub count: usize,
    pub stride: isize,
    pub start: isize,
    pub step: isize,
    pub taps: usize,
    pub first: usize,
    pub every: usize,
    pub at: usize,
    pub apart: usize,
}

/// Largest size or offset: kernels use 32-bit integers.
const LARGEST: usize = 1 << 30;

/// Output length in one dimension, for convolution and pooling. `None` if it is zero, or a number is too large.
pub(in crate::ops) fn positions(
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
) -> Option<usize> {
    let padded = padding.checked_mul(2)?.checked_add(size)?;
    let reach = kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    let fits = padded <= LARGEST && reach <= padded && dilation > 0 && (1..=LARGEST).contains(&stride);
    fits.then(|| (padded - reach) / stride + 1)
}

impl Geometry {
    pub fn groups(&self) -> usize {
        self.options.groups
    }

    pub fn image_pixels(&self) -> usize {
        self.image[0] * self.image[1]
    }

    pub fn result_pixels(&self) -> usize {
        self.result[0] * self.result[1]
    }

    pub fn kernel_size(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// (B, groups c_in, H, W)
    pub fn image_spec(&self) -> Spec {
        let [height, width] = self.image;
        Spec::new([self.batch, self.groups() * self.c_in, height, width], DType::F32)
    }

    /// (B, groups c_out, H', W')
    pub fn result_spec(&self) -> Spec {
        let [height, width] = self.result;
        Spec::new([self.batch, self.groups() * self.c_out, height, width], DType::F32)
    }

    /// (groups c_out, c_in, KH, KW)
    pub fn weight_spec(&self) -> Spec {
        let [height, width] = self.kernel;
        Spec::new([self.groups() * self.c_out, self.c_in, height, width], DType::F32)
    }

    /// FLOPs of any of the three passes.
    pub fn flops(&self) -> usize {
        2 * self.batch * self.groups() * self.c_out * self.result_pixels() * self.c_in * self.kernel_size()
    }

    /// From the image to the result.
    pub fn forward(&self, dim: usize) -> Axis {
        let ConvOptions { stride, padding, dilation, .. } = self.options;
        Axis {
            count: self.result[dim],
            stride: stride[dim] as isize,
            start: -(padding[dim] as isize),
            step: dilation[dim] as isize,
            taps: self.kernel[dim],
            first: 0,
            every: 1,
            at: 0,
            apart: 1,
        }
    }

    /// From the result's gradient to the pixels of the image that are `residue` modulo the stride.
    pub fn input_gradient(&self, dim: usize, residue: usize) -> Axis {
        let ConvOptions { stride, padding, dilation, .. } = self.options;
        let (stride, padding, dilation) = (stride[dim], padding[dim], dilation[dim]);
        let count = self.image[dim].saturating_sub(residue).div_ceil(stride);
        let place = |k: usize| residue as isize + padding as isize - (k * dilation) as isize;
        let even = |k: &usize| place(*k).rem_euclid(stride as isize) == 0;
        let every = stride / gcd(stride, dilation);
        // After so many elements the remainders repeat.
        let (first, taps) = match (0..self.kernel[dim].min(every)).find(even) {
            Some(first) => (first, (self.kernel[dim] - first).div_ceil(every)),
            None => (0, 0),
        };
        let (start, step) = (place(first).div_euclid(stride as isize), -((every * dilation / stride) as isize));
        Axis { count, stride: 1, start, step, taps, first, every, at: residue, apart: stride }
    }

    /// Number of residues that occur.
    pub fn residues(&self, dim: usize) -> usize {
        self.options.stride[dim].min(self.image[dim])
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residues_share_out_every_product_of_a_pixel_and_a_kernel_element() {
        for (size, kernel, stride, padding, dilation) in
            [(7, 3, 1, 1, 1), (9, 3, 2, 1, 1), (11, 4, 3, 2, 2), (12, 5, 4, 0, 2), (10, 2, 5, 1, 3), (3, 1, 6, 0, 1)]
        {
            let count = positions(size, kernel, stride, padding, dilation).unwrap();
            let options = ConvOptions {
                stride: [stride; 2],
                padding: [padding; 2],
                dilation: [dilation; 2],
                ..ConvOptions::default()
            };
            let (image, result, kernel_size) = ([size; 2], [count; 2], [kernel; 2]);
            let geometry = Geometry { batch: 1, c_in: 1, c_out: 1, image, result, kernel: kernel_size, options };
            let inside = |x: isize, size: usize| (0..size as isize).contains(&x);
            let mut forward = Vec::new();
            for (a, k) in (0..count).flat_map(|a| (0..kernel).map(move |k| (a, k))) {
                let pixel = (a * stride + k * dilation) as isize - padding as isize;
                forward.extend(inside(pixel, size).then_some((pixel as usize, k, a)));
            }
            let mut backward = Vec::new();
            for axis in (0..geometry.residues(0)).map(|residue| geometry.input_gradient(0, residue)) {
                for (a, j) in (0..axis.count).flat_map(|a| (0..axis.taps).map(move |j| (a, j))) {
                    let from = a as isize + axis.start + j as isize * axis.step;
                    let (pixel, k) = (axis.at + a * axis.apart, axis.first + j * axis.every);
                    backward.extend(inside(from, count).then_some((pixel, k, from as usize)));
                }
            }
            forward.sort();
            backward.sort();
            assert_eq!(forward, backward, "{size} {kernel} {stride} {padding} {dilation}");
        }
    }

    #[test]
    fn what_has_no_position_or_cannot_be_counted_is_none() {
        assert_eq!(positions(5, 3, 2, 1, 1), Some(3));
        for (size, kernel, stride, padding, dilation) in [
            (2, 3, 1, 0, 1),
            (5, 0, 1, 0, 1),
            (5, 3, 0, 0, 1),
            (5, 3, 1, 0, 0),
            (5, 3, 1, usize::MAX, 1),
            (5, 3, 1, usize::MAX / 2, 1),
            (5, 3, 1, 0, usize::MAX),
            (5, usize::MAX, 1, 0, 1),
            (5, 3, usize::MAX, 0, 1),
            (usize::MAX, 3, 1, 0, 1),
        ] {
            assert_eq!(positions(size, kernel, stride, padding, dilation), None);
        }
    }
}
