//! Saves and loads a GPT in Hugging Face's GPT-2 layout: `config.json` and `model.safetensors`, which
//! `transformers.GPT2LMHeadModel.from_pretrained` reads.

use super::{Gpt, GptConfig, LayerNorm, Module};
use crate::tensor::Bytes;
use crate::{Device, Error, Result, Shape, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// What Hugging Face puts before every name but the head's.
const PREFIX: &str = "transformer.";
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// The parameters of a model as they were at one moment, off their device: they can be encoded on another thread while
/// the model learns on.
pub struct Weights {
    config: GptConfig,
    /// Name, shape and first element of each.
    tensors: Vec<(String, Shape, usize)>,
    arena: Bytes,
}

impl Weights {
    /// The parameters of a model of this shape: name, shape and first element in the arena of each.
    pub fn new(config: GptConfig, tensors: impl Iterator<Item = (String, Shape, usize)>, arena: Bytes) -> Weights {
        Weights { config, tensors: tensors.collect(), arena }
    }

    /// The names and contents of the files that [`load`] reads.
    ///
    /// # Errors
    /// If the tensors make no file, which no model's do.
    pub fn encode(self) -> Result<[(&'static str, Vec<u8>); 2]> {
        let file_name = |name: &str| match name.starts_with("lm_head") {
            true => name.to_string(),
            false => format!("{PREFIX}{name}"),
        };
        let view = |shape: Vec<usize>, bytes| {
            TensorView::new(Dtype::F32, shape, bytes).expect("a tensor's bytes fit its shape")
        };
        let mut views: Vec<(String, TensorView)> = Vec::new();
        let longest = self.tensors.iter().map(|(_, shape, _)| shape.last_dim()).max().unwrap_or(0);
        let zeros = vec![0; 4 * longest];
        for (name, shape, start) in &self.tensors {
            let bytes = &self.arena[4 * start..4 * (start + shape.elements())];
            views.push((file_name(name), view(shape.to_vec(), bytes)));
            if !self.config.bias && (name.starts_with("h.") || name.starts_with("ln_f")) {
                // GPT-2 has biases everywhere: zeros mean the same as none.
                let len = shape.last_dim();
                views.push((file_name(&name.replace(".weight", ".bias")), view(vec![len], &zeros[..4 * len])));
            }
        }
        let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
        let weights = safetensors::serialize(views, Some(metadata))
            .map_err(|e| Error::Invalid(format!("{WEIGHTS} cannot be made: {e}")))?;
        let config = serde_json::to_string_pretty(&hugging_face_config(&self.config)).expect("plain values serialize");
        Ok([(CONFIG, config.into_bytes()), (WEIGHTS, weights)])
    }
}

/// Loads what [`Weights`] or Hugging Face wrote, on the CPU.
///
/// # Errors
/// If a file is missing, damaged, of another kind of model, or does not hold exactly the parameters its config implies.
pub fn load(folder: &Path) -> Result<Gpt> {
    let path = folder.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
    let config = parse_config(&text).map_err(|message| Error::Checkpoint { path: path.clone(), message })?;
    let path = folder.join(WEIGHTS);
    let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let damaged = |message: String| Error::Checkpoint { path: path.clone(), message };
    let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(format!("is damaged: {e}")))?;

    // Every parameter is in the file, so a config that claims more than the file's size is wrong: say so before
    // memory for it is asked for.
    if config.parameter_count().saturating_mul(2) > bytes.len() {
        let count = config.parameter_count();
        return Err(damaged(format!("is too short for the {count} parameters that config.json implies")));
    }
    let mut model = Gpt::new(config, 0).map_err(|e| damaged(format!("does not fit config.json: {e}")))?;
    let mut result = Ok(());
    model.visit_parameters("", &mut |name, parameter| {
        if result.is_ok() {
            result = read_tensor(&file, name, parameter).map(|t| *parameter = t.into()).map_err(&damaged);
        }
    });
    result.map(|()| model)
}

/// The parameter `name`, which must have the shape of `like`.
fn read_tensor(file: &SafeTensors, name: &str, like: &Tensor) -> std::result::Result<Tensor, String> {
    let view = file
        .tensor(&format!("{PREFIX}{name}"))
        .or_else(|_| file.tensor(name))
        .map_err(|_| format!("has no tensor {name}: it is not a GPT-2 that fits its config.json"))?;
    if view.shape() != &like.shape()[..] {
        return Err(format!("{name} has shape {:?}, config.json implies {}", view.shape(), like.shape()));
    }
    let data = view.data();
    let values: Vec<f32> = match view.dtype() {
        Dtype::F32 => bytemuck::pod_collect_to_vec(data),
        Dtype::F16 => data.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::BF16 => data.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        other => return Err(format!("{name} is {other:?}; expected F32, F16 or BF16")),
    };
    Tensor::from_f32(&values, like.shape().clone(), &Device::Cpu).map_err(|e| e.to_string())
}

fn hugging_face_config(config: &GptConfig) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.block_size,
        "n_ctx": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": null,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": LayerNorm::EPS,
        "tie_word_embeddings": config.tie_embeddings,
        "scale_attn_weights": true,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": null,
        "eos_token_id": null,
        "torch_dtype": "float32",
        "rustyflow": { "version": env!("CARGO_PKG_VERSION"), "bias": config.bias },
    })
}

fn parse_config(text: &str) -> std::result::Result<GptConfig, String> {
    let value: Value = serde_json::from_str(text).map_err(|e| format!("is not JSON: {e}"))?;
    let kind = value["model_type"].as_str().unwrap_or("nothing");
    if kind != "gpt2" {
        return Err(format!("model_type is {kind:?}; rustyflow reads \"gpt2\""));
    }
    // Sizes beyond these make no model that fits any memory, and their products would overflow.
    let size = |key: &str, most: u64| match value[key].as_u64() {
        Some(v) if (1..=most).contains(&v) => Ok(v as usize),
        _ => Err(format!("{key} is {}; expected a size of 1 to {most}", value[key])),
    };
    let fixed = |key: &str, expected: Value| match value.get(key) {
        Some(v) if !v.is_null() && *v != expected => Err(format!("{key} is {v}; rustyflow computes {expected}")),
        _ => Ok(()),
    };
    fixed("activation_function", json!("gelu_new"))?;
    fixed("scale_attn_weights", json!(true))?;
    fixed("scale_attn_by_inverse_layer_idx", json!(false))?;
    let config = GptConfig {
        vocab_size: size("vocab_size", 1 << 24)?,
        block_size: size("n_positions", 1 << 24)?,
        n_layer: size("n_layer", 1 << 12)?,
        n_head: size("n_head", 1 << 20)?,
        n_embd: size("n_embd", 1 << 20)?,
        bias: value["rustyflow"]["bias"].as_bool().unwrap_or(true),
        tie_embeddings: value["tie_word_embeddings"].as_bool().unwrap_or(true),
    };
    if !config.n_embd.is_multiple_of(config.n_head) {
        return Err(format!("n_embd {} is not divisible by n_head {}", config.n_embd, config.n_head));
    }
    fixed("n_inner", json!(4 * config.n_embd))?;
    if let Some(eps) = value["layer_norm_epsilon"].as_f64()
        && (eps - f64::from(LayerNorm::EPS)).abs() > 1e-9
    {
        return Err(format!("layer_norm_epsilon is {eps}; rustyflow computes {}", LayerNorm::EPS));
    }
    Ok(config)
}
