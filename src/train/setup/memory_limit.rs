//! Memory limits of device and machine from the environment.

use crate::{Error, Result};

/// The bytes of a memory that the environment allows, which is given in MiB.
///
/// # Errors
/// If it is no number.
pub(in crate::train) fn memory_limit(variable: &str) -> Result<Option<u64>> {
    let text = std::env::var(variable).unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<u32>() {
        Ok(mib) if mib > 0 => Ok(Some(u64::from(mib) << 20)),
        _ => Err(Error::Invalid(format!(
            "{variable}={text}: expected an integer of MiB above 0, or nothing for all of the memory"
        ))),
    }
}
