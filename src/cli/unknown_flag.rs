//! Flags of other tools: an unknown one is answered with the flag or the key that was meant.

use super::{Cli, output};
use crate::config::key_for_flag;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::process::ExitCode;

/// Flags of PyTorch, transformers and llama.cpp that stand for no key, or for one value of it: what a command calls
/// them, and the value. The first that the command has is meant.
const RENAMED: &[(&str, &str, Option<&str>)] = &[
    ("model", "init", None),
    ("model-name-or-path", "init", None),
    ("model-name-or-path", "model", None),
    ("checkpoint", "model", None),
    ("ckpt", "model", None),
    ("checkpoint", "resume", None),
    ("ckpt", "resume", None),
    ("resume-from", "resume", None),
    ("resume-from-checkpoint", "resume", None),
    ("fp16", "precision", Some("mixed")),
    ("bf16", "precision", Some("mixed")),
    ("half", "precision", Some("mixed")),
    ("amp", "precision", Some("mixed")),
    ("mixed-precision", "precision", Some("mixed")),
    ("fp16", "dtype", Some("f16")),
    ("half", "dtype", Some("f16")),
    ("gpu", "device", Some("gpu")),
    ("cuda", "device", Some("gpu")),
    ("cpu", "device", Some("cpu")),
    ("output-dir", "output", None),
    ("outfile", "output", None),
    ("max-new-tokens", "max-tokens", None),
    ("n-predict", "max-tokens", None),
    ("num-return-sequences", "samples", None),
    ("file", "prompt-file", None),
    ("system-prompt", "system", None),
];

/// Reports why the command line cannot be read, and returns the exit code. Help and version are no errors.
pub fn report(error: &clap::Error, args: &[OsString]) -> ExitCode {
    match advice(error, args) {
        Some(advice) => output::error(format_args!("error: {advice}")),
        // Where standard error is closed, nobody is left to tell.
        None => drop(error.print()),
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// What to write instead of the unknown flag, where that is known.
fn advice(error: &clap::Error, args: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = flag.strip_prefix("--")?.to_lowercase().replace('_', "-");
    let command = command_of(args);
    let has = |long: &str| command.get_arguments().any(|argument| argument.get_long() == Some(long));
    let given = value_of(flag, args);
    let renamed = RENAMED.iter().find(|(other, long, _)| *other == name && has(long));
    if let Some((_, long, value)) = renamed {
        let value = value.map(String::from).or(given).unwrap_or_else(|| "<VALUE>".into());
        return Some(format!("{flag}: unknown flag, use --{long} {value}"));
    }
    let (key, words) = key_for_flag(&name)?;
    let value = given.unwrap_or(words);
    let (_, last) = key.split_once('.')?;
    let long = match key {
        "device.kind" => "device".into(),
        "generate.max_new_tokens" => "max-tokens".into(),
        _ => last.replace('_', "-"),
    };
    let ways = [(has(&long), format!("--{long} {value}")), (has("set"), format!("--set {key}={value}"))];
    let ways: Vec<_> = ways.into_iter().filter(|(there, _)| *there).map(|(_, way)| way).collect();
    (!ways.is_empty()).then(|| format!("{flag}: unknown flag, use {}", ways.join(" or ")))
}

/// The command that these arguments call.
fn command_of(args: &[OsString]) -> clap::Command {
    let mut command = Cli::command();
    for word in args.iter().skip(1).filter_map(|arg| arg.to_str()).filter(|word| !word.starts_with('-')) {
        let Some(inner) = command.find_subcommand(word).cloned() else { break };
        command = inner;
    }
    command
}

/// The value that was given to the flag, quoted for a shell.
fn value_of(flag: &str, args: &[OsString]) -> Option<String> {
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let at = words.iter().position(|word| word.split('=').next() == Some(flag))?;
    let value = match words[at].split_once('=') {
        Some((_, value)) => value,
        None => words.get(at + 1).filter(|next| !next.starts_with("--"))?,
    };
    Some(crate::shell_words::quoted(value.as_ref()))
}
