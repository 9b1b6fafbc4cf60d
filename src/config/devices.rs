//! The devices of a run: `auto`, `cpu`, `gpu`, `gpu:1`, or several of them.

pub use crate::device_kind::DeviceKind;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What `--device` and `device.kind` expect.
pub(super) const EXPECTED: &str =
    "one of auto, cpu, gpu, gpu:N (such as gpu:1), or several: gpu:all, gpu:0,1,3, gpu:0,cpu";

/// The requested devices, one per rank of a process; at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Devices(Vec<DeviceKind>);

impl Devices {
    /// The only device, if there is exactly one.
    pub fn single(&self) -> Option<DeviceKind> {
        match self.0[..] {
            [DeviceKind::AllGpus] => None,
            [kind] => Some(kind),
            _ => None,
        }
    }

    /// All of them.
    pub fn kinds(&self) -> &[DeviceKind] {
        &self.0
    }
}

impl Default for Devices {
    fn default() -> Devices {
        DeviceKind::Auto.into()
    }
}

impl From<DeviceKind> for Devices {
    fn from(kind: DeviceKind) -> Devices {
        Devices(vec![kind])
    }
}

impl fmt::Display for Devices {
    /// As short as it can be written: `gpu:0,1,cpu`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = None;
        for kind in &self.0 {
            let comma = if before.is_some() { "," } else { "" };
            match (before, kind) {
                (Some(DeviceKind::Gpu(Some(_))), DeviceKind::Gpu(Some(index))) => write!(f, "{comma}{index}")?,
                _ => write!(f, "{comma}{kind}")?,
            }
            before = Some(*kind);
        }
        Ok(())
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Devices, String> {
        let unknown = || format!("expected {EXPECTED}; got `{text}`");
        let mut kinds: Vec<DeviceKind> = Vec::new();
        for word in text.split(',') {
            kinds.push(match (word.parse(), kinds.last()) {
                (Ok(kind), _) => kind,
                // `gpu:0,1`
                (Err(_), Some(DeviceKind::Gpu(Some(_)))) => DeviceKind::Gpu(Some(word.parse().map_err(|_| unknown())?)),
                (Err(_), _) => return Err(unknown()),
            });
        }
        // What `auto` comes to is one device.
        if kinds.len() > 1 && kinds.contains(&DeviceKind::Auto) { Err(unknown()) } else { Ok(Devices(kinds)) }
    }
}

impl TryFrom<String> for Devices {
    type Error = String;

    fn try_from(text: String) -> Result<Devices, String> {
        text.parse()
    }
}

impl From<Devices> for String {
    fn from(devices: Devices) -> String {
        devices.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_written_in_their_shortest_form() {
        use DeviceKind::{AllGpus, Auto, Cpu, Gpu};
        for (text, kinds, shortest) in [
            ("auto", vec![Auto], "auto"),
            ("gpu", vec![Gpu(None)], "gpu"),
            ("gpu:0,1,3", vec![Gpu(Some(0)), Gpu(Some(1)), Gpu(Some(3))], "gpu:0,1,3"),
            ("gpu:0,gpu:0", vec![Gpu(Some(0)), Gpu(Some(0))], "gpu:0,0"),
            ("gpu:2,cpu,gpu:0", vec![Gpu(Some(2)), Cpu, Gpu(Some(0))], "gpu:2,cpu,gpu:0"),
            ("gpu:all,cpu", vec![AllGpus, Cpu], "gpu:all,cpu"),
            ("cpu,cpu", vec![Cpu, Cpu], "cpu,cpu"),
        ] {
            let devices: Devices = text.parse().unwrap();
            assert_eq!((devices.kinds(), devices.to_string()), (&kinds[..], shortest.to_string()));
            assert_eq!(devices.single().is_some(), kinds.len() == 1 && kinds != [AllGpus]);
        }
    }

    #[test]
    fn what_names_no_device_is_refused() {
        for text in ["", "gpu:", "gpu:x", "tpu", "0", "cpu,0", "gpu:0,", "auto,cpu", "gpu:0 ,1", "gpu:-1"] {
            let error = text.parse::<Devices>().unwrap_err();
            assert!(error.contains("gpu:all") && error.contains(&format!("`{text}`")), "{error}");
        }
    }
}
