//! LoRA adapters (Hu et al. 2021) in the format of Hugging Face's PEFT: `adapter_config.json`, which names the base
//! model, and `adapter_model.safetensors`. They are merged into the model's weights,
//!
//! ```text
//! W' = W + (alpha / r) B A        A (r, inputs), B (outputs, r)        with rsLoRA alpha / sqrt(r)
//! W' = m / |W + s B A| (W + s B A)    by rows, with DoRA               m (outputs)
//! ```
//!
//! so that the model is then like any other. Tensors of `modules_to_save` replace the model's.

mod modules_to_save;

use super::weight_files::WeightFiles;
use super::{StoredTensor, from_json, values};
use crate::hub_cache::{HubCache, ModelName};
use crate::models::lora::module_of;
use crate::models::{LanguageModel, ModelConfig, gguf};
use crate::nn::Parameter;
use crate::{Device, Error, Result, Tensor};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLE: &str = "adapter_model.bin";
/// PEFT's name of the magnitudes of DoRA.
pub(super) const MAGNITUDES: &str = "lora_magnitude_vector";
/// PEFT's prefix of module names.
pub(super) const PREFIX: &str = "base_model.model.";

/// Keys of `adapter_config.json` that do not affect the result: training settings, adapted modules (which the tensor
/// names give), and versions.
const UNUSED: [&str; 21] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "target_modules",
    "task_type",
];

/// Prefixes of `init_lora_weights` values that change the base weights before training.
const CHANGING_INITS: [&str; 5] = ["pissa", "olora", "loftq", "corda", "lora_ga"];

/// The keys of `adapter_config.json` that affect the result. Ranks are those of the tensors.
#[derive(Debug, Deserialize)]
struct AdapterConfig {
    peft_type: Option<String>,
    base_model_name_or_path: Option<String>,
    lora_alpha: Option<f64>,
    use_rslora: Option<bool>,
    use_dora: Option<bool>,
    bias: Option<String>,
    modules_to_save: Option<Vec<String>>,
    /// In the order of the file: of several that fit a module, PEFT takes the first.
    alpha_pattern: Option<Map<String, Value>>,
    init_lora_weights: Option<Value>,
    /// The other keys.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// An adapter and the folder of its base model.
pub struct Adapter {
    config: AdapterConfig,
    files: WeightFiles,
    pub base: PathBuf,
}

/// The folder of the base model of an adapter folder; `None` if the folder has no adapter.
///
/// # Errors
/// If the adapter cannot be merged into weights, or its base model is missing.
pub fn base_of(folder: &Path) -> Result<Option<PathBuf>> {
    Ok(config_of(folder)?.map(|(_, base)| base))
}

/// Opens the adapter of a folder, if it has one.
///
/// # Errors
/// Those of [`base_of`], or if its tensors are missing or damaged.
pub fn open(folder: &Path) -> Result<Option<Adapter>> {
    let Some((config, base)) = config_of(folder)? else { return Ok(None) };
    let path = folder.join(WEIGHTS);
    if !path.exists() && folder.join(PICKLE).is_file() {
        let message = format!(
            "is a pickle, which may run any program: load it by PEFT's PeftModel.from_pretrained, and save it by \
             save_pretrained, which writes {WEIGHTS}"
        );
        return Err(Error::Checkpoint { path: folder.join(PICKLE), message });
    }
    Ok(Some(Adapter { config, files: WeightFiles::of_file(path)?, base }))
}

fn config_of(folder: &Path) -> Result<Option<(AdapterConfig, PathBuf)>> {
    let path = folder.join(CONFIG);
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
    let wrong = |message: String| Error::Checkpoint { path: path.clone(), message };
    let config: AdapterConfig = from_json(&text).map_err(wrong)?;
    config.check().map_err(wrong)?;
    let name = config.base_model_name_or_path.clone().unwrap_or_default();
    let base = find_base(folder, &name).map_err(wrong)?;
    if base.join(CONFIG).is_file() {
        return Err(wrong(format!(
            "base_model_name_or_path is {name:?}, which is an adapter itself: merge that first"
        )));
    }
    Ok(Some((config, base)))
}

/// The folder of an adapter's base model: the path as written, relative to the adapter, or a model fetched from the
/// Hub.
fn find_base(folder: &Path, name: &str) -> std::result::Result<PathBuf, String> {
    let of_hub = name.parse::<ModelName>().ok();
    let fetched = || HubCache::of_user().ok()?.find(of_hub.as_ref()?, "main");
    let mut places = [PathBuf::from(name), folder.join(name)].into_iter();
    let has_model = |place: &PathBuf| place.join("config.json").is_file() || gguf::is_gguf(place);
    let is_there = |place: &PathBuf| !name.is_empty() && has_model(place);
    places.find(is_there).or_else(fetched).ok_or_else(|| {
        let fetch = match &of_hub {
            Some(model) if !name.is_empty() => format!(", or run `rustyflow fetch {model}`"),
            _ => String::new(),
        };
        format!(
            "base_model_name_or_path is {name:?}, which is not the folder of a model: write the path of the base \
             model{fetch}"
        )
    })
}

impl AdapterConfig {
    /// Refuses adapters that are more than a low-rank product added to weights and whole modules, with the key.
    fn check(&self) -> std::result::Result<(), String> {
        let refuse = |key: &str, value: String| Err(format!("{key} is {value}, which rustyflow does not support"));
        if self.peft_type.as_deref() != Some("LORA") {
            return refuse("peft_type", self.peft_type.clone().unwrap_or("missing".into()));
        }
        match &self.bias {
            Some(bias) if bias != "none" => return refuse("bias", format!("{bias:?}")),
            _ => {}
        }
        if let Some(Value::String(how)) = &self.init_lora_weights
            && CHANGING_INITS.iter().any(|name| how.to_lowercase().starts_with(name))
        {
            return refuse("init_lora_weights", format!("{how:?}"));
        }
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(all) => all.is_empty(),
            Value::Object(all) => all.is_empty(),
            _ => false,
        };
        let is_unknown = |(key, value): &(&String, &Value)| !UNUSED.contains(&key.as_str()) && !is_off(value);
        if let Some((key, value)) = self.others.iter().find(is_unknown) {
            return refuse(key, value.to_string());
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
        let is_odd = |(key, alpha): &(&String, &Value)| !key.chars().all(is_plain) || !alpha.is_number();
        match self.alpha_pattern.iter().flatten().find(is_odd) {
            Some((key, alpha)) => refuse("alpha_pattern", format!("{key:?}: {alpha}")),
            None => Ok(()),
        }
    }

    /// The scale of B A in a module, for this rank.
    fn scale(&self, module: &str, rank: usize) -> f64 {
        let is_meant = |key: &str| module == key || module.ends_with(&format!(".{key}"));
        let own = self.alpha_pattern.iter().flatten().find(|(key, _)| is_meant(key));
        let own = own.and_then(|(_, alpha)| alpha.as_f64());
        let alpha = own.or(self.lora_alpha).unwrap_or(8.0);
        if self.use_rslora == Some(true) { alpha / (rank as f64).sqrt() } else { alpha / rank as f64 }
    }
}

/// What is added to a module's weight, and with DoRA the norms of the sum.
struct Change {
    /// The scaled B A, (outputs, inputs).
    product: Vec<f32>,
    /// With DoRA, the norms of the sum's rows, (outputs).
    magnitudes: Option<Vec<f32>>,
}

impl Change {
    /// Applies it to a weight (outputs, inputs), or (inputs, outputs) without `outputs_first`.
    fn apply(&self, weight: &mut [f32], [outputs, inputs]: [usize; 2], outputs_first: bool) {
        let output_of = |i: usize| if outputs_first { i / inputs } else { i % outputs };
        for (i, value) in weight.iter_mut().enumerate() {
            let at = if outputs_first { i } else { i % outputs * inputs + i / outputs };
            *value += self.product[at];
        }
        let Some(magnitudes) = &self.magnitudes else { return };
        let mut squares = vec![0.0; outputs];
        weight.iter().enumerate().for_each(|(i, value)| squares[output_of(i)] += f64::from(*value).powi(2));
        // Rows of zeros have no direction.
        let gain = |(m, square): (&f32, f64)| if square == 0.0 { 0.0 } else { f64::from(*m) / square.sqrt() };
        let gains: Vec<f32> = magnitudes.iter().zip(squares).map(|row| gain(row) as f32).collect();
        weight.iter_mut().enumerate().for_each(|(i, value)| *value *= gains[output_of(i)]);
    }
}

impl Adapter {
    /// Merges it into the weights of a model, of which it reads those that it changes.
    ///
    /// # Errors
    /// If the model has another shape, or its head is tied to the embedding and that of the adapter is not.
    pub fn merge_into(&self, model: &mut dyn LanguageModel) -> Result<()> {
        let shape = model.config().clone();
        let mut used = self.tied_head(&shape)?;
        self.check_modules_to_save()?;
        let mut result = Ok(());
        model.visit_parameters("", &mut |name, parameter| {
            if result.is_ok() {
                result = self.merge_parameter(&shape, name, parameter, &mut used);
            }
        });
        result?;
        match self.files.names().find(|name| !used.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                let kind = shape.kind.as_str();
                let message = format!("has a tensor {name}, which the {kind} in {} does not have", self.base.display());
                Err(Error::Checkpoint { path: self.files.path.clone(), message })
            }
        }
    }

    fn merge_parameter(
        &self,
        shape: &ModelConfig,
        name: &str,
        parameter: &mut Parameter,
        used: &mut HashSet<String>,
    ) -> Result<()> {
        let hf = shape.kind.hf();
        let layout = parameter.linear.as_ref().map(|layout| layout.outputs_first);
        let is_cropped = hf.positions() == Some(name);
        let mut merged: Option<Vec<f32>> = None;
        let mut offset = 0;
        for (tensor, its) in hf.tensors(shape, name, parameter.shape()) {
            let saved = self.saved(shape, &tensor, &its, is_cropped, used)?;
            let change = match layout {
                None => None,
                Some(outputs_first) => {
                    let sizes = if outputs_first { [its[0], its[1]] } else { [its[1], its[0]] };
                    let change = self.change(hf.prefix(), module_of(&tensor), sizes, used)?;
                    change.map(|change| (change, sizes, outputs_first))
                }
            };
            if merged.is_none() && (saved.is_some() || change.is_some()) {
                merged = Some(parameter.to_f32()?);
            }
            if let Some(merged) = &mut merged {
                let own = &mut merged[offset..offset + its.elements()];
                if let Some(saved) = saved {
                    own.copy_from_slice(&saved);
                }
                if let Some((change, sizes, outputs_first)) = change {
                    change.apply(own, sizes, outputs_first);
                }
            }
            offset += its.elements();
        }
        if let Some(merged) = merged {
            parameter.value = Tensor::from_f32(&merged, parameter.shape().clone(), &Device::Cpu)?;
        }
        self.check_zeros_beside(shape, name, parameter.shape(), used)
    }

    fn wrong(&self, message: String) -> Error {
        Error::Checkpoint { path: self.files.path.clone(), message }
    }

    fn values(&self, tensor: &StoredTensor) -> Result<Vec<f32>> {
        let wrong_type = || self.wrong(format!("holds tensors of {:?}; expected F32, F16 or BF16", tensor.dtype));
        values(tensor).ok_or_else(wrong_type)
    }

    /// The change of a module (outputs, inputs), if there is one.
    fn change(
        &self,
        prefix: &str,
        module: &str,
        [outputs, inputs]: [usize; 2],
        used: &mut HashSet<String>,
    ) -> Result<Option<Change>> {
        let wrong = |message: String| Err(self.wrong(message));
        let short = module.strip_prefix(prefix).unwrap_or(module);
        let found = [module, short].into_iter().find_map(|module| {
            let [a, b] = ["A", "B"].map(|letter| format!("{PREFIX}{module}.lora_{letter}.weight"));
            Some((self.files.tensor(&a)?, self.files.tensor(&b)?, [a, b], format!("{PREFIX}{module}.{MAGNITUDES}")))
        });
        let Some((a, b, names, magnitudes)) = found else { return Ok(None) };
        let rank = a.shape.first().copied().unwrap_or(0);
        if rank == 0 || a.shape != [rank, inputs] || b.shape != [outputs, rank] {
            let message = format!(
                "lora_A {:?} and lora_B {:?} of {module} are not (r, {inputs}) and ({outputs}, r), which its model's \
                 weight takes",
                a.shape, b.shape
            );
            return wrong(message);
        }
        let matrix = |tensor, shape: [usize; 2]| Tensor::from_f32(&self.values(tensor)?, shape, &Device::Cpu);
        let (a, b) = (matrix(&a, [rank, inputs])?, matrix(&b, [outputs, rank])?);
        used.extend(names);
        let scale = self.config.scale(module, rank) as f32;
        let product = b.matmul(&a)?.scale(scale)?.to_f32()?;
        if self.config.use_dora != Some(true) {
            return Ok(Some(Change { product, magnitudes: None }));
        }
        let Some(stored) = self.files.tensor(&magnitudes) else {
            return wrong(format!("has no tensor {magnitudes}, and use_dora is true in {CONFIG}"));
        };
        if stored.shape != [outputs] {
            return wrong(format!("{magnitudes} has shape {:?}, the model implies [{outputs}]", stored.shape));
        }
        used.insert(magnitudes);
        Ok(Some(Change { product, magnitudes: Some(self.values(&stored)?) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(change: Value) -> std::result::Result<AdapterConfig, String> {
        let mut config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", "use_dora": false,
            "modules_to_save": null, "rank_pattern": {}, "init_lora_weights": true, "target_parameters": []});
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let config: AdapterConfig = from_json(&config.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn what_is_not_a_product_added_to_weights_is_refused_by_name() {
        for (key, value) in [
            ("peft_type", json!("IA3")),
            ("lora_bias", json!(true)),
            ("bias", json!("all")),
            ("init_lora_weights", json!("pissa_niter_16")),
            ("trainable_token_indices", json!([1, 2])),
            ("target_parameters", json!(["a.weight"])),
            ("layer_replication", json!([[0, 2]])),
            ("alpha_pattern", json!({"^h\\.0": 3})),
            ("alpha_pattern", json!({"h.0": "3"})),
            ("use_of_tomorrow", json!({"a": 1})),
        ] {
            let error = parsed(json!({key: value})).unwrap_err();
            assert!(error.starts_with(key) && error.contains("does not support"), "{error}");
        }
    }

    #[test]
    fn whole_modules_are_read() {
        let modules = |value: Value| parsed(json!({"modules_to_save": value})).map(|config| config.modules_to_save);
        assert_eq!(modules(json!(null)), Ok(None));
        assert_eq!(modules(json!(["lm_head"])), Ok(Some(vec!["lm_head".into()])));
        assert!(modules(json!("lm_head")).unwrap_err().contains("modules_to_save"));
    }

    #[test]
    fn the_scale_is_that_of_the_module() {
        let scale = |change: Value, module: &str| parsed(change).unwrap().scale(module, 4);
        assert_eq!(scale(json!({}), "h.0.attn.c_attn"), 1.5);
        assert_eq!(scale(json!({"use_rslora": true}), "h.0.attn.c_attn"), 3.0);
        let own = json!({"alpha_pattern": {"attn.c_proj": 20}});
        assert_eq!(scale(own.clone(), "h.0.attn.c_proj"), 5.0);
        assert_eq!(scale(own.clone(), "h.0.mlp.c_proj"), 1.5);
        assert_eq!(scale(own, "h.0.xattn.c_proj"), 1.5);
        for (first, second, expected) in [("self_attn.q_proj", "q_proj", 5.0), ("q_proj", "self_attn.q_proj", 2.0)] {
            let alpha = |name: &str| if name == "q_proj" { 8 } else { 20 };
            let both = json!({"alpha_pattern": {first: alpha(first), second: alpha(second)}});
            assert_eq!(scale(both, "layers.0.self_attn.q_proj"), expected, "the first in the file counts");
        }
    }
}
