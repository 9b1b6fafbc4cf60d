//! Files of safetensors.

use crate::errors::OrRaise;
use crate::tensor::PyTensor;
use pyo3::prelude::*;
use rustyflow::nn::StateDict;
use rustyflow::{Device, Tensor};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[pyfunction]
fn _save_file(py: Python, state: BTreeMap<String, Py<PyTensor>>, path: PathBuf) -> PyResult<()> {
    let tensors: BTreeMap<String, Tensor> = state.iter().map(|(name, t)| (name.clone(), t.get().get())).collect();
    py.detach(|| {
        let on_cpu = tensors.into_iter().map(|(name, t)| Ok((name, t.detach().to_device(&Device::Cpu)?)));
        StateDict { tensors: on_cpu.collect::<rustyflow::Result<_>>()? }.save(&path)
    })
    .or_raise()
}

#[pyfunction]
fn _load_file(py: Python, path: PathBuf) -> PyResult<BTreeMap<String, PyTensor>> {
    let state = py.detach(|| StateDict::load(&path)).or_raise()?;
    Ok(state.tensors.into_iter().map(|(name, tensor)| (name, PyTensor::new(tensor))).collect())
}

pub fn add_to(m: &Bound<PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(_save_file, m)?)?;
    m.add_function(wrap_pyfunction!(_load_file, m)?)
}
