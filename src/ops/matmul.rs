//! Matrix products, with every combination of transposed operands.
//!
//! ```text
//! y = op(a) op(b) [+ bias]            op(x) = x or its transpose
//!   (M, K) (K, N)       -> (M, N)
//!   (..., K) (K, N)     -> (..., N)   b shared by all leading dimensions (a linear layer)
//!   (B, M, K) (B, K, N) -> (B, M, N)
//! dL/da = dy op(b)^T,  dL/db = op(a)^T dy,  dL/dbias = sum of the rows of dy
//! ```
//! On the CPU the crate `gemm` computes them, on the GPU `shaders/matmul.wgsl`: tiles by shape and by the device's
//! limits, and k split between workgroups where there are few tiles.

mod measure;

pub use measure::{MatmulRates, Rates};

use super::reduce::SumRows;
use super::*;
use crate::gpu::{Launch, Limits, Operand, Plan};
use crate::shader;
use crate::tensor::{Edge, Grads, run};
use gemm::Parallelism;
use rayon::prelude::*;

/// `y = op(a) op(b) [+ bias]`, or `y += op(a) op(b)` with `accumulate`. Inputs: a, b and, with `bias`, a vector (N).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct MatMul {
    pub trans_a: bool,
    pub trans_b: bool,
    pub bias: bool,
    pub accumulate: bool,
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
        expect_f32("matmul", inputs)?;
        let (a, b) = (&inputs[0].shape, &inputs[1].shape);
        let Some(Dims { m, n, .. }) = self.dims(a, b) else {
            let t = |transposed| if transposed { "^T" } else { "" };
            return Err(shape_error(
                "matmul",
                "shapes (..., M, K) and (K, N), or two batches of equal length",
                format!("{a}{} and {b}{}", t(self.trans_a), t(self.trans_b)),
            ));
        };
        if let Some(bias) = inputs.get(2).filter(|bias| bias.shape[..] != [n]) {
            return Err(shape_error("matmul", format!("a bias of shape ({n})"), &bias.shape));
        }
        let shape = match (&a[..], &b[..], self.trans_a) {
            (_, &[batch, _, _], _) | (&[batch, _, _], _, true) => Shape::from([batch, m, n]),
            (_, _, true) => Shape::from([m, n]),
            _ => a.with_last_dim(n),
        };
        Ok(vec![Spec::new(shape, DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let Dims { batch, m, n, k, .. } = self.checked_dims(inputs);
        streaming_cost(2 * batch * m * n * k, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let d = self.checked_dims(&inputs.iter().map(|v| v.spec).collect::<Vec<_>>());
        let (a, b, y) = (inputs[0].f32(), inputs[1].f32(), outputs[0].f32());
        if let Some(bias) = inputs.get(2) {
            y.par_chunks_mut(d.n).for_each(|row| row.copy_from_slice(bias.f32()));
        }
        let product = |batch: usize, y: &mut [f32], parallelism| {
            gemm(self, &d, &a[batch * d.stride_a..], &b[batch * d.stride_b..], y, parallelism);
        };
        if d.batch == 1 {
            product(0, y, Parallelism::Rayon(0));
        } else {
            y.par_chunks_mut(d.m * d.n).enumerate().for_each(|(batch, y)| product(batch, y, Parallelism::None));
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        let d = self.checked_dims(inputs);
        let (tile, splits) = Tile::choose(self, &d, limits);
        self.plan(&d, tile, splits)
    }
}

impl MatMul {
    fn plan(&self, d: &Dims, tile: Tile, splits: usize) -> Plan {
        let Tile { bm, bn, bk, tm, tn, .. } = tile;
        let (tiles_m, tiles_n) = (d.m.div_ceil(bm), d.n.div_ceil(bn));
        let (k_piece, splits) = tile.pieces(d, splits);
        let split = splits > 1;
        // A vector load needs the contiguous dimension, and so every row, to start on 16 bytes.
        let by_four = |contiguous: usize, stride: usize| contiguous.is_multiple_of(4) && stride.is_multiple_of(4);
        let vec_a = by_four(if self.trans_a { d.m } else { d.k }, d.stride_a);
        let vec_b = by_four(if self.trans_b { d.k } else { d.n }, d.stride_b);
        let vec_c = d.n.is_multiple_of(4);
        let bias = self.bias && !split;
        let output = if split { Operand::Scratch(0) } else { Operand::Output(0) };
        let mut bindings = vec![Operand::Input(0), Operand::Input(1)];
        bindings.extend(bias.then_some(Operand::Input(2)));
        bindings.push(output);
        let product = Launch {
            shader: shader!("matmul"),
            values: vec![
                ("kernel", "product".into()),
                ("BM", (bm as u32).into()),
                ("BN", (bn as u32).into()),
                ("BK", (bk as u32).into()),
                ("TM", (tm as u32).into()),
                ("TN", (tn as u32).into()),
                ("trans_a", self.trans_a.into()),
                ("trans_b", self.trans_b.into()),
                ("vec_a", vec_a.into()),
                ("vec_b", vec_b.into()),
                ("vec_c", vec_c.into()),
                ("edge_m", (!d.m.is_multiple_of(bm)).into()),
                ("edge_n", (!d.n.is_multiple_of(bn)).into()),
                ("edge_k", (!d.k.is_multiple_of(bk)).into()),
                ("bias", bias.into()),
                ("accumulate", (self.accumulate && !split).into()),
            ],
            bindings,
            params: [d.m, d.n, d.k, d.stride_a, d.stride_b, d.m * d.n, tiles_m, tiles_n, splits, k_piece, d.batch]
                .map(|v| v as u32)
                .to_vec(),
            workgroups: tiles_m * tiles_n * splits * d.batch,
        };
        if !split {
            return Plan::one(product);
        }
        let mut bindings = vec![Operand::ReadScratch(0)];
        bindings.extend(self.bias.then_some(Operand::Input(2)));
        bindings.push(Operand::Output(0));
        let sum = Launch {
            shader: shader!("matmul"),
            values: vec![("kernel", "sum".into()), ("bias", self.bias.into()), ("accumulate", self.accumulate.into())],
            bindings,
            params: vec![(d.m * d.n) as u32, d.n as u32, splits as u32],
            workgroups: (d.m * d.n).div_ceil(256),
        };
        Plan { scratch: vec![splits * d.m * d.n * 4], launches: vec![product, sum] }
    }
}

/// How the output is cut: into tiles of `bm` x `bn` for a workgroup, `bk` of k at a time, `tm` x `tn` for a thread; and how
/// that runs on a large GPU (measured on an H200 with its 132 multiprocessors, `docs/performance.md`).
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tile {
    bm: usize,
    bn: usize,
    bk: usize,
    tm: usize,
    tn: usize,
    /// TFLOP/s when there is enough to do: neither operand transposed, b, a, both. `measure` finds those of other GPUs.
    rates: [f64; 4],
    /// Workgroups that run at the same time.
    slots: f64,
    /// What a last, incomplete round costs at least, of a full one: the fewer workgroups share a multiprocessor, the
    /// less can the others hurry when one of them is missing.
    tail: f64,
}

impl Tile {
    /// The more a thread computes, the fewer loads it needs for each product; the smaller the tile, the better a small
    /// output spreads. The last three run within WebGPU's default limits.
    const ALL: [Tile; 6] = [
        Tile { bm: 128, bn: 256, bk: 16, tm: 8, tn: 16, rates: [49.0, 45.0, 49.8, 43.0], slots: 132.0, tail: 1.0 },
        Tile { bm: 256, bn: 128, bk: 16, tm: 8, tn: 16, rates: [47.5, 45.0, 49.5, 43.0], slots: 132.0, tail: 1.0 },
        Tile { bm: 128, bn: 128, bk: 16, tm: 8, tn: 16, rates: [45.0, 45.5, 49.0, 43.0], slots: 264.0, tail: 1.0 },
        Tile { bm: 64, bn: 128, bk: 16, tm: 8, tn: 8, rates: [43.0, 39.5, 37.0, 36.0], slots: 528.0, tail: 0.5 },
        Tile { bm: 64, bn: 64, bk: 16, tm: 4, tn: 8, rates: [35.0, 33.5, 37.0, 33.0], slots: 800.0, tail: 0.25 },
        Tile { bm: 32, bn: 32, bk: 16, tm: 4, tn: 4, rates: [14.0, 14.0, 14.0, 14.0], slots: 1600.0, tail: 0.1 },
    ];

    fn fits(&self, limits: &Limits) -> bool {
        let bytes = self.bk * (self.bm / 4 + 1 + self.bn / 4 + 1) * 16;
        let threads = self.bm / self.tm * (self.bn / self.tn);
        bytes <= limits.workgroup_bytes as usize && threads <= limits.workgroup_threads as usize
    }

    fn count(&self, d: &Dims) -> usize {
        d.m.div_ceil(self.bm) * d.n.div_ceil(self.bn) * d.batch
    }

    /// The length of the pieces if k is cut into about `splits`, and how many there are.
    fn pieces(&self, d: &Dims, splits: usize) -> (usize, usize) {
        let piece = d.k.div_ceil(splits).next_multiple_of(self.bk).max(self.bk);
        (piece, d.k.div_ceil(piece).max(1))
    }

    /// Microseconds to expect.
    fn estimate(&self, d: &Dims, layout: usize, splits: usize) -> f64 {
        /// Bytes per microsecond of memory, and what one more launch costs.
        const BANDWIDTH: f64 = 2.5e6;
        const LAUNCH: f64 = 3.0;
        let (piece, splits) = self.pieces(d, splits);
        let rounds = (self.count(d) * splits) as f64 / self.slots;
        let rest = if rounds.fract() > 0.0 { rounds.fract().max(self.tail) } else { 0.0 };
        let round = self.slots * 2.0 * (self.bm * self.bn * piece) as f64 / (self.rates[layout] * 1e6);
        let sum = if splits > 1 { LAUNCH + ((splits + 1) * d.m * d.n * 4) as f64 / BANDWIDTH } else { 0.0 };
        (rounds.trunc() + rest) * round + sum
    }

    /// The fastest tile that the device can run, and into how many pieces to split k: more than one where the output has
    /// few tiles and k is long, as for weight gradients.
    fn choose(kernel: &MatMul, d: &Dims, limits: &Limits) -> (Tile, usize) {
        let layout = 2 * kernel.trans_a as usize + kernel.trans_b as usize;
        let most = if d.batch == 1 { (d.k / SHORTEST_PIECE).clamp(1, MOST_PIECES) } else { 1 };
        let fitting = Tile::ALL.into_iter().filter(|t| t.fits(limits));
        let choices = fitting.flat_map(|tile| {
            // Splits that fill one, two, .. rounds.
            let filling = move |rounds: f64| (rounds * tile.slots / tile.count(d) as f64) as usize;
            let splits = [0.0, 1.0, 2.0, 3.0, 4.0].map(|rounds| filling(rounds).clamp(1, most));
            splits.map(|splits| (tile.estimate(d, layout, splits), tile, splits))
        });
        let best = choices.min_by(|a, b| a.0.total_cmp(&b.0)).expect("the smallest tile runs everywhere");
        let (_, tile, splits) = best;
        // The pieces of k decide in which order products are summed, and so the bits of the result: they follow from the
        // shape and the limits. Every tile sums each piece in the same order, so which one runs may be measured.
        let Some(measured) = &limits.matmul_rates else { return (tile, splits) };
        let rated = Tile::ALL.into_iter().zip(measured.iter()).filter(|(tile, _)| tile.fits(limits));
        let rated = rated.map(|(tile, gflops)| Tile { rates: gflops.map(|g| f64::from(g) / 1e3), ..tile });
        let time = |tile: &Tile| tile.estimate(d, layout, splits);
        (rated.min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(tile), splits)
    }
}

/// Pieces of k should be long enough to outweigh the second pass over their results.
const SHORTEST_PIECE: usize = 256;
const MOST_PIECES: usize = 64;

/// y = op(a) op(b), added to y if the kernel accumulates or a bias is already there.
fn gemm(kernel: &MatMul, d: &Dims, a: &[f32], b: &[f32], y: &mut [f32], parallelism: Parallelism) {
    let &Dims { m, n, k, .. } = d;
    assert!(a.len() >= m * k && b.len() >= k * n && y.len() >= m * n, "gemm operands are too short");
    let (a_cs, a_rs) = if kernel.trans_a { (m, 1) } else { (1, k) };
    let (b_cs, b_rs) = if kernel.trans_b { (k, 1) } else { (1, n) };
    let add = kernel.accumulate || kernel.bias;
    // SAFETY: every operand is as long as its sizes and strides reach (checked above), and y overlaps neither
    // (it is a unique borrow).
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.as_mut_ptr(),
            1,
            n as isize,
            add,
            a.as_ptr(),
            a_cs as isize,
            a_rs as isize,
            b.as_ptr(),
            b_cs as isize,
            b_rs as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

impl Op for MatMul {
    fn saves(&self) -> Saves {
        Saves { inputs: &[0, 1], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, upstream: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &upstream[0] else { return Ok(()) };
        let (a, b) = (saved.input(0), saved.input(1));
        let product = |trans_a, trans_b| move |accumulate| MatMul { trans_a, trans_b, accumulate, bias: false };
        if self.bias && grads.wanted(2) {
            let n = dy.shape().last_dim();
            grads.compute(2, &[dy], |accumulate| SumRows { accumulate, len: n })?;
        }
        // da = dy op(b)^T, itself transposed if a is stored so.
        if self.trans_a {
            grads.compute(0, &[b, dy], product(self.trans_b, true))?;
        } else {
            grads.compute(0, &[dy, b], product(false, !self.trans_b))?;
        }
        if !grads.wanted(1) {
            return Ok(());
        }
        // db = op(a)^T dy, itself transposed if b is stored so. A shared b sums over the whole batch: as one long
        // product where the rows of a follow each other, else matrix by matrix.
        let shared = b.shape().len() == 2 && a.shape().len() > 2;
        let (flat_a, flat_dy);
        let (a, dy) = if shared && !self.trans_a {
            flat_a = a.view([a.shape().rows(), a.shape().last_dim()].into(), Edge::None);
            flat_dy = dy.view([dy.shape().rows(), dy.shape().last_dim()].into(), Edge::None);
            (&flat_a, &flat_dy)
        } else {
            (a, dy)
        };
        let (left, right, kernel) =
            if self.trans_b { (dy, a, product(true, self.trans_a)) } else { (a, dy, product(!self.trans_a, false)) };
        if shared && self.trans_a {
            let per_batch = run(&kernel(false), &[left, right])?.remove(0);
            return grads.give(1, per_batch.sum(0)?);
        }
        grads.compute(1, &[left, right], kernel)
    }
}

impl Tensor {
    /// The matrix product `self other`: (..., M, K) by (K, N), or (B, M, K) by (B, K, N).
    ///
    /// # Errors
    /// If the shapes do not fit or a tensor is not f32.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        self.matmul_transposed(other, false, false)
    }

    /// The product of `self` and `other`, each transposed (in its last two dimensions) if so asked.
    ///
    /// # Errors
    /// If the shapes do not fit or a tensor is not f32.
    pub fn matmul_transposed(&self, other: &Tensor, trans_a: bool, trans_b: bool) -> Result<Tensor> {
        let (a, b) = (self.shape(), other.shape());
        if b.len() > 2 && a.len() != b.len() {
            return Err(shape_error("matmul", "a batch on the left too", format!("{a} and {b}")));
        }
        apply_one(MatMul { trans_a, trans_b, ..MatMul::default() }, &[self, other])
    }

    /// `self weight + bias`: (..., K) by (K, N), plus (N) in every row. The layout of GPT-2's `Conv1D`.
    ///
    /// # Errors
    /// If the shapes do not fit or a tensor is not f32.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if weight.shape().len() != 2 {
            return Err(shape_error("linear", "a weight of shape (K, N)", weight.shape()));
        }
        match bias {
            Some(bias) => apply_one(MatMul { bias: true, ..MatMul::default() }, &[self, weight, bias]),
            None => apply_one(MatMul::default(), &[self, weight]),
        }
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
    fn assert_computes(gpu: &Gpu, (tile, splits): (Tile, usize), kernel: MatMul, [m, n, k]: [usize; 3]) {
        let tensors = |device: &Device| {
            let tensor = |shape: &[usize], seed| {
                let values = values(shape.iter().product(), seed);
                Tensor::from_f32(&values, shape, device).unwrap()
            };
            let a = tensor(&if kernel.trans_a { [k, m] } else { [m, k] }, 1);
            let b = tensor(&if kernel.trans_b { [n, k] } else { [k, n] }, 2);
            let bias = kernel.bias.then(|| tensor(&[n], 3));
            (vec![a, b].into_iter().chain(bias).collect::<Vec<_>>(), tensor(&[m, n], 4))
        };
        let (inputs, want) = tensors(&Device::Cpu);
        run_into(&kernel, &inputs.iter().collect::<Vec<_>>(), &[&want]).unwrap();
        let (inputs, got) = tensors(&Device::Gpu(gpu.clone()));
        let d = kernel.dims(inputs[0].shape(), inputs[1].shape()).unwrap();
        let slices: Vec<_> = inputs.iter().map(|t| t.storage().gpu()).collect();
        gpu.run("matmul", Cost::default(), &kernel.plan(&d, tile, splits), &slices, &[got.storage().gpu()]).unwrap();
        let (got, want) = (got.to_f32().unwrap(), want.to_f32().unwrap());
        // Sums of k products below 1, each rounded to 6e-8 of a partial sum of about sqrt(k).
        let bad = got.iter().zip(&want).filter(|(g, w)| (*g - *w).abs() > 1e-7 * k as f32 || g.is_nan()).count();
        assert!(bad == 0, "{tile:?} {kernel:?} {m}x{n}x{k}: {bad} elements");
    }

    /// The table of cases is too small to choose any but the two smallest, so here the others are made to run.
    #[test]
    fn every_tile_computes_the_product_in_every_layout() {
        let Some(gpu) = gpu_for_tests() else { return };
        let layouts = [(false, false), (false, true), (true, false), (true, true)];
        for tile in Tile::ALL.into_iter().take(4).filter(|t| t.fits(gpu.limits())) {
            // Whole tiles; overhanging ones, in whole vectors; and sizes that fit nothing, with k split.
            let accumulate = MatMul { accumulate: true, ..MatMul::default() };
            assert_computes(&gpu, (tile, 1), accumulate, [tile.bm, tile.bn, 32]);
            for (trans_a, trans_b) in layouts {
                let kernel = MatMul { trans_a, trans_b, bias: true, accumulate: false };
                assert_computes(&gpu, (tile, 1), kernel, [tile.bm + 4, tile.bn + 8, 36]);
            }
            assert_computes(&gpu, (tile, 5), MatMul { trans_a: true, ..accumulate }, [tile.bm + 1, 7, 1031]);
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
            (MatMul { bias: true, trans_a: true, accumulate: true, trans_b: false }, 5, [131, 137, 1031]),
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
            let mut results = Tile::ALL.into_iter().filter(|t| t.fits(gpu.limits())).map(|tile| {
                let y = tensor(&[m, n], 4);
                let plan = kernel.plan(&d, tile, splits);
                gpu.run("matmul", Cost::default(), &plan, &slices, &[y.storage().gpu()]).unwrap();
                (tile, y.to_bytes().unwrap())
            });
            let (first, bits) = results.next().unwrap();
            for (tile, other) in results {
                assert!(other == bits, "{kernel:?} {m}x{n}x{k} in {splits}: {tile:?} differs from {first:?}");
            }
        }
    }

    #[test]
    fn measured_rates_choose_the_tile_and_never_the_split() {
        let built_in = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
        for [m, n, k] in [[16_384, 3072, 768], [768, 3072, 16_384], [50_304, 768, 16_384], [20, 24, 4096]] {
            let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
            let (tile, splits) = Tile::choose(&MatMul::default(), &d, &built_in);
            let same = Tile::ALL.map(|tile| tile.rates.map(|rate| (rate * 1e3) as u32));
            let limits = Limits { matmul_rates: Some(same.into()), ..built_in.clone() };
            assert_eq!(Tile::choose(&MatMul::default(), &d, &limits), (tile, splits), "{m}x{n}x{k}");
            for fast in 0..Tile::ALL.len() {
                let mut rates = [[1; 4]; Tile::ALL.len()];
                rates[fast] = [1_000_000; 4];
                let limits = Limits { matmul_rates: Some(rates.into()), ..built_in.clone() };
                let (tile, chosen) = Tile::choose(&MatMul::default(), &d, &limits);
                assert_eq!((tile.bm, tile.bn, chosen), (Tile::ALL[fast].bm, Tile::ALL[fast].bn, splits), "{m}x{n}x{k}");
            }
        }
    }

    #[test]
    fn the_tile_follows_the_size_of_the_output() {
        let limits = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
        let side = |trans_a, m, n, k, limits: &Limits| {
            let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
            let (tile, splits) = Tile::choose(&MatMul { trans_a, ..MatMul::default() }, &d, limits);
            (tile.bm, tile.bn, splits)
        };
        assert_eq!(side(false, 16_384, 3072, 768, &limits), (128, 256, 1));
        assert_eq!(side(false, 16_384, 384, 384, &limits), (64, 128, 1));
        assert_eq!(side(false, 20, 24, 64, &limits), (32, 32, 1));
        assert_eq!(side(false, 16_384, 3072, 768, &Limits::WEBGPU_DEFAULT), (64, 128, 1));
        // A weight gradient: few tiles and a long k, split so that they fill whole rounds of workgroups.
        assert_eq!(side(true, 768, 3072, 16_384, &limits), (128, 256, 7));
    }
}
