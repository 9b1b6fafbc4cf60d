//! Residual sum, norm and linear layer as one launch: in a generation step, a launch costs more than a row's norm. For
//! inference only. Shapes: x and branch (M, K), norm weight and bias (K), weight (K, N) or (N, K), bias (N) -> y (M,
//! N), and the stream x + branch (M, K).
//!
//! ```text
//! s = x + branch    y = norm(s) W + bias    or gelu of that
//! ```

use super::layer_norm::LayerNorm;
use super::matmul::MatMul;
use super::matmul::matvec::{MOST_ROWS, NormPrologue, plan_normed};
use super::unary::gelu_and_derivative;
use super::*;
use crate::gpu::{Limits, Plan};
use crate::tensor::{grad_enabled, run};

/// A norm's parameters (K), and its epsilon.
#[derive(Clone, Copy)]
pub struct NormRef<'a> {
    pub weight: &'a Tensor,
    pub bias: Option<&'a Tensor>,
    pub eps: f32,
    pub rms: bool,
}

/// A linear layer's parameters, and whether GELU follows.
#[derive(Clone, Copy)]
pub(crate) struct LinearRef<'a> {
    pub weight: &'a Tensor,
    pub outputs_first: bool,
    pub bias: Option<&'a Tensor>,
    pub gelu: bool,
}

/// Inputs: those of the norm (x, weight, bias, branch), then those of the product but for its left side.
struct NormLinear {
    norm: LayerNorm,
    product: MatMul,
    gelu: bool,
}

impl NormLinear {
    /// How many inputs are the norm's.
    fn of_norm(&self) -> usize {
        2 + self.norm.has_bias as usize + self.norm.branch.is_some() as usize
    }
}

impl Kernel for NormLinear {
    fn name(&self) -> &'static str {
        "norm_linear"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (of_norm, of_product) = inputs.split_at(self.of_norm());
        let normed = self.norm.output_specs(of_norm)?;
        let operands: Vec<&Spec> = [&normed[0]].into_iter().chain(of_product.iter().copied()).collect();
        let y = self.product.output_specs(&operands)?;
        Ok(y.into_iter().chain(normed.into_iter().skip(2)).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let (k, n) = (inputs[0].shape.elements(), outputs[0].shape.last_dim());
        streaming_cost(2 * k * n, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (of_norm, of_product) = inputs.split_at(self.of_norm());
        let specs: Vec<&Spec> = of_norm.iter().map(|view| view.spec).collect();
        // All are f32 here, as the CPU's views are.
        let specs = LayerNorm { out: DType::F32, ..self.norm }.output_specs(&specs).expect("checked by output_specs");
        let mut values: Vec<Vec<f32>> = specs.iter().map(|spec| vec![0.0; spec.shape.elements()]).collect();
        let mut normed: Vec<ViewMut> =
            specs.iter().zip(&mut values).map(|(spec, values)| ViewMut::of(spec, values)).collect();
        self.norm.cpu(of_norm, &mut normed);
        let (y, stream) = outputs.split_first_mut().expect("a product");
        if let [stream] = stream {
            stream.f32().copy_from_slice(&values[2]);
        }
        let operands: Vec<View> =
            [View::of(&specs[0], &values[0])].into_iter().chain(of_product.iter().copied()).collect();
        self.product.cpu(&operands, std::slice::from_mut(y));
        if self.gelu {
            y.f32().iter_mut().for_each(|y| *y = gelu_and_derivative(*y)[0]);
        }
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        let LayerNorm { rms, eps, has_bias, branch, .. } = self.norm;
        let (x, weight) = (&inputs[0].shape, inputs[self.of_norm()]);
        let sizes = [x.rows(), outputs[0].shape.last_dim(), x.last_dim()];
        let prologue = NormPrologue { rms, eps, has_bias, branch };
        plan_normed(&self.product, sizes, weight.dtype, self.gelu, &prologue)
    }
}

impl Tensor {
    /// Whether [`Tensor::norm_linear`] is faster than norm and linear layer for this stream: in a generation step on a
    /// GPU, which is bound by launches.
    pub(crate) fn prefers_norm_linear(&self) -> bool {
        let (rows, k, device) = (self.shape().rows(), self.shape().last_dim(), self.device());
        let [of_element, of_any] = NormPrologue::WORKGROUP_BYTES;
        let fits = of_element * rows * k + of_any <= device.limits().workgroup_bytes as usize;
        !grad_enabled() && device.is_gpu() && (1..=MOST_ROWS).contains(&rows) && k > 0 && fits
    }

    /// The stream x + branch (..., K), f32, and the linear layer of its norm (..., N), of type `out`. For inference:
    /// nothing is recorded on the tape.
    ///
    /// # Errors
    /// If the shapes do not fit, or a tensor but the branch and the linear layer's weight is not f32.
    pub(crate) fn norm_linear(
        &self,
        branch: Option<&Tensor>,
        norm: NormRef,
        linear: LinearRef,
        out: DType,
    ) -> Result<(Tensor, Tensor)> {
        if linear.weight.shape().len() != 2 {
            return Err(shape_error("norm_linear", "a weight of two dimensions", linear.weight.shape()));
        }
        let kernel = NormLinear {
            norm: LayerNorm {
                eps: norm.eps,
                rms: norm.rms,
                has_bias: norm.bias.is_some(),
                branch: branch.map(Tensor::dtype),
                dropout: None,
                out: linear.weight.operand_dtype(),
            },
            product: MatMul { trans_b: linear.outputs_first, bias: linear.bias.is_some(), out, ..MatMul::default() },
            gelu: linear.gelu,
        };
        let of_norm = [self, norm.weight].into_iter().chain(norm.bias).chain(branch);
        let inputs: Vec<&Tensor> = of_norm.chain([linear.weight]).chain(linear.bias).collect();
        let mut outputs = run(&kernel, &inputs)?;
        let y = outputs.remove(0);
        Ok((outputs.pop().unwrap_or_else(|| self.clone()), y))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::ops::random::Key;
    use crate::tensor::no_grad;
    use crate::testing::assert_close;

    fn tensor(number: u64, shape: &[usize], dtype: DType, device: &Device) -> Tensor {
        let key = Key::new(number);
        let len = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..len).map(|i| key.bits(i as u32) as f32 / 2_147_483_648.0 - 1.0).collect();
        Tensor::from_f32(&values, shape, device).unwrap().to_dtype(dtype).unwrap()
    }

    /// On odd sizes too, with and without each part.
    #[test]
    fn it_is_a_norm_and_a_linear_layer() {
        for device in Device::for_tests() {
            for (rows, k, n) in [(1, 768, 96), (1, 5, 7), (2, 36, 130), (3, 30, 33), (4, 257, 4)] {
                for (variant, dtype) in (0..16).flat_map(|variant| [(variant, DType::F32), (variant, DType::F16)]) {
                    if dtype == DType::F16 && device.is_gpu() && !device.has_f16() {
                        continue;
                    }
                    let [rms, has_branch, outputs_first, gelu] = [1, 2, 4, 8].map(|bit| variant & bit != 0);
                    let of = |number, shape: &[usize], dtype| tensor(number, shape, dtype, &device);
                    let (x, branch) = (of(1, &[rows, 1, k], DType::F32), of(2, &[rows, 1, k], dtype));
                    let branch = has_branch.then_some(&branch);
                    let (norm_weight, norm_bias) = (of(3, &[k], DType::F32), of(4, &[k], DType::F32));
                    let norm_bias = (!rms).then_some(&norm_bias);
                    let sizes = if outputs_first { [n, k] } else { [k, n] };
                    let (weight, bias) = (of(5, &sizes, dtype), of(6, &[n], DType::F32));
                    let bias = (variant % 3 != 0).then_some(&bias);
                    let norm = NormRef { weight: &norm_weight, bias: norm_bias, eps: 1e-5, rms };
                    let linear = LinearRef { weight: &weight, outputs_first, bias, gelu };
                    let (stream, y) = x.norm_linear(branch, norm, linear, dtype).unwrap();
                    let want = no_grad(|| {
                        let sum = branch.map_or(Ok(x.clone()), |b| x.add(&b.to_dtype(DType::F32)?))?;
                        let normed = match rms {
                            true => sum.rms_norm_to(DType::F32, &norm_weight, 1e-5)?,
                            false => sum.layer_norm(&norm_weight, norm_bias, 1e-5)?,
                        };
                        let y = normed.linear(&weight.to_dtype(DType::F32)?, outputs_first, bias)?;
                        Ok::<_, Error>([sum, if gelu { y.gelu()? } else { y }])
                    });
                    let [sum, product] = want.unwrap();
                    let case = format!("{device}, {rows} x {k} x {n}, {variant}, {dtype:?}");
                    assert_eq!(stream.to_f32().unwrap(), sum.to_f32().unwrap(), "{case}");
                    // The sum of k products of numbers below 3; f16 has 11 bits, and normed rows there too on the CPU.
                    let atol = if dtype == DType::F16 { 4e-3 * (k as f64).sqrt() } else { 1e-6 * k as f64 };
                    assert_close(case, &y.to_f32().unwrap(), &product.to_f32().unwrap(), atol, 1e-5);
                }
            }
        }
    }
}
