//! Tests of kernels that can add to their output: the sum must be right, and in an arena nothing beyond the output may
//! change, because gradient norms and optimizers run over whole arenas.

use super::reduce::SumRows;
use super::*;
use crate::Device;
use crate::gpu::{AdapterChoice, Gpu};
use crate::tensor::{run, run_into};

/// The CPU, and the GPU if there is one.
fn devices() -> Vec<Device> {
    match Gpu::open(&AdapterChoice { index: None, allow_software: true }) {
        Ok(gpu) => vec![Device::Cpu, Device::Gpu(gpu)],
        Err(e) if std::env::var_os("RUSTYFLOW_REQUIRE_GPU").is_some() => panic!("RUSTYFLOW_REQUIRE_GPU is set: {e}"),
        Err(e) => {
            eprintln!("SKIPPED on the GPU: {e}");
            vec![Device::Cpu]
        }
    }
}

/// Values between -1 and 1 without a pattern.
fn values(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32).map(|i| random::mix_bits(i ^ seed) as f32 / (1u32 << 31) as f32 - 1.0).collect()
}

/// What `kernel(true)` adds inside an arena of 5.0s must be what `kernel(false)` computes, and the rest must stay.
fn assert_accumulates<K: Kernel>(kernel: impl Fn(bool) -> K, inputs: &[&Tensor]) -> Vec<f32> {
    let device = inputs[0].device();
    let plain = run(&kernel(false), inputs).unwrap().remove(0);
    let len = plain.len();
    let arena =
        Tensor::from_f32(&vec![5.0; 64 + len.next_multiple_of(64) + 64], [128 + len.next_multiple_of(64)], &device);
    let arena = arena.unwrap();
    run_into(&kernel(true), inputs, &[&arena.slice_flat(64, plain.shape().clone())]).unwrap();
    let (plain, arena) = (plain.to_f32().unwrap(), arena.to_f32().unwrap());
    for (i, &got) in arena.iter().enumerate() {
        let want = if (64..64 + len).contains(&i) { 5.0 + plain[i - 64] } else { 5.0 };
        assert!(
            (got - want).abs() <= 1e-5 * (1.0 + want.abs()),
            "{device}: element {i} - 64 of {len}: {got}, not {want}"
        );
    }
    plain
}

#[test]
fn sum_rows_adds_up_every_row_once() {
    for device in devices() {
        for (rows, len) in
            [(1, 1), (1, 5), (17, 1), (5000, 1), (100_003, 1), (3, 65), (2049, 65), (1000, 3), (700, 768)]
        {
            let x = values(rows * len, 3);
            let mut want = vec![0.0f64; len];
            for row in x.chunks(len) {
                want.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            let x = Tensor::from_f32(&x, [rows, len], &device).unwrap();
            let got = assert_accumulates(|accumulate| SumRows { accumulate, len }, &[&x]);
            for (got, want) in got.iter().zip(want) {
                // Rounding of partial sums, which grow like sqrt(rows).
                let bound = 1e-6 * (rows as f64).sqrt() + 1e-6;
                assert!((f64::from(*got) - want).abs() <= bound, "{device}: {rows} x {len}: {got}, not {want}");
            }
        }
    }
}
