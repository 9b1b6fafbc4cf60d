//! LoRA adapters beside the linear layers of a frozen model (Hu et al. 2021), selected by Hugging Face's layer names,
//! and modules that are trained in full (`modules_to_save.rs`).

mod modules_to_save;

use super::{LanguageModel, ModelConfig, f16_weights};
use crate::nn::{LinearLayout, LowRank, Parameter, init_keys};
use crate::{DType, Error, Result, Shape};
use std::ops::Range;

/// PEFT's word for all linear layers but the head.
pub const ALL_LINEAR: &str = "all-linear";

/// LoRA settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// Rank r of A (r, inputs) and B (outputs, r).
    pub rank: usize,
    /// B A is multiplied by alpha / r; with `rslora`, by alpha / sqrt(r).
    pub alpha: f64,
    /// The scale of rsLoRA (Kalajdzievski 2023).
    pub rslora: bool,
    /// Trains the norms of the rows of weights too (DoRA, Liu et al. 2024).
    pub dora: bool,
    /// Dropout probability of A's input.
    pub dropout: f64,
    /// Names of layers, or suffixes of names: `q_proj`, `mlp.c_proj`; or `all-linear`.
    pub targets: Vec<String>,
    /// Names of modules, or suffixes of names, whose parameters are trained in full, in f32: `lm_head`, `norm`.
    pub modules_to_save: Vec<String>,
    /// Storage type of the frozen weights of matmuls: linear layers, and a head that is not the embedding. With a
    /// quantized one, the embedding is `q8_0`.
    pub base: DType,
}

/// An adapted matrix of a fused weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Adapted {
    /// Its name in `model.safetensors`, without `.weight`.
    pub module: String,
    /// Its range of the weight's outputs.
    pub outputs: Range<usize>,
}

impl Lora {
    /// The factor of B A.
    pub(crate) fn scale(&self) -> f32 {
        let rank = self.rank as f64;
        (self.alpha / if self.rslora { rank.sqrt() } else { rank }) as f32
    }

    /// The matrices of a weight that are adapted, in their order.
    pub(super) fn adapted(&self, config: &ModelConfig, name: &str, shape: &Shape, outputs_first: bool) -> Vec<Adapted> {
        let mut start = 0;
        let tensors = config.kind.hf().tensors(config, name, shape).into_iter();
        let matrices = tensors.map(|(tensor, shape)| {
            let outputs = start..start + if outputs_first { shape[0] } else { shape.last_dim() };
            start = outputs.end;
            Adapted { module: module_of(&tensor).to_string(), outputs }
        });
        matrices.filter(|matrix| self.targets.iter().any(|target| is_meant(target, &matrix.module))).collect()
    }

    /// Freezes a model on the CPU, except `modules_to_save`, and adds adapters to its linear layers, with initial
    /// values determined by the seed.
    ///
    /// # Errors
    /// If the rank is 0, a name matches no layer or module of its kind, a weight overflows its storage type, or memory
    /// runs out.
    pub fn adapt(&self, model: &mut dyn LanguageModel, seed: u64) -> Result<()> {
        if self.rank == 0 {
            return Err(Error::Invalid("the rank of LoRA adapters must be at least 1".into()));
        }
        let config = model.config().clone();
        self.check_targets(model)?;
        let in_full = self.parameters_to_save(model)?;
        let of_matmuls = f16_weights::matmul_weights(model);
        let table = model.token_embeddings().clone();
        let (mut result, mut keys) = (Ok(()), init_keys(seed ^ 0x4c6f_5241));
        model.visit_parameters("", &mut |name, parameter| {
            // An adapter is visited after the weight that it was put beside.
            if result.is_err() || name.contains("lora_") || in_full.contains(name) {
                return;
            }
            let base = match () {
                () if of_matmuls.contains(name) => self.base,
                () if self.base.is_quantized() && parameter.value.same(&table) => f16_weights::of_table(self.base),
                () => DType::F32,
            };
            let (shape, layout) = (parameter.shape().clone(), parameter.linear.clone());
            result = freeze([self.base, base], name, parameter).and_then(|()| {
                let Some(LinearLayout { outputs_first, .. }) = layout else { return Ok(()) };
                let adapted = self.adapted(&config, name, &shape, outputs_first);
                let outputs: Vec<_> = adapted.into_iter().map(|matrix| matrix.outputs).collect();
                let [rows, columns] = [shape[0], shape[1]];
                let (inputs, all) = if outputs_first { (columns, rows) } else { (rows, columns) };
                if !outputs.is_empty() {
                    let mut low_rank = LowRank::new(inputs, all, &outputs, self.rank, self.scale(), keys())?;
                    if self.dora {
                        let is_quantized = parameter.dtype().is_quantized();
                        low_rank.train_magnitudes(&parameter.value, outputs_first || is_quantized)?;
                    }
                    parameter.low_rank = Some(Box::new(low_rank));
                }
                Ok(())
            });
        });
        result
    }

    /// Refuses a target that means no layer.
    fn check_targets(&self, model: &mut dyn LanguageModel) -> Result<()> {
        let modules = linear_modules(model);
        match self.targets.iter().find(|target| !modules.iter().any(|module| is_meant(target, module))) {
            None => Ok(()),
            Some(target) => {
                let ends = endings(modules.iter().map(String::as_str)).join(", ");
                let kind = model.config().kind.as_str();
                Err(Error::Invalid(format!(
                    "lora.targets: {target:?} is not a linear layer of this {kind}; expected {ends}, or {ALL_LINEAR}"
                )))
            }
        }
    }
}

fn freeze([asked, base]: [DType; 2], name: &str, parameter: &mut Parameter) -> Result<()> {
    const SETTING: &str = "lora.base_dtype";
    match base {
        DType::F16 => f16_weights::check(SETTING, name, parameter).and_then(|()| parameter.freeze_as_f16()),
        base if base.is_quantized() => f16_weights::quantize(SETTING, [asked, base], name, parameter),
        _ => {
            parameter.freeze();
            Ok(())
        }
    }
}

/// The names of all linear layers but the head, as in `model.safetensors`, without `.weight`.
fn linear_modules(model: &mut dyn LanguageModel) -> Vec<String> {
    let (config, mut modules) = (model.config().clone(), Vec::new());
    model.visit_parameters("", &mut |name, parameter| {
        if parameter.linear.is_some() {
            let tensors = config.kind.hf().tensors(&config, name, parameter.shape()).into_iter();
            modules.extend(tensors.map(|(tensor, _)| module_of(&tensor).to_string()));
        }
    });
    modules
}

/// The last part of each name, once.
pub(super) fn endings<'a>(modules: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ends: Vec<&str> = Vec::new();
    for module in modules {
        let end = module.rsplit('.').next().unwrap_or(module);
        if !ends.contains(&end) {
            ends.push(end);
        }
    }
    ends
}

/// Whether a target means this linear layer.
fn is_meant(target: &str, module: &str) -> bool {
    target == ALL_LINEAR || is_called(target, module)
}

/// Whether this is the name of a module, or a suffix of it.
fn is_called(name: &str, module: &str) -> bool {
    module == name || module.ends_with(&format!(".{name}"))
}

/// The module of a tensor in `model.safetensors`.
pub(super) fn module_of(tensor: &str) -> &str {
    [".weight", ".bias"].iter().find_map(|end| tensor.strip_suffix(end)).unwrap_or(tensor)
}

#[cfg(test)]
mod tests;
