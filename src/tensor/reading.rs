//! Reads of elements that do not wait for them.

use crate::Result;
use crate::gpu::{Landed, Pending};
use std::ops::Deref;

/// Elements that may still be on their way from a GPU.
pub enum Reading {
    Here(Vec<u8>),
    Coming(Pending),
}

impl Reading {
    /// The bytes of the elements if they have arrived, without copying what a GPU has written. Never waits; to be
    /// called until it gives them, and then no more.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn try_land(&mut self) -> Result<Option<Bytes>> {
        match self {
            Reading::Here(bytes) => Ok(Some(Bytes::Here(std::mem::take(bytes)))),
            Reading::Coming(pending) => Ok(pending.try_land()?.map(Bytes::Landed)),
        }
    }

    /// The bytes of the elements, waiting for them if need be.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn wait(self) -> Result<Vec<u8>> {
        match self {
            Reading::Here(bytes) => Ok(bytes),
            Reading::Coming(pending) => pending.wait(),
        }
    }
}

/// The bytes of elements, where a read has left them. They can be handed to another thread.
pub enum Bytes {
    Here(Vec<u8>),
    Landed(Landed),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Here(bytes) => bytes,
            Bytes::Landed(landed) => landed,
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
            let (mut readings, mut results) = (Vec::new(), Vec::new());
            // More kernels than one submit holds.
            for turn in 0..200 {
                x.write_bytes(bytemuck::cast_slice(&[turn as f32; 100])).unwrap();
                results.push(x.scale(2.0).unwrap().scale(3.0).unwrap());
                readings.push(x.read_later().unwrap());
                x.fill_zero();
                results.push(x.scale(5.0).unwrap());
            }
            device.synchronize().unwrap();
            for (turn, (result, reading)) in results.chunks(2).zip(readings).enumerate() {
                assert_eq!(result[0].to_f32().unwrap(), [6.0 * turn as f32; 100], "{device}");
                assert_eq!(result[1].to_f32().unwrap(), [0.0; 100], "{device}");
                let mut reading = reading;
                let bytes = reading.try_land().unwrap().expect("everything has been waited for");
                assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), [turn as f32; 100], "{device}");
            }
        }
    }
}
