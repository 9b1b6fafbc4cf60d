//! Values on their way between ranks, in the memory where somebody has them: handing them over copies nothing.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::Wire;
use crate::{Error, Result};

/// Memory that several ranks may read: between those of one process it is not copied.
pub type Memory = Arc<dyn Deref<Target = [u8]> + Send + Sync>;

/// The values of one rank, in the type of their wire.
#[derive(Clone)]
pub struct Encoded {
    wire: Wire,
    bytes: Memory,
}

impl Encoded {
    /// Values, for this wire.
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

    /// Values that are in the type of this wire already, as where a device has copied them to.
    ///
    /// # Errors
    /// If the bytes are no whole number of values.
    pub fn of_bytes(bytes: impl Deref<Target = [u8]> + Send + Sync + 'static, wire: Wire) -> Result<Encoded> {
        if !bytes.len().is_multiple_of(wire.width()) {
            let (bytes, width) = (bytes.len(), wire.width());
            return Err(Error::Invalid(format!("{bytes} bytes are no whole number of values of {width} bytes")));
        }
        Ok(Encoded { wire, bytes: Arc::new(bytes) })
    }

    /// The type that they have.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// How many values there are.
    pub fn values(&self) -> usize {
        self.bytes.len() / self.wire.width()
    }

    pub(super) fn memory(&self) -> Memory {
        self.bytes.clone()
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} values as {:?}", self.values(), self.wire)
    }
}

/// What an all-reduce gives: the sums, in the type of the wire and in the parts in which the ranks added them up.
#[derive(Clone)]
pub struct Sums {
    wire: Wire,
    parts: Vec<Memory>,
}

impl Sums {
    pub(super) fn new(wire: Wire, parts: Vec<Memory>) -> Sums {
        Sums { wire, parts }
    }

    /// The bytes of the sums, part after part. A part may be empty.
    pub fn parts(&self) -> Vec<&[u8]> {
        self.parts.iter().map(|part| &***part).collect()
    }

    /// The sums.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes: usize = self.parts.iter().map(|part| part.len()).sum();
        let mut values = vec![0.0; bytes / self.wire.width()];
        let mut rest = &mut values[..];
        for part in &self.parts {
            let (first, others) = rest.split_at_mut(part.len() / self.wire.width());
            self.wire.decode(part, first);
            rest = others;
        }
        values
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
    /// Memory of so many bytes, filled by `fill`, which must not rely on what it holds.
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
