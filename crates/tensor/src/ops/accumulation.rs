//! Tests of kernels that can add to their output: the sum must be right, and in an arena nothing beyond the output may
//! change, because gradient norms and optimizers run over whole arenas.

use super::embedding::EmbeddingBackward;
use super::linear_cross_entropy::ScaleBy;
use super::reduce::SumRows;
use super::*;
use crate::Device;
use crate::tensor::{run, run_into};
use crate::testing::{assert_close, assert_within};

/// Values between -1 and 1 without a pattern.
fn values(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32).map(|i| random::mix_bits(i ^ seed) as f32 / (1u32 << 31) as f32 - 1.0).collect()
}

/// `kernel(true)` must add to an arena of 5.0s exactly the values that `kernel(false)` writes, and leave the rest
/// unchanged.
fn assert_accumulates<K: Kernel>(kernel: impl Fn(bool) -> K, inputs: &[&Tensor]) -> Vec<f32> {
    let device = inputs[0].device();
    let plain = run(&kernel(false), inputs).unwrap().remove(0);
    let len = plain.len();
    let values = plain.to_f32().unwrap();
    for (accumulate, before) in [(true, 5.0), (false, 0.0)] {
        let size = 128 + len.next_multiple_of(64);
        let arena = Tensor::from_f32(&vec![5.0; size], [size], &device).unwrap();
        run_into(&kernel(accumulate), inputs, &[&arena.slice_flat(64, plain.shape().clone())]).unwrap();
        let mut want = vec![5.0; size];
        want[64..64 + len].iter_mut().zip(&values).for_each(|(want, value)| *want = before + value);
        let what = format!("{device}: {len} elements after 64 others, {accumulate}");
        assert_close(what, &arena.to_f32().unwrap(), &want, 1e-5, 1e-5);
    }
    values
}

#[test]
fn a_scaled_tensor_ends_where_it_ends() {
    for device in Device::for_tests() {
        for len in [1, 6, 7, 64, 1025] {
            let factor = Tensor::full(-2.5, [], &device).unwrap();
            let x = Tensor::from_f32(&values(len, 3), [len], &device).unwrap();
            assert_accumulates(|accumulate| ScaleBy { accumulate, out: DType::F32 }, &[&factor, &x]);
        }
    }
}

#[test]
fn sum_rows_adds_up_every_row_once() {
    for device in Device::for_tests() {
        for (rows, len) in
            [(1, 1), (1, 5), (17, 1), (5000, 1), (100_003, 1), (3, 65), (2049, 65), (1000, 3), (700, 768)]
        {
            let x = values(rows * len, 3);
            let mut want = vec![0.0f64; len];
            for row in x.chunks(len) {
                want.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            let x = Tensor::from_f32(&x, [rows, len], &device).unwrap();
            let got = assert_accumulates(|accumulate| SumRows { accumulate, len, outputs: 1 }, &[&x]);
            // Rounding of partial sums, which grow like sqrt(rows).
            let atol = 1e-6 * (rows as f64).sqrt() + 1e-6;
            assert_close(format!("{device}: {rows} x {len}"), &got, &want, atol, 0.0);
        }
    }
}

/// The table gradient, accumulated and not, must be the sums over these ids, with the same bits each time.
fn assert_table_gradient(ids: &[u32], vocabulary: usize, c: usize) {
    let positions = ids.len();
    let dy = values(positions * c, 1);
    let mut want = vec![0.0f64; vocabulary * c];
    let mut counts = vec![0; vocabulary];
    for (dy, &id) in dy.chunks(c).zip(ids).filter(|&(_, &id)| (id as usize) < vocabulary) {
        counts[id as usize] += 1;
        want[id as usize * c..][..c].iter_mut().zip(dy).for_each(|(sum, dy)| *sum += f64::from(*dy));
    }
    for device in Device::for_tests() {
        let dy = Tensor::from_f32(&dy, [positions, c], &device).unwrap();
        let ids = Tensor::from_u32(ids, [positions], &device).unwrap();
        let kernel = |accumulate| EmbeddingBackward { vocabulary, c, first: 0, accumulate };
        let got = assert_accumulates(kernel, &[&dy, &ids]);
        // As many roundings as terms, of partial sums that grow like the root of their number: in all like the number.
        let bound = |i: usize, _| 1e-7 * f64::from(counts[i / c]) + 1e-6;
        assert_within(format!("{device}: {positions} of {vocabulary} x {c}"), &got, &want, bound);
        let again = run(&kernel(false), &[&dy, &ids]).unwrap().remove(0).to_f32().unwrap();
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&got) == bits(&again), "{device}: {positions} of {vocabulary} x {c}: not the same bits again");
    }
}

#[test]
fn embedding_gradients_accumulate_and_skip_ids_outside_the_table() {
    // Less and more than a block of the sort, and a number of both that chunks do not divide.
    let sizes = [(1, 1, 1), (3, 2, 12), (50, 7, 3), (300, 5, 20), (33, 40, 130)];
    let large = [(1023, 7, 6), (1024, 300, 4), (1025, 2000, 12), (2500, 65, 130), (5000, 3, 1), (18_000, 400, 4)];
    for (positions, vocabulary, c) in sizes.into_iter().chain(large) {
        // One id in five is outside the table, by one and by a lot.
        let ids: Vec<u32> = (0..positions as u32)
            .map(|i| match i % 10 {
                3 => vocabulary as u32,
                8 => u32::MAX,
                _ => random::mix_bits(i) % vocabulary as u32,
            })
            .collect();
        assert_table_gradient(&ids, vocabulary, c);
    }
}

#[test]
fn embedding_gradients_of_one_id_of_all_ids_and_of_none() {
    for (positions, c) in [(1, 1), (8, 6), (1024, 12), (2500, 6), (3000, 12)] {
        assert_table_gradient(&vec![2; positions], 4, c);
        let backwards: Vec<u32> = (0..positions as u32).rev().collect();
        assert_table_gradient(&backwards, positions, c);
        assert_table_gradient(&vec![positions as u32; positions], positions, c);
        // Runs that end with a chunk, and runs of two chunks.
        let in_runs = |length: u32| (0..positions as u32).map(|i| i / length).collect::<Vec<_>>();
        assert_table_gradient(&in_runs(8), positions, c);
        assert_table_gradient(&in_runs(16), positions, c);
    }
}

/// Enough and long enough rows for long chunks.
#[test]
fn embedding_gradients_of_a_large_batch() {
    let ids: Vec<u32> = (0..2500).map(|i| random::mix_bits(i) % 8).collect();
    assert_table_gradient(&ids, 7, 421);
}
