//! A GEMM to time, on any tile.

use super::{Dims, MatMul, TileConfig};
use crate::gpu::Gpu;
use crate::ops::random::Key;
use crate::profile::Cost;
use crate::tensor::no_grad;
use crate::{DType, Device, Result, Tensor};
use std::time::{Duration, Instant};

/// Values in [-1, 1), which repeat after a million.
pub(super) fn uniform(len: usize, seed: u64) -> Vec<f32> {
    const PERIOD: usize = 1 << 20;
    let key = Key::new(seed);
    let period: Vec<f32> =
        (0..len.min(PERIOD) as u32).map(|i| key.bits(i) as f32 / (1u64 << 31) as f32 - 1.0).collect();
    period.iter().copied().cycle().take(len).collect()
}

/// A GEMM on one GPU. Its operands have as many elements whichever of them is transposed.
pub(super) struct Gemm<'a> {
    gpu: &'a Gpu,
    dims: Dims,
    dtype: DType,
    a: Tensor,
    b: Tensor,
    y: Tensor,
}

impl Gemm<'_> {
    /// # Errors
    /// If there is no memory for it, or the driver reported an error.
    pub fn new(gpu: &Gpu, [m, n, k]: [usize; 3], dtype: DType) -> Result<Gemm<'_>> {
        let device = Device::Gpu(gpu.clone());
        // Not zeros: a GPU that adds nothing draws less power, and so may clock higher than it can in training.
        let random = |len: usize, seed| {
            let values = Tensor::from_f32(&uniform(len, seed), [len], &device)?;
            no_grad(|| values.to_dtype(dtype))
        };
        let dims = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
        let y = Tensor::zeros([m * n], dtype, &device)?;
        Ok(Gemm { gpu, dims, dtype, a: random(m * k, 1)?, b: random(k * n, 2)?, y })
    }

    pub fn dims(&self) -> &Dims {
        &self.dims
    }

    pub fn flops(&self) -> f64 {
        2.0 * (self.dims.m * self.dims.n * self.dims.k) as f64
    }

    /// The last result (M, N).
    pub fn result(&self) -> Result<Vec<f32>> {
        self.y.to_f32()
    }

    pub fn record(&self, kernel: &MatMul, config: TileConfig) -> Result<()> {
        let kernel = MatMul { out: self.dtype, ..*kernel };
        let plan = kernel.plan(&self.dims, self.dtype, config, self.gpu.limits());
        let cost = Cost { flops: self.flops(), bytes: 0.0 };
        let [a, b, y] = [&self.a, &self.b, &self.y].map(|tensor| tensor.storage().gpu());
        self.gpu.run("matmul", cost, plan, &[a, b], &[y])
    }

    /// Time per launch, over this number of consecutive launches.
    pub fn time(&self, kernel: &MatMul, config: TileConfig, launches: u32) -> Result<Duration> {
        self.gpu.synchronize()?;
        let started = Instant::now();
        for _ in 0..launches {
            self.record(kernel, config)?;
        }
        self.gpu.synchronize()?;
        Ok(started.elapsed() / launches)
    }
}
