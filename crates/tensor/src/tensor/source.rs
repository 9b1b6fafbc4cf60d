//! Tensors whose values lie outside of memory, such as in a file. They take no memory until they are moved to a device;
//! all threads read them then.

use super::quantized::encode;
use super::{DType, Device, Edge, Spec, Storage, Tensor};
use crate::cpu::{CHUNK, CpuSlice};
use crate::profile::MemoryKind;
use crate::{Error, Result};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a thread writes at a time: a part of its cache.
const PART: usize = 1 << 18;

/// See [`values_read`].
static READ: AtomicU64 = AtomicU64::new(0);

/// How many numbers of sources this process has read, so that it can be shown how far the loading of a model is.
#[doc(hidden)]
pub fn values_read() -> u64 {
    READ.load(Ordering::Relaxed)
}

/// Counts numbers that are read.
pub(super) fn count_read(values: usize) {
    READ.fetch_add(values as u64, Ordering::Relaxed);
}

/// The values of a tensor, f32.
pub trait Source: Send + Sync {
    /// Writes the elements from `first` on, as many as `out` has. Several threads call it at a time.
    fn read(&self, first: usize, out: &mut [f32]);
}

impl Source for [f32] {
    fn read(&self, first: usize, out: &mut [f32]) {
        out.copy_from_slice(&self[first..first + out.len()]);
    }
}

/// Elements of a source that were not read yet.
#[derive(Clone)]
pub struct Unread {
    source: Arc<dyn Source>,
    first: usize,
    len: usize,
    /// They are rounded to it when they are read.
    dtype: DType,
}

impl Source for Unread {
    fn read(&self, first: usize, out: &mut [f32]) {
        self.source.read(self.first + first, out);
    }
}

impl Unread {
    /// These bytes of the elements.
    pub(super) fn slice(&self, offset: usize, size: usize) -> Unread {
        let element = self.dtype.size_bytes();
        let (first, len) = (offset / element, size / element);
        assert!(first + len <= self.len, "slice {first}+{len} of {}", self.len);
        Unread { first: self.first + first, len, ..self.clone() }
    }

    /// Whether two have elements in common.
    pub(super) fn overlaps(&self, other: &Unread) -> bool {
        let apart = self.first + self.len <= other.first || other.first + other.len <= self.first;
        Arc::ptr_eq(&self.source, &other.source) && !apart
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        if self.dtype.is_quantized() {
            return bytemuck::pod_collect_to_vec(&encode(self.dtype, self, self.len));
        }
        let mut bytes = vec![0; self.len * self.dtype.size_bytes()];
        write_parallel(self, self.dtype, 0, &mut bytes);
        bytes
    }
}

/// The largest magnitude of the first `len` elements; NaNs have none.
fn largest_magnitude(source: &(impl Source + ?Sized), len: usize) -> f32 {
    let of_chunk = |first: usize| {
        let mut values = [0.0; CHUNK];
        let values = &mut values[..CHUNK.min(len - first)];
        source.read(first, values);
        values.iter().map(|value| value.abs()).fold(0.0, f32::max)
    };
    (0..len).into_par_iter().step_by(CHUNK).map(of_chunk).reduce(|| 0.0, f32::max)
}

/// Writes the elements from `first` on as `dtype`, f32 or f16.
fn write(source: &(impl Source + ?Sized), dtype: DType, first: usize, out: &mut [u8]) {
    count_read(out.len() / dtype.size_bytes());
    if dtype == DType::F32 {
        return source.read(first, bytemuck::cast_slice_mut(out));
    }
    let mut wide = [0.0; CHUNK];
    for (chunk, out) in bytemuck::cast_slice_mut::<u8, f16>(out).chunks_mut(CHUNK).enumerate() {
        let wide = &mut wide[..out.len()];
        source.read(first + chunk * CHUNK, wide);
        out.convert_from_f32_slice(wide);
    }
}

/// [`write`] by all threads.
fn write_parallel(source: &(impl Source + ?Sized), dtype: DType, first: usize, out: &mut [u8]) {
    let elements = PART / dtype.size_bytes();
    out.par_chunks_mut(PART).enumerate().for_each(|(part, out)| write(source, dtype, first + part * elements, out));
}

impl Tensor {
    /// An f32 tensor of a source's values, which are read when it is moved to a device. Kernels do not take it before.
    pub fn unread(source: Arc<dyn Source>, shape: impl Into<super::Shape>) -> Tensor {
        let spec = Spec::new(shape, DType::F32);
        let unread = Unread { source, first: 0, len: spec.shape.elements(), dtype: DType::F32 };
        Tensor::from_parts(spec, Storage::Unread(unread), Edge::None)
    }

    /// The same values in another type, if they were not read yet.
    pub(crate) fn unread_as(&self, dtype: DType) -> Option<Tensor> {
        let Storage::Unread(unread) = self.storage() else { return None };
        let spec = Spec::new(self.shape().clone(), dtype);
        Some(Tensor::from_parts(spec, Storage::Unread(Unread { dtype, ..unread.clone() }), Edge::None))
    }

    /// These values, f32 or f16, quantized on the CPU, where they are.
    pub(crate) fn encoded(&self, dtype: DType) -> Result<Tensor> {
        let spec = Spec::new(self.shape().clone(), dtype);
        if !self.device().has_values() {
            return Tensor::empty(spec, &self.device(), MemoryKind::Parameters);
        }
        let words = encode(dtype, &self.to_f32()?[..], self.len());
        Tensor::from_bytes_as(MemoryKind::Parameters, bytemuck::cast_slice(&words), spec, &self.device())
    }

    /// The values in memory of a device.
    pub(super) fn read_to(&self, device: &Device) -> Result<Tensor> {
        if self.dtype().is_quantized() {
            let tensor = Tensor::empty_by_rows(self.spec().clone(), device, MemoryKind::Parameters)?;
            if device.has_values() {
                tensor.write_bytes(&self.to_bytes()?)?;
            }
            return Ok(tensor);
        }
        let tensor = Tensor::empty_by_rows(self.spec().clone(), device, MemoryKind::Other)?;
        tensor.take_values(self)?;
        Ok(tensor)
    }

    /// Overwrites the elements with those of another tensor, rounded to this one's type. Both are f32 or f16.
    ///
    /// # Errors
    /// If it has more or fewer elements, or a driver reported an error.
    pub(crate) fn take_values(&self, from: &Tensor) -> Result<()> {
        if self.len() != from.len() {
            let (expected, got) = (self.spec().to_string(), from.spec().to_string());
            return Err(Error::Shape { op: "take_values", expected, got });
        }
        match from.storage() {
            Storage::Unread(unread) => self.write_from(unread, 0),
            Storage::Cpu(slice) if from.dtype() == DType::F32 && !self.device().same(&Device::Cpu) => {
                let write = |read: &[&[u8]]| self.write_from(bytemuck::cast_slice::<u8, f32>(read[0]), 0);
                CpuSlice::with_slices(&[slice], &[], |read, _| write(read))?
            }
            _ if !from.device().has_values() => Ok(()),
            _ => self.write_from(&from.to_f32()?[..], 0),
        }
    }

    /// Overwrites the elements with those of a source from `start` on.
    fn write_from(&self, source: &(impl Source + ?Sized), start: usize) -> Result<()> {
        let dtype = self.dtype();
        match self.storage() {
            Storage::Cpu(slice) => {
                CpuSlice::with_slices(&[], &[slice], |_, out| write_parallel(source, dtype, start, out[0]))
            }
            Storage::Gpu(gpu, slice) => {
                gpu.upload_by(slice, &|offset, out| write(source, dtype, start + offset / dtype.size_bytes(), out))
            }
            Storage::DryRun(_) => Ok(()),
            Storage::Segments(segments) => {
                let mut start = start;
                segments.tensors(dtype).try_for_each(|tensor| {
                    let own = start;
                    start += tensor.len();
                    tensor.write_from(source, own)
                })
            }
            Storage::Unread(_) => Err(not_in_memory("take_values", self.spec())),
        }
    }

    /// The largest magnitude of the elements, f32 or f16; NaNs have none.
    ///
    /// # Errors
    /// If the driver reported an error.
    #[doc(hidden)]
    pub fn largest_magnitude(&self) -> Result<f32> {
        Ok(match self.storage() {
            Storage::Unread(unread) => largest_magnitude(unread, self.len()),
            _ => largest_magnitude(&self.to_f32()?[..], self.len()),
        })
    }
}

pub(super) fn not_in_memory(op: &'static str, spec: &Spec) -> Error {
    let expected = "a tensor in memory: to_device reads it".into();
    Error::Shape { op, expected, got: format!("{spec} that was not read yet") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element i is i / 8, exact in f16 below 256.
    struct Eighths;

    impl Source for Eighths {
        fn read(&self, first: usize, out: &mut [f32]) {
            out.iter_mut().enumerate().for_each(|(i, out)| *out = (first + i) as f32 / 8.0);
        }
    }

    fn eighths(range: std::ops::Range<usize>) -> Vec<f32> {
        range.map(|i| i as f32 / 8.0).collect()
    }

    #[test]
    fn values_are_read_to_every_device_whole_and_in_parts() {
        // More than is uploaded at a time, and no multiple of what a thread writes.
        let len = (64 << 20) / 4 + 1003;
        for device in Device::for_tests() {
            let unread = Tensor::unread(Arc::new(Eighths), [len]);
            assert_eq!(unread.to_device(&device).unwrap().to_f32().unwrap(), eighths(0..len), "{device}");
            let part = unread.slice_flat(128, [70_001].into());
            let read = part.to_device(&device).unwrap();
            assert!(read.device().same(&device));
            assert_eq!(read.scale(1.0).unwrap().to_f32().unwrap(), eighths(128..70_129), "{device}");
        }
    }

    #[test]
    fn values_are_rounded_once_to_the_type_they_are_read_in() {
        for device in Device::for_tests().into_iter().filter(Device::has_f16) {
            let halves = Tensor::unread(Arc::new(Eighths), [300_000]).to_dtype(DType::F16).unwrap();
            let read = halves.to_device(&device).unwrap();
            assert_eq!(read.dtype(), DType::F16);
            let rounded: Vec<f32> = eighths(0..300_000).into_iter().map(|x| f16::from_f32(x).to_f32()).collect();
            assert_eq!(read.to_f32().unwrap(), rounded, "{device}");
            assert_eq!(halves.slice_flat(128, [64].into()).to_f32().unwrap(), rounded[128..192]);
        }
    }

    #[test]
    fn segments_take_values_across_their_buffers() {
        for device in Device::for_tests() {
            let x = Tensor::zeros_in_segments(&[128, 384], 640, DType::F32, &device, MemoryKind::Other).unwrap();
            x.take_values(&Tensor::unread(Arc::new(Eighths), [640])).unwrap();
            assert_eq!(x.to_f32().unwrap(), eighths(0..640), "{device}");
            x.take_values(&Tensor::from_f32(&[3.0; 640], [640], &device).unwrap()).unwrap();
            assert_eq!(x.to_f32().unwrap(), [3.0; 640], "{device}");
        }
    }

    #[test]
    fn kernels_and_writes_refuse_what_was_not_read() {
        let unread = Tensor::unread(Arc::new(Eighths), [4]);
        let in_memory = Tensor::from_f32(&[1.0; 4], [4], &Device::Cpu).unwrap();
        for error in [
            unread.scale(2.0).err(),
            in_memory.add(&unread).err(),
            unread.write_bytes(&[0; 16]).err(),
            unread.take_values(&in_memory).err(),
        ] {
            let error = error.expect("an error").to_string();
            assert!(error.contains("to_device reads it") && error.contains("was not read yet"), "{error}");
        }
    }

    #[test]
    fn unread_tensors_overlap_where_they_share_elements_of_one_source() {
        let whole = Tensor::unread(Arc::new(Eighths), [256]);
        let [first, last] = [0, 128].map(|start| whole.slice_flat(start, [128].into()));
        assert!(whole.overlaps(&first) && whole.overlaps(&last) && !first.overlaps(&last));
        assert!(!whole.overlaps(&Tensor::unread(Arc::new(Eighths), [256])));
    }

    #[test]
    fn the_largest_magnitude_is_that_of_all_elements() {
        assert_eq!(Tensor::unread(Arc::new(Eighths), [CHUNK * 3 + 5]).largest_magnitude().unwrap(), 1536.5);
        for device in Device::for_tests() {
            let x = Tensor::from_f32(&[1.0, f32::NAN, -7.5, 2.0], [4], &device).unwrap();
            assert_eq!(x.largest_magnitude().unwrap(), 7.5, "{device}");
        }
    }
}
