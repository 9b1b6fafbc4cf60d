//! Caches bind groups: creating one takes longer than recording the launch that uses it.

use super::pipelines::Pipeline;
use super::recorder::BufferRange;
use rustc_hash::{FxHashMap, FxHashSet};

/// A bind group: its layout, then (memory, which of its buffers, offset, size) of each binding.
type Key = (usize, Vec<(u64, usize, u64, u64)>);

/// Everything that was bound before.
pub(super) struct BindGroups {
    device: wgpu::Device,
    groups: FxHashMap<Key, wgpu::BindGroup>,
}

/// Bind groups kept before the cache starts anew: far more than one training step needs.
const MAX_GROUPS: usize = 1 << 16;

impl BindGroups {
    pub fn new(device: wgpu::Device) -> BindGroups {
        BindGroups { device, groups: FxHashMap::default() }
    }

    /// The bind group of these ranges for this pipeline.
    pub fn get(&mut self, pipeline: &Pipeline, ranges: &[BufferRange]) -> &wgpu::BindGroup {
        let binding = |range: &BufferRange| {
            let alias = *range.allocation.alias.get().expect("decided before it is bound");
            (range.allocation.memory.id, alias, range.offset, range.bound_bytes())
        };
        let key = (pipeline.layout.id, ranges.iter().map(binding).collect());
        if self.groups.len() >= MAX_GROUPS {
            self.groups.clear();
        }
        self.groups.entry(key).or_insert_with(|| {
            let buffers: Vec<wgpu::Buffer> = ranges.iter().map(|range| range.allocation.buffer()).collect();
            let bindings = ranges.iter().zip(&buffers).map(|(range, buffer)| {
                let (offset, size) = (range.offset, wgpu::BufferSize::new(range.bound_bytes()));
                wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
            });
            let entries: Vec<wgpu::BindGroupEntry> =
                (0..).zip(bindings).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
            let layout = &pipeline.layout.raw;
            self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
        })
    }

    /// Drops the bind groups of these memories.
    pub fn forget(&mut self, memories: &FxHashSet<u64>) {
        self.groups.retain(|(_, bindings), _| !bindings.iter().any(|(memory, ..)| memories.contains(memory)));
    }

    /// Number of memories with bind groups.
    #[cfg(test)]
    pub fn memories(&self) -> usize {
        let bound = self.groups.keys().flat_map(|(_, bindings)| bindings.iter().map(|(memory, ..)| *memory));
        bound.collect::<FxHashSet<u64>>().len()
    }

    /// Drops all bind groups.
    pub fn clear(&mut self) {
        self.groups.clear();
    }
}
