//! Compiles each shader variant once and caches pipelines, layouts and bind groups.

use super::pipeline_cache::PipelineCache;
use super::plan::{Launch, Operand, Value};
use super::pool::GpuSlice;
use super::shader;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A compiled variant of a shader.
pub(super) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    layout: Rc<BindingLayout>,
}

/// Which bindings are read-only; pipelines with the same pattern share the layout.
struct BindingLayout {
    id: usize,
    raw: wgpu::BindGroupLayout,
}

/// A shader's variant: its name and the values it was rendered with.
type Variant = (&'static str, Vec<(&'static str, Value)>);
/// A bind group: its layout, then (buffer, offset, size) of each binding.
type Group = (usize, Vec<(u64, usize, usize)>);

/// Everything that was compiled or bound before.
pub(super) struct Pipelines {
    device: wgpu::Device,
    /// What outlasts the process; `None` where nothing is to be kept or nothing can be.
    cache: Option<PipelineCache>,
    variants: HashMap<Variant, Rc<Pipeline>>,
    layouts: HashMap<Vec<bool>, Rc<BindingLayout>>,
    groups: HashMap<Group, wgpu::BindGroup>,
}

/// Bind groups kept before the cache starts anew: far more than one training step needs.
const MAX_GROUPS: usize = 1 << 16;

impl Pipelines {
    pub fn new(device: wgpu::Device, cache: Option<PipelineCache>) -> Pipelines {
        Pipelines { device, cache, variants: HashMap::new(), layouts: HashMap::new(), groups: HashMap::new() }
    }

    /// The compiled variant that `launch` runs, and how long compiling took if it was not there yet.
    pub fn pipeline(&mut self, launch: &Launch) -> (Rc<Pipeline>, Duration) {
        let variant = (launch.shader.name, launch.values.clone());
        if let Some(pipeline) = self.variants.get(&variant) {
            return (pipeline.clone(), Duration::ZERO);
        }
        let started = Instant::now();
        let read_only: Vec<bool> =
            launch.bindings.iter().map(|b| matches!(b, Operand::Input(_) | Operand::ReadScratch(_))).collect();
        let pipeline = Rc::new(self.compile(launch, read_only));
        self.variants.insert(variant, pipeline.clone());
        let elapsed = started.elapsed();
        tracing::debug!(shader = launch.shader.name, values = ?launch.values, elapsed_ms = elapsed.as_millis(), "compiled");
        (pipeline, elapsed)
    }

    fn compile(&mut self, launch: &Launch, read_only: Vec<bool>) -> Pipeline {
        let name = launch.shader.name;
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(name),
            source: wgpu::ShaderSource::Wgsl(shader::source_of(launch).into()),
        };
        let checks = if cfg!(debug_assertions) {
            wgpu::ShaderRuntimeChecks::checked()
        } else {
            wgpu::ShaderRuntimeChecks::unchecked()
        };
        // SAFETY: the shaders are our own, end their loops, and are tested with the checks on.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let layout = self.layout(read_only);
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(&layout.raw)],
            immediate_size: 4 * launch.params.len() as u32,
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
        Pipeline { raw, layout }
    }

    fn layout(&mut self, read_only: Vec<bool>) -> Rc<BindingLayout> {
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
        let layout = Rc::new(BindingLayout { id: self.layouts.len(), raw });
        self.layouts.insert(read_only, layout.clone());
        layout
    }

    /// The bind group of these slices for this pipeline.
    ///
    /// Bindings reach to the next multiple of 16 bytes, so that a shader may read a tensor's last elements as a vec4.
    pub fn bind_group(&mut self, pipeline: &Pipeline, slices: &[&GpuSlice]) -> wgpu::BindGroup {
        let key = (
            pipeline.layout.id,
            slices.iter().map(|s| (s.buffer.id, s.offset, s.size.max(4).next_multiple_of(16))).collect::<Vec<_>>(),
        );
        if let Some(group) = self.groups.get(&key) {
            return group.clone();
        }
        if self.groups.len() >= MAX_GROUPS {
            self.groups.clear();
        }
        let entries: Vec<wgpu::BindGroupEntry> = slices
            .iter()
            .zip(&key.1)
            .enumerate()
            .map(|(i, (slice, &(_, offset, size)))| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: slice.buffer.raw(),
                    offset: offset as u64,
                    size: wgpu::BufferSize::new(size as u64),
                }),
            })
            .collect();
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout.raw,
            entries: &entries,
        });
        self.groups.insert(key, group.clone());
        group
    }
}

impl Pipelines {
    /// Lets go of the buffers that cached bind groups hold.
    pub fn forget_bind_groups(&mut self) {
        self.groups.clear();
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        // At the end of a command: nothing waits for it, and everything that it ran is there.
        if let Some(cache) = self.cache.as_ref().filter(|_| !self.variants.is_empty()) {
            cache.save();
        }
    }
}
