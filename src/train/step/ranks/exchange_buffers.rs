//! Memory that the ranks' devices give each other: each fills its own window, and an exchange copies all windows to
//! every device, in the order of the ranks.

use super::ballot::Ballot;
use crate::comm::Communicator;
use crate::{DType, Result, Tensor};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The largest sum of all ranks' windows, which every rank holds.
const MOST_BYTES: usize = if cfg!(test) { 1 << 14 } else { 512 << 20 };

/// Where a tensor in a window begins is a multiple of this, in bytes.
const ALIGN: usize = 256;

/// Copies between devices.
pub(super) trait Exchange: Send {
    /// Copies the first bytes of every rank's own window to all, and waits for it.
    ///
    /// # Errors
    /// If a rank does not take part.
    fn all_gather(&mut self, comm: &mut dyn Communicator, bytes: usize) -> Result<()>;
}

/// A rank's windows, on its device.
pub(super) struct ExchangeBuffers {
    own: Tensor,
    /// Of all ranks.
    all: Tensor,
    /// Bytes of a rank's window.
    capacity: usize,
    exchange: Arc<Mutex<dyn Exchange>>,
}

/// A tensor's place in a window, bytes.
pub(super) type Offset = usize;

impl ExchangeBuffers {
    /// The bytes of a rank's window, where it has so many to give in a step.
    pub fn capacity(bytes: usize, ranks: usize) -> usize {
        bytes.min(MOST_BYTES / ranks).max(3 * ALIGN).next_multiple_of(ALIGN)
    }

    pub fn new(own: Tensor, all: Tensor, capacity: usize, exchange: impl Exchange + 'static) -> ExchangeBuffers {
        ExchangeBuffers { own, all, capacity, exchange: Arc::new(Mutex::new(exchange)) }
    }

    /// The most elements of a tensor of at most 32 bits that fits in a window beside a number, and that any device
    /// binds.
    pub fn most_elements(&self) -> usize {
        const BINDABLE: usize = 128 << 20;
        // Parts of f16 begin at multiples of 256 bytes too.
        (self.capacity - ALIGN).min(BINDABLE) / 4 / 128 * 128
    }

    /// Places for as many of these tensors as the window holds, given their bytes; and the bytes up to the last's end.
    pub fn place(&self, sizes: impl Iterator<Item = usize>) -> (Vec<Offset>, usize) {
        let (mut places, mut end) = (Vec::new(), 0);
        for size in sizes {
            let size = size.next_multiple_of(ALIGN);
            if end + size > self.capacity {
                break;
            }
            places.push(end);
            end += size;
        }
        (places, end)
    }

    /// What this rank gives.
    pub fn own(&self, offset: Offset, len: usize, dtype: DType) -> Tensor {
        self.own.in_window(offset, len, dtype)
    }

    /// Lets this rank give zeros.
    pub fn clear(&self) {
        self.own.fill_zero();
    }

    /// What a rank has given, in an exchange of so many bytes.
    pub fn of(&self, rank: usize, bytes: usize, offset: Offset, len: usize, dtype: DType) -> Tensor {
        self.all.in_window(rank * bytes + offset, len, dtype)
    }

    /// Waits for what is written to this rank's window, exchanges as many bytes on all ranks, and waits for that, which
    /// the ballot counts.
    ///
    /// # Errors
    /// If the device reported an error, or a rank failed.
    pub fn exchange(&self, ballot: &Ballot, bytes: usize) -> Result<()> {
        self.own.device().synchronize()?;
        let started = Instant::now();
        let exchange = self.exchange.clone();
        let exchanged = ballot.comm.begin_exchange(move |comm| {
            let mut exchange = exchange.lock().unwrap_or_else(PoisonError::into_inner);
            exchange.all_gather(comm, bytes)
        });
        exchanged.wait()?;
        ballot.add_waited(started);
        Ok(())
    }
}

/// ExchangeBuffers of devices that are no cards.
#[cfg(test)]
pub(super) mod testing {
    use super::{Arc, Communicator, DType, Exchange, ExchangeBuffers, Result, Tensor};
    use crate::Device;
    use crate::comm::Background;

    /// Exchanges through the communicator.
    struct ThroughHost {
        own: Tensor,
        all: Tensor,
    }

    impl Exchange for ThroughHost {
        fn all_gather(&mut self, comm: &mut dyn Communicator, bytes: usize) -> Result<()> {
            let own = self.own.in_window(0, bytes / 4, DType::F32).to_bytes()?;
            let all = comm.all_gather(Arc::new(own))?;
            let parts: Vec<&[u8]> = all.iter().map(|bytes| &bytes[..]).collect();
            self.all.in_window(0, parts.len() * bytes / 4, DType::F32).write_parts(&parts)
        }
    }

    pub fn through_host(comm: &Background, device: &Device, bytes: usize) -> Result<ExchangeBuffers> {
        let capacity = ExchangeBuffers::capacity(bytes, comm.size());
        let (own, all) = (device.window(capacity)?, device.window(capacity * comm.size())?);
        let exchange = ThroughHost { own: own.clone(), all: all.clone() };
        Ok(ExchangeBuffers::new(own, all, capacity, exchange))
    }
}
