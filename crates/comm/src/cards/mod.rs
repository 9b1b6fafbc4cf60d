//! NCCL, NVIDIA's library for communication between cards, and RCCL, AMD's with the same interface: cards exchange memory
//! over their own links, without the host.
//!
//! The memory is a Vulkan device's, imported by file descriptor. Both libraries, and CUDA or HIP below them, are loaded
//! at run time. The host waits before and after each exchange: a card alternates between its contexts, and an exchange
//! during computation costs a card 0.7 ms of it (H200, NCCL 2.28), so one begins when all ranks are ready for it.
//!
//! RCCL and HIP compile here and have been run by nobody.

mod driver;
mod library;
mod nccl;

use crate::{Error, Result};
use driver::{Driver, Memory};
use nccl::{Comm, Nccl};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// PCI vendors.
const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;

/// Whose interface to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    Nvidia,
    Amd,
}

/// The libraries of a card's vendor.
#[derive(Clone)]
pub struct CardLibraries {
    driver: Arc<Driver>,
    nccl: Arc<Nccl>,
}

/// Identifies a group of cards; rank 0 makes it for all.
pub type GroupId = [u8; nccl::ID_BYTES];

impl CardLibraries {
    /// Those of a PCI vendor.
    ///
    /// # Errors
    /// What is missing, in a line.
    pub fn load(vendor: u32) -> std::result::Result<CardLibraries, String> {
        let vendor = match vendor {
            NVIDIA => Vendor::Nvidia,
            AMD => Vendor::Amd,
            _ => return Err("NCCL is for NVIDIA's cards, RCCL for AMD's".into()),
        };
        let driver = Arc::new(Driver::load(vendor)?);
        let nccl = Arc::new(Nccl::load(vendor)?);
        Ok(CardLibraries { driver, nccl })
    }

    /// "NCCL 2.28.9 (libnccl.so.2)"
    pub fn name(&self) -> &str {
        &self.nccl.name
    }

    /// A new group.
    ///
    /// # Errors
    /// If NCCL refuses.
    pub fn group(&self) -> std::result::Result<GroupId, String> {
        self.nccl.id()
    }
}

/// A rank's card in a group. Every rank must make the same calls in the same order.
pub struct CardGroup {
    libraries: CardLibraries,
    comm: Comm,
    stream: driver::Stream,
    timeout: Duration,
}

impl CardGroup {
    /// Joins a group as one rank of several with the card at this PCI address. Waits for the others.
    ///
    /// # Errors
    /// If there is no such card, NCCL refuses, or a rank does not come in time.
    pub fn join(
        libraries: &CardLibraries,
        address: &str,
        id: GroupId,
        (rank, ranks): (usize, usize),
        timeout: Duration,
    ) -> std::result::Result<CardGroup, String> {
        let stream = libraries.driver.stream(address)?;
        let comm = libraries.nccl.join(id, rank, ranks, timeout)?;
        Ok(CardGroup { libraries: libraries.clone(), comm, stream, timeout })
    }

    /// Imports memory of the card that another API has exported, of so many bytes.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn import(&self, handle: OwnedFd, bytes: u64) -> std::result::Result<CardMemory, String> {
        self.stream.import(handle, bytes).map(CardMemory)
    }

    /// Copies the first bytes of every rank's `from`, as many on all, to `to`, in the order of the ranks, and waits for
    /// it.
    ///
    /// # Errors
    /// If a rank does not take part in time, or NCCL or the driver failed. The group is of no use then.
    pub fn all_gather(&mut self, from: &CardMemory, to: &CardMemory, bytes: usize) -> Result<()> {
        let ranks = self.comm.ranks as u64;
        let fits = bytes as u64 <= from.0.bytes && bytes as u64 * ranks <= to.0.bytes;
        assert!(fits, "{bytes} bytes of {ranks} ranks from {} to {}", from.0.bytes, to.0.bytes);
        let exchanged = self.stream.enter().and_then(|()| {
            // SAFETY: the memory is this card's and has the bytes; the caller keeps it, and the stream is waited for.
            unsafe { self.comm.all_gather(from.0.pointer, to.0.pointer, bytes, self.stream.raw(), self.timeout)? };
            self.stream.wait(self.timeout, || self.comm.check())
        });
        exchanged.map_err(|reason| {
            // What hangs would hang whoever waits for the card.
            self.comm.abort();
            Error::Communication(format!("{}: {reason}", self.libraries.nccl.name))
        })
    }
}

/// Imported memory.
pub struct CardMemory(Memory);
