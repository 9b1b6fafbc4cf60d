//! Reads of elements that do not wait for them.

use crate::Result;
use crate::gpu::{MappedBytes, PendingReadback};
use std::ops::Deref;
use std::thread::JoinHandle;
use std::time::Instant;

/// The elements of a tensor as they were when it was made, which may still be on their way from a GPU.
pub struct Readback {
    state: State,
    /// Once they have arrived.
    arrived_at: Option<Instant>,
}

/// Host memory that is being made for reads. Dropping it waits for that.
pub struct Preparing(pub(super) Option<JoinHandle<()>>);

impl Drop for Preparing {
    fn drop(&mut self) {
        // What could not be made is made when it is read.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

enum State {
    Ready(Bytes),
    Pending(PendingReadback),
    /// Of what lies in several buffers.
    Joined(Vec<Readback>),
}

impl Readback {
    pub(super) fn ready(bytes: Vec<u8>) -> Readback {
        Readback { state: State::Ready(Bytes::owned(bytes)), arrived_at: Some(Instant::now()) }
    }

    pub(super) fn pending(readback: PendingReadback) -> Readback {
        Readback { state: State::Pending(readback), arrived_at: None }
    }

    pub(super) fn joined(parts: Vec<Readback>) -> Readback {
        Readback { state: State::Joined(parts), arrived_at: None }
    }

    /// Whether the elements have arrived. Never waits, never copies; it has to be called for them to arrive.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn has_arrived(&mut self) -> Result<bool> {
        if let State::Pending(readback) = &self.state {
            let Some(bytes) = readback.try_read()? else { return Ok(false) };
            self.arrived_at = readback.arrived_at().or_else(|| Some(Instant::now()));
            self.state = State::Ready(Bytes(Memory::Mapped(bytes)));
        }
        if let State::Joined(parts) = &mut self.state {
            for part in parts.iter_mut() {
                if !part.has_arrived()? {
                    return Ok(false);
                }
            }
            self.arrived_at = parts.iter().filter_map(Readback::arrived_at).max();
        }
        Ok(true)
    }

    /// When the elements arrived; `None` until [`Readback::has_arrived`] says so.
    pub fn arrived_at(&self) -> Option<Instant> {
        self.arrived_at
    }

    /// The bytes of the elements, waiting for them if they have not arrived.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn wait(self) -> Result<Bytes> {
        match self.state {
            State::Ready(bytes) => Ok(bytes),
            State::Pending(readback) => readback.wait_mapped().map(|bytes| Bytes(Memory::Mapped(bytes))),
            State::Joined(parts) => {
                let mut all = Vec::new();
                parts.into_iter().try_for_each(|part| part.wait().map(|bytes| all.extend_from_slice(&bytes)))?;
                Ok(Bytes::owned(all))
            }
        }
    }
}

/// The bytes of elements, where a read has left them. They can be handed to another thread.
pub struct Bytes(Memory);

enum Memory {
    Owned(Vec<u8>),
    Mapped(MappedBytes),
}

impl Bytes {
    #[doc(hidden)]
    pub fn owned(bytes: Vec<u8>) -> Bytes {
        Bytes(Memory::Owned(bytes))
    }

    /// Adds further ones behind them, in memory of their own.
    pub(crate) fn append(&mut self, others: &[u8]) {
        let mut bytes = match std::mem::replace(&mut self.0, Memory::Owned(Vec::new())) {
            Memory::Owned(bytes) => bytes,
            Memory::Mapped(bytes) => bytes.to_vec(),
        };
        bytes.extend_from_slice(others);
        self.0 = Memory::Owned(bytes);
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Owned(bytes) => bytes,
            Memory::Mapped(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Tensor};

    /// A GPU only records what it is told to do: copies, zeros and kernels must keep their order.
    #[test]
    fn what_is_computed_and_read_sees_the_values_of_its_time() {
        for device in Device::for_tests() {
            let x = Tensor::from_f32(&[1.0; 100], [100], &device).unwrap();
            let (mut readbacks, mut aside, mut results) = (Vec::new(), Vec::new(), Vec::new());
            // More kernels than one submit holds.
            for turn in 0..200 {
                x.write_bytes(bytemuck::cast_slice(&[turn as f32; 100])).unwrap();
                results.push(x.scale(2.0).unwrap().scale(3.0).unwrap());
                readbacks.push(x.read_later().unwrap());
                aside.push(x.read_by_copy_queue(x.dtype()).unwrap().1);
                x.fill_zero();
                results.push(x.scale(5.0).unwrap());
            }
            device.synchronize().unwrap();
            for (turn, ((result, mut readback), aside)) in results.chunks(2).zip(readbacks).zip(aside).enumerate() {
                assert_eq!(result[0].to_f32().unwrap(), [6.0 * turn as f32; 100], "{device}");
                assert_eq!(result[1].to_f32().unwrap(), [0.0; 100], "{device}");
                assert!(readback.has_arrived().unwrap(), "{device}: everything has been waited for");
                for read in [readback, aside] {
                    let bytes = read.wait().unwrap();
                    assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), [turn as f32; 100], "{device}");
                }
            }
        }
    }
}
