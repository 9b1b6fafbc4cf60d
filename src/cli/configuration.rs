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
    /// What to learn from: sample, wikitext-2, tinyshakespeare, or a file or folder (data.corpus)
    #[arg(long)]
    corpus: Option<String>,
    /// Steps to train (train.max_steps)
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    max_steps: Option<u64>,
    /// Or passes over the text (train.epochs)
    #[arg(long, value_name = "N")]
    epochs: Option<f64>,
    /// What the run's folder is called (run.name)
    #[arg(long)]
    name: Option<String>,
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
        let device = &self.device;
        let flags = [
            ("--corpus", "data.corpus", self.corpus.clone()),
            ("--max-steps", "train.max_steps", text(self.max_steps)),
            ("--epochs", "train.epochs", text(self.epochs)),
            ("--name", "run.name", self.name.clone()),
            ("--seed", "run.seed", text(self.seed)),
            ("--device", "device.kind", text(device.device)),
            ("--precision", "device.precision", text(self.precision)),
            ("--threads", "device.threads", text(device.threads)),
            ("--allow-fallback", "device.allow_fallback", text(device.allow_fallback.then_some(true))),
            ("--allow-software-gpu", "device.allow_software", text(device.allow_software_gpu.then_some(true))),
        ];
        for (flag, key, value) in flags {
            if let Some(value) = value {
                layers = layers.flag(flag, key, value)?;
            }
        }
        Ok(layers.build()?)
    }
}

fn text(value: Option<impl std::fmt::Display>) -> Option<String> {
    value.map(|value| value.to_string())
}
