//! The flags that say what to train, and the configuration they make with the layers below them.

use super::device;
use crate::config::{Layers, Precision, QUICKSTART, Resolved, process_environment};
use anyhow::Result;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct RunFlags {
    /// A TOML file, or a flat .env file; without it, a small model on the sample corpus
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set any key, as in --set train.learning_rate=3e-4; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The same seed gives the same run on the same device
    #[arg(long)]
    seed: Option<u64>,
    /// Where data sets are kept
    #[arg(long, default_value = "data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// f32, or mixed: products of 16-bit floats, which a GPU computes faster
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Precision>,
    #[command(flatten)]
    device: device::Flags,
}

impl RunFlags {
    /// The configuration in force: defaults < file < environment < --set < flags. Where no file was named it is
    /// `otherwise`, or else the built-in quickstart.
    pub fn resolve(&self, otherwise: Option<&Path>) -> Result<Resolved> {
        let mut layers = match self.config.as_deref().or(otherwise) {
            Some(path) => Layers::new().file(path)?,
            None => Layers::new().toml_str("the built-in quickstart", QUICKSTART)?,
        };
        layers = layers.environment(process_environment())?;
        for assignment in &self.set {
            layers = layers.set(assignment)?;
        }
        if let Some(seed) = self.seed {
            layers = layers.flag("--seed", "run.seed", seed)?;
        }
        if let Some(kind) = self.device.device {
            layers = layers.flag("--device", "device.kind", kind)?;
        }
        if let Some(precision) = self.precision {
            layers = layers.flag("--precision", "device.precision", precision)?;
        }
        if let Some(threads) = self.device.threads {
            layers = layers.flag("--threads", "device.threads", threads)?;
        }
        if self.device.allow_fallback {
            layers = layers.flag("--allow-fallback", "device.allow_fallback", true)?;
        }
        if self.device.allow_software_gpu {
            layers = layers.flag("--allow-software-gpu", "device.allow_software", true)?;
        }
        Ok(layers.build()?)
    }
}
