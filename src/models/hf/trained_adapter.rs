//! Trained LoRA adapters in PEFT's files: `adapter_config.json` and `adapter_model.safetensors` with `lora_A` (r,
//! inputs) and `lora_B` (outputs, r) of each adapted matrix, and with DoRA `lora_magnitude_vector` (outputs). Fused
//! weights are split into their matrices.

use super::adapter::{CONFIG, MAGNITUDES, PREFIX, WEIGHTS};
use super::weight_files::WeightFiles;
use super::{Encoded, StoredTensor, stored_parameter};
use crate::models::lora::{Adapted, Lora, endings};
use crate::models::{LanguageModel, ModelConfig};
use crate::nn::{LinearLayout, Magnitudes};
use crate::optim::{Entry, ParameterArena};
use crate::tensor::Bytes;
use crate::{Error, Result};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use std::path::Path;

/// A, B and magnitudes of a weight: their positions in the arena, and their matrices.
struct OfWeight {
    a: Entry,
    b: Entry,
    /// With DoRA.
    magnitudes: Option<Entry>,
    matrices: Vec<Adapted>,
}

/// A snapshot of adapters on the host.
pub struct AdapterWeights {
    lora: Lora,
    base: String,
    /// GPT-2 stores weights as (inputs, outputs).
    fan_in_fan_out: bool,
    weights: Vec<OfWeight>,
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
        AdapterWeights { fan_in_fan_out: entries.iter().any(is_transposed), lora, base, weights, values }
    }

    /// PEFT's files.
    ///
    /// # Errors
    /// If the values do not match the adapters.
    pub fn encode(&self) -> Result<Encoded<'_>> {
        const SIZE: usize = size_of::<f32>();
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
        let config = json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": self.base, "r": rank,
            "lora_alpha": alpha, "lora_dropout": dropout, "target_modules": named, "bias": "none",
            "fan_in_fan_out": self.fan_in_fan_out, "inference_mode": true, "init_lora_weights": true,
            "use_rslora": rslora, "use_dora": dora, "modules_to_save": null, "rank_pattern": {}, "alpha_pattern": {},
            "layers_to_transform": null, "layers_pattern": null, "revision": null,
        });
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
