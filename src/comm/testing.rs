//! What the tests of this module share.

use half::f16;
use std::sync::Arc;

use super::{Communicator, Encoded, Wire};
use crate::Result;

/// Values of many magnitudes, so that the order of a sum shows in its bits.
pub fn input(rank: usize, length: usize, seed: u64) -> Vec<f32> {
    (0..length)
        .map(|i| {
            // SplitMix64's mixing of a number made of all three.
            let mut x = (seed << 52) ^ ((rank as u64) << 44) ^ i as u64;
            x = (x.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            x ^= x >> 31;
            let fraction = (x >> 40) as f32 / (1 << 23) as f32 - 1.0;
            fraction * 2.0_f32.powi((x % 16) as i32 - 8)
        })
        .collect()
}

/// What an all-reduce of the inputs has to give, with seed 0.
pub fn sums_in_order(size: usize, length: usize, wire: Wire) -> Vec<f32> {
    let round = |value: f32| match wire {
        Wire::F32 => value,
        Wire::F16 => f16::from_f32(value).to_f32(),
    };
    let inputs: Vec<Vec<f32>> = (0..size).map(|rank| input(rank, length, 0)).collect();
    (0..length)
        .map(|i| {
            let mut sum = round(inputs[0][i]);
            inputs[1..].iter().for_each(|values| sum += round(values[i]));
            round(sum)
        })
        .collect()
}

/// The sums of values over all ranks.
pub fn reduced(comm: &mut impl Communicator, values: Vec<f32>, wire: Wire) -> Result<Vec<f32>> {
    comm.all_reduce(Encoded::new(values, wire)).map(|sums| sums.to_f32())
}

/// The bytes of all ranks.
pub fn gathered(comm: &mut impl Communicator, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let all = comm.all_gather(Arc::new(bytes.to_vec()))?;
    Ok(all.iter().map(|bytes| bytes.to_vec()).collect())
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What `run` gives for each rank, each in a thread.
pub fn on_all<C: Communicator, T: Send>(ranks: Vec<C>, run: impl Fn(&mut C) -> T + Sync) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let handles: Vec<_> = ranks.into_iter().map(|mut comm| scope.spawn(move || run(&mut comm))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}
