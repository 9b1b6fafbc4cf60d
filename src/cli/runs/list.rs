//! `rustyflow runs list`.

use super::{Folder, or_dash, parameters, read};
use crate::cli::named::runs_in;
use crate::cli::output;
use crate::report::RunSummary;
use crate::units;
use anyhow::Result;
use jiff::tz::TimeZone;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    folder: Folder,
    /// Print one JSON object a run instead
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let dir = args.folder.path()?;
    let mut runs = Vec::new();
    for folder in runs_in(&dir) {
        match read(&folder) {
            Ok(run) => runs.push(RunSummary::new(&run)),
            Err(error) => output::note(format_args!("warning: {error}")),
        }
    }
    runs.sort_by(|a, b| b.began.cmp(&a.began).then_with(|| a.name.cmp(&b.name)));
    if args.json {
        for run in &runs {
            output::line(serde_json::to_value(run)?)?;
        }
        return Ok(());
    }
    if runs.is_empty() {
        let what = if dir.exists() { "holds no runs" } else { "is not there" };
        output::line(format_args!("{} {what}; `rustyflow train` trains one", dir.display()))?;
        return Ok(());
    }
    Ok(output::line(table(&runs, output::width()))?)
}

/// As wide as the terminal: what is left for names and devices follows from the other columns.
fn table(runs: &[RunSummary], width: usize) -> String {
    const NAME: usize = 0;
    const DEVICE: usize = 7;
    let head = ["run", "began", "state", "steps", "val loss", "tokens/s", "params", "device"];
    let mut rows: Vec<Vec<String>> =
        std::iter::once(head.map(str::to_string).to_vec()).chain(runs.iter().map(row)).collect();
    let widest =
        |rows: &[Vec<String>], column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let gaps = 2 * (head.len() - 1);
    let others: usize = (NAME + 1..DEVICE).map(|column| widest(&rows, column)).sum();
    let left = width.saturating_sub(others + gaps);
    // Of a device that has no room its first word, such as gpu:0, says enough.
    if left < widest(&rows, NAME) + widest(&rows, DEVICE) {
        rows.iter_mut().for_each(|row| row[DEVICE] = row[DEVICE].split(' ').next().unwrap_or_default().into());
    }
    let name = left.saturating_sub(widest(&rows, DEVICE)).max(12);
    rows.iter_mut().for_each(|row| row[NAME] = cut(&row[NAME], name));
    output::table(&rows, |column| (3..DEVICE).contains(&column))
}

fn row(run: &RunSummary) -> Vec<String> {
    let steps = match run.total_steps {
        Some(total) if total != run.steps => format!("{}/{total}", run.steps),
        _ => run.steps.to_string(),
    };
    let began = |time: jiff::Timestamp| time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string();
    vec![
        run.name.clone(),
        or_dash(run.began, began),
        run.state.to_string(),
        steps,
        or_dash(run.best.as_ref(), |best| units::loss(best.loss)),
        or_dash(run.tokens_per_s, units::count),
        parameters(run),
        or_dash(run.device.clone(), |device| device),
    ]
}

/// At most so many characters; what is too long loses its middle, for runs of a kind differ at their ends.
fn cut(text: &str, width: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= width {
        return text.into();
    }
    let (head, tail) = (width / 2, width - width / 2 - 1);
    chars[..head].iter().chain(&['…']).chain(&chars[chars.len() - tail..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_loses_its_middle() {
        assert_eq!(cut("shakespeare-char-L6-gpu-2", 12), "shakes…gpu-2");
        assert_eq!(cut("short", 12), "short");
    }
}
