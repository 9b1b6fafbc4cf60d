//! Device names, as in `--device` and `Device::open`: `auto`, `cpu`, `gpu`, `gpu:1`, `gpu:all`.

use std::fmt;
use std::str::FromStr;

/// A requested device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The best GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU: the adapter with this index, or the best one.
    Gpu(Option<usize>),
    /// Every hardware GPU.
    AllGpus,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceKind::Auto => f.pad("auto"),
            DeviceKind::Cpu => f.pad("cpu"),
            DeviceKind::Gpu(None) => f.pad("gpu"),
            DeviceKind::Gpu(Some(index)) => f.pad(&format!("gpu:{index}")),
            DeviceKind::AllGpus => f.pad("gpu:all"),
        }
    }
}

impl FromStr for DeviceKind {
    /// The word that names none.
    type Err = String;

    fn from_str(word: &str) -> Result<DeviceKind, String> {
        Ok(match word {
            "auto" => DeviceKind::Auto,
            "cpu" => DeviceKind::Cpu,
            "gpu" => DeviceKind::Gpu(None),
            "gpu:all" => DeviceKind::AllGpus,
            word => {
                let index = word.strip_prefix("gpu:").and_then(|index| index.parse().ok());
                DeviceKind::Gpu(Some(index.ok_or_else(|| word.to_string())?))
            }
        })
    }
}
