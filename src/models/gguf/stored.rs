//! The parameters of a model in a GGUF file, which are read when they are moved to a device.

use super::shape::close;
use super::{GgufFile, Layout, mapping, named, row_in_file, transpose};
use crate::models::joined::read_joined;
use crate::models::{LanguageModel, ModelConfig, build};
use crate::tensor::{DryRun, Source, with_weights_on};
use crate::{Device, Error, Result, Shape, Tensor};
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

/// A parameter: the rows of one tensor or several, one after the other.
struct StoredParameter {
    file: Arc<GgufFile>,
    parts: Vec<Part>,
}

struct Part {
    name: String,
    layout: Layout,
    /// As Hugging Face has it.
    shape: Shape,
    /// Of a transposed tensor all numbers, once one was read.
    transposed: OnceLock<Vec<f32>>,
}

impl Source for StoredParameter {
    fn read(&self, first: usize, out: &mut [f32]) {
        let read = |part: &Part, first, out: &mut [f32]| part.read(&self.file, first, out);
        read_joined(&self.parts, |part| part.shape.elements(), first, out, read);
    }
}

impl Part {
    fn read(&self, file: &GgufFile, first: usize, out: &mut [f32]) {
        match self.layout {
            Layout::Same => file.read(&self.name, first, out),
            Layout::Transposed => {
                let all = || transpose(&file.tensor(&self.name).unwrap_or_default(), self.shape[0]);
                out.copy_from_slice(&self.transposed.get_or_init(all)[first..first + out.len()]);
            }
            Layout::Interleaved { heads } => {
                let (length, head) = (self.shape.elements() / self.shape[0], self.shape[0] / heads);
                let (mut first, mut out) = (first, out);
                while !out.is_empty() {
                    let (row, at) = (first / length, first % length);
                    let (now, rest) = out.split_at_mut(out.len().min(length - at));
                    file.read(&self.name, row_in_file(row, head) * length + at, now);
                    (first, out) = (first + now.len(), rest);
                }
            }
        }
    }
}

/// A model of this shape, whose parameters are in the file. Its context is at most `block_size` tokens: of more learned
/// positions the first are kept.
///
/// # Errors
/// If the file does not hold exactly such a model.
pub fn open(file: &Arc<GgufFile>, config: &ModelConfig, block_size: usize) -> Result<Box<dyn LanguageModel>> {
    let (mapping, _) = mapping(config)?;
    let damaged = |message: String| Error::Checkpoint { path: file.path().to_path_buf(), message };
    // Of a number at least four bits are stored.
    if config.parameter_count() / 2 > file.size_bytes() {
        return Err(damaged(format!("is too short for {} parameters", config.parameter_count())));
    }
    let is_constant = |name: &str| mapping.constants(config).iter().any(|(constant, _)| *constant == name);
    for (name, values) in mapping.constants(config) {
        check_shape(file, name, &[values.len()])?;
        if !file.tensor(name).is_some_and(|its| close(&its, &values)) {
            return Err(damaged(format!("{name} has other values than its shape implies")));
        }
    }
    let positions = config.kind.hf().positions().filter(|_| block_size < config.block_size);
    let config = ModelConfig { block_size: config.block_size.min(block_size), ..config.clone() };
    let model = with_weights_on(Device::DryRun(DryRun::cpu()), || build(&config, 0));
    let mut model = model.map_err(|e| damaged(format!("invalid metadata: {e}")))?;
    let (hf, mut used, mut result) = (config.kind.hf(), HashSet::new(), Ok(()));
    model.visit_parameters("", &mut |name, parameter| {
        let mut stored = || {
            let mut parts = Vec::new();
            for (name, shape) in hf.tensors(&config, name, parameter.shape()) {
                let ((own, layout), short) = (named(mapping, &config, &name), name.strip_prefix(hf.prefix()));
                let is_cropped = positions.is_some() && positions == short;
                let rows = file.spec(&own).filter(|(_, its)| is_cropped && its[0] > shape[0]);
                let expected = match rows {
                    Some((_, its)) => Shape::from([its[0], shape[1]]),
                    None => shape.clone(),
                };
                check_shape(file, &own, &layout.shape(&expected))?;
                used.insert(own.clone());
                parts.push(Part { name: own, layout, shape, transposed: OnceLock::new() });
            }
            if let Some((name, length)) = hf.zeros_beside(&config, name, parameter.shape()) {
                let (name, _) = hf.tensors(&config, &name, &Shape::from([length])).remove(0);
                let (own, _) = named(mapping, &config, &name);
                if file.tensor(&own).is_some_and(|zeros| zeros.iter().any(|x| *x != 0.0)) {
                    return Err(damaged(format!("{own} is not zero, as the model has no such bias")));
                }
                used.insert(own);
            }
            let source = StoredParameter { file: file.clone(), parts };
            parameter.value = Tensor::unread(Arc::new(source), parameter.shape().clone());
            Ok(())
        };
        if result.is_ok() {
            result = stored();
        }
    });
    result?;
    let kind = config.kind.as_str();
    match file.names().find(|name| !used.contains(*name) && !is_constant(name)) {
        None => Ok(model),
        Some(name) => Err(damaged(format!("has a tensor {name}, which a {kind} of these metadata does not have"))),
    }
}

fn check_shape(file: &GgufFile, name: &str, shape: &[usize]) -> Result<()> {
    let damaged = |message: String| Error::Checkpoint { path: file.path().to_path_buf(), message };
    match file.spec(name) {
        Some((_, its)) if its == shape => Ok(()),
        Some((_, its)) => Err(damaged(format!("{name} has shape {its:?}; expected {shape:?}"))),
        None => Err(damaged(format!("has no tensor {name}"))),
    }
}
