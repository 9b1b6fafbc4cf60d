//! `rustyflow generate`: continues a text, printing it as it is drawn.

mod many;
mod prompts;

use super::interrupt::{Interrupted, Interrupts};
use super::sampling::{self, SamplingFlags};
use super::{at_least_one, complete, configuration, device, model, output};
use crate::Error;
use crate::config::WeightDtype;
use crate::data::Tokenizer;
use crate::generate::{End, Sampling, TextWriter, generate, printable};
use crate::models::{LanguageModel, ModelConfig};
use crate::train::Prompt;
use anyhow::Result;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = super::examples::GENERATE)]
pub struct Args {
    /// A run (folder or name), the folder of a checkpoint, model or adapter, a GGUF file, or the name of a fetched
    /// model [default: the newest run]
    #[arg(long, value_name = "MODEL", add = complete::runs())]
    model: Option<PathBuf>,
    /// The text to continue; - reads it from standard input
    #[arg(long, short, default_value = "", allow_hyphen_values = true)]
    prompt: String,
    /// Read the prompt from a file
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Read many prompts, one a line, or {"prompt": "..."} in a .jsonl file; they run in batches
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_file"])]
    prompts: Option<PathBuf>,
    /// Texts per prompt, generated at once; each takes the next seed
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    samples: usize,
    #[command(flatten)]
    sampling: SamplingFlags,
    /// Print special tokens too, as <|im_end|>
    #[arg(long)]
    special_tokens: bool,
    /// Print one JSON object with the text and the speed instead; of several texts one for each, and the speed last
    #[arg(long)]
    pub json: bool,
    /// Type of the weights in matmuls: f32, f16 on a GPU (half the memory), or quantized: q8_0, q4_0, nf4
    #[arg(long, value_name = "DTYPE", default_value_t = WeightDtype::F32, add = complete::dtypes())]
    dtype: WeightDtype,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: Args, interrupts: &Interrupts) -> Result<()> {
    let config = configuration::of_environment()?;
    let device = device::open(&args.device.over(&config.device))?;
    let (folder, (model, conventions, settings)) = model::read(args.model.as_deref(), |folder| {
        let (model, conventions) = model::load(args.dtype, folder, &device)?;
        let settings = args.sampling.over_run(folder, config.generate.clone(), &conventions.tokenizer)?;
        Ok((model, conventions, settings))
    })?;
    let (tokenizer, (settings, sampling)) = (&conventions.tokenizer, settings);
    tracing::info!("model {}", folder.display());
    let given = match &args.prompts {
        Some(path) => prompts::of_file(path)?,
        None => vec![prompts::one(&args.prompt, args.prompt_file.as_deref())?],
    };
    // Before a prompt is shown, so that an error does not follow on half a line.
    let prompts = given.iter().map(|text| prompt(text, tokenizer, model.config()));
    let prompts = prompts.collect::<crate::Result<Vec<_>>>()?;
    interrupts.stop_after("\nstopping after this token; press Ctrl-C again to stop at once");
    let (max_new_tokens, samples, json) = (settings.max_new_tokens, args.samples, args.json);
    let ends = conventions.ends();
    let writer = || {
        let writer = TextWriter::new(tokenizer, &settings.stop).until(&ends);
        if args.special_tokens { writer } else { writer.without_special_tokens() }
    };
    if args.prompts.is_none() && samples == 1 {
        return write_one(&*model, writer(), &prompts[0], &sampling, max_new_tokens, json, interrupts);
    }
    let settings = many::Settings { sampling: &sampling, writer: &writer, samples, max_new_tokens, json };
    many::write(&*model, &prompts, &settings, interrupts)
}

/// The prompt, and a note where the model does not see all of it.
fn prompt(text: &str, tokenizer: &Tokenizer, shape: &ModelConfig) -> crate::Result<Prompt> {
    let prompt = Prompt::new(text, tokenizer, shape)?;
    if prompt.ids.len() < prompt.whole.len() {
        output::note(format_args!(
            "note: the prompt has {} tokens, the model's context {}: only the last tokens are used",
            prompt.whole.len(),
            shape.block_size
        ));
    }
    Ok(prompt)
}

/// What ended a text: `end_of_text`, `stop_string`, `interrupt` or `max_tokens`.
fn cause(end: Option<End>, interrupted: bool) -> serde_json::Value {
    match end {
        Some(end) => serde_json::to_value(end).expect("a name serializes"),
        None if interrupted => "interrupt".into(),
        None => "max_tokens".into(),
    }
}

/// Writes one text as it is drawn.
fn write_one(
    model: &dyn LanguageModel,
    mut writer: TextWriter,
    prompt: &Prompt,
    sampling: &Sampling,
    max_new_tokens: usize,
    json: bool,
    interrupts: &Interrupts,
) -> Result<()> {
    let mut text = String::new();
    let show = |piece: &str, text: &mut String| -> crate::Result<()> {
        text.push_str(piece);
        if !json {
            output::now(&printable(piece)).map_err(|e| Error::io("write to", "standard output", e))?;
        }
        Ok(())
    };
    for id in prompt.shown() {
        show(&writer.push_prompt(*id)?, &mut text)?;
    }
    let stop = interrupts.stop();
    let (started, mut tokens) = (Instant::now(), 0);
    generate(model, &prompt.ids, max_new_tokens, sampling, &mut |id| {
        tokens += 1;
        show(&writer.push(id)?, &mut text)?;
        let ends = writer.end().is_some() || stop.load(Ordering::Relaxed);
        Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    let end = writer.end();
    show(&writer.finish()?, &mut text)?;
    let seconds = started.elapsed().as_secs_f64();
    if json {
        let mut object = sampling::speed(prompt.ids.len(), tokens, seconds);
        object["text"] = text.into();
        object["stopped"] = end.is_some().into();
        object["end"] = cause(end, stop.load(Ordering::Relaxed));
        output::line(object)?;
    } else {
        output::line("")?;
        tracing::info!("{tokens} tokens, {:.2} ms each", 1e3 * seconds / (tokens as f64).max(1.0));
    }
    if stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
}
