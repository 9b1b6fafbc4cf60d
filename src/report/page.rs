//! HTML pages of runs: one offline file each.

use super::compare::Comparison;
use super::record::{RunRecord, Sample};
use super::series::Curves;
use super::summary::RunSummary;
use serde_json::{Value, json};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const CHARTS: &str = include_str!("charts.js");
const RUN: &str = include_str!("run.js");
const COMPARE: &str = include_str!("compare.js");

/// Samples of a run that its page shows.
const SAMPLES: usize = 100;
/// Characters of a sample that its page shows.
const SAMPLE_LENGTH: usize = 4000;

/// `report.html` of one run.
pub fn run_page(run: &RunRecord) -> String {
    let mut data = run_json(run);
    data["start"] = run.start.clone();
    data["profile"] = run.profile.clone();
    data["profile_text"] = run.profile_text.clone().filter(|_| run.profile.is_null()).into();
    data["config"] = run.config_text.clone().into();
    data["notes"] = run.notes.clone().into();
    data["samples"] = some_of(&run.samples).into();
    data["samples_of"] = run.samples.len().into();
    data["last_sample"] = run.last_sample.as_deref().map(cut).into();
    fill(&run.name, RUN, &data)
}

/// A page with the overlaid curves of several runs.
pub fn compare_page(runs: &[RunRecord]) -> String {
    let comparison = Comparison::new(runs);
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let data = json!({
        "runs": runs.iter().map(run_json).collect::<Vec<_>>(),
        "config": comparison.config, "equal": comparison.equal, "same_data": comparison.same_data,
    });
    fill(&names.join(", "), COMPARE, &data)
}

/// The data of a run in both pages.
fn run_json(run: &RunRecord) -> Value {
    let Curves { train, validation, learning_rate, grad_norm, tokens_per_s, reward_margin } = Curves::of(run);
    let tokens = Some(run.tokens_per_step()).filter(|tokens| tokens.is_finite());
    let rollbacks = run.metrics.rollbacks.iter();
    let rollbacks = rollbacks.map(|r| json!({ "from_step": r.from_step, "step": r.step, "cause": r.cause }));
    json!({
        "summary": RunSummary::new(run),
        "tokens_per_step": tokens,
        "series": {
            "train": train.json(), "smoothed": train.smoothed().json(), "validation": validation.json(),
            "learning_rate": learning_rate.json(), "grad_norm": grad_norm.json(), "tokens_per_s": tokens_per_s.json(),
            "reward_margin": reward_margin.json(),
        },
        "rollbacks": rollbacks.collect::<Vec<_>>(),
    })
}

/// At most as many samples as a page shows, evenly spread, with the first and the last.
fn some_of(samples: &[Sample]) -> Vec<Value> {
    let shown = samples.len().min(SAMPLES);
    let index = |i: usize| if shown > 1 { i * (samples.len() - 1) / (shown - 1) } else { 0 };
    let shown = (0..shown).map(|i| &samples[index(i)]);
    shown.map(|sample| json!({ "step": sample.step, "text": cut(&sample.text) })).collect()
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SAMPLE_LENGTH) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_string(),
    }
}

/// Fills the placeholders of `page.html`. Inserted text is not searched for placeholders.
fn fill(title: &str, script: &str, data: &Value) -> String {
    let mut page = String::new();
    for part in PAGE.split("{{") {
        let Some((place, rest)) = part.split_once("}}") else {
            page.push_str(part);
            continue;
        };
        match place {
            "title" => page.push_str(&escape_html(title)),
            "style" => page.push_str(STYLE),
            "data" => page.push_str(&escape_json(data)),
            "charts" => page.push_str(CHARTS),
            "script" => page.push_str(script),
            unknown => unreachable!("page.html has no place for {unknown}"),
        }
        page.push_str(rest);
    }
    page
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// JSON escaped for a `<script>` element: it cannot end the element, start a comment, or end a line of JavaScript.
fn escape_json(data: &Value) -> String {
    let mut text = data.to_string();
    for c in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        text = text.replace(c, &format!("\\u{:04x}", u32::from(c)));
    }
    text
}
