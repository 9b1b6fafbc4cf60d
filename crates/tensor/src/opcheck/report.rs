//! Results of the checks of an op.

use crate::{Error, Result};
use std::fmt;

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// "set 0: gpu:0 agrees with the CPU".
    pub what: String,
    /// The failure; `None` if it passed.
    pub problem: Option<String>,
}

/// The result of [`check`](super::check).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub op: &'static str,
    pub checks: Vec<Check>,
    /// The tested GPUs; without any, only the CPU and the translations were tested.
    pub gpus: Vec<String>,
}

impl Report {
    /// The failed checks.
    pub fn problems(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.problem.is_some())
    }

    /// The report, if all checks passed.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem.
    pub fn into_result(self) -> Result<Report> {
        if self.problems().next().is_none() { Ok(self) } else { Err(Error::Invalid(self.to_string())) }
    }

    pub(super) fn add(&mut self, what: String, problem: Option<String>) {
        self.checks.push(Check { what, problem });
    }
}

impl fmt::Display for Report {
    /// A line for each problem after one that counts.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let devices = [String::from("cpu")].into_iter().chain(self.gpus.iter().cloned()).collect::<Vec<_>>().join(", ");
        let (checks, problems) = (self.checks.len(), self.problems().count());
        write!(f, "op {}: {checks} checks on {devices}, {problems} problems", self.op)?;
        for Check { what, problem } in &self.checks {
            if let Some(problem) = problem {
                write!(f, "\n  {what}: {problem}")?;
            }
        }
        Ok(())
    }
}
