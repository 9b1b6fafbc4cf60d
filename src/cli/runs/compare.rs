//! `rustyflow runs compare`.

use super::{Folder, or_dash, parameters, write_page};
use crate::Error;
use crate::cli::{complete, output};
use crate::report::{Comparison, Curve, Equal, RunRecord, RunSummary, compare_page, loss_curves, plot};
use crate::units;
use anyhow::Result;
use std::path::PathBuf;

/// Lines of the plot.
const HEIGHT: usize = 18;
/// More could not be told apart, and would not stand beside each other.
const MOST: usize = 8;

#[derive(clap::Args)]
pub struct Args {
    /// The runs: their folders, or their names in the folder of runs
    #[arg(value_name = "RUN", num_args = 2.., required = true, add = complete::runs())]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    folder: Folder,
    /// Also write a page with their curves over one another
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> Result<()> {
    if args.runs.len() > MOST {
        let text = format!("compare takes at most {MOST} runs, got {}; leave some out", args.runs.len());
        return Err(Error::Invalid(text).into());
    }
    let runs = args.runs.iter().map(|name| args.folder.read(name)).collect::<Result<Vec<RunRecord>>>()?;
    if let Some(path) = &args.html {
        write_page(path, &compare_page(&runs))?;
    }
    let comparison = Comparison::new(&runs);
    if args.json {
        return Ok(output::line(serde_json::to_value(&comparison)?)?);
    }
    for (i, run) in comparison.runs.iter().enumerate() {
        output::line(format_args!("{}  {}", letter(i), run.name))?;
    }
    for note in runs.iter().flat_map(|run| run.notes.iter().map(move |note| format!("{}: {note}", run.name))) {
        output::note(format_args!("note: {note}"));
    }
    output::line("")?;
    output::line(output::table(&rows(&comparison), |column| column > 0))?;
    if !comparison.same_data {
        let text = "the runs have different texts or tokenizers: their losses cannot be compared";
        output::line(format_args!("\n{text}"))?;
    }
    let curve = |run: &RunRecord| {
        let [train, validation] = loss_curves(run);
        let what = if validation.len() > 1 { "validation loss" } else { "training loss, smoothed" };
        let points = if validation.len() > 1 { validation } else { train };
        Curve { name: format!("{}: {what} over steps", run.name), points }
    };
    let curves: Vec<Curve> = runs.iter().map(curve).collect();
    let colours = output::has_colours(&std::io::stdout());
    output::line(format_args!("\n{}", plot(&curves, output::width().min(100), HEIGHT, colours)))?;
    if let Some(path) = &args.html {
        output::line(format_args!("page  {}", path.display()))?;
    }
    Ok(())
}

fn letter(run: usize) -> char {
    char::from(b'A' + run as u8)
}

fn rows(comparison: &Comparison) -> Vec<Vec<String>> {
    let runs = &comparison.runs;
    let head = std::iter::once(String::new()).chain((0..runs.len()).map(|i| letter(i).to_string()));
    let row = |name: &str, show: &dyn Fn(&RunSummary) -> String| {
        std::iter::once(name.to_string()).chain(runs.iter().map(show)).collect::<Vec<_>>()
    };
    let four = units::loss;
    let mut rows = vec![
        head.collect(),
        row("state", &|s| s.state.to_string()),
        row("best validation loss", &|s| or_dash(s.best.as_ref(), |best| four(best.loss))),
        row("  at step", &|s| or_dash(s.best.as_ref(), |best| best.step.to_string())),
        row("last training loss", &|s| or_dash(s.train_loss, four)),
        row("steps", &|s| s.steps.to_string()),
        row("tokens", &|s| or_dash(s.tokens, units::count)),
        row("tokens/s", &|s| or_dash(s.tokens_per_s, units::count)),
        row("training time", &|s| or_dash(s.training_seconds, units::duration)),
        row("parameters", &parameters),
    ];
    rows.push(Vec::new());
    for equal in &comparison.equal {
        let losses = equal.losses.iter().map(|loss| or_dash(*loss, four));
        rows.push(std::iter::once(where_equal(equal)).chain(losses).collect());
    }
    rows.push(Vec::new());
    for difference in &comparison.config {
        let values = difference.values.iter().map(|value| or_dash(value.clone(), |value| value));
        rows.push(std::iter::once(difference.key.clone()).chain(values).collect());
    }
    rows
}

/// "validation loss at step 250"
fn where_equal(equal: &Equal) -> String {
    let loss = if equal.loss == "train" { "smoothed training" } else { equal.loss };
    match equal.axis {
        "step" => format!("{loss} loss at step {:.0}", equal.at),
        "tokens" => format!("{loss} loss at {} tokens", units::count(equal.at)),
        _ => format!("{loss} loss after {} of training", units::duration(equal.at)),
    }
}
