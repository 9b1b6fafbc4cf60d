//! Compiles each shader variant once and caches pipelines, layouts and bind groups.

use super::pipeline_cache::PipelineCache;
use super::plan::{Interface, Launch, Limits, PARAMS_BYTES, Value};
use super::recorder::BufferRange;
use super::shader;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A compiled variant of a shader.
pub(super) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    layout: Arc<BindingLayout>,
    interface: Interface,
}

/// Which bindings are read-only; pipelines with the same pattern share the layout.
struct BindingLayout {
    id: usize,
    raw: wgpu::BindGroupLayout,
}

/// The values that a shader is rendered with.
type Values = Vec<(&'static str, Value)>;
/// A bind group: its layout, then (buffer, offset, size) of each binding.
type Group = (usize, Vec<(u64, u64, u64)>);

/// Everything that was compiled or bound before.
pub(super) struct Pipelines {
    device: wgpu::Device,
    limits: Limits,
    /// Of the uniform that holds a launch's parameters, where they are no immediates.
    pub params_layout: Option<wgpu::BindGroupLayout>,
    /// What outlasts the process; `None` where nothing is to be kept or nothing can be.
    cache: Option<PipelineCache>,
    /// By the shader's name.
    variants: FxHashMap<&'static str, FxHashMap<Values, Arc<Pipeline>>>,
    layouts: HashMap<Vec<bool>, Arc<BindingLayout>>,
    groups: FxHashMap<Group, wgpu::BindGroup>,
}

/// Bind groups kept before the cache starts anew: far more than one training step needs.
const MAX_GROUPS: usize = 1 << 16;

impl Pipelines {
    pub fn new(device: wgpu::Device, limits: Limits, cache: Option<PipelineCache>) -> Pipelines {
        let params_layout = (!limits.immediates).then(|| params_layout(&device));
        let (variants, layouts, groups) = (HashMap::default(), HashMap::new(), HashMap::default());
        Pipelines { device, limits, params_layout, cache, variants, layouts, groups }
    }

    /// The variant that `launch` runs, if it is compiled.
    pub fn compiled(&self, launch: &Launch) -> Option<Arc<Pipeline>> {
        let pipeline = self.variants.get(launch.shader.name)?.get(launch.values.as_slice())?;
        debug_assert_eq!(pipeline.interface, launch.interface(), "{} {:?}", launch.shader.name, launch.values);
        Some(pipeline.clone())
    }

    /// Compiles the variants that these run, on all cores, and says how long it took.
    pub fn compile(&mut self, launches: &[&Launch]) -> Duration {
        let started = Instant::now();
        let missing: HashMap<_, _> = launches.iter().map(|l| ((l.shader.name, &l.values), *l)).collect();
        let missing: Vec<&Launch> = missing.into_values().collect();
        let layouts: Vec<_> = missing.iter().map(|launch| self.layout(read_only(launch))).collect();
        let raw_layouts: Vec<_> = layouts.iter().map(|layout| &layout.raw).collect();
        let jobs = missing.par_iter().zip(raw_layouts);
        let compiled: Vec<_> = jobs.map(|(launch, layout)| self.compile_one(launch, layout)).collect();
        for ((launch, layout), raw) in missing.into_iter().zip(layouts).zip(compiled) {
            let variants = self.variants.entry(launch.shader.name).or_default();
            variants.insert(launch.values.clone(), Arc::new(Pipeline { raw, layout, interface: launch.interface() }));
        }
        started.elapsed()
    }

    fn layout(&mut self, read_only: Vec<bool>) -> Arc<BindingLayout> {
        if let Some(layout) = self.layouts.get(&read_only) {
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
        let layout = Arc::new(BindingLayout { id: self.layouts.len(), raw });
        self.layouts.insert(read_only, layout.clone());
        layout
    }

    /// The bind group of these ranges for this pipeline.
    ///
    /// Bindings reach to the next multiple of 16 bytes, so that a shader may read a tensor's last elements as a vec4.
    pub fn bind_group(&mut self, pipeline: &Pipeline, ranges: &[BufferRange]) -> &wgpu::BindGroup {
        let size = |range: &BufferRange| range.size.max(4).next_multiple_of(16);
        let key = (pipeline.layout.id, ranges.iter().map(|range| (range.id, range.offset, size(range))).collect());
        if self.groups.len() >= MAX_GROUPS {
            self.groups.clear();
        }
        self.groups.entry(key).or_insert_with(|| {
            let bindings = ranges.iter().map(|range| {
                let (offset, size) = (range.offset, wgpu::BufferSize::new(size(range)));
                wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: &range.buffer, offset, size })
            });
            let entries: Vec<wgpu::BindGroupEntry> =
                (0..).zip(bindings).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
            let layout = &pipeline.layout.raw;
            self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
        })
    }

    /// Lets go of the buffers that cached bind groups hold.
    pub fn forget_bind_groups(&mut self) {
        self.groups.clear();
    }

    /// What `launch` runs.
    fn compile_one(&self, launch: &Launch, layout: &wgpu::BindGroupLayout) -> wgpu::ComputePipeline {
        let (started, name) = (Instant::now(), launch.shader.name);
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(name),
            source: wgpu::ShaderSource::Wgsl(shader::source_of(launch, &self.limits).into()),
        };
        let checks = match cfg!(debug_assertions) || launch.shader.checked {
            true => wgpu::ShaderRuntimeChecks::checked(),
            false => wgpu::ShaderRuntimeChecks::unchecked(),
        };
        // SAFETY: the shaders without checks are our own, end their loops, and are tested with the checks on.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let words = 4 * launch.params.len();
        assert!(words <= PARAMS_BYTES, "{name}: {words} bytes of parameters");
        let groups = [Some(layout), self.params_layout.as_ref()];
        let uniform = self.params_layout.is_some() && words > 0;
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: if uniform { &groups } else { &groups[..1] },
            immediate_size: if self.limits.immediates { words as u32 } else { 0 },
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
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
        pipeline
    }
}

fn read_only(launch: &Launch) -> Vec<bool> {
    launch.buffers.iter().map(|buffer| buffer.operand.is_read_only()).collect()
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
        if let Some(cache) = self.cache.as_ref().filter(|_| !self.variants.is_empty()) {
            cache.save();
        }
    }
}
