//! The extension module `rustyflow._rustyflow`: rustyflow's tensors, layers' ops, optimizers and runs for Python.
//! What reads better in Python (modules, schedulers, losses) is beside it, in `rustyflow/*.py`.
//!
//! Every call that computes releases the GIL. A call takes handles under the GIL, which share memory, and computes with
//! them after: objects are never borrowed while another thread runs.

mod arguments;
mod bench;
mod convert;
mod create;
mod device;
mod errors;
mod files;
mod index;
mod layers;
mod losses;
mod model;
mod movement;
mod operators;
mod ops;
mod optimizer;
mod profile;
mod random;
mod schedule;
mod tensor;
mod train;

use pyo3::prelude::*;

/// What `rustyflow/__init__.py` and its neighbours hand on.
#[pymodule(name = "_rustyflow")]
fn rustyflow_module(m: &Bound<PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<tensor::PyTensor>()?;
    m.add_class::<optimizer::PyOptimizer>()?;
    m.add_class::<schedule::PyLearningRate>()?;
    m.add_class::<profile::Profile>()?;
    create::add_to(m)?;
    device::add_to(m)?;
    random::add_to(m)?;
    ops::add_to(m)?;
    layers::add_to(m)?;
    losses::add_to(m)?;
    files::add_to(m)?;
    model::add_to(m)?;
    train::add_to(m)?;
    bench::add_to(m)
}
