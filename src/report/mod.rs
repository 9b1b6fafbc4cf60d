//! What a run was, read from its folder: the plain files that every version writes, whole or not. From that a page to
//! look at it without a network (`report.html`), a plot for the terminal, and runs side by side.
//!
//! Nothing here knows how a run is made. A file that is missing, damaged or of another version is said, and the rest
//! is shown.

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
