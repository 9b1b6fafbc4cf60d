//! `rustyflow merge`: adds an adapter to the weights of the model that it is for, and writes a model like any other.

use super::export::{self, Written};
use super::{complete, model};
use crate::Error;
use crate::models::hf;
use anyhow::Result;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = super::examples::MERGE)]
pub struct Args {
    /// A LoRA run, or a PEFT adapter folder, which names its base model's
    #[arg(value_name = "DIR", add = complete::runs())]
    adapter: PathBuf,
    #[command(flatten)]
    pub written: Written,
}

pub fn run(args: &Args) -> Result<()> {
    let folder = model::find(Some(&args.adapter))?;
    if hf::weights_folder(&folder)? == folder {
        let message = "holds no adapter (it has no adapter_config.json); `rustyflow export` writes models".to_string();
        return Err(Error::Checkpoint { path: folder, message }.into());
    }
    export::write(Some(&folder), None, &args.written)
}
