//! Optimizers: the parameters of a Python program in the library's arenas.

use crate::errors::OrRaise;
use crate::tensor::{PyTensor, compute};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rustyflow::nn::{LinearLayout, Module, Parameter};
use rustyflow::optim::{AdjustLr, Group, Kind, Optimizer, ParameterArena};
use rustyflow::{DType, Error};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The parameters of a program as the library's optimizers take them.
struct Parameters(Vec<(String, Parameter)>);

impl Module for Parameters {
    fn visit_parameters(&mut self, _: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        for (name, parameter) in &mut self.0 {
            visit(name, parameter);
        }
    }
}

struct State {
    arena: ParameterArena,
    optimizer: Optimizer,
}

/// What `rustyflow.optim` is made of: moments and updates of parameters that lie in one buffer from here on.
#[pyclass(frozen, name = "_Optimizer", module = "rustyflow._rustyflow")]
pub struct PyOptimizer {
    state: Mutex<State>,
    /// What was optimized, and the number of the exchange that gave it its place in the arena.
    parameters: Vec<(Py<PyTensor>, u64)>,
}

/// A group as Python writes it: the rule, its numbers, how its learning rate is scaled, and its weight decay.
type GivenGroup = (String, HashMap<String, f64>, f64, f64);

/// The rule of this name.
fn kind(name: &str, settings: &HashMap<String, f64>) -> PyResult<Kind> {
    let number = |key: &str| {
        let missing = || PyValueError::new_err(format!("{name}: {key} is missing"));
        settings.get(key).copied().ok_or_else(missing)
    };
    Ok(match name {
        "adamw" => Kind::AdamW { beta1: number("beta1")?, beta2: number("beta2")?, eps: number("eps")? },
        "adam" => Kind::Adam { beta1: number("beta1")?, beta2: number("beta2")?, eps: number("eps")? },
        "sgd" => Kind::Sgd { momentum: number("momentum")?, nesterov: number("nesterov")? != 0.0 },
        "rmsprop" => Kind::RmsProp {
            alpha: number("alpha")?,
            eps: number("eps")?,
            momentum: number("momentum")?,
            centered: number("centered")? != 0.0,
        },
        "lion" => Kind::Lion { beta1: number("beta1")?, beta2: number("beta2")? },
        "muon" => Kind::Muon {
            momentum: number("momentum")?,
            nesterov: number("nesterov")? != 0.0,
            ns_steps: number("ns_steps")? as usize,
            adjust_lr: if number("match_rms_adamw")? != 0.0 { AdjustLr::MatchRmsAdamW } else { AdjustLr::Original },
        },
        _ => return Err(PyValueError::new_err(format!("{name:?} is no optimizer"))),
    })
}

#[pymethods]
impl PyOptimizer {
    /// Of (parameter, number of its group), each a leaf that requires a gradient, all on one device.
    #[new]
    #[pyo3(signature = (parameters, groups, max_norm = 0.0))]
    fn new(
        py: Python,
        parameters: Vec<(Py<PyTensor>, usize)>,
        groups: Vec<GivenGroup>,
        max_norm: f64,
    ) -> PyResult<PyOptimizer> {
        let mut kinds = Vec::new();
        for (name, settings, lr_scale, weight_decay) in &groups {
            let kind = kind(name, settings)?;
            kinds.push(Group { kind, lr_scale: *lr_scale, weight_decay: *weight_decay, decays_vectors: true });
        }
        let mut taken = Vec::new();
        for (number, (parameter, group)) in parameters.iter().enumerate() {
            let tensor = parameter.get().get();
            if tensor.grad().is_none() {
                let message = format!("parameter {number}, {}, is no leaf that requires a gradient", tensor.spec());
                return Err(PyValueError::new_err(message));
            }
            if parameters[..number].iter().any(|(other, _)| other.is(parameter)) {
                return Err(PyValueError::new_err(format!("parameter {number} is given twice")));
            }
            let Some(group) = kinds.get(*group) else {
                return Err(PyValueError::new_err(format!(
                    "parameter {number} is of group {group}, which is not there"
                )));
            };
            let mut taken_as = Parameter::from(tensor.clone());
            if let (Kind::Muon { .. }, &[outputs, _]) = (group.kind, &tensor.shape()[..]) {
                taken_as.linear = Some(LinearLayout { outputs_first: true, outputs: vec![outputs] });
            }
            taken.push((number.to_string(), taken_as));
        }
        let Some((_, first)) = taken.first() else {
            return Err(PyValueError::new_err("an optimizer needs at least one parameter"));
        };
        let device = first.device();
        let group_of: Vec<usize> = parameters.iter().map(|(_, group)| *group).collect();
        let (state, values) = py
            .detach(|| {
                let of_name = |name: &str, _: &Parameter| name.parse().map_or(0, |number: usize| group_of[number]);
                if let Some((_, other)) = taken.iter().find(|(_, other)| !other.device().same(&device)) {
                    let (left, right) = (device.to_string(), other.device().to_string());
                    return Err(Error::DeviceMismatch { op: "optimizer", left, right });
                }
                let mut module = Parameters(taken);
                let arena = ParameterArena::grouped(&mut module, &device, DType::F32, &of_name)?;
                let optimizer = Optimizer::with_groups(&arena, &|group| kinds[group], max_norm)?;
                Ok((State { arena, optimizer }, module.0))
            })
            .or_raise()?;
        let exchange = |((object, _), (_, value)): ((Py<PyTensor>, usize), (String, Parameter))| {
            let version = object.get().put(value.value);
            (object, version)
        };
        let parameters = parameters.into_iter().zip(values).map(exchange).collect();
        Ok(PyOptimizer { state: Mutex::new(state), parameters })
    }

    /// Updates all parameters from their gradients; returns the sum of the squared gradients, (1).
    fn step(&self, py: Python, lr: f64) -> PyResult<PyTensor> {
        let moved = |(object, version): &&(Py<PyTensor>, u64)| object.get().version() != *version;
        if let Some((object, _)) = self.parameters.iter().find(moved) {
            let spec = object.get().get().spec().to_string();
            let message = format!("a parameter, {spec}, was moved or given to another optimizer; make this one anew");
            return Err(PyRuntimeError::new_err(message));
        }
        compute(py, || {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let State { arena, optimizer } = &mut *state;
            let squares = optimizer.step(arena, lr)?;
            arena.gradients().device().end_step()?;
            Ok(squares)
        })
    }

    /// Sets all gradients to zero.
    fn zero_grad(&self, py: Python) {
        py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).arena.zero_gradients());
    }
}
