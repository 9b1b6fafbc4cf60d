//! NCCL, NVIDIA's library for communication between cards, and RCCL, AMD's with the same interface: cards exchange
//! memory over their own links, without the host.
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
use driver::{Driver, Memory, Stream};
use nccl::{Group, Nccl};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// PCI vendors.
const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;

/// How long a card may take to end what was aborted.
const ABORT: Duration = Duration::from_secs(5);

/// Whose interface to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    Nvidia,
    Amd,
}

/// The libraries of a card's vendor, which stay loaded: their threads may outlive their last user.
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
    #[doc(hidden)]
    pub fn load(vendor: u32) -> std::result::Result<CardLibraries, String> {
        static LOADED: [OnceLock<std::result::Result<CardLibraries, String>>; 2] = [const { OnceLock::new() }; 2];
        let vendor = match vendor {
            NVIDIA => Vendor::Nvidia,
            AMD => Vendor::Amd,
            _ => return Err("NCCL is for NVIDIA's cards, RCCL for AMD's".into()),
        };
        let load =
            || Ok(CardLibraries { driver: Arc::new(Driver::load(vendor)?), nccl: Arc::new(Nccl::load(vendor)?) });
        LOADED[vendor as usize].get_or_init(load).clone()
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

    /// The card at this PCI address.
    ///
    /// # Errors
    /// If the driver does not know it, or refuses.
    #[doc(hidden)]
    pub fn card(&self, address: &str) -> std::result::Result<Card, String> {
        self.driver.stream(address).map(Card)
    }
}

/// A card of this process.
pub struct Card(Stream);

impl Card {
    /// Imports memory of the card that another API has exported, of so many bytes.
    ///
    /// # Errors
    /// If the driver refuses.
    #[doc(hidden)]
    pub fn import(&self, handle: OwnedFd, bytes: u64) -> std::result::Result<CardMemory, String> {
        self.0.import(handle, bytes).map(CardMemory)
    }
}

/// Imported memory.
pub struct CardMemory(Memory);

/// A rank's card in a group. Every rank must make the same calls in the same order.
pub struct CardGroup {
    name: String,
    group: Group,
    card: Card,
    timeout: Duration,
}

impl CardGroup {
    /// Joins a group with a card, as one rank of several. Waits for the others.
    ///
    /// # Errors
    /// If NCCL refuses, or a rank does not come in half of the time, so that the others hear of it.
    #[doc(hidden)]
    pub fn join(
        libraries: &CardLibraries,
        card: Card,
        id: GroupId,
        (rank, ranks): (usize, usize),
        timeout: Duration,
    ) -> std::result::Result<CardGroup, String> {
        card.0.enter()?;
        let group = libraries.nccl.join(id, rank, ranks, timeout / 2)?;
        Ok(CardGroup { name: libraries.name().to_string(), group, card, timeout })
    }

    /// Copies the first bytes of every rank's `from`, as many on all, to `to`, in the order of the ranks, and waits for
    /// it.
    ///
    /// # Errors
    /// If a rank does not take part in time, or NCCL or the driver failed. The group is of no use then.
    #[doc(hidden)]
    pub fn all_gather(&mut self, from: &CardMemory, to: &CardMemory, bytes: usize) -> Result<()> {
        let ranks = self.group.ranks as u64;
        let stream = &self.card.0;
        let exchanged = stream.enter().and_then(|()| {
            if bytes as u64 > from.0.bytes || bytes as u64 * ranks > to.0.bytes {
                return Err(format!("{bytes} bytes do not fit in {} and {}", from.0.bytes, to.0.bytes));
            }
            // SAFETY: the memory is this card's and has the bytes; the caller keeps it, and the stream is waited for.
            unsafe { self.group.all_gather(from.0.pointer, to.0.pointer, bytes, stream.raw(), self.timeout)? };
            stream.wait(self.timeout, || self.group.check())
        });
        exchanged.map_err(|reason| {
            // What hangs would hang whoever waits for the card, and may still use the memory.
            self.group.abort();
            let _ = stream.wait(ABORT, || Ok(()));
            Error::Communication(format!("{}: {reason}", self.name))
        })
    }
}
