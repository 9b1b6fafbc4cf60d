//! `rustyflow data`: brings data sets into the data folder.

use super::{examples, output};
use crate::data::{DATASETS, fetch};
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Download a data set, checked by its hash; an interrupted download goes on where it stopped
    #[command(after_help = examples::DATA_FETCH)]
    Fetch {
        /// wikitext-2, tinyshakespeare or gpt2 (GPT-2's tokenizer)
        name: String,
        /// Where data sets are kept
        #[arg(long, default_value = "data", value_name = "DIR")]
        data_dir: PathBuf,
        /// Download from here instead: the files are expected directly below
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
    },
    /// List the data sets that can be fetched
    #[command(after_help = examples::DATA_LIST)]
    List,
}

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::List => {
            for dataset in DATASETS {
                output::line(format_args!("{:<16} {}", dataset.name, dataset.about))?;
            }
            Ok(())
        }
        Command::Fetch { name, data_dir, base_url } => {
            let bar = ProgressBar::no_length().with_style(
                ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}")
                    .expect("the template is valid"),
            );
            bar.set_message(name.clone());
            let folder = fetch(&name, &data_dir, base_url.as_deref(), &mut |done, total| {
                if let Some(total) = total {
                    bar.set_length(total);
                }
                bar.set_position(done);
            });
            bar.finish_and_clear();
            output::line(format_args!("{name} is in {}", folder?.display()))?;
            Ok(())
        }
    }
}
