//! Every tile, layout and split-K against the CPU.

use super::autotune::relative_rms_error as error;
use super::tiles::{MmaKind, Tile};
use super::timing::uniform as values;
use super::*;
use crate::Device;
use crate::gpu::{Gpu, gpu_for_tests};
use crate::tensor::run_into;
use crate::testing::assert_close;

/// Runs a GEMM with this configuration.
fn run_as(gpu: &Gpu, config: TileConfig, kernel: MatMul, inputs: &[Tensor], outputs: &[Tensor]) {
    let d = kernel.dims(inputs[0].shape(), inputs[1].shape()).unwrap();
    let plan = kernel.plan(&d, inputs[0].dtype(), config, gpu.limits());
    let [read, written] =
        [inputs, outputs].map(|tensors| tensors.iter().map(|t| t.storage().gpu()).collect::<Vec<_>>());
    gpu.run("matmul", Cost::default(), plan, &read, &written).unwrap();
}

/// A GEMM with this configuration must agree with the CPU.
fn assert_computes(gpu: &Gpu, config: TileConfig, kernel: MatMul, [m, n, k]: [usize; 3]) {
    let operands = if config.tile.mma == MmaKind::Coop { DType::F16 } else { DType::F32 };
    let tensors = |device: &Device| {
        let tensor = |shape: &[usize], seed| {
            let values = values(shape.iter().product(), seed);
            Tensor::from_f32(&values, shape, device).unwrap()
        };
        let operand = |shape: [usize; 2], seed| tensor(&shape, seed).to_dtype(operands).unwrap();
        let a = operand(if kernel.trans_a { [k, m] } else { [m, k] }, 1);
        let b = operand(if kernel.trans_b { [n, k] } else { [k, n] }, 2);
        let bias = kernel.bias.then(|| tensor(&[n], 3));
        let result = |seed| tensor(&[m, n], seed).to_dtype(kernel.out).unwrap();
        let activated = (kernel.epilogue == Epilogue::Gelu).then(|| result(6));
        let sums = kernel.sums.then(|| tensor(&[n], 5));
        let outputs = [result(4)].into_iter().chain(activated).chain(sums).collect::<Vec<_>>();
        (vec![a, b].into_iter().chain(bias).collect::<Vec<_>>(), outputs)
    };
    let (inputs, want) = tensors(&Device::Cpu);
    run_into(&kernel, &inputs.iter().collect::<Vec<_>>(), &want.iter().collect::<Vec<_>>()).unwrap();
    let (inputs, got) = tensors(&Device::Gpu(gpu.clone()));
    run_as(gpu, config, kernel, &inputs, &got);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let (got, want) = (got.to_f32().unwrap(), want.to_f32().unwrap());
        // Sums of k products below 1, each rounded to 6e-8 of a partial sum of about sqrt(k); f16 may be rounded to a
        // neighbour.
        let what = format!("{config:?} {kernel:?} {m}x{n}x{k}: output {i}");
        let rtol = if kernel.out == DType::F16 { 1e-3 } else { 0.0 };
        assert_close(what, &got, &want, 1e-7 * k as f64, rtol);
    }
}

/// The cases of the ops are too small to select any tile but the two smallest: here the others run.
#[test]
fn every_tile_agrees_with_the_cpu_in_every_layout() {
    let Some(gpu) = gpu_for_tests() else { return };
    let layouts = [(false, false), (false, true), (true, false), (true, true)];
    for tile in Tile::FMA.into_iter().take(4).filter(|t| t.fits(gpu.limits())) {
        // Whole tiles; partial tiles of whole vectors; and sizes that fit neither, with split-K.
        let accumulate = MatMul { accumulate: true, ..MatMul::default() };
        assert_computes(&gpu, TileConfig::new(tile, 1), accumulate, [tile.bm, tile.bn, 32]);
        for (trans_a, trans_b) in layouts {
            let kernel = MatMul { trans_a, trans_b, bias: true, ..MatMul::default() };
            assert_computes(&gpu, TileConfig::new(tile, 1), kernel, [tile.bm + 4, tile.bn + 8, 36]);
        }
        let gradient = MatMul { trans_a: true, sums: true, ..accumulate };
        assert_computes(&gpu, TileConfig::new(tile, 5), gradient, [tile.bm + 1, 7, 1031]);
        assert_computes(&gpu, TileConfig::new(tile, 1), gradient, [tile.bm + 4, tile.bn + 8, 36]);
    }
    // b transposed first, with split-K and without.
    for (splits, sizes) in [(1, [33, 34, 67]), (3, [64, 65, 1031])] {
        let config = TileConfig { transpose_b: true, ..TileConfig::new(Tile::FMA[5], splits) };
        assert_computes(&gpu, config, MatMul { trans_b: true, bias: true, ..MatMul::default() }, sizes);
    }
}

/// So measured throughput, which differs from run to run, may choose the tile.
#[test]
fn every_fma_tile_gives_the_same_bits() {
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
        let tensor =
            |shape: &[usize], seed| Tensor::from_f32(&values(shape.iter().product(), seed), shape, &device).unwrap();
        let inputs = [
            tensor(&if trans_a { [k, m] } else { [m, k] }, 1),
            tensor(&if trans_b { [n, k] } else { [k, n] }, 2),
            tensor(&[n], 3),
        ];
        let mut configs: Vec<TileConfig> =
            Tile::FMA.into_iter().filter(|t| t.fits(gpu.limits())).map(|t| TileConfig::new(t, splits)).collect();
        configs.extend(trans_b.then(|| TileConfig { transpose_b: true, ..configs[0] }));
        let mut results = configs.into_iter().map(|config| {
            let outputs = [tensor(&[m, n], 4), tensor(&[n], 5)];
            run_as(&gpu, config, kernel, &inputs, &outputs[..1 + kernel.sums as usize]);
            (config, outputs.map(|t| t.to_bytes().unwrap()))
        });
        let (first, bits) = results.next().unwrap();
        for (config, other) in results {
            assert!(other == bits, "{kernel:?} {m}x{n}x{k}: {config:?} differs from {first:?}");
        }
    }
}

/// A GPU with cooperative matrices, and so with split-fp16.
fn gpu_with_coop() -> Option<Gpu> {
    let gpu = gpu_for_tests()?.with_split_fp16(true);
    if !gpu.limits().split_fp16 {
        assert!(std::env::var_os("RUSTYFLOW_REQUIRE_COOP").is_none(), "RUSTYFLOW_REQUIRE_COOP is set");
        eprintln!("SKIPPED: {} has no cooperative matrices", gpu.info().name);
        return None;
    }
    Some(gpu)
}

/// The tiles of split-fp16 that are quick.
fn quick_tiles(gpu: &Gpu) -> Vec<Tile> {
    Tile::SPLIT_FP16.into_iter().filter(|tile| tile.fits(gpu.limits()) && is_quick(tile, gpu)).collect()
}

/// Whether a shader is compiled for a tile within seconds: for all, but on a CPU, where the largest takes a minute for
/// each. They are one template.
fn is_quick(tile: &Tile, gpu: &Gpu) -> bool {
    !gpu.info().is_software() || tile.bm * tile.bn <= 64 * 64
}

/// Whole and partial tiles, with split-K and without; of the tiles that are not quick only the GEMM of a weight
/// gradient.
fn assert_tiles_agree_in_every_layout(tiles: &[Tile]) {
    let Some(gpu) = gpu_with_coop() else { return };
    for &tile in tiles.iter().filter(|tile| tile.fits(gpu.limits())) {
        let config = |splits, kernel: MatMul| {
            let transpose_b = kernel.trans_b && tile.mma == MmaKind::SplitFp16;
            TileConfig { transpose_b, ..TileConfig::new(tile, splits) }
        };
        let accumulate = MatMul { accumulate: true, ..MatMul::default() };
        let gradient = MatMul { trans_a: true, sums: true, ..accumulate };
        assert_computes(&gpu, config(5, gradient), gradient, [tile.bm + 4, tile.bn + 8, 1032]);
        if !is_quick(&tile, &gpu) {
            continue;
        }
        // Whole turns of the unrolled loop, of slices too: 384, 384 and 256.
        assert_computes(&gpu, config(1, accumulate), accumulate, [tile.bm, tile.bn, 128]);
        assert_computes(&gpu, config(3, gradient), gradient, [tile.bm, tile.bn, 1024]);
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let kernel = MatMul { trans_a, trans_b, bias: true, ..MatMul::default() };
            assert_computes(&gpu, config(1, kernel), kernel, [tile.bm + 4, tile.bn + 8, 36]);
        }
        assert_computes(&gpu, config(1, gradient), gradient, [tile.bm, tile.bn, 36]);
    }
}

#[test]
fn split_fp16_agrees_with_the_cpu_in_every_layout() {
    assert_tiles_agree_in_every_layout(&Tile::SPLIT_FP16);
}

#[test]
fn f16_on_tensor_cores_agrees_with_the_cpu_in_every_layout() {
    assert_tiles_agree_in_every_layout(&Tile::COOP);
}

/// Results of f16 leave as vectors of eight where a subgroup has matrices in pairs (`Launches::stores_eight`).
#[test]
fn f16_results_agree_with_the_cpu_however_they_leave() {
    let Some(gpu) = gpu_with_coop() else { return };
    let side = gpu.limits().coop_matrix as usize;
    let plain = MatMul { out: DType::F16, ..MatMul::default() };
    let gelu = MatMul { bias: true, epilogue: Epilogue::Gelu, ..plain };
    // Whole tiles; partial ones; rows that are no eights; and three matrices.
    for (matrices, kernel, [m, n]) in [(4, plain, [0, 0]), (4, gelu, [4, 8]), (2, gelu, [4, 4]), (3, gelu, [4, 8])] {
        let (bn, tn) = (2 * matrices * side, matrices * side);
        let tile = Tile { bm: 64, bn, bk: 32, tm: 32, tn, mma: MmaKind::Coop };
        assert!(tile.fits(gpu.limits()), "{tile:?}");
        assert_computes(&gpu, TileConfig::new(tile, 1), kernel, [tile.bm + m, bn + n, 36]);
    }
}

/// Values that exceed their scale at one step after another: every step must be multiplied, and its columns summed,
/// once.
#[test]
fn split_fp16_counts_every_step_once() {
    let Some(gpu) = gpu_with_coop() else { return };
    let device = Device::Gpu(gpu.clone());
    for tile in quick_tiles(&gpu) {
        let [m, n, k] = [tile.bm, tile.bn, 5 * tile.bk];
        let tensor = |shape: [usize; 2], value: &dyn Fn(usize) -> f32| {
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| value(i / shape[1])).collect();
            Tensor::from_f32(&values, shape, &device).unwrap()
        };
        let growing = |row: usize| 10.0 * [1.0, 8.0, 8.0, 64.0, 64.0][row / tile.bk];
        let inputs = [tensor([k, m], &|_| 1.0), tensor([k, n], &growing)];
        let outputs = [tensor([m, n], &|_| 3.0), Tensor::full(5.0, [n], &device).unwrap()];
        let kernel = MatMul { trans_a: true, sums: true, accumulate: true, ..MatMul::default() };
        run_as(&gpu, TileConfig::new(tile, 1), kernel, &inputs, &outputs);
        let total = 1450.0 * tile.bk as f32;
        let [y, sums] = outputs.map(|t| t.to_f32().unwrap());
        assert_eq!(y, vec![total + 3.0; m * n], "{tile:?}");
        assert_eq!(sums, vec![total + 5.0; n], "{tile:?}");
    }
}

/// a (M, K) by b (K, N) on this tile.
fn gemm(gpu: &Gpu, tile: Tile, a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) -> Vec<f32> {
    let device = Device::Gpu(gpu.clone());
    let tensor = |values: &[f32], shape: [usize; 2]| Tensor::from_f32(values, shape, &device).unwrap();
    let y = [tensor(&vec![0.0; m * n], [m, n])];
    run_as(gpu, TileConfig::new(tile, 1), MatMul::default(), &[tensor(a, [m, k]), tensor(b, [k, n])], &y);
    y[0].to_f32().unwrap()
}

#[test]
fn split_fp16_is_as_precise_as_fused_multiply_adds() {
    let Some(gpu) = gpu_with_coop() else { return };
    let sizes @ [m, n, k] = [128, 128, 2048];
    let (a, b) = (values(m * k, 1), values(k * n, 2));
    // Larger and larger from one 32 of k to the next, so that the scale must follow; and of every size side by side.
    let growing = |i: usize| 2f32.powi((i % k / 32 % 40) as i32 - 20);
    let mixed = |i: usize| 2f32.powi((random::Key::new(3).bits(i as u32) % 24) as i32 - 12);
    let scales: [(&str, &dyn Fn(usize) -> f32); 5] =
        [("one", &|_| 1.0), ("tiny", &|_| 1e-30), ("huge", &|_| 1e30), ("growing", &growing), ("mixed", &mixed)];
    for (name, scale) in scales {
        let a: Vec<f32> = a.iter().enumerate().map(|(i, x)| x * scale(i)).collect();
        let fma = error(&gemm(&gpu, Tile::FMA[4], &a, &b, sizes), &a, &b, sizes);
        for tile in quick_tiles(&gpu) {
            let split = error(&gemm(&gpu, tile, &a, &b, sizes), &a, &b, sizes);
            println!("{name}, {}x{}: {split:.1e} of split-fp16, {fma:.1e} of FMAs", tile.bm, tile.bn);
            assert!(split <= 1.2 * fma, "{name}, {tile:?}: {split:e}, of FMAs {fma:e}");
        }
    }
}

/// All rows of a tile share one scale: what that costs rows that are far smaller than others.
#[test]
fn rows_of_split_fp16_lose_bits_only_where_others_are_ten_thousand_times_larger() {
    let Some(gpu) = gpu_with_coop() else { return };
    let sizes @ [m, n, k] = [64, 64, 64];
    let a: Vec<f32> = values(m * k, 1).iter().enumerate().map(|(i, x)| x * 2f32.powi(-((i / k) as i32))).collect();
    let b = values(k * n, 2);
    for tile in quick_tiles(&gpu) {
        let y = gemm(&gpu, tile, &a, &b, sizes);
        for (row, y) in y.chunks(n).enumerate() {
            let error = error(y, &a[row * k..][..k], &b, [1, n, k]);
            // 2^-39 of the largest in all, and no less than 22 bits of each number.
            let bound = 2f64.powi(row as i32 - 38).max(5e-7);
            assert!(error < bound, "{tile:?}, row {row}: {error:e}");
        }
    }
}

#[test]
fn split_fp16_keeps_what_is_not_finite_and_what_is_zero() {
    let Some(gpu) = gpu_with_coop() else { return };
    let sizes @ [m, n, k] = [64, 64, 64];
    for tile in quick_tiles(&gpu) {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut a = values(m * k, 1);
            [a[5 * k + 20], a[5 * k + 40]] = [bad; 2];
            let y = gemm(&gpu, tile, &a, &values(k * n, 2), sizes);
            assert!(y[5 * n..6 * n].iter().all(|v| !v.is_finite()), "{tile:?}, {bad}");
            // The rows after it are what they would be without.
            let b = values(k * n, 2);
            let rest = error(&y[6 * n..], &a[6 * k..], &b, [m - 6, n, k]);
            assert!(rest < 1e-6, "{tile:?}, {bad}: {rest}");
        }
        // Nothing at first, so that there is no largest to scale by.
        let a: Vec<f32> =
            values(m * k, 1).into_iter().enumerate().map(|(i, x)| if i % k < 32 { 0.0 } else { x }).collect();
        let b = values(k * n, 2);
        assert!(error(&gemm(&gpu, tile, &a, &b, sizes), &a, &b, sizes) < 1e-6, "{tile:?}");
        assert!(gemm(&gpu, tile, &vec![0.0; m * k], &b, sizes).iter().all(|&v| v == 0.0), "{tile:?}");
    }
}

#[test]
fn an_empty_gemm_has_a_configuration_and_its_bias_a_gradient() {
    let split_fp16 = gpu_for_tests().map(|gpu| Device::Gpu(gpu.with_split_fp16(true)));
    for device in Device::for_tests().into_iter().chain(split_fp16) {
        let tensor = |shape: &[usize]| Tensor::from_f32(&values(shape.iter().product(), 1), shape, &device).unwrap();
        for (rows, k) in [(0, 3), (5, 0), (0, 0)] {
            let [x, weight, bias] = [tensor(&[rows, k]), tensor(&[k, 4]), tensor(&[4])];
            let [weight, bias] = [weight, bias].map(|t| t.requires_grad().unwrap());
            let y = x.linear(&weight, false, Some(&bias)).unwrap();
            y.sum(0).unwrap().sum(0).unwrap().backward().unwrap();
            let got = bias.grad().unwrap().to_f32().unwrap();
            assert_eq!(got, vec![rows as f32; 4], "{device}: ({rows}, {k})");
        }
    }
}

/// Gradients that are computed together must equal those computed alone, when the other parameters are frozen.
#[test]
fn each_parameter_gets_the_same_gradient_alone() {
    for device in Device::for_tests() {
        type Layer = fn(&Tensor, &[Tensor]) -> Result<Tensor>;
        let linear: Layer = |x, p| x.linear(&p[0], false, Some(&p[1]));
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
                assert_close(format!("{device}, layer {i}, parameter {j}"), got, want, 1e-4, 1e-5);
                assert!(alone.iter().enumerate().all(|(k, g)| (k == j) == g.is_some()), "{device}, layer {i}");
            }
        }
    }
}

/// Those of `matvec`, and the first that are not: of few and many outputs, of whole vectors and not.
#[test]
fn gemms_of_a_few_rows_are_those_of_the_cpu() {
    let Some(gpu) = Device::for_tests().into_iter().find(Device::is_gpu) else { return };
    for rows in 1..=5 {
        for [k, n] in [[1, 1], [3, 5], [4, 4], [129, 65], [33, 1028], [260, 130], [700, 516], [64, 5000]] {
            for outputs_first in [false, true] {
                let weight = if outputs_first { [n, k] } else { [k, n] };
                let on = |device: &Device| {
                    let x = Tensor::from_f32(&values(rows * k, 1), [rows, k], device).unwrap();
                    let w = Tensor::from_f32(&values(k * n, 2), weight, device).unwrap();
                    let bias = Tensor::from_f32(&values(n, 3), [n], device).unwrap();
                    x.linear(&w, outputs_first, Some(&bias)).unwrap().to_f32().unwrap()
                };
                // As above: sums of k products below 1, each rounded to 6e-8 of a partial sum of about sqrt(k).
                let what = format!("{rows}x{n}x{k}, outputs first: {outputs_first}");
                assert_close(what, &on(&gpu), &on(&Device::Cpu), 6e-8 * k as f64 + 1e-6, 1e-6);
            }
        }
    }
}
