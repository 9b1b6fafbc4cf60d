//! `rustyflow generate`: continues a text, printing it as it is drawn.

use super::interrupt::{Interrupted, Interrupts};
use super::{at_least_one, configuration, device, model, output};
use crate::Error;
use crate::config::{GenerateConfig, process_environment};
use crate::data::read_text;
use crate::generate::{Sampler, Sampling, check_prompt, generate, printable};
use crate::train::prompt_ids;
use anyhow::Result;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = super::examples::GENERATE)]
pub struct Args {
    /// A run's folder, a checkpoint's, or the name of a fetched model; without it, the newest run in runs/
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The text to continue; - reads it from standard input
    #[arg(long, short, default_value = "", allow_hyphen_values = true)]
    prompt: String,
    /// Or the file that holds it
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Tokens to write at most [default: the run's, 200]
    #[arg(long, short = 'n', value_name = "N", value_parser = at_least_one)]
    max_tokens: Option<usize>,
    /// Below 1 safer, above 1 wilder, 0 always the likeliest token [default: the run's, 0.8]
    #[arg(long, short, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Choose among the K likeliest tokens only; 0 for all [default: the run's, 0]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Choose among the likeliest tokens that reach this probability together; 1 for all [default: the run's, 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// The same seed writes the same text [default: the run's, 1337]
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object with the text and the speed instead
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: Args, interrupts: &Interrupts) -> Result<()> {
    let config = configuration::of_environment()?;
    let device = device::open(&args.device.over(&config.device))?;
    let folder = model::find(args.model.as_deref())?;
    let (model, tokenizer) = model::load(&folder, &device)?;
    tracing::info!("model {}", folder.display());
    let defaults = of_run(&folder).unwrap_or_else(|error| {
        output::note(format_args!("warning: the run's [generate] is not used: {error}"));
        None
    });
    let defaults = defaults.unwrap_or(config.generate);
    let sampling = Sampling {
        tokens: tokenizer.vocab_size(),
        temperature: args.temperature.unwrap_or(defaults.temperature),
        top_k: args.top_k.unwrap_or(defaults.top_k),
        top_p: args.top_p.unwrap_or(defaults.top_p),
        seed: args.seed.unwrap_or(defaults.seed),
    };
    let given = read_prompt(&args)?;
    let whole = prompt_ids(&tokenizer, &given)?;
    let context = model.config().block_size;
    let prompt = whole[whole.len().saturating_sub(context)..].to_vec();
    if prompt.len() < whole.len() {
        output::note(format_args!(
            "note: the prompt has {} tokens, and the model looks at {context}: it sees the last of them alone",
            whole.len()
        ));
    }
    // Before the prompt is shown, so that an error does not follow on half a line.
    check_prompt(model.config(), &prompt)?;
    Sampler::new(&sampling)?;
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    let show = |piece: &str, text: &mut String| -> crate::Result<()> {
        text.push_str(piece);
        if !args.json {
            output::now(&printable(piece)).map_err(|e| crate::Error::io("write to", "standard output", e))?;
        }
        Ok(())
    };
    // What stands before every text is no text.
    let first = tokenizer.begin_of_text()?.len();
    for &id in if given.is_empty() { &[][..] } else { &whole[first..] } {
        let piece = stream.push(id)?;
        show(&piece, &mut text)?;
    }
    interrupts.stop_after("\nstopping after this token; press Ctrl-C again to stop at once");
    let stop = interrupts.stop();
    let started = Instant::now();
    let (mut tokens, mut first) = (0, None);
    generate(&*model, &prompt, args.max_tokens.unwrap_or(defaults.max_new_tokens), &sampling, &mut |id| {
        tokens += 1;
        first.get_or_insert_with(|| started.elapsed());
        let piece = stream.push(id)?;
        show(&piece, &mut text)?;
        Ok(if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    show(&stream.finish()?, &mut text)?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        output::line(serde_json::json!({
            "text": text, "tokens": tokens, "seconds": seconds, "tokens_per_s": f64::from(tokens) / seconds.max(1e-9),
        }))?;
    } else {
        output::line("")?;
        tracing::info!("{tokens} tokens, {:.2} ms each", 1e3 * seconds / f64::from(tokens).max(1.0));
    }
    if stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
}

/// The text to continue.
fn read_prompt(args: &Args) -> Result<String> {
    match (&args.prompt_file, args.prompt.as_str()) {
        (Some(path), _) => Ok(read_text(path)?),
        (None, "-") => {
            let text = std::io::read_to_string(std::io::stdin());
            Ok(text.map_err(|e| Error::io("read", "standard input", e))?)
        }
        (None, prompt) => Ok(prompt.to_string()),
    }
}

/// What the run was to generate and how, if it says so, with what the environment says of that.
fn of_run(folder: &Path) -> Result<Option<GenerateConfig>> {
    let Some(layers) = model::trained_with(folder)? else { return Ok(None) };
    let about_this = process_environment().filter(|(name, _)| name.starts_with("RUSTYFLOW_GENERATE__"));
    Ok(Some(layers.environment(about_this)?.build()?.config.generate))
}
