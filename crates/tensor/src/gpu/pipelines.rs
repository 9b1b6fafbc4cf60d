//! Compiles each shader variant once across all threads, and caches pipelines and their layouts.

use super::checked::CheckedVariants;
use super::pipeline_cache::PipelineCache;
use super::plan::{Interface, Launch, Limits, PARAMS_BYTES, Value};
use super::shader;
use super::subgroup_barriers::{self, SUBGROUP_BARRIER};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// A compiled variant of a shader.
pub(super) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: Arc<BindingLayout>,
    interface: Interface,
}

/// Which bindings are read-only; pipelines with the same pattern share the layout.
pub(super) struct BindingLayout {
    pub id: usize,
    pub raw: wgpu::BindGroupLayout,
}

/// The values that a shader is rendered with.
type Values = Vec<(&'static str, Value)>;
/// [`Shader::id`](super::Shader::id).
type ShaderId = (&'static str, usize);
/// Of a variant: empty until it is compiled. Who needs it while another thread compiles it waits for that.
type Slot = Arc<OnceLock<Arc<Pipeline>>>;

/// Everything that was compiled before; threads share it.
pub(super) struct Pipelines {
    device: wgpu::Device,
    limits: Limits,
    /// Layout of the parameter uniform, on devices without immediates.
    pub params_layout: Option<wgpu::BindGroupLayout>,
    /// The on-disk cache; `None` if disabled or unsupported.
    cache: Option<PipelineCache>,
    variants: RwLock<FxHashMap<ShaderId, FxHashMap<Values, Slot>>>,
    layouts: Mutex<HashMap<Vec<bool>, Arc<BindingLayout>>>,
    /// Variants of checked shaders.
    pub checked: CheckedVariants,
    /// Variants compiled so far.
    compiled: AtomicUsize,
}

impl Pipelines {
    pub fn new(device: wgpu::Device, limits: Limits, cache: Option<PipelineCache>) -> Pipelines {
        let params_layout = (!limits.immediates).then(|| params_layout(&device));
        let (variants, layouts, checked, compiled) = Default::default();
        Pipelines { device, limits, params_layout, cache, variants, layouts, checked, compiled }
    }

    /// The pipeline of `launch`, if compiled.
    pub fn get(&self, launch: &Launch) -> Option<Arc<Pipeline>> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        let pipeline = variants.get(&launch.shader.id())?.get(launch.values.as_slice())?.get()?;
        debug_assert_eq!(pipeline.interface, launch.interface(), "{} {:?}", launch.shader.name, launch.values);
        Some(pipeline.clone())
    }

    /// The variant that `launch` runs, which is compiled first if nobody has.
    fn get_or_compile(&self, launch: &Launch) -> Arc<Pipeline> {
        self.get(launch).unwrap_or_else(|| {
            let slot = {
                let mut variants = self.variants.write().unwrap_or_else(PoisonError::into_inner);
                let of_shader = variants.entry(launch.shader.id()).or_default();
                of_shader.entry(launch.values.clone()).or_default().clone()
            };
            slot.get_or_init(|| Arc::new(self.compile(launch))).clone()
        })
    }

    /// Compiles the missing variants of these launches on all threads of the pool, until `stop` is set.
    pub fn compile_all<'a>(&self, launches: impl Iterator<Item = &'a Launch>, stop: &AtomicBool) {
        let mut seen = HashSet::new();
        let is_new =
            |launch: &&'a Launch| self.get(launch).is_none() && seen.insert((launch.shader.id(), &launch.values));
        let missing: Vec<&Launch> = launches.filter(is_new).collect();
        let next = AtomicUsize::new(0);
        // No threads of the pool: those are for what other threads do meanwhile.
        std::thread::scope(|scope| {
            for _ in 0..rayon::current_num_threads().min(missing.len()) {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed)
                        && let Some(launch) = missing.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        self.get_or_compile(launch);
                    }
                });
            }
        });
    }

    /// Number of variants compiled so far.
    pub fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }

    fn layout(&self, read_only: Vec<bool>) -> Arc<BindingLayout> {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layout) = layouts.get(&read_only) {
            return layout.clone();
        }
        let entries: Vec<wgpu::BindGroupLayoutEntry> = read_only
            .iter()
            .enumerate()
            .map(|(i, &read_only)| wgpu::BindGroupLayoutEntry {
                binding: i as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let raw =
            self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let layout = Arc::new(BindingLayout { id: layouts.len(), raw });
        layouts.insert(read_only, layout.clone());
        layout
    }

    /// Compiles the pipeline of `launch`.
    fn compile(&self, launch: &Launch) -> Pipeline {
        let (started, name) = (Instant::now(), launch.shader.name);
        let layout = self.layout(launch.buffers.iter().map(|buffer| buffer.operand.is_read_only()).collect());
        // Ours ship with the binary, and `tests/shaders` renders every variant; others were checked before.
        let wgsl = shader::source_of(launch, &self.limits).unwrap_or_else(|e| panic!("{name}: {}", e.message));
        let source = shader_source(wgsl);
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(name), source };
        let checks = match cfg!(debug_assertions) || launch.shader.checked {
            true => wgpu::ShaderRuntimeChecks::checked(),
            false => wgpu::ShaderRuntimeChecks::unchecked(),
        };
        // SAFETY: the shaders without checks are our own, end their loops, and are tested with the checks on.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let words = 4 * launch.params.len();
        assert!(words <= PARAMS_BYTES, "{name}: {words} bytes of parameters");
        let groups = [Some(&layout.raw), self.params_layout.as_ref()];
        let uniform = self.params_layout.is_some() && words > 0;
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: if uniform { &groups } else { &groups[..1] },
            immediate_size: if self.limits.immediates { words as u32 } else { 0 },
        });
        let raw = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.cache.as_ref().map(|cache| &cache.raw),
        });
        tracing::debug!(shader = name, values = ?launch.values, elapsed_ms = started.elapsed().as_millis(), "compiled");
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Pipeline { raw, layout, interface: launch.interface() }
    }
}

/// WGSL as wgpu takes it.
fn shader_source(wgsl: String) -> wgpu::ShaderSource<'static> {
    let for_vulkan = cfg!(not(target_vendor = "apple")) && wgsl.contains(SUBGROUP_BARRIER);
    // What does not parse goes to wgpu as well, which reports it.
    match for_vulkan.then(|| subgroup_barriers::parse(&wgsl)) {
        Some(Ok(module)) => wgpu::ShaderSource::Naga(Cow::Owned(module)),
        _ => wgpu::ShaderSource::Wgsl(wgsl.into()),
    }
}

/// The layout of group 1: one uniform, at an offset that each dispatch has for its own.
fn params_layout(device: &wgpu::Device) -> wgpu::BindGroupLayout {
    let ty = wgpu::BindingType::Buffer {
        ty: wgpu::BufferBindingType::Uniform,
        has_dynamic_offset: true,
        min_binding_size: None,
    };
    let entry = wgpu::BindGroupLayoutEntry { binding: 0, visibility: wgpu::ShaderStages::COMPUTE, ty, count: None };
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some("params"), entries: &[entry] })
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        // At the end of a command: nothing waits for it, and everything that it ran is there.
        if let Some(cache) = self.cache.as_ref().filter(|_| self.compiled() > 0) {
            cache.save();
        }
    }
}
