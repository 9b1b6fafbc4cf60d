//! Tensors: contiguous, row-major arrays on a device, and the tape that differentiates what was computed with them.

mod accumulate;
mod autograd;
mod codebook;
mod context;
mod device;
mod devices;
mod dry_run;
mod fill;
mod gradient;
mod gradient_bucket;
mod kernel;
mod quantized;
mod readback;
mod recompute;
mod rows;
mod segments;
mod shape;
mod source;
mod transfer;
mod upcast;
mod window;

pub(crate) use accumulate::AddInto;
pub use autograd::{Edge, Grads, Op, Saved, Saves};
pub use autograd::{apply, backward_from, record};
pub(crate) use codebook::{CELLS, Codebook, FIRST_CELL};
pub(crate) use context::adapters_enabled;
pub use context::{grad_enabled, no_grad, set_grad_enabled, without_adapters};
pub use context::{weights_device, with_hook, with_weights_on};
pub use device::{Device, Storage};
pub use devices::{DeviceInfo, DeviceStats, Profiling};
#[cfg(not(feature = "testing"))]
pub use dry_run::DryRun;
#[cfg(feature = "testing")]
pub use dry_run::DryRun;
pub use gradient::Gradient;
pub use gradient::SparseGradient;
pub(crate) use gradient_bucket::GradientBucket;
pub use kernel::{Kernel, View, ViewMut};
pub(crate) use kernel::{common_device, run, run_as, run_into};
pub(crate) use quantized::{Parts, STEP, decode, decode_step, widened};
pub use readback::{Bytes, Preparing, Readback};
pub(crate) use recompute::recompute;
pub(crate) use rows::{most_bindable, rows_in_binding};
pub(crate) use segments::parts_between;
pub use shape::{DType, Shape, Spec};
pub use source::{Source, values_read};
#[cfg(target_os = "linux")]
pub use window::Exported;

use crate::profile::MemoryKind;
use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// An array on a device. Clones share the memory.
///
/// Operations are methods, defined in `ops`; they stay on the device and never change their inputs. Values are only
/// ever changed by optimizers and by gradients that add up. Handles may be sent to and shared by threads.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

/// Python objects and ranks of several GPUs hand tensors from thread to thread.
const _: fn() = || {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<(Tensor, Device, Gradient, Readback)>();
};

struct Inner {
    spec: Spec,
    storage: Storage,
    edge: Edge,
}

impl Tensor {
    pub(crate) fn from_parts(spec: Spec, storage: Storage, edge: Edge) -> Tensor {
        Tensor(Arc::new(Inner { spec, storage, edge }))
    }

    /// Memory for `spec` with unspecified contents, of this kind.
    #[doc(hidden)]
    pub fn empty(spec: Spec, device: &Device, kind: MemoryKind) -> Result<Tensor> {
        let size = spec.size_bytes();
        if size > isize::MAX as usize {
            let expected = format!("at most {} bytes", isize::MAX);
            return Err(Error::Shape { op: "tensor", expected, got: spec.to_string() });
        }
        if spec.dtype == DType::F16 {
            device.expect_f16()?;
        }
        let storage = device.alloc(size, kind)?;
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
        Tensor::from_bytes_as(MemoryKind::Other, bytes, spec, device)
    }

    /// [`Tensor::from_bytes`] in memory of this kind.
    pub(crate) fn from_bytes_as(kind: MemoryKind, bytes: &[u8], spec: Spec, device: &Device) -> Result<Tensor> {
        if bytes.len() != spec.size_bytes() {
            return Err(Error::Shape {
                op: "from_bytes",
                expected: format!("{} bytes for {spec}", spec.size_bytes()),
                got: format!("{} bytes", bytes.len()),
            });
        }
        let tensor = Tensor::empty(spec, device, kind)?;
        tensor.write_bytes(bytes)?;
        Ok(tensor)
    }

    /// All elements zero.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn zeros(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::zeros_as(MemoryKind::Other, shape, dtype, device)
    }

    /// [`Tensor::zeros`] in memory of this kind.
    #[doc(hidden)]
    pub fn zeros_as(kind: MemoryKind, shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = Tensor::empty(Spec::new(shape, dtype), device, kind)?;
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

    /// Whether what is computed from it is recorded on the tape.
    pub(crate) fn needs_grad(&self) -> bool {
        grad_enabled() && !matches!(self.edge(), Edge::None)
    }

    /// Whether this is the only handle to the tensor. Its memory may still be shared: see `owns_its_memory`.
    pub(crate) fn uniquely_owned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// The same memory seen without history: gradients stop here.
    pub fn detach(&self) -> Tensor {
        Tensor::from_parts(self.spec().clone(), self.0.storage.clone(), Edge::None)
    }

    /// The same values as a leaf whose gradient is collected, starting from zero.
    ///
    /// # Errors
    /// If the elements are token ids, or the device has no memory left for the gradient.
    pub fn requires_grad(&self) -> Result<Tensor> {
        if self.dtype() == DType::U32 {
            return Err(Error::DType { op: "requires_grad", expected: "f32 or f16", got: self.dtype().name() });
        }
        let gradient = self.empty_beside(DType::F32, MemoryKind::Gradients)?;
        gradient.fill_zero();
        Ok(self.with_gradient(Gradient::new(gradient)))
    }

    /// The same values as a leaf whose gradient is added to `gradient`.
    pub(crate) fn with_gradient(&self, gradient: Gradient) -> Tensor {
        Tensor::from_parts(self.spec().clone(), self.0.storage.clone(), Edge::Leaf(gradient))
    }

    /// The gradient collected so far, of a leaf made by [`Tensor::requires_grad`] or of a parameter; none of parameters
    /// that are updated while backward runs.
    pub fn grad(&self) -> Option<&Tensor> {
        match &self.0.edge {
            Edge::Leaf(gradient) => gradient.sum(),
            _ => None,
        }
    }

    /// Whether a gradient reaches it: it is a leaf that collects one, or was computed from one.
    pub fn tracks_grad(&self) -> bool {
        !matches!(self.edge(), Edge::None)
    }

    /// Forgets the gradient collected so far. Nothing happens to a tensor that collects none.
    pub fn zero_grad(&self) {
        if let Edge::Leaf(gradient) = self.edge() {
            gradient.zero_lazily();
        }
    }

    /// Adds the gradient of this scalar with respect to every leaf it was computed from to that leaf's gradient.
    ///
    /// What forward saved is freed on the way, so this works once.
    ///
    /// # Errors
    /// If this is not a scalar, was not computed from a leaf, or was differentiated before.
    pub fn backward(&self) -> Result<()> {
        self.backward_each(None, &mut || Ok(()))
    }

    /// [`Tensor::backward`], or with a gradient [`Tensor::backward_with`], which calls `after_each` whenever the
    /// gradients of one more op are computed.
    #[doc(hidden)]
    pub fn backward_each(&self, seed: Option<&Tensor>, after_each: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if let Some(seed) = seed {
            common_device("backward", &[self, seed])?;
            if seed.spec() != self.spec() {
                let (expected, got) = (self.spec().to_string(), seed.spec().to_string());
                return Err(Error::Shape { op: "backward", expected, got });
            }
            return backward_from(self, seed.clone(), false, after_each);
        }
        if self.len() != 1 {
            return Err(Error::Autograd(format!("only a scalar can be differentiated, this is {}", self.spec())));
        }
        let seed = Tensor::full(1.0, self.shape().clone(), &self.device())?;
        backward_from(self, seed, true, after_each)
    }

    /// [`Tensor::backward`] for a tensor of any shape, given the gradient of the loss with respect to it.
    ///
    /// # Errors
    /// Those of [`Tensor::backward`], or if the shapes, types or devices differ.
    pub fn backward_with(&self, gradient: &Tensor) -> Result<()> {
        self.backward_each(Some(gradient), &mut || Ok(()))
    }

    /// Whether two handles are of one tensor.
    pub fn same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether two tensors share memory.
    pub fn overlaps(&self, other: &Tensor) -> bool {
        match (&self.0.storage, &other.0.storage) {
            (Storage::Cpu(a), Storage::Cpu(b)) => a.overlaps(b),
            (Storage::Gpu(_, a), Storage::Gpu(_, b)) => a.overlaps(b),
            (Storage::Unread(a), Storage::Unread(b)) => a.overlaps(b),
            (Storage::Segments(a), _) => a.tensors(self.dtype()).any(|part| part.overlaps(other)),
            (_, Storage::Segments(b)) => b.tensors(other.dtype()).any(|part| part.overlaps(self)),
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
    pub fn view(&self, shape: Shape, edge: Edge) -> Tensor {
        Tensor::from_parts(Spec::new(shape, self.dtype()), self.0.storage.clone(), edge)
    }

    /// The part of a one-dimensional tensor that starts at `start` (its bytes a multiple of 256), under `shape`.
    pub fn slice_flat(&self, start: usize, shape: Shape) -> Tensor {
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
