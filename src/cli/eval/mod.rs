//! `rustyflow eval`: how well a model predicts a text, or answers questions.

mod choices;

use super::{at_least_one, complete, configuration, device, model, output};
use crate::cache;
use crate::config::{DataConfig, WeightDtype};
use crate::data::{Corpus, Packing, Split, encode_split};
use crate::train::{Windows, corpus_for_model, evaluate, packing, trained_on, trained_rows};
use crate::units;
use crate::{Device, Error};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

#[derive(clap::Args)]
#[command(after_help = super::examples::EVAL)]
pub struct Args {
    /// A run (folder or name), the folder of a checkpoint, model or adapter, a GGUF file, or the name of a fetched
    /// model [default: the newest run]
    #[arg(long, value_name = "MODEL", add = complete::runs())]
    model: Option<PathBuf>,
    /// A text to evaluate on: a file, or a folder of them
    #[arg(long, value_name = "PATH", conflicts_with = "corpus")]
    text: Option<PathBuf>,
    /// Or multiple-choice questions: JSON lines with question, choices and answer
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "corpus", "split", "validation_fraction", "stride"])]
    choices: Option<PathBuf>,
    /// Or a corpus, as data.corpus names it [default: the one that the model was trained on]
    #[arg(long, add = complete::corpora())]
    corpus: Option<String>,
    /// The split of the corpus: train, validation or test
    #[arg(long, default_value = "validation", value_name = "SPLIT")]
    split: String,
    /// The fraction of a corpus without splits that is kept for validation [default: as in training; of another corpus,
    /// 0.1]
    #[arg(long, value_name = "F")]
    validation_fraction: Option<f64>,
    /// Tokens of a window, up to the model's context [default: the rows that a run was trained on, or that context]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Tokens from one window to the next: a smaller stride gives each token more context [default: context]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Windows or choices per batch
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = at_least_one)]
    batch_size: usize,
    /// The folder of downloaded data sets
    #[arg(long, default_value = "data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: Args) -> Result<()> {
    match &args.choices {
        Some(path) => choices::run(&args, path),
        None => on_text(&args),
    }
}

impl Args {
    fn open_device(&self) -> Result<Device> {
        let config = configuration::of_environment()?;
        Ok(device::open(&self.device.over(&config.device))?)
    }

    /// The tokens of a window, of so many that the model in this folder can read.
    fn context(&self, folder: &Path, block_size: usize) -> crate::Result<usize> {
        let context = match self.context {
            Some(context) => context,
            None => trained_rows(folder)?.unwrap_or(block_size).min(block_size),
        };
        if context == 0 || context > block_size {
            return Err(Error::Invalid(format!("--context is {context}; the model's is 1 to {block_size}")));
        }
        Ok(context)
    }
}

fn on_text(args: &Args) -> Result<()> {
    let (folder, (evaluated, model, text, context)) = model::read(args.model.as_deref(), |folder| {
        let evaluated = Text::open(args, folder)?;
        let (model, text) = model::load(WeightDtype::F32, folder, &args.open_device()?)?;
        let context = args.context(folder, model.config().block_size)?;
        Ok((evaluated, model, text, context))
    })?;
    let Text { corpus, split, packing, name: source } = evaluated;
    let stride = args.stride.unwrap_or(context);
    if stride == 0 || stride > context {
        return Err(Error::Invalid(format!("--stride is {stride}; expected 1 to the context, {context}")).into());
    }
    let windows = Windows { context, stride, batch_size: args.batch_size, max_batches: 0 };
    // Ctrl-C ends this command as it ends any other: there is nothing to save.
    let never = AtomicBool::new(false);
    let (tokens, coverage) = encode_split(&corpus, split, &text.tokenizer, packing)?;
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
    output::line(format_args!("loss           {} nats per token", units::loss(result.loss)))?;
    output::line(format_args!("perplexity     {} per token", units::perplexity(result.perplexity)))?;
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

/// What a model is evaluated on.
struct Text {
    corpus: Corpus,
    split: Split,
    packing: Option<Packing>,
    /// What to call it.
    name: String,
}

impl Text {
    /// The text to evaluate the checkpoint in this folder on.
    fn open(args: &Args, folder: &Path) -> Result<Text> {
        let cache = cache::user_folder();
        let open = |data: &DataConfig, fraction: f64| {
            corpus_for_model(data, fraction, &args.data_dir, cache.as_deref(), folder)
        };
        if let Some(path) = &args.text {
            std::fs::metadata(path).map_err(|error| Error::io("read", path, error))?;
            let name = path.display().to_string();
            let corpus = open(&DataConfig { corpus: name.clone(), ..DataConfig::default() }, 0.0)?;
            return Ok(Text { corpus, split: Split::Train, packing: None, name });
        }
        let data = match (&args.corpus, trained_on(folder)) {
            (None, Ok(Some(of_run))) => of_run,
            (None, Ok(None)) => {
                let message = "does not say what the model was trained on; give --text PATH or --corpus NAME".into();
                return Err(Error::Checkpoint { path: folder.to_path_buf(), message }.into());
            }
            (None, Err(error)) => return Err(error.into()),
            (Some(corpus), Ok(Some(of_run))) if of_run.corpus == *corpus => of_run,
            (Some(corpus), _) => DataConfig { corpus: corpus.clone(), ..DataConfig::default() },
        };
        let corpus = open(&data, args.validation_fraction.unwrap_or(data.validation_fraction))?;
        let split = match args.split.as_str() {
            "train" => Split::Train,
            "validation" => Split::Validation,
            "test" if corpus.has(Split::Test) => Split::Test,
            "test" => return Err(Error::Invalid(format!("{} has no test split", corpus.name)).into()),
            other => return Err(Error::Invalid(format!("--split {other}: expected train, validation or test")).into()),
        };
        let name = format!("{} {}", corpus.name, args.split);
        Ok(Text { corpus, split, packing: packing(&data), name })
    }
}
