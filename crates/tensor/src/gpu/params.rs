//! Launch parameters as uniforms, for devices without immediates: one buffer per submit, with an offset per dispatch.

use super::plan::{PARAMS_BYTES, Param};

/// WebGPU's largest alignment of a uniform's offset.
const ALIGN: usize = 256;

/// The words of a launch's parameters, as immediates or in a uniform.
pub(super) fn words(params: &[Param]) -> Vec<u32> {
    params.iter().map(|param| param.bits).collect()
}

/// The uniform buffer, and the parameters of the submit being recorded.
pub(super) struct Uniforms {
    device: wgpu::Device,
    layout: wgpu::BindGroupLayout,
    buffer: wgpu::Buffer,
    pub group: wgpu::BindGroup,
    bytes: Vec<u8>,
}

impl Uniforms {
    pub fn new(device: &wgpu::Device, layout: &wgpu::BindGroupLayout) -> Uniforms {
        let (buffer, group) = make(device, layout, 256 * ALIGN);
        Uniforms { device: device.clone(), layout: layout.clone(), buffer, group, bytes: Vec::new() }
    }

    /// Reserves space for this number of launches; call before the first of a submit.
    pub fn reserve(&mut self, launches: usize) {
        let needed = (launches * ALIGN) as u64;
        if self.buffer.size() < needed {
            (self.buffer, self.group) = make(&self.device, &self.layout, needed.next_power_of_two() as usize);
        }
    }

    /// Adds a launch's parameters; the offset to bind them at.
    pub fn push(&mut self, words: &[u32]) -> u32 {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(bytemuck::cast_slice(words));
        self.bytes.resize(offset + ALIGN, 0);
        offset as u32
    }

    /// Uploads them for the next submit; earlier submits keep theirs.
    pub fn write(&mut self, queue: &wgpu::Queue) {
        if !self.bytes.is_empty() {
            queue.write_buffer(&self.buffer, 0, &self.bytes);
            self.bytes.clear();
        }
    }
}

fn make(device: &wgpu::Device, layout: &wgpu::BindGroupLayout, size: usize) -> (wgpu::Buffer, wgpu::BindGroup) {
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("params"),
        size: size as u64,
        usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let binding = wgpu::BufferBinding { buffer: &buffer, offset: 0, size: wgpu::BufferSize::new(PARAMS_BYTES as u64) };
    let entries = [wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(binding) }];
    let group =
        device.create_bind_group(&wgpu::BindGroupDescriptor { label: Some("params"), layout, entries: &entries });
    (buffer, group)
}
