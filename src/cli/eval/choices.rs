//! `rustyflow eval --choices`: how many questions a model answers rightly.

use super::Args;
use crate::Error;
use crate::cli::{model, output};
use crate::config::WeightDtype;
use crate::data::read_questions;
use crate::train::evaluate_choices;
use anyhow::Result;
use std::path::Path;

/// Answers the questions in `path` by the model of this folder.
pub fn run(args: &Args, path: &Path) -> Result<()> {
    let questions = read_questions(path)?;
    let (folder, (model, text, context)) = model::read(args.model.as_deref(), |folder| {
        let (model, text) = model::load(WeightDtype::F32, folder, &args.open_device()?)?;
        let context = args.context(folder, model.config().block_size)?;
        Ok((model, text, context))
    })?;
    let result = evaluate_choices(&*model, &text.tokenizer, &questions, context, args.batch_size);
    let result = result.map_err(|error| match error {
        Error::Invalid(message) => Error::Corpus { path: path.to_path_buf(), message },
        other => other,
    })?;
    if args.json {
        let mut json = serde_json::to_value(&result)?;
        json["model"] = serde_json::json!(folder);
        json["choices"] = serde_json::json!(path);
        output::line(json)?;
        return Ok(());
    }
    let n = result.questions;
    let line = |what: &str, correct: usize, accuracy: f64, stderr: Option<f64>| {
        let stderr = stderr.map_or(String::new(), |stderr| format!(", standard error {:.2}%", 100.0 * stderr));
        output::line(format_args!("{what}{correct} of {n}: {:.2}%{stderr}", 100.0 * accuracy))
    };
    output::line(format_args!("model          {}", folder.display()))?;
    output::line(format_args!("questions      {}, {n}; guessing {:.2}%", path.display(), 100.0 * result.chance))?;
    line("accuracy       ", result.correct, result.accuracy, result.accuracy_stderr)?;
    line("  per byte     ", result.correct_norm, result.accuracy_norm, result.accuracy_norm_stderr)?;
    output::line(format_args!("answer loss    {:.4} nats per right answer", result.answer_loss))?;
    if result.truncated > 0 {
        let count = result.truncated;
        output::note(format_args!(
            "note: {count} choices follow the end of their question alone: the context is {context}"
        ));
    }
    Ok(())
}
