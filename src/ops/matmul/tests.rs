//! Every tile, layout and cut of k against the CPU, and which of them are chosen.

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
    let [read, written] = [&inputs, &got].map(|tensors| tensors.iter().map(|t| t.storage().gpu()).collect::<Vec<_>>());
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
        let tensor =
            |shape: &[usize], seed| Tensor::from_f32(&values(shape.iter().product(), seed), shape, &device).unwrap();
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
        let tensor = |shape: &[usize]| Tensor::from_f32(&values(shape.iter().product(), 1), shape, &device).unwrap();
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
                assert!(got.iter().zip(want).all(close), "{device}, layer {i}, parameter {j}: {got:?}, not {want:?}");
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
        assert_eq!(Choice::best(&MatMul::default(), &d, DType::F32, &limits).tile.bm, choice.tile.bm, "{m}x{n}x{k}");
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
