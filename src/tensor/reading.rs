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
    /// The bytes of the elements if they have arrived, without copying what a GPU has written. Never waits; to be called
    /// until it gives them, and then no more.
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
