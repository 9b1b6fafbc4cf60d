//! Optimizers: the parameters of a Python program in the library's arenas.

use crate::errors::OrRaise;
use crate::tensor::{PyTensor, compute};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rustyflow::nn::{LinearLayout, Module, Parameter};
use rustyflow::optim::{AdjustLr, Entry, Group, Kind, Moment, Optimizer, ParameterArena};
use rustyflow::step::apply_gradients;
use rustyflow::{DType, Device, Error, Result, Tensor};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// A group as the library takes it.
fn group((name, settings, lr_scale, weight_decay): &GivenGroup) -> PyResult<Group> {
    let group = Group::new(kind(name, settings)?, *weight_decay);
    Ok(Group { lr_scale: *lr_scale, decays_vectors: true, ..group })
}

/// The parameters, each named by its number, with the layout that Muon requires of a matrix.
fn numbered(parameters: &[(Py<PyTensor>, usize)], groups: &[Group]) -> PyResult<Vec<(String, Parameter)>> {
    let mut numbered = Vec::new();
    for (number, (object, group)) in parameters.iter().enumerate() {
        let tensor = object.get().get();
        if tensor.grad().is_none() {
            let spec = tensor.spec();
            let message =
                format!("parameter {number}, {spec}, is no leaf that requires a gradient; leave frozen ones out");
            return Err(PyValueError::new_err(message));
        }
        if parameters[..number].iter().any(|(other, _)| other.is(object)) {
            return Err(PyValueError::new_err(format!("parameter {number} is given twice")));
        }
        let Some(group) = groups.get(*group) else {
            return Err(PyValueError::new_err(format!("parameter {number} is of group {group}, which is not there")));
        };
        let mut parameter = Parameter::from(tensor.clone());
        if let (Kind::Muon { .. }, &[outputs, _]) = (group.kind, &tensor.shape()[..]) {
            parameter.linear = Some(LinearLayout { outputs_first: true, outputs: vec![outputs] });
        }
        numbered.push((number.to_string(), parameter));
    }
    Ok(numbered)
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
        let groups = groups.iter().map(group).collect::<PyResult<Vec<Group>>>()?;
        let named = numbered(&parameters, &groups)?;
        let Some((_, first)) = named.first() else {
            return Err(PyValueError::new_err("an optimizer needs at least one parameter"));
        };
        let device = first.device();
        let group_of: Vec<usize> = parameters.iter().map(|(_, group)| *group).collect();
        let (state, values) = py
            .detach(|| {
                let of_name = |name: &str, _: &Parameter| name.parse().map_or(0, |number: usize| group_of[number]);
                if let Some((_, other)) = named.iter().find(|(_, other)| !other.device().same(&device)) {
                    let (left, right) = (device.to_string(), other.device().to_string());
                    return Err(Error::DeviceMismatch { op: "optimizer", left, right });
                }
                let mut module = Parameters(named);
                let arena = ParameterArena::grouped(&mut module, &device, DType::F32, &of_name)?;
                let optimizer = Optimizer::with_groups(&arena, &|group| groups[group], max_norm)?;
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
            let State { arena, optimizer } = &mut *self.state();
            let squares = apply_gradients(arena, optimizer, lr)?;
            arena.device().end_step()?;
            Ok(squares)
        })
    }

    /// Updates made so far.
    fn updates(&self) -> u64 {
        self.state().optimizer.updates()
    }

    /// What is remembered of each parameter: its number, PyTorch's name of the moment, and a copy on the CPU.
    fn moments(&self, py: Python) -> PyResult<Vec<(usize, &'static str, PyTensor)>> {
        let copied = py.detach(|| -> Result<Vec<_>> {
            let State { arena, optimizer } = &*self.state();
            let mut copies = Vec::new();
            for (moment, tensor) in optimizer.moments() {
                let values = tensor.to_f32()?;
                for (number, entry, range) in entries_of(arena, &moment) {
                    let copy = Tensor::from_f32(&values[range], entry.shape.clone(), &Device::Cpu)?;
                    copies.push((number, moment.name, PyTensor::new(copy)));
                }
            }
            Ok(copies)
        });
        copied.or_raise()
    }

    /// Goes on as after so many updates, with these moments of the same parameters and names as `moments` gives.
    fn restore(&self, py: Python, updates: u64, moments: HashMap<(usize, String), Py<PyTensor>>) -> PyResult<()> {
        let given: HashMap<_, _> = moments.iter().map(|(key, tensor)| (key, tensor.get().get())).collect();
        let restored = py.detach(|| -> Result<()> {
            let State { arena, optimizer } = &mut *self.state();
            let mut written = Vec::new();
            for (moment, tensor) in optimizer.moments() {
                let mut values = vec![0.0; tensor.len()];
                for (number, entry, range) in entries_of(arena, &moment) {
                    let name = format!("{} of parameter {number}", moment.name);
                    let missing = || Error::Invalid(format!("the state of this optimizer has no {name}"));
                    let own = given.get(&(number, moment.name.to_string())).ok_or_else(missing)?;
                    if own.shape() != &entry.shape {
                        let (own, shape) = (own.shape(), &entry.shape);
                        return Err(Error::Invalid(format!("{name} is {own}, and the parameter {shape}")));
                    }
                    values[range].copy_from_slice(&own.to_dtype(DType::F32)?.to_f32()?);
                }
                written.push((tensor, values));
            }
            // Nothing is written unless all of it fits.
            for (tensor, values) in written {
                let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
                tensor.write_bytes(&bytes)?;
            }
            optimizer.set_updates(updates);
            Ok(())
        });
        restored.or_raise()
    }

    /// Sets all gradients to zero.
    fn zero_grad(&self, py: Python) {
        py.detach(|| self.state().arena.zero_gradients());
    }
}

impl PyOptimizer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parameters that a moment is of: their numbers, and where each begins and ends in it.
fn entries_of<'a>(
    arena: &'a ParameterArena,
    moment: &Moment,
) -> impl Iterator<Item = (usize, &'a Entry, Range<usize>)> + use<'a> {
    let all = moment.range.clone();
    arena.entries.iter().filter_map(move |entry| {
        let Range { start, end } = entry.range();
        let number = entry.name.parse().ok()?;
        all.contains(&start).then(|| (number, entry, start - all.start..end - all.start))
    })
}
