//! Learning rates over time, for the schedulers of `rustyflow.optim.lr_scheduler`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustyflow::optim::{LearningRate, Schedule};

/// A learning rate as a function of the step.
#[pyclass(frozen, name = "_LearningRate", module = "rustyflow._rustyflow")]
pub struct PyLearningRate(LearningRate);

#[pymethods]
impl PyLearningRate {
    /// `kind` is "constant", "linear", "cosine", "step", "exponential" or "one_cycle"; each looks at what it needs.
    #[new]
    #[pyo3(signature = (kind, peak, minimum = 0.0, total_steps = 0, warmup_steps = 0, every = 1, factor = 1.0,
        pct_start = 0.3, div_factor = 25.0, final_div_factor = 1e4))]
    #[allow(clippy::too_many_arguments)] // Of all kinds together.
    fn new(
        kind: &str,
        peak: f64,
        minimum: f64,
        total_steps: usize,
        warmup_steps: usize,
        every: usize,
        factor: f64,
        pct_start: f64,
        div_factor: f64,
        final_div_factor: f64,
    ) -> PyResult<PyLearningRate> {
        let schedule = match kind {
            "constant" => Schedule::Constant,
            "linear" => Schedule::Linear,
            "cosine" => Schedule::Cosine,
            "step" => Schedule::Step { every, factor },
            "exponential" => Schedule::Exponential { factor },
            "one_cycle" => Schedule::OneCycle { pct_start, div_factor, final_div_factor },
            _ => return Err(PyValueError::new_err(format!("{kind:?} is no schedule"))),
        };
        Ok(PyLearningRate(LearningRate { schedule, peak, minimum, warmup_steps, total_steps }))
    }

    /// The rate of a step, the first of which is 0.
    fn of_step(&self, step: usize) -> f64 {
        self.0.of_step(step)
    }
}
