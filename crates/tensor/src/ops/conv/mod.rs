//! Two-dimensional convolution (LeCun et al. 1989), transposed convolution, and one-dimensional convolution, with
//! PyTorch's layouts.
//!
//! ```text
//! x (B, C, H, W), weight (C', C / groups, KH, KW), bias (C') -> y (B, C', H', W')
//! y[b, o, i, j] = bias[o] + sum over c, k, l of weight[o, c, k, l] x[b, c, i s + k d - p, j s + l d - p]
//! H' = (H + 2 p - d (KH - 1) - 1) / s + 1             stride s, padding p, dilation d
//! dx: what each pixel was multiplied with;  dweight: sum over b, i, j of dy x;  dbias: sum over b, i, j of dy
//! ```
//! The transposed convolution uses the map from dy to dx as a layer: its weight is (C, C' / groups, KH, KW), its size
//! H' = (H - 1) s - 2 p + d (KH - 1) + output_padding + 1.
//!
//! All passes are GEMMs. The GPU gathers their operands while it stages tiles (`kernel.rs`), the CPU block by block in
//! scratch memory (`cpu.rs`). `geometry.rs` has the index arithmetic.

mod cpu;
mod geometry;
mod kernel;
mod window;

use super::reduce::SumRows;
use super::*;
use crate::tensor::{Edge, Grads};
pub use geometry::ConvOptions;
use geometry::Geometry;
pub(in crate::ops) use geometry::positions;
use kernel::{Conv, Pass};

/// Inputs: x, the weight, and the bias if there is one.
struct Convolution {
    geometry: Geometry,
    bias: bool,
    /// Transposed: x is the result, and y the image.
    transposed: bool,
}

impl Convolution {
    fn kernel(&self, pass: Pass, accumulate: bool) -> Conv {
        Conv { geometry: self.geometry, pass, bias: false, accumulate }
    }

    /// The pass from x to y, and that back.
    fn passes(&self) -> [Pass; 2] {
        if self.transposed { [Pass::Input, Pass::Forward] } else { [Pass::Forward, Pass::Input] }
    }
}

impl Op for Convolution {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1], outputs: &[] }
    }

    /// The input of a frozen weight is not saved.
    fn saves_for(&self, wanted: &dyn Fn(usize) -> bool) -> Saves {
        if wanted(1) { self.saves() } else { Saves { inputs: &[1], outputs: &[] } }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        if grads.needs_grad(0) {
            let dx = grads.run_one(&self.kernel(self.passes()[1], false), &[dy, saved.input(1)?])?;
            grads.accumulate(0, dx)?;
        }
        if grads.needs_grad(1) {
            let x = saved.input(0)?;
            let operands = if self.transposed { [dy, x] } else { [x, dy] };
            grads.accumulate_with(1, &operands, |accumulate| self.kernel(Pass::Weight, accumulate))?;
        }
        if self.bias && grads.needs_grad(2) {
            let &[batch, channels, height, width] = &dy.shape()[..] else { unreachable!("y has four dimensions") };
            let of_images = dy.view([batch, channels, height * width].into(), Edge::None).sum(2)?;
            let sum = |accumulate| SumRows { accumulate, len: channels, outputs: 1 };
            grads.accumulate_with(2, &[&of_images], sum)?;
        }
        Ok(())
    }
}

/// The sizes of a convolution of this image, or of one whose result is to be transposed to this image.
fn geometry(op: &'static str, image: &Shape, weight: &Shape, options: ConvOptions) -> Result<Geometry> {
    let (&[batch, channels, height, width], &[outputs, c_in, kh, kw]) = (&image[..], &weight[..]) else {
        let expected = "x (B, C, H, W) and a weight (C', C / groups, KH, KW)";
        return Err(shape_error(op, expected, format!("{image} and {weight}")));
    };
    let ConvOptions { stride, padding, dilation, groups } = options;
    let divides = groups > 0 && c_in.checked_mul(groups) == Some(channels) && outputs.is_multiple_of(groups);
    if !divides || channels == 0 || outputs == 0 {
        let expected = format!("channels divisible by {groups} groups, C / groups in the weight");
        return Err(shape_error(op, expected, format!("{image} and {weight}")));
    }
    let [image_size, kernel] = [[height, width], [kh, kw]];
    let size = |dim: usize| positions(image_size[dim], kernel[dim], stride[dim], padding[dim], dilation[dim]);
    let (Some(result_h), Some(result_w)) = (size(0), size(1)) else {
        let expected = format!("an image at least as large as the kernel, with {options:?}");
        return Err(shape_error(op, expected, format!("{image} and {weight}")));
    };
    if height == 0 || width == 0 {
        return Err(shape_error(op, "an image with pixels", image));
    }
    let c_out = outputs / groups;
    Ok(Geometry { batch, c_in, c_out, image: image_size, result: [result_h, result_w], kernel, options })
}

/// Applies one pass to x as an op. f16 is computed in f32; the result has x's type.
fn convolve(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: Geometry,
    transposed: bool,
) -> Result<Tensor> {
    if [x, weight].into_iter().chain(bias).any(|tensor| tensor.dtype() == DType::F16) {
        let (weight, bias) = (weight.to_dtype(DType::F32)?, bias.map(|bias| bias.to_dtype(DType::F32)).transpose()?);
        return in_f32(x, |x| convolve(op, x, &weight, bias.as_ref(), geometry, transposed));
    }
    let inputs: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    expect_f32(op, &inputs.iter().map(|input| input.spec()).collect::<Vec<_>>())?;
    let channels = geometry.groups() * if transposed { geometry.c_in } else { geometry.c_out };
    if let Some(bias) = bias.filter(|bias| bias.shape()[..] != [channels]) {
        return Err(shape_error(op, format!("a bias of shape ({channels})"), bias.shape()));
    }
    let layer = Convolution { geometry, bias: bias.is_some(), transposed };
    let kernel = Conv { bias: layer.bias, ..layer.kernel(layer.passes()[0], false) };
    let outputs = crate::tensor::run(&kernel, &inputs)?;
    Ok(crate::tensor::record(Box::new(layer), &inputs, outputs).remove(0))
}

impl Tensor {
    /// Convolution of (B, C, H, W) with a weight (C', C / groups, KH, KW), plus a bias (C') -> (B, C', H', W'), of x's
    /// type.
    ///
    /// # Errors
    /// If a tensor is neither f32 nor f16, a shape does not fit, or the kernel is larger than the padded image.
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions) -> Result<Tensor> {
        let geometry = geometry("conv2d", self.shape(), weight.shape(), options)?;
        convolve("conv2d", self, weight, bias, geometry, false)
    }

    /// Transposed convolution of (B, C, H, W) with a weight (C, C' / groups, KH, KW), plus a bias (C') -> (B, C', H',
    /// W'). `output_padding` enlarges the output: several sizes convolve to the same one.
    ///
    /// # Errors
    /// Those of [`Tensor::conv2d`], or if `output_padding` is not less than the stride or the dilation.
    pub fn conv_transpose2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: ConvOptions,
        output_padding: [usize; 2],
    ) -> Result<Tensor> {
        let op = "conv_transpose2d";
        let refuse =
            |expected: &str| shape_error(op, expected, format!("{}, {} and {options:?}", self.shape(), weight.shape()));
        let (&[batch, channels, height, width], &[c, c_out, kh, kw]) = (&self.shape()[..], &weight.shape()[..]) else {
            return Err(refuse("x (B, C, H, W) and a weight (C, C' / groups, KH, KW)"));
        };
        let ConvOptions { stride, padding, dilation, groups } = options;
        if c != channels || (0..2).any(|dim| output_padding[dim] >= stride[dim].max(dilation[dim])) {
            return Err(refuse("a weight of x's channels, output_padding below the stride or the dilation"));
        }
        let size = |dim: usize, from: usize, kernel: usize| {
            let reach = kernel.checked_sub(1)?.checked_mul(dilation[dim])?;
            let all = from.checked_sub(1)?.checked_mul(stride[dim])?.checked_add(reach)?;
            all.checked_add(output_padding[dim] + 1)?.checked_sub(padding[dim].checked_mul(2)?)
        };
        let sizes = (size(0, height, kh), size(1, width, kw), c_out.checked_mul(groups));
        let (Some(image_h), Some(image_w), Some(outputs)) = sizes else {
            return Err(refuse("a result with pixels"));
        };
        let geometry = geometry(op, &[batch, outputs, image_h, image_w].into(), weight.shape(), options)?;
        // With an output padding beyond the stride the convolution would have more positions.
        let geometry = Geometry { result: [height, width], ..geometry };
        convolve(op, self, weight, bias, geometry, true)
    }

    /// One-dimensional convolution of (B, C, L) with a weight (C', C / groups, K) -> (B, C', L'). Uses the second
    /// (width) value of each option.
    ///
    /// # Errors
    /// Those of [`Tensor::conv2d`], or if the first value of an option is not its default.
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions) -> Result<Tensor> {
        let (&[batch, channels, length], &[outputs, c_in, kernel]) = (&self.shape()[..], &weight.shape()[..]) else {
            let got = format!("{} and {}", self.shape(), weight.shape());
            return Err(shape_error("conv1d", "x (B, C, L) and a weight (C', C / groups, K)", got));
        };
        if [options.stride[0], options.padding[0], options.dilation[0]] != [1, 0, 1] {
            return Err(shape_error("conv1d", "options for a height of 1", format!("{options:?}")));
        }
        let (x, weight) = (self.reshape([batch, channels, 1, length])?, weight.reshape([outputs, c_in, 1, kernel])?);
        let y = x.conv2d(&weight, bias, options)?;
        let &[batch, outputs, _, length] = &y.shape()[..] else { unreachable!("y has four dimensions") };
        y.reshape([batch, outputs, length])
    }
}
