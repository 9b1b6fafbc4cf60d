//! An opened GPU: device, pools, recorder, and the first error that its driver reported.

use super::copy_queues::CopyQueues;
use super::encoder::Encoder;
use super::memory::Released;
use super::pipeline_cache::PipelineCache;
use super::pipelines::Pipelines;
use super::plan::{ChoiceCache, Launch, Limits};
use super::pool::Pool;
use super::readback::{StagingPool, UploadPool};
use super::recorder::Recorder;
use super::submit::KERNELS_WHEN_IDLE;
use super::submitter::Submitter;
use super::{AdapterChoice, AdapterInfo, adapter};
use crate::profile::Profiler;
use crate::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle to an opened GPU, with the limits for kernels run through it; clones share both.
#[derive(Clone)]
pub struct Gpu(pub(super) Arc<Context>, pub(super) Arc<Limits>);

pub(super) struct Context {
    pub(super) info: AdapterInfo,
    pub(super) device: wgpu::Device,
    pub(super) profiler: Arc<Profiler>,
    pub(super) pool: Arc<Pool>,
    pub(super) pipelines: Arc<Pipelines>,
    /// Locked before the submitter's encoder.
    pub(super) recorder: Mutex<Recorder>,
    pub(super) submitter: Submitter,
    pub(super) has_timestamps: bool,
    /// Kernels recorded before the next submit happens by itself.
    pub(super) kernels_per_submit: AtomicUsize,
    /// Kernels recorded and batches of them handed over, ever.
    pub(super) counts: [AtomicU64; 2],
    pub(super) staging_pool: StagingPool,
    pub(super) upload_pool: UploadPool,
    pub(super) copy_queues: Option<CopyQueues>,
    /// The first error that the driver reported outside a call.
    pub(super) fault: Arc<Mutex<Option<Fault>>>,
    /// Memory limit, bytes.
    pub(super) memory_bytes: usize,
    /// The last field: wgpu's queue, which the submitter has, waits when it is dropped until the GPU is done, or lost,
    /// and only then lets go of what submits use.
    pub(super) released: Released,
}

impl Drop for Context {
    fn drop(&mut self) {
        self.submitter.finish();
    }
}

/// An error that the driver reports asynchronously.
pub(super) enum Fault {
    Lost(String),
    Reported(String),
}

impl Gpu {
    /// Opens the chosen adapter.
    ///
    /// # Errors
    /// [`Error::NoAdapter`], which lists the adapters found and a remedy.
    pub fn open(choice: &AdapterChoice) -> Result<Gpu> {
        let adapter::Opened { info, device, queue, copy_queues, coop_matrix, pipeline_cache_key } =
            adapter::open(choice)?;
        let limits = limits(&info, &device, coop_matrix);
        let fault = Arc::new(Mutex::new(None));
        let sink = fault.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            let fault = Fault::Reported(e.to_string());
            sink.lock().unwrap_or_else(|p| p.into_inner()).get_or_insert(fault);
        }));
        // It explains whatever else was reported.
        let sink = fault.clone();
        let lose = move |message| *sink.lock().unwrap_or_else(|p| p.into_inner()) = Some(Fault::Lost(message));
        let lose_device = lose.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                lose_device(message);
            }
        });
        let kept = choice.cache.as_deref().zip(pipeline_cache_key);
        let cache = kept.and_then(|(folder, key)| PipelineCache::open(&device, folder, key));
        let pipelines = Arc::new(Pipelines::new(device.clone(), limits.clone(), cache));
        let profiler = Arc::new(Profiler::new());
        let recorder = Recorder::new(pipelines.clone(), profiler.clone());
        let (pipes, profile, released) = (pipelines.clone(), profiler.clone(), Released::default());
        let encoder = Encoder::new(device.clone(), queue, copy_queues.clone(), pipes, profile, released.clone());
        let has_timestamps = encoder.has_timestamps();
        let (pool, staging_pool) = (Arc::default(), StagingPool::default());
        let kernels_per_submit = AtomicUsize::new(KERNELS_WHEN_IDLE);
        let memory_bytes = choice.memory_bytes.unwrap_or(usize::MAX);
        let context = Context {
            info,
            device,
            profiler,
            pool,
            pipelines,
            recorder: Mutex::new(recorder),
            submitter: Submitter::new(encoder, lose),
            has_timestamps,
            kernels_per_submit,
            counts: Default::default(),
            staging_pool,
            upload_pool: UploadPool::default(),
            copy_queues,
            fault,
            memory_bytes,
            released,
        };
        Ok(Gpu(Arc::new(context), Arc::new(limits)))
    }

    /// The opened adapter.
    pub fn info(&self) -> &AdapterInfo {
        &self.0.info
    }

    pub(super) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.0.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vendor's PCI number and the card's PCI address. `None` if the driver does not tell.
    pub(crate) fn pci(&self) -> Option<(u32, String)> {
        let info = self.0.device.adapter_info();
        (!info.device_pci_bus_id.is_empty()).then_some((info.vendor, info.device_pci_bus_id))
    }

    /// The device's limits and features, as kernels use them.
    pub fn limits(&self) -> &Limits {
        &self.1
    }

    /// The same GPU with autotuned tile throughput ([`Limits::matmul_throughput`]).
    pub fn with_matmul_throughput(self, gflops: Arc<[[u32; 4]]>) -> Gpu {
        let limits = Limits { matmul_throughput: Some(gflops), ..Limits::clone(&self.1) };
        Gpu(self.0, Arc::new(limits))
    }

    /// The same GPU with [`Limits::split_fp16`] on or off; off without cooperative matrices.
    pub fn with_split_fp16(self, on: bool) -> Gpu {
        let limits = Limits { split_fp16: on && self.1.coop_matrix > 0, ..Limits::clone(&self.1) };
        Gpu(self.0, Arc::new(limits))
    }

    /// Number of shader variants compiled since it was opened.
    pub fn compiled(&self) -> usize {
        self.0.pipelines.compiled()
    }

    /// Compiles the shaders of these launches on all cores; returns when all are compiled, or soon after `stop` is set.
    /// Other threads may record and submit meanwhile: they compile the shaders they need, or wait for those being
    /// compiled.
    pub fn precompile(&self, launches: &[Launch], stop: &AtomicBool) {
        let pipelines = &self.0.pipelines;
        // One that is refused is refused again, with an error, when it is to run.
        let runs = |launch: &&Launch| launch.workgroups > 0 && pipelines.checked.expect("", launch, &self.1).is_ok();
        pipelines.compile_all(launches.iter().filter(runs), stop);
    }

    /// The profiler of its kernels.
    pub fn profiler(&self) -> &Profiler {
        &self.0.profiler
    }

    /// Whether two handles refer to the same opened GPU.
    pub fn same(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Simulates a lost device.
    #[cfg(feature = "testing")]
    pub fn lose_for_tests(&self) {
        *self.0.fault.lock().unwrap_or_else(|p| p.into_inner()) = Some(Fault::Lost("by a test".into()));
        self.0.device.destroy();
    }

    /// The first error that the driver reported, if any.
    pub(super) fn check(&self) -> Result<()> {
        match &*self.0.fault.lock().unwrap_or_else(|p| p.into_inner()) {
            Some(Fault::Lost(message)) => Err(Error::DeviceLost(message.clone())),
            Some(Fault::Reported(message)) => Err(Error::Gpu(message.clone())),
            None => Ok(()),
        }
    }
}

/// Limits of an opened device with cooperative matrices of this size.
fn limits(info: &AdapterInfo, device: &wgpu::Device, coop_matrix: u32) -> Limits {
    let granted = device.limits();
    let subgroup_size = match info.subgroup_size {
        [min, max] if min == max && device.features().contains(wgpu::Features::SUBGROUP) => min,
        _ => 0,
    };
    // Their kernels must know how many threads hold a matrix together.
    let coop_matrix = if subgroup_size > 0 { coop_matrix } else { 0 };
    Limits {
        binding_bytes: granted.max_storage_buffer_binding_size,
        buffer_bytes: granted.max_buffer_size,
        workgroup_bytes: granted.max_compute_workgroup_storage_size,
        workgroup_threads: granted.max_compute_invocations_per_workgroup,
        immediates: device.features().contains(wgpu::Features::IMMEDIATES),
        f16: device.features().contains(wgpu::Features::SHADER_F16),
        subgroup_size,
        coop_matrix,
        split_fp16: coop_matrix > 0 && adapter::known_for_fast_tensor_cores(&info.name),
        gpu_model: adapter::gpu_model(&info.name),
        matmul_throughput: None,
        choices: ChoiceCache::new(),
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "gpu:{}", self.0.info.index)
    }
}
