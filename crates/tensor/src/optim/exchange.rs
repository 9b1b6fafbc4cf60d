//! What the ranks of a run tell each other of the values of parameters, which they may divide: at the beginning, after
//! an update, and for a checkpoint.

use super::arena::ParameterArena;
use super::layout::flatten;
use super::optimizer::slice;
use crate::tensor::Bytes;
use crate::{DType, Error, Result, Tensor};
use std::ops::Range;

impl ParameterArena {
    /// What of each of the [stored](ParameterArena::stored) arenas all ranks begin with: what this device has, and of
    /// f32 values that it has in part alone those of `tensors`, by the names of the parameters.
    ///
    /// # Errors
    /// If they are of other parameters, or the driver reported an error.
    #[doc(hidden)]
    pub fn stored_bytes(&self, tensors: &[(String, Tensor)]) -> Result<Vec<Vec<u8>>> {
        let values = if self.is_whole() {
            self.values().to_bytes()?
        } else {
            bytemuck::cast_slice(&flatten(&self.entries, DType::F32, self.values.layout(), tensors)?).to_vec()
        };
        let f16_only = self.f16_only.iter().map(Tensor::to_bytes);
        [Ok(values)].into_iter().chain(f16_only).collect()
    }

    /// Takes what [`ParameterArena::stored_bytes`] gave on another rank, arena by arena.
    ///
    /// # Errors
    /// If they are of other parameters, or the driver reported an error.
    #[doc(hidden)]
    pub fn take_stored(&self, mut next: impl FnMut() -> Result<Vec<u8>>) -> Result<()> {
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(&next()?);
        if values.len() != self.values.layout() {
            let (own, there) = (self.values.layout(), values.len());
            return Err(Error::Communication(format!("{own} weights here, {there} on rank 0")));
        }
        self.write_values(&values)?;
        self.f16_only.as_ref().map_or(Ok(()), |f16_only| f16_only.write_bytes(&next()?))
    }

    /// The f32 values of this rank's part, for a checkpoint, if there are some that not every rank has.
    ///
    /// # Errors
    /// If another rank has them.
    #[doc(hidden)]
    pub fn divided_values(&self, part: &Range<usize>) -> Result<Option<Tensor>> {
        if self.values.are_divided() && !part.is_empty() { self.value(part).map(Some) } else { Ok(None) }
    }

    /// All f32 values, of the contents of the arena of this device and of what other ranks have.
    ///
    /// # Errors
    /// If together they are not all.
    #[doc(hidden)]
    pub fn joined_values(&self, own: Bytes, others: &[(Range<usize>, Bytes)]) -> Result<Bytes> {
        self.values.joined(own, others)
    }

    /// What ranks give each other of a part that one of them has updated, where each has it, in pieces of at most so
    /// many elements: the f32 values that all have, and the f16 copies of the others.
    #[doc(hidden)]
    pub fn exchanged(&self, part: &Range<usize>, most: usize) -> Result<Vec<Tensor>> {
        let mut pieces = Vec::new();
        for (range, is_shared) in self.values.cut(part) {
            for piece in self.in_buffers(&range, most) {
                pieces.push(match &self.halves {
                    Some(halves) if !is_shared => slice(halves, &piece),
                    _ => self.value(&piece)?,
                });
            }
        }
        Ok(pieces)
    }
}
