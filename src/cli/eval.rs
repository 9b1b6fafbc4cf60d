//! `rustyflow eval`: how well a model predicts a text.

use super::{at_least_one, configuration, device, model, output};
use crate::config::DataConfig;
use crate::train::{Windows, evaluate};
use crate::{Error, data::Corpus};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

#[derive(clap::Args)]
#[command(after_help = super::examples::EVAL)]
pub struct Args {
    /// A run's folder or a checkpoint's; without it, the newest run in runs/
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// A text file to evaluate on
    #[arg(long, value_name = "FILE", conflicts_with = "corpus")]
    text: Option<PathBuf>,
    /// Or a corpus, as in the configuration [default: the one that the model was trained on]
    #[arg(long)]
    corpus: Option<String>,
    /// Which part of the corpus: train, validation or test
    #[arg(long, default_value = "validation", value_name = "SPLIT")]
    split: String,
    /// The share of a corpus without splits that is kept for validation [default: as in training; of another corpus,
    /// 0.1]
    #[arg(long, value_name = "F")]
    validation_fraction: Option<f64>,
    /// Tokens that the model looks at, at most [default: the model's]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Tokens from one window to the next; less than the context lets every token see more before it [default: context]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Windows computed at once
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = at_least_one)]
    batch_size: usize,
    /// Where data sets are kept
    #[arg(long, default_value = "data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: Args) -> Result<()> {
    let folder = model::find(args.model.as_deref())?;
    let (source, text) = read_text(&args, &folder)?;
    let config = configuration::of_environment()?;
    let device = device::open(&args.device.over(&config.device))?;
    let (model, tokenizer) = model::load(&folder, &device)?;
    let block_size = model.config().block_size;
    let context = args.context.unwrap_or(block_size);
    if context == 0 || context > block_size {
        return Err(Error::Invalid(format!("--context is {context}; the model's is 1 to {block_size}")).into());
    }
    let stride = args.stride.unwrap_or(context);
    if stride == 0 || stride > context {
        return Err(Error::Invalid(format!("--stride is {stride}; expected 1 to the context, {context}")).into());
    }
    let tokens = tokenizer.encode(&text)?;
    let windows = Windows { context, stride, batch_size: args.batch_size, max_batches: 0 };
    // Ctrl-C ends this command as it ends any other: there is nothing to save.
    let never = AtomicBool::new(false);
    let coverage = tokenizer.coverage(&text, &tokens)?;
    let result = evaluate(&*model, &tokens, &coverage, windows, &never)?.expect("nothing sets the flag");
    if args.json {
        let mut json = serde_json::to_value(&result)?;
        json["model"] = serde_json::json!(folder);
        json["text"] = serde_json::json!(source);
        output::line(json)?;
        return Ok(());
    }
    output::line(format_args!("model          {}", folder.display()))?;
    output::line(format_args!("text           {source}, {} tokens predicted", result.tokens))?;
    output::line(format_args!("windows        context {context}, stride {stride}"))?;
    output::line(format_args!("loss           {:.4} nats per token", result.loss))?;
    output::line(format_args!("perplexity     {:.2} per token", result.perplexity))?;
    output::line(format_args!("bits per byte  {:.4}", result.bits_per_byte))?;
    if !result.lossless {
        output::line(format_args!(
            "               of what can be decoded: its tokens do not keep the whole text, and {:.2}% are unknown; no \
             measure beside other tokenizers",
            100.0 * result.unknown_share
        ))?;
    }
    Ok(())
}

/// The text to evaluate the checkpoint in this folder on, and what to call it.
fn read_text(args: &Args, folder: &Path) -> Result<(String, String)> {
    if let Some(path) = &args.text {
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
        let text = String::from_utf8(bytes).map_err(|e| Error::Corpus {
            path: path.clone(),
            message: format!("is not UTF-8 at byte {}", e.utf8_error().valid_up_to()),
        })?;
        return Ok((path.display().to_string(), text));
    }
    let data = match (&args.corpus, trained_on(folder)) {
        (None, Ok(Some(of_run))) => of_run,
        (None, Ok(None)) => {
            let message = "does not say what the model was trained on; give --text FILE or --corpus NAME".into();
            return Err(Error::Checkpoint { path: folder.to_path_buf(), message }.into());
        }
        (None, Err(error)) => return Err(error),
        (Some(corpus), Ok(Some(of_run))) if of_run.corpus == *corpus => of_run,
        (Some(corpus), _) => DataConfig { corpus: corpus.clone(), ..DataConfig::default() },
    };
    let fraction = args.validation_fraction.unwrap_or(data.validation_fraction);
    let corpus = Corpus::load(&data.corpus, &args.data_dir, fraction)?;
    let text = match args.split.as_str() {
        "train" => corpus.train,
        "validation" => corpus.validation,
        "test" => corpus.test.ok_or_else(|| Error::Invalid(format!("{} has no test split", corpus.name)))?,
        other => return Err(Error::Invalid(format!("--split {other}: expected train, validation or test")).into()),
    };
    Ok((format!("{} {}", corpus.name, args.split), text))
}

/// The data of the run that left this checkpoint, if it says so.
fn trained_on(folder: &Path) -> Result<Option<DataConfig>> {
    let Some(layers) = model::trained_with(folder)? else { return Ok(None) };
    Ok(Some(layers.build()?.config.data))
}
