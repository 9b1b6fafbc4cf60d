//! Compiles the kernels of a run's steps while its text is tokenized and its model is created: a thread records steps
//! on a `DryRun` and compiles their shaders. The first step compiles any others.

use super::Footprint;
use crate::config::Config;
use crate::gpu::Gpu;
use crate::models::ModelConfig;
use crate::profile::Ahead;
use crate::train::step::ranks::{Place, Share};
use crate::{Device, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// Compiling that may be under way. It ends when this is dropped.
#[derive(Default)]
pub(in crate::train) struct Precompile {
    /// Ends the newest threads.
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Option<Ahead>>>,
    in_documents: bool,
    has_begun: bool,
}

impl Precompile {
    /// Starts for every GPU of `devices`, the ranks from `place` on; `in_documents`: rows hold several documents. Stops
    /// an earlier start.
    pub fn begin(
        &mut self,
        config: &Config,
        shape: &ModelConfig,
        in_documents: bool,
        devices: &[&Device],
        place: Place,
    ) {
        self.stop.store(true, Ordering::Relaxed);
        self.stop = Arc::default();
        (self.in_documents, self.has_begun) = (in_documents, true);
        // Whoever takes up the shares says what is wrong with them.
        let Ok(shares) = Share::all(config, shape.kind, place.ranks) else { return };
        for ((device, share), rank) in devices.iter().zip(shares.into_iter().skip(place.rank)).zip(place.rank..) {
            let Device::Gpu(gpu) = device else { continue };
            let (gpu, config, shape, stop) = (gpu.clone(), config.clone(), shape.clone(), self.stop.clone());
            let place = Place { rank, ..place };
            let compile = move || compile((&gpu, place), &config, &shape, &share, in_documents, &stop).ok();
            // Without a thread the first step compiles, as ever.
            self.threads.extend(std::thread::Builder::new().name("precompile".into()).spawn(compile));
        }
    }

    /// Whether it has started.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether it compiles for rows of several documents.
    pub fn is_in_documents(&self) -> bool {
        self.in_documents
    }

    /// Waits until everything is compiled; returns the work done for each GPU.
    pub fn finish(&mut self) -> Vec<Ahead> {
        self.threads.drain(..).filter_map(|thread| thread.join().ok().flatten()).collect()
    }
}

impl Drop for Precompile {
    fn drop(&mut self) {
        // A process that ends must not do so while its driver compiles.
        self.stop.store(true, Ordering::Relaxed);
        self.finish();
    }
}

/// Compiles the launches of a rank with this share.
fn compile(
    (gpu, place): (&Gpu, Place),
    config: &Config,
    shape: &ModelConfig,
    share: &Share,
    in_documents: bool,
    stop: &AtomicBool,
) -> Result<Ahead> {
    let started = Instant::now();
    let (rows, micro_batches) = share.micro_batches();
    // Two micro-batches launch what any number of them do.
    let on = (&Device::Gpu(gpu.clone()), place);
    let Footprint { launches, .. } = Footprint::new(config, shape, rows, micro_batches.min(2), in_documents, on)?;
    let (planning, before) = (started.elapsed().as_secs_f64(), gpu.compiled());
    gpu.precompile(&launches, stop);
    let ahead =
        Ahead { planning, compiling: started.elapsed().as_secs_f64() - planning, variants: gpu.compiled() - before };
    tracing::info!(?ahead, "compiled the kernels of a step beside the preparation");
    Ok(ahead)
}
