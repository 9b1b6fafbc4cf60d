//! GGUF files (version 3) for llama.cpp: one file with the shape, the tokenizer and the tensors.
//!
//! A file is a header, then tensors, each at a multiple of `ALIGNMENT`. All numbers are little-endian.
//! ```text
//! "GGUF"  version u32  tensors u64  values u64
//! of each value:   key, type u32, value
//! of each tensor:  name, dimensions u32, sizes u64 (the length of a row first), type u32, offset u64
//! ```
//! A text is its length as u64, then UTF-8. Each family maps its metadata keys and tensor names ([`Mapping`]).

mod gpt2;
mod llama;
mod quantize;
mod reader;
mod shape;
mod stored;
mod unpack;
mod value;
mod writer;

#[cfg(test)]
mod tests;

pub(super) use gpt2::Gpt2Mapping;
pub(super) use llama::LlamaMapping;
pub use quantize::GgmlType;
pub use reader::GgufFile;
pub use shape::read_shape;
pub use stored::open;
pub use unpack::{described, is_gguf, unpacked, weights_of};
pub use value::Value;
pub use writer::{Export, Written, write};

use super::{LanguageModel, ModelConfig};
use crate::{Device, Error, Result, Shape};
use std::sync::Arc;

const MAGIC: &[u8] = b"GGUF";
const VERSION: u32 = 3;
/// Of the tensors in a file that does not say otherwise.
const ALIGNMENT: usize = 32;

/// How llama.cpp names and lays out the models of a family.
pub trait Mapping {
    /// The architecture that computes what a model of this shape does.
    ///
    /// # Errors
    /// If llama.cpp has none: why.
    fn architecture(&self, config: &ModelConfig) -> std::result::Result<&'static str, String>;

    /// The shape: keys without the architecture that stands before each, and values.
    fn metadata(&self, config: &ModelConfig) -> Vec<(&'static str, Value)>;

    /// GGUF name and layout of Hugging Face's tensor `name`.
    fn tensor(&self, config: &ModelConfig, name: &str) -> Option<(String, Layout)>;

    /// Vectors that follow from the shape and are tensors there.
    fn constants(&self, config: &ModelConfig) -> Vec<(&'static str, Vec<f32>)>;
}

/// How a tensor lies in the file, beside how Hugging Face has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Same,
    /// (inputs, outputs) there, (outputs, inputs) here.
    Transposed,
    /// Of each of `heads` heads, row i of the first half and row i of the second stand side by side: llama.cpp rotates
    /// neighbours where Hugging Face rotates halves.
    Interleaved {
        heads: usize,
    },
}

impl Layout {
    /// The shape in the file of a tensor of this shape.
    fn shape(self, shape: &Shape) -> Vec<usize> {
        match (self, &shape[..]) {
            (Layout::Transposed, [inputs, outputs]) => vec![*outputs, *inputs],
            (_, shape) => shape.to_vec(),
        }
    }

    /// The numbers as they lie in the file; `shape` is that of Hugging Face's tensor.
    fn apply(self, values: Vec<f32>, shape: &Shape) -> Vec<f32> {
        match (self, &shape[..]) {
            (Layout::Same, _) => values,
            (Layout::Transposed, shape) => transpose(&values, shape[1]),
            (Layout::Interleaved { heads }, shape) => {
                in_other_order(&values, shape[0], |row| interleaved(row, shape[0] / heads))
            }
        }
    }
}

/// A matrix with rows of this length, its columns as rows.
fn transpose(values: &[f32], row: usize) -> Vec<f32> {
    (0..row).flat_map(|column| values[column..].iter().step_by(row).copied()).collect()
}

/// The same rows, row i from place `from(i)`.
fn in_other_order(values: &[f32], rows: usize, from: impl Fn(usize) -> usize) -> Vec<f32> {
    let length = values.len() / rows;
    (0..rows).flat_map(|row| values[from(row) * length..][..length].iter().copied()).collect()
}

/// From which row of a head of so many the file's row comes.
fn interleaved(row: usize, head: usize) -> usize {
    let (start, at) = (row / head * head, row % head);
    start + at % 2 * (head / 2) + at / 2
}

/// The opposite of [`interleaved`]: in which row of the file a row lies.
fn row_in_file(row: usize, head: usize) -> usize {
    let (start, at) = (row / head * head, row % head);
    start + at % (head / 2) * 2 + at / (head / 2)
}

/// How llama.cpp has models of this family.
///
/// # Errors
/// If it has none of this family, or none that computes what one of this shape does.
pub fn architecture(config: &ModelConfig) -> Result<&'static str> {
    Ok(mapping(config)?.1)
}

fn mapping(config: &ModelConfig) -> Result<(&'static dyn Mapping, &'static str)> {
    let kind = config.kind.as_str();
    let mapping = config.kind.gguf();
    let mapping = mapping.ok_or_else(|| Error::Invalid(format!("llama.cpp has no architecture for a {kind}")))?;
    let architecture = mapping.architecture(config).map_err(|why| {
        Error::Invalid(format!("llama.cpp computes no such {kind}: {why}; --format safetensors can hold it"))
    })?;
    Ok((mapping, architecture))
}

/// Loads what [`write()`] wrote of a model of this shape, on the CPU.
///
/// # Errors
/// If the file is damaged, or does not hold exactly such a model.
pub fn load(file: &Arc<GgufFile>, config: &ModelConfig) -> Result<Box<dyn LanguageModel>> {
    let (mapping, architecture) = mapping(config)?;
    let damaged = |message: String| Error::Checkpoint { path: file.path().to_path_buf(), message };
    if file.value("general.architecture") != Some(&Value::Text(architecture.into())) {
        let its = file.value("general.architecture");
        return Err(damaged(format!("general.architecture is {its:?}; expected {architecture}")));
    }
    for (key, value) in mapping.metadata(config) {
        let key = format!("{architecture}.{key}");
        if file.value(&key) != Some(&value) {
            return Err(damaged(format!("{key} is {:?}; expected {value:?}", file.value(&key))));
        }
    }
    let mut model = open(file, config, usize::MAX)?;
    model.to_device(&Device::Cpu)?;
    Ok(model)
}

/// The name and layout of a tensor that the model has.
fn named(mapping: &dyn Mapping, config: &ModelConfig, name: &str) -> (String, Layout) {
    mapping.tensor(config, name).unwrap_or_else(|| unreachable!("{name} has a name in GGUF"))
}
