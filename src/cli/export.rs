//! `rustyflow export`: writes a model as other programs read it, and checks what it wrote.

use super::{complete, configuration, device, model, output};
use crate::Error;
use crate::cache;
use crate::config::{DataConfig, WeightDtype};
use crate::data::{Split, Tokenizer, Tokens, encode_beginning};
use crate::models::gguf::GgmlType;
use crate::models::hf::shards::StoredType;
use crate::models::hf::tokenizer_folder;
use crate::tensor::Device;
use crate::train::export::{ExportOptions, Exported, Form, check_output, export};
use crate::train::{corpus_for_model, trained_on};
use crate::units;
use anyhow::Result;
use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// Tokens on which the model and what was written of it are compared.
const CHECKED_TOKENS: usize = 2049;

#[derive(clap::Args)]
#[command(after_help = super::examples::EXPORT)]
pub struct Args {
    /// A run (its folder, or its name in run.dir), a checkpoint's folder, one of Hugging Face, a GGUF file, or the name
    /// of a fetched model [default: the newest run]
    #[arg(value_name = "DIR", add = complete::runs())]
    model: Option<PathBuf>,
    /// gguf, one file for llama.cpp, or safetensors, a folder for transformers [default: gguf if the
    /// output ends so, else safetensors]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    #[command(flatten)]
    pub written: Written,
}

/// What is written, where, and how it is checked.
#[derive(clap::Args)]
pub struct Written {
    /// The file (gguf) or folder (safetensors) to write
    #[arg(long, short, value_name = "PATH")]
    output: PathBuf,
    /// Weight type: f32, f16, bf16; GGUF also q8_0, q4_0
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    dtype: Type,
    /// The largest file of safetensors: a number with KB, MB, GB or nothing behind it [default: 5GB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_shard_size: Option<usize>,
    /// Replace what is there
    #[arg(long)]
    force: bool,
    /// A text to compare on [default: the run's validation text, or else the sample corpus]
    #[arg(long, value_name = "PATH")]
    text: Option<PathBuf>,
    /// The folder of downloaded data sets
    #[arg(long, default_value = "data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    device: device::Flags,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    Gguf,
    Safetensors,
}

#[derive(Clone, Copy, ValueEnum)]
enum Type {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
}

/// "200MB" as bytes: decimal, as transformers counts.
fn size(text: &str) -> Result<usize, String> {
    let units = [("KB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("", 1)];
    let found = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim(), *bytes)));
    let size = found.and_then(|(number, bytes)| number.parse::<usize>().ok()?.checked_mul(bytes));
    size.filter(|size| *size > 0).ok_or_else(|| "expected a size above zero, as in 200MB or 5GB".to_string())
}

impl Written {
    fn form(&self, format: Format) -> Result<Form, Error> {
        let wrong = |message: &str| Err(Error::Invalid(message.into()));
        let form = match (format, self.dtype) {
            (Format::Gguf, Type::F32) => Form::Gguf(GgmlType::F32),
            (Format::Gguf, Type::F16) => Form::Gguf(GgmlType::F16),
            (Format::Gguf, Type::Bf16) => Form::Gguf(GgmlType::Bf16),
            (Format::Gguf, Type::Q8_0) => Form::Gguf(GgmlType::Q8_0),
            (Format::Gguf, Type::Q4_0) => Form::Gguf(GgmlType::Q4_0),
            (Format::Safetensors, dtype) => {
                let dtype = match dtype {
                    Type::F32 => StoredType::F32,
                    Type::F16 => StoredType::F16,
                    Type::Bf16 => StoredType::Bf16,
                    Type::Q8_0 | Type::Q4_0 => {
                        return wrong("--dtype q8_0 and q4_0 are types of --format gguf; safetensors: f32, f16, bf16");
                    }
                };
                Form::Safetensors(dtype, self.max_shard_size.unwrap_or(5_000_000_000))
            }
        };
        match (form, self.max_shard_size) {
            (Form::Gguf(_), Some(_)) => wrong("--max-shard-size is of --format safetensors; gguf writes one file"),
            _ => Ok(form),
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    write(args.model.as_deref(), args.format, &args.written)
}

/// Writes the model of a folder, of a name, or of the newest run; without a format in that of the output's name.
pub fn write(model: Option<&Path>, format: Option<Format>, args: &Written) -> Result<()> {
    let ending = args.output.extension().unwrap_or_default();
    let of_ending = if ending.eq_ignore_ascii_case("gguf") { Format::Gguf } else { Format::Safetensors };
    let form = args.form(format.unwrap_or(of_ending))?;
    check_output(&args.output, form, args.force)?;
    let config = configuration::of_environment()?;
    let device = device::open(&args.device.over(&config.device))?;
    let (folder, (model, conventions, (tokens, text))) = model::read(model, |folder| {
        let (model, conventions) = model::load(WeightDtype::F32, folder, &Device::Cpu)?;
        let text = text(args, folder, &conventions.tokenizer)?;
        Ok((model, conventions, text))
    })?;
    // An adapter without a tokenizer has that of its model.
    let source = tokenizer_folder(&folder)?;
    let options = ExportOptions { source: &source, output: &args.output, form, force: args.force, device };
    let exported = export(model, &conventions, &tokens, &options)?;
    conventions.warning_of_end().iter().for_each(|text| output::note(format_args!("warning: {text}")));
    if args.json {
        return Ok(output::line(json(&folder, &text, &exported))?);
    }
    print(&folder, &text, &exported)
}

/// The text to compare on, as tokens, and what to call it.
fn text(args: &Written, folder: &Path, tokenizer: &Tokenizer) -> Result<(Tokens, String)> {
    let open = |data: &DataConfig, fraction: f64, split: Split| {
        encode_beginning(
            &corpus_for_model(data, fraction, &args.data_dir, cache::user_folder().as_deref(), folder)?,
            split,
            tokenizer,
            CHECKED_TOKENS,
        )
    };
    let of = |corpus: &str| DataConfig { corpus: corpus.into(), ..DataConfig::default() };
    if let Some(path) = &args.text {
        std::fs::metadata(path).map_err(|error| Error::io("read", path, error))?;
        let name = path.display().to_string();
        return Ok((open(&of(&name), 0.0, Split::Train)?, name));
    }
    // Standard input is gone, and to wait for more of it would be no answer.
    if let Some(data) = trained_on(folder)?.filter(|data| data.corpus != "-") {
        match open(&data, data.validation_fraction, Split::Validation) {
            Ok(tokens) => return Ok((tokens, format!("{} validation", data.corpus))),
            Err(error) => output::note(format_args!(
                "note: compared on another text than the run's validation text, which cannot be read: {error}"
            )),
        }
    }
    match open(&of("sample"), 0.0, Split::Train) {
        Ok(tokens) => Ok((tokens, "the sample corpus".into())),
        // Characters that it has no tokens for.
        Err(_) => {
            let most = tokenizer.vocab_size() as u32;
            let tokens: Vec<u32> = (0..most).cycle().take(512).collect();
            Ok((tokens.into(), "all tokens in turn, because its tokenizer lacks some of the sample corpus".into()))
        }
    }
}

fn print(folder: &Path, text: &str, exported: &Exported) -> Result<()> {
    let Exported { files, size_bytes, unquantized, added_end, comparison: c } = exported;
    output::line(format_args!("model          {}", folder.display()))?;
    for (i, file) in files.iter().enumerate() {
        output::line(format_args!("{}{}", if i == 0 { "written        " } else { "               " }, file.display()))?;
    }
    output::line(format_args!("size           {}", units::bytes(*size_bytes)))?;
    if let Some(first) = unquantized.first() {
        output::line(format_args!(
            "kept as f16    {} matrices with row lengths not divisible by 32, such as {first}",
            unquantized.len()
        ))?;
    }
    if *added_end {
        output::line("added          <|endoftext|>, never sampled; without it llama.cpp ends at token 2")?;
    }
    output::line(format_args!("compared on    {text}, {} tokens predicted", c.tokens))?;
    output::line(format_args!("loss           {:.4} before, {:.4} after", c.loss_before, c.loss_after))?;
    output::line(format_args!("logits         differ by {} at most", units::number(c.largest_difference.into())))?;
    output::line(format_args!("top token      equal at {:.2}% of positions", 100.0 * c.same_top_token))?;
    Ok(())
}

fn json(folder: &Path, text: &str, exported: &Exported) -> serde_json::Value {
    let mut json = serde_json::to_value(&exported.comparison).expect("plain values serialize");
    json["model"] = serde_json::json!(folder);
    json["text"] = text.into();
    json["files"] = serde_json::json!(exported.files);
    json["size_bytes"] = exported.size_bytes.into();
    json["unquantized"] = serde_json::json!(exported.unquantized);
    json["added_end"] = exported.added_end.into();
    json
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_decimal() {
        for (text, bytes) in [("200MB", 200_000_000), ("5 GB", 5_000_000_000), ("10KB", 10_000), ("7", 7)] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "MB", "0", "-1MB", "1.5GB", "1TB", "99999999999999999999GB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
