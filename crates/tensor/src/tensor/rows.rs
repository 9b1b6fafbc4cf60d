//! Matrices that no one binding of a device holds, such as the embedding of a large vocabulary: each of their buffers
//! has some of the rows, and ops that take them run kernels on the rows of each.

use super::{Device, Edge, Gradient, Shape, Spec, Storage, Tensor};
use crate::profile::MemoryKind;
use crate::{DType, Error, Result, units};
use std::ops::Range;

/// Rows are cut at multiples of this: the tiles of GEMMs divide it, and bindings and blocks of moments of 8 bits may
/// start there whatever the width of a row.
const ROWS: usize = 256;

/// How many rows of a matrix a buffer has, if a binding takes `most` elements and not the whole matrix.
pub(crate) fn rows_in_binding(shape: &Shape, most: usize) -> Option<usize> {
    let &[rows, width] = &shape[..] else { return None };
    let is_cut = rows > ROWS && shape.elements() > most;
    is_cut.then(|| (most / width / ROWS * ROWS).max(ROWS))
}

/// The elements of this type that a binding takes, and a buffer.
pub(crate) fn most_bindable(device: &Device, dtype: DType) -> usize {
    #[cfg(feature = "testing")]
    if let Some(most) = crate::testing::buffers::most_bindable() {
        return most;
    }
    let limits = device.limits();
    usize::try_from(limits.binding_bytes.min(limits.buffer_bytes)).unwrap_or(usize::MAX) / dtype.size_bytes()
}

/// Fails for a quantized matrix that no binding takes: it cannot be cut.
fn expect_bindable(spec: &Spec, device: &Device) -> Result<()> {
    let (bytes, most) = (spec.size_bytes() as u64, device.limits().binding_bytes);
    let Some(adapter) = device.adapter().filter(|_| bytes > most) else { return Ok(()) };
    let [needed, limit] = units::unequal_bytes([bytes, most]);
    let what = format!("a matrix {spec} in one binding");
    let hint = "use f16 or f32, or --device cpu".into();
    Err(Error::GpuLimit { what, needed, adapter: adapter.name.clone(), limit, hint })
}

impl Tensor {
    /// [`Tensor::empty`], but a matrix of f32 or f16 that no binding holds lies in several buffers.
    ///
    /// # Errors
    /// Those of [`Tensor::empty`], or for a quantized matrix that no binding holds.
    pub(super) fn empty_by_rows(spec: Spec, device: &Device, kind: MemoryKind) -> Result<Tensor> {
        if spec.dtype.is_quantized() {
            return expect_bindable(&spec, device).and_then(|()| Tensor::empty(spec, device, kind));
        }
        let Some(cut) = rows_in_binding(&spec.shape, most_bindable(device, spec.dtype)) else {
            return Tensor::empty(spec, device, kind);
        };
        Tensor::empty_in_parts(spec, cut, device, kind)
    }

    /// [`Tensor::empty`] for a matrix, with so many rows in each buffer.
    fn empty_in_parts(spec: Spec, rows: usize, device: &Device, kind: MemoryKind) -> Result<Tensor> {
        let (len, width) = (spec.shape.elements(), spec.shape.last_dim());
        let cuts: Vec<usize> = (rows..spec.shape[0]).step_by(rows).map(|row| row * width).collect();
        Ok(Tensor::empty_in_segments(&cuts, len, spec.dtype, device, kind)?.view(spec.shape, Edge::None))
    }

    /// Memory of another type for a matrix, in as many buffers as this one lies in.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub(crate) fn empty_beside(&self, dtype: DType, kind: MemoryKind) -> Result<Tensor> {
        let spec = Spec::new(self.shape().clone(), dtype);
        match self.row_parts().as_slice() {
            [_] => Tensor::empty(spec, &self.device(), kind),
            parts => Tensor::empty_in_parts(spec, parts[0].0.len(), &self.device(), kind),
        }
    }

    /// Whether kernels take it by its [`Tensor::row_parts`] alone.
    pub(crate) fn is_in_parts(&self) -> bool {
        matches!(self.storage(), Storage::Segments(_))
    }

    /// A matrix as kernels take it: itself, or the rows in each of its buffers, with their numbers. Of a leaf they are
    /// leaves, whose gradients are parts of its gradient.
    pub(crate) fn row_parts(&self) -> Vec<(Range<usize>, Tensor)> {
        let Storage::Segments(segments) = self.storage() else {
            return vec![(0..self.shape().rows(), self.clone())];
        };
        let (width, mut end) = (self.shape().last_dim(), 0);
        let parts = segments.tensors(self.dtype()).map(|part| {
            let rows = end..end + part.len() / width;
            end = rows.end;
            let edge = match self.edge() {
                Edge::Leaf(gradient) => Edge::Leaf(gradient.of_rows(&rows)),
                _ => Edge::None,
            };
            let part = part.view([rows.len(), width].into(), edge);
            (rows, part)
        });
        parts.collect()
    }
}

impl Gradient {
    /// That of the rows in each buffer of a matrix, with their numbers.
    pub(crate) fn row_parts(&self) -> Vec<(Range<usize>, Gradient)> {
        self.parts().unwrap_or_else(|| vec![(0..self.shape().rows(), self.clone())])
    }

    fn of_rows(&self, rows: &Range<usize>) -> Gradient {
        let parts = self.row_parts();
        let own = parts.into_iter().find(|(own, _)| own == rows);
        own.expect("a gradient lies in as many buffers as its leaf").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Criterion, IGNORED, add_rows};
    use crate::tensor::SparseGradient;
    use crate::testing::assert_close;

    const ROWS: usize = 600;
    const WIDTH: usize = 12;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin()).collect()
    }

    /// The same values in one buffer and in three, as leaves.
    fn leaves(dtype: DType, device: &Device) -> [Tensor; 2] {
        let spec = Spec::new([ROWS, WIDTH], dtype);
        let whole = Tensor::from_f32(&wave(ROWS * WIDTH, 1.3), [ROWS, WIDTH], device).unwrap().to_dtype(dtype).unwrap();
        let cut = || Tensor::empty_by_rows(spec, device, MemoryKind::Other).unwrap();
        let parts = crate::testing::buffers::with_bindings_of(300 * WIDTH, cut);
        parts.write_bytes(&whole.to_bytes().unwrap()).unwrap();
        let rows: Vec<_> = parts.row_parts().into_iter().map(|(rows, _)| rows).collect();
        assert_eq!((whole.row_parts().len(), rows), (1, vec![0..256, 256..512, 512..600]));
        [whole, parts].map(|matrix| matrix.requires_grad().unwrap())
    }

    fn ids(device: &Device) -> Tensor {
        let ids: Vec<u32> = (0..40).map(|i| if i == 7 { 600 } else { i * i * 37 % 600 }).collect();
        Tensor::from_u32(&ids, [4, 10], device).unwrap()
    }

    fn types(device: &Device) -> impl Iterator<Item = DType> {
        [DType::F32].into_iter().chain(device.has_f16().then_some(DType::F16))
    }

    fn gradient(leaf: &Tensor) -> Vec<f32> {
        leaf.grad().unwrap().to_f32().unwrap()
    }

    #[test]
    fn rows_are_cut_where_a_binding_may_start() {
        let cut = |shape: [usize; 2], most| rows_in_binding(&shape.into(), most);
        assert_eq!(cut([1000, 16], 16_000), None);
        assert_eq!(cut([1001, 16], 16_000), Some(768));
        assert_eq!(cut([151_936, 4096], 1 << 29), Some(131_072));
        assert_eq!(cut([1000, 16], 100), Some(256));
        assert_eq!(cut([200, 16], 100), None);
        assert_eq!(rows_in_binding(&[1000, 16, 1].into(), 100), None);
    }

    #[test]
    fn a_table_in_parts_gives_the_rows_and_gradients_of_one() {
        for device in Device::for_tests() {
            let positions = || Tensor::from_f32(&wave(15 * WIDTH, 0.4), [15, WIDTH], &device).unwrap();
            let of = |table: &Tensor, with_positions: bool| {
                let ids = ids(&device);
                let y = match with_positions {
                    true => table.embedding_at(&ids, &positions(), 3).unwrap(),
                    false => table.embedding(&ids).unwrap(),
                };
                let bits: Vec<u32> = y.to_f32().unwrap().iter().map(|y| y.to_bits()).collect();
                // An id beyond the table has no gradient, whatever that is.
                y.mul(&y.detach()).unwrap().sum(..).unwrap().backward().unwrap();
                bits
            };
            let [whole, parts] = leaves(DType::F32, &device);
            for with_positions in [false, true, false] {
                assert_eq!(of(&parts, with_positions), of(&whole, with_positions), "{device}");
                assert_eq!(gradient(&parts), gradient(&whole), "{device}");
            }
            assert!(gradient(&parts).iter().any(|g| *g != 0.0));
            parts.zero_grad();
            assert_eq!(gradient(&parts), [0.0; ROWS * WIDTH]);
            assert!(parts.embedding_at(&ids(&device), &positions(), 6).is_err(), "{device}: 16 of 15 positions");
        }
    }

    #[test]
    fn rows_that_collect_apart_are_added_to_the_parts() {
        for device in Device::for_tests() {
            let gradients = leaves(DType::F32, &device).map(|table| {
                let Edge::Leaf(gradient) = table.edge() else { unreachable!("a leaf") };
                let kept: Vec<u32> = (0..40).filter(|i| *i != 7).map(|i| i * i * 37 % 600).collect();
                let mut row_of = vec![u32::MAX; ROWS];
                (0..).zip(&kept).for_each(|(row, id)| row_of[*id as usize] = row);
                let row_of = Tensor::from_u32(&row_of, [ROWS], &device).unwrap();
                let sparse = SparseGradient::new(row_of, kept.len());
                gradient.collect_rows(Some(sparse.clone()));
                let y = table.embedding(&ids(&device)).unwrap();
                y.mul(&y.detach()).unwrap().sum(..).unwrap().backward().unwrap();
                gradient.collect_rows(None);
                assert_eq!(super::tests::gradient(&table), [0.0; ROWS * WIDTH]);
                let ids = Tensor::from_u32(&kept, [kept.len()], &device).unwrap();
                add_rows(gradient, &sparse.take().unwrap(), &ids).unwrap();
                super::tests::gradient(&table)
            });
            assert_eq!(gradients[0], gradients[1], "{device}");
            assert!(gradients[0][599 * WIDTH..].iter().chain(&gradients[0]).any(|g| *g != 0.0));
        }
    }

    /// Loss, gradients, log-probabilities and logits of a classifier.
    #[test]
    fn a_classifier_in_parts_gives_what_one_gives() {
        for (device, dtype) in Device::for_tests().iter().flat_map(|d| types(d).map(|t| (d.clone(), t))) {
            let targets: Vec<u32> = (0..300).map(|i| if i % 7 == 3 { IGNORED } else { i * 11 % 600 }).collect();
            let targets = Tensor::from_u32(&targets, [300], &device).unwrap();
            for has_bias in [false, true] {
                let [whole, parts] = leaves(dtype, &device).map(|weight| {
                    let leaf = |values: &[f32], shape: &[usize], dtype| {
                        let tensor = Tensor::from_f32(values, shape, &device).unwrap().to_dtype(dtype).unwrap();
                        tensor.requires_grad().unwrap()
                    };
                    let h = leaf(&wave(300 * WIDTH, 0.7), &[300, WIDTH], dtype);
                    let bias = has_bias.then(|| leaf(&wave(ROWS, 0.9), &[ROWS], DType::F32));
                    let (criterion, scale) = (Criterion::default(), Tensor::full(64.0, [1], &device).unwrap());
                    let loss =
                        h.linear_cross_entropy_with_bias(&weight, bias.as_ref(), &targets, criterion, Some(&scale));
                    let loss = loss.unwrap();
                    loss.backward().unwrap();
                    let y = h.linear_log_probs(&weight, bias.as_ref(), &targets, None).unwrap();
                    y.backward_with(&Tensor::from_f32(&wave(300, 0.2), [300], &device).unwrap()).unwrap();
                    let logits = h.detach().linear_to_f32(&weight, bias.as_ref()).unwrap();
                    let leaves = [&h, &weight].into_iter().chain(&bias).map(gradient);
                    let values = [loss, y, logits].map(|tensor| tensor.to_f32().unwrap());
                    values.into_iter().chain(leaves).collect::<Vec<_>>()
                });
                let most = if dtype == DType::F16 { 2e-3 } else { 1e-5 };
                for (i, (parts, whole)) in parts.iter().zip(&whole).enumerate() {
                    let largest = whole.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                    assert_close(format!("{device} {dtype:?}, {i}"), parts, whole, most * f64::from(largest), most);
                }
            }
        }
    }

    #[test]
    fn parts_move_and_change_their_type() {
        for device in Device::for_tests().into_iter().filter(Device::has_f16) {
            let [whole, parts] = leaves(DType::F32, &device).map(|leaf| leaf.detach().to_dtype(DType::F16).unwrap());
            assert!(parts.is_in_parts() && !whole.is_in_parts());
            assert_eq!(parts.to_bytes().unwrap(), whole.to_bytes().unwrap(), "{device}");
            let bound = || whole.to_device(&Device::Cpu).unwrap().to_device(&device).unwrap();
            let moved = crate::testing::buffers::with_bindings_of(256 * WIDTH, bound);
            assert_eq!(moved.is_in_parts(), device.is_gpu());
            assert_eq!(moved.to_bytes().unwrap(), whole.to_bytes().unwrap(), "{device}");
        }
    }
}
