//! Runs that are read back: folders of nothing, metrics that are none, pages and plots without points.

use super::data::NOWHERE;
use super::{Defined, HUGE, Refused, Row};
use rustyflow::Result;
use rustyflow::report::{
    Comparison, Curve, Metrics, RunRecord, RunSummary, compare_page, is_run, loss_curves, plot, run_page, thin,
};
use std::path::Path;

/// A run whose files are of anything else.
fn damaged() -> Result<RunRecord> {
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = "{\"step\": 1e300, \"loss\": null}\n{\"step\": -1}\nnot JSON\n\u{0}\n";
    for (name, text) in
        [("config.toml", "[train"), ("metrics.jsonl", metrics), ("run.json", "[1]"), ("profile.json", "")]
    {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
    }
    RunRecord::read(folder.path())
}

pub fn rows() -> Vec<Row> {
    vec![
        ("is_run", Defined, |_| {
            assert!(!is_run(Path::new(NOWHERE)));
            Ok(())
        }),
        ("RunRecord::read", Refused, |_| RunRecord::read(Path::new(NOWHERE)).map(drop)),
        ("RunRecord::read", Defined, |_| damaged().map(drop)),
        ("RunRecord::is_default", Defined, |_| {
            assert!(!damaged()?.is_default(""));
            Ok(())
        }),
        ("RunSummary::new", Defined, |_| {
            RunSummary::new(&damaged()?);
            Ok(())
        }),
        ("Comparison::new", Defined, |_| {
            Comparison::new(&[]);
            Comparison::new(&[damaged()?, damaged()?]);
            Ok(())
        }),
        ("run_page", Defined, |_| {
            run_page(&damaged()?);
            Ok(())
        }),
        ("compare_page", Defined, |_| {
            compare_page(&[]);
            compare_page(&[damaged()?]);
            Ok(())
        }),
        ("loss_curves", Defined, |_| {
            loss_curves(&damaged()?);
            Ok(())
        }),
        ("Metrics::read", Defined, |_| {
            let metrics = Metrics::read(&b"\xff\xfe\n{}\n"[..]).expect("lines that are none are counted");
            assert_eq!(metrics.training_seconds(f64::NAN).len(), metrics.steps.len());
            Ok(())
        }),
        ("Metrics::training_seconds", Defined, |_| {
            damaged()?.metrics.training_seconds(0.0);
            Ok(())
        }),
        ("Metrics::tokens", Defined, |_| {
            damaged()?.metrics.tokens(f64::NAN);
            Ok(())
        }),
        ("Metrics::training_seconds_until", Defined, |_| {
            damaged()?.metrics.training_seconds_until(u64::MAX, 0.0);
            Ok(())
        }),
        ("Metrics::average_speed", Defined, |_| {
            damaged()?.metrics.average_speed(f64::NAN);
            Ok(())
        }),
        ("thin", Defined, |_| {
            assert!(!thin(&[1.0; 20], &[f64::NAN; 20], 0).is_empty());
            assert_eq!(thin(&[1.0], &[], HUGE), [0; 0]);
            Ok(())
        }),
        ("plot", Defined, |_| {
            let points = vec![(f64::NAN, 0.0), (1.0, f64::INFINITY), (f64::MIN, f64::MAX), (f64::MAX, f64::MIN)];
            for size in [0, 1, HUGE] {
                plot(&[Curve { name: String::new(), points: points.clone() }], size, size, false);
            }
            assert!(plot(&[], HUGE, HUGE, true).is_empty());
            Ok(())
        }),
    ]
}
