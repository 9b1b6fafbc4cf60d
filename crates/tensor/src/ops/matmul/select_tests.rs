//! Tests of the tile selection.

use super::tiles::{GENERIC, MmaKind, PerfModel, Tile};
use super::*;
use crate::gpu::{ChoiceCache, GpuModel, Limits};

/// Those of an H200 (driver 580, Vulkan).
const H200_LIMITS: Limits = Limits {
    binding_bytes: (2 << 30) - 4,
    buffer_bytes: 4 << 30,
    workgroup_bytes: 48 << 10,
    workgroup_threads: 1024,
    f16: true,
    subgroup_size: 32,
    coop_matrix: 16,
    split_fp16: true,
    gpu_model: GpuModel::H200,
    ..Limits::WEBGPU_DEFAULT
};

/// Every GEMM of a GPT's training step: its name, kernel and M, N and K. `chunk` rows of logits are computed at a time.
fn step_gemms([b, t, c, v]: [usize; 4], chunk: usize, out: DType) -> Vec<(&'static str, MatMul, [usize; 3])> {
    let r = b * t;
    let nn = MatMul { out, ..MatMul::default() };
    let nt = MatMul { trans_b: true, ..nn };
    let tn = MatMul { trans_a: true, sums: true, ..MatMul::default() };
    let bias = MatMul { bias: true, ..nn };
    let tail = match r % chunk {
        0 => chunk,
        rest => rest,
    };
    vec![
        ("qkv", bias, [r, 3 * c, c]),
        ("attention projection", bias, [r, c, c]),
        ("fc gelu", MatMul { epilogue: Epilogue::Gelu, ..bias }, [r, 4 * c, c]),
        ("mlp projection", bias, [r, c, 4 * c]),
        ("logits", nt, [chunk, v, c]),
        ("logits, last chunk", nt, [tail, v, c]),
        ("logits dx", nn, [chunk, c, v]),
        ("logits dw", MatMul { sums: false, ..tn }, [v, c, chunk]),
        ("logits dw, added", MatMul { sums: false, accumulate: true, ..tn }, [v, c, chunk]),
        ("mlp projection dx", MatMul { epilogue: Epilogue::Multiply, ..nt }, [r, 4 * c, c]),
        ("mlp projection dw", tn, [4 * c, c, r]),
        ("fc dx", nt, [r, c, 4 * c]),
        ("fc dw", tn, [c, 4 * c, r]),
        ("attention projection dx", nt, [r, c, c]),
        ("attention projection dw", tn, [c, c, r]),
        ("attention projection dw, added", MatMul { accumulate: true, ..tn }, [c, c, r]),
        ("qkv dx", nt, [r, c, 3 * c]),
        ("qkv dw", tn, [c, 3 * c, r]),
        ("qkv dw, added", MatMul { accumulate: true, ..tn }, [c, 3 * c, r]),
    ]
}

/// "split-fp16 128x128x32/2 t": the instruction, the tile, split-K, and whether b is transposed first.
fn selected(kernel: &MatMul, [m, n, k]: [usize; 3], operands: DType, limits: &Limits) -> String {
    let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
    let TileConfig { tile, splits, transpose_b } = TileConfig::select(kernel, &d, operands, limits);
    let mma = match tile.mma {
        MmaKind::Fma => "fma",
        MmaKind::Coop => "coop",
        MmaKind::SplitFp16 => "split-fp16",
    };
    format!("{mma} {}x{}x{}/{splits}{}", tile.bm, tile.bn, tile.bk, if transpose_b { " t" } else { "" })
}

#[test]
fn an_h200_runs_the_gemms_of_a_step_on_the_tiles_that_were_measured() {
    let cases = [
        ("gpt2-124m", [16, 1024, 768, 50_304], 2432, 4096),
        // 65 classes in 72 columns (`ops/linear_cross_entropy.rs`).
        ("shakespeare-char", [64, 256, 384, 72], 16_384, 16_384),
        ("seed", [32, 64, 128, 33_280], 2048, 2048),
    ];
    let fma = Limits { split_fp16: false, ..H200_LIMITS };
    let mut lines = Vec::new();
    for (case, sizes, chunk, f16_chunk) in cases {
        let f32_gemms = step_gemms(sizes, chunk, DType::F32);
        let f16_gemms = step_gemms(sizes, f16_chunk, DType::F16);
        for ((name, kernel, mnk), (_, f16_kernel, f16_mnk)) in f32_gemms.into_iter().zip(f16_gemms) {
            let [by_fma, f32] = [&fma, &H200_LIMITS].map(|limits| selected(&kernel, mnk, DType::F32, limits));
            let f16 = selected(&f16_kernel, f16_mnk, DType::F16, &H200_LIMITS);
            lines.push(format!("{case} {name}: {by_fma} | {f32} | {f16}"));
        }
    }
    assert_eq!(lines.join("\n"), include_str!("h200_tiles.txt").trim_end());
}

#[test]
fn a_cache_serves_one_device_and_gives_what_would_be_selected() {
    let floor = Limits { choices: ChoiceCache::new(), ..Limits::WEBGPU_DEFAULT };
    // A copy starts with an empty cache.
    let large = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..floor.clone() };
    let d = Dims { batch: 1, m: 16_384, n: 768, k: 768, stride_a: 0, stride_b: 0 };
    let kernel = MatMul::default();
    let best = [&floor, &large].map(|limits| TileConfig::select(&kernel, &d, DType::F32, limits));
    assert_ne!(best[0], best[1]);
    for limits in [&floor, &large, &large, &floor] {
        let want = TileConfig::select(&kernel, &d, DType::F32, limits);
        assert_eq!(TileConfig::cached(&kernel, &d, DType::F32, limits), want);
    }
}

#[test]
fn measured_throughput_chooses_the_tile_and_never_the_split() {
    let built_in = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
    for [m, n, k] in [[16_384, 3072, 768], [768, 3072, 16_384], [50_304, 768, 16_384], [20, 24, 4096]] {
        let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
        let config = TileConfig::select(&MatMul::default(), &d, DType::F32, &built_in);
        let same = tiles::H200.fma.map(|perf| perf.throughput.map(|tflops| (tflops * 1e3) as u32));
        let limits = Limits { matmul_throughput: Some(same.into()), ..built_in.clone() };
        assert_eq!(
            TileConfig::select(&MatMul::default(), &d, DType::F32, &limits).tile.bm,
            config.tile.bm,
            "{m}x{n}x{k}"
        );
        for fast in 0..Tile::FMA.len() {
            let mut gflops = [[1; 4]; Tile::FMA.len()];
            gflops[fast] = [1_000_000; 4];
            let limits = Limits { matmul_throughput: Some(gflops.into()), ..built_in.clone() };
            let TileConfig { tile, splits, .. } = TileConfig::select(&MatMul::default(), &d, DType::F32, &limits);
            let want = (Tile::FMA[fast].bm, Tile::FMA[fast].bn, config.splits);
            assert_eq!((tile.bm, tile.bn, splits), want, "{m}x{n}x{k}");
        }
    }
}

#[test]
fn the_tile_follows_the_size_of_the_output() {
    let limits = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
    let best = |kernel: MatMul, m, n, k, limits: &Limits| {
        TileConfig::select(&kernel, &Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 }, DType::F32, limits)
    };
    let side = |trans_a, m, n, k, limits: &Limits| {
        let TileConfig { tile, splits, .. } = best(MatMul { trans_a, ..MatMul::default() }, m, n, k, limits);
        (tile.bm, tile.bn, splits)
    };
    assert_eq!(side(false, 16_384, 3072, 768, &limits), (128, 256, 1));
    assert_eq!(side(false, 16_384, 384, 384, &limits), (64, 128, 1));
    assert_eq!(side(false, 20, 24, 64, &limits), (32, 32, 1));
    assert_eq!(side(false, 16_384, 3072, 768, &Limits::WEBGPU_DEFAULT), (64, 128, 1));
    // A weight gradient: few tiles and a long k, split to fill whole rounds of workgroups.
    assert_eq!(side(true, 768, 3072, 16_384, &limits), (256, 128, 11)); // 792 workgroups: six for each SM
    // Transposing b pays if many rows of a are multiplied with it.
    let transposed = MatMul { trans_b: true, ..MatMul::default() };
    assert!(best(transposed, 16_384, 768, 3072, &limits).transpose_b);
    assert!(!best(transposed, 64, 768, 3072, &limits).transpose_b);
}

/// A large GPU with tensor cores.
const WITH_COOP: Limits = Limits {
    binding_bytes: 1 << 30,
    workgroup_bytes: 48 << 10,
    workgroup_threads: 1024,
    f16: true,
    subgroup_size: 32,
    coop_matrix: 16,
    ..Limits::WEBGPU_DEFAULT
};

#[test]
fn so_does_that_of_cooperative_matrices() {
    let limits = WITH_COOP;
    let best = |trans_a, trans_b, m, n, k| {
        let kernel = MatMul { trans_a, trans_b, out: DType::F16, ..MatMul::default() };
        let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
        let TileConfig { tile, splits, transpose_b } = TileConfig::select(&kernel, &d, DType::F16, &limits);
        (tile.mma == MmaKind::Coop, tile.bm, tile.bn, splits, transpose_b)
    };
    assert_eq!(best(false, false, 16_384, 3072, 768), (true, 128, 128, 1, false));
    assert_eq!(best(false, true, 16_384, 3072, 768), (true, 128, 128, 1, true));
    assert_eq!(best(false, false, 2048, 128, 128), (true, 64, 64, 1, false));
    // 720 workgroups: at most six on each of 132 SMs
    assert_eq!(best(true, false, 768, 3072, 16_384), (true, 128, 128, 5, false));
    assert_eq!(best(true, false, 1536, 384, 16_384), (true, 128, 128, 7, false)); // 252: two, which run at once
    // Rows that are no whole vectors.
    assert!(!best(false, false, 16_384, 65, 384).0);
}

#[test]
fn slices_of_k_are_whole_turns_of_the_unrolled_loop() {
    let slices = |tile: &Tile, k, splits| {
        let d = Dims { batch: 1, m: 384, n: 1536, k, stride_a: 0, stride_b: 0 };
        (tile.unroll(k), tile.k_slices(&d, splits))
    };
    let [coop, ..] = &Tile::COOP;
    // Four steps of 32; two or one where k is no multiple of more.
    assert_eq!(slices(coop, 16_384, 7), (4, (2432, 7)));
    assert_eq!(slices(coop, 16_384 + 64, 7), (2, (2368, 7)));
    assert_eq!(slices(coop, 16_384 + 32, 7), (1, (2368, 7)));
    assert_eq!(slices(coop, 0, 1), (1, (32, 1)));
    // These loops are not unrolled.
    assert_eq!(slices(&Tile::SPLIT_FP16[0], 16_384, 7), (1, (2368, 7)));
}

#[test]
fn large_f32_gemms_run_as_split_fp16_where_that_is_on() {
    let slow = WITH_COOP;
    let fast = Limits { split_fp16: true, ..slow.clone() };
    let best = |limits: &Limits, trans_b, [m, n, k]: [usize; 3]| {
        let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
        let TileConfig { tile, transpose_b, .. } =
            TileConfig::select(&MatMul { trans_b, ..MatMul::default() }, &d, DType::F32, limits);
        (tile.mma, transpose_b)
    };
    for sizes in [[16_384, 3072, 768], [16_384, 384, 384], [1024, 1536, 384]] {
        assert_eq!(best(&fast, false, sizes), (MmaKind::SplitFp16, false));
        assert_eq!(best(&fast, true, sizes), (MmaKind::SplitFp16, true)); // takes b (K, N) only
        assert_eq!(best(&slow, false, sizes).0, MmaKind::Fma);
    }
    for sizes in [[64, 64, 64], [512, 128, 128], [16_384, 65, 384], [16_384, 384, 382]] {
        assert_eq!(best(&fast, false, sizes).0, MmaKind::Fma, "{sizes:?}");
    }
    // Measured throughput decides between FMA tiles only.
    let measured = Limits { matmul_throughput: Some([[1; 4]; Tile::FMA.len()].into()), ..fast.clone() };
    assert_eq!(best(&measured, false, [16_384, 3072, 768]).0, MmaKind::SplitFp16);
}

/// Limits of some device that has everything, under any measured throughput.
fn tuned(limits: &Limits, seed: u64) -> Limits {
    let gflops = |i| random::Key::new(seed).bits(i) % 60_000 + 1;
    let measured = [0, 1, 2, 3, 4, 5].map(|tile| [0, 1, 2, 3].map(|layout| gflops(4 * tile + layout)));
    Limits { matmul_throughput: Some(measured.into()), ..limits.clone() }
}

#[test]
fn no_tuning_changes_the_instruction_or_the_split() {
    let fma = Limits { split_fp16: false, ..H200_LIMITS };
    let unknown = Limits { gpu_model: GpuModel::Unknown, ..H200_LIMITS };
    let mut tiles_differ = false;
    for limits in [&fma, &H200_LIMITS, &unknown, &Limits::WEBGPU_DEFAULT] {
        for (name, kernel, [m, n, k]) in step_gemms([64, 256, 384, 65], 16_384, DType::F32) {
            let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
            let config = TileConfig::select(&kernel, &d, DType::F32, limits);
            for seed in 0..100 {
                let other = TileConfig::select(&kernel, &d, DType::F32, &tuned(limits, seed));
                let bits = |config: &TileConfig| (config.tile.mma, config.tile.k_slices(&d, config.splits));
                assert_eq!(bits(&other), bits(&config), "{name}, seed {seed}: {other:?}");
                tiles_differ |= other.tile != config.tile;
            }
        }
    }
    assert!(tiles_differ, "tuning chose no other tile either");
}

#[test]
fn the_choice_follows_from_the_limits_alone() {
    for (limits, seed) in [(H200_LIMITS, 0), (Limits::WEBGPU_DEFAULT, 1), (tuned(&H200_LIMITS, 2), 2)] {
        for (name, kernel, mnk) in step_gemms([32, 64, 128, 33_280], 2048, DType::F32) {
            let first = selected(&kernel, mnk, DType::F32, &limits);
            // Whatever was asked in between, by whichever thread, of whichever other limits.
            selected(&kernel, mnk, DType::F32, &tuned(&limits, seed + 10));
            let there = limits.clone();
            let again = std::thread::spawn(move || selected(&kernel, mnk, DType::F32, &there)).join().unwrap();
            assert_eq!(first, again, "{name}");
        }
    }
}

#[test]
fn an_unknown_gpu_starts_from_the_generic_guess() {
    let unknown = Limits { gpu_model: GpuModel::Unknown, ..H200_LIMITS };
    for limits in [&unknown, &Limits::WEBGPU_DEFAULT] {
        assert_eq!(PerfModel::of(limits), &GENERIC);
    }
    assert_eq!(PerfModel::of(&H200_LIMITS), &H200);
    assert_ne!(H200, GENERIC);
    // Of a GPU with an eighth of the throughput, the guess takes the bandwidth to be an eighth too; fitted figures
    // stay.
    let eighth = H200.fma.map(|perf| perf.throughput.map(|tflops| (1e3 * tflops / 8.0) as u32));
    let bandwidth = GENERIC.autotuned(&eighth).bandwidth / GENERIC.bandwidth;
    assert!((bandwidth - 0.125).abs() < 1e-3, "{bandwidth}");
    assert_eq!(H200.autotuned(&eighth).bandwidth, H200.bandwidth);
}

#[test]
fn a_full_cache_still_gives_what_would_be_selected() {
    let limits = Limits { choices: ChoiceCache::new(), ..H200_LIMITS };
    let kernel = MatMul::default();
    for m in 1..6000 {
        // Of many shapes, so that neighbours in the table are of other configurations.
        let d = Dims { batch: 1, m, n: 64 << (m % 6), k: 64 << (m % 7), stride_a: 0, stride_b: 0 };
        let config = TileConfig::cached(&kernel, &d, DType::F32, &limits);
        if m % 17 == 0 {
            assert_eq!(config, TileConfig::select(&kernel, &d, DType::F32, &limits), "{m}");
            assert_eq!(config, TileConfig::cached(&kernel, &d, DType::F32, &limits), "{m}");
        }
    }
}
