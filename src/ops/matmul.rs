//! Matrix products, with every combination of transposed operands.
//!
//! ```text
//! y = op(a) op(b) [+ bias]            op(x) = x or its transpose
//!   (M, K) (K, N)       -> (M, N)
//!   (..., K) (K, N)     -> (..., N)   b shared by all leading dimensions (a linear layer)
//!   (B, M, K) (B, K, N) -> (B, M, N)
//! dL/da = dy op(b)^T,  dL/db = op(a)^T dy,  dL/dbias = sum of the rows of dy
//! ```
//! On the CPU the crate `gemm` computes them (`cpu.rs`), on the GPU `shaders/matmul.wgsl`: tiles by shape and by the device's
//! limits, and k split between workgroups where there are few tiles.

mod choice;
mod cpu;
mod measure;

pub use measure::{MatmulRates, Rates};

use choice::{Choice, Tile};

use super::reduce::SumRows;
use super::*;
use crate::gpu::{Launch, Limits, Operand, Plan, Value};
use crate::shader;
use crate::tensor::{Edge, Grads, run};

/// What a product does with its result before it leaves the registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Epilogue {
    #[default]
    Nothing,
    /// A second output is gelu(y), and the first the derivative of GELU at y, which is what backward needs.
    Gelu,
    /// y is multiplied, element by element, by one more input, which has the shape of y.
    Multiply,
}

/// `y = op(a) op(b) [+ bias]`, or `y += op(a) op(b)` with `accumulate`, then the epilogue. Inputs: a, b, with `bias` a
/// vector (N), and what the epilogue needs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct MatMul {
    pub trans_a: bool,
    pub trans_b: bool,
    pub bias: bool,
    pub accumulate: bool,
    pub epilogue: Epilogue,
    /// Whether a second output (N) gets the sums of the columns of b, added to it with `accumulate`: in the product that is a
    /// weight's gradient, the gradient of the bias, for which dy need not be read again. For a (K, M) and b (K, N) alone.
    pub sums: bool,
    /// What the result is stored as. The operands are both f32 or both f16; products are added up in f32.
    pub out: DType,
}

/// The sizes of a (batch of) products, and how many elements lie between the matrices of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Dims {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    stride_a: usize,
    stride_b: usize,
}

impl MatMul {
    fn dims(&self, a: &Shape, b: &Shape) -> Option<Dims> {
        let (k_b, n) = match (&b[..], self.trans_b) {
            ([.., k, n], false) | ([.., n, k], true) => (*k, *n),
            _ => return None,
        };
        let (batch, m, k, stride_a, stride_b) = match (&a[..], &b[..], self.trans_a) {
            (&[k, m], [_, _], true) => (1, m, k, 0, 0),
            (&[batch, k, m], [_, _], true) => (batch, m, k, k * m, 0),
            (&[.., k], [_, _], false) if a.len() >= 2 => (1, a.rows(), k, 0, 0),
            // Only backward uses a shared a: `Tensor::matmul` refuses it.
            (&[k, m], &[batch, ..], true) => (batch, m, k, 0, k_b * n),
            (&[m, k], &[batch, ..], false) => (batch, m, k, 0, k_b * n),
            (&[batch, k, m], &[batch_b, ..], true) if batch == batch_b => (batch, m, k, k * m, k_b * n),
            (&[batch, m, k], &[batch_b, ..], false) if batch == batch_b => (batch, m, k, m * k, k_b * n),
            _ => return None,
        };
        (k == k_b).then_some(Dims { batch, m, n, k, stride_a, stride_b })
    }

    fn checked_dims(&self, inputs: &[&Spec]) -> Dims {
        self.dims(&inputs[0].shape, &inputs[1].shape).expect("output_specs checked the shapes")
    }
}

impl Kernel for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        expect_dtype("matmul", inputs[0].dtype, &inputs[1..2])?;
        if inputs[0].dtype == DType::U32 {
            expect_f32("matmul", inputs)?;
        }
        let (a, b) = (&inputs[0].shape, &inputs[1].shape);
        let Some(Dims { m, n, .. }) = self.dims(a, b) else {
            let t = |transposed| if transposed { "^T" } else { "" };
            return Err(shape_error(
                "matmul",
                "shapes (..., M, K) and (K, N), or two batches of equal length",
                format!("{a}{} and {b}{}", t(self.trans_a), t(self.trans_b)),
            ));
        };
        if self.bias && inputs[2].shape[..] != [n] {
            return Err(shape_error("matmul", format!("a bias of shape ({n})"), &inputs[2].shape));
        }
        let shape = match (&a[..], &b[..], self.trans_a) {
            (_, &[batch, _, _], _) | (&[batch, _, _], _, true) => Shape::from([batch, m, n]),
            (_, _, true) => Shape::from([m, n]),
            _ => a.with_last_dim(n),
        };
        let outputs = if self.epilogue == Epilogue::Gelu { 2 } else { 1 };
        let sums = self.sums.then(|| Spec::new([n], DType::F32));
        Ok(vec![Spec::new(shape, self.out); outputs].into_iter().chain(sums).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let Dims { batch, m, n, k, .. } = self.checked_dims(inputs);
        streaming_cost(2 * batch * m * n * k, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let d = self.checked_dims(&inputs.iter().map(|v| v.spec).collect::<Vec<_>>());
        let (y, more) = outputs.split_first_mut().expect("a result");
        let (activated, sums) = more.split_at_mut((self.epilogue == Epilogue::Gelu) as usize);
        if self.sums {
            SumRows { accumulate: self.accumulate, len: d.n, outputs: 1 }.cpu(&inputs[1..2], sums);
        }
        let empty: &[f32] = &[];
        let operands = cpu::Operands {
            a: inputs[0].f32(),
            b: inputs[1].f32(),
            bias: if self.bias { inputs[2].f32() } else { empty },
            factors: if self.epilogue == Epilogue::Multiply { inputs[2 + self.bias as usize].f32() } else { empty },
        };
        cpu::compute(self, &d, operands, y.f32(), activated.first_mut().map_or(&mut [], |output| output.f32()));
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        let d = self.checked_dims(inputs);
        let dtype = inputs[0].dtype;
        self.plan(&d, dtype, Choice::best(self, &d, dtype, limits), limits)
    }
}

impl MatMul {
    fn plan(&self, d: &Dims, operands: DType, choice: Choice, limits: &Limits) -> Plan {
        debug_assert!(
            !self.accumulate || self.epilogue == Epilogue::Nothing,
            "the shader has one tensor to read at the end"
        );
        debug_assert!(
            !self.sums
                || self.trans_a && !self.trans_b && !self.bias && d.batch == 1 && self.epilogue == Epilogue::Nothing,
            "only products of weight gradients add up columns"
        );
        let Tile { bm, bn, bk, tm, tn, .. } = choice.tile;
        let (tiles_m, tiles_n) = (d.m.div_ceil(bm), d.n.div_ceil(bn));
        let (k_piece, splits) = choice.tile.pieces(d, choice.splits);
        let split = splits > 1;
        let mut plan = Plan::default();
        let mut b = Operand::Input(1);
        if choice.transpose_b {
            plan.scratch.push(operands.size_bytes() * d.n * d.k);
            plan.launches.push(transpose_b(d, operands));
            b = Operand::ReadScratch(0);
        }
        let trans_b = self.trans_b && !choice.transpose_b;
        // A vector load needs the contiguous dimension, and so every row, to start on 16 bytes.
        let by_four = |contiguous: usize, stride: usize| contiguous.is_multiple_of(4) && stride.is_multiple_of(4);
        let vec_a = by_four(if self.trans_a { d.m } else { d.k }, d.stride_a);
        let vec_b = by_four(if trans_b { d.k } else { d.n }, d.stride_b);
        let vec_c = d.n.is_multiple_of(4);
        // What is done with the result: here, or where the pieces of k are added up.
        let epilogue_input = 2 + self.bias as usize;
        let finishing = |mut bindings: Vec<Operand>| {
            bindings.extend(self.bias.then_some(Operand::Input(2)));
            bindings.extend((self.epilogue == Epilogue::Multiply).then_some(Operand::Input(epilogue_input)));
            bindings.push(Operand::Output(0));
            bindings.extend((self.epilogue == Epilogue::Gelu || self.sums).then_some(Operand::Output(1)));
            bindings
        };
        let epilogue = match self.epilogue {
            Epilogue::Nothing => "",
            Epilogue::Gelu => "gelu",
            Epilogue::Multiply => "multiply",
        };
        // Where the pieces of k leave what they make of the result and of the sums.
        let partial = plan.scratch.len();
        let pieces = |operand: fn(usize) -> Operand| {
            [Some(partial), self.sums.then_some(partial + 1)].into_iter().flatten().map(operand)
        };
        let factors = vec![Operand::Input(0), b];
        let bindings = match split {
            true => factors.into_iter().chain(pieces(Operand::Scratch)).collect(),
            false => finishing(factors),
        };
        let mut values: Vec<(&'static str, Value)> = vec![
            ("T_in", operands.name().into()),
            ("T_out", if split { DType::F32 } else { self.out }.name().into()),
            ("BM", (bm as u32).into()),
            ("BN", (bn as u32).into()),
            ("BK", (bk as u32).into()),
            ("TM", (tm as u32).into()),
            ("TN", (tn as u32).into()),
            ("trans_a", self.trans_a.into()),
            ("trans_b", trans_b.into()),
            ("edge_m", (!d.m.is_multiple_of(bm)).into()),
            ("edge_n", (!d.n.is_multiple_of(bn)).into()),
            ("edge_k", (!d.k.is_multiple_of(bk)).into()),
            ("bias", (self.bias && !split).into()),
            ("accumulate", (self.accumulate && !split).into()),
            ("sums", self.sums.into()),
            ("epilogue", if split { "" } else { epilogue }.into()),
        ];
        values.extend(match choice.tile.units {
            true => [
                ("kernel", "units".into()),
                ("side", limits.matrix_units.into()),
                ("subgroup", limits.subgroup_size.into()),
            ]
            .to_vec(),
            false => [
                ("kernel", "product".into()),
                ("vec_a", vec_a.into()),
                ("vec_b", vec_b.into()),
                ("vec_c", vec_c.into()),
            ]
            .to_vec(),
        });
        plan.launches.push(Launch {
            shader: shader!("matmul"),
            values,
            bindings,
            params: [d.m, d.n, d.k, d.stride_a, d.stride_b, d.m * d.n, tiles_m, tiles_n, splits, k_piece, d.batch]
                .map(|v| v as u32)
                .to_vec(),
            workgroups: tiles_m * tiles_n * splits * d.batch,
        });
        if split {
            plan.scratch.push(splits * d.m * d.n * 4);
            plan.scratch.extend(self.sums.then_some(splits * d.n * 4));
            plan.launches.push(Launch {
                shader: shader!("matmul"),
                values: vec![
                    ("kernel", "sum".into()),
                    ("T_in", "f32".into()),
                    ("T_out", self.out.name().into()),
                    ("bias", self.bias.into()),
                    ("accumulate", self.accumulate.into()),
                    ("sums", self.sums.into()),
                    ("epilogue", epilogue.into()),
                ],
                bindings: finishing(pieces(Operand::ReadScratch).collect()),
                params: vec![(d.m * d.n) as u32, d.n as u32, splits as u32],
                workgroups: (d.m * d.n + if self.sums { d.n } else { 0 }).div_ceil(256),
            });
        }
        plan
    }
}

/// Writes b (N, K) to the plan's first scratch buffer as (K, N).
fn transpose_b(d: &Dims, dtype: DType) -> Launch {
    const SIDE: usize = 32;
    let down = d.n.div_ceil(SIDE);
    Launch {
        shader: shader!("matmul"),
        values: vec![
            ("kernel", "transpose".into()),
            ("T_in", dtype.name().into()),
            ("T_out", dtype.name().into()),
            ("bias", false.into()),
            ("accumulate", false.into()),
            ("sums", false.into()),
            ("epilogue", "".into()),
        ],
        bindings: vec![Operand::Input(1), Operand::Scratch(0)],
        params: vec![d.n as u32, d.k as u32, down as u32],
        workgroups: down * d.k.div_ceil(SIDE),
    }
}

impl Op for MatMul {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, upstream: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &upstream[0] else { return Ok(()) };
        let (a, b) = (saved.input(0), saved.input(1));
        let out = [grads.dtype(0, a), grads.dtype(1, b)];
        let product = |input: usize, trans_a, trans_b| {
            move |accumulate| MatMul { trans_a, trans_b, accumulate, out: out[input], ..MatMul::default() }
        };
        // da = dy op(b)^T, itself transposed if a is stored so.
        if self.trans_a {
            grads.compute(0, &[b, dy], product(0, self.trans_b, true))?;
        } else {
            grads.compute(0, &[dy, b], product(0, false, !self.trans_b))?;
        }
        if self.bias {
            // `linear` alone has a bias, and transposes nothing.
            return linear_gradients(grads, [1, 2], &a.as_rows(), &dy.as_rows(), out[1]);
        }
        if !grads.wanted(1) {
            return Ok(());
        }
        // db = op(a)^T dy, itself transposed if b is stored so. A shared b sums over the whole batch: as one long
        // product where the rows of a follow each other, else matrix by matrix.
        let shared = b.shape().len() == 2 && a.shape().len() > 2;
        let (flat_a, flat_dy);
        let (a, dy) = if shared && !self.trans_a {
            (flat_a, flat_dy) = (a.as_rows(), dy.as_rows());
            (&flat_a, &flat_dy)
        } else {
            (a, dy)
        };
        let (left, right, kernel) = if self.trans_b {
            (dy, a, product(1, true, self.trans_a))
        } else {
            (a, dy, product(1, !self.trans_a, false))
        };
        if shared && self.trans_a {
            let per_batch = run(&kernel(false), &[left, right])?.remove(0);
            return grads.give(1, per_batch.sum(0)?);
        }
        grads.compute(1, &[left, right], kernel)
    }
}

/// Computes the gradients of inputs number `weight` (K, N) and `bias` (N) from x (R, K) and dy (R, N): in one product if both are
/// wanted. That of the weight is of type `out`.
pub(super) fn linear_gradients(
    grads: &mut Grads,
    [weight, bias]: [usize; 2],
    x: &Tensor,
    dy: &Tensor,
    out: DType,
) -> Result<()> {
    let product = |accumulate| MatMul { trans_a: true, accumulate, out, ..MatMul::default() };
    // An empty weight has no tile that could add up dy on its way.
    let empty = x.shape().last_dim() == 0;
    if grads.wanted(weight) && grads.wanted(bias) && !empty {
        return grads.compute_all(&[weight, bias], &[x, dy], |accumulate| MatMul { sums: true, ..product(accumulate) });
    }
    let len = dy.shape().last_dim();
    grads.compute(bias, &[dy], |accumulate| SumRows { accumulate, len, outputs: 1 })?;
    grads.compute(weight, &[x, dy], product)
}

impl Tensor {
    /// This tensor as a matrix (R, C) of its rows, without history.
    pub(super) fn as_rows(&self) -> Tensor {
        self.view([self.shape().rows(), self.shape().last_dim()].into(), Edge::None)
    }

    /// The matrix product `self other`: (..., M, K) by (K, N), or (B, M, K) by (B, K, N).
    ///
    /// # Errors
    /// If the shapes do not fit or the tensors are not both f32 or both f16.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        self.matmul_transposed(other, false, false)
    }

    /// The product of `self` and `other`, each transposed (in its last two dimensions) if so asked.
    ///
    /// # Errors
    /// If the shapes do not fit or the tensors are not both f32 or both f16.
    pub fn matmul_transposed(&self, other: &Tensor, trans_a: bool, trans_b: bool) -> Result<Tensor> {
        let (a, b) = (self.shape(), other.shape());
        if b.len() > 2 && a.len() != b.len() {
            return Err(shape_error("matmul", "a batch on the left too", format!("{a} and {b}")));
        }
        apply_one(MatMul { trans_a, trans_b, out: self.dtype(), ..MatMul::default() }, &[self, other])
    }

    /// `self weight + bias`: (..., K) by (K, N), plus (N) in every row. The layout of GPT-2's `Conv1D`.
    ///
    /// # Errors
    /// If the shapes do not fit, `self` and `weight` are not both f32 or both f16, or the bias is not f32.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if weight.shape().len() != 2 {
            return Err(shape_error("linear", "a weight of shape (K, N)", weight.shape()));
        }
        let op = MatMul { bias: bias.is_some(), out: self.dtype(), ..MatMul::default() };
        let inputs: Vec<&Tensor> = [self, weight].into_iter().chain(bias).collect();
        apply_one(op, &inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::gpu::{Gpu, gpu_for_tests};
    use crate::tensor::run_into;

    fn values(len: usize, seed: u64) -> Vec<f32> {
        (0..len as u32).map(|i| random::Key::new(seed).bits(i) as f32 / (1u64 << 31) as f32 - 1.0).collect()
    }

    /// What `tile` makes of a product must be what the CPU makes of it.
    fn assert_computes(gpu: &Gpu, choice: Choice, kernel: MatMul, [m, n, k]: [usize; 3]) {
        let tensors = |device: &Device| {
            let tensor = |shape: &[usize], seed| {
                let values = values(shape.iter().product(), seed);
                Tensor::from_f32(&values, shape, device).unwrap()
            };
            let a = tensor(&if kernel.trans_a { [k, m] } else { [m, k] }, 1);
            let b = tensor(&if kernel.trans_b { [n, k] } else { [k, n] }, 2);
            let bias = kernel.bias.then(|| tensor(&[n], 3));
            let sums = kernel.sums.then(|| tensor(&[n], 5));
            let outputs = [tensor(&[m, n], 4)].into_iter().chain(sums).collect::<Vec<_>>();
            (vec![a, b].into_iter().chain(bias).collect::<Vec<_>>(), outputs)
        };
        let (inputs, want) = tensors(&Device::Cpu);
        run_into(&kernel, &inputs.iter().collect::<Vec<_>>(), &want.iter().collect::<Vec<_>>()).unwrap();
        let (inputs, got) = tensors(&Device::Gpu(gpu.clone()));
        let d = kernel.dims(inputs[0].shape(), inputs[1].shape()).unwrap();
        let [read, written] =
            [&inputs, &got].map(|tensors| tensors.iter().map(|t| t.storage().gpu()).collect::<Vec<_>>());
        let plan = kernel.plan(&d, DType::F32, choice, gpu.limits());
        gpu.run("matmul", Cost::default(), plan, &read, &written).unwrap();
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let (got, want) = (got.to_f32().unwrap(), want.to_f32().unwrap());
            // Sums of k products below 1, each rounded to 6e-8 of a partial sum of about sqrt(k).
            let bad = got.iter().zip(&want).filter(|(g, w)| (*g - *w).abs() > 1e-7 * k as f32 || g.is_nan()).count();
            assert!(bad == 0, "{choice:?} {kernel:?} {m}x{n}x{k}: {bad} elements of output {i}");
        }
    }

    /// The table of cases is too small to choose any but the two smallest, so here the others are made to run.
    #[test]
    fn every_tile_computes_the_product_in_every_layout() {
        let Some(gpu) = gpu_for_tests() else { return };
        let layouts = [(false, false), (false, true), (true, false), (true, true)];
        for tile in Tile::ALL.into_iter().take(4).filter(|t| t.fits(gpu.limits())) {
            // Whole tiles; overhanging ones, in whole vectors; and sizes that fit nothing, with k split.
            let accumulate = MatMul { accumulate: true, ..MatMul::default() };
            assert_computes(&gpu, Choice::new(tile, 1), accumulate, [tile.bm, tile.bn, 32]);
            for (trans_a, trans_b) in layouts {
                let kernel = MatMul { trans_a, trans_b, bias: true, ..MatMul::default() };
                assert_computes(&gpu, Choice::new(tile, 1), kernel, [tile.bm + 4, tile.bn + 8, 36]);
            }
            let gradient = MatMul { trans_a: true, sums: true, ..accumulate };
            assert_computes(&gpu, Choice::new(tile, 5), gradient, [tile.bm + 1, 7, 1031]);
            assert_computes(&gpu, Choice::new(tile, 1), gradient, [tile.bm + 4, tile.bn + 8, 36]);
        }
        // b transposed first, with k split and not.
        for (splits, sizes) in [(1, [33, 34, 67]), (3, [64, 65, 1031])] {
            let choice = Choice { transpose_b: true, ..Choice::new(Tile::ALL[5], splits) };
            assert_computes(&gpu, choice, MatMul { trans_b: true, bias: true, ..MatMul::default() }, sizes);
        }
    }

    /// What lets rates that differ from run to run choose the tile: it leaves no trace in the result.
    #[test]
    fn every_tile_gives_the_same_bits() {
        let Some(gpu) = gpu_for_tests() else { return };
        let device = Device::Gpu(gpu.clone());
        // The variants of the test above, which the driver then has already, with sums long enough to round often.
        let whole_vectors = [140, 264, 1036];
        let cases = [
            (MatMul { bias: true, ..MatMul::default() }, 1, whole_vectors),
            (MatMul { bias: true, trans_b: true, ..MatMul::default() }, 1, whole_vectors),
            (MatMul { trans_a: true, accumulate: true, sums: true, ..MatMul::default() }, 5, [131, 137, 1031]),
        ];
        for (kernel, splits, [m, n, k]) in cases {
            let MatMul { trans_a, trans_b, .. } = kernel;
            let tensor = |shape: &[usize], seed| {
                Tensor::from_f32(&values(shape.iter().product(), seed), shape, &device).unwrap()
            };
            let inputs = [
                tensor(&if trans_a { [k, m] } else { [m, k] }, 1),
                tensor(&if trans_b { [n, k] } else { [k, n] }, 2),
                tensor(&[n], 3),
            ];
            let d = kernel.dims(inputs[0].shape(), inputs[1].shape()).unwrap();
            let slices: Vec<_> = inputs.iter().map(|t| t.storage().gpu()).collect();
            let mut choices: Vec<Choice> =
                Tile::ALL.into_iter().filter(|t| t.fits(gpu.limits())).map(|t| Choice::new(t, splits)).collect();
            choices.extend(trans_b.then(|| Choice { transpose_b: true, ..choices[0] }));
            let mut results = choices.into_iter().map(|choice| {
                let (y, sums) = (tensor(&[m, n], 4), tensor(&[n], 5));
                let outputs = [y.storage().gpu(), sums.storage().gpu()];
                let plan = kernel.plan(&d, DType::F32, choice, gpu.limits());
                gpu.run("matmul", Cost::default(), plan, &slices, &outputs[..1 + kernel.sums as usize]).unwrap();
                (choice, [y.to_bytes().unwrap(), sums.to_bytes().unwrap()])
            });
            let (first, bits) = results.next().unwrap();
            for (choice, other) in results {
                assert!(other == bits, "{kernel:?} {m}x{n}x{k}: {choice:?} differs from {first:?}");
            }
        }
    }

    #[test]
    fn an_empty_product_has_a_choice_and_its_bias_a_gradient() {
        for device in Device::for_tests() {
            let tensor =
                |shape: &[usize]| Tensor::from_f32(&values(shape.iter().product(), 1), shape, &device).unwrap();
            for (rows, k) in [(0, 3), (5, 0), (0, 0)] {
                let [x, weight, bias] = [tensor(&[rows, k]), tensor(&[k, 4]), tensor(&[4])];
                let [weight, bias] = [weight, bias].map(|t| t.requires_grad().unwrap());
                let y = x.linear(&weight, Some(&bias)).unwrap();
                y.sum(0).unwrap().sum(0).unwrap().backward().unwrap();
                let got = bias.grad().unwrap().to_f32().unwrap();
                assert_eq!(got, vec![rows as f32; 4], "{device}: ({rows}, {k})");
            }
        }
    }

    /// Whichever of the others is frozen: what is computed together must also come alone.
    #[test]
    fn each_parameter_gets_the_same_gradient_alone() {
        for device in Device::for_tests() {
            type Layer = fn(&Tensor, &[Tensor]) -> Result<Tensor>;
            let linear: Layer = |x, p| x.linear(&p[0], Some(&p[1]));
            let feed_forward: Layer = |x, p| x.feed_forward(&p[0], &p[1], Some((&p[2], &p[3])));
            let layer_norm: Layer = |x, p| x.layer_norm(&p[0], Some(&p[1]), 1e-5);
            let layers: [(Layer, &[&[usize]]); 3] = [
                (linear, &[&[8, 6], &[6]]),
                (feed_forward, &[&[8, 10], &[10, 6], &[10], &[6]]),
                (layer_norm, &[&[8], &[8]]),
            ];
            let x = Tensor::from_f32(&values(35 * 8, 1), [35, 8], &device).unwrap();
            for (i, (layer, shapes)) in layers.into_iter().enumerate() {
                let gradients = |wanted: &dyn Fn(usize) -> bool| -> Vec<Option<Vec<f32>>> {
                    let parameters: Vec<Tensor> = (0..shapes.len())
                        .map(|j| {
                            let len = shapes[j].iter().product();
                            let t = Tensor::from_f32(&values(len, j as u64 + 2), shapes[j], &device).unwrap();
                            if wanted(j) { t.requires_grad().unwrap() } else { t }
                        })
                        .collect();
                    // Twice: gradients are added to those that are there.
                    for _ in 0..2 {
                        let y = layer(&x, &parameters).unwrap();
                        y.mul(&y).unwrap().sum(0).unwrap().sum(0).unwrap().backward().unwrap();
                    }
                    parameters.iter().map(|p| p.grad().map(|g| g.to_f32().unwrap())).collect()
                };
                let all = gradients(&|_| true);
                for j in 0..shapes.len() {
                    let alone = gradients(&|k| k == j);
                    let (got, want) = (alone[j].as_ref().unwrap(), all[j].as_ref().unwrap());
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 + 1e-5 * b.abs();
                    assert!(
                        got.iter().zip(want).all(close),
                        "{device}, layer {i}, parameter {j}: {got:?}, not {want:?}"
                    );
                    assert!(alone.iter().enumerate().all(|(k, g)| (k == j) == g.is_some()), "{device}, layer {i}");
                }
            }
        }
    }

    #[test]
    fn measured_rates_choose_the_tile_and_never_the_split() {
        let built_in = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
        for [m, n, k] in [[16_384, 3072, 768], [768, 3072, 16_384], [50_304, 768, 16_384], [20, 24, 4096]] {
            let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
            let choice = Choice::best(&MatMul::default(), &d, DType::F32, &built_in);
            let same = Tile::ALL.map(|tile| tile.rates.map(|rate| (rate * 1e3) as u32));
            let limits = Limits { matmul_rates: Some(same.into()), ..built_in.clone() };
            assert_eq!(
                Choice::best(&MatMul::default(), &d, DType::F32, &limits).tile.bm,
                choice.tile.bm,
                "{m}x{n}x{k}"
            );
            for fast in 0..Tile::ALL.len() {
                let mut rates = [[1; 4]; Tile::ALL.len()];
                rates[fast] = [1_000_000; 4];
                let limits = Limits { matmul_rates: Some(rates.into()), ..built_in.clone() };
                let Choice { tile, splits, .. } = Choice::best(&MatMul::default(), &d, DType::F32, &limits);
                let want = (Tile::ALL[fast].bm, Tile::ALL[fast].bn, choice.splits);
                assert_eq!((tile.bm, tile.bn, splits), want, "{m}x{n}x{k}");
            }
        }
    }

    #[test]
    fn the_tile_follows_the_size_of_the_output() {
        let limits = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
        let best = |kernel: MatMul, m, n, k, limits: &Limits| {
            Choice::best(&kernel, &Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 }, DType::F32, limits)
        };
        let side = |trans_a, m, n, k, limits: &Limits| {
            let Choice { tile, splits, .. } = best(MatMul { trans_a, ..MatMul::default() }, m, n, k, limits);
            (tile.bm, tile.bn, splits)
        };
        assert_eq!(side(false, 16_384, 3072, 768, &limits), (128, 256, 1));
        assert_eq!(side(false, 16_384, 384, 384, &limits), (64, 128, 1));
        assert_eq!(side(false, 20, 24, 64, &limits), (32, 32, 1));
        assert_eq!(side(false, 16_384, 3072, 768, &Limits::WEBGPU_DEFAULT), (64, 128, 1));
        // A weight gradient: few tiles and a long k, split so that they fill whole rounds of workgroups.
        assert_eq!(side(true, 768, 3072, 16_384, &limits), (256, 128, 11)); // 792 workgroups: six for each multiprocessor
        // Transposing b pays if many rows of a are multiplied with it.
        let transposed = MatMul { trans_b: true, ..MatMul::default() };
        assert!(best(transposed, 16_384, 768, 3072, &limits).transpose_b);
        assert!(!best(transposed, 64, 768, 3072, &limits).transpose_b);
    }

    #[test]
    fn so_does_that_of_matrix_units() {
        let limits = Limits {
            binding_bytes: 1 << 30,
            workgroup_bytes: 48 << 10,
            workgroup_threads: 1024,
            f16: true,
            subgroup_size: 32,
            matrix_units: 16,
            ..Limits::WEBGPU_DEFAULT
        };
        let best = |trans_a, trans_b, m, n, k| {
            let kernel = MatMul { trans_a, trans_b, out: DType::F16, ..MatMul::default() };
            let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
            let Choice { tile, splits, transpose_b } = Choice::best(&kernel, &d, DType::F16, &limits);
            (tile.units, tile.bm, tile.bn, splits, transpose_b)
        };
        assert_eq!(best(false, false, 16_384, 3072, 768), (true, 128, 128, 1, false));
        assert_eq!(best(false, true, 16_384, 3072, 768), (true, 128, 128, 1, true));
        assert_eq!(best(false, false, 2048, 128, 128), (true, 64, 64, 1, false));
        assert_eq!(best(true, false, 768, 3072, 16_384), (true, 128, 128, 7, false)); // 1008 workgroups: almost eight for each
        assert_eq!(best(true, false, 1536, 384, 16_384), (true, 128, 128, 7, false)); // 252: two, which run at once
        // Rows that are no whole vectors.
        assert!(!best(false, false, 16_384, 65, 384).0);
    }
}
