//! Llama (Touvron et al. 2023) and related families, with Hugging Face's names, read from the top down: [`Llama`] ->
//! [`Block`] -> [`Attention`], [`Mlp`]. No biases, RMS norms, rotary positions, SwiGLU, and optional grouped-query
//! attention. Qwen2 adds a bias to queries, keys and values, Qwen3 (`qwen3.rs`) a norm of every query and key head,
//! Mistral a sliding window.
//!
//! Shapes: B sequences of T tokens, width C = `n_embd`, H = `n_head`, K = `n_kv_head`, D = `head_dim`, F =
//! `intermediate_size`, vocabulary V.

use super::{
    CachedTokens, Family, KvView, LanguageModel, LargeTensor, LlamaConfig, ModelConfig, Past, Recomputed, gguf, hf,
};
use crate::nn::{
    Dropout, Embedding, Linear, Module, Parameter, ResidualStream, RmsNorm, Rotary, init_keys, join, recomputed,
};
use crate::ops::Heads;
use crate::ops::random::Key;
use crate::{Error, Result, Tensor};

/// Standard deviation of initial weights.
const STD: f32 = 0.02;

/// A decoder-only Transformer.
pub struct Llama {
    pub config: ModelConfig,
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    /// (V, C); `None` where the head is tied to `embed_tokens`.
    lm_head: Option<Embedding>,
    rotary: Rotary,
    /// How many blocks are recomputed in backward, from the first one on.
    recompute: usize,
}

impl Llama {
    /// A model on the CPU, with random weights determined by the seed; with `qk_norm`, it has a norm of every query and
    /// key head.
    ///
    /// # Errors
    /// If the sizes are invalid, or memory runs out.
    pub fn new(config: ModelConfig, qk_norm: bool, seed: u64) -> Result<Llama> {
        config.check_llama()?;
        let (c, l) = (&config, config.llama());
        let mut keys = init_keys(seed);
        let embed_tokens = Embedding::new(c.vocab_size, c.n_embd, STD, keys())?;
        let layers = (0..c.n_layer).map(|_| Block::new(c, qk_norm, &mut keys)).collect::<Result<_>>()?;
        let norm = RmsNorm::new(c.n_embd, l.norm_eps)?;
        let lm_head = (!c.tie_embeddings).then(|| Embedding::new(c.vocab_size, c.n_embd, STD, keys())).transpose()?;
        let rotary = Rotary::new(c.block_size, l.head_dim, l.rope_theta, l.rope_scaling);
        Ok(Llama { embed_tokens, layers, norm, lm_head, rotary, recompute: 0, config })
    }
}

impl LanguageModel for Llama {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn hidden(&self, ids: &Tensor, past: Past, dropout: &Dropout) -> Result<Tensor> {
        self.config.first_position(ids, &past)?;
        let x = dropout.apply_to_embeddings(self.embed_tokens.forward(ids)?)?; // (B, T, C)
        let rotary = self.rotary.table(&ids.device())?;
        // Of a ragged batch, row b has the angles of sequence b.
        let rotary = match &past {
            Past::Slots(slots) => rotary.embedding(&slots.positions().reshape([ids.len()])?)?,
            _ => rotary,
        };
        let starts = past.documents().map(|documents| &documents.starts);
        let mut stream = ResidualStream::new(x, self.head().operand_dtype());
        for (i, layer) in self.layers.iter().enumerate() {
            stream = if i < self.recompute && !past.is_cache() {
                let (layer, rotary, starts) = (layer.clone(), rotary.clone(), starts.cloned());
                stream.recomputed(dropout, move |stream, dropout| {
                    layer.forward(stream, &rotary, starts.as_ref(), dropout, None)
                })?
            } else {
                layer.forward(stream, &rotary, starts, dropout, past.layer(i)?)?
            };
        }
        stream.norm(&self.norm)
    }

    fn set_recompute(&mut self, what: Recomputed) {
        self.recompute = what.blocks;
        self.layers.iter_mut().for_each(|layer| layer.self_attn.recompute = what.attention);
    }

    fn token_embeddings(&self) -> &Tensor {
        &self.embed_tokens.weight.value
    }

    fn head(&self) -> &Tensor {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens).weight.operand()
    }
}

/// A Transformer block: attention and feed-forward layer, each a branch that reads the normalized stream and is added
/// to it.
#[derive(Clone)]
pub struct Block {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn new(config: &ModelConfig, qk_norm: bool, keys: &mut dyn FnMut() -> Key) -> Result<Block> {
        let (c, l) = (config.n_embd, config.llama());
        let &LlamaConfig { n_kv_head, head_dim, intermediate_size, norm_eps, .. } = l;
        let (q, kv) = (config.n_head * head_dim, n_kv_head * head_dim);
        // Every layer adds twice to the stream: smaller steps keep its variance from growing with depth.
        let residual_std = STD / (2.0 * config.n_layer as f32).sqrt();
        let head_norm = || qk_norm.then(|| RmsNorm::new(head_dim, norm_eps)).transpose();
        Ok(Block {
            input_layernorm: RmsNorm::new(c, norm_eps)?,
            self_attn: Attention {
                qkv_proj: Linear::outputs_first(c, &[q, kv, kv], l.qkv_bias, STD, keys())?,
                o_proj: Linear::outputs_first(q, &[c], false, residual_std, keys())?,
                q_norm: head_norm()?,
                k_norm: head_norm()?,
                heads: Heads { n_head: config.n_head, n_kv_head, window: l.sliding_window },
                recompute: false,
            },
            post_attention_layernorm: RmsNorm::new(c, norm_eps)?,
            mlp: Mlp {
                gate_up_proj: Linear::outputs_first(c, &[intermediate_size; 2], false, STD, keys())?,
                down_proj: Linear::outputs_first(intermediate_size, &[c], false, residual_std, keys())?,
            },
        })
    }

    /// The stream (B, T, C), with both branches added to it. Documents begin at `starts`, if there are any.
    fn forward(
        &self,
        mut stream: ResidualStream,
        rotary: &Tensor,
        starts: Option<&Tensor>,
        dropout: &Dropout,
        kv: Option<KvView>,
    ) -> Result<ResidualStream> {
        let qkv = stream.norm_linear(&self.input_layernorm, &self.self_attn.qkv_proj, dropout)?; // (B, T, (H + 2K) D)
        stream.add(self.self_attn.forward(&qkv, rotary, starts, dropout, kv)?, dropout)?;
        let gate_up = stream.norm_linear(&self.post_attention_layernorm, &self.mlp.gate_up_proj, dropout)?;
        stream.add(self.mlp.down_proj.forward(&gate_up.swiglu()?, dropout)?, dropout)?;
        Ok(stream)
    }
}

/// Causal self-attention, optionally within a sliding window.
#[derive(Clone)]
pub struct Attention {
    /// Queries, keys and values at once.
    qkv_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    heads: Heads,
    /// Whether backward keeps only queries, keys and values.
    recompute: bool,
}

impl Attention {
    /// [`Attention::attend`], recomputed in backward if that is set.
    fn forward(
        &self,
        qkv: &Tensor,
        rotary: &Tensor,
        starts: Option<&Tensor>,
        dropout: &Dropout,
        kv: Option<KvView>,
    ) -> Result<Tensor> {
        if !self.recompute || kv.is_some() {
            return self.attend(qkv, rotary, starts, dropout, kv);
        }
        let (attention, rotary, starts) = (self.clone(), rotary.clone(), starts.cloned());
        recomputed(qkv, dropout, move |qkv, dropout| attention.attend(qkv, &rotary, starts.as_ref(), dropout, None))
    }

    /// Of packed queries, keys and values.
    fn attend(
        &self,
        qkv: &Tensor,
        rotary: &Tensor,
        starts: Option<&Tensor>,
        dropout: &Dropout,
        kv: Option<KvView>,
    ) -> Result<Tensor> {
        let norm = self.q_norm.as_ref().zip(self.k_norm.as_ref());
        let norm = norm.map(|(q, k)| (q.eps, [&*q.weight, &*k.weight]));
        let y = match kv {
            None => qkv.rope(self.heads, rotary, norm)?.causal_attention(self.heads, starts, dropout.next())?,
            Some(KvView { cache, tokens: CachedTokens::Equal(start) }) => {
                let qkv = qkv.rope_append(self.heads, rotary, norm, cache, start)?;
                qkv.cached_attention(self.heads, cache, start)?
            }
            Some(KvView { cache, tokens: CachedTokens::Ragged(starts) }) => {
                let &[b, _, packed] = &qkv.shape()[..] else { unreachable!("qkv is (B, 1, P)") };
                // As the tokens of one row, whose angles `rotary` has.
                let rotated = qkv.reshape([1, b, packed])?.rope(self.heads, rotary, norm)?;
                rotated.reshape([b, 1, packed])?.append_and_attend_ragged(self.heads, cache, starts)?
            }
        }; // (B, T, H D)
        self.o_proj.forward(&y, dropout)
    }
}

/// The feed-forward layer, F wide.
#[derive(Clone)]
pub struct Mlp {
    /// The fused gate and up projections, gates first.
    gate_up_proj: Linear,
    down_proj: Linear,
}

impl Module for Llama {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.embed_tokens.visit_parameters(&join(prefix, "embed_tokens"), visit);
        for (i, layer) in self.layers.iter_mut().enumerate() {
            layer.visit_parameters(&join(prefix, &format!("layers.{i}")), visit);
        }
        self.norm.visit_parameters(&join(prefix, "norm"), visit);
        if let Some(head) = &mut self.lm_head {
            head.visit_parameters(&join(prefix, "lm_head"), visit);
        }
    }
}

impl Module for Block {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.input_layernorm.visit_parameters(&join(prefix, "input_layernorm"), visit);
        self.self_attn.visit_parameters(&join(prefix, "self_attn"), visit);
        self.post_attention_layernorm.visit_parameters(&join(prefix, "post_attention_layernorm"), visit);
        self.mlp.visit_parameters(&join(prefix, "mlp"), visit);
    }
}

impl Module for Attention {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.qkv_proj.visit_parameters(&join(prefix, "qkv_proj"), visit);
        self.o_proj.visit_parameters(&join(prefix, "o_proj"), visit);
        for (norm, name) in [(&mut self.q_norm, "q_norm"), (&mut self.k_norm, "k_norm")] {
            norm.iter_mut().for_each(|norm| norm.visit_parameters(&join(prefix, name), visit));
        }
    }
}

impl Module for Mlp {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.gate_up_proj.visit_parameters(&join(prefix, "gate_up_proj"), visit);
        self.down_proj.visit_parameters(&join(prefix, "down_proj"), visit);
    }
}

/// The family of Llama, Qwen2 and Mistral.
pub(super) const FAMILY: LlamaFamily = LlamaFamily {
    kind: "llama",
    qk_norm: false,
    mapping: hf::LlamaMapping { qk_norm: false },
    gguf: gguf::LlamaMapping { qk_norm: false },
};

/// A family of models that are built like a Llama.
pub(super) struct LlamaFamily {
    pub kind: &'static str,
    /// Whether every query and key head has a norm.
    pub qk_norm: bool,
    pub mapping: hf::LlamaMapping,
    pub gguf: gguf::LlamaMapping,
}

impl Family for LlamaFamily {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn is_llama(&self) -> bool {
        true
    }

    fn build(&self, config: &ModelConfig, seed: u64) -> Result<Box<dyn LanguageModel>> {
        Ok(Box::new(Llama::new(config.clone(), self.qk_norm, seed)?))
    }

    fn parameter_count(&self, m: &ModelConfig) -> usize {
        let (c, l) = (m.n_embd, m.llama());
        let bias = l.qkv_bias as usize * (m.n_head + 2 * l.n_kv_head) * l.head_dim;
        let norms = 2 * c + self.qk_norm as usize * 2 * l.head_dim;
        let embeddings = if m.tie_embeddings { 1 } else { 2 } * m.vocab_size * c;
        embeddings + self.block_matrices(m) + m.n_layer * (bias + norms) + c
    }

    fn block_matrices(&self, m: &ModelConfig) -> usize {
        let l = m.llama();
        let attention = (2 * m.n_head + 2 * l.n_kv_head) * l.head_dim;
        m.n_layer * (attention + 3 * l.intermediate_size) * m.n_embd
    }

    /// 6 per parameter that takes part in a matmul, and attention over the keys that a query sees on average: half the
    /// context, or less within a window (Kaplan et al. 2020; Chowdhery et al. 2022, appendix B).
    fn train_flops_per_token(&self, m: &ModelConfig) -> f64 {
        let (l, t) = (m.llama(), m.block_size as f64);
        let window = l.sliding_window.map_or(t, |window| (window as f64).min(t));
        let keys = window * (2.0 * t - window) / (2.0 * t);
        let matmuls = self.block_matrices(m) + m.vocab_size * m.n_embd;
        6.0 * matmuls as f64 + 12.0 * (m.n_layer * m.n_head * l.head_dim) as f64 * keys
    }

    fn largest_tensors(&self, m: &ModelConfig) -> Vec<LargeTensor> {
        let l = m.llama();
        let [v, c, packed, f] =
            [m.vocab_size, m.n_embd, (m.n_head + 2 * l.n_kv_head) * l.head_dim, l.intermediate_size].map(|n| n as u64);
        [
            ("embed_tokens.weight", v * c, true, "use a smaller vocabulary or model.n_embd"),
            ("layers.0.self_attn.qkv_proj.weight", packed * c, false, "use a smaller model.n_embd or model.head_dim"),
            (
                "layers.0.mlp.gate_up_proj.weight",
                2 * f * c,
                false,
                "use a smaller model.n_embd or model.intermediate_size",
            ),
        ]
        .map(|(name, elements, by_rows, remedy)| LargeTensor { name, elements, by_rows, remedy })
        .into()
    }

    fn widest_activation(&self, m: &ModelConfig) -> usize {
        let l = m.llama();
        m.n_embd.max(2 * l.intermediate_size).max((m.n_head + 2 * l.n_kv_head) * l.head_dim)
    }

    fn kv_cache(&self, m: &ModelConfig) -> (usize, usize) {
        (m.n_layer, 2 * m.llama().n_kv_head * m.llama().head_dim)
    }

    fn hf(&self) -> &dyn hf::Mapping {
        &self.mapping
    }

    fn gguf(&self) -> Option<&dyn gguf::Mapping> {
        Some(&self.gguf)
    }
}

impl ModelConfig {
    /// Fails if there is no Llama of these sizes.
    fn check_llama(&self) -> Result<()> {
        self.check_sizes()?;
        let Some(l) = self.llama.as_ref().filter(|_| self.kind.is_llama()) else {
            return Err(Error::Invalid(format!("invalid Llama config: {self:?}")));
        };
        let told = if [l.n_kv_head, l.head_dim, l.intermediate_size].contains(&0) {
            format!("invalid Llama config: sizes must be above 0, got {self:?}")
        } else if l.intermediate_size > 1 << 24 {
            format!("intermediate_size of a model must be at most {}, got {}", 1 << 24, l.intermediate_size)
        } else if !self.n_head.is_multiple_of(l.n_kv_head) {
            format!("n_head {} is not divisible by n_kv_head {}", self.n_head, l.n_kv_head)
        } else if !l.head_dim.is_multiple_of(2) || l.head_dim > 128 {
            format!("head_dim {} is not an even number up to 128", l.head_dim)
        } else if l.sliding_window == Some(0) {
            "a sliding_window of 0 sees nothing".to_string()
        } else {
            return Ok(());
        };
        Err(Error::Invalid(told))
    }
}
