//! Reads a run's folder: plain files, complete or not. Creates an offline page (`report.html`), a plot for the
//! terminal, and comparisons of runs.
//!
//! This module does not depend on training. Missing or damaged files, and those of another version, are reported, and
//! the rest is shown.

mod compare;
mod metrics;
mod page;
mod plot;
mod record;
mod series;
mod summary;
#[cfg(test)]
mod tests;

pub use compare::{Comparison, Difference, Equal};
pub use metrics::{EvaluationPoint, Metrics, Rollback, StepPoint};
pub use page::{compare_page, run_page};
pub use plot::{Curve, plot};
#[cfg(feature = "cli")]
pub(crate) use record::written;
pub use record::{RunRecord, Sample, State, is_run};
pub use series::{loss_curves, thin};
pub use summary::{Best, RunSummary};
