//! `rustyflow runs show`.

use super::{Folder, or_dash, parameters, write_page};
use crate::cli::{complete, output};
use crate::config::Config;
use crate::report::{Best, Curve, RunRecord, RunSummary, loss_curves, plot, run_page, written};
use crate::units;
use anyhow::Result;
use std::fmt::Write;
use std::path::PathBuf;

/// Lines of the plot.
const HEIGHT: usize = 16;

#[derive(clap::Args)]
pub struct Args {
    /// The run: its folder, or its name in the folder of runs
    #[arg(value_name = "RUN", add = complete::runs())]
    run: PathBuf,
    #[command(flatten)]
    folder: Folder,
    /// Also write its page as it is now, as report.html is at the end of a run
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let run = args.folder.read(&args.run)?;
    if let Some(path) = &args.html {
        write_page(path, &run_page(&run))?;
    }
    let page = args.html.or_else(|| Some(run.folder.join("report.html")).filter(|path| path.exists()));
    let summary = RunSummary::new(&run);
    let settings = settings(&run);
    if args.json {
        let mut value = serde_json::to_value(&summary)?;
        value["error"] = run.start["error"].clone();
        value["notes"] = run.notes.clone().into();
        value["settings"] = settings.iter().map(|s| (s.key.clone(), s.value.clone())).collect();
        value["report"] = page.map(|path| path.display().to_string()).into();
        return Ok(output::line(value)?);
    }
    let page = or_dash(page.as_deref(), |path| path.display().to_string());
    output::line(text(&run, &summary, &page))?;
    let [train, validation] = loss_curves(&run);
    let curve = |name: &str, points| Curve { name: name.into(), points };
    let curves = [curve("training loss, smoothed, over steps", train), curve("validation loss", validation)];
    output::line(plot(&curves, output::width().min(100), HEIGHT, output::has_colours(&std::io::stdout())))?;
    if !settings.is_empty() {
        output::line("not as the defaults")?;
        let row = |s: &Setting| vec![format!("  {}", s.key), s.value.clone(), format!("(default {})", s.default)];
        output::line(output::table(&settings.iter().map(row).collect::<Vec<_>>(), |_| false))?;
    }
    Ok(())
}

fn text(run: &RunRecord, s: &RunSummary, page: &str) -> String {
    let mut text = format!("{}: {}\n", s.name, s.state);
    if let Some(error) = run.start["error"].as_str() {
        let _ = writeln!(text, "  error       {error}");
    }
    for note in &run.notes {
        let _ = writeln!(text, "  note        {note}");
    }
    let best = |best: &Best| {
        let byte = if best.lossless { "byte" } else { "decodable byte" };
        let more = [
            best.perplexity.map(|perplexity| format!(", perplexity {}", units::perplexity(perplexity))),
            best.bits_per_byte.map(|bits| format!(", bits per {byte} {bits:.3}")),
            best.reward_accuracy.map(|accuracy| format!(", accuracy {:.1}%", 100.0 * accuracy)),
            best.reward_margin.map(|margin| format!(", margin {}", units::number(margin))),
        ];
        format!("{} at step {}{}", units::loss(best.loss), best.step, more.into_iter().flatten().collect::<String>())
    };
    let four = units::loss;
    let total = s.total_steps.filter(|total| *total != s.steps).map_or(String::new(), |total| format!(" of {total}"));
    let is_part = s.trained_parameters != s.parameters;
    let resumed = if run.start["start"]["first_step"].as_u64() > Some(0) { ", in all processes" } else { "" };
    let lines = [
        ("best", or_dash(s.best.as_ref(), best)),
        (
            "last",
            format!("training loss {}, validation {}", or_dash(s.train_loss, four), or_dash(s.validation_loss, four)),
        ),
        ("steps", format!("{}{total}, {} epochs", s.steps, or_dash(s.epochs, |epochs| format!("{epochs:.2}")))),
        (
            "speed",
            format!(
                "{}, {} of training{resumed}",
                units::tokens_per_s(s.tokens_per_s),
                or_dash(s.training_seconds, units::duration)
            ),
        ),
        ("model", format!("{} parameters{}", parameters(s), if is_part { " trained" } else { "" })),
        ("data", [&s.corpus, &s.tokenizer].map(|word| or_dash(word.as_deref(), str::to_string)).join(", tokenizer ")),
        ("device", [&s.device, &s.precision].map(|word| or_dash(word.as_deref(), str::to_string)).join(", ")),
        ("folder", run.folder.display().to_string()),
        ("report", page.to_string()),
    ];
    for (name, value) in lines {
        let _ = writeln!(text, "  {name:<12}{value}");
    }
    text
}

/// A key that is not as the defaults.
struct Setting {
    key: String,
    value: String,
    default: String,
}

/// Without those that nobody set: their defaults follow from other values.
fn settings(run: &RunRecord) -> Vec<Setting> {
    let defaults = toml::Table::try_from(Config::default()).unwrap_or_default();
    let setting = |(key, value): (String, String)| {
        let (section, name) = key.split_once('.')?;
        let default = defaults.get(section).and_then(|section| section.get(name));
        let default = default.map_or("unset".to_string(), written);
        (default != value && !run.is_default(&key)).then_some(Setting { key, value, default })
    };
    run.config_values().filter_map(setting).collect()
}
