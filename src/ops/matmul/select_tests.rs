//! Which tile computes a matrix product.

use super::choice::{Choice, Multiplier};
use super::*;
use crate::gpu::Limits;

/// Those of an H200 (driver 580, Vulkan).
const H200: Limits = Limits {
    binding_bytes: (2 << 30) - 4,
    buffer_bytes: 4 << 30,
    workgroup_bytes: 48 << 10,
    workgroup_threads: 1024,
    f16: true,
    subgroup_size: 32,
    matrix_units: 16,
    f32_on_units: true,
    ..Limits::WEBGPU_DEFAULT
};

/// Every matrix product of a GPT's training step: its name, kernel and M, N and K. `chunk` rows of logits are computed at a time.
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

/// "halves 128x128x32/2 t": what multiplies, the tile, the splits of k, and whether b is transposed first.
fn chosen(kernel: &MatMul, [m, n, k]: [usize; 3], operands: DType, limits: &Limits) -> String {
    let d = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
    let Choice { tile, splits, transpose_b } = Choice::best(kernel, &d, operands, limits);
    let by = match tile.by {
        Multiplier::Fma => "fma",
        Multiplier::Units => "coop",
        Multiplier::Halves => "split-fp16",
    };
    format!("{by} {}x{}x{}/{splits}{}", tile.bm, tile.bn, tile.bk, if transpose_b { " t" } else { "" })
}

#[test]
fn an_h200_runs_the_gemms_of_a_step_on_the_tiles_that_were_measured() {
    let cases = [
        ("gpt2-124m", [16, 1024, 768, 50_304], 2432, 4096),
        ("shakespeare-char", [64, 256, 384, 65], 16_384, 16_384),
        ("seed", [32, 64, 128, 33_280], 2048, 2048),
    ];
    let fma = Limits { f32_on_units: false, ..H200 };
    let mut lines = Vec::new();
    for (case, sizes, chunk, f16_chunk) in cases {
        let f32_gemms = step_gemms(sizes, chunk, DType::F32);
        let f16_gemms = step_gemms(sizes, f16_chunk, DType::F16);
        for ((name, kernel, mnk), (_, f16_kernel, f16_mnk)) in f32_gemms.into_iter().zip(f16_gemms) {
            let [by_fma, f32] = [&fma, &H200].map(|limits| chosen(&kernel, mnk, DType::F32, limits));
            let f16 = chosen(&f16_kernel, f16_mnk, DType::F16, &H200);
            lines.push(format!("{case} {name}: {by_fma} | {f32} | {f16}"));
        }
    }
    assert_eq!(lines.join("\n"), include_str!("h200_tiles.txt").trim_end());
}
