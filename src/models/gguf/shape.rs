//! The shape of a model from the metadata of a GGUF file.

use super::{GgufFile, Value};
use crate::models::{LlamaConfig, ModelConfig};
use crate::nn::{LayerNorm, RopeScaling};
use crate::{Error, Result, units};

/// Supported keys of an architecture.
const READ: [&str; 21] = [
    "vocab_size",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scale_linear",
    "tensor_data_layout",
];

/// The scalings of Llama 3.1 to 3.3, whose numbers a file does not hold but as divisors of the frequencies.
const LLAMA3_FACTORS: [f64; 6] = [8.0, 32.0, 16.0, 4.0, 2.0, 64.0];
const LLAMA3_CONTEXTS: [usize; 4] = [8192, 4096, 16_384, 32_768];

const ROPE_FREQS: &str = "rope_freqs.weight";

/// The metadata of one architecture.
struct Keys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
}

type Read<T> = std::result::Result<T, String>;

/// The shape of the model in a file.
///
/// # Errors
/// If it is of another architecture, or has a key or value that changes what is computed and is not known: which.
pub fn read_shape(file: &GgufFile) -> Result<ModelConfig> {
    let damaged = |message: String| Error::Checkpoint { path: file.path().to_path_buf(), message };
    let config = read(file).map_err(damaged)?;
    // The limits are those of a config.json.
    let hf = config.kind.hf();
    hf.read_config(&hf.write_config(&config)).map_err(|message| damaged(format!("invalid metadata: {message}")))?;
    Ok(config)
}

fn read(file: &GgufFile) -> Read<ModelConfig> {
    let architecture = match file.value("general.architecture") {
        Some(Value::Text(name)) => name,
        other => return Err(format!("general.architecture is {other:?}")),
    };
    let kind = match architecture.as_str() {
        "gpt2" => "gpt2",
        "llama" | "qwen2" => "llama",
        "qwen3" => "qwen3",
        other => return Err(format!("general.architecture is {other:?}; gpt2, llama, qwen2 and qwen3 are read")),
    };
    let keys = Keys { file, architecture };
    keys.refuse_others()?;
    if let Some(other) = keys.value("attention.causal").filter(|causal| **causal != Value::Bool(true)) {
        let key = format!("{architecture}.attention.causal");
        return Err(format!("{key} is {other:?}: it is no language model, whose attention is causal"));
    }
    let rows = |name: &str| file.spec(name).and_then(|(_, shape)| shape.first().copied());
    let vocab_size = rows("token_embd.weight").ok_or("has no tensor token_embd.weight")?;
    let (n_embd, n_head) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
    let mut config = ModelConfig {
        kind: kind.parse()?,
        vocab_size,
        block_size: keys.size("context_length")?,
        n_layer: keys.size("block_count")?,
        n_head,
        n_embd,
        bias: kind == "gpt2",
        tie_embeddings: file.spec("output.weight").is_none(),
        llama: None,
    };
    if kind == "gpt2" {
        keys.expect("feed_forward_length", 4 * n_embd)?;
        keys.expect_number("attention.layer_norm_epsilon", LayerNorm::EPS)?;
        return Ok(config);
    }
    let head_dim = keys.optional_size("attention.key_length")?.unwrap_or(n_embd / n_head.max(1));
    keys.expect("attention.value_length", head_dim)?;
    keys.expect("rope.dimension_count", head_dim)?;
    if let Some(window) = keys.optional_size("attention.sliding_window")?.filter(|w| *w < config.block_size && *w > 0) {
        return Err(format!("{architecture}.attention.sliding_window is {window}: llama.cpp's has no window"));
    }
    config.llama = Some(LlamaConfig {
        n_kv_head: keys.optional_size("attention.head_count_kv")?.unwrap_or(n_head),
        head_dim,
        intermediate_size: keys.size("feed_forward_length")?,
        qkv_bias: architecture == "qwen2",
        sliding_window: None,
        norm_eps: keys.number("attention.layer_norm_rms_epsilon")?.ok_or("has no layer_norm_rms_epsilon")?,
        rope_theta: keys.number("rope.freq_base")?.map_or(10_000.0, units::decimal_of_f32),
        rope_scaling: None,
    });
    let scaling = keys.rope_scaling(&config)?;
    if let Some(llama) = &mut config.llama {
        llama.rope_scaling = scaling;
    }
    Ok(config)
}

impl Keys<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        self.file.value(&format!("{}.{key}", self.architecture))
    }

    /// Refuses what may change what is computed.
    fn refuse_others(&self) -> Read<()> {
        let prefix = format!("{}.", self.architecture);
        let own = self.file.keys().filter_map(|key| key.strip_prefix(&prefix));
        match own.into_iter().find(|key| !READ.contains(key)) {
            Some(key) => Err(format!("unsupported key {prefix}{key} = {:?}", self.value(key))),
            None => Ok(()),
        }
    }

    fn optional_size(&self, key: &str) -> Read<Option<usize>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::U32(size)) => Ok(Some(*size as usize)),
            Some(other) => Err(format!("{}.{key} is {other:?}; expected one u32", self.architecture)),
        }
    }

    fn size(&self, key: &str) -> Read<usize> {
        self.optional_size(key)?.ok_or_else(|| format!("has no key {}.{key}", self.architecture))
    }

    fn number(&self, key: &str) -> Read<Option<f32>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::F32(number)) if number.is_finite() => Ok(Some(*number)),
            Some(other) => Err(format!("{}.{key} is {other:?}; expected an f32", self.architecture)),
        }
    }

    fn expect(&self, key: &str, ours: usize) -> Read<()> {
        match self.optional_size(key)? {
            Some(its) if its != ours => Err(format!("{}.{key} is {its}; expected {ours}", self.architecture)),
            _ => Ok(()),
        }
    }

    fn expect_number(&self, key: &str, ours: f32) -> Read<()> {
        match self.number(key)? {
            Some(its) if its != ours => Err(format!("{}.{key} is {its}; rustyflow computes {ours}", self.architecture)),
            _ => Ok(()),
        }
    }

    fn rope_scaling(&self, config: &ModelConfig) -> Read<Option<RopeScaling>> {
        let factor = match self.number("rope.scaling.factor")? {
            None => self.number("rope.scale_linear")?,
            factor => factor,
        };
        let scaling = match (self.value("rope.scaling.type"), factor) {
            (Some(Value::Text(kind)), Some(factor)) if kind == "linear" => {
                Some(RopeScaling::Linear { factor: units::decimal_of_f32(factor) })
            }
            (None, Some(factor)) if factor != 1.0 => {
                Some(RopeScaling::Linear { factor: units::decimal_of_f32(factor) })
            }
            (None, _) => None,
            (Some(Value::Text(kind)), _) if kind == "none" => None,
            (Some(Value::Text(kind)), None) if kind == "linear" => {
                return Err(format!("has no key {}.rope.scaling.factor", self.architecture));
            }
            (Some(other), _) => {
                let key = format!("{}.rope.scaling.type", self.architecture);
                return Err(format!("{key} is {other:?}; none and linear are known"));
            }
        };
        let head_dim = config.llama().head_dim;
        match (self.file.spec(ROPE_FREQS), &scaling) {
            (None, _) => return Ok(scaling),
            (Some(_), Some(_)) => return Err(format!("has both {ROPE_FREQS} and a linear scaling of positions")),
            (Some((_, shape)), None) if shape != [head_dim / 2] => {
                return Err(format!("{ROPE_FREQS} has shape {shape:?}; expected [{}]", head_dim / 2));
            }
            _ => {}
        }
        let divisors = self.file.tensor(ROPE_FREQS).unwrap_or_default();
        let mut known = LLAMA3_FACTORS.into_iter().flat_map(|factor| {
            LLAMA3_CONTEXTS.map(|original_block_size| RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_block_size,
            })
        });
        let implied = |scaling: &RopeScaling| {
            let mut config = config.clone();
            config.llama.as_mut().expect("it has heads").rope_scaling = Some(*scaling);
            super::mapping(&config).is_ok_and(|(mapping, _)| {
                mapping.constants(&config).iter().any(|(name, values)| *name == ROPE_FREQS && close(values, &divisors))
            })
        };
        match known.find(implied) {
            Some(found) => Ok(Some(found)),
            None => Err(format!("{ROPE_FREQS} holds divisors that are not those of a Llama 3")),
        }
    }
}

/// As near as two computations in f32 are.
pub(super) fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs())
}
