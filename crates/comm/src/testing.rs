//! Helpers of the communicator tests.

use half::f16;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::{cell::RefCell, time::Duration};

#[cfg(target_os = "linux")]
use super::shared_memory::{NewFile, SharedMemory};
use super::{Communicator, Encoded, Wire};
#[cfg(target_os = "linux")]
use super::{Memory, Sums, ThreadComm, threads};
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

/// The expected all-reduce of the inputs with seed 0.
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

/// Ranks that are threads, and exchange values as processes of one machine do: through memory that they share.
#[cfg(target_os = "linux")]
pub fn over_shared_memory(size: usize, chunk: usize, timeout: Duration) -> Vec<OverSharedMemory> {
    let file = NewFile::new(size, chunk).unwrap();
    let open = |rank| SharedMemory::open(file.path(), rank, size, chunk).unwrap();
    let memories: Vec<SharedMemory> = (0..size).map(open).collect();
    file.remove().unwrap();
    let ranks = threads(size, Some(timeout), &[]).unwrap();
    let pairs = ranks.into_iter().zip(memories);
    pairs.map(|(ranks, memory)| OverSharedMemory { ranks, memory, timeout: Some(timeout) }).collect()
}

/// One rank of [`over_shared_memory`].
#[cfg(target_os = "linux")]
pub struct OverSharedMemory {
    ranks: ThreadComm,
    memory: SharedMemory,
    timeout: Option<Duration>,
}

#[cfg(target_os = "linux")]
impl OverSharedMemory {
    /// Makes a call of the memory, whose meetings are barriers: a failure of one ends the call.
    fn call<T>(&mut self, call: impl FnOnce(&mut SharedMemory, &dyn Fn()) -> Result<T>) -> Result<T> {
        let (ranks, failure) = (RefCell::new(&mut self.ranks), RefCell::new(None));
        let result = call(&mut self.memory, &|| {
            let error = ranks.borrow_mut().barrier().err();
            failure.replace_with(|first| first.take().or(error));
        });
        failure.into_inner().map_or(result, Err)
    }
}

#[cfg(target_os = "linux")]
impl Communicator for OverSharedMemory {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn all_reduce(&mut self, values: Encoded) -> Result<Sums> {
        let (wire, values, timeout) = (values.wire(), values.memory(), self.timeout);
        self.memory.wait_for_place(timeout)?;
        self.ranks.barrier()?;
        let sums = self.call(|memory, meet| memory.all_reduce(&values, wire, timeout, meet))?;
        Ok(Sums::new(wire, vec![sums]))
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        self.ranks.broadcast(bytes)
    }

    fn all_gather(&mut self, bytes: Memory) -> Result<Vec<Memory>> {
        self.memory.wait_for_place(self.timeout)?;
        let length = Arc::new((bytes.len() as u64).to_le_bytes().to_vec());
        let lengths = self.ranks.all_gather(length)?;
        let lengths: Vec<usize> =
            lengths.iter().map(|length| bytemuck::pod_read_unaligned::<u64>(length) as usize).collect();
        let timeout = self.timeout;
        self.call(|memory, meet| memory.all_gather(&bytes, &lengths, timeout, meet))
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.ranks.gather(bytes)
    }

    fn barrier(&mut self) -> Result<()> {
        self.ranks.barrier()
    }

    fn abort(&mut self, reason: &str) {
        self.ranks.abort(reason);
    }
}

/// What `run` gives for each rank, each in a thread.
pub fn on_all<C: Communicator, T: Send>(ranks: Vec<C>, run: impl Fn(&mut C) -> T + Sync) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let handles: Vec<_> = ranks.into_iter().map(|mut comm| scope.spawn(move || run(&mut comm))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}
