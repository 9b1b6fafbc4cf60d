//! `rustyflow serve`: an OpenAI-compatible server for one model, until a signal stops it.

use super::interrupt::Interrupts;
use super::{at_least_one, complete, configuration, device, model, named, output};
use crate::Error;
use crate::config::WeightDtype;
use crate::data::{ChatSpec, ChatTemplate};
use crate::models::{LanguageModel, Slots};
use crate::serve::{ServeOptions, serve};
use crate::units;
use anyhow::{Result, bail};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

/// Tokens per slot unless told otherwise: a cache for the whole context may take gigabytes that few texts need.
const DEFAULT_CONTEXT: usize = 4096;

#[derive(clap::Args)]
#[command(after_help = super::examples::SERVE)]
pub struct Args {
    /// A run (folder or name), the folder of a checkpoint, model or adapter, a GGUF file, or the name of a fetched
    /// model [default: the newest run]
    #[arg(long, value_name = "MODEL", add = complete::runs())]
    model: Option<PathBuf>,
    /// The model's name in requests [default: that of its run, folder or file]
    #[arg(long)]
    name: Option<String>,
    /// Address to listen on; 0.0.0.0 for every network interface
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host)]
    host: IpAddr,
    /// Port to listen on; 0 for any free one, which is printed
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Require the key in this file, as `Authorization: Bearer KEY`
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Texts generated at once; each holds a KV cache of --context tokens
    #[arg(long, value_name = "N", default_value = "4", value_parser = at_least_one)]
    slots: usize,
    /// Tokens of a prompt with its answer [default: the model's context, at most 4096]
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    context: Option<usize>,
    /// Texts that may wait for a slot; further requests are refused with status 429
    #[arg(long, value_name = "N", default_value = "128", value_parser = at_least_one)]
    queue: usize,
    /// The chat template: chatml, or the path of a Jinja file [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Type of the weights in matmuls: f32, f16 on a GPU (half the memory), or quantized: q8_0, q4_0, nf4
    #[arg(long, value_name = "DTYPE", default_value_t = WeightDtype::F32, add = complete::dtypes())]
    dtype: WeightDtype,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: &Args, interrupts: &Interrupts) -> Result<()> {
    let api_key = args.api_key_file.as_deref().map(api_key).transpose()?;
    let given = args.chat_template.as_deref().map(template).transpose()?;
    let config = configuration::of_environment()?;
    let device = device::open(&args.device.over(&config.device))?;
    let (folder, (model, mut text)) =
        model::read(args.model.as_deref(), |folder| Ok(model::load(args.dtype, folder, &device)?))?;
    let template = given.or_else(|| text.template.take());
    let context = args.context.unwrap_or(DEFAULT_CONTEXT);
    check_memory(&*model, args.slots, context)?;
    let options = ServeOptions {
        name: args.name.clone().unwrap_or_else(|| name(args.model.as_deref(), &folder)),
        host: args.host,
        port: args.port,
        api_key,
        slots: args.slots,
        context,
        queue: args.queue,
    };
    if template.is_none() {
        output::note("note: the model has no chat template: /v1/chat/completions needs --chat-template");
    }
    if !args.host.is_loopback() && options.api_key.is_none() {
        output::note("warning: everyone who reaches this machine may use the model; set --api-key-file");
    }
    interrupts.stop_after("finishing the accepted requests; press Ctrl-C again to stop at once");
    let announced = options.name.clone();
    serve(&*model, text, template, options, interrupts.stop(), &mut |address| {
        output::line(format_args!("{announced}: listening on http://{address}"))
            .map_err(|error| Error::io("write to", "standard output", error))
    })
    .map_err(|error| out_of_memory(error, args))
}

/// Reports the memory of the caches, and refuses what the device cannot hold.
fn check_memory(model: &dyn LanguageModel, slots: usize, context: usize) -> Result<()> {
    let context = context.min(model.config().context());
    let (needed, device) = (Slots::size_bytes(model, slots, context), model.device());
    let caches = format!("{} for the KV caches of {slots} slots of {context} tokens", units::bytes(needed));
    match device.memory_bytes().filter(|memory| needed > *memory) {
        Some(memory) => bail!(
            "--slots {slots}: {caches}, but {} has {}; use fewer --slots or a smaller --context",
            device.name(),
            units::bytes(memory)
        ),
        None if needed > 0 => output::note(format_args!("note: {caches}; --slots and --context change it")),
        None => {}
    }
    Ok(())
}

/// What a server does about an error of memory is not what a run does.
fn out_of_memory(error: Error, args: &Args) -> anyhow::Error {
    match error {
        Error::OutOfMemory { adapter, .. } => anyhow::anyhow!(
            "--slots {}: {adapter} has no memory for their caches; use fewer --slots, a smaller --context or --dtype \
             q8_0",
            args.slots
        ),
        error => error.into(),
    }
}

/// An address, or localhost.
fn host(text: &str) -> std::result::Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    text.parse().map_err(|_| "expected an address, as in 127.0.0.1, 0.0.0.0 or ::1".into())
}

/// The key in a file: one line without white space.
fn api_key(path: &Path) -> Result<String> {
    let flag = format!("--api-key-file {}", path.display());
    let key = std::fs::read_to_string(path).map_err(|error| anyhow::anyhow!("{flag}: {error}"))?;
    let key = key.trim();
    if key.is_empty() || key.contains(|c: char| c.is_whitespace() || !c.is_ascii()) {
        bail!("{flag}: expected one line of ASCII characters without white space");
    }
    Ok(key.to_string())
}

/// The template that a flag names.
fn template(spec: &str) -> Result<ChatTemplate> {
    let found = ChatTemplate::find(&ChatSpec { template: spec, folder: None })?;
    found.ok_or_else(|| anyhow::anyhow!("--chat-template {spec}: expected chatml or the path of a Jinja file"))
}

/// The name of a run, folder or file; of a fetched model the name by which it was fetched.
fn name(given: Option<&Path>, folder: &Path) -> String {
    let path = match given {
        Some(given) if !given.exists() => return given.display().to_string(),
        Some(given) => given,
        None => {
            folder.parent().filter(|parent| parent.ends_with("checkpoints")).and_then(Path::parent).unwrap_or(folder)
        }
    };
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = named::last_part(&path);
    name.strip_suffix(".gguf").map(str::to_string).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for (content, expected) in
            [("abc\n", Some("abc")), ("", None), ("a b", None), ("a\nb\n", None), ("\u{e4}", None)]
        {
            std::fs::write(&path, content).unwrap();
            assert_eq!(api_key(&path).ok().as_deref(), expected, "{content:?}");
        }
        assert!(api_key(&folder.path().join("nowhere")).unwrap_err().to_string().starts_with("--api-key-file"));
    }

    #[test]
    fn a_model_is_named_after_its_run_or_file() {
        assert_eq!(name(None, Path::new("runs/notes/checkpoints/step-000500")), "notes");
        assert_eq!(name(Some(Path::new("Qwen/Qwen3-0.6B")), Path::new("cache")), "Qwen/Qwen3-0.6B");
        let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
        assert_eq!(name(Some(file.path()), Path::new("cache")) + ".gguf", named::last_part(file.path()));
    }
}
