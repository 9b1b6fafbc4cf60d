//! Whether the ranks' cards exchange memory by NCCL or RCCL (`train.comm`), on which all ranks agree.

use super::windows::Windows;
use crate::comm::Background;
use crate::config::{Comm, Config};
use crate::tensor::DType;
use crate::{Device, Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The windows of this rank, each as large as what it gives in a step: so many bytes, of elements of `dtype`. None where
/// gradients go through host memory. Then what a user should know.
///
/// # Errors
/// If a rank failed, or `train.comm` is `nccl` and a rank cannot take part.
pub(super) fn connect(
    config: &Config,
    comm: &Background,
    device: &Device,
    bytes: usize,
    dtype: DType,
) -> Result<(Option<Windows>, Option<String>)> {
    let timeout = Duration::from_secs_f64(config.train.comm_timeout);
    match config.train.comm {
        Comm::Host => Ok((None, None)),
        // Tests have no cards.
        #[cfg(test)]
        Comm::Nccl => Ok((Some(super::windows::testing::through_host(comm, device, bytes)?), None)),
        choice => match group::join(comm, device, bytes, dtype, timeout)? {
            Ok((windows, name)) => Ok((Some(windows), Some(format!("gradients are summed by {name}")))),
            Err(reason) if choice == Comm::Nccl => Err(Error::Invalid(format!(
                "train.comm = \"nccl\" needs a card on each rank. {reason}. \"auto\" uses host memory then"
            ))),
            // Where no rank is on a card, there is nothing to miss.
            Err(reason) if device.is_hardware_gpu() => {
                Ok((None, Some(format!("gradients go through host memory. {reason}"))))
            }
            Err(_) => Ok((None, None)),
        },
    }
}

/// Whether ranks on devices like this one would exchange memory by NCCL or RCCL.
pub(super) fn are_expected(config: &Config, device: &Device) -> bool {
    config.train.comm != Comm::Host && group::is_possible(device)
}

/// What a rank tells the others: a value, or what keeps it from taking part.
#[derive(Serialize, Deserialize)]
struct Status<T> {
    ready: std::result::Result<T, String>,
    device: String,
}

/// What every rank has to say, or the reason of the first that cannot take part.
fn agree<T: Serialize + for<'a> Deserialize<'a>>(
    comm: &Background,
    device: &Device,
    ready: std::result::Result<T, String>,
) -> Result<std::result::Result<Vec<T>, String>> {
    let own = Status { ready, device: device.describe() };
    let all = comm.all_gather(serde_json::to_vec(&own).expect("plain values"))?;
    let mut values = Vec::new();
    for (rank, bytes) in all.iter().enumerate() {
        let status = serde_json::from_slice::<Status<T>>(bytes);
        let status = status.map_err(|e| Error::Communication(format!("rank {rank} sent a malformed status: {e}")))?;
        match status.ready {
            Ok(value) => values.push(value),
            Err(reason) => return Ok(Err(format!("Rank {rank}, {}: {reason}", status.device))),
        }
    }
    Ok(Ok(values))
}

#[cfg(target_os = "linux")]
mod group {
    use super::{Background, DType, Device, Duration, Error, Result, Windows, agree};
    use crate::comm::{CardGroup, CardLibraries, CardMemory, Communicator, GroupId};
    use crate::tensor::Exported;
    use crate::train::step::ranks::windows::Exchange;

    /// A rank's card in a group, and the windows on it.
    struct Card {
        // Memory goes before the card.
        own: CardMemory,
        all: CardMemory,
        group: CardGroup,
    }

    impl Exchange for Card {
        fn all_gather(&mut self, _: &mut dyn Communicator, bytes: usize) -> Result<()> {
            self.group.all_gather(&self.own, &self.all, bytes)
        }
    }

    /// What a rank has before it joins a group.
    struct Ready {
        libraries: CardLibraries,
        vendor: u32,
        address: String,
        /// Rank 0's is that of all.
        id: Option<GroupId>,
        own: Exported,
        all: Exported,
    }

    /// The windows and the name of the library; or why there are none, which is the same on all ranks.
    pub fn join(
        comm: &Background,
        device: &Device,
        bytes: usize,
        dtype: DType,
        timeout: Duration,
    ) -> Result<std::result::Result<(Windows, String), String>> {
        let capacity = Windows::capacity(bytes, comm.size());
        let ready = ready(comm, device, capacity, dtype);
        let own = ready.as_ref().map(|ready| (ready.vendor, ready.id.map(|id| id.to_vec())));
        let all = match agree(comm, device, own.map_err(String::clone))? {
            Ok(all) => all,
            Err(reason) => return Ok(Err(reason)),
        };
        if let Some(other) = all.iter().position(|(vendor, _)| *vendor != all[0].0) {
            return Ok(Err(format!("Ranks 0 and {other} have cards of different vendors")));
        }
        let id = all[0].1.as_deref().and_then(|id| GroupId::try_from(id).ok());
        let id = id.ok_or_else(|| Error::Communication("rank 0 sent a malformed group".into()))?;
        let ready = ready.expect("all ranks are ready");
        let name = ready.libraries.name().to_string();
        let joined = ready.join(id, (comm.rank(), comm.size()), capacity, timeout);
        let own = joined.as_ref().map(|_| ()).map_err(|reason| format!("{name}: {reason}"));
        let all = agree(comm, device, own)?;
        Ok(all.map(|_| (joined.expect("all ranks have joined"), name)))
    }

    /// Whether the device is a card whose libraries are there.
    pub fn is_possible(device: &Device) -> bool {
        let vendor = device.pci().map(|(vendor, _)| vendor).filter(|_| device.is_hardware_gpu());
        vendor.is_some_and(|vendor| CardLibraries::load(vendor).is_ok())
    }

    fn ready(comm: &Background, device: &Device, capacity: usize, dtype: DType) -> std::result::Result<Ready, String> {
        let Some((vendor, address)) = device.pci().filter(|_| device.is_hardware_gpu()) else {
            return Err("not a card whose PCI address Vulkan tells".into());
        };
        if dtype == DType::F16 && !device.has_f16() {
            return Err("train.reduce_dtype = \"f16\" needs a card that stores f16".into());
        }
        let libraries = CardLibraries::load(vendor)?;
        let id = if comm.rank() == 0 { Some(libraries.group()?) } else { None };
        let exported = |bytes| match device.exported_window(bytes) {
            Ok(Some(exported)) => Ok(exported),
            Ok(None) => Err("its driver exports no memory".to_string()),
            Err(error) => Err(error.to_string()),
        };
        let (own, all) = (exported(capacity)?, exported(capacity * comm.size())?);
        Ok(Ready { libraries, vendor, address, id, own, all })
    }

    impl Ready {
        fn join(
            self,
            id: GroupId,
            place: (usize, usize),
            capacity: usize,
            timeout: Duration,
        ) -> std::result::Result<Windows, String> {
            let group = CardGroup::join(&self.libraries, &self.address, id, place, timeout)?;
            let import =
                |Exported { window, handle, allocated }| group.import(handle, allocated).map(|memory| (window, memory));
            let ((own, own_memory), (all, all_memory)) = (import(self.own)?, import(self.all)?);
            Ok(Windows::new(own, all, capacity, Card { own: own_memory, all: all_memory, group }))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod group {
    use super::{Background, DType, Device, Duration, Result, Windows};

    pub fn is_possible(_: &Device) -> bool {
        false
    }

    pub fn join(
        _: &Background,
        _: &Device,
        _: usize,
        _: DType,
        _: Duration,
    ) -> Result<std::result::Result<(Windows, String), String>> {
        Ok(Err("NCCL and RCCL are for Linux".into()))
    }
}
