//! Every tile, layout and cut of k against the CPU, and which of them are chosen.

use super::*;
use crate::Device;
use crate::gpu::{Gpu, gpu_for_tests};
use crate::tensor::run_into;

fn values(len: usize, seed: u64) -> Vec<f32> {
    (0..len as u32).map(|i| random::Key::new(seed).bits(i) as f32 / (1u64 << 31) as f32 - 1.0).collect()
}

/// Runs a product of f32 as `choice` has it.
fn run_as(gpu: &Gpu, choice: Choice, kernel: MatMul, inputs: &[Tensor], outputs: &[Tensor]) {
    let d = kernel.dims(inputs[0].shape(), inputs[1].shape()).unwrap();
    let plan = kernel.plan(&d, DType::F32, choice, gpu.limits());
    let [read, written] =
        [inputs, outputs].map(|tensors| tensors.iter().map(|t| t.storage().gpu()).collect::<Vec<_>>());
    gpu.run("matmul", Cost::default(), plan, &read, &written).unwrap();
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
    run_as(gpu, choice, kernel, &inputs, &got);
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
        let mut choices: Vec<Choice> =
            Tile::ALL.into_iter().filter(|t| t.fits(gpu.limits())).map(|t| Choice::new(t, splits)).collect();
        choices.extend(trans_b.then(|| Choice { transpose_b: true, ..choices[0] }));
        let mut results = choices.into_iter().map(|choice| {
            let outputs = [tensor(&[m, n], 4), tensor(&[n], 5)];
            run_as(&gpu, choice, kernel, &inputs, &outputs[..1 + kernel.sums as usize]);
            (choice, outputs.map(|t| t.to_bytes().unwrap()))
        });
        let (first, bits) = results.next().unwrap();
        for (choice, other) in results {
            assert!(other == bits, "{kernel:?} {m}x{n}x{k}: {choice:?} differs from {first:?}");
        }
    }
}

/// A GPU whose matrix units multiply f32 too.
fn gpu_with_units() -> Option<Gpu> {
    let gpu = gpu_for_tests()?.with_f32_on_units(true);
    if !gpu.limits().f32_on_units {
        eprintln!("SKIPPED: {} shows no matrix units", gpu.info().name);
        return None;
    }
    Some(gpu)
}

#[test]
fn halves_compute_the_product_in_every_layout() {
    let Some(gpu) = gpu_with_units() else { return };
    for tile in Tile::HALVES.into_iter().filter(|t| t.fits(gpu.limits())) {
        let choice = |splits, kernel: MatMul| Choice { transpose_b: kernel.trans_b, ..Choice::new(tile, splits) };
        let accumulate = MatMul { accumulate: true, ..MatMul::default() };
        assert_computes(&gpu, choice(1, accumulate), accumulate, [tile.bm, tile.bn, 64]);
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let kernel = MatMul { trans_a, trans_b, bias: true, ..MatMul::default() };
            assert_computes(&gpu, choice(1, kernel), kernel, [tile.bm + 4, tile.bn + 8, 36]);
        }
        let gradient = MatMul { trans_a: true, sums: true, ..accumulate };
        assert_computes(&gpu, choice(5, gradient), gradient, [tile.bm + 4, 8, 1032]);
        assert_computes(&gpu, choice(1, gradient), gradient, [tile.bm, tile.bn, 36]);
    }
}

/// Numbers that outgrow their scale at one step after another: every step must be multiplied and its columns added up once.
#[test]
fn halves_count_every_step_once() {
    let Some(gpu) = gpu_with_units() else { return };
    let device = Device::Gpu(gpu.clone());
    for tile in Tile::HALVES.into_iter().filter(|t| t.fits(gpu.limits())) {
        let [m, n, k] = [tile.bm, tile.bn, 5 * tile.bk];
        let tensor = |shape: [usize; 2], value: &dyn Fn(usize) -> f32| {
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| value(i / shape[1])).collect();
            Tensor::from_f32(&values, shape, &device).unwrap()
        };
        let growing = |row: usize| 10.0 * [1.0, 8.0, 8.0, 64.0, 64.0][row / tile.bk];
        let inputs = [tensor([k, m], &|_| 1.0), tensor([k, n], &growing)];
        let outputs = [tensor([m, n], &|_| 3.0), Tensor::full(5.0, [n], &device).unwrap()];
        let kernel = MatMul { trans_a: true, sums: true, accumulate: true, ..MatMul::default() };
        run_as(&gpu, Choice::new(tile, 1), kernel, &inputs, &outputs);
        let total = 1450.0 * tile.bk as f32;
        let [y, sums] = outputs.map(|t| t.to_f32().unwrap());
        assert_eq!(y, vec![total + 3.0; m * n], "{tile:?}");
        assert_eq!(sums, vec![total + 5.0; n], "{tile:?}");
    }
}

/// The product of a (M, K) and b (K, N) by `tile`.
fn product(gpu: &Gpu, tile: Tile, a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) -> Vec<f32> {
    let device = Device::Gpu(gpu.clone());
    let tensor = |values: &[f32], shape: [usize; 2]| Tensor::from_f32(values, shape, &device).unwrap();
    let y = [tensor(&vec![0.0; m * n], [m, n])];
    run_as(gpu, Choice::new(tile, 1), MatMul::default(), &[tensor(a, [m, k]), tensor(b, [k, n])], &y);
    y[0].to_f32().unwrap()
}

/// The root of the mean square of |y - a b|, where a b is computed in f64, as a part of that of a b.
fn error(y: &[f32], a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) -> f64 {
    let (mut errors, mut squares) = (0.0, 0.0);
    for i in 0..m {
        for j in 0..n {
            let want: f64 = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum();
            errors += (f64::from(y[i * n + j]) - want).powi(2);
            squares += want.powi(2);
        }
    }
    (errors / squares).sqrt()
}

#[test]
fn halves_are_as_precise_as_fused_multiply_adds() {
    let Some(gpu) = gpu_with_units() else { return };
    let sizes @ [m, n, k] = [128, 128, 2048];
    let (a, b) = (values(m * k, 1), values(k * n, 2));
    // Larger and larger from one 32 of k to the next, so that the scale must follow; and of every size side by side.
    let growing = |i: usize| 2f32.powi((i % k / 32 % 40) as i32 - 20);
    let mixed = |i: usize| 2f32.powi((random::Key::new(3).bits(i as u32) % 24) as i32 - 12);
    let scales: [(&str, &dyn Fn(usize) -> f32); 5] =
        [("one", &|_| 1.0), ("tiny", &|_| 1e-30), ("huge", &|_| 1e30), ("growing", &growing), ("mixed", &mixed)];
    for (name, scale) in scales {
        let a: Vec<f32> = a.iter().enumerate().map(|(i, x)| x * scale(i)).collect();
        let fma = error(&product(&gpu, Tile::ALL[4], &a, &b, sizes), &a, &b, sizes);
        for tile in Tile::HALVES.into_iter().filter(|t| t.fits(gpu.limits())) {
            let halves = error(&product(&gpu, tile, &a, &b, sizes), &a, &b, sizes);
            println!("{name}, {}x{}: {halves:.1e} of halves, {fma:.1e} of fused multiply-adds", tile.bm, tile.bn);
            assert!(halves <= 1.2 * fma, "{name}, {tile:?}: {halves:e}, of FMAs {fma:e}");
        }
    }
}

/// One scale serves all rows of a tile: what that costs those which are far smaller than others.
#[test]
fn rows_of_halves_lose_bits_only_where_others_are_ten_thousand_times_larger() {
    let Some(gpu) = gpu_with_units() else { return };
    let sizes @ [m, n, k] = [64, 64, 64];
    let a: Vec<f32> = values(m * k, 1).iter().enumerate().map(|(i, x)| x * 2f32.powi(-((i / k) as i32))).collect();
    let b = values(k * n, 2);
    for tile in Tile::HALVES.into_iter().filter(|t| t.fits(gpu.limits())) {
        let y = product(&gpu, tile, &a, &b, sizes);
        for (row, y) in y.chunks(n).enumerate() {
            let error = error(y, &a[row * k..][..k], &b, [1, n, k]);
            // 2^-39 of the largest in all, and no less than 22 bits of each number.
            let bound = 2f64.powi(row as i32 - 38).max(5e-7);
            assert!(error < bound, "{tile:?}, row {row}: {error:e}");
        }
    }
}

#[test]
fn halves_keep_what_is_no_number_and_what_is_zero() {
    let Some(gpu) = gpu_with_units() else { return };
    let sizes @ [m, n, k] = [64, 64, 64];
    for tile in Tile::HALVES.into_iter().filter(|t| t.fits(gpu.limits())) {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut a = values(m * k, 1);
            [a[5 * k + 20], a[5 * k + 40]] = [bad; 2];
            let y = product(&gpu, tile, &a, &values(k * n, 2), sizes);
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
        assert!(error(&product(&gpu, tile, &a, &b, sizes), &a, &b, sizes) < 1e-6, "{tile:?}");
        assert!(product(&gpu, tile, &vec![0.0; m * k], &b, sizes).iter().all(|&v| v == 0.0), "{tile:?}");
    }
}

#[test]
fn an_empty_product_has_a_choice_and_its_bias_a_gradient() {
    let with_units = gpu_for_tests().map(|gpu| Device::Gpu(gpu.with_f32_on_units(true)));
    for device in Device::for_tests().into_iter().chain(with_units) {
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
fn what_is_remembered_of_one_device_is_not_taken_for_another() {
    let floor = Limits::WEBGPU_DEFAULT;
    let large = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..floor.clone() };
    let d = Dims { batch: 1, m: 16_384, n: 768, k: 768, stride_a: 0, stride_b: 0 };
    let kernel = MatMul::default();
    let best = [&floor, &large].map(|limits| Choice::best(&kernel, &d, DType::F32, limits));
    assert_ne!(best[0], best[1]);
    for limits in [&floor, &large, &large, &floor] {
        let want = Choice::best(&kernel, &d, DType::F32, limits);
        assert_eq!(Choice::remembered(&kernel, &d, DType::F32, limits), want);
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

/// A large GPU with matrix units.
const WITH_UNITS: Limits = Limits {
    binding_bytes: 1 << 30,
    workgroup_bytes: 48 << 10,
    workgroup_threads: 1024,
    f16: true,
    subgroup_size: 32,
    matrix_units: 16,
    ..Limits::WEBGPU_DEFAULT
};

#[test]
fn so_does_that_of_matrix_units() {
    let limits = WITH_UNITS;
    let best = |trans_a, trans_b, m, n, k| {
        let kernel = MatMul { trans_a, trans_b, out: DType::F16, ..MatMul::default() };
        let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
        let Choice { tile, splits, transpose_b } = Choice::best(&kernel, &d, DType::F16, &limits);
        (tile.by == Multiplier::Units, tile.bm, tile.bn, splits, transpose_b)
    };
    assert_eq!(best(false, false, 16_384, 3072, 768), (true, 128, 128, 1, false));
    assert_eq!(best(false, true, 16_384, 3072, 768), (true, 128, 128, 1, true));
    assert_eq!(best(false, false, 2048, 128, 128), (true, 64, 64, 1, false));
    assert_eq!(best(true, false, 768, 3072, 16_384), (true, 128, 128, 9, false)); // 1296 workgroups: almost ten for each
    assert_eq!(best(true, false, 1536, 384, 16_384), (true, 128, 128, 7, false)); // 252: two, which run at once
    // Rows that are no whole vectors.
    assert!(!best(false, false, 16_384, 65, 384).0);
}

#[test]
fn large_products_of_f32_run_on_units_that_are_fast() {
    let slow = WITH_UNITS;
    let fast = Limits { f32_on_units: true, ..slow.clone() };
    let best = |limits: &Limits, trans_b, [m, n, k]: [usize; 3]| {
        let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
        let Choice { tile, transpose_b, .. } =
            Choice::best(&MatMul { trans_b, ..MatMul::default() }, &d, DType::F32, limits);
        (tile.by, transpose_b)
    };
    for sizes in [[16_384, 3072, 768], [16_384, 384, 384], [1024, 1536, 384]] {
        assert_eq!(best(&fast, false, sizes), (Multiplier::Halves, false));
        assert_eq!(best(&fast, true, sizes), (Multiplier::Halves, true)); // made of b (K, N) alone
        assert_eq!(best(&slow, false, sizes).0, Multiplier::Fma);
    }
    for sizes in [[64, 64, 64], [512, 128, 128], [16_384, 65, 384], [16_384, 384, 382]] {
        assert_eq!(best(&fast, false, sizes).0, Multiplier::Fma, "{sizes:?}");
    }
    // Rates that were measured decide between tiles of FMAs alone.
    let measured = Limits { matmul_rates: Some([[1; 4]; Tile::ALL.len()].into()), ..fast.clone() };
    assert_eq!(best(&measured, false, [16_384, 3072, 768]).0, Multiplier::Halves);
}
