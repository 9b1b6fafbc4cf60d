//! Writes a model as a GGUF file, tensor by tensor.

use super::quantize::GgmlType;
use super::value::{Value, write_text};
use super::{ALIGNMENT, Layout, MAGIC, VERSION, mapping, named};
use crate::models::{LanguageModel, ModelConfig};
use crate::{Error, Result, Shape};
use std::io::{self, Write};

/// Options and metadata of an export.
pub struct Export {
    /// Type of matrices. Vectors and position embeddings stay f32.
    pub dtype: GgmlType,
    /// Metadata of the tokenizer and the file.
    pub metadata: Vec<(String, Value)>,
    /// A row of the vocabulary of which copies are appended.
    pub copied_row: usize,
    /// Number of copies.
    pub copies: usize,
}

/// Result of an export.
#[derive(Debug, Default)]
pub struct Written {
    /// Matrices stored as f16, because their row length is not a multiple of the quantized block.
    pub unquantized: Vec<String>,
}

/// A tensor of the file.
struct Planned {
    name: String,
    layout: Layout,
    /// As in the file, rows first.
    shape: Vec<usize>,
    dtype: GgmlType,
}

impl Planned {
    fn size_bytes(&self) -> usize {
        self.dtype.size_bytes(self.shape.iter().product())
    }
}

/// Whether a tensor has a row for each token.
fn is_of_vocabulary(name: &str) -> bool {
    name == "token_embd.weight" || name == "output.weight"
}

impl Export {
    /// The shape of the model in the file.
    pub fn config(&self, config: &ModelConfig) -> ModelConfig {
        ModelConfig { vocab_size: config.vocab_size + self.copies, ..config.clone() }
    }

    fn plan(&self, name: String, layout: Layout, shape: &Shape, written: &mut Written) -> Planned {
        let mut shape = layout.shape(shape);
        if is_of_vocabulary(&name) {
            shape[0] += self.copies;
        }
        let is_matrix = shape.len() > 1 && !name.ends_with("_norm.weight") && name != "position_embd.weight";
        let dtype = match self.dtype {
            _ if !is_matrix => GgmlType::F32,
            wanted if !shape[shape.len() - 1].is_multiple_of(wanted.block().0) => {
                written.unquantized.push(name.clone());
                GgmlType::F16
            }
            // The embedding and the head are the most sensitive: llama.cpp's own quantizer gives them more bits too.
            GgmlType::Q4_0 if is_of_vocabulary(&name) => GgmlType::Q8_0,
            wanted => wanted,
        };
        Planned { name, layout, shape, dtype }
    }

    /// The numbers of a tensor as they lie in the file.
    fn values(&self, planned: &Planned, values: Vec<f32>, shape: &Shape) -> Vec<f32> {
        let mut values = planned.layout.apply(values, shape);
        if is_of_vocabulary(&planned.name) {
            let row = shape[1];
            let copied = values[self.copied_row * row..][..row].to_vec();
            (0..self.copies).for_each(|_| values.extend_from_slice(&copied));
        }
        values
    }
}

/// Takes a tensor: its plan, Hugging Face's shape, and its numbers, which are read when they are asked for.
type Take<'a> = &'a mut dyn FnMut(Planned, &Shape, &dyn Fn() -> Result<Vec<f32>>) -> Result<()>;

/// Hands over every tensor that the file holds, in order.
fn each_tensor(model: &mut dyn LanguageModel, export: &Export, written: &mut Written, take: Take) -> Result<()> {
    let config = model.config().clone();
    let (mapping, _) = mapping(&config)?;
    for (name, values) in mapping.constants(&config) {
        let shape = Shape::from([values.len()]);
        take(export.plan(name.into(), Layout::Same, &shape, written), &shape, &|| Ok(values.clone()))?;
    }
    let hf = config.kind.hf();
    let mut result = Ok(());
    model.visit_parameters("", &mut |name, parameter| {
        let mut each = || {
            let mut start = 0;
            for (name, shape) in hf.tensors(&config, name, parameter.shape()) {
                let (name, layout) = named(mapping, &config, &name);
                let end = start + shape.elements();
                take(export.plan(name, layout, &shape, written), &shape, &|| {
                    Ok(parameter.to_f32()?[start..end].to_vec())
                })?;
                start = end;
            }
            if let Some((name, length)) = hf.zeros_beside(&config, name, parameter.shape()) {
                let shape = Shape::from([length]);
                let (name, _) = hf.tensors(&config, &name, &shape).remove(0);
                let (name, layout) = named(mapping, &config, &name);
                take(export.plan(name, layout, &shape, written), &shape, &|| Ok(vec![0.0; length]))?;
            }
            Ok(())
        };
        if result.is_ok() {
            result = each();
        }
    });
    result
}

/// The bytes up to the tensors.
fn header(architecture: &str, export: &Export, config: &ModelConfig, tensors: &[Planned]) -> Result<Vec<u8>> {
    let (mapping, _) = mapping(config)?;
    let file_type = export.dtype.file_type().ok_or_else(|| {
        let written = GgmlType::WRITTEN.map(GgmlType::name).join(", ");
        Error::Invalid(format!("{} is read, not written; written are {written}", export.dtype.name()))
    })?;
    let mut values = vec![
        ("general.architecture".to_string(), Value::Text(architecture.into())),
        ("general.type".to_string(), Value::Text("model".into())),
        ("general.file_type".to_string(), Value::U32(file_type)),
    ];
    if export.dtype.is_quantized() {
        values.push(("general.quantization_version".to_string(), Value::U32(2)));
    }
    let of_shape = mapping.metadata(&export.config(config)).into_iter();
    values.extend(of_shape.map(|(key, value)| (format!("{architecture}.{key}"), value)));
    values.extend(export.metadata.iter().cloned());

    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((values.len() as u64).to_le_bytes());
    for (key, value) in &values {
        write_text(key, &mut bytes);
        value.write(&mut bytes);
    }
    let mut offset = 0;
    for tensor in tensors {
        write_text(&tensor.name, &mut bytes);
        bytes.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
        bytes.extend(tensor.dtype.code().to_le_bytes());
        bytes.extend((offset as u64).to_le_bytes());
        offset += tensor.size_bytes().next_multiple_of(ALIGNMENT);
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    Ok(bytes)
}

/// Writes a model, with at most two copies of one tensor in memory.
///
/// # Errors
/// If llama.cpp has no equivalent architecture, a weight overflows its storage type, or the file cannot be written;
/// `failed` creates the latter error.
pub fn write(
    model: &mut dyn LanguageModel,
    export: &Export,
    out: &mut dyn Write,
    failed: &dyn Fn(io::Error) -> Error,
) -> Result<Written> {
    let config = model.config().clone();
    let (_, architecture) = mapping(&config)?;
    let (mut written, mut tensors) = (Written::default(), vec![]);
    each_tensor(model, export, &mut written, &mut |planned, _, _| {
        tensors.push(planned);
        Ok(())
    })?;
    out.write_all(&header(architecture, export, &config, &tensors)?).map_err(failed)?;
    each_tensor(model, export, &mut Written::default(), &mut |planned, shape, values| {
        let values = export.values(&planned, values()?, shape);
        let refused = |value: f32| {
            let Planned { name, dtype, .. } = &planned;
            Error::Invalid(format!(
                "{name} has {value}, which {} cannot hold: use --dtype f32 or bf16",
                if value.is_finite() { dtype.name() } else { "no model that works" }
            ))
        };
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return Err(refused(*value));
        }
        let mut bytes = Vec::with_capacity(planned.size_bytes() + ALIGNMENT);
        planned.dtype.encode(&values, &mut bytes).map_err(refused)?;
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        out.write_all(&bytes).map_err(failed)
    })?;
    Ok(written)
}
