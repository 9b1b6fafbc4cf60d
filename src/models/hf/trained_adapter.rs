//! Trained LoRA adapters in PEFT's files: `adapter_config.json` and `adapter_model.safetensors` with `lora_A` (r,
//! inputs) and `lora_B` (outputs, r) of each adapted matrix, and with DoRA `lora_magnitude_vector` (outputs). Fused
//! weights are split into their matrices. Modules that are trained in full have the names of the model's own tensors.

use super::adapter::{CONFIG, MAGNITUDES, PREFIX, WEIGHTS};
use super::weight_files::WeightFiles;
use super::{Encoded, StoredTensor, stored_parameter};
use crate::models::lora::{Adapted, Lora, endings, module_of};
use crate::models::{LanguageModel, ModelConfig};
use crate::nn::{LinearLayout, Magnitudes, Parameter};
use crate::optim::{Entry, ParameterArena};
use crate::tensor::Bytes;
use crate::{Device, Error, Result, Shape, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use std::path::Path;

const SIZE: usize = size_of::<f32>();

/// A, B and magnitudes of a weight: their positions in the arena, and their matrices.
struct OfWeight {
    a: Entry,
    b: Entry,
    /// With DoRA.
    magnitudes: Option<Entry>,
    matrices: Vec<Adapted>,
}

/// A tensor of a module that is trained in full.
struct Saved {
    /// As in `model.safetensors`.
    name: String,
    shape: Shape,
    /// Its first element in the parameter, or in the arena; `None` if it is zero.
    start: Option<usize>,
}

/// A snapshot of adapters on the host.
pub struct AdapterWeights {
    lora: Lora,
    base: String,
    /// GPT-2 stores weights as (inputs, outputs).
    fan_in_fan_out: bool,
    weights: Vec<OfWeight>,
    saved: Vec<Saved>,
    /// Whether the head is the embedding, and trained.
    has_tied_head: bool,
    /// The bytes of the longest tensor of zeros.
    zeros: Vec<u8>,
    /// The start of the value arena, with all trained values.
    values: Bytes,
}

impl AdapterWeights {
    /// Adapters of a model of this shape; `base` is the folder or the name of the base model.
    pub fn new(lora: Lora, base: String, config: &ModelConfig, parameters: &ParameterArena, values: Bytes) -> Self {
        let entries = &parameters.entries;
        let find = |name: String| entries.iter().find(|entry| entry.name == name).cloned();
        let of_weight = |entry: &Entry| {
            let (stem, outputs_first) = (entry.name.strip_suffix("weight")?, entry.linear.as_ref()?.outputs_first);
            let [a, b] = ["A", "B"].map(|letter| find(format!("{stem}lora_{letter}.weight")));
            let matrices = lora.adapted(config, &entry.name, &entry.shape, outputs_first);
            let magnitudes = find(format!("{stem}{MAGNITUDES}"));
            Some(OfWeight { a: a?, b: b?, magnitudes, matrices })
        };
        let weights = entries.iter().filter_map(of_weight).collect();
        let is_transposed = |entry: &Entry| entry.linear.as_ref().is_some_and(|layout| !layout.outputs_first);
        let fan_in_fan_out = entries.iter().any(is_transposed);
        let mut saved = Vec::new();
        let in_full = || entries.iter().filter(|entry| entry.trainable && !entry.name.contains("lora_"));
        for Entry { name, shape, offset, .. } in in_full() {
            let at = |start: usize| offset + start;
            let tensors = saved_tensors(config, name, shape).into_iter();
            saved.extend(tensors.map(|tensor| Saved { start: tensor.start.map(at), ..tensor }));
        }
        let [embedding, _] = config.kind.hf().embedding_and_head();
        let has_tied_head = config.tie_embeddings && in_full().any(|entry| entry.name == embedding);
        let longest = saved.iter().filter(|tensor| tensor.start.is_none()).map(|tensor| tensor.shape.elements()).max();
        let zeros = vec![0; SIZE * longest.unwrap_or(0)];
        AdapterWeights { lora, base, fan_in_fan_out, weights, saved, has_tied_head, zeros, values }
    }

    /// PEFT's files.
    ///
    /// # Errors
    /// If the values do not match the adapters.
    pub fn encode(&self) -> Result<Encoded<'_>> {
        let rank = self.lora.rank;
        let fits = |OfWeight { a, b, magnitudes, matrices }: &OfWeight| {
            let rows = matrices.len().saturating_mul(rank);
            let outputs = matrices.iter().map(|matrix| matrix.outputs.len()).sum::<usize>();
            let all = [Some(a), Some(b), magnitudes.as_ref()].into_iter().flatten();
            let is_there = all.map(|entry| SIZE * entry.range().end).max() <= Some(self.values.len());
            let magnitudes = magnitudes.as_ref().map(|entry| entry.shape.to_vec());
            is_there
                && magnitudes == self.lora.dora.then(|| vec![outputs])
                && a.shape.first() == Some(&rows)
                && b.shape[..] == [outputs, rank]
        };
        if let Some(OfWeight { a, .. }) = self.weights.iter().find(|weight| !fits(weight)) {
            return Err(Error::Invalid(format!("the values are not those of the adapter {}", a.name)));
        }
        let mut tensors: Vec<(String, TensorView)> = Vec::new();
        for Saved { name, shape, start } in &self.saved {
            let (from, len) = (start.map_or(&self.zeros[..], |_| &self.values), SIZE * shape.elements());
            let start = SIZE * start.unwrap_or(0);
            let Some(own) = from.get(start..start + len) else {
                return Err(Error::Invalid(format!("the values are not those of the adapter: {name} is missing")));
            };
            let view = TensorView::new(Dtype::F32, shape.to_vec(), own);
            tensors.push((format!("{PREFIX}{name}"), view.expect("a tensor's values fit its shape")));
        }
        for OfWeight { a, b, magnitudes, matrices } in &self.weights {
            let inputs = a.shape.last_dim();
            let mut magnitudes = magnitudes.as_ref().map(|entry| &self.values[SIZE * entry.offset..]);
            let [mut a, mut b] = [a, b].map(|entry| &self.values[SIZE * entry.offset..]);
            for Adapted { module, outputs } in matrices {
                for (letter, shape, rest) in [("A", [rank, inputs], &mut a), ("B", [outputs.len(), rank], &mut b)] {
                    let (own, others) = rest.split_at(SIZE * shape[0] * shape[1]);
                    *rest = others;
                    let view = TensorView::new(Dtype::F32, shape.to_vec(), own);
                    tensors.push((name(module, letter), view.expect("a tensor's values fit its shape")));
                }
                if let Some(rest) = &mut magnitudes {
                    let (own, others) = rest.split_at(SIZE * outputs.len());
                    *rest = others;
                    let view = TensorView::new(Dtype::F32, vec![outputs.len()], own);
                    tensors.push((magnitudes_name(module), view.expect("a tensor's values fit its shape")));
                }
            }
        }
        Ok(Encoded { config: (CONFIG, self.config()), weights: (WEIGHTS, tensors) })
    }

    /// `adapter_config.json`.
    fn config(&self) -> String {
        let Lora { rank, alpha, rslora, dora, dropout, .. } = self.lora;
        let modules = self.weights.iter().flat_map(|weight| weight.matrices.iter().map(|matrix| &*matrix.module));
        // PEFT takes names by their ends too. A bare end that means more than what is adapted here is not written.
        let named: Vec<&str> = match self.lora.targets.iter().any(|target| target == crate::models::lora::ALL_LINEAR) {
            true => endings(modules),
            false => self.lora.targets.iter().map(String::as_str).collect(),
        };
        // By their whole names: to PEFT `norm` means `input_layernorm` too.
        let mut saved: Vec<&str> = Vec::new();
        for Saved { name, .. } in &self.saved {
            let module = module_of(name);
            saved.extend((!saved.contains(&module)).then_some(module));
        }
        let mut config = json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": self.base, "r": rank,
            "lora_alpha": alpha, "lora_dropout": dropout, "target_modules": named, "bias": "none",
            "fan_in_fan_out": self.fan_in_fan_out, "inference_mode": true, "init_lora_weights": true,
            "use_rslora": rslora, "use_dora": dora, "modules_to_save": (!saved.is_empty()).then_some(saved),
            "rank_pattern": {}, "alpha_pattern": {},
            "layers_to_transform": null, "layers_pattern": null, "revision": null,
        });
        if self.has_tied_head {
            config["ensure_weight_tying"] = true.into();
        }
        serde_json::to_string_pretty(&config).expect("plain values serialize")
    }
}

/// Loads adapters written by [`AdapterWeights`] into a model on the CPU.
///
/// # Errors
/// If a file is missing or damaged, or does not have exactly the tensors of these adapters.
pub fn read_adapters(folder: &Path, lora: &Lora, model: &mut dyn LanguageModel) -> Result<()> {
    let (config, files) = (model.config().clone(), WeightFiles::of_file(folder.join(WEIGHTS))?);
    let (mut result, mut count) = (Ok(()), 0);
    model.visit_parameters("", &mut |weight, parameter| {
        if result.is_ok() && parameter.is_trainable() && !weight.contains("lora_") {
            let tensors = saved_tensors(&config, weight, parameter.shape());
            count += tensors.len();
            result = read_saved(&files, &tensors, parameter);
        }
        let (Some(low_rank), Some(LinearLayout { outputs_first, .. })) = (&parameter.low_rank, &parameter.linear)
        else {
            return;
        };
        let matrices = lora.adapted(&config, weight, &parameter.layout_shape(), *outputs_first);
        count += if lora.dora { 3 } else { 2 } * matrices.len();
        let (mut a, mut b, mut magnitudes) = (Vec::new(), Vec::new(), Vec::new());
        let mut read = || {
            for Adapted { module, outputs } in &matrices {
                a.extend(values(&files, &name(module, "A"), &[lora.rank, low_rank.a.shape().last_dim()])?);
                b.extend(values(&files, &name(module, "B"), &[outputs.len(), lora.rank])?);
                if lora.dora {
                    magnitudes.extend(values(&files, &magnitudes_name(module), &[outputs.len()])?);
                }
            }
            if let Some(Magnitudes { trained, .. }) = &low_rank.magnitudes {
                trained.write_bytes(bytemuck::cast_slice(&magnitudes))?;
            }
            low_rank.a.write_bytes(bytemuck::cast_slice(&a))?;
            low_rank.b.write_bytes(bytemuck::cast_slice(&b))
        };
        if result.is_ok() {
            result = read();
        }
    });
    result?;
    match files.names().count() {
        there if there == count => Ok(()),
        there => {
            let message = format!("has {there} tensors, the adapters of this model are {count}");
            Err(Error::Checkpoint { path: files.path, message })
        }
    }
}

/// The tensors of a parameter that is trained in full. PEFT expects all of a module: a tied embedding also as the head,
/// and biases where the model has none.
fn saved_tensors(config: &ModelConfig, name: &str, shape: &Shape) -> Vec<Saved> {
    let (hf, mut end) = (config.kind.hf(), 0);
    let own = hf.tensors(config, name, shape).into_iter().map(|(name, shape)| {
        let start = Some(end);
        end += shape.elements();
        Saved { name, shape, start }
    });
    let mut tensors: Vec<Saved> = own.collect();
    let [embedding, head] = hf.embedding_and_head();
    if config.tie_embeddings && name == embedding {
        let head = hf.tensors(config, head, shape).into_iter();
        tensors.extend(head.map(|(name, shape)| Saved { name, shape, start: Some(0) }));
    }
    if let Some((bias, len)) = hf.zeros_beside(config, name, shape) {
        let bias = hf.tensors(config, &bias, &Shape::from([len])).into_iter();
        tensors.extend(bias.map(|(name, shape)| Saved { name, shape, start: None }));
    }
    tensors
}

/// Replaces a parameter that is trained in full by its tensors in an adapter.
fn read_saved(files: &WeightFiles, tensors: &[Saved], parameter: &mut Parameter) -> Result<()> {
    let mut whole = vec![0.0; parameter.len()];
    for Saved { name, shape, start } in tensors {
        let own = values(files, &format!("{PREFIX}{name}"), shape)?;
        if let Some(start) = start {
            whole[*start..start + own.len()].copy_from_slice(&own);
        }
    }
    parameter.value = Tensor::from_f32(&whole, parameter.shape().clone(), &Device::Cpu)?;
    Ok(())
}

fn name(module: &str, letter: &str) -> String {
    format!("{PREFIX}{module}.lora_{letter}.weight")
}

/// PEFT's name without `.weight`, which its files do not have.
fn magnitudes_name(module: &str) -> String {
    format!("{PREFIX}{module}.{MAGNITUDES}")
}

/// The values of a tensor of this shape.
fn values(files: &WeightFiles, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let wrong = |message: String| Error::Checkpoint { path: files.path.clone(), message };
    let tensor: StoredTensor = files.tensor(name).ok_or_else(|| wrong(format!("has no tensor {name}")))?;
    if tensor.shape != shape {
        return Err(wrong(format!("{name} has shape {:?}, the configuration implies {shape:?}", tensor.shape)));
    }
    let wrong_type = || wrong(format!("{name} is {:?}; expected F32", tensor.dtype));
    stored_parameter::values(&tensor).ok_or_else(wrong_type)
}
