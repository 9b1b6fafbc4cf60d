//! `rustyflow merge`: adds an adapter to the weights of the model that it is for, and writes a model like any other.

use super::export::{self, Format, Written};
use crate::Error;
use crate::models::hf;
use anyhow::Result;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = super::examples::MERGE)]
pub struct Args {
    /// The adapter's folder, as PEFT saves it; its adapter_config.json names the folder of the model
    #[arg(value_name = "DIR")]
    adapter: PathBuf,
    #[command(flatten)]
    pub written: Written,
}

pub fn run(args: &Args) -> Result<()> {
    if hf::weights_folder(&args.adapter)? == args.adapter {
        let message = "holds no adapter (it has no adapter_config.json); `rustyflow export` writes models".to_string();
        return Err(Error::Checkpoint { path: args.adapter.clone(), message }.into());
    }
    export::write(Some(&args.adapter), Format::Safetensors, &args.written)
}
