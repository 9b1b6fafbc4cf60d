//! Writes a model like transformers' `save_pretrained`: `config.json` and safetensors of one type, sharded by file
//! size.

use super::weight_files::{INDEX, WEIGHTS};
use super::{CONFIG, Encoded, Mapping, config_keys, tensor_file, text_of};
use crate::models::{LanguageModel, ModelConfig};
use crate::{Error, Result, Shape, Tensor};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, View};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fs::{self, File};
use std::path::Path;

/// Storage type of tensors in safetensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredType {
    F32,
    F16,
    Bf16,
}

impl StoredType {
    /// As PyTorch calls it.
    fn torch_name(self) -> &'static str {
        match self {
            StoredType::F32 => "float32",
            StoredType::F16 => "float16",
            StoredType::Bf16 => "bfloat16",
        }
    }

    fn size_bytes(self) -> usize {
        if self == StoredType::F32 { 4 } else { 2 }
    }
}

/// A tensor that becomes bytes when it is written.
struct Stored {
    name: String,
    shape: Vec<usize>,
    dtype: StoredType,
    /// The parameter and where this tensor begins in it; without one it is zeros.
    values: Option<(Tensor, usize)>,
}

impl Stored {
    fn values(&self) -> Result<Vec<f32>> {
        let count = self.shape.iter().product();
        match &self.values {
            None => Ok(vec![0.0; count]),
            Some((parameter, start)) => Ok(parameter.to_f32()?[*start..start + count].to_vec()),
        }
    }

    /// Refuses a number that would become infinite.
    fn check(&self) -> Result<()> {
        if self.dtype != StoredType::F16 {
            return Ok(());
        }
        match self.values()?.into_iter().find(|x| x.is_finite() && f16::from_f32(*x).is_infinite()) {
            None => Ok(()),
            Some(x) => {
                let name = &self.name;
                Err(Error::Invalid(format!("{name} has {x}, which f16 cannot hold: use --dtype f32 or bf16")))
            }
        }
    }
}

impl View for &Stored {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            StoredType::F32 => Dtype::F32,
            StoredType::F16 => Dtype::F16,
            StoredType::Bf16 => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let values = self.values().expect("the values of a tensor on the CPU can be read");
        Cow::Owned(match self.dtype {
            StoredType::F32 => bytemuck::cast_slice(&values).to_vec(),
            StoredType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            StoredType::Bf16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        })
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }
}

/// The order in which transformers writes tensors: name by name between the points, numbers as numbers and before
/// names.
fn order(name: &str) -> Vec<(bool, u64, &str)> {
    let part = |part| match str::parse(part) {
        Ok(number) => (false, number, ""),
        Err(_) => (true, 0, part),
    };
    name.split('.').map(part).collect()
}

/// The tensors of `model.safetensors`, in order.
fn tensors(model: &mut dyn LanguageModel, dtype: StoredType) -> Vec<Stored> {
    let config = model.config().clone();
    let hf: &dyn Mapping = config.kind.hf();
    let mut all = vec![];
    for (name, parameter) in model.parameters() {
        let mut start = 0;
        for (name, shape) in hf.tensors(&config, &name, parameter.shape()) {
            let values = Some((parameter.clone(), start));
            start += shape.elements();
            all.push(Stored { name, shape: shape.to_vec(), dtype, values });
        }
        if let Some((name, length)) = hf.zeros_beside(&config, &name, parameter.shape()) {
            let (name, shape) = hf.tensors(&config, &name, &Shape::from([length])).remove(0);
            all.push(Stored { name, shape: shape.to_vec(), dtype, values: None });
        }
    }
    all.sort_by(|a, b| order(&a.name).cmp(&order(&b.name)));
    all
}

/// Distributes tensors to files in order, as many as fit; a tensor larger than a file gets its own
/// (`split_torch_state_dict_into_shards` of huggingface_hub).
fn split(tensors: Vec<Stored>, max_bytes: usize) -> Vec<Vec<Stored>> {
    let (mut shards, mut current, mut bytes) = (vec![], vec![], 0);
    for tensor in tensors {
        let size = (&tensor).data_len();
        if size > max_bytes {
            shards.push(vec![tensor]);
            continue;
        }
        if bytes + size > max_bytes {
            shards.push(std::mem::take(&mut current));
            bytes = 0;
        }
        bytes += size;
        current.push(tensor);
    }
    if !current.is_empty() {
        shards.push(current);
    }
    shards
}

/// `config.json` of a model, with the keys of its special tokens.
fn config_text(config: &ModelConfig, dtype: StoredType, special_ids: &Map<String, Value>) -> String {
    let mut keys = config_keys(config, special_ids);
    keys.insert("torch_dtype".into(), dtype.torch_name().into());
    text_of(&keys)
}

/// Writes a model on the CPU into a folder, with these special-token keys in `config.json`; returns the file names. A
/// model with more than `max_bytes` of tensors is sharded, with an index.
///
/// # Errors
/// If a number overflows the type, or a file cannot be written.
pub fn write(
    model: &mut dyn LanguageModel,
    dtype: StoredType,
    max_bytes: usize,
    special_ids: &Map<String, Value>,
    folder: &Path,
) -> Result<Vec<String>> {
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|e| Error::io("write", path, e))
    };
    put(CONFIG, &config_text(model.config(), dtype, special_ids))?;
    let all = tensors(model, dtype);
    all.iter().try_for_each(Stored::check)?;
    let total: usize = all.iter().map(|tensor| tensor.data_len()).sum();
    let shards = split(all, max_bytes);
    let (count, mut names, mut places) = (shards.len(), vec![CONFIG.to_string()], std::collections::BTreeMap::new());
    for (i, shard) in shards.iter().enumerate() {
        let name = match count {
            1 => WEIGHTS.to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        write_shard(shard, &folder.join(&name))?;
        places.extend(shard.iter().map(|tensor| (tensor.name.clone(), name.clone())));
        names.push(name);
    }
    if count > 1 {
        let metadata = json!({ "total_parameters": total / dtype.size_bytes(), "total_size": total });
        let index = json!({ "metadata": metadata, "weight_map": places });
        put(INDEX, &serde_json::to_string_pretty(&index).expect("plain values serialize"))?;
        names.push(INDEX.into());
    }
    Ok(names)
}

fn write_shard(shard: &[Stored], path: &Path) -> Result<()> {
    let file = File::create(path).map_err(|e| Error::io("create", path, e))?;
    let tensors = shard.iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    tensor_file::write(&file, tensors, Some(Encoded::metadata()), |_| {}).map_err(|e| Error::io("write", path, e))?;
    file.sync_all().map_err(|e| Error::io("flush", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::testing::{small, small_llama};
    use crate::models::{build, load};

    fn values(model: &mut dyn LanguageModel) -> Vec<f32> {
        model.parameters().into_iter().flat_map(|(_, tensor)| tensor.to_f32().unwrap()).collect()
    }

    /// The names and sizes of the shards, of tensors of these bytes.
    fn sizes(tensors: &[usize], max_bytes: usize) -> Vec<Vec<usize>> {
        let stored = |bytes: &usize| Stored {
            name: String::new(),
            shape: vec![bytes / 4],
            dtype: StoredType::F32,
            values: None,
        };
        let shards = split(tensors.iter().map(stored).collect(), max_bytes);
        shards.into_iter().map(|shard| shard.iter().map(|tensor| tensor.data_len()).collect()).collect()
    }

    #[test]
    fn files_are_filled_in_order_and_what_is_too_large_has_one_of_its_own() {
        assert_eq!(sizes(&[40, 40, 40], 120), [[40, 40, 40]]);
        assert_eq!(sizes(&[40, 40, 40], 100), [vec![40, 40], vec![40]]);
        // As there: the file that is being filled goes on behind the large one.
        assert_eq!(sizes(&[40, 200, 40, 40], 100), [vec![200], vec![40, 40], vec![40]]);
    }

    #[test]
    fn tensors_are_in_the_order_of_transformers() {
        let mut names = ["h.10.b", "lm_head.weight", "h.2.ln_1", "h.2.attn.c", "wte.weight"];
        names.sort_by_key(|name| order(name));
        assert_eq!(names, ["h.2.attn.c", "h.2.ln_1", "h.10.b", "lm_head.weight", "wte.weight"]);
    }

    #[test]
    fn what_is_written_in_any_type_and_number_of_files_is_read_as_the_same() {
        for config in [small(50, 12, 4, 16), small_llama("llama"), small_llama("qwen3")] {
            for (dtype, bits, max_bytes) in
                [(StoredType::F32, 24, 1 << 30), (StoredType::F32, 24, 2000), (StoredType::F16, 11, 3000)]
            {
                let dir = tempfile::tempdir().unwrap();
                let mut model = build(&config, 3).unwrap();
                let names = write(&mut *model, dtype, max_bytes, &Map::new(), dir.path()).unwrap();
                let whole = names.contains(&WEIGHTS.to_string());
                assert_eq!((whole, names.contains(&INDEX.to_string())), (max_bytes == 1 << 30, max_bytes < 1 << 30));
                #[cfg(unix)]
                for name in &names {
                    // As every new file, for whom the user lets read them.
                    let mode = |name: &str| {
                        let data = fs::metadata(dir.path().join(name)).unwrap();
                        std::os::unix::fs::PermissionsExt::mode(&data.permissions())
                    };
                    assert_eq!(mode(name), mode(CONFIG), "{name}");
                }
                let mut read = load(dir.path()).unwrap();
                assert_eq!(read.config(), &config);
                for (x, y) in values(&mut *model).iter().zip(values(&mut *read)) {
                    // f16 below 2^-14 has fewer bits.
                    assert!((x - y).abs() <= x.abs() * 0.5f32.powi(bits) + if bits == 11 { 3e-8 } else { 0.0 });
                }
            }
        }
    }

    #[test]
    fn config_json_names_the_type_and_keeps_the_ids_of_special_tokens() {
        let ids = Map::from_iter([("eos_token_id".to_string(), json!([3, 4]))]);
        let text = config_text(&small_llama("llama"), StoredType::Bf16, &ids);
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&json["torch_dtype"], &json["eos_token_id"]), (&json!("bfloat16"), &json!([3, 4])));
        assert_eq!((&json["bos_token_id"], &json["vocab_size"]), (&Value::Null, &json!(50)));
    }

    #[test]
    fn a_weight_beyond_f16_is_refused_by_name() {
        let mut model = build(&small(5, 4, 1, 8), 0).unwrap();
        let (_, tensor) = model.parameters().remove(0);
        let mut changed = tensor.to_f32().unwrap();
        changed[3] = 7e4;
        tensor.write_bytes(bytemuck::cast_slice(&changed)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let error = write(&mut *model, StoredType::F16, 1 << 30, &Map::new(), dir.path()).unwrap_err().to_string();
        assert!(error.contains("transformer.wte.weight has 70000, which f16 cannot hold"), "{error}");
    }
}
