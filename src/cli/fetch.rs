//! `rustyflow fetch`: brings a model of Hugging Face's hub into the cache that its own programs use.

use super::{data, hub, output};
use crate::data::{Fetched, Selection};
use crate::hub_cache::ModelName;
use crate::units;
use anyhow::Result;

#[derive(clap::Args)]
#[command(after_help = super::examples::FETCH)]
pub struct Args {
    /// Model name: org/name
    model: ModelName,
    /// A branch, a tag or a commit
    #[arg(long, default_value = "main", value_name = "NAME")]
    revision: String,
    /// Download the files that match, instead of those that a model needs; may be repeated
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Skip the files that match; may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let Args { model, revision, include, exclude, json } = args;
    let bar = data::download_bar(&model.to_string());
    let fetched = hub::hub()?.fetch(&model, &revision, &Selection { include, exclude }, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let Fetched { folder, commit, files, size_bytes, pickled } = fetched?;
    if json {
        output::line(serde_json::json!({
            "model": model.to_string(), "commit": commit, "folder": folder, "files": files, "bytes": size_bytes,
        }))?;
    } else {
        let size = units::bytes(size_bytes);
        output::line(format_args!("{model} ({files} files, {size}) is in {}", folder.display()))?;
    }
    if pickled {
        output::note(
            "warning: its weights are a pickle, which rustyflow does not read; eval says how to convert it, or another \
             --revision may have safetensors",
        );
    }
    Ok(())
}
