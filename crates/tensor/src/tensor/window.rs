//! Memory that the ranks of a job give each other: bytes in which tensors of any type lie.

use super::accumulate::{AddInto, Sum};
use super::{DType, Device, Edge, Spec, Storage, Tensor, run_into};
use crate::profile::MemoryKind;
use crate::{Error, Result};

/// Memory of a card that its own API (CUDA, HIP) can import.
#[cfg(target_os = "linux")]
pub struct Exported {
    pub window: Tensor,
    /// What the other API imports, and how many bytes it is.
    pub handle: std::os::fd::OwnedFd,
    pub allocated: u64,
}

impl Device {
    /// Memory of so many bytes that only this library sees.
    ///
    /// # Errors
    /// If the device has no memory left.
    #[doc(hidden)]
    pub fn window(&self, bytes: usize) -> Result<Tensor> {
        Tensor::empty(words(bytes), self, MemoryKind::Other)
    }

    /// Memory of so many bytes that the card's own API can import; `None` if the driver exports none.
    ///
    /// # Errors
    /// As [`Device::window`].
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn exported_window(&self, bytes: usize) -> Result<Option<Exported>> {
        let Device::Gpu(gpu) = self else { return Ok(None) };
        Ok(gpu.alloc_exported(bytes)?.map(|(slice, handle, allocated)| {
            let window = Tensor::from_parts(words(bytes), Storage::Gpu(gpu.clone(), slice), Edge::None);
            Exported { window, handle, allocated }
        }))
    }

    /// The vendor's PCI number and the card's PCI address ("0000:41:00.0"), by which other APIs find it. `None` of the
    /// CPU, and where the driver does not tell.
    pub fn pci(&self) -> Option<(u32, String)> {
        match self {
            Device::Gpu(gpu) => gpu.pci(),
            Device::Cpu | Device::DryRun(_) => None,
        }
    }
}

impl Tensor {
    /// The elements of this type that lie in this tensor's memory from this byte on, a multiple of 256.
    #[doc(hidden)]
    pub fn in_window(&self, offset: usize, len: usize, dtype: DType) -> Tensor {
        let spec = Spec::new([len], dtype);
        let storage = self.storage().slice(offset, spec.size_bytes());
        Tensor::from_parts(spec, storage, Edge::None)
    }

    /// Sets this f32 tensor to the sum of others, all f32 or all f16, which are added in f32 in their order.
    ///
    /// # Errors
    /// If there are none, they have other numbers of elements, or the driver reported an error.
    #[doc(hidden)]
    pub fn set_to_sum(&self, parts: &[Tensor]) -> Result<()> {
        match parts {
            [] => Err(Error::Invalid("a sum of no tensors".into())),
            [only] => only.cast_into(self),
            [first, second, rest @ ..] => {
                run_into(&Sum { into: self.dtype() }, &[first, second], &[self])?;
                rest.iter().try_for_each(|part| run_into(&AddInto { into: self.dtype() }, &[part], &[self]))
            }
        }
    }
}

fn words(bytes: usize) -> Spec {
    Spec::new([bytes.div_ceil(4)], DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_several_types_lie_in_a_window_and_are_summed_in_their_order() {
        for device in Device::for_tests() {
            let window = device.window(4 * 1024).unwrap();
            for dtype in [DType::F32, DType::F16] {
                if dtype == DType::F16 && !device.has_f16() {
                    continue;
                }
                let parts: Vec<Tensor> = (0..3)
                    .zip([[1.0, 60000.0, -0.5], [1.0, 60000.0, 0.25], [1e4, -60000.0, 8.0]])
                    .map(|(i, values)| {
                        let part = window.in_window(1024 * i, 3, dtype);
                        Tensor::from_f32(&values, [3], &device).unwrap().cast_into(&part).unwrap();
                        part
                    })
                    .collect();
                let sum = Tensor::from_f32(&[7.0; 3], [3], &device).unwrap();
                sum.set_to_sum(&parts).unwrap();
                assert_eq!(sum.to_f32().unwrap(), [10002.0, 60000.0, 7.75], "{device} {dtype:?}");
                sum.set_to_sum(&parts[2..]).unwrap();
                assert_eq!(sum.to_f32().unwrap(), [1e4, -60000.0, 8.0]);
            }
            // 2^25 + 2 + 2 rounds twice, 2 + 2 + 2^25 does not.
            let [large, two] = [33_554_432.0, 2.0].map(|value| Tensor::from_f32(&[value], [1], &device).unwrap());
            let sum = Tensor::from_f32(&[0.0], [1], &device).unwrap();
            sum.set_to_sum(&[large.clone(), two.clone(), two.clone()]).unwrap();
            assert_eq!(sum.to_f32().unwrap(), [33_554_432.0]);
            sum.set_to_sum(&[two.clone(), two, large]).unwrap();
            assert_eq!(sum.to_f32().unwrap(), [33_554_436.0]);
            assert!(sum.set_to_sum(&[]).is_err());
        }
    }
}
