//! Saves and loads models in the format of Hugging Face's transformers: `config.json` and `model.safetensors`, for
//! `from_pretrained`. Each family maps its `config.json` and tensor names ([`Mapping`]).

mod adapter;
mod gpt2;
mod llama;
mod recurrent;
mod rope;
pub mod shards;
mod stored_parameter;
pub mod tensor_file;
mod trained_adapter;
mod weight_files;

pub(super) use gpt2::Gpt2Mapping;
pub(super) use llama::LlamaMapping;
pub(super) use recurrent::RecurrentMapping;
pub use trained_adapter::{AdapterWeights, read_adapters};

use super::{LanguageModel, ModelConfig, ModelKind, build, gguf};
use crate::optim::{Entry, ParameterArena};
use crate::tensor::{Bytes, DryRun, with_weights_on};
use crate::{DType, Device, Error, Result, Shape, Tensor};
use rayon::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stored_parameter::{StoredParameter, is_readable, values};
use weight_files::{StoredTensor, WEIGHTS, WeightFiles};

const CONFIG: &str = "config.json";
/// Those of language models have a few thousand; names of classes may make it many more.
const MOST_CONFIG_BYTES: u64 = 1 << 24;

/// Hugging Face's format of a family.
pub trait Mapping {
    /// Accepted values of `model_type` in `config.json`.
    fn model_types(&self) -> &'static [&'static str];

    /// Optional prefix of most names in `model.safetensors`.
    fn prefix(&self) -> &'static str;

    /// The text of `config.json`.
    fn write_config(&self, config: &ModelConfig) -> String;

    /// The shape that the text of a `config.json` of this `model_type` describes.
    ///
    /// # Errors
    /// If it describes none, or a model that computes something else: which key says so.
    fn read_config(&self, text: &str) -> std::result::Result<ModelConfig, String>;

    /// Names and shapes of the tensors in `model.safetensors` that form the parameter `name`. The parameter
    /// concatenates their rows.
    fn tensors(&self, config: &ModelConfig, name: &str, shape: &Shape) -> Vec<(String, Shape)>;

    /// The name (as here) and length of a vector of zeros that Hugging Face's model has beside this parameter, and this
    /// one does without.
    fn zeros_beside(&self, config: &ModelConfig, name: &str, shape: &Shape) -> Option<(String, usize)>;

    /// The parameters that are one where the head is tied: the embedding and the head.
    fn embedding_and_head(&self) -> [&'static str; 2];

    /// The parameter of learned position embeddings, if any.
    fn positions(&self) -> Option<&'static str>;

    /// Whether a tensor of this name may be there and is not needed: a constant, or a copy of another.
    fn ignores(&self, config: &ModelConfig, name: &str) -> bool;
}

/// A snapshot of a model's weights on the host, which another thread can encode while training continues.
pub enum Weights {
    Model(ModelWeights),
    Adapters(AdapterWeights),
}

/// The two files that [`load`] reads, as they are to be written.
pub struct Encoded<'a> {
    /// Name and text of the configuration.
    pub config: (&'static str, String),
    /// Name and tensors of the safetensors file.
    pub weights: (&'static str, Vec<(String, TensorView<'a>)>),
}

impl Encoded<'_> {
    /// The metadata that transformers expects in the safetensors file.
    pub fn metadata() -> HashMap<String, String> {
        HashMap::from([("format".to_string(), "pt".to_string())])
    }
}

impl Weights {
    /// The files for [`load`].
    ///
    /// # Errors
    /// If the values are not those of the parameters.
    pub fn encode(&self) -> Result<Encoded<'_>> {
        match self {
            Weights::Model(weights) => weights.encode(),
            Weights::Adapters(weights) => weights.encode(),
        }
    }
}

/// All parameters of a model.
pub struct ModelWeights {
    config: ModelConfig,
    entries: Vec<Entry>,
    /// Of the entries that are f32, and if there are any of those that are f16.
    arenas: Vec<Bytes>,
    special_ids: Map<String, Value>,
    /// As many as the longest vector of zeros takes that Hugging Face's model has besides.
    zeros: Vec<u8>,
}

impl ModelWeights {
    /// Weights of a model of this shape, from the contents of the arenas in [`ParameterArena::stored`].
    pub fn new(config: ModelConfig, parameters: &ParameterArena, arenas: Vec<Bytes>) -> ModelWeights {
        let entries = parameters.entries.clone();
        let longest = entries.iter().map(|entry| entry.shape.last_dim()).max().unwrap_or(0);
        ModelWeights { config, entries, arenas, special_ids: Map::new(), zeros: vec![0; 4 * longest] }
    }

    /// Adds special-token ids to `config.json`, such as `eos_token_id`.
    pub fn with_special_ids(self, special_ids: Map<String, Value>) -> ModelWeights {
        ModelWeights { special_ids, ..self }
    }

    /// The files for [`load`].
    ///
    /// # Errors
    /// If the arenas are not those of the parameters.
    pub fn encode(&self) -> Result<Encoded<'_>> {
        let arena_of = |dtype: &DType| self.arenas.get(usize::from(*dtype == DType::F16));
        let is_whole = |entry: &Entry| {
            !entry.dtype.is_quantized()
                && arena_of(&entry.dtype)
                    .is_some_and(|arena| entry.range().end * entry.dtype.size_bytes() <= arena.len())
        };
        if let Some(entry) = self.entries.iter().find(|entry| !is_whole(entry)) {
            return Err(Error::Invalid(format!(
                "the arenas are not those of the parameters: {} is missing",
                entry.name
            )));
        }
        let (config, hf) = (&self.config, self.config.kind.hf());
        let mut views: Vec<(String, TensorView)> = Vec::new();
        let mut add = |name: &str, dtype: Dtype, shape: Vec<usize>, bytes| {
            let view = TensorView::new(dtype, shape, bytes).expect("a tensor's bytes fit its shape");
            views.push((name.to_string(), view));
        };
        for Entry { name, shape, dtype, offset, .. } in &self.entries {
            let (file_dtype, arena) = match dtype {
                DType::F16 => (Dtype::F16, &self.arenas[1]),
                _ => (Dtype::F32, &self.arenas[0]),
            };
            let (size, mut offset) = (dtype.size_bytes(), *offset);
            for (name, shape) in hf.tensors(config, name, shape) {
                add(&name, file_dtype, shape.to_vec(), &arena[size * offset..size * (offset + shape.elements())]);
                offset += shape.elements();
            }
            if let Some((name, len)) = hf.zeros_beside(config, name, shape) {
                let shape = Shape::from([len]);
                let (name, _) = hf.tensors(config, &name, &shape).remove(0);
                add(&name, Dtype::F32, vec![len], &self.zeros[..4 * len]);
            }
        }
        let config = text_of(&config_keys(config, &self.special_ids));
        Ok(Encoded { config: (CONFIG, config), weights: (WEIGHTS, views) })
    }
}

/// The keys of a model's `config.json`, with those of its special tokens.
fn config_keys(config: &ModelConfig, special_ids: &Map<String, Value>) -> Map<String, Value> {
    let written = config.kind.hf().write_config(config);
    let mut keys: Map<String, Value> = serde_json::from_str(&written).expect("it was written as an object");
    keys.extend(special_ids.clone());
    keys
}

fn text_of(keys: &Map<String, Value>) -> String {
    serde_json::to_string_pretty(keys).expect("plain values serialize")
}

/// The `model_type` for a model of this shape.
pub fn model_type(config: &ModelConfig) -> String {
    config_keys(config, &Map::new()).get("model_type").and_then(Value::as_str).unwrap_or_default().to_string()
}

/// Loads a model of any family on the CPU, written by [`ModelWeights`] or Hugging Face.
///
/// For a PEFT adapter folder, loads the base model and merges the adapter.
///
/// # Errors
/// If a file is missing or damaged, the family is unknown, the tensors are not exactly those that the config implies,
/// or memory runs out.
pub fn load(folder: &Path) -> Result<Box<dyn LanguageModel>> {
    let mut model = open(folder, usize::MAX)?;
    model.to_device(&Device::Cpu)?;
    Ok(model)
}

/// A model whose parameters are in memory-mapped files, each until it is moved to a device, or into an arena there:
/// what is on its way is all that is in the memory of the host. Its context is at most `block_size` tokens; of more
/// learned positions the first are kept.
///
/// # Errors
/// Those of [`load`], but for memory.
pub fn open(folder: &Path, block_size: usize) -> Result<Box<dyn LanguageModel>> {
    let folder = &*gguf::unpacked(folder)?;
    if let Some(adapter) = adapter::open(folder)? {
        let mut model = open(&adapter.base, block_size)?;
        adapter.merge_into(&mut *model)?;
        return Ok(model);
    }
    let mut config = read_shape(folder)?;
    if let Some(file) = gguf::weights_of(folder)? {
        return gguf::open(&file, &config, block_size);
    }
    let cropped = config.kind.hf().positions().filter(|_| block_size < config.block_size);
    config.block_size = config.block_size.min(block_size);
    let files = Arc::new(WeightFiles::open(folder)?);
    let damaged = |message: String| Error::Checkpoint { path: files.path.clone(), message };

    // Every parameter is in the files, so a config that claims more than their size is wrong: say so before memory for
    // it is asked for.
    if config.parameter_count().saturating_mul(2) > files.size_bytes() {
        let count = config.parameter_count();
        return Err(damaged(format!("is too short for the {count} parameters that config.json implies")));
    }
    let model = with_weights_on(Device::DryRun(DryRun::cpu()), || build(&config, 0));
    let mut model = model.map_err(|e| damaged(format!("does not fit config.json: {e}")))?;
    let (mut result, mut used) = (Ok(()), HashSet::new());
    model.visit_parameters("", &mut |name, parameter| {
        if result.is_ok() {
            result = stored(&files, &config, name, parameter, cropped, &mut used).map(|value| parameter.value = value);
        }
    });
    result?;
    let mut left_over = files.names().filter(|name| !used.contains(*name));
    match left_over.find(|name| !config.kind.hf().ignores(&config, name)) {
        None => Ok(model),
        Some(name) => {
            let kind = config.kind.as_str();
            Err(damaged(format!("has a tensor {name}, which a {kind} of this config.json does not have")))
        }
    }
}

/// Whether a folder holds an adapter.
///
/// # Errors
/// Those of [`weights_folder`].
pub fn is_adapter(folder: &Path) -> Result<bool> {
    Ok(adapter::base_of(folder)?.is_some())
}

/// The folder of the weights: for an adapter that of its base model, for a GGUF file that with what it says of the
/// model, else the folder itself.
///
/// # Errors
/// If the adapter's base model is missing, or the adapter is not a low-rank product added to weights; if a GGUF file
/// cannot be read.
pub fn weights_folder(folder: &Path) -> Result<PathBuf> {
    let folder = adapter::base_of(folder)?.unwrap_or_else(|| folder.to_path_buf());
    Ok(gguf::unpacked(&folder)?.into_owned())
}

/// The folder of the tokenizer: for an adapter without a tokenizer that of its base model, else the folder itself.
///
/// # Errors
/// Those of [`weights_folder`].
pub fn tokenizer_folder(folder: &Path) -> Result<PathBuf> {
    let has_own = ["tokenizer.json", "vocab.json"].iter().any(|name| folder.join(name).is_file());
    if has_own { Ok(folder.to_path_buf()) } else { weights_folder(folder) }
}

/// The shape in a folder's `config.json`, or that of an adapter's base model. As in transformers 5, a separate head
/// that differs from the embedding takes precedence over `tie_word_embeddings`.
///
/// # Errors
/// If it is missing, invalid, or of an unsupported model.
pub fn read_shape(folder: &Path) -> Result<ModelConfig> {
    let folder = weights_folder(folder)?;
    let path = folder.join(CONFIG);
    let text = read_limited(&path, MOST_CONFIG_BYTES)?;
    let mut config = read_config(&text).map_err(|message| Error::Checkpoint { path, message })?;
    // A folder without weights has a shape too, and whoever loads damaged ones learns of it there.
    if config.tie_embeddings
        && let Ok(files) = WeightFiles::open(&folder)
    {
        config.tie_embeddings = !has_own_head(&files, &config);
    }
    Ok(config)
}

/// Whether a model's files have a head that is not tied to the embedding.
fn has_own_head(files: &WeightFiles, config: &ModelConfig) -> bool {
    let hf = config.kind.hf();
    let shape = Shape::from([config.vocab_size, config.n_embd]);
    let [embedding, head] = hf.embedding_and_head().map(|name| {
        let (name, _) = hf.tensors(config, name, &shape).swap_remove(0);
        files.tensor(&name).or_else(|| files.tensor(name.strip_prefix(hf.prefix())?))
    });
    let (Some(embedding), Some(head)) = (embedding, head) else { return false };
    embedding.shape != head.shape
        || match embedding.dtype == head.dtype {
            true => embedding.bytes.par_chunks(1 << 20).ne(head.bytes.par_chunks(1 << 20)),
            false => values(&embedding).is_none_or(|ours| Some(ours) != values(&head)),
        }
}

/// Reads an untrusted text file, up to a size limit.
fn read_limited(path: &Path, most: u64) -> Result<String> {
    let file = File::open(path).map_err(|e| Error::io("read", path, e))?;
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text).map_err(|e| Error::io("read", path, e))?;
    if text.len() as u64 > most {
        let message = format!("is longer than {most} bytes, too long for its name: download it again");
        return Err(Error::Checkpoint { path: path.to_path_buf(), message });
    }
    Ok(text)
}

/// The parameter `name` as the files have it, and of the shape of `parameter`; marks its tensors as used. The parameter
/// `cropped` may have more rows in the file.
fn stored(
    files: &Arc<WeightFiles>,
    config: &ModelConfig,
    name: &str,
    parameter: &Tensor,
    cropped: Option<&str>,
    used: &mut HashSet<String>,
) -> Result<Tensor> {
    let (kind, prefix) = (config.kind, config.kind.hf().prefix());
    let mut parts = Vec::new();
    for (name, shape) in kind.hf().tensors(config, name, parameter.shape()) {
        let short = name.strip_prefix(prefix).unwrap_or(&name);
        let found = [name.as_str(), short].into_iter().find_map(|name| Some((name, files.tensor(name)?)));
        let (name, tensor) = found.ok_or_else(|| {
            let why = match short.starts_with("lm_head") {
                true => "it is a model without its head, and config.json does not say that the embedding is the head",
                false => "it is no model of its kind that fits its config.json",
            };
            let message = format!("has no tensor {short}: {why} (model.kind {})", kind.as_str());
            Error::Checkpoint { path: files.path.clone(), message }
        })?;
        let wrong = |message| Error::Checkpoint { path: tensor.file.to_path_buf(), message };
        let is_cropped = cropped == Some(short) && tensor.shape.len() == 2 && tensor.shape[0] > shape[0];
        let first = usize::from(is_cropped);
        if tensor.shape.get(first..) != Some(&shape[first..]) {
            return Err(wrong(format!("{short} has shape {:?}, config.json implies {shape}", tensor.shape)));
        }
        if !is_readable(tensor.dtype) {
            return Err(wrong(format!("{short} is {:?}; expected F32, F16 or BF16", tensor.dtype)));
        }
        used.insert(name.to_string());
        // Of cropped positions the first ones.
        parts.push((name.to_string(), shape.elements()));
    }
    Ok(Tensor::unread(Arc::new(StoredParameter { files: files.clone(), parts }), parameter.shape().clone()))
}

/// The shape that a `config.json` of any family describes.
fn read_config(text: &str) -> std::result::Result<ModelConfig, String> {
    #[derive(Deserialize)]
    struct Any {
        model_type: Option<String>,
        quantization_config: Option<Value>,
    }
    let Any { model_type, quantization_config } = from_json(text)?;
    if let Some(quantization) = quantization_config {
        let method = quantization.get("quant_method").unwrap_or(&quantization);
        return Err(format!(
            "quantization_config is set ({method}), and rustyflow does not read quantized weights: use the original \
             model in f32, f16 or bf16"
        ));
    }
    let its = model_type.as_deref().unwrap_or("nothing");
    let mut mappings = ModelKind::all().map(ModelKind::hf);
    let mapping = mappings.find(|mapping| mapping.model_types().contains(&its)).ok_or_else(|| {
        let known: Vec<_> = ModelKind::all().flat_map(|kind| kind.hf().model_types()).collect();
        let known: Vec<_> = known.into_iter().map(|model_type| format!("{model_type:?}")).collect();
        format!("model_type is {its:?}; rustyflow reads {}", known.join(", "))
    })?;
    mapping.read_config(text)
}

/// Reads the keys of `T`, all optional, from a JSON object; an error names a key of the wrong type.
fn from_json<T: DeserializeOwned>(text: &str) -> std::result::Result<T, String> {
    let object: Map<String, Value> = serde_json::from_str(text).map_err(|e| format!("is not JSON: {e}"))?;
    // serde tells what is wrong, not where: the key is the one that is wrong by itself.
    let read = |object| serde_json::from_value::<T>(Value::Object(object)).map_err(|e| e.to_string());
    read(object.clone()).map_err(|error| {
        let alone = object.into_iter().find_map(|(key, value)| {
            let error = read(Map::from_iter([(key.clone(), value)])).err()?;
            Some(format!("{key}: {error}"))
        });
        alone.unwrap_or(error)
    })
}

/// A size from 1 to `most`.
fn size(key: &str, value: Option<u64>, most: u64) -> std::result::Result<usize, String> {
    match value {
        Some(value) if (1..=most).contains(&value) => Ok(value as usize),
        other => Err(format!("{key} is {}; expected a size of 1 to {most}", written(&other))),
    }
}

/// Refuses a value that rustyflow does not support.
fn computes<T: PartialEq + Serialize>(key: &str, value: &Option<T>, ours: &T) -> std::result::Result<(), String> {
    match value {
        Some(value) if value != ours => {
            Err(format!("{key} is {}; rustyflow computes {}", written(value), written(ours)))
        }
        _ => Ok(()),
    }
}

fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values serialize")
}
