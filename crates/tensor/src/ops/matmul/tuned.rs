//! Speedups by autotuning: each GEMM timed alternately on its default tile and on its autotuned tile.

use super::MatMul;
use super::select::TileConfig;
use super::tiles::MmaKind;
use super::timing::Gemm;
use crate::gpu::Gpu;
use crate::{DType, Result};
use serde::Serialize;
use std::fmt;
use std::time::{Duration, Instant};

/// A GEMM op(a) op(b), (M, K) (K, N), with a result of the operands' type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmCase {
    pub trans_a: bool,
    pub trans_b: bool,
    /// M, N and K.
    pub size: [usize; 3],
    pub dtype: DType,
}

/// As `bench ops` calls it: "f16 nt 2048x768x768", with t for what is transposed.
impl fmt::Display for GemmCase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [m, n, k] = self.size;
        let letter = |transposed| if transposed { 't' } else { 'n' };
        let dtype = if self.dtype == DType::F32 { String::new() } else { format!("{} ", self.dtype.name()) };
        write!(f, "{dtype}{}{} {m}x{n}x{k}", letter(self.trans_a), letter(self.trans_b))
    }
}

/// A GEMM before and after autotuning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TunedGemm {
    pub case: String,
    /// "fma 64x128x16 by 8x8", with the slices of k if there are several.
    pub default_tile: String,
    pub chosen_tile: String,
    /// The best of several times.
    pub default_us: f64,
    pub chosen_us: f64,
}

impl TunedGemm {
    /// The speedup; 1 if the tile did not change.
    pub fn gain(&self) -> f64 {
        self.default_us / self.chosen_us
    }
}

impl fmt::Display for TileConfig {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mma = match self.tile.mma {
            MmaKind::Fma => "fma",
            MmaKind::Coop => "coop",
            MmaKind::SplitFp16 => "split-fp16",
        };
        write!(f, "{mma} {}", self.tile.name())?;
        if self.splits > 1 {
            write!(f, ", k in {}", self.splits)?;
        }
        if self.transpose_b { write!(f, ", b transposed") } else { Ok(()) }
    }
}

/// Times a GEMM on the tiles that `default` and `tuned` select, two handles to one GPU, for the given duration.
///
/// # Errors
/// If there is no memory for it, or the driver reported an error.
pub fn compare_tiles(default: &Gpu, tuned: &Gpu, case: &GemmCase, time: Duration) -> Result<TunedGemm> {
    let GemmCase { trans_a, trans_b, size, dtype } = *case;
    let kernel = MatMul { trans_a, trans_b, out: dtype, ..MatMul::default() };
    let gemm = Gemm::new(default, size, dtype)?;
    let configs = [default, tuned].map(|gpu| TileConfig::select(&kernel, gemm.dims(), dtype, gpu.limits()));
    // The same tile is timed once: two times of it would differ by chance alone.
    let different = if configs[0] == configs[1] { &configs[..1] } else { &configs[..] };
    let mut best = [Duration::MAX; 2];
    for &config in different {
        gemm.time(&kernel, config, 1)?; // compiles
    }
    let once = gemm.time(&kernel, configs[0], 1)?;
    // Waiting for the GPU takes a fraction of a millisecond: of short GEMMs several launches share it.
    let launches = (1e-2 / once.as_secs_f64().max(1e-9)).clamp(1.0, 32.0) as u32;
    let started = Instant::now();
    loop {
        for (best, &config) in best.iter_mut().zip(different) {
            *best = gemm.time(&kernel, config, launches)?.min(*best);
        }
        if started.elapsed() >= time {
            break;
        }
    }
    let us = |time: Duration| 1e6 * time.as_secs_f64().max(1e-9);
    Ok(TunedGemm {
        case: case.to_string(),
        default_tile: configs[0].to_string(),
        chosen_tile: configs[1].to_string(),
        default_us: us(best[0]),
        chosen_us: us(best[different.len() - 1]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{AdapterChoice, gpu_for_tests};
    use crate::ops::matmul::tiles::Tile;

    #[test]
    fn a_gemm_is_timed_on_the_tile_of_each_handle() {
        if gpu_for_tests().is_none() {
            return;
        }
        let choice = AdapterChoice { allow_software: true, default_limits: true, ..AdapterChoice::default() };
        let gpu = Gpu::open(&choice).unwrap();
        // By these figures the smallest tile is by far the fastest.
        let mut gflops = [[1; 4]; Tile::FMA.len()];
        gflops[Tile::FMA.len() - 1] = [1_000_000; 4];
        let tuned = gpu.clone().with_matmul_throughput(gflops.into());
        let case = GemmCase { trans_a: false, trans_b: true, size: [256, 128, 64], dtype: DType::F32 };
        let of = |gpu: &Gpu, tuned: &Gpu| compare_tiles(gpu, tuned, &case, Duration::ZERO).unwrap();
        let compared = of(&gpu, &tuned);
        assert_eq!((&*compared.case, &*compared.chosen_tile), ("nt 256x128x64", "fma 32x32x16 by 4x4"));
        assert!(compared.default_us > 0.0 && compared.chosen_us > 0.0, "{compared:?}");
        let same = of(&tuned, &tuned);
        assert_eq!((same.default_tile == same.chosen_tile, same.gain()), (true, 1.0), "{same:?}");
    }
}
