//! Whether the ranks' cards exchange memory by NCCL or RCCL (`train.comm`), on which all ranks agree.

use super::exchange_buffers::ExchangeBuffers;
use crate::comm::{Background, Memory};
use crate::config::{Comm, Config};
use crate::tensor::DType;
use crate::{Device, Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The exchange buffers of this rank, which gives so many bytes in a step, in elements of `dtype`; `None` where
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
) -> Result<(Option<ExchangeBuffers>, Option<String>)> {
    let timeout = Duration::from_secs_f64(config.train.comm_timeout);
    match config.train.comm {
        Comm::Host => Ok((None, None)),
        // Tests have no cards.
        #[cfg(test)]
        Comm::Nccl => {
            let windows = super::exchange_buffers::testing::through_host(comm, device, bytes)?;
            Ok((Some(windows), Some("gradients are summed by the exchange of tests".into())))
        }
        choice => match group::join(comm, device, bytes, dtype, timeout)? {
            Ok((windows, name)) => Ok((Some(windows), Some(format!("gradients are summed by {name}")))),
            Err(refusal) if choice == Comm::Nccl => Err(Error::Invalid(format!(
                "train.comm = \"nccl\" is not possible: {refusal}; train.comm = \"auto\" uses host memory then"
            ))),
            // Where no rank is on a card, there is nothing to miss.
            Err(refusal) if refusal.has_cards => {
                Ok((None, Some(format!("gradients go through host memory: {refusal}"))))
            }
            Err(_) => Ok((None, None)),
        },
    }
}

/// Whether ranks on devices like this one would exchange memory by NCCL or RCCL.
pub(super) fn are_expected(config: &Config, device: &Device) -> bool {
    config.train.comm != Comm::Host && group::is_possible(device)
}

/// Why a job has no group of cards.
#[derive(Debug)]
struct Refusal {
    reason: String,
    /// Whether any rank is on a hardware GPU.
    has_cards: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// A rank's value, or the reason why it cannot take part.
#[derive(Serialize, Deserialize)]
struct RankStatus<T> {
    ready: std::result::Result<T, String>,
    device: String,
    is_card: bool,
}

/// The values of all ranks, or the reason of the first that has none.
fn agree<T: Serialize + for<'a> Deserialize<'a>>(
    comm: &Background,
    device: &Device,
    ready: std::result::Result<T, String>,
) -> Result<std::result::Result<Vec<T>, Refusal>> {
    let own = RankStatus { ready, device: device.describe(), is_card: device.is_hardware_gpu() };
    let all = comm.all_gather(serde_json::to_vec(&own).expect("plain values"))?;
    let read = |(rank, bytes): (usize, &Memory)| {
        serde_json::from_slice::<RankStatus<T>>(bytes)
            .map_err(|e| Error::Communication(format!("rank {rank} sent a malformed status: {e}")))
    };
    let all = all.iter().enumerate().map(read).collect::<Result<Vec<_>>>()?;
    let has_cards = all.iter().any(|status| status.is_card);
    let value = |(rank, status): (usize, RankStatus<T>)| {
        let RankStatus { ready, device, .. } = status;
        ready.map_err(|reason| Refusal { reason: format!("rank {rank} ({device}): {reason}"), has_cards })
    };
    Ok(all.into_iter().enumerate().map(value).collect())
}

#[cfg(target_os = "linux")]
mod group {
    use super::{Background, DType, Device, Duration, Error, ExchangeBuffers, Refusal, Result, agree};
    use crate::Tensor;
    use crate::comm::{Card, CardGroup, CardLibraries, CardMemory, Communicator, GroupId};
    use crate::tensor::Exported;
    use crate::train::step::ranks::exchange_buffers::Exchange;

    /// A rank's card in a group, and its imported windows.
    struct Member {
        // Memory goes before the card.
        own: CardMemory,
        all: CardMemory,
        group: CardGroup,
    }

    impl Exchange for Member {
        fn all_gather(&mut self, _: &mut dyn Communicator, bytes: usize) -> Result<()> {
            self.group.all_gather(&self.own, &self.all, bytes)
        }
    }

    /// What a rank has before it joins a group.
    struct LocalSetup {
        libraries: CardLibraries,
        vendor: u32,
        /// Rank 0's is that of all.
        id: Option<GroupId>,
        own: (Tensor, CardMemory),
        all: (Tensor, CardMemory),
        card: Card,
    }

    /// The windows and the name of the library; or why there are none, which is the same on all ranks.
    pub fn join(
        comm: &Background,
        device: &Device,
        bytes: usize,
        dtype: DType,
        timeout: Duration,
    ) -> Result<std::result::Result<(ExchangeBuffers, String), Refusal>> {
        let capacity = ExchangeBuffers::capacity(bytes, comm.size());
        let setup = set_up(comm, device, capacity, dtype);
        let own = setup.as_ref().map(|setup| (setup.vendor, setup.id.map(|id| id.to_vec())));
        let all = match agree(comm, device, own.map_err(String::clone))? {
            Ok(all) => all,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(other) = all.iter().position(|(vendor, _)| *vendor != all[0].0) {
            let reason = format!("ranks 0 and {other} have cards of different vendors");
            return Ok(Err(Refusal { reason, has_cards: true }));
        }
        let id = all[0].1.as_deref().and_then(|id| GroupId::try_from(id).ok());
        let id = id.ok_or_else(|| Error::Communication("rank 0 sent a malformed group".into()))?;
        let setup = setup.expect("all ranks are ready");
        let name = setup.libraries.name().to_string();
        let joined = setup.join(id, (comm.rank(), comm.size()), capacity, timeout);
        let own = joined.as_ref().map(|_| ()).map_err(|reason| format!("{name}: {reason}"));
        let all = agree(comm, device, own)?;
        Ok(all.map(|_| (joined.expect("all ranks have joined"), name)))
    }

    /// Whether the device is a card whose libraries are there.
    pub fn is_possible(device: &Device) -> bool {
        let vendor = device.pci().map(|(vendor, _)| vendor).filter(|_| device.is_hardware_gpu());
        vendor.is_some_and(|vendor| CardLibraries::load(vendor).is_ok())
    }

    fn set_up(
        comm: &Background,
        device: &Device,
        capacity: usize,
        dtype: DType,
    ) -> std::result::Result<LocalSetup, String> {
        let Some((vendor, address)) = device.pci().filter(|_| device.is_hardware_gpu()) else {
            return Err("not a hardware GPU, or its PCI address is unknown".into());
        };
        if dtype == DType::F16 && !device.has_f16() {
            return Err("train.reduce_dtype = \"f16\" needs a card that stores f16".into());
        }
        let libraries = CardLibraries::load(vendor)?;
        let card = libraries.card(&address)?;
        let window = |bytes| match device.exported_window(bytes) {
            Ok(Some(Exported { window, handle, allocated })) => Ok((window, card.import(handle, allocated)?)),
            Ok(None) => Err("its driver exports no memory".to_string()),
            Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_string()),
        };
        let (own, all) = (window(capacity)?, window(capacity * comm.size())?);
        let id = if comm.rank() == 0 { Some(libraries.group()?) } else { None };
        Ok(LocalSetup { libraries, vendor, id, own, all, card })
    }

    impl LocalSetup {
        fn join(
            self,
            id: GroupId,
            place: (usize, usize),
            capacity: usize,
            timeout: Duration,
        ) -> std::result::Result<ExchangeBuffers, String> {
            let group = CardGroup::join(&self.libraries, self.card, id, place, timeout)?;
            let ((own, own_memory), (all, all_memory)) = (self.own, self.all);
            Ok(ExchangeBuffers::new(own, all, capacity, Member { own: own_memory, all: all_memory, group }))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod group {
    use super::{Background, DType, Device, Duration, ExchangeBuffers, Refusal, Result};

    pub fn is_possible(_: &Device) -> bool {
        false
    }

    pub fn join(
        _: &Background,
        _: &Device,
        _: usize,
        _: DType,
        _: Duration,
    ) -> Result<std::result::Result<(ExchangeBuffers, String), Refusal>> {
        Ok(Err(Refusal { reason: "NCCL and RCCL are for Linux".into(), has_cards: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::threads;

    /// What each of three ranks hears.
    fn heard(ready: [std::result::Result<u32, String>; 3]) -> Vec<std::result::Result<Vec<u32>, String>> {
        let comms = threads(3, Some(Duration::from_secs(10)), &[]).unwrap();
        std::thread::scope(|scope| {
            let ranks: Vec<_> = comms
                .into_iter()
                .zip(ready)
                .map(|(comm, ready)| {
                    scope.spawn(move || {
                        let comm = Background::start(move || Ok(comm), None).unwrap();
                        agree(&comm, &Device::Cpu, ready).unwrap().map_err(|refusal| {
                            assert!(!refusal.has_cards);
                            refusal.to_string()
                        })
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_hear_the_values_of_all_or_the_reason_of_the_first_without() {
        assert_eq!(heard([Ok(4), Ok(5), Ok(6)]), vec![Ok(vec![4, 5, 6]); 3]);
        for answer in heard([Ok(4), Err("no library".into()), Err("no card".into())]) {
            let reason = answer.unwrap_err();
            assert!(reason.starts_with("rank 1 (cpu") && reason.ends_with("): no library"), "{reason}");
        }
    }

    #[test]
    fn ranks_without_cards_go_through_the_host_and_say_nothing_unless_asked_for_nccl() {
        let joined = |choice: Comm| {
            let comm = Background::start(|| Ok(threads(1, None, &[]).unwrap().remove(0)), None).unwrap();
            let mut config = crate::config::Layers::new().build().unwrap().config;
            config.train.comm = choice;
            connect(&config, &comm, &Device::Cpu, 1000, DType::F32).unwrap()
        };
        for choice in [Comm::Auto, Comm::Host] {
            let (windows, note) = joined(choice);
            assert!(windows.is_none() && note.is_none(), "{choice}: {note:?}");
        }
        assert!(joined(Comm::Nccl).0.is_some());
        assert!(!are_expected(&crate::config::Layers::new().build().unwrap().config, &Device::Cpu));
    }
}
