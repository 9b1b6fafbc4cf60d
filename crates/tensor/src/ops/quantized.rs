//! Quantized matrices (`tensor/quantized.rs`) as operands. Shapes: (N, K) -> (N, K); table (V, C), ids (...) of u32 ->
//! (..., C).
//!
//! GEMMs with few rows read codes and multiply while they do (`matmul/matvec.rs`, on the CPU `quantized/few_rows.rs`).
//! Others write the values of the matrix to scratch memory first, as f16 for tensor cores: of a GEMM with 4096 rows
//! that is a few hundredths of the work. Weights are frozen, so nothing here is differentiated with respect to them.

mod few_rows;

pub(super) use few_rows::few_rows;

use super::*;
use crate::gpu::{Limits, Operand, Param, Plan, Value, buffer, param};
use crate::shader;
use crate::tensor::{Parts, decode, decode_step, run};
use rayon::prelude::*;
use std::ops::Range;

/// The values of some rows of a quantized matrix in f32 or f16.
pub(super) struct Dequantize {
    pub to: DType,
    pub rows: Range<usize>,
}

/// Rows of a quantized table. Inputs: table, ids.
struct QuantizedRows;

/// What `shaders/quantized.wgsl` is told of a matrix of this type.
pub(super) fn shader_values(dtype: DType) -> [(&'static str, Value); 1] {
    [("b_type", dtype.name().into())]
}

/// What it needs to know besides.
pub(super) fn shader_params(dtype: DType, elements: usize) -> [Param; 3] {
    let Parts { scales, coarse, mean, .. } = Parts::of(dtype, elements);
    [param("scales", scales), param("coarse", coarse), param("mean", mean)]
}

/// Rows whose values are written.
pub(super) enum Rows {
    Range(Range<usize>),
    /// Those that ids name, of which there are so many.
    Named(Operand, usize),
}

/// Writes the values of rows of a quantized matrix.
pub(super) fn dequantize(matrix: &Spec, to: DType, [from, into]: [Operand; 2], rows: Rows) -> Launch {
    let (width, elements) = (matrix.shape.last_dim() / 4, matrix.shape.elements());
    let (count, is_named) = match &rows {
        Rows::Range(range) => (range.len(), false),
        Rows::Named(_, count) => (*count, true),
    };
    let len = count * width;
    let mut values = vec![("T", to.name().into()), ("rows", is_named.into())];
    values.extend(shader_values(matrix.dtype));
    let mut buffers = vec![buffer("b", "u32", from)];
    let mut params = vec![param("len", len)];
    match rows {
        Rows::Range(range) => params.push(param("first", range.start * width)),
        Rows::Named(ids, _) => {
            buffers.push(buffer("ids", "u32", ids));
            // As a parameter, because WGSL has no way to write NaN.
            params.extend([param("width", width), param("vocabulary", matrix.shape.rows()), param("nan", f32::NAN)]);
        }
    }
    buffers.push(buffer("result", to.wgsl(4), into));
    params.extend(shader_params(matrix.dtype, elements));
    Launch { shader: shader!(dequantize), values, buffers, params, workgroups: len.div_ceil(256) }
}

fn expect_quantized(op: &'static str, matrix: &Spec) -> Result<()> {
    match matrix.dtype.is_quantized() && matrix.shape.len() == 2 {
        true => Ok(()),
        false => Err(shape_error(op, "a quantized matrix (N, K)", matrix)),
    }
}

impl Kernel for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_quantized(self.name(), inputs[0])?;
        if self.rows.end > inputs[0].shape.rows() {
            return Err(shape_error(self.name(), format!("at least {} rows", self.rows.end), inputs[0]));
        }
        Ok(vec![Spec::new([self.rows.len(), inputs[0].shape.last_dim()], self.to)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let read = inputs[0].size_bytes() as f64 * self.rows.len() as f64 / inputs[0].shape.rows().max(1) as f64;
        let elements = outputs[0].shape.elements() as f64;
        Cost { flops: 2.0 * elements, bytes: read + outputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        decode_rows(&inputs[0], self.rows.start, outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let operands = [Operand::Input(0), Operand::Output(0)];
        Plan::one(dequantize(inputs[0], self.to, operands, Rows::Range(self.rows.clone())))
    }
}

impl Kernel for QuantizedRows {
    fn name(&self) -> &'static str {
        "quantized_embedding"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_quantized(self.name(), inputs[0])?;
        expect_dtype(self.name(), DType::U32, &inputs[1..])?;
        let c = inputs[0].shape.last_dim();
        Ok(vec![Spec::new([&inputs[1].shape[..], &[c]].concat(), DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        Cost { flops: 0.0, bytes: (inputs[1].size_bytes() + 2 * outputs[0].size_bytes()) as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (rows, c) = (inputs[0].spec.shape.rows(), inputs[0].spec.shape.last_dim());
        if c == 0 {
            return;
        }
        outputs[0].f32().par_chunks_mut(c).zip(inputs[1].u32()).for_each(|(y, &id)| match id as usize {
            id if id < rows => decode_row(&inputs[0], id, y),
            _ => y.fill(f32::NAN),
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let ids = Rows::Named(Operand::Input(1), inputs[1].shape.elements());
        Plan::one(dequantize(inputs[0], DType::F32, [Operand::Input(0), Operand::Output(0)], ids))
    }
}

/// The values of a row.
fn decode_row(matrix: &View, row: usize, out: &mut [f32]) {
    decode(matrix.spec.dtype, matrix.words(), matrix.spec.shape.elements(), row * out.len(), out);
}

/// The values of the rows of a quantized matrix from this one on, by all threads.
pub(super) fn decode_rows(matrix: &View, first: usize, out: &mut [f32]) {
    let k = matrix.spec.shape.last_dim();
    out.par_chunks_mut(k.max(1)).enumerate().for_each(|(row, out)| decode_row(matrix, first + row, out));
}

impl Tensor {
    /// The type in which GEMMs multiply with this matrix: its own, or of a quantized one f16 where the device has that.
    pub fn operand_dtype(&self) -> DType {
        match self.dtype() {
            dtype if !dtype.is_quantized() => dtype,
            _ if self.device().has_f16() => DType::F16,
            _ => DType::F32,
        }
    }

    /// The values of a quantized matrix in f32 or f16.
    pub(super) fn dequantized(&self, to: DType) -> Result<Tensor> {
        Ok(run(&Dequantize { to, rows: 0..self.shape().rows() }, &[self])?.remove(0))
    }

    /// A quantized matrix of these values, f32 or f16.
    pub(super) fn quantized(&self, dtype: DType) -> Result<Tensor> {
        let (k, block) = (self.shape().last_dim(), dtype.block());
        if self.shape().len() != 2 || !k.is_multiple_of(block) || self.is_empty() {
            let expected = format!("a matrix whose rows are multiples of {block} for {}", dtype.name());
            return Err(shape_error("quantize", expected, self.spec()));
        }
        match self.unread_as(dtype) {
            Some(unread) => Ok(unread),
            None => self.encoded(dtype),
        }
    }

    /// The rows `ids` of this quantized table.
    pub(super) fn quantized_rows(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(run(&QuantizedRows, &[self, ids])?.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::ops::random::Key;
    use crate::testing::assert_close;

    const TYPES: [DType; 3] = [DType::Q8_0, DType::Q4_0, DType::Nf4];

    fn values(number: u64, len: usize) -> Vec<f32> {
        let key = Key::new(number);
        (0..len).map(|i| (key.bits(i as u32) as f32 / 2_147_483_648.0 - 1.0).powi(3)).collect()
    }

    fn quantized(dtype: DType, shape: [usize; 2], device: &Device) -> Tensor {
        let matrix = Tensor::from_f32(&values(7, shape[0] * shape[1]), shape, &Device::Cpu).unwrap();
        matrix.to_dtype(dtype).unwrap().to_device(device).unwrap()
    }

    /// Of q8_0 half a step of 1/127 of the largest magnitude; of 4 bits, half the widest step.
    #[test]
    fn values_are_as_near_as_their_codes() {
        for (dtype, most, bits) in
            [(DType::Q8_0, 0.57 / 127.0, 8.5), (DType::Q4_0, 1.01 / 8.0, 4.5), (DType::Nf4, 0.17, 4.2)]
        {
            let (n, k) = (64, 256);
            let exact = values(7, n * k);
            let matrix = quantized(dtype, [n, k], &Device::Cpu);
            let bytes =
                if dtype == DType::Nf4 { matrix.spec().size_bytes() - 1024 } else { matrix.spec().size_bytes() };
            assert!(bytes as f64 * 8.0 <= bits * (n * k) as f64 + 64.0, "{dtype:?}: {bytes}");
            let got = matrix.to_f32().unwrap();
            for (got, want) in got.chunks(dtype.block()).zip(exact.chunks(dtype.block())) {
                let largest = want.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
                assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() <= most * largest), "{dtype:?}");
            }
        }
    }

    /// As GGUF files have them, or any file: nothing is lost by reading and quantizing again.
    #[test]
    fn blocks_of_ggml_come_back_to_the_bit() {
        for dtype in [DType::Q8_0, DType::Q4_0] {
            let matrix = quantized(dtype, [40, 96], &Device::Cpu);
            let again = matrix.to_dtype(DType::F32).unwrap().to_dtype(dtype).unwrap();
            assert!(matrix.to_bytes().unwrap() == again.to_bytes().unwrap(), "{dtype:?}");
        }
    }

    #[test]
    fn zeros_stay_zeros_and_nf4_has_its_largest_magnitude() {
        for dtype in TYPES {
            let zeros = Tensor::zeros([2, 128], DType::F32, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            assert_eq!(zeros.to_f32().unwrap(), [0.0; 256], "{dtype:?}");
        }
        // All blocks alike: their absmax is the mean, exactly.
        let x: Vec<f32> = (0..128).map(|i| ((i % 64) as f32 - 32.0) / 8.0).collect();
        let nf4 = Tensor::from_f32(&x, [2, 64], &Device::Cpu).unwrap().to_dtype(DType::Nf4).unwrap();
        let (first, expected) = (nf4.to_f32().unwrap(), -4.0);
        assert_eq!((first[0], first[64]), (expected, expected));
    }

    /// `quantize_4bit` and `dequantize_4bit` of bitsandbytes 0.50.2 (CPU), with double quantization: every 1001st
    /// value.
    #[test]
    fn nf4_is_that_of_bitsandbytes() {
        #[rustfmt::skip]
        let want = [
            -1.000129, 0.0, -0.08619195, 0.717114, 0.0, -0.08956657, 0.554894, 0.0, -0.17738, 0.4382789,
            0.0, -0.2759793, 0.2393968, 0.0, -0.3862538, 0.1578127, 0.0, -0.5069984, 0.07663547, 0.0,
            -0.6715088, 0.07832915, 0.0, 0.9791152, 0.0, -0.09074675, 0.702027, 0.0, -0.08706967, 0.5584192,
            0.0, -0.1824408, 0.41348, 0.0, -0.2683085, 0.2445441, 0.0, -0.3944462, 0.152886, 0.0,
            -0.657788, 0.07800177, 0.0, -0.6859885, 0.07667389, 0.0, 0.9582999, 0.0, -0.08824337, 0.7025433,
            0.0, -0.0889712, 0.5467259, 0.0, -0.1785948, 0.4223105, 0.0, -0.28102, 0.2425128, 0.0,
            -0.3870905, 0.1597468, 0.0, -0.5242116, 0.07949108, 0.0,
        ];
        let len = 4 * 16_448;
        let x = |i: u32| f64::from(i.wrapping_mul(2_654_435_761)) / 2_147_483_648.0 - 1.0;
        let values: Vec<f32> = (0..len).map(|i| (x(i) * x(i) * x(i)) as f32).collect();
        let matrix = Tensor::from_f32(&values, [4, 16_448], &Device::Cpu).unwrap().to_dtype(DType::Nf4).unwrap();
        let got: Vec<f32> = matrix.to_f32().unwrap().into_iter().step_by(1001).collect();
        assert_close("nf4", &got, &want, 1e-6, 1e-6);
    }

    #[test]
    fn what_has_no_whole_blocks_is_refused() {
        let matrix = Tensor::zeros([2, 48], DType::F32, &Device::Cpu).unwrap();
        for dtype in TYPES {
            let error = matrix.to_dtype(dtype).unwrap_err().to_string();
            assert!(error.contains("multiples of") && error.contains(dtype.name()), "{error}");
        }
        assert!(Tensor::zeros([64], DType::F32, &Device::Cpu).unwrap().to_dtype(DType::Q8_0).is_err());
    }

    #[test]
    fn devices_read_the_same_values_and_rows() {
        for device in Device::for_tests() {
            for (dtype, shape) in
                TYPES.into_iter().flat_map(|dtype| [[5, 64], [33, 192], [3, 16_448]].map(|s| (dtype, s)))
            {
                let (cpu, matrix) = (quantized(dtype, shape, &Device::Cpu), quantized(dtype, shape, &device));
                let want = cpu.to_f32().unwrap();
                let got = matrix.to_dtype(DType::F32).unwrap().to_f32().unwrap();
                // A GPU may fuse the product and the sum of double quantization.
                assert_close(format!("{device} {dtype:?} {shape:?}"), &got, &want, 0.0, 1e-6);
                let ids = Tensor::from_u32(&[2, 0, 99, 1, 2], [5], &device).unwrap();
                let rows = matrix.embedding(&ids).unwrap().to_f32().unwrap();
                let k = shape[1];
                assert!(rows[2 * k..3 * k].iter().all(|x| x.is_nan()), "{device}");
                for (at, id) in [(0, 2), (1, 0), (3, 1), (4, 2)] {
                    assert_eq!(rows[at * k..][..k], got[id * k..][..k], "{device} {dtype:?}");
                }
            }
        }
    }

    /// As the CPU multiplies few rows: in steps of 1/127 of the largest of 32.
    fn in_8_bits(x: &[f32]) -> Vec<f32> {
        let rounded = |x: &[f32]| {
            let step = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 127.0;
            x.iter().map(|x| step * (x / step).round()).collect::<Vec<f32>>()
        };
        x.chunks(32).flat_map(rounded).collect()
    }

    /// Forward and the gradient of x, with few rows and many, beside the product with the dequantized matrix.
    #[test]
    fn products_are_those_of_the_values() {
        for device in Device::for_tests() {
            for (dtype, [m, n, k]) in TYPES.into_iter().flat_map(|dtype| {
                // The last two have several tasks, and more blocks than are multiplied in one call.
                let sizes =
                    [[1, 40, 64], [3, 33, 192], [4, 7, 128], [5, 40, 64], [37, 130, 192], [4, 70, 2048], [1, 37, 4160]];
                sizes.map(|sizes| (dtype, sizes))
            }) {
                for operand in [DType::F32, DType::F16].into_iter().filter(|t| *t == DType::F32 || device.has_f16()) {
                    let case = format!("{device} {dtype:?} {operand:?} {m} x {n} x {k}");
                    let matrix = quantized(dtype, [n, k], &device);
                    let is_rounded = !device.is_gpu() && m <= 4 && dtype != DType::Nf4;
                    let of = |x: &[f32]| Tensor::from_f32(x, [m, k], &device).unwrap();
                    let x = of(&values(3, m * k));
                    let near = if is_rounded { of(&in_8_bits(&values(3, m * k))) } else { x.clone() };
                    let bias = Tensor::from_f32(&values(5, n), [n], &device).unwrap();
                    let dy = Tensor::from_f32(&values(9, m * n), [m, n], &device).unwrap();
                    let product = |x: &Tensor, weight: &Tensor| {
                        let x = x.detach().requires_grad().unwrap();
                        let y = x.to_dtype(operand).unwrap().linear(weight, true, Some(&bias)).unwrap();
                        let y = y.to_dtype(DType::F32).unwrap();
                        y.mul(&dy).unwrap().sum(..).unwrap().backward().unwrap();
                        [y.to_f32().unwrap(), x.grad().unwrap().to_f32().unwrap()]
                    };
                    let (got, want) = (product(&x, &matrix), product(&near, &matrix.to_dtype(operand).unwrap()));
                    // Sums in another order; f16 results have 11 bits.
                    let (atol, rtol) = if operand == DType::F16 { (2e-2, 4e-3) } else { (1e-5, 1e-5) };
                    for (got, want) in got.iter().zip(&want) {
                        assert_close(case.clone(), got, want, atol, rtol);
                    }
                    let logits = x.linear_to_f32(&matrix, None);
                    let want = near.linear_to_f32(&matrix.to_dtype(DType::F32).unwrap(), None).unwrap();
                    assert_close(case, &logits.unwrap().to_f32().unwrap(), &want.to_f32().unwrap(), 1e-5, 1e-5);
                }
            }
        }
    }

    /// Where the vocabulary needs padding and where not.
    #[test]
    fn the_loss_of_a_quantized_head_is_that_of_its_values() {
        for (device, vocab) in Device::for_tests().into_iter().flat_map(|d| [130, 136].map(|vocab| (d.clone(), vocab)))
        {
            let (head, h) = (quantized(DType::Q8_0, [vocab, 64], &device), values(3, 6 * 64));
            let targets = Tensor::from_u32(&[0, 5, 129, 7, 5, 64], [6], &device).unwrap();
            let loss = |head: &Tensor| {
                let h = Tensor::from_f32(&h, [6, 64], &device).unwrap().requires_grad().unwrap();
                let loss = h.linear_cross_entropy(head, &targets, Criterion::default(), None).unwrap();
                loss.backward().unwrap();
                [loss.to_f32().unwrap(), h.grad().unwrap().to_f32().unwrap()].concat()
            };
            let want = loss(&head.to_dtype(DType::F32).unwrap());
            assert_close(format!("{device} {vocab}"), &loss(&head), &want, 1e-6, 1e-5);
        }
    }
}
