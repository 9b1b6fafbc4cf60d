//! Autotuning: the throughput of every GEMM tile on this adapter, measured once and kept in
//! `<cache folder>/kernels/<adapter>.json`.
//!
//! FMA tiles all give the same bits, so their throughput may choose between them at any time ([`super::select`]).
//! Split-fp16 gives other bits: its measurements only resolve `device.matmul_f32 = "auto"` at the start of a run.

use super::tiles::{MmaKind, PerfModel, Tile};
use super::timing::{Gemm, uniform};
use super::{MatMul, TileConfig};
use crate::cache::{hex, store};
use crate::gpu::{AdapterInfo, Gpu, INCLUDES, Limits};
use crate::{DType, Result, shader};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measured throughput of an adapter's GEMM kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatmulTuning {
    source: Source,
    /// Of the FMA tiles, by their sizes.
    tiles: BTreeMap<String, Throughput>,
    /// `None` if the adapter has no cooperative matrices for it.
    #[serde(default)]
    split_fp16: Option<SplitFp16>,
}

/// Adapter, driver and version that the measurements belong to; others are not used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Source {
    rustyflow: String,
    /// The start of the SHA-256 of the GEMM shaders and of what they include.
    shader: String,
    adapter: String,
    backend: String,
    driver: String,
}

/// GFLOP/s by layout: neither operand transposed, b, a.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    pub nn: u32,
    pub nt: u32,
    pub tn: u32,
}

/// Split-fp16 beside fused multiply-adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SplitFp16 {
    /// By the tile's sizes. FLOPs are those of the f32 GEMM, and the time includes transposing b.
    tiles: BTreeMap<String, Throughput>,
    /// Root mean square error of a GEMM against f64, relative to its result.
    error: f64,
    /// The same of fused multiply-adds.
    fma_error: f64,
}

/// Size and duration of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// M, N and K of the GEMM to time: the first that takes `LONG_ENOUGH`.
    sizes: &'static [[usize; 3]],
    /// Work before the clock starts: an idle GPU takes a while to raise its own.
    warm_up: Duration,
    /// M, N and K of the GEMM whose error is computed.
    error_size: [usize; 3],
    /// All tiles are timed in turn, as often as fits into `time` but no more than so often; the best time counts.
    rounds: usize,
    time: Duration,
}

impl Effort {
    /// The measurements of a first training start: a few seconds, mostly compilation.
    pub const FIRST_START: Effort = Effort {
        sizes: &[
            [1024, 512, 1024],
            [1024, 1024, 1024],
            [2048, 1024, 1024],
            [2048, 2048, 1024],
            [4096, 2048, 1024],
            [4096, 4096, 1024],
            [4096, 4096, 2048],
        ],
        warm_up: Duration::from_millis(200),
        error_size: [128, 128, 2048],
        rounds: 3,
        time: Duration::from_millis(500),
    };

    /// Times rounds for this duration, at least one round.
    pub const fn lasting(time: Duration) -> Effort {
        Effort { rounds: usize::MAX, time, warm_up: Duration::from_millis(500), ..Effort::FIRST_START }
    }
}

/// So long that starting a kernel does not count.
const LONG_ENOUGH: Duration = Duration::from_millis(2);
/// The throughput of split-fp16, as a multiple of that of FMAs, from which on it is preferred: below, other kernels and
/// smaller GEMMs decide whether a step gains.
const MIN_SPEEDUP: f64 = 1.3;

impl MatmulTuning {
    /// Loads cached measurements for this adapter, driver and version of rustyflow.
    pub fn load(cache: &Path, info: &AdapterInfo) -> Option<MatmulTuning> {
        let path = path(cache, info);
        let read = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| format!("damaged ({error})")),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return None,
            Err(error) => Err(format!("unreadable ({error})")),
        };
        match read {
            Ok(tuning) if tuning.source == Source::new(info) => Some(tuning),
            Ok(MatmulTuning { source, .. }) => {
                tracing::debug!(?source, path = %path.display(), "tuned for something else");
                None
            }
            Err(why) => {
                tracing::warn!("{} is {why} and not used: `rustyflow bench tune` replaces it", path.display());
                None
            }
        }
    }

    /// Caches the measurements for [`load`](Self::load).
    pub fn store(&self, cache: &Path, info: &AdapterInfo) {
        let text = serde_json::to_string_pretty(self).expect("text and numbers alone");
        store(&path(cache, info), text.as_bytes());
    }

    /// Times every f32 tile that the adapter supports.
    ///
    /// # Errors
    /// If 128 MiB of GPU memory are not available, or the GPU reports an error.
    pub fn measure(gpu: &Gpu, effort: &Effort) -> Result<MatmulTuning> {
        let started = Instant::now();
        // None of this is part of what the command itself measures.
        let before = gpu.profiler().take();
        let measured = measure(gpu, effort);
        gpu.profiler().restore(before);
        let tuning = measured?;
        let elapsed_ms = started.elapsed().as_millis();
        tracing::info!(elapsed_ms, highest_gflops = tuning.highest(), "autotuned the GEMM kernels");
        tracing::debug!(?tuning);
        Ok(tuning)
    }

    /// The throughput for [`Limits::matmul_throughput`]; `None` if a supported tile is missing.
    pub fn table(&self, limits: &Limits) -> Option<Arc<[[u32; 4]]>> {
        let row = |tile: &Tile| match self.tiles.get(&tile.name()) {
            // Nothing in training has both transposed.
            Some(&Throughput { nn, nt, tn }) => Some([nn, nt, tn, nt.min(tn)]),
            None => (!tile.fits(limits)).then_some([0; 4]),
        };
        let measured = Tile::FMA.iter().map(row).collect::<Option<Vec<_>>>()?;
        Some(without_noise(measured, PerfModel::of(limits)).into())
    }

    /// Whether f32 GEMMs should run as split-fp16: clearly faster in every layout, with an error no larger than FMA's.
    /// `None` if it was not measured.
    pub fn prefers_split_fp16(&self) -> Option<bool> {
        let SplitFp16 { tiles, error, fma_error } = self.split_fp16.as_ref()?;
        let layouts: [fn(&Throughput) -> u32; 3] = [|t| t.nn, |t| t.nt, |t| t.tn];
        let fast = layouts.iter().all(|layout| {
            let best = |tiles: &BTreeMap<_, _>| f64::from(tiles.values().map(layout).max().unwrap_or(0));
            best(tiles) >= MIN_SPEEDUP * best(&self.tiles)
        });
        Some(fast && error <= fma_error)
    }

    /// Measurements that prefer split-fp16, or do not.
    #[cfg(feature = "testing")]
    pub fn for_tests(gpu: &Gpu, prefers_split_fp16: bool) -> MatmulTuning {
        let uniform = |gflops| Throughput { nn: gflops, nt: gflops, tn: gflops };
        let all = |tiles: &[Tile], gflops| tiles.iter().map(|tile| (tile.name(), uniform(gflops))).collect();
        let tiles = all(&Tile::SPLIT_FP16, if prefers_split_fp16 { 2000 } else { 1000 });
        let split_fp16 = Some(SplitFp16 { tiles, error: 2e-7, fma_error: 8e-7 });
        MatmulTuning { source: Source::new(gpu.info()), tiles: all(&Tile::FMA, 1000), split_fp16 }
    }

    /// Throughput by FMA tile name.
    pub fn tiles(&self) -> &BTreeMap<String, Throughput> {
        &self.tiles
    }

    /// The highest throughput of f32 GEMMs, GFLOP/s.
    pub fn highest(&self) -> u32 {
        let split_fp16 = self.split_fp16.iter().flat_map(|split| split.tiles.values());
        self.tiles.values().chain(split_fp16).flat_map(|t| [t.nn, t.nt, t.tn]).max().unwrap_or(0)
    }
}

/// Replaces measurements within a tenth of the model's prediction for a GPU of that speed by the prediction: one
/// measurement at one size is no more precise, and noise would choose between close tiles.
fn without_noise(mut measured: Vec<[u32; 4]>, model: &PerfModel) -> Vec<[u32; 4]> {
    const NOISE: f64 = 0.1;
    let Some(speed) = model.relative_speed(&measured) else { return measured };
    for (row, perf) in measured.iter_mut().zip(&model.fma) {
        for (gflops, expected) in row.iter_mut().zip(perf.throughput.map(|tflops| speed * (1e3 * tflops))) {
            if (f64::from(*gflops) / expected - 1.0).abs() < NOISE {
                *gflops = expected.round() as u32;
            }
        }
    }
    measured
}

impl Source {
    fn new(info: &AdapterInfo) -> Source {
        let sources = [shader!(matmul).source, shader!(matmul_coop).source];
        let is_included = |name: &str| sources.iter().any(|text| text.contains(&format!("include \"{name}\"")));
        let included = INCLUDES.iter().filter(|(name, _)| is_included(name)).map(|(_, text)| *text);
        let hash = Sha256::digest(sources.into_iter().chain(included).collect::<String>());
        Source {
            rustyflow: env!("CARGO_PKG_VERSION").to_string(),
            shader: hex(&hash[..8]),
            adapter: info.name.clone(),
            backend: info.backend.clone(),
            driver: info.driver.clone(),
        }
    }
}

fn path(cache: &Path, info: &AdapterInfo) -> PathBuf {
    let name = info.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    cache.join("kernels").join(format!("{}-{name}.json", info.backend))
}

/// The layouts that training has: neither operand transposed, b, a.
fn layouts() -> [MatMul; 3] {
    let layout = |(trans_a, trans_b)| MatMul { trans_a, trans_b, ..MatMul::default() };
    [(false, false), (false, true), (true, false)].map(layout)
}

/// One pass over k; split-fp16 takes b as (K, N) only.
fn on_tile(kernel: &MatMul, tile: &Tile) -> TileConfig {
    let transpose_b = kernel.trans_b && tile.mma == MmaKind::SplitFp16;
    TileConfig { transpose_b, ..TileConfig::new(*tile, 1) }
}

fn measure(gpu: &Gpu, effort: &Effort) -> Result<MatmulTuning> {
    let fitting = |tiles: &[Tile]| tiles.iter().copied().filter(|tile| tile.fits(gpu.limits())).collect::<Vec<_>>();
    let (fma, split_fp16) = (fitting(&Tile::FMA), fitting(&Tile::SPLIT_FP16));
    let (gemm, best) = time_tiles(gpu, &[&fma[..], &split_fp16].concat(), effort)?;
    let throughput = |best: &[Duration; 3]| {
        let [nn, nt, tn] = best.map(|time| (gemm.flops() / time.as_secs_f64().max(1e-9) / 1e9).max(1.0) as u32);
        Throughput { nn, nt, tn }
    };
    let by_name = |tiles: &[Tile], best: &[[Duration; 3]]| {
        tiles.iter().map(Tile::name).zip(best.iter().map(throughput)).collect::<BTreeMap<_, _>>()
    };
    let (of_fma, of_split_fp16) = best.split_at(fma.len());
    let split_fp16 = match (&split_fp16[..], &fma[..]) {
        (tiles @ [tile, ..], [.., fma]) => {
            let [error, fma_error] = [tile, fma].map(|tile| gemm_error(gpu, *tile, effort.error_size));
            Some(SplitFp16 { tiles: by_name(tiles, of_split_fp16), error: error?, fma_error: fma_error? })
        }
        _ => None,
    };
    Ok(MatmulTuning { source: Source::new(gpu.info()), tiles: by_name(&fma, of_fma), split_fp16 })
}

/// The GEMM that was timed, and the best time of each tile in every layout.
fn time_tiles<'a>(gpu: &'a Gpu, tiles: &[Tile], effort: &Effort) -> Result<(Gemm<'a>, Vec<[Duration; 3]>)> {
    let layouts = layouts();
    let first = on_tile(&layouts[0], &tiles[0]);
    let mut gemm = Gemm::new(gpu, effort.sizes[0], DType::F32)?;
    for (tile, kernel) in tiles.iter().flat_map(|tile| layouts.iter().map(move |kernel| (tile, kernel))) {
        gemm.record(kernel, on_tile(kernel, tile))?;
    }
    gpu.synchronize()?; // all are compiled together
    let started = Instant::now();
    while started.elapsed() < effort.warm_up {
        gemm.time(&layouts[0], first, 4)?;
    }
    let mut once = gemm.time(&layouts[0], first, 4)?;
    for &size in &effort.sizes[1..] {
        if once >= LONG_ENOUGH {
            break;
        }
        // A larger GEMM is no less efficient, so at the rate of this one it takes so long at most.
        let at_most = once.mul_f64(size.iter().product::<usize>() as f64 * 2.0 / gemm.flops());
        if at_most < LONG_ENOUGH && Some(&size) != effort.sizes.last() {
            continue;
        }
        gemm = Gemm::new(gpu, size, DType::F32)?;
        once = gemm.time(&layouts[0], first, 4)?;
    }
    // Waiting for the GPU takes a fraction of a millisecond: on fast ones several launches share it.
    let launches = (5.0 * LONG_ENOUGH.as_secs_f64() / once.as_secs_f64().max(1e-9)).clamp(1.0, 8.0) as u32;
    let mut best = vec![[Duration::MAX; 3]; tiles.len()];
    let started = Instant::now();
    for _ in 0..effort.rounds {
        for (tile, best) in tiles.iter().zip(&mut best) {
            for (kernel, best) in layouts.iter().zip(best) {
                *best = gemm.time(kernel, on_tile(kernel, tile), launches)?.min(*best);
            }
        }
        if started.elapsed() > effort.time {
            break;
        }
    }
    Ok((gemm, best))
}

/// The error of a (M, K) by b (K, N) on this tile, to three digits.
fn gemm_error(gpu: &Gpu, tile: Tile, [m, n, k]: [usize; 3]) -> Result<f64> {
    let gemm = Gemm::new(gpu, [m, n, k], DType::F32)?;
    gemm.record(&MatMul::default(), on_tile(&MatMul::default(), &tile))?;
    let error = relative_rms_error(&gemm.result()?, &uniform(m * k, 1), &uniform(k * n, 2), [m, n, k]);
    Ok(format!("{error:.2e}").parse().expect("a number"))
}

/// The root mean square of y - a b, with a b (M, K) (K, N) in f64, relative to that of a b.
pub(super) fn relative_rms_error(y: &[f32], a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) -> f64 {
    let (mut errors, mut squares) = (0.0, 0.0);
    let mut row = vec![0.0; n];
    for i in 0..m {
        row.fill(0.0);
        for (a, b) in a[i * k..][..k].iter().zip(b.chunks(n)) {
            row.iter_mut().zip(b).for_each(|(sum, b)| *sum += f64::from(*a) * f64::from(*b));
        }
        for (y, want) in y[i * n..][..n].iter().zip(&row) {
            errors += (f64::from(*y) - want).powi(2);
            squares += want.powi(2);
        }
    }
    (errors / squares).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{AdapterChoice, gpu_for_tests};
    use crate::ops::matmul::tiles::H200;

    const LITTLE: Effort = Effort {
        sizes: &[[64, 64, 32], [128, 64, 32]],
        warm_up: Duration::ZERO,
        error_size: [64, 64, 512],
        ..Effort::FIRST_START
    };

    #[test]
    fn every_tile_gets_a_throughput_and_the_file_gives_it_back() {
        let Some(gpu) = gpu_for_tests() else { return };
        // Where there is no split-fp16 to measure, held to the default limits, so that fewer tiles are to be compiled.
        let default_limits = gpu.limits().coop_matrix == 0;
        let choice = AdapterChoice { allow_software: true, default_limits, ..AdapterChoice::default() };
        let gpu = Gpu::open(&choice).unwrap();
        let fitting = |tiles: &[Tile]| tiles.iter().filter(|tile| tile.fits(gpu.limits())).count();
        let tuning = measure(&gpu, &LITTLE).unwrap();
        assert_eq!(tuning.tiles.len(), fitting(&Tile::FMA));
        assert!(tuning.tiles.values().all(|t| t.nn > 0 && t.nt > 0 && t.tn > 0), "{tuning:?}");
        assert_eq!(tuning.table(gpu.limits()).unwrap().len(), Tile::FMA.len());
        assert_eq!(tuning.split_fp16.as_ref().map_or(0, |split| split.tiles.len()), fitting(&Tile::SPLIT_FP16));
        if let Some(SplitFp16 { error, fma_error, .. }) = tuning.split_fp16 {
            // Half an ulp of f32 is 6e-8; of 512 terms either loses a few of those.
            assert!([error, fma_error].iter().all(|error| (1e-8..1e-6).contains(error)), "{error} {fma_error}");
        }

        let dir = tempfile::tempdir().unwrap();
        assert_eq!(MatmulTuning::load(dir.path(), gpu.info()), None);
        tuning.store(dir.path(), gpu.info());
        assert_eq!(MatmulTuning::load(dir.path(), gpu.info()), Some(tuning.clone()));
        // The same adapter under another driver.
        let updated = AdapterInfo { driver: "newer".into(), ..gpu.info().clone() };
        assert_eq!(MatmulTuning::load(dir.path(), &updated), None);
        // A file cut short.
        let path = path(dir.path(), gpu.info());
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(MatmulTuning::load(dir.path(), gpu.info()), None);
    }

    #[test]
    fn throughput_that_differs_from_the_expected_by_chance_is_the_expected() {
        let half = |factor: f64| H200.fma.map(|perf| perf.throughput.map(|t| (500.0 * factor * t) as u32)).to_vec();
        let mut measured = half(1.0);
        measured[0] = measured[0].map(|gflops| gflops * 107 / 100);
        measured[3] = measured[3].map(|gflops| gflops * 94 / 100);
        let close = |a: &[u32; 4], b: &[u32; 4]| a.iter().zip(b).all(|(a, b)| a.abs_diff(*b) <= 2);
        let cleaned = without_noise(measured.clone(), &H200);
        assert!(cleaned.iter().zip(&half(1.0)).all(|(a, b)| close(a, b)), "{measured:?}");
        // What differs by more stays, and so does a tile that does not run.
        measured[1] = measured[1].map(|gflops| gflops * 2);
        measured[2] = [0; 4];
        let kept = without_noise(measured.clone(), &H200);
        assert_eq!((kept[1], kept[2]), (measured[1], measured[2]));
    }

    fn tuning(fma: Throughput, split_fp16: Option<(Throughput, f64, f64)>) -> MatmulTuning {
        let [rustyflow, shader, adapter, backend, driver] = [const { String::new() }; 5];
        MatmulTuning {
            source: Source { rustyflow, shader, adapter, backend, driver },
            tiles: Tile::FMA.iter().map(|tile| (tile.name(), fma)).collect(),
            split_fp16: split_fp16.map(|(throughput, error, fma_error)| {
                let tiles = Tile::SPLIT_FP16.iter().map(|tile| (tile.name(), throughput)).collect();
                SplitFp16 { tiles, error, fma_error }
            }),
        }
    }

    #[test]
    fn throughput_without_that_of_a_tile_that_fits_is_none() {
        let limits = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
        let mut tuning = tuning(Throughput { nn: 4, nt: 3, tn: 2 }, None);
        assert_eq!(tuning.tiles.len(), Tile::FMA.len(), "names are unique");
        assert_eq!(tuning.table(&limits).unwrap().to_vec(), [[4, 3, 2, 2]; Tile::FMA.len()]);
        tuning.tiles.remove(&Tile::FMA[0].name());
        assert_eq!(tuning.table(&limits), None);
        assert_eq!(tuning.table(&Limits::WEBGPU_DEFAULT).unwrap()[0], [0; 4], "too large a tile for this one");
    }

    #[test]
    fn split_fp16_is_preferred_where_it_is_faster_in_every_layout_and_no_less_precise() {
        let fma = Throughput { nn: 1000, nt: 1000, tn: 1000 };
        let prefers = |throughput, error| tuning(fma, Some((throughput, error, 8e-7))).prefers_split_fp16();
        let faster = Throughput { nn: 1300, nt: 1300, tn: 1300 };
        assert_eq!(prefers(faster, 2e-7), Some(true));
        assert_eq!(prefers(faster, 8e-7), Some(true));
        assert_eq!(prefers(faster, 8.1e-7), Some(false));
        assert_eq!(prefers(faster, f64::NAN), Some(false));
        for slow in
            [Throughput { nn: 1299, ..faster }, Throughput { nt: 1299, ..faster }, Throughput { tn: 1299, ..faster }]
        {
            assert_eq!(prefers(slow, 2e-7), Some(false), "{slow:?}");
        }
        assert_eq!(tuning(fma, None).prefers_split_fp16(), None);
    }
}
