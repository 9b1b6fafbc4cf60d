//! Times kernels one by one, and puts their rates beside what the device does at best.

use super::table::{AROUND_THE_OP, Row, Sizes, Work, gemms, table};
use crate::profile::{KernelTotal, Roofline};
use crate::testing::worst_error;
use crate::{DType, Device, Error, Result, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// The rates that the device reached at what suits it best: large GEMMs, and reading and writing tensors
/// larger than any cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Peaks {
    /// 10^12 f32 operations per second.
    pub tflops: f64,
    /// The same of GEMMs of f16; `None` if the device has no f16.
    pub f16_tflops: Option<f64>,
    /// 10^9 bytes per second.
    pub gb_per_s: f64,
}

/// What one kernel of a row took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpTiming {
    pub op: &'static str,
    pub shape: String,
    /// "all" for the sum over all kernels of the row.
    pub kernel: &'static str,
    /// Times that the op runs it.
    pub calls: u64,
    /// For all calls, milliseconds: the median of several batches.
    pub ms: f64,
    pub tflops: f64,
    /// Counting what must be read and written once.
    pub gb_per_s: f64,
    /// The larger of both rates' parts of their peaks. Above 1 if what it reads is in a cache.
    pub share: f64,
    /// Which peak that is: "compute" or "memory".
    pub bound: &'static str,
    /// The row's largest difference from the CPU, of outputs and gradients: |difference| over root mean square +
    /// |value|.
    /// `None` on the CPU, and where it was not compared.
    pub difference: Option<f64>,
    /// Whether that is within the row's tolerance.
    pub agrees: bool,
}

/// What the device does at best.
///
/// # Errors
/// If it has no timestamps or cannot hold such sizes, or reported an error.
pub fn measure_peaks(device: &Device, sizes: &Sizes) -> Result<Peaks> {
    sizes.check()?;
    Ok(Peaks {
        tflops: best_gemm(device, sizes, DType::F32)?,
        f16_tflops: device.has_f16().then(|| best_gemm(device, sizes, DType::F16)).transpose()?,
        gb_per_s: best_stream(device, sizes)?,
    })
}

/// The part of [`measure_peaks`] that kernels are compared with where GEMMs are of `dtype`.
///
/// # Errors
/// If the device has no timestamps or no such GEMMs or cannot hold such sizes, or reported an error.
pub fn measure_roofline(device: &Device, sizes: &Sizes, dtype: DType) -> Result<Roofline> {
    sizes.check()?;
    let tflops = best_gemm(device, sizes, dtype)?;
    Ok(Roofline { dtype: dtype.name(), tflops, gb_per_s: best_stream(device, sizes)? })
}

fn best_gemm(device: &Device, sizes: &Sizes, dtype: DType) -> Result<f64> {
    let [wide, _, _] = gemms(dtype, sizes.batch * sizes.context, 4 * sizes.width, sizes.width);
    let square = gemms(dtype, sizes.square, sizes.square, sizes.square);
    best(device, square.into_iter().chain([wide]), |k| k.flops / k.seconds / 1e12)
}

fn best_stream(device: &Device, sizes: &Sizes) -> Result<f64> {
    best(device, Row::streams(sizes.stream), |k| k.bytes / k.seconds / 1e9)
}

fn best(device: &Device, rows: impl IntoIterator<Item = Row>, rate: fn(&KernelTotal) -> f64) -> Result<f64> {
    let mut best = 0.0f64;
    for row in rows {
        let kernels = time(device, &mut row.prepare(device)?)?;
        best = kernels.values().map(rate).fold(best, f64::max);
    }
    Ok(best)
}

/// Checks a row against the CPU, unless that is the device, then times its kernels: the slowest first.
///
/// # Errors
/// If the device cannot hold the tensors, has no timestamps, or reported an error.
pub fn time_row(row: &Row, device: &Device, peaks: &Peaks) -> Result<Vec<OpTiming>> {
    let mut work = row.prepare(device)?;
    let difference = device.is_gpu().then(|| difference_from_cpu(row, &mut work)).transpose()?;
    timings(row, device, work, peaks, difference)
}

/// [`time_row`] without the check, which takes the CPU longer than the row takes the GPU.
#[cfg(feature = "cli")]
pub(super) fn time_unchecked(row: &Row, device: &Device, peaks: &Peaks) -> Result<Vec<OpTiming>> {
    timings(row, device, row.prepare(device)?, peaks, None)
}

fn timings(
    row: &Row,
    device: &Device,
    mut work: Work,
    peaks: &Peaks,
    difference: Option<f64>,
) -> Result<Vec<OpTiming>> {
    let mut kernels = time(device, &mut work)?;
    for other in AROUND_THE_OP.into_iter().filter(|&other| other != row.op) {
        kernels.remove(other);
    }
    let mut total = KernelTotal::default();
    for k in kernels.values() {
        total.calls += k.calls;
        total.seconds += k.seconds;
        total.flops += k.flops;
        total.bytes += k.bytes;
    }
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    kernels.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    if kernels.len() > 2 {
        kernels.push(("all", total));
    }
    let timing = |(kernel, k): (&'static str, KernelTotal)| {
        let (tflops, gb_per_s) = (k.flops / k.seconds / 1e12, k.bytes / k.seconds / 1e9);
        let peak = if row.f16 { peaks.f16_tflops.unwrap_or(peaks.tflops) } else { peaks.tflops };
        let (compute, memory) = (tflops / peak, gb_per_s / peaks.gb_per_s);
        OpTiming {
            op: row.op,
            shape: row.shape.clone(),
            kernel,
            calls: k.calls,
            ms: 1e3 * k.seconds,
            tflops,
            gb_per_s,
            share: compute.max(memory),
            bound: if compute > memory { "compute" } else { "memory" },
            difference,
            agrees: difference.is_none_or(|d| d <= row.tolerance),
        }
    };
    Ok(kernels.into_iter().map(timing).collect())
}

/// The median over batches of what each kernel takes when `work` runs once.
fn time(device: &Device, work: &mut Work) -> Result<BTreeMap<&'static str, KernelTotal>> {
    /// Long against the resolution of any clock.
    const BATCH_SECONDS: f64 = 0.02;
    const WARM_UP_SECONDS: f64 = 0.5;
    const MOST_RUNS: f64 = 1000.0;
    const BATCHES: usize = 5;
    if !device.time_kernels(true) {
        let name = device.name();
        return Err(Error::Invalid(format!(
            "bench ops: {name} has no timestamps inside passes, so single kernels cannot be timed; use `bench step`"
        )));
    }
    let mut batch = |runs: usize| -> Result<BTreeMap<&'static str, KernelTotal>> {
        device.profiler().take();
        for _ in 0..runs {
            work()?;
        }
        device.synchronize()?;
        Ok(device.profiler().take().kernels)
    };
    // The first run compiles and allocates. Batches follow until the clocks are up, which sink while the CPU computes
    // what a row is checked against: the memory of an H200 took up to 0.3 s to come back. A processor is warm already.
    batch(1)?;
    let once: f64 = batch(1)?.values().map(|k| k.seconds).sum();
    let runs = (BATCH_SECONDS / once).ceil().clamp(1.0, MOST_RUNS) as usize;
    let started = Instant::now();
    while device.is_gpu() && started.elapsed().as_secs_f64() < WARM_UP_SECONDS {
        batch(runs)?;
    }
    let batches = (0..BATCHES).map(|_| batch(runs)).collect::<Result<Vec<_>>>()?;
    let median = |name: &str| {
        let mut seconds: Vec<f64> = batches.iter().map(|kernels| kernels[name].seconds).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[BATCHES / 2] / runs as f64
    };
    let of_one_run = |(&name, k): (&&'static str, &KernelTotal)| {
        let part = 1.0 / runs as f64;
        let calls = k.calls / runs as u64;
        (name, KernelTotal { calls, seconds: median(name), flops: k.flops * part, bytes: k.bytes * part })
    };
    Ok(batches[0].iter().map(of_one_run).collect())
}

/// The largest difference between what `work` computes first and what the CPU does.
fn difference_from_cpu(row: &Row, work: &mut Work) -> Result<f64> {
    let got = work()?;
    let want = row.prepare(&Device::Cpu)?()?;
    let mut worst = if got.len() == want.len() { 0.0 } else { f64::INFINITY };
    for (got, want) in got.iter().zip(&want) {
        worst = largest_difference(&numbers(got)?, &numbers(want)?).max(worst);
    }
    Ok(worst)
}

/// The elements of a tensor; of ids, which are whole numbers, too.
fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    if tensor.dtype() != DType::U32 {
        return tensor.to_f32();
    }
    Ok(tensor.to_u32()?.into_iter().map(|id| id as f32).collect())
}

/// The largest |difference| over root mean square + |value|; infinite if anything is not finite.
fn largest_difference(got: &[f32], want: &[f32]) -> f64 {
    let squares: f64 = want.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let typical = (squares / want.len().max(1) as f64).sqrt();
    worst_error(got, want, |_, want| typical + want.abs())
}

/// The rows of the ops named in `only` (all if it is empty).
///
/// # Errors
/// If there is no such op, or a size that makes no sense.
pub fn select(sizes: &Sizes, only: &[String]) -> Result<Vec<Row>> {
    sizes.check()?;
    let mut rows = table(sizes);
    let mut names: Vec<&str> = Vec::new();
    for row in &rows {
        if !names.contains(&row.op) {
            names.push(row.op);
        }
    }
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(Error::Invalid(format!("--only {unknown}: there is {}", names.join(", "))));
    }
    rows.retain(|row| only.is_empty() || only.iter().any(|name| name == row.op));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    #[test]
    #[ignore = "slow: scripts/test.sh --full"]
    fn a_row_that_is_not_what_the_cpu_computes_is_found() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let (gpu, peaks) = (Device::Gpu(gpu), Peaks { tflops: 1.0, f16_tflops: None, gb_per_s: 1.0 });
        let nan = f32::NAN;
        for ([on_gpu, on_cpu], agrees) in
            [([1.0, 1.0], true), ([1.001, 1.0], false), ([nan, 1.0], false), ([1.0, nan], false), ([nan, nan], false)]
        {
            let row = Row::new("fill", "9".into(), move |device| {
                let value = if device.is_gpu() { on_gpu } else { on_cpu };
                let device = device.clone();
                Ok(Box::new(move || Ok(vec![Tensor::full(value, [9], &device)?])))
            });
            let timings = time_row(&row, &gpu, &peaks).unwrap();
            assert_eq!((timings.len(), timings[0].kernel, timings[0].agrees), (1, "fill", agrees), "{timings:?}");
        }
    }

    #[test]
    fn differences_are_relative_to_the_tensor_and_never_hidden() {
        let want = [1.0, -1.0, 1.0, -1.0];
        assert_eq!(largest_difference(&want, &want), 0.0);
        assert!((largest_difference(&[1.0, -1.0, 1.02, -1.0], &want) - 0.01).abs() < 1e-6);
        for broken in [f32::NAN, f32::INFINITY] {
            let broken = [1.0, broken, 1.0, -1.0];
            assert_eq!(largest_difference(&broken, &want), f64::INFINITY);
            assert_eq!(largest_difference(&want, &broken), f64::INFINITY);
            assert_eq!(largest_difference(&broken, &broken), f64::INFINITY);
        }
        assert_eq!(largest_difference(&want[..3], &want), f64::INFINITY);
        assert_eq!(largest_difference(&[1e-9], &[0.0]), f64::INFINITY);
    }
}
