//! Comparison of runs.

use super::record::RunRecord;
use super::series::{Curves, Series, interpolate};
use super::summary::RunSummary;
use serde::Serialize;
use serde_json::Value;

/// Losses of runs at the same point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Equal {
    /// "train" (smoothed) or "validation" (interpolated between evaluations).
    pub loss: &'static str,
    /// "step", "tokens" or "seconds".
    pub axis: &'static str,
    /// The last point that all runs have reached.
    pub at: f64,
    pub losses: Vec<Option<f64>>,
}

/// A key that differs between runs, with its value in each; `None` if a run lacks the key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    pub key: String,
    pub values: Vec<Option<String>>,
}

/// Comparison of runs.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    pub runs: Vec<RunSummary>,
    pub config: Vec<Difference>,
    pub equal: Vec<Equal>,
    /// Whether all runs use the same text and tokenizer: only then are their losses comparable.
    pub same_data: bool,
}

impl Comparison {
    pub fn new(runs: &[RunRecord]) -> Comparison {
        let curves: Vec<Curves> = runs.iter().map(Curves::of).collect();
        let train: Vec<Series> = curves.iter().map(|curves| curves.train.smoothed()).collect();
        let validation: Vec<&Series> = curves.iter().map(|curves| &curves.validation).collect();
        let tokens: Vec<f64> = runs.iter().map(RunRecord::tokens_per_step).collect();
        let mut equal = Vec::new();
        for axis in ["step", "tokens", "seconds"] {
            equal.extend(at_equal("train", axis, &train.iter().collect::<Vec<_>>(), &tokens));
            equal.extend(at_equal("validation", axis, &validation, &tokens));
        }
        Comparison {
            runs: runs.iter().map(RunSummary::new).collect(),
            config: differences(runs),
            equal,
            same_data: same_data(runs),
        }
    }
}

/// `None` if a run has no such loss, or does not say how far it has come.
fn at_equal(loss: &'static str, axis: &'static str, series: &[&Series], tokens: &[f64]) -> Option<Equal> {
    let along = |(series, tokens): (&&Series, &f64)| -> Vec<f64> {
        match axis {
            "step" => series.steps.clone(),
            "tokens" => series.steps.iter().map(|step| step * tokens).collect(),
            _ => series.seconds.clone(),
        }
    };
    let along: Vec<Vec<f64>> = series.iter().zip(tokens).map(along).collect();
    let at = along.iter().map(|x| x.last().copied().unwrap_or(f64::NAN)).reduce(|a, b| if a <= b { a } else { b })?;
    if along.iter().any(|x| x.last().is_none_or(|last| !(last.is_finite() && *last >= at))) {
        return None;
    }
    let losses = along.iter().zip(series).map(|(x, series)| interpolate(x, &series.values, at)).collect();
    Some(Equal { loss, axis, at, losses })
}

/// Missing values count as equal.
fn same_data(runs: &[RunRecord]) -> bool {
    let of_start = |run: &RunRecord, key: &str| run.start.pointer(&format!("/start/{key}")).cloned();
    let of_config = |run: &RunRecord, key: &str| run.config.get("data")?.get(key)?.as_str().map(Value::from);
    let is_same = |value: &dyn Fn(&RunRecord) -> Option<Value>| {
        let mut known = runs.iter().filter_map(value).filter(|value| !value.is_null());
        known.next().is_none_or(|first| known.all(|other| other == first))
    };
    let recorded = ["text/bytes", "text/documents", "text/held_out", "validation_tokens", "model/vocab_size"];
    recorded.iter().all(|key| is_same(&|run| of_start(run, key)))
        && ["corpus", "tokenizer"].iter().all(|key| is_same(&|run| of_config(run, key)))
}

/// Keys that are not the same in all runs, in the order of the first run that has them.
fn differences(runs: &[RunRecord]) -> Vec<Difference> {
    // Every run has its own.
    const NAME: &str = "run.name";
    let configs: Vec<Vec<(String, String)>> = runs.iter().map(|run| run.config_values().collect()).collect();
    let mut found: Vec<Difference> = Vec::new();
    for (key, _) in configs.iter().flatten() {
        if key == NAME || found.iter().any(|known| known.key == *key) {
            continue;
        }
        let value = |config: &Vec<(String, String)>| config.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        found.push(Difference { key: key.clone(), values: configs.iter().map(value).collect() });
    }
    found.retain(|known| known.values.iter().any(|value| *value != known.values[0]));
    // What nobody set follows from what differs.
    found.retain(|known| !runs.iter().all(|run| run.is_default(&known.key)));
    found
}
