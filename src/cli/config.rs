//! `rustyflow config`: what is in force, a file to begin with, and a schema for editors.

use super::{configuration, examples, output};
use crate::Error;
use crate::config::{json_schema, template};
use crate::shell_words::quoted;
use anyhow::Result;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(clap::Subcommand)]
pub enum Command {
    /// Show every value that `train` would take, and where each comes from
    #[command(after_help = examples::CONFIG_SHOW)]
    Show(Box<ShowArgs>),
    /// Write a configuration file with every key, what it means, and its default
    #[command(after_help = examples::CONFIG_INIT)]
    Init {
        /// Output file; an existing file is not overwritten
        #[arg(default_value = "rustyflow.toml", value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the JSON Schema of configuration files, from which editors complete keys
    #[command(after_help = examples::CONFIG_SCHEMA)]
    Schema,
}

#[derive(clap::Args)]
pub struct ShowArgs {
    #[command(flatten)]
    flags: configuration::TrainFlags,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Whether it prints JSON.
    pub fn is_for_machines(&self) -> bool {
        matches!(self, Command::Schema) || matches!(self, Command::Show(args) if args.json)
    }
}

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Show(args) => show(&args.flags, args.json),
        Command::Init { file } => init(&file),
        Command::Schema => Ok(output::line(serde_json::to_string_pretty(&json_schema())?)?),
    }
}

fn show(flags: &configuration::TrainFlags, json: bool) -> Result<()> {
    let resolved = flags.resolve(None)?;
    configuration::warn(&resolved);
    if !json {
        return Ok(output::now(&resolved.to_toml())?);
    }
    let mut values = serde_json::to_value(&resolved.config)?;
    for (key, origin) in &resolved.origins {
        let (section, name) = key.split_once('.').expect("keys are section.key");
        let value = values[section][name].take();
        values[section][name] = serde_json::json!({ "value": value, "from": origin.to_string() });
    }
    Ok(output::line(values)?)
}

fn init(path: &Path) -> Result<()> {
    let mut file = File::create_new(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let message = "exists and is not overwritten; name another file".to_string();
            Error::Config { place: path.display().to_string(), key: "config init".into(), message }
        }
        _ => Error::io("create", path, error),
    })?;
    file.write_all(template().as_bytes()).map_err(|e| Error::io("write", path, e))?;
    let command = quoted(path);
    let path = path.display();
    output::line(format_args!("{path} shows every key behind #; take the # away to set one, then"))?;
    Ok(output::line(format_args!("rustyflow train {command}"))?)
}
