//! Tests of kernels that can add to their output: the sum must be right, and in an arena nothing beyond the output may
//! change, because gradient norms and optimizers run over whole arenas.

use super::embedding::TableGradient;
use super::layer_norm::{InputGradient, WeightGradient};
use super::reduce::SumRows;
use super::*;
use crate::Device;
use crate::gpu::gpu_for_tests;
use crate::tensor::{run, run_into};

/// The CPU, and the GPU if there is one.
fn devices() -> Vec<Device> {
    [Device::Cpu].into_iter().chain(gpu_for_tests().map(Device::Gpu)).collect()
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

#[test]
fn layer_norm_gradients_accumulate() {
    for device in devices() {
        for (rows, c) in [(1, 1), (17, 3), (65, 129), (3, 20), (1200, 68), (500, 132)] {
            let [dy, x] = [1, 2].map(|seed| Tensor::from_f32(&values(rows * c, seed), [rows, c], &device).unwrap());
            let weight = Tensor::from_f32(&values(c, 3), [c], &device).unwrap();
            let [mean, rstd] = [4, 5].map(|seed| Tensor::from_f32(&values(rows, seed), [rows], &device).unwrap());
            assert_accumulates(|accumulate| WeightGradient { accumulate, has_bias: false }, &[&dy, &x, &mean, &rstd]);
            assert_accumulates(
                |accumulate| InputGradient { accumulate, plus: false, residual: None, dropout: None },
                &[&dy, &x, &weight, &mean, &rstd],
            );
        }
    }
}

#[test]
fn embedding_gradients_accumulate_and_skip_ids_outside_the_table() {
    for device in devices() {
        for (positions, vocabulary, c) in [(1, 1, 1), (50, 7, 3), (300, 5, 20), (33, 40, 130)] {
            let dy = values(positions * c, 1);
            // One id in five is outside the table, by one and by a lot.
            let ids: Vec<u32> = (0..positions as u32)
                .map(|i| match i % 10 {
                    3 => vocabulary as u32,
                    8 => u32::MAX,
                    _ => random::mix_bits(i) % vocabulary as u32,
                })
                .collect();
            let mut want = vec![0.0; vocabulary * c];
            for (dy, id) in dy.chunks(c).zip(&ids) {
                if let Some(sum) = want.get_mut(*id as usize * c..(*id as usize + 1) * c) {
                    sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
                }
            }
            let dy = Tensor::from_f32(&dy, [positions, c], &device).unwrap();
            let ids = Tensor::from_u32(&ids, [positions], &device).unwrap();
            let kernel = |accumulate| TableGradient { vocabulary, c, accumulate };
            let got = assert_accumulates(kernel, &[&dy, &ids]);
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() <= 1e-5, "{device}: {positions} of {vocabulary} x {c}: {got}, not {want}");
            }
        }
    }
}
