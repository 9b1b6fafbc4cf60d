//! How fast an adapter runs each tile of the matrix product: measured once, then kept in
//! `<cache folder>/kernels/<adapter>.json`. It decides which tile runs, never what comes out ([`Choice::best`]).

use super::choice::{Choice, Tile};
use super::{Dims, MatMul};
use crate::gpu::{AdapterInfo, Gpu, INCLUDES, Limits, store};
use crate::ops::random::Key;
use crate::profile::Cost;
use crate::{DType, Device, Result, Tensor, shader};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The rates of every tile that an adapter can run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatmulRates {
    source: Source,
    /// By the tile's sizes.
    tiles: BTreeMap<String, Rates>,
}

/// What was measured, and on what; rates of anything else are not used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Source {
    rustyflow: String,
    /// The start of the SHA-256 of `shaders/matmul.wgsl` and of what it includes.
    shader: String,
    adapter: String,
    backend: String,
    driver: String,
}

/// GFLOP/s by layout: neither operand transposed, b, a.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub nn: u32,
    pub nt: u32,
    pub tn: u32,
}

/// M, N and K of the products that are timed: the first that takes `LONG_ENOUGH`.
const SIZES: [[usize; 3]; 7] = [
    [1024, 512, 1024],
    [1024, 1024, 1024],
    [2048, 1024, 1024],
    [2048, 2048, 1024],
    [4096, 2048, 1024],
    [4096, 4096, 1024],
    [4096, 4096, 2048],
];
/// So long that starting a kernel does not count.
const LONG_ENOUGH: Duration = Duration::from_millis(2);
/// Work before the clock starts: an idle GPU takes a while to raise its own.
const WARM_UP: Duration = Duration::from_millis(500);
/// All tiles are timed in turn, as often as fits into `TIME` but no more than so often; the best time counts.
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(1500);

impl MatmulRates {
    /// What was kept for this adapter, driver and version of rustyflow in the cache folder.
    pub fn load(cache: &Path, info: &AdapterInfo) -> Option<MatmulRates> {
        let path = path(cache, info);
        let read = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| format!("damaged ({error})")),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return None,
            Err(error) => Err(format!("unreadable ({error})")),
        };
        match read {
            Ok(MatmulRates { source, tiles }) if source == Source::new(info) => Some(MatmulRates { source, tiles }),
            Ok(MatmulRates { source, .. }) => {
                tracing::debug!(?source, path = %path.display(), "rates of something else");
                None
            }
            Err(why) => {
                tracing::warn!("{} is {why} and not used: `rustyflow devices --measure` replaces it", path.display());
                None
            }
        }
    }

    /// Keeps the rates in the cache folder, where [`load`](Self::load) finds them.
    pub fn store(&self, cache: &Path, info: &AdapterInfo) {
        let text = serde_json::to_string_pretty(self).expect("text and numbers alone");
        store(&path(cache, info), text.as_bytes());
    }

    /// Times every tile that the adapter can run: a few seconds, most of them for compiling.
    ///
    /// # Errors
    /// If the GPU has no 128 MiB to spare or reports an error.
    pub fn measure(gpu: &Gpu) -> Result<MatmulRates> {
        let started = Instant::now();
        // None of this is part of what the command itself measures.
        let before = gpu.profiler().take();
        let measured = measure(gpu, &SIZES, WARM_UP);
        gpu.profiler().restore(before);
        let rates = measured?;
        let elapsed_ms = started.elapsed().as_millis();
        tracing::info!(elapsed_ms, highest_gflops = rates.highest(), "measured the matrix kernels");
        tracing::debug!(?rates);
        Ok(rates)
    }

    /// The rates as [`Limits::matmul_rates`] has them; `None` if one of a tile that such a device can run is missing.
    pub fn table(&self, limits: &Limits) -> Option<Arc<[[u32; 4]]>> {
        let row = |tile: &Tile| match self.tiles.get(&name(tile)) {
            // Nothing in training has both transposed.
            Some(&Rates { nn, nt, tn }) => Some([nn, nt, tn, nt.min(tn)]),
            None => (!tile.fits(limits)).then_some([0; 4]),
        };
        Some(without_noise(Tile::ALL.iter().map(row).collect::<Option<Vec<_>>>()?).into())
    }

    /// Of each tile, in GFLOP/s.
    pub fn tiles(&self) -> &BTreeMap<String, Rates> {
        &self.tiles
    }

    /// The highest rate, GFLOP/s.
    pub fn highest(&self) -> u32 {
        self.tiles.values().flat_map(|r| [r.nn, r.nt, r.tn]).max().unwrap_or(0)
    }
}

/// The rates, but those that are what the built-in ones lead to expect of a GPU of that speed, to a tenth, as these say: one
/// measurement at one size is no better than that, and where two tiles are close chance would choose.
fn without_noise(mut rates: Vec<[u32; 4]>) -> Vec<[u32; 4]> {
    const NOISE: f64 = 0.1;
    let built_in = || Tile::ALL.iter().map(|tile| tile.rates.map(|rate| 1e3 * rate));
    let mut speeds: Vec<f64> = rates
        .iter()
        .zip(built_in())
        .flat_map(|(measured, expected)| [0, 1, 2].map(|layout| f64::from(measured[layout]) / expected[layout]))
        .filter(|speed| *speed > 0.0)
        .collect();
    speeds.sort_by(f64::total_cmp);
    let Some(speed) = speeds.get(speeds.len() / 2) else { return rates };
    for (measured, expected) in rates.iter_mut().zip(built_in()) {
        for (rate, expected) in measured.iter_mut().zip(expected.map(|rate| speed * rate)) {
            if (f64::from(*rate) / expected - 1.0).abs() < NOISE {
                *rate = expected.round() as u32;
            }
        }
    }
    rates
}

impl Source {
    fn new(info: &AdapterInfo) -> Source {
        let source = shader!("matmul").source;
        let included = INCLUDES.iter().filter(|(name, _)| source.contains(&format!("include \"{name}\"")));
        let texts = [source].into_iter().chain(included.map(|(_, text)| *text));
        let hash = Sha256::digest(texts.collect::<String>());
        Source {
            rustyflow: env!("CARGO_PKG_VERSION").to_string(),
            shader: hash[..8].iter().map(|byte| format!("{byte:02x}")).collect(),
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

fn name(tile: &Tile) -> String {
    let Tile { bm, bn, bk, tm, tn, .. } = tile;
    format!("{bm}x{bn}x{bk} by {tm}x{tn}")
}

fn measure(gpu: &Gpu, sizes: &[[usize; 3]], warm_up: Duration) -> Result<MatmulRates> {
    let tiles: Vec<Tile> = Tile::ALL.into_iter().filter(|tile| tile.fits(gpu.limits())).collect();
    let layouts = [(false, false), (false, true), (true, false)];
    let layouts = layouts.map(|(trans_a, trans_b)| MatMul { trans_a, trans_b, ..MatMul::default() });
    let mut product = Product::new(gpu, sizes[0])?;
    for (tile, kernel) in tiles.iter().flat_map(|tile| layouts.iter().map(move |kernel| (tile, kernel))) {
        product.record(kernel, tile)?;
    }
    gpu.synchronize()?; // all are compiled together
    let started = Instant::now();
    while started.elapsed() < warm_up {
        product.time(&layouts[0], &tiles[0], 4)?;
    }
    let mut once = product.time(&layouts[0], &tiles[0], 4)?;
    for &size in &sizes[1..] {
        if once >= LONG_ENOUGH {
            break;
        }
        product = Product::new(gpu, size)?;
        once = product.time(&layouts[0], &tiles[0], 4)?;
    }
    // Waiting for the GPU takes a fraction of a millisecond: on fast ones several launches share it.
    let launches = (5.0 * LONG_ENOUGH.as_secs_f64() / once.as_secs_f64().max(1e-9)).clamp(1.0, 8.0) as u32;
    let mut best = vec![[Duration::MAX; 3]; tiles.len()];
    let started = Instant::now();
    for _ in 0..ROUNDS {
        for (tile, best) in tiles.iter().zip(&mut best) {
            for (kernel, best) in layouts.iter().zip(best) {
                *best = product.time(kernel, tile, launches)?.min(*best);
            }
        }
        if started.elapsed() > TIME {
            break;
        }
    }
    let rates = best.iter().map(|best| {
        let [nn, nt, tn] = best.map(|time| (product.flops() / time.as_secs_f64().max(1e-9) / 1e9).max(1.0) as u32);
        Rates { nn, nt, tn }
    });
    Ok(MatmulRates { source: Source::new(gpu.info()), tiles: tiles.iter().map(name).zip(rates).collect() })
}

/// A product to time. Its operands have as many elements whichever of them is transposed.
struct Product<'a> {
    gpu: &'a Gpu,
    dims: Dims,
    a: Tensor,
    b: Tensor,
    y: Tensor,
}

impl Product<'_> {
    fn new(gpu: &Gpu, [m, n, k]: [usize; 3]) -> Result<Product<'_>> {
        let device = Device::Gpu(gpu.clone());
        // Not zeros: a GPU that adds nothing draws less power, and so may clock higher than it can in training.
        let random = |len: usize, seed| {
            let key = Key::new(seed);
            let values: Vec<f32> = (0..len as u32).map(|i| key.bits(i) as f32 / (1u64 << 31) as f32 - 1.0).collect();
            Tensor::from_f32(&values, [len], &device)
        };
        let dims = Dims { batch: 1, m, n, k, stride_a: 0, stride_b: 0 };
        Ok(Product { gpu, dims, a: random(m * k, 1)?, b: random(k * n, 2)?, y: Tensor::full(0.0, [m * n], &device)? })
    }

    fn flops(&self) -> f64 {
        2.0 * (self.dims.m * self.dims.n * self.dims.k) as f64
    }

    fn record(&self, kernel: &MatMul, tile: &Tile) -> Result<()> {
        let plan = kernel.plan(&self.dims, DType::F32, Choice::new(*tile, 1), self.gpu.limits());
        let cost = Cost { flops: self.flops(), bytes: 0.0 };
        let [a, b, y] = [&self.a, &self.b, &self.y].map(|tensor| tensor.storage().gpu());
        self.gpu.run("matmul", cost, plan, &[a, b], &[y])
    }

    /// The time of one of so many launches in a row.
    fn time(&self, kernel: &MatMul, tile: &Tile, launches: u32) -> Result<Duration> {
        self.gpu.synchronize()?;
        let started = Instant::now();
        for _ in 0..launches {
            self.record(kernel, tile)?;
        }
        self.gpu.synchronize()?;
        Ok(started.elapsed() / launches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{AdapterChoice, gpu_for_tests};

    #[test]
    fn every_tile_gets_a_rate_and_the_file_gives_it_back() {
        if gpu_for_tests().is_none() {
            return;
        }
        // Held to the default limits, so that fewer tiles are to be compiled.
        let choice = AdapterChoice { allow_software: true, default_limits: true, ..AdapterChoice::default() };
        let gpu = Gpu::open(&choice).unwrap();
        let rates = measure(&gpu, &[[32, 32, 16], [64, 64, 16]], Duration::ZERO).unwrap();
        assert_eq!(rates.tiles.len(), Tile::ALL.iter().filter(|tile| tile.fits(gpu.limits())).count());
        assert!(rates.tiles.values().all(|r| r.nn > 0 && r.nt > 0 && r.tn > 0), "{rates:?}");
        assert_eq!(rates.table(gpu.limits()).unwrap().len(), Tile::ALL.len());

        let dir = tempfile::tempdir().unwrap();
        assert_eq!(MatmulRates::load(dir.path(), gpu.info()), None);
        rates.store(dir.path(), gpu.info());
        assert_eq!(MatmulRates::load(dir.path(), gpu.info()), Some(rates.clone()));
        // The same adapter under another driver.
        let updated = AdapterInfo { driver: "newer".into(), ..gpu.info().clone() };
        assert_eq!(MatmulRates::load(dir.path(), &updated), None);
        // A file cut short.
        let path = path(dir.path(), gpu.info());
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(MatmulRates::load(dir.path(), gpu.info()), None);
    }

    #[test]
    fn rates_that_differ_from_the_expected_by_chance_are_the_expected() {
        let half = |factor: f64| Tile::ALL.map(|tile| tile.rates.map(|rate| (500.0 * factor * rate) as u32)).to_vec();
        let mut measured = half(1.0);
        measured[0] = measured[0].map(|rate| rate * 107 / 100);
        measured[3] = measured[3].map(|rate| rate * 94 / 100);
        let close = |a: &[u32; 4], b: &[u32; 4]| a.iter().zip(b).all(|(a, b)| a.abs_diff(*b) <= 2);
        assert!(without_noise(measured.clone()).iter().zip(&half(1.0)).all(|(a, b)| close(a, b)), "{measured:?}");
        // What differs by more stays, and so does a tile that does not run.
        measured[1] = measured[1].map(|rate| rate * 2);
        measured[2] = [0; 4];
        let kept = without_noise(measured.clone());
        assert_eq!((kept[1], kept[2]), (measured[1], measured[2]));
    }

    #[test]
    fn rates_without_one_of_a_tile_that_fits_are_none() {
        let limits = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
        let source = Source {
            rustyflow: String::new(),
            shader: String::new(),
            adapter: String::new(),
            backend: String::new(),
            driver: String::new(),
        };
        let all: BTreeMap<String, Rates> = Tile::ALL.iter().map(|t| (name(t), Rates { nn: 4, nt: 3, tn: 2 })).collect();
        assert_eq!(all.len(), Tile::ALL.len(), "names are unique");
        let mut rates = MatmulRates { source, tiles: all };
        assert_eq!(rates.table(&limits).unwrap().to_vec(), [[4, 3, 2, 2]; Tile::ALL.len()]);
        rates.tiles.remove(&name(&Tile::ALL[0]));
        assert_eq!(rates.table(&limits), None);
        assert_eq!(rates.table(&Limits::WEBGPU_DEFAULT).unwrap()[0], [0; 4], "too large a tile for this one");
    }
}
