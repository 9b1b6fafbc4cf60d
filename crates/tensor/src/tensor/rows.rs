//! Matrices larger than one binding of a device, such as the embedding of a large vocabulary, cut between rows: each
//! buffer has some of the rows, and ops that take such matrices run their kernels on the rows of each.

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
    usize::try_from(device.limits().matrix_bytes()).unwrap_or(usize::MAX) / dtype.size_bytes()
}

/// Fails for a quantized matrix that no binding takes: it cannot be cut.
fn expect_bindable(spec: &Spec, device: &Device) -> Result<()> {
    match device.is_gpu() && spec.size_bytes() as u64 > device.limits().binding_bytes {
        true => Err(too_large(format!("a matrix {spec} in one binding"), spec, device, "use f16 or f32")),
        false => Ok(()),
    }
}

fn too_large(what: String, spec: &Spec, device: &Device, hint: &str) -> Error {
    let [needed, limit] = units::unequal_bytes([spec.size_bytes() as u64, device.limits().matrix_bytes()]);
    let adapter = device.adapter().map_or("the device".to_string(), |adapter| adapter.name.clone());
    Error::GpuLimit { what, needed, adapter, limit, hint: format!("{hint}, or --device cpu") }
}

impl Tensor {
    /// [`Tensor::empty`], but a matrix of f32 or f16 that no binding holds lies in several buffers.
    ///
    /// # Errors
    /// Those of [`Tensor::empty`], or for a quantized matrix that no binding holds.
    pub(crate) fn empty_by_rows(spec: Spec, device: &Device, kind: MemoryKind) -> Result<Tensor> {
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

    /// The error of an op that takes no tensor in several buffers.
    pub(super) fn larger_than_a_binding(&self, op: &str) -> Error {
        too_large(format!("{op}: a tensor {}", self.spec()), self.spec(), &self.device(), "use a smaller one")
    }

    /// Fails for a matrix in several buffers that was computed from a leaf: gradients only go back to leaves.
    pub(crate) fn expect_leaf(&self, op: &str) -> Result<()> {
        match self.edge() {
            Edge::Node(..) if self.is_in_parts() && self.needs_grad() => Err(Error::Autograd(format!(
                "{op} of a matrix {} in several buffers is differentiated if that is a leaf; this one was computed",
                self.spec()
            ))),
            _ => Ok(()),
        }
    }

    /// Whether kernels take it by its [`Tensor::row_parts`] alone.
    pub(crate) fn is_in_parts(&self) -> bool {
        matches!(self.storage(), Storage::Segments(_))
    }

    /// A matrix as kernels take it: itself, or the rows in each of its buffers, with their numbers. Of a leaf they are
    /// leaves, whose gradients are parts of its gradient; of what was computed they have no history.
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
}
