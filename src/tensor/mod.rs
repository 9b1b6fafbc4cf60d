//! Tensors: contiguous, row-major arrays on a device, and the tape that differentiates what was computed with them.

mod accumulate;
mod autograd;
mod device;
mod fill;
mod half;
mod planning;
mod shape;
mod watch;

pub use autograd::{Edge, Grads, Op, Saved, Saves, grad_enabled, no_grad};
pub(crate) use autograd::{apply, backward_from, record};
pub use device::{Device, Storage};
#[doc(hidden)]
pub use planning::record_plans;
pub use shape::{DType, Shape, Spec};
pub(crate) use watch::watch;

use crate::gpu::{Landed, Limits, Pending, Plan};
use crate::profile::{self, Cost, MemoryKind};
use crate::{Error, Result, cpu::CpuSlice};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Instant;

/// An array on a device. Clones share the memory.
///
/// Operations are methods, defined in `ops`; they stay on the device and never change their inputs.
/// Values are only ever changed by optimizers and by gradients that add up.
#[derive(Clone)]
pub struct Tensor(Rc<Inner>);

struct Inner {
    spec: Spec,
    storage: Storage,
    edge: Edge,
}

impl Tensor {
    pub(crate) fn from_parts(spec: Spec, storage: Storage, edge: Edge) -> Tensor {
        Tensor(Rc::new(Inner { spec, storage, edge }))
    }

    /// Memory for `spec` with unspecified contents.
    pub(crate) fn empty(spec: Spec, device: &Device) -> Result<Tensor> {
        let storage = device.alloc(spec.size_bytes())?;
        Ok(Tensor::from_parts(spec, storage, Edge::None))
    }

    /// An f32 tensor of these values in row-major order.
    ///
    /// # Errors
    /// If `values` are not as many as `shape` holds, or the device has no memory left.
    pub fn from_f32(values: &[f32], shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(bytemuck::cast_slice(values), Spec::new(shape, DType::F32), device)
    }

    /// A u32 tensor (token ids) of these values in row-major order.
    ///
    /// # Errors
    /// If `values` are not as many as `shape` holds, or the device has no memory left.
    pub fn from_u32(values: &[u32], shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(bytemuck::cast_slice(values), Spec::new(shape, DType::U32), device)
    }

    /// A tensor from the bytes of its elements (little-endian).
    ///
    /// # Errors
    /// If there are not as many bytes as `spec` needs, or the device has no memory left.
    pub fn from_bytes(bytes: &[u8], spec: Spec, device: &Device) -> Result<Tensor> {
        if bytes.len() != spec.size_bytes() {
            return Err(Error::Shape {
                op: "from_bytes",
                expected: format!("{} bytes for {spec}", spec.size_bytes()),
                got: format!("{} bytes", bytes.len()),
            });
        }
        let tensor = Tensor::empty(spec, device)?;
        tensor.write_bytes(bytes)?;
        Ok(tensor)
    }

    /// All elements zero.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn zeros(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = Tensor::empty(Spec::new(shape, dtype), device)?;
        tensor.fill_zero();
        Ok(tensor)
    }

    /// Shape and element type.
    pub fn spec(&self) -> &Spec {
        &self.0.spec
    }

    /// The length of each dimension.
    pub fn shape(&self) -> &Shape {
        &self.0.spec.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.spec.dtype
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.0.spec.shape.elements()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it lives.
    pub fn device(&self) -> Device {
        self.0.storage.device()
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.0.storage
    }

    pub(crate) fn edge(&self) -> &Edge {
        &self.0.edge
    }

    /// Whether this is the only handle to the tensor. Its memory may still be shared: see `owns_its_memory`.
    pub(crate) fn uniquely_owned(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// Overwrites the elements. For optimizers, checkpoints and batches; the tape does not notice.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        assert_eq!(bytes.len(), self.0.spec.size_bytes(), "write_bytes: length");
        match &self.0.storage {
            Storage::Cpu(slice) => {
                CpuSlice::lend(&[], &[slice], |_, out| out[0].copy_from_slice(bytes));
                Ok(())
            }
            Storage::Gpu(gpu, slice) => gpu.upload(slice, bytes),
        }
    }

    /// Sets all elements to zero.
    pub(crate) fn fill_zero(&self) {
        match &self.0.storage {
            Storage::Cpu(slice) => CpuSlice::lend(&[], &[slice], |_, out| out[0].fill(0)),
            Storage::Gpu(gpu, slice) => gpu.fill_zero(slice),
        }
    }

    /// The bytes of the elements. On a GPU this waits for everything recorded so far: the only blocking read.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        match &self.0.storage {
            Storage::Cpu(slice) => Ok(CpuSlice::lend(&[slice], &[], |read, _| read[0].to_vec())),
            Storage::Gpu(gpu, slice) => gpu.download(slice),
        }
    }

    /// The elements of an f32 or f16 tensor. Waits like [`Tensor::to_bytes`].
    ///
    /// # Errors
    /// If the tensor is neither, or the driver reported an error.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let bytes = match self.dtype() {
            DType::U32 => return Err(Error::DType { op: "to_f32", expected: "f32 or f16", got: self.dtype().name() }),
            DType::F32 | DType::F16 => self.to_bytes()?,
        };
        Ok(match half::widen(&bytes, self.spec()) {
            Some((_, values)) => values,
            None => bytemuck::pod_collect_to_vec(&bytes),
        })
    }

    /// The elements of a u32 tensor. Waits like [`Tensor::to_bytes`].
    ///
    /// # Errors
    /// If the tensor is not u32 or the driver reported an error.
    pub fn to_u32(&self) -> Result<Vec<u32>> {
        self.expect_dtype("to_u32", DType::U32)?;
        Ok(bytemuck::pod_collect_to_vec(&self.to_bytes()?))
    }

    /// The only element of an f32 tensor of one. Waits like [`Tensor::to_bytes`].
    ///
    /// # Errors
    /// If there is not exactly one element, it is not f32, or the driver reported an error.
    pub fn item(&self) -> Result<f32> {
        match self.to_f32()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(Error::Shape { op: "item", expected: "one element".into(), got: self.spec().to_string() }),
        }
    }

    /// Reads without waiting: the elements can be taken when they have arrived.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn read_later(&self) -> Result<Reading> {
        Ok(match &self.0.storage {
            Storage::Cpu(_) => Reading::Here(self.to_bytes()?),
            Storage::Gpu(gpu, slice) => Reading::Coming(gpu.download_later(slice)?),
        })
    }

    /// The same values on another device; the same tensor if it is there already. Not differentiated.
    ///
    /// # Errors
    /// If the other device has no memory left.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device().same(device) {
            return Ok(self.clone());
        }
        Tensor::from_bytes(&self.to_bytes()?, self.spec().clone(), device)
    }

    /// The same memory seen without history: gradients stop here.
    pub fn detach(&self) -> Tensor {
        Tensor::from_parts(self.spec().clone(), self.0.storage.clone(), Edge::None)
    }

    /// The same values as a leaf whose gradient is collected, starting from zero.
    ///
    /// # Errors
    /// If the device has no memory left for the gradient.
    pub fn requires_grad(&self) -> Result<Tensor> {
        let zeros = || Tensor::zeros(self.shape().clone(), DType::F32, &self.device());
        let gradient = profile::memory_kind(MemoryKind::Gradients, zeros)?;
        Ok(self.with_gradient(gradient))
    }

    /// The same values as a leaf whose gradient is added to `gradient`.
    pub(crate) fn with_gradient(&self, gradient: Tensor) -> Tensor {
        Tensor::from_parts(self.spec().clone(), self.0.storage.clone(), Edge::Leaf(gradient))
    }

    /// The gradient collected so far, of a leaf made by [`Tensor::requires_grad`] or of a parameter.
    pub fn grad(&self) -> Option<&Tensor> {
        match &self.0.edge {
            Edge::Leaf(gradient) => Some(gradient),
            _ => None,
        }
    }

    /// Adds the gradient of this scalar with respect to every leaf it was computed from to that leaf's gradient.
    ///
    /// What forward saved is freed on the way, so this works once.
    ///
    /// # Errors
    /// If this is not a scalar, was not computed from a leaf, or was differentiated before.
    pub fn backward(&self) -> Result<()> {
        if self.len() != 1 {
            return Err(Error::Autograd(format!("only a scalar can be differentiated, this is {}", self.spec())));
        }
        let seed = Tensor::full(1.0, self.shape().clone(), &self.device())?;
        backward_from(self, seed)
    }

    /// [`Tensor::backward`] for a tensor of any shape, given the gradient of the loss with respect to it.
    ///
    /// # Errors
    /// Those of [`Tensor::backward`], or if the shapes differ.
    pub fn backward_with(&self, gradient: &Tensor) -> Result<()> {
        if gradient.spec() != self.spec() {
            let (expected, got) = (self.spec().to_string(), gradient.spec().to_string());
            return Err(Error::Shape { op: "backward", expected, got });
        }
        backward_from(self, gradient.clone())
    }

    /// Whether two tensors share memory.
    pub(crate) fn overlaps(&self, other: &Tensor) -> bool {
        match (&self.0.storage, &other.0.storage) {
            (Storage::Cpu(a), Storage::Cpu(b)) => a.overlaps(b),
            (Storage::Gpu(_, a), Storage::Gpu(_, b)) => a.overlaps(b),
            _ => false,
        }
    }

    pub(crate) fn expect_dtype(&self, op: &'static str, expected: DType) -> Result<()> {
        if self.dtype() != expected {
            return Err(Error::DType { op, expected: expected.name(), got: self.dtype().name() });
        }
        Ok(())
    }

    /// The same storage under another shape of as many elements.
    pub(crate) fn view(&self, shape: Shape, edge: Edge) -> Tensor {
        Tensor::from_parts(Spec::new(shape, self.dtype()), self.0.storage.clone(), edge)
    }

    /// The part of a one-dimensional tensor that starts at `start` (its bytes a multiple of 256), under `shape`.
    pub(crate) fn slice_flat(&self, start: usize, shape: Shape) -> Tensor {
        let spec = Spec::new(shape, self.dtype());
        let storage = self.0.storage.slice(start * spec.dtype.size_bytes(), spec.size_bytes());
        Tensor::from_parts(spec, storage, Edge::None)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Tensor({} on {})", self.spec(), self.device())
    }
}

/// Elements that may still be on their way from a GPU.
pub enum Reading {
    Here(Vec<u8>),
    Coming(Pending),
}

impl Reading {
    /// The bytes of the elements if they have arrived, without copying what a GPU has written. Never waits; to be called
    /// until it gives them, and then no more.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn try_land(&mut self) -> Result<Option<Bytes>> {
        match self {
            Reading::Here(bytes) => Ok(Some(Bytes::Here(std::mem::take(bytes)))),
            Reading::Coming(pending) => Ok(pending.try_land()?.map(Bytes::Landed)),
        }
    }

    /// The bytes of the elements, waiting for them if need be.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn wait(self) -> Result<Vec<u8>> {
        match self {
            Reading::Here(bytes) => Ok(bytes),
            Reading::Coming(pending) => pending.wait(),
        }
    }
}

/// The bytes of elements, where a read has left them. They can be handed to another thread.
pub enum Bytes {
    Here(Vec<u8>),
    Landed(Landed),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Here(bytes) => bytes,
            Bytes::Landed(landed) => landed,
        }
    }
}

/// An input of a CPU kernel.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub spec: &'a Spec,
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// The elements as f32 (the kernel's `output_specs` has checked the type).
    pub fn f32(&self) -> &'a [f32] {
        debug_assert_eq!(self.spec.dtype, DType::F32);
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
    bytes: &'a mut [u8],
}

impl ViewMut<'_> {
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

/// Runs a kernel into new tensors. Nothing is recorded on the tape.
pub(crate) fn run(kernel: &dyn Kernel, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let specs: Vec<&Spec> = inputs.iter().map(|t| t.spec()).collect();
    let device = common_device(kernel.name(), inputs)?;
    let output_specs = kernel.output_specs(&specs)?;
    let kind = profile::current_memory_kind().unwrap_or(MemoryKind::Activations);
    let outputs = profile::memory_kind(kind, || {
        output_specs.into_iter().map(|s| Tensor::empty(s, &device)).collect::<Result<Vec<_>>>()
    })?;
    let written: Vec<&Tensor> = outputs.iter().collect();
    launch(kernel, inputs, &written)?;
    watch::seen(kernel.name(), inputs, &written);
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
    watch::seen(kernel.name(), inputs, outputs);
    Ok(())
}

fn launch(kernel: &dyn Kernel, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
    let input_specs: Vec<&Spec> = inputs.iter().map(|t| t.spec()).collect();
    let output_specs: Vec<&Spec> = outputs.iter().map(|t| t.spec()).collect();
    let cost = kernel.cost(&input_specs, &output_specs);
    match outputs[0].storage() {
        Storage::Cpu(_) if planning::record(kernel, &input_specs, &output_specs) => Ok(()),
        Storage::Cpu(_) => {
            let started = Instant::now();
            let read: Vec<&CpuSlice> = inputs.iter().map(|t| t.storage().cpu()).collect();
            let write: Vec<&CpuSlice> = outputs.iter().map(|t| t.storage().cpu()).collect();
            CpuSlice::lend(&read, &write, |read, write| {
                if input_specs.iter().chain(&output_specs).any(|spec| spec.dtype == DType::F16) {
                    return half::run_widened(kernel, read, &input_specs, write, &output_specs);
                }
                let views: Vec<View> =
                    read.iter().zip(&input_specs).map(|(bytes, spec)| View { spec, bytes }).collect();
                let mut views_mut: Vec<ViewMut> =
                    write.iter_mut().zip(&output_specs).map(|(bytes, spec)| ViewMut { spec, bytes }).collect();
                kernel.cpu(&views, &mut views_mut);
            });
            profile::add_kernel(kernel.name(), started.elapsed(), cost);
            Ok(())
        }
        Storage::Gpu(gpu, _) => {
            let plan = kernel.gpu(&input_specs, &output_specs, gpu.limits());
            let read: Vec<_> = inputs.iter().map(|t| t.storage().gpu()).collect();
            let write: Vec<_> = outputs.iter().map(|t| t.storage().gpu()).collect();
            gpu.run(kernel.name(), cost, &plan, &read, &write)
        }
    }
}

/// The device that all tensors live on.
fn common_device(op: &'static str, tensors: &[&Tensor]) -> Result<Device> {
    let device = tensors[0].device();
    for other in &tensors[1..] {
        if !other.device().same(&device) {
            let (left, right) = (device.to_string(), other.device().to_string());
            return Err(Error::DeviceMismatch { op, left, right });
        }
    }
    Ok(device)
}
