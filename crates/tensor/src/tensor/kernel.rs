//! Kernels, and running them on tensors: the one place where a device is told to compute.

use super::context::call_hook;
use super::{DType, Device, Spec, Storage, Tensor, upcast};
use crate::cpu::{self, CpuSlice};
use crate::gpu::{Limits, Plan};
use crate::profile::{Cost, MemoryKind};
use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Kernels that the CPU has run.
static CPU_KERNELS: AtomicU64 = AtomicU64::new(0);

pub(super) fn cpu_kernels() -> u64 {
    CPU_KERNELS.load(Ordering::Relaxed)
}

/// An input of a CPU kernel.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub spec: &'a Spec,
    pub(super) bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// f32 values that are no tensor's.
    pub(crate) fn of(spec: &'a Spec, values: &'a [f32]) -> View<'a> {
        View { spec, bytes: bytemuck::cast_slice(values) }
    }

    /// The elements as f32 (the kernel's `output_specs` has checked the type).
    pub fn f32(&self) -> &'a [f32] {
        debug_assert_eq!(self.spec.dtype, DType::F32);
        bytemuck::cast_slice(self.bytes)
    }

    /// The words of a quantized matrix.
    pub(crate) fn words(&self) -> &'a [u32] {
        bytemuck::cast_slice(self.bytes)
    }

    /// The elements as u32.
    pub fn u32(&self) -> &'a [u32] {
        debug_assert_eq!(self.spec.dtype, DType::U32);
        bytemuck::cast_slice(self.bytes)
    }
}

/// An output of a CPU kernel.
pub struct ViewMut<'a> {
    pub spec: &'a Spec,
    pub(super) bytes: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// f32 values that are no tensor's.
    pub(crate) fn of(spec: &'a Spec, values: &'a mut [f32]) -> ViewMut<'a> {
        ViewMut { spec, bytes: bytemuck::cast_slice_mut(values) }
    }

    /// The elements as f32.
    pub fn f32(&mut self) -> &mut [f32] {
        debug_assert_eq!(self.spec.dtype, DType::F32);
        bytemuck::cast_slice_mut(self.bytes)
    }

    /// The elements as u32.
    pub fn u32(&mut self) -> &mut [u32] {
        debug_assert_eq!(self.spec.dtype, DType::U32);
        bytemuck::cast_slice_mut(self.bytes)
    }
}

/// A computation that every device can do. There are no default bodies: an op without a GPU kernel does not compile.
pub trait Kernel {
    /// What the profile calls it.
    fn name(&self) -> &'static str;

    /// Shape and type of each output. All checks of the inputs live here.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] with what was expected and what was got.
    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>>;

    /// The arithmetic and traffic that it cannot do without.
    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost;

    /// Computes every element of every output on the CPU, in f32: of f16 tensors it gets the values as f32, and what it
    /// computes for them is rounded to f16 afterwards.
    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]);

    /// What to launch on a GPU so that every element of every output is computed.
    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], limits: &Limits) -> Plan;
}

/// Runs a kernel into new tensors, whose memory counts as activations. Nothing is recorded on the tape.
pub(crate) fn run(kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    run_as(MemoryKind::Activations, kernel, inputs)
}

/// [`run`] into memory of this kind.
pub(crate) fn run_as(kind: MemoryKind, kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let specs: Vec<&Spec> = inputs.iter().map(|t| t.spec()).collect();
    let device = common_device(kernel.name(), inputs)?;
    let output_specs = kernel.output_specs(&specs)?;
    if output_specs.is_empty() {
        return Err(Error::Shape { op: kernel.name(), expected: "an output or more".into(), got: "none".into() });
    }
    let outputs = output_specs.into_iter().map(|spec| Tensor::empty(spec, &device, kind));
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    let written: Vec<&Tensor> = outputs.iter().collect();
    launch(kernel, inputs, &written)?;
    call_hook(kernel.name(), inputs, &written);
    Ok(outputs)
}

/// Runs a kernel into tensors that exist. Nothing is recorded on the tape.
pub(crate) fn run_into(kernel: &dyn Kernel, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
    let specs: Vec<&Spec> = inputs.iter().map(|t| t.spec()).collect();
    let expected = kernel.output_specs(&specs)?;
    for (expected, output) in expected.iter().zip(outputs) {
        if expected.dtype != output.dtype() || expected.shape.elements() != output.len() {
            return Err(Error::Shape {
                op: kernel.name(),
                expected: format!("an output {expected}"),
                got: output.spec().to_string(),
            });
        }
    }
    common_device(kernel.name(), &[inputs, outputs].concat())?;
    launch(kernel, inputs, outputs)?;
    call_hook(kernel.name(), inputs, outputs);
    Ok(())
}

fn launch(kernel: &dyn Kernel, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
    inputs.iter().chain(outputs).try_for_each(|tensor| tensor.expect_in_one_buffer(kernel.name()))?;
    let input_specs: Vec<&Spec> = inputs.iter().map(|t| t.spec()).collect();
    let output_specs: Vec<&Spec> = outputs.iter().map(|t| t.spec()).collect();
    let cost = kernel.cost(&input_specs, &output_specs);
    match outputs[0].storage() {
        Storage::DryRun(slice) => {
            slice.device().note(kernel.name(), cost, |limits| kernel.gpu(&input_specs, &output_specs, limits));
            Ok(())
        }
        Storage::Cpu(_) => {
            let started = Instant::now();
            CPU_KERNELS.fetch_add(1, Ordering::Relaxed);
            let read: Vec<&CpuSlice> = inputs.iter().map(|t| t.storage().cpu()).collect();
            let write: Vec<&CpuSlice> = outputs.iter().map(|t| t.storage().cpu()).collect();
            CpuSlice::with_slices(&read, &write, |read, write| {
                if input_specs.iter().chain(&output_specs).any(|spec| spec.dtype == DType::F16) {
                    return upcast::run_in_f32(kernel, read, &input_specs, write, &output_specs);
                }
                let views: Vec<View> =
                    read.iter().zip(&input_specs).map(|(bytes, spec)| View { spec, bytes }).collect();
                let mut views_mut: Vec<ViewMut> =
                    write.iter_mut().zip(&output_specs).map(|(bytes, spec)| ViewMut { spec, bytes }).collect();
                kernel.cpu(&views, &mut views_mut);
            })?;
            cpu::profiler().add_kernel(kernel.name(), Some(started), started.elapsed(), cost);
            Ok(())
        }
        Storage::Gpu(gpu, _) => {
            let plan = kernel.gpu(&input_specs, &output_specs, gpu.limits());
            let read: Vec<_> = inputs.iter().map(|t| t.storage().gpu()).collect();
            let write: Vec<_> = outputs.iter().map(|t| t.storage().gpu()).collect();
            gpu.run(kernel.name(), cost, plan, &read, &write)
        }
        Storage::Segments(_) | Storage::Unread(_) => unreachable!("every operand is in one buffer"),
    }
}

/// The device that all tensors live on.
pub(crate) fn common_device(op: &'static str, tensors: &[&Tensor]) -> Result<Device> {
    let Some((first, others)) = tensors.split_first() else {
        let expected = "an input or more, which say on which device it runs".into();
        return Err(Error::Shape { op, expected, got: "none".into() });
    };
    let device = first.device();
    for other in others {
        if !other.device().same(&device) {
            let (left, right) = (device.to_string(), other.device().to_string());
            return Err(Error::DeviceMismatch { op, left, right });
        }
    }
    Ok(device)
}
