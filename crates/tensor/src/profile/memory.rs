//! Device memory by kind; every allocation names its kind.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::ops::{Index, IndexMut};

/// The purpose of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    Parameters,
    /// Gradients of parameters and, during backward, of activations.
    Gradients,
    /// Moments of the optimizer.
    OptimizerState,
    /// Outputs of ops, saved for backward or about to be freed.
    Activations,
    /// Temporary memory of a running kernel or op.
    Scratch,
    /// Batches and other data from the host.
    Other,
}

impl MemoryKind {
    pub const ALL: [MemoryKind; 6] = [
        MemoryKind::Parameters,
        MemoryKind::Gradients,
        MemoryKind::OptimizerState,
        MemoryKind::Activations,
        MemoryKind::Scratch,
        MemoryKind::Other,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Parameters => "parameters",
            MemoryKind::Gradients => "gradients",
            MemoryKind::OptimizerState => "optimizer_state",
            MemoryKind::Activations => "activations",
            MemoryKind::Scratch => "scratch",
            MemoryKind::Other => "other",
        }
    }
}

/// Bytes by kind; in JSON, an object with a key per kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BytesByKind([usize; MemoryKind::ALL.len()]);

impl BytesByKind {
    /// Bytes of all kinds.
    pub fn total(&self) -> usize {
        self.0.iter().sum()
    }
}

impl Index<MemoryKind> for BytesByKind {
    type Output = usize;

    fn index(&self, kind: MemoryKind) -> &usize {
        &self.0[kind as usize]
    }
}

impl IndexMut<MemoryKind> for BytesByKind {
    fn index_mut(&mut self, kind: MemoryKind) -> &mut usize {
        &mut self.0[kind as usize]
    }
}

impl Serialize for BytesByKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for kind in MemoryKind::ALL {
            map.serialize_entry(kind.name(), &self[kind])?;
        }
        map.end()
    }
}

/// How much memory a device's pool holds, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStats {
    /// In use by tensors now.
    pub used_bytes: usize,
    /// `used_bytes` by kind.
    pub used_by_kind: BytesByKind,
    /// Peak of `used_bytes` since the last reset.
    pub peak_bytes: usize,
    /// `peak_bytes` by kind.
    pub peak_by_kind: BytesByKind,
    /// Allocated from the driver or the system: in use or cached in the pool.
    pub reserved_bytes: usize,
    /// Number of buffers allocated from the driver or the system.
    pub buffers: usize,
    /// Number of allocations so far, served from the pool or the driver.
    pub allocations: u64,
}

impl MemoryStats {
    /// Bytes cached in the pool.
    pub fn cached_bytes(&self) -> usize {
        self.reserved_bytes.saturating_sub(self.used_bytes)
    }
}

/// Memory accounting of a pool.
#[derive(Debug, Default)]
pub struct MemoryCount {
    stats: MemoryStats,
}

impl MemoryCount {
    /// Counts a buffer as in use. `is_new`: it did not come from the pool.
    pub fn take(&mut self, bytes: usize, kind: MemoryKind, is_new: bool) {
        if is_new {
            self.stats.reserved_bytes += bytes;
            self.stats.buffers += 1;
        }
        self.stats.allocations += 1;
        self.stats.used_by_kind[kind] += bytes;
        self.stats.used_bytes += bytes;
        if self.stats.used_bytes > self.stats.peak_bytes {
            self.stats.peak_bytes = self.stats.used_bytes;
            self.stats.peak_by_kind = self.stats.used_by_kind;
        }
    }

    /// Counts a buffer as cached.
    pub fn give_back(&mut self, bytes: usize, kind: MemoryKind) {
        self.stats.used_by_kind[kind] -= bytes;
        self.stats.used_bytes -= bytes;
    }

    /// Counts a cached buffer as returned to the driver or the system.
    pub fn release(&mut self, bytes: usize) {
        self.stats.reserved_bytes -= bytes;
        self.stats.buffers -= 1;
    }

    /// Resets the peak to the memory in use.
    pub fn reset_peak(&mut self) {
        self.stats.peak_bytes = self.stats.used_bytes;
        self.stats.peak_by_kind = self.stats.used_by_kind;
    }

    pub fn stats(&self) -> MemoryStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_in_json() {
        let mut bytes = BytesByKind::default();
        bytes[MemoryKind::OptimizerState] = 7;
        bytes[MemoryKind::Other] = 1;
        let json = serde_json::to_value(bytes).unwrap();
        assert_eq!((json["optimizer_state"].as_u64(), json["other"].as_u64()), (Some(7), Some(1)));
        assert_eq!(json.as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum::<u64>(), 8);
        assert_eq!(bytes.total(), 8);
    }

    #[test]
    fn a_peak_that_is_reset_begins_with_what_is_in_use() {
        let mut count = MemoryCount::default();
        count.take(100, MemoryKind::Parameters, true);
        count.take(900, MemoryKind::Activations, true);
        count.give_back(900, MemoryKind::Activations);
        assert_eq!(count.stats().peak_bytes, 1000);
        count.reset_peak();
        assert_eq!((count.stats().peak_bytes, count.stats().peak_by_kind.total()), (100, 100));
        count.take(200, MemoryKind::Scratch, true);
        let stats = count.stats();
        assert_eq!((stats.peak_bytes, stats.peak_by_kind[MemoryKind::Activations], stats.buffers), (300, 0, 3));
        assert_eq!((stats.used_bytes, stats.reserved_bytes, stats.cached_bytes()), (300, 1200, 900));
        assert_eq!((stats.used_by_kind[MemoryKind::Scratch], stats.used_by_kind.total()), (200, 300));
        assert_eq!(stats.allocations, 3);
    }
}
