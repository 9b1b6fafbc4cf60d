//! Values on their way between the host and devices.

use super::accumulate::{AddInto, Sum};
use super::quantized::decode_all;
use super::source::not_in_memory;
use super::{
    DType, Device, Edge, Grads, Op, Preparing, Readback, Saved, Saves, Spec, Storage, Tensor, record, run_into, upcast,
};
use crate::cpu::CpuSlice;
use crate::profile::MemoryKind;
use crate::{Error, Result};
use rayon::prelude::*;

impl Tensor {
    /// Overwrites the elements. For optimizers, checkpoints and batches; the tape does not notice.
    ///
    /// # Errors
    /// If there are more or fewer bytes than the tensor has, or the driver reported an error.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        self.write_parts(&[bytes])
    }

    /// Lets `fill` write the elements of an f32 tensor of the CPU, where they are: large memory is slow at first.
    pub(crate) fn fill_by(&self, fill: &dyn Fn(&mut [f32])) -> Result<()> {
        match self.storage() {
            Storage::Cpu(slice) => {
                CpuSlice::with_slices(&[], &[slice], |_, out| fill(bytemuck::cast_slice_mut(out[0])))
            }
            _ => {
                let mut values = vec![0.0; self.len()];
                fill(&mut values);
                self.write_bytes(bytemuck::cast_slice(&values))
            }
        }
    }

    /// As [`Tensor::write_bytes`], with bytes that lie in several places.
    #[doc(hidden)]
    pub fn write_parts(&self, parts: &[&[u8]]) -> Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes != self.spec().size_bytes() {
            return Err(Error::Shape {
                op: "write_bytes",
                expected: format!("{} bytes for {}", self.spec().size_bytes(), self.spec()),
                got: format!("{bytes} bytes"),
            });
        }
        match self.storage() {
            Storage::Cpu(slice) => CpuSlice::with_slices(&[], &[slice], |_, out| {
                let mut rest = &mut *out[0];
                for part in parts {
                    let (first, others) = std::mem::take(&mut rest).split_at_mut(part.len());
                    first.copy_from_slice(part);
                    rest = others;
                }
            }),
            Storage::Gpu(gpu, slice) => gpu.upload(slice, parts),
            Storage::DryRun(_) => Ok(()),
            Storage::Segments(segments) => segments.write_parts(self.dtype(), parts),
            Storage::Unread(_) => Err(not_in_memory("write_bytes", self.spec())),
        }
    }

    /// Adds the elements in these bytes, which are of this tensor's type, where this tensor is.
    ///
    /// # Errors
    /// If there are more or fewer bytes than the tensor has, the device has no memory left, or the driver reported an
    /// error.
    #[doc(hidden)]
    pub fn add_bytes(&self, bytes: &[u8]) -> Result<()> {
        run_into(&AddInto { into: self.dtype() }, &[&self.beside(bytes)?], &[self])
    }

    /// Sets `to`, f32 or f16, to the sum of this tensor and the elements in these bytes, which are of this tensor's
    /// type.
    ///
    /// # Errors
    /// As [`Tensor::add_bytes`].
    #[doc(hidden)]
    pub fn add_bytes_into(&self, bytes: &[u8], to: &Tensor) -> Result<()> {
        run_into(&Sum { into: to.dtype() }, &[self, &self.beside(bytes)?], &[to])
    }

    /// A tensor of these bytes where this one is, for kernels to read: on a GPU that can copy while it computes,
    /// brought there so.
    fn beside(&self, bytes: &[u8]) -> Result<Tensor> {
        if let Storage::Gpu(gpu, _) = self.storage()
            && bytes.len() == self.spec().size_bytes()
            && let Some(slice) = gpu.upload_by_copy_queue(bytes)?
        {
            return Ok(Tensor::from_parts(self.spec().clone(), Storage::Gpu(gpu.clone(), slice), Edge::None));
        }
        Tensor::from_bytes_as(MemoryKind::Other, bytes, self.spec().clone(), &self.device())
    }

    /// Sets all elements to zero.
    #[doc(hidden)]
    pub fn fill_zero(&self) {
        match self.storage() {
            Storage::Cpu(slice) => CpuSlice::with_slices(&[], &[slice], |_, out| fill_zero(out[0]))
                .expect("no kernel sets tensors to zero while it runs"),
            Storage::Gpu(gpu, slice) => gpu.fill_zero(slice),
            Storage::DryRun(_) => {}
            Storage::Segments(segments) => segments.tensors(self.dtype()).for_each(|tensor| tensor.fill_zero()),
            Storage::Unread(_) => unreachable!("only new memory is set to zero"),
        }
    }

    /// The bytes of the elements. On a GPU this waits for everything recorded so far: the only blocking read.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        match self.storage() {
            Storage::Cpu(slice) => CpuSlice::with_slices(&[slice], &[], |read, _| read[0].to_vec()),
            Storage::Gpu(gpu, slice) => gpu.download(slice),
            Storage::DryRun(_) => Err(no_values()),
            Storage::Segments(segments) => segments.to_bytes(self.dtype()),
            Storage::Unread(unread) => Ok(unread.to_bytes()),
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
            quantized => return Ok(decode_all(quantized, &self.to_bytes()?, self.len())),
        };
        Ok(match upcast::to_f32(&bytes, self.spec()) {
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
    pub fn read_later(&self) -> Result<Readback> {
        Ok(match self.storage() {
            Storage::Cpu(_) | Storage::Unread(_) => Readback::ready(self.to_bytes()?),
            Storage::Gpu(gpu, slice) => Readback::pending(gpu.download_later(slice)?),
            Storage::DryRun(_) => return Err(no_values()),
            Storage::Segments(segments) => segments.read_later(self.dtype())?,
        })
    }

    /// Makes the host memory in which [`Tensor::read_later`] reads all of these tensors, beside other work, and keeps
    /// it between reads. `None` if none of them is on a GPU.
    #[doc(hidden)]
    pub fn prepare_reads<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Option<Preparing> {
        let (mut gpu, mut sizes) = (None, Vec::new());
        for tensor in tensors {
            let parts = match tensor.storage() {
                Storage::Segments(segments) => segments.tensors(tensor.dtype()).collect(),
                _ => vec![tensor.clone()],
            };
            for part in parts {
                if let Storage::Gpu(of_part, _) = part.storage() {
                    gpu = Some(of_part.clone());
                    sizes.push(part.spec().size_bytes());
                }
            }
        }
        gpu.map(|gpu| Preparing(gpu.prepare_downloads(sizes)))
    }

    /// The values in elements of this type, on the device and on their way to the host: beside the kernels that follow,
    /// if a GPU can copy while it computes.
    ///
    /// # Errors
    /// If there is no memory to convert or read into, or the driver reported an error.
    #[doc(hidden)]
    pub fn read_by_copy_queue(&self, dtype: DType) -> Result<(Tensor, Readback)> {
        if let Storage::Gpu(gpu, _) = self.storage() {
            let spec = Spec::new(self.shape().clone(), dtype);
            if let Some(slice) = gpu.alloc_for_host(spec.size_bytes())? {
                let values = Tensor::from_parts(spec, Storage::Gpu(gpu.clone(), slice.clone()), Edge::None);
                self.cast_into(&values)?;
                return Ok((values, Readback::pending(gpu.download_by_copy_queue(&slice)?)));
            }
        }
        let values = self.to_dtype(dtype)?;
        let readback = values.read_later()?;
        Ok((values, readback))
    }

    /// The same values in the memory of a device; the same tensor if it is there already. The gradient goes back the
    /// same way.
    ///
    /// # Errors
    /// If the other device has no memory left, or a driver reported an error.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if let Storage::Unread(_) = self.storage() {
            return self.read_to(device);
        }
        if self.device().same(device) {
            return Ok(self.clone());
        }
        let moved = Tensor::empty_by_rows(self.spec().clone(), device, MemoryKind::Other)?;
        if self.device().has_values() {
            moved.write_bytes(&self.to_bytes()?)?;
        }
        Ok(record(Box::new(ToDevice { from: self.device() }), &[self], vec![moved]).remove(0))
    }
}

/// y = x on another device; dx = dy on the device of x.
struct ToDevice {
    from: Device,
}

impl Op for ToDevice {
    fn saves(&self) -> Saves {
        Saves::default()
    }

    fn backward(&self, _: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        grads.accumulate(0, dy.to_device(&self.from)?)
    }
}

/// By all threads where there is much: new memory is slow at first.
fn fill_zero(bytes: &mut [u8]) {
    const PART: usize = 1 << 24;
    bytes.par_chunks_mut(PART).for_each(|part| part.fill(0));
}

fn no_values() -> Error {
    Error::Invalid("a dry run computes no values that could be read".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_goes_back_to_the_device_that_the_tensor_came_from() {
        for [from, to] in Device::for_tests()
            .iter()
            .flat_map(|a| Device::for_tests().into_iter().map(|b| [a.clone(), b]))
            .collect::<Vec<_>>()
        {
            let x = Tensor::from_f32(&[1.0, -2.0, 3.0], [3], &from).unwrap().requires_grad().unwrap();
            let y = x.to_device(&to).unwrap();
            assert!(y.device().same(&to));
            y.mul(&y).unwrap().sum(0).unwrap().backward().unwrap();
            assert_eq!(x.grad().unwrap().to_f32().unwrap(), [2.0, -4.0, 6.0], "{from} to {to}");
            assert!(x.grad().unwrap().device().same(&from));
        }
    }

    #[test]
    fn bytes_of_another_length_are_refused() {
        for device in Device::for_tests() {
            let x = Tensor::from_f32(&[1.0, 2.0], [2], &device).unwrap();
            for length in [0, 4, 7, 12] {
                assert!(matches!(x.write_bytes(&vec![0; length]), Err(Error::Shape { op: "write_bytes", .. })));
            }
            assert_eq!(x.to_f32().unwrap(), [1.0, 2.0], "{device}");
        }
    }

    #[test]
    fn halves_of_two_are_added_in_f32() {
        for device in Device::for_tests().into_iter().filter(Device::has_f16) {
            let halves = |values: [f32; 5]| {
                let values = Tensor::from_f32(&values, [5], &device).unwrap();
                let (halves, read) = values.read_by_copy_queue(DType::F16).unwrap();
                (halves, read.wait().unwrap())
            };
            let (own, _) = halves([1.0, -0.5, 60000.0, 2048.0, f32::INFINITY]);
            let (_, other) = halves([2.0, 0.5, 60000.0, 1.0, 1.0]);
            // Seven more than are to be set.
            let to = Tensor::from_f32(&[7.0; 12], [12], &device).unwrap();
            own.add_bytes_into(&other, &to.slice_flat(0, [5].into())).unwrap();
            // In f16 the third were infinite, and the fourth 2048.
            let expected = [3.0, 0.0, 120_000.0, 2049.0, f32::INFINITY, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0];
            assert_eq!(to.to_f32().unwrap(), expected, "{device}");
            assert!(own.add_bytes_into(&other[2..], &to.slice_flat(0, [5].into())).is_err(), "{device}");
        }
    }

    /// What the host has written is not written again before the kernel that reads it has run.
    #[test]
    fn sums_are_of_what_each_upload_brought() {
        for device in Device::for_tests() {
            let len = 10_003;
            let sum = Tensor::from_f32(&vec![0.0; len], [len], &device).unwrap();
            for turn in 1..=40 {
                sum.add_bytes(bytemuck::cast_slice(&vec![turn as f32; len])).unwrap();
                if turn % 7 == 0 {
                    device.submit().unwrap();
                }
            }
            assert_eq!(sum.to_f32().unwrap(), vec![820.0; len], "{device}");
        }
    }
}
