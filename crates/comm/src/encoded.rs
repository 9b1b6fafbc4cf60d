//! Encoded values in shared memory, which ranks exchange without copies.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::Wire;
use crate::{Error, Result};

/// Memory that several ranks may read; ranks of one process share it without copies.
pub type Memory = Arc<dyn Deref<Target = [u8]> + Send + Sync>;

/// The values of one rank, in the wire's type.
#[derive(Clone)]
pub struct Encoded {
    wire: Wire,
    bytes: Memory,
}

impl Encoded {
    /// Encodes values for this wire.
    pub fn new(values: Vec<f32>, wire: Wire) -> Encoded {
        let bytes: Memory = match wire {
            Wire::F32 => Arc::new(Floats(values)),
            Wire::F16 => {
                let mut bytes = vec![0; values.len() * wire.width()];
                wire.encode(&values, &mut bytes);
                Arc::new(bytes)
            }
        };
        Encoded { wire, bytes }
    }

    /// Values already in the type of this wire, such as bytes read from a device.
    ///
    /// # Errors
    /// If the bytes are not a whole number of values.
    pub fn of_bytes(bytes: impl Deref<Target = [u8]> + Send + Sync + 'static, wire: Wire) -> Result<Encoded> {
        if !bytes.len().is_multiple_of(wire.width()) {
            let (bytes, width) = (bytes.len(), wire.width());
            return Err(Error::Invalid(format!("{bytes} bytes are not a multiple of {width} bytes per value")));
        }
        Ok(Encoded { wire, bytes: Arc::new(bytes) })
    }

    /// Zeros.
    ///
    /// # Errors
    /// If memory runs out.
    #[doc(hidden)]
    pub fn zeros(values: usize, wire: Wire) -> Result<Encoded> {
        let size = values * wire.width();
        let zeros = bytemuck::allocation::try_zeroed_vec::<u8>(size);
        let bytes = zeros.map_err(|()| Error::OutOfMemory {
            adapter: "the machine".into(),
            needed_bytes: size,
            used_bytes: 0,
            is_cpu: true,
        })?;
        Encoded::of_bytes(bytes, wire)
    }

    /// The type that they have.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// How many values there are.
    pub fn values(&self) -> usize {
        self.bytes.len() / self.wire.width()
    }

    /// Their bytes.
    pub fn memory(&self) -> Memory {
        self.bytes.clone()
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} values as {:?}", self.values(), self.wire)
    }
}

/// The result of an all-reduce: sums in the wire's type, in one part per rank.
#[derive(Clone)]
pub struct Sums {
    wire: Wire,
    parts: Vec<Memory>,
}

impl Sums {
    pub(super) fn new(wire: Wire, parts: Vec<Memory>) -> Sums {
        Sums { wire, parts }
    }

    /// The bytes of the sums by part. A part may be empty.
    pub fn parts(&self) -> Vec<&[u8]> {
        self.parts.iter().map(|part| &***part).collect()
    }

    /// The bytes of this range of values.
    #[doc(hidden)]
    pub fn part(&self, values: Range<usize>) -> Vec<&[u8]> {
        let (start, end) = (values.start * self.wire.width(), values.end * self.wire.width());
        let mut next = 0;
        let of_part = |part: &Memory| {
            let first = next;
            next += part.len();
            start.clamp(first, next) - first..end.clamp(first, next) - first
        };
        let ranges: Vec<Range<usize>> = self.parts.iter().map(of_part).collect();
        self.parts.iter().zip(ranges).map(|(part, range)| &part[range]).collect()
    }

    /// The sums.
    pub fn to_f32(&self) -> Vec<f32> {
        self.wire.decoded(&self.parts())
    }

    /// The sums as one rank's values, such as for another all-reduce.
    pub(super) fn into_encoded(self) -> Encoded {
        let bytes = match &self.parts[..] {
            [whole] => whole.clone(),
            parts => Arc::new(parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>()),
        };
        Encoded { wire: self.wire, bytes }
    }
}

impl fmt::Debug for Sums {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let lengths: Vec<usize> = self.parts.iter().map(|part| part.len()).collect();
        write!(f, "sums as {:?}, parts of {lengths:?} bytes", self.wire)
    }
}

struct Floats(Vec<f32>);

impl Deref for Floats {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Memory that this rank fills and others read, used again once nobody does: new memory is slow at first.
#[derive(Default)]
pub(super) struct Reused(Vec<Arc<Vec<u8>>>);

impl Reused {
    /// Reusable memory of `length` bytes, filled by `fill`; its previous contents are unspecified.
    pub fn filled(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Memory {
        let free = self.0.iter().position(|memory| Arc::strong_count(memory) == 1);
        let mut memory = free.map(|i| self.0.swap_remove(i)).unwrap_or_default();
        let bytes = Arc::get_mut(&mut memory).expect("nobody else has it");
        bytes.resize(length, 0);
        fill(bytes);
        self.0.push(memory.clone());
        memory
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_sums_may_begin_and_end_in_any_of_theirs() {
        let values: Vec<f32> = (0..10).map(|i| i as f32).collect();
        for wire in [Wire::F32, Wire::F16] {
            let parts = [&values[..3], &[], &values[3..4], &values[4..]];
            let parts = parts.map(|part| Encoded::new(part.to_vec(), wire).memory());
            let sums = Sums::new(wire, parts.to_vec());
            assert_eq!(sums.to_f32(), values);
            for start in 0..=10 {
                for end in start..=10 {
                    assert_eq!(wire.decoded(&sums.part(start..end)), values[start..end], "{start}..{end}");
                }
            }
        }
    }
}
