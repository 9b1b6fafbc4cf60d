//! Memory that no one buffer of a device may hold: several buffers, one after the other. Kernels see parts that lie in
//! one of them.

use super::source::not_in_memory;
use super::{Device, Edge, Readback, Spec, Storage, Tensor};
use crate::profile::MemoryKind;
use crate::{DType, Result};
use std::ops::Range;
use std::sync::Arc;

/// The buffers, each with its bytes from the start of all.
#[derive(Clone)]
pub struct Segments(Arc<[(Range<usize>, Storage)]>);

impl Segments {
    fn of(parts: Vec<Storage>, sizes: impl Iterator<Item = usize>) -> Segments {
        let mut end = 0;
        let ranges = sizes.map(|size| {
            let start = end;
            end += size;
            start..end
        });
        Segments(ranges.zip(parts).collect())
    }

    pub(super) fn device(&self) -> Device {
        self.0[0].1.device()
    }

    /// These bytes: of one buffer, or of several.
    pub(super) fn slice(&self, offset: usize, size: usize) -> Storage {
        let end = offset + size;
        let touched = self.0.iter().filter(|(range, _)| range.start < end && offset < range.end);
        let parts: Vec<(usize, Storage)> = touched
            .map(|(range, storage)| {
                let (from, to) = (offset.max(range.start), end.min(range.end));
                (to - from, storage.slice(from - range.start, to - from))
            })
            .collect();
        match parts.as_slice() {
            [] => self.0[0].1.slice(0, 0),
            [(_, part)] => part.clone(),
            _ => {
                let (sizes, parts): (Vec<_>, _) = parts.into_iter().unzip();
                Storage::Segments(Segments::of(parts, sizes.into_iter()))
            }
        }
    }

    pub(super) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.0.iter().all(|(_, part)| part.is_unique())
    }

    /// As one-dimensional tensors of this type.
    pub(super) fn tensors(&self, dtype: DType) -> impl Iterator<Item = Tensor> {
        self.0.iter().map(move |(range, storage)| {
            let spec = Spec::new([range.len() / dtype.size_bytes()], dtype);
            Tensor::from_parts(spec, storage.clone(), Edge::None)
        })
    }

    pub(super) fn write_parts(&self, dtype: DType, parts: &[&[u8]]) -> Result<()> {
        let mut rest = parts.iter().copied();
        let mut open: &[u8] = &[];
        for tensor in self.tensors(dtype) {
            let (mut own, mut missing) = (Vec::new(), tensor.spec().size_bytes());
            while missing > 0 {
                if open.is_empty() {
                    open = rest.next().expect("as many bytes as the tensor has");
                }
                let (taken, others) = open.split_at(missing.min(open.len()));
                own.push(taken);
                (open, missing) = (others, missing - taken.len());
            }
            tensor.write_parts(&own)?;
        }
        Ok(())
    }

    pub(super) fn to_bytes(&self, dtype: DType) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.0.last().map_or(0, |(range, _)| range.end));
        self.tensors(dtype).try_for_each(|tensor| tensor.to_bytes().map(|own| bytes.extend(own)))?;
        Ok(bytes)
    }

    pub(super) fn read_later(&self, dtype: DType) -> Result<Readback> {
        self.tensors(dtype).map(|tensor| tensor.read_later()).collect::<Result<_>>().map(Readback::joined)
    }
}

/// The parts of a range that end at cuts inside it, and its rest.
pub(crate) fn parts_between(cuts: &[usize], range: &Range<usize>) -> Vec<Range<usize>> {
    let mut start = range.start;
    let inside = cuts.iter().copied().filter(|cut| range.contains(cut));
    let parts = inside.chain([range.end]).map(|end| std::mem::replace(&mut start, end)..end);
    parts.filter(|part| !part.is_empty()).collect()
}

impl Tensor {
    /// [`Tensor::empty`] of so many elements in one dimension, in a buffer for each part that ends at a cut. What lies
    /// between two cuts is used as any tensor is; what lies around one can only be read, written and set to zero.
    ///
    /// # Errors
    /// If the device has no memory left, or a part is larger than its largest buffer.
    pub(crate) fn empty_in_segments(
        cuts: &[usize],
        len: usize,
        dtype: DType,
        device: &Device,
        kind: MemoryKind,
    ) -> Result<Tensor> {
        let ranges = parts_between(cuts, &(0..len));
        if ranges.len() < 2 {
            return Tensor::empty(Spec::new([len], dtype), device, kind);
        }
        let part = |range: &Range<usize>| Tensor::empty(Spec::new([range.len()], dtype), device, kind);
        let parts = ranges.iter().map(|range| Ok(part(range)?.storage().clone())).collect::<Result<_>>()?;
        let sizes = ranges.iter().map(|range| range.len() * dtype.size_bytes());
        let storage = Storage::Segments(Segments::of(parts, sizes));
        Ok(Tensor::from_parts(Spec::new([len], dtype), storage, Edge::None))
    }

    /// [`Tensor::empty_in_segments`] with all elements zero.
    ///
    /// # Errors
    /// Those of [`Tensor::empty_in_segments`].
    pub(crate) fn zeros_in_segments(
        cuts: &[usize],
        len: usize,
        dtype: DType,
        device: &Device,
        kind: MemoryKind,
    ) -> Result<Tensor> {
        let tensor = Tensor::empty_in_segments(cuts, len, dtype, device, kind)?;
        tensor.fill_zero();
        Ok(tensor)
    }

    /// Fails for what lies in several buffers, or in no memory: no kernel takes it.
    pub(super) fn expect_in_one_buffer(&self, op: &'static str) -> Result<()> {
        match self.storage() {
            Storage::Segments(_) => Err(self.larger_than_a_binding(op)),
            Storage::Unread(_) => Err(not_in_memory(op, self.spec())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_read_written_and_computed_with_as_one_buffer_is() {
        for device in Device::for_tests() {
            for cuts in [vec![], vec![128], vec![128, 384], vec![128, 256, 640]] {
                let x = Tensor::zeros_in_segments(&cuts, 640, DType::F32, &device, MemoryKind::Other).unwrap();
                assert_eq!(x.to_f32().unwrap(), [0.0; 640], "{device} {cuts:?}");
                let values: Vec<f32> = (0..640).map(|i| i as f32).collect();
                let bytes: &[u8] = bytemuck::cast_slice(&values);
                x.write_parts(&[&bytes[..1000], &[], &bytes[1000..]]).unwrap();
                assert_eq!(x.to_f32().unwrap(), values, "{device} {cuts:?}");
                assert_eq!(x.read_later().unwrap().wait().unwrap()[..], *bytes, "{device} {cuts:?}");
                // Across cuts, and between them.
                assert_eq!(x.slice_flat(64, [512].into()).to_f32().unwrap(), values[64..576]);
                let between = x.slice_flat(128, [64].into());
                assert_eq!(between.scale(2.0).unwrap().to_f32().unwrap()[63], 2.0 * 191.0, "{device} {cuts:?}");
                assert!(x.overlaps(&between) && between.overlaps(&x));
                assert!(!x.slice_flat(256, [64].into()).overlaps(&between));
                assert_eq!(x.scale(2.0).is_err(), cuts.iter().any(|cut| *cut < 640), "{device} {cuts:?}");
            }
        }
    }
}
