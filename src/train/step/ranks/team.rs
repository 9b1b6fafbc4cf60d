//! The ranks of a process, and their connection: a thread per additional device, and MPI between processes.

use super::follow::{Follower, follow, run};
use super::{Place, Share};
use crate::comm::{Background, Communicator, Hierarchy, Launch, ThreadComm, threads};
use crate::config::{Config, DeviceBatch};
use crate::data::Tokens;
use crate::models::ModelConfig;
use crate::train::checkpoint::DataHash;
use crate::{Device, Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Initial data of the ranks of a process.
pub(in crate::train) struct Team<'a> {
    pub config: &'a Arc<Config>,
    pub shape: &'a ModelConfig,
    pub data: &'a DataHash,
    /// Of the training split, and of that for validation.
    pub tokens: &'a Tokens,
    pub validation: &'a Tokens,
    /// Initial number of micro-batches per batch.
    pub splits: usize,
    /// Of the first rank.
    pub device: &'a Device,
    /// Of the others.
    pub others: &'a [Device],
    /// Where this process is one of several.
    pub launch: Option<Launch>,
}

/// State with which rank 0 leads.
pub(super) struct Begun {
    pub comm: Arc<Background>,
    /// Of the other ranks of its process.
    pub threads: Vec<JoinHandle<()>>,
    /// Whether the devices of all ranks round alike, so that the same updates leave the same bits.
    pub are_alike: bool,
    pub device_batch: DeviceBatch,
}

/// Result of [`check_alike`].
#[derive(Debug, PartialEq)]
pub(super) struct Alike {
    /// Whether all devices are of one kind.
    pub devices: bool,
    /// That of rank 0. One that is resumed knows what `auto` came to, the others may not.
    pub device_batch: DeviceBatch,
}

/// Makes the communicator of a rank in the thread that it is to have.
pub(super) type Make = Box<dyn FnOnce() -> Result<Box<dyn Communicator>> + Send>;

/// Data that must be equal on all ranks, and the device.
#[derive(Serialize, Deserialize)]
struct Identity {
    device: String,
    version: String,
    config: Config,
    data: DataHash,
}

impl Team<'_> {
    /// Number of ranks of the job.
    pub fn size(&self) -> usize {
        Place::of_first(self.launch, 1 + self.others.len()).ranks
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.config.train.comm_timeout)
    }

    /// The rank with this number in the process.
    fn follower(&self, local: usize, make: Make) -> Follower {
        let device = if local == 0 { self.device } else { &self.others[local - 1] };
        Follower {
            make,
            idle: self.timeout() / 4,
            identity: self.identity(device),
            config: self.config.clone(),
            shape: self.shape.clone(),
            splits: self.splits,
            device: device.clone(),
            tokens: self.tokens.clone(),
            validation: self.validation.clone(),
        }
    }

    fn identity(&self, device: &Device) -> Vec<u8> {
        let (version, config, data) =
            (env!("CARGO_PKG_VERSION").to_string(), Config::clone(self.config), self.data.clone());
        serde_json::to_vec(&Identity { device: device.name(), version, config, data }).expect("plain values")
    }

    /// How each rank of this process makes its communicator.
    fn makes(&self) -> Result<Vec<Make>> {
        let (timeout, has_mpi) = (self.timeout(), self.launch.is_some());
        if self.others.is_empty() {
            return Ok(vec![Box::new(move || across(timeout))]);
        }
        // Longer than that between processes, so that an error names the process that did not come.
        let inside = if has_mpi { timeout.mul_f64(1.25) } else { timeout };
        let names: Vec<String> = [self.device].into_iter().chain(self.others).map(Device::describe).collect();
        let ranks = threads(names.len(), Some(inside), &names)?.into_iter().enumerate();
        let make = |(local, inner)| -> Make { Box::new(move || join(inner, local == 0, has_mpi, timeout)) };
        Ok(ranks.map(make).collect())
    }

    /// Starts the ranks of all devices but the first. Gives the communicator of that one, once all ranks have come.
    ///
    /// # Errors
    /// If the sequences of a step cannot be divided, a thread cannot be started, or the ranks were not started alike.
    pub(super) fn begin(&self) -> Result<Begun> {
        Share::all(self.config, self.shape.kind, self.size())?;
        let mut makes = self.makes()?;
        let own = makes.remove(0);
        let threads = self.start(makes)?;
        let comm = Arc::new(Background::start(own, Some(self.timeout() / 4))?);
        let Alike { devices: are_alike, device_batch } = check_alike(&comm, self.identity(self.device))?;
        Ok(Begun { comm, threads, are_alike, device_batch })
    }

    /// Follows rank 0, which is in another process, until it says that the job is done.
    ///
    /// # Errors
    /// As [`Team::begin`], and whatever ends the job.
    pub fn follow(&self) -> Result<()> {
        Share::all(self.config, self.shape.kind, self.size())?;
        let mut makes = self.makes()?;
        let own = self.follower(0, makes.remove(0));
        let threads = self.start(makes)?;
        let result = run(own);
        threads.into_iter().for_each(|thread| drop(thread.join()));
        result
    }

    fn start(&self, makes: Vec<Make>) -> Result<Vec<JoinHandle<()>>> {
        let mut threads = Vec::new();
        for (i, make) in makes.into_iter().enumerate() {
            let follower = self.follower(i + 1, make);
            let thread = std::thread::Builder::new().name("rank".into()).spawn(move || follow(follower));
            threads.push(thread.map_err(|e| Error::Communication(format!("cannot start a rank's thread: {e}")))?);
        }
        Ok(threads)
    }
}

/// The communicator between processes.
#[cfg(feature = "mpi")]
fn across(timeout: Duration) -> Result<Box<dyn Communicator>> {
    Ok(Box::new(crate::comm::MpiComm::init(Some(timeout))?))
}

#[cfg(not(feature = "mpi"))]
fn across(_: Duration) -> Result<Box<dyn Communicator>> {
    Err(Error::Communication("this rustyflow was built without MPI".into()))
}

/// The communicator of a rank beside others of its process, of which the first speaks for all to other processes.
fn join(inner: ThreadComm, is_first: bool, has_mpi: bool, timeout: Duration) -> Result<Box<dyn Communicator>> {
    if !has_mpi {
        return Ok(Box::new(inner));
    }
    let outer = is_first.then(|| across(timeout)).transpose()?;
    Ok(Box::new(Hierarchy::new(inner, outer)?))
}

/// Checks that all ranks were started with the same configuration, text and version.
///
/// # Errors
/// If they were not: the same error on all of them.
pub(super) fn check_alike(comm: &Background, identity: Vec<u8>) -> Result<Alike> {
    let all = comm.all_gather(identity)?;
    let read = |bytes: &[u8]| serde_json::from_slice::<Identity>(bytes);
    let other = |rank: usize, what: String| {
        Err(Error::Communication(format!(
            "the ranks were not started alike: {what} on rank {rank}; start all with the same program, configuration \
             and text"
        )))
    };
    let mut devices = true;
    let Ok(first) = read(&all[0]) else { return other(0, "another version of rustyflow".into()) };
    for (rank, bytes) in all.iter().enumerate().skip(1) {
        let Ok(Identity { device, version, config, data }) = read(bytes) else {
            return other(rank, "another version of rustyflow".into());
        };
        devices &= device == first.device;
        if version != first.version {
            return other(rank, format!("rustyflow is {} on rank 0 and {version}", first.version));
        }
        let mut changes = first.config.changes(&config)?;
        // What a rank computes on is its own matter.
        changes.retain(|change| match change.key {
            "train.device_batch" => config.train.device_batch != DeviceBatch::AUTO,
            key => !key.starts_with("device.") || key == "device.precision",
        });
        if let Some(change) = changes.first() {
            return other(rank, format!("{} is {} on rank 0 and {}", change.key, change.before, change.after));
        }
        if data != first.data {
            return other(rank, "the text or its tokens differ from rank 0's".into());
        }
    }
    Ok(Alike { devices, device_batch: first.config.train.device_batch })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What two ranks are told that were started with these identities.
    fn told(identities: [Vec<u8>; 2]) -> Vec<Result<Alike>> {
        let ranks = threads(2, Some(Duration::from_secs(20)), &[]).unwrap().into_iter().zip(identities);
        let check = |(comm, identity)| {
            move || check_alike(&Background::start(move || Ok::<ThreadComm, Error>(comm), None).unwrap(), identity)
        };
        std::thread::scope(|scope| {
            let handles: Vec<_> = ranks.map(|rank| scope.spawn(check(rank))).collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_of_other_versions_texts_or_configurations_are_refused_on_all_with_one_message() {
        let first = Identity {
            device: "cpu".into(),
            version: "1.0.0".into(),
            config: Config::default(),
            data: DataHash { text_sha256: "a".into(), tokens_sha256: "b".into() },
        };
        let bytes = |value: &serde_json::Value| serde_json::to_vec(value).unwrap();
        let same = serde_json::to_value(&first).unwrap();
        let mut device = same.clone();
        device["device"] = "gpu".into();
        assert!(told([bytes(&same), bytes(&same)]).into_iter().all(|alike| alike.unwrap().devices));
        assert!(told([bytes(&same), bytes(&device)]).into_iter().all(|alike| !alike.unwrap().devices));
        // A run that goes on with what was measured, and one that has not heard of it.
        let mut measured = same.clone();
        measured["config"]["train"]["device_batch"] = serde_json::json!([3, 1]);
        let mut auto = same.clone();
        auto["config"]["train"]["device_batch"] = "auto".into();
        for alike in told([bytes(&measured), bytes(&auto)]) {
            assert_eq!(alike.unwrap().device_batch, DeviceBatch::Parts(vec![3, 1]));
        }
        for (at, value, message) in [
            ("/version", serde_json::json!("2.0.0"), "rustyflow is 1.0.0 on rank 0 and 2.0.0 on rank 1"),
            ("/data/text_sha256", serde_json::json!("c"), "the text or its tokens differ from rank 0's on rank 1"),
            ("/data/tokens_sha256", serde_json::json!("c"), "the text or its tokens differ"),
            ("/config/train/device_batch", serde_json::json!([1, 3]), "train.device_batch is"),
            ("/config/train/batch_size", serde_json::json!(7), "train.batch_size is 16 on rank 0 and 7 on rank 1"),
            ("/config/train", serde_json::json!(7), "another version of rustyflow on rank 1"),
        ] {
            let mut other = same.clone();
            *other.pointer_mut(at).unwrap() = value;
            let errors: Vec<String> = told([bytes(&same), bytes(&other)])
                .into_iter()
                .map(|refused| refused.unwrap_err().to_string())
                .collect();
            assert!(errors[0].contains(message) && errors[0] == errors[1], "{errors:?}");
        }
    }
}
