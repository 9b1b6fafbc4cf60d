//! The prompts that `rustyflow generate` is given.

use crate::Error;
use crate::data::read_text;
use anyhow::{Result, bail};
use serde_json::Value;
use std::path::Path;

/// The text to continue: of a file, of standard input if it is `-`, or itself.
pub(super) fn one(prompt: &str, file: Option<&Path>) -> Result<String> {
    match (file, prompt) {
        (Some(path), _) => Ok(read_text(path)?),
        (None, "-") => {
            let text = std::io::read_to_string(std::io::stdin());
            Ok(text.map_err(|e| Error::io("read", "standard input", e))?)
        }
        (None, prompt) => Ok(prompt.to_string()),
    }
}

/// The prompts in a file, one on each line that is not empty; in a `.jsonl` file those are texts in quotes, or objects
/// with one as their `prompt`.
pub(super) fn of_file(path: &Path) -> Result<Vec<String>> {
    let text = read_text(path)?;
    let is_json = path.extension().is_some_and(|extension| extension == "jsonl");
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompt = |(i, line): (usize, &str)| if is_json { of_json(path, i + 1, line) } else { Ok(line.to_string()) };
    let prompts = lines.map(prompt).collect::<Result<Vec<_>>>()?;
    if prompts.is_empty() {
        bail!("{}: has no prompt; write one on each line", path.display());
    }
    Ok(prompts)
}

fn of_json(path: &Path, number: usize, line: &str) -> Result<String> {
    let expected = r#"expected {"prompt": "..."} or a quoted string"#;
    match serde_json::from_str(line) {
        Ok(Value::String(prompt)) => Ok(prompt),
        Ok(Value::Object(mut object)) => match object.remove("prompt") {
            Some(Value::String(prompt)) => Ok(prompt),
            _ => bail!("{}:{number}: {expected}: it has no text as its \"prompt\"", path.display()),
        },
        Ok(_) => bail!("{}:{number}: {expected}", path.display()),
        Err(error) => bail!("{}:{number}: {expected}: {error}", path.display()),
    }
}
