//! Tensors: contiguous, row-major arrays on a device, and the tape that differentiates what was computed with them.

mod accumulate;
mod autograd;
mod device;
mod fill;
mod gradient;
mod half;
mod kernel;
mod planning;
mod reading;
mod shape;
mod watch;

pub use autograd::{Edge, Grads, Op, Saved, Saves, grad_enabled, no_grad};
pub(crate) use autograd::{apply, backward_from, record};
pub use device::{Device, Storage};
pub use gradient::Gradient;
pub use kernel::{Kernel, View, ViewMut};
pub(crate) use kernel::{run, run_into};
#[doc(hidden)]
pub use planning::record_plans;
pub use reading::{Bytes, Reading};
pub use shape::{DType, Shape, Spec};
pub(crate) use watch::watch;

use crate::profile::{self, MemoryKind};
use crate::{Error, Result, cpu::CpuSlice};
use std::fmt;
use std::rc::Rc;

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
        Ok(self.with_gradient(Gradient::new(gradient)))
    }

    /// The same values as a leaf whose gradient is added to `gradient`.
    pub(crate) fn with_gradient(&self, gradient: Gradient) -> Tensor {
        Tensor::from_parts(self.spec().clone(), self.0.storage.clone(), Edge::Leaf(gradient))
    }

    /// The gradient collected so far, of a leaf made by [`Tensor::requires_grad`] or of a parameter.
    pub fn grad(&self) -> Option<&Tensor> {
        match &self.0.edge {
            Edge::Leaf(gradient) => Some(gradient.sum()),
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
        backward_from(self, seed, true)
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
        backward_from(self, gradient.clone(), false)
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
