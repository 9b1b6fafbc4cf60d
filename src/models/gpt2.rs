//! GPT-2 (Radford et al. 2019) with nanoGPT's names and initialisation, read from the top down:
//! [`Gpt2`] -> [`Block`] -> [`CausalSelfAttention`], [`Mlp`].
//!
//! Shapes: B sequences of T tokens, width C = `n_embd`, vocabulary V.
//!
//! In mixed precision (parameters with an f16 copy), operands and results of GEMMs are f16: normalized activations, and
//! all activations of attention and feed-forward layers. The residual stream stays f32.

use super::{
    CachedTokens, Family, KvView, LanguageModel, LargeTensor, ModelConfig, ModelKind, Past, Recomputed, gguf, hf,
};
use crate::nn::{
    Dropout, Embedding, LayerNorm, Linear, Module, Parameter, ResidualStream, init_keys, join, recomputed,
};
use crate::ops::Heads;
use crate::ops::random::Key;
use crate::{Error, Result, Tensor};

/// Standard deviation of initial weights.
const STD: f32 = 0.02;

/// A decoder-only Transformer.
pub struct Gpt2 {
    pub config: ModelConfig,
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
    /// (V, C); `None` where the head is tied to `wte`.
    lm_head: Option<Embedding>,
    /// How many blocks are recomputed in backward, from the first one on.
    recompute: usize,
}

impl Gpt2 {
    /// A model on the CPU, with random weights determined by the seed.
    ///
    /// # Errors
    /// If the width is not a multiple of the heads, a size is 0 or too large, or memory runs out.
    pub fn new(config: ModelConfig, seed: u64) -> Result<Gpt2> {
        let c = &config;
        c.check_sizes()?;
        if c.kind != ModelKind::GPT2 {
            return Err(Error::Invalid(format!("invalid GPT-2 config: model.kind is {}", config.kind.as_str())));
        }
        if !c.n_embd.is_multiple_of(c.n_head) {
            let message = format!("n_embd {} is not divisible by n_head {}", c.n_embd, c.n_head);
            return Err(Error::Invalid(format!("invalid GPT-2 config: {message}")));
        }
        let mut keys = init_keys(seed);
        let wte = Embedding::new(c.vocab_size, c.n_embd, STD, keys())?;
        let wpe = Embedding::new(c.block_size, c.n_embd, STD, keys())?;
        let h = (0..c.n_layer).map(|_| Block::new(c, &mut keys)).collect::<Result<_>>()?;
        let ln_f = LayerNorm::new(c.n_embd, c.bias)?;
        let lm_head = (!c.tie_embeddings).then(|| Embedding::new(c.vocab_size, c.n_embd, STD, keys())).transpose()?;
        Ok(Gpt2 { wte, wpe, h, ln_f, lm_head, recompute: 0, config })
    }
}

impl LanguageModel for Gpt2 {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn hidden(&self, ids: &Tensor, past: Past, dropout: &Dropout) -> Result<Tensor> {
        let start = self.config.first_position(ids, &past)?;
        let x = match past.positions() {
            Some(positions) => self.wte.forward(ids)?.add(&self.wpe.forward(positions)?)?,
            None if self.wte.weight.dtype().is_quantized() => {
                let positions = self.wpe.weight.narrow(0, start, ids.shape().last_dim())?;
                self.wte.forward(ids)?.add(&positions)?
            }
            None => self.wte.weight.embedding_at(ids, &self.wpe.weight, start)?,
        }; // (B, T, C)
        // A kernel of its own here alone: it follows a sum, of which one term repeats, where the others precede one.
        let x = dropout.apply_to_embeddings(x)?;
        let starts = past.documents().map(|documents| &documents.starts);
        let mut stream = ResidualStream::new(x, self.head().operand_dtype());
        for (i, block) in self.h.iter().enumerate() {
            stream = if i < self.recompute && !past.is_cache() {
                let (block, starts) = (block.clone(), starts.cloned());
                stream
                    .recomputed(dropout, move |stream, dropout| block.forward(stream, starts.as_ref(), dropout, None))?
            } else {
                block.forward(stream, starts, dropout, past.layer(i)?)?
            };
        }
        stream.norm(&self.ln_f)
    }

    fn set_recompute(&mut self, what: Recomputed) {
        self.recompute = what.blocks;
        self.h.iter_mut().for_each(|block| block.attn.recompute = what.attention);
    }

    fn token_embeddings(&self) -> &Tensor {
        &self.wte.weight.value
    }

    fn head(&self) -> &Tensor {
        self.lm_head.as_ref().unwrap_or(&self.wte).weight.operand()
    }
}

/// A Transformer block: attention and feed-forward layer, each a branch that reads the normalized stream and is added
/// to it.
#[derive(Clone)]
pub struct Block {
    ln_1: LayerNorm,
    attn: CausalSelfAttention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(config: &ModelConfig, keys: &mut dyn FnMut() -> Key) -> Result<Block> {
        let (c, bias) = (config.n_embd, config.bias);
        // Every layer adds twice to the stream: smaller steps keep its variance from growing with depth.
        let residual_std = STD / (2.0 * config.n_layer as f32).sqrt();
        Ok(Block {
            ln_1: LayerNorm::new(c, bias)?,
            attn: CausalSelfAttention {
                c_attn: Linear::fused(c, &[c, c, c], bias, STD, keys())?,
                c_proj: Linear::new(c, c, bias, residual_std, keys())?,
                heads: Heads::multi_head(config.n_head),
                recompute: false,
            },
            ln_2: LayerNorm::new(c, bias)?,
            mlp: Mlp {
                c_fc: Linear::new(c, 4 * c, bias, STD, keys())?,
                c_proj: Linear::new(4 * c, c, bias, residual_std, keys())?,
            },
        })
    }

    /// The stream (B, T, C), with both branches added to it. Documents begin at `starts`, if there are any.
    fn forward(
        &self,
        mut stream: ResidualStream,
        starts: Option<&Tensor>,
        dropout: &Dropout,
        kv: Option<KvView>,
    ) -> Result<ResidualStream> {
        let qkv = stream.norm_linear(&self.ln_1, &self.attn.c_attn, dropout)?; // (B, T, 3C)
        stream.add(self.attn.forward(&qkv, starts, dropout, kv)?, dropout)?;
        let branch = match stream.norm_linear_gelu(&self.ln_2, &self.mlp.c_fc)? {
            Some(h) => self.mlp.c_proj.forward(&h, dropout)?,
            None => self.mlp.forward(&stream.norm(&self.ln_2)?, dropout)?,
        };
        stream.add(branch, dropout)?;
        Ok(stream)
    }
}

/// Causal self-attention.
#[derive(Clone)]
pub struct CausalSelfAttention {
    c_attn: Linear,
    c_proj: Linear,
    heads: Heads,
    /// Whether backward keeps only queries, keys and values.
    recompute: bool,
}

impl CausalSelfAttention {
    /// [`CausalSelfAttention::attend`], recomputed in backward if that is set.
    fn forward(&self, qkv: &Tensor, starts: Option<&Tensor>, dropout: &Dropout, kv: Option<KvView>) -> Result<Tensor> {
        if !self.recompute || kv.is_some() {
            return self.attend(qkv, starts, dropout, kv);
        }
        let (attention, starts) = (self.clone(), starts.cloned());
        recomputed(qkv, dropout, move |qkv, dropout| attention.attend(qkv, starts.as_ref(), dropout, None))
    }

    /// Of packed queries, keys and values.
    fn attend(&self, qkv: &Tensor, starts: Option<&Tensor>, dropout: &Dropout, kv: Option<KvView>) -> Result<Tensor> {
        let y = match kv {
            None => qkv.causal_attention(self.heads, starts, dropout.next())?, // (B, T, C)
            Some(KvView { cache, tokens: CachedTokens::Equal(start) }) => {
                qkv.append_and_attend(self.heads, cache, start)?
            }
            Some(KvView { cache, tokens: CachedTokens::Ragged(starts) }) => {
                qkv.append_and_attend_ragged(self.heads, cache, starts)?
            }
        };
        self.c_proj.forward(&y, dropout)
    }
}

/// The feed-forward layer, 4C wide.
#[derive(Clone)]
pub struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
}

impl Mlp {
    fn forward(&self, x: &Tensor, dropout: &Dropout) -> Result<Tensor> {
        if ![&self.c_fc, &self.c_proj].iter().all(|linear| linear.is_plain(x.dtype())) {
            return self.c_proj.forward(&self.c_fc.forward(x, dropout)?.gelu()?, dropout);
        }
        // The same in one op.
        let biases = self.c_fc.bias.as_deref().zip(self.c_proj.bias.as_deref());
        x.feed_forward(self.c_fc.weight.operand(), self.c_proj.weight.operand(), biases)
    }
}

impl Module for Gpt2 {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.wte.visit_parameters(&join(prefix, "wte"), visit);
        self.wpe.visit_parameters(&join(prefix, "wpe"), visit);
        for (i, block) in self.h.iter_mut().enumerate() {
            block.visit_parameters(&join(prefix, &format!("h.{i}")), visit);
        }
        self.ln_f.visit_parameters(&join(prefix, "ln_f"), visit);
        if let Some(head) = &mut self.lm_head {
            head.visit_parameters(&join(prefix, "lm_head"), visit);
        }
    }
}

impl Module for Block {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.ln_1.visit_parameters(&join(prefix, "ln_1"), visit);
        self.attn.visit_parameters(&join(prefix, "attn"), visit);
        self.ln_2.visit_parameters(&join(prefix, "ln_2"), visit);
        self.mlp.visit_parameters(&join(prefix, "mlp"), visit);
    }
}

impl Module for CausalSelfAttention {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.c_attn.visit_parameters(&join(prefix, "c_attn"), visit);
        self.c_proj.visit_parameters(&join(prefix, "c_proj"), visit);
    }
}

impl Module for Mlp {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.c_fc.visit_parameters(&join(prefix, "c_fc"), visit);
        self.c_proj.visit_parameters(&join(prefix, "c_proj"), visit);
    }
}

/// The GPT-2 family.
pub(super) struct Gpt2Family;

impl Family for Gpt2Family {
    fn kind(&self) -> &'static str {
        "gpt2"
    }

    fn is_llama(&self) -> bool {
        false
    }

    fn build(&self, config: &ModelConfig, seed: u64) -> Result<Box<dyn LanguageModel>> {
        Ok(Box::new(Gpt2::new(config.clone(), seed)?))
    }

    fn parameter_count(&self, m: &ModelConfig) -> usize {
        let (c, bias) = (m.n_embd, m.bias as usize);
        let attention = 4 * c * c + bias * 4 * c;
        let mlp = 8 * c * c + bias * 5 * c;
        let norm = c + bias * c;
        let head = if m.tie_embeddings { 0 } else { m.vocab_size * c };
        (m.vocab_size + m.block_size) * c + m.n_layer * (attention + mlp + 2 * norm) + norm + head
    }

    fn block_matrices(&self, m: &ModelConfig) -> usize {
        12 * m.n_embd * m.n_embd * m.n_layer
    }

    /// 6 per parameter that takes part in a matmul, and attention over half the context (Kaplan et al. 2020; Chowdhery
    /// et al. 2022, appendix B).
    fn train_flops_per_token(&self, m: &ModelConfig) -> f64 {
        let (c, t) = (m.n_embd as f64, m.block_size as f64);
        let matmuls = self.block_matrices(m) as f64 + c * m.vocab_size as f64;
        6.0 * matmuls + 6.0 * m.n_layer as f64 * c * t
    }

    fn largest_tensors(&self, m: &ModelConfig) -> Vec<LargeTensor> {
        let [v, t, c] = [m.vocab_size, m.block_size, m.n_embd].map(|n| n as u64);
        let width = "use a smaller model.n_embd";
        [
            ("wte.weight", v * c, true, "use a smaller vocabulary or model.n_embd"),
            ("wpe.weight", t * c, false, "use a smaller model.block_size or model.n_embd"),
            ("h.0.attn.c_attn.weight", 3 * c * c, false, width),
            ("h.0.mlp.c_fc.weight", 4 * c * c, false, width),
        ]
        .map(|(name, elements, by_rows, remedy)| LargeTensor { name, elements, by_rows, remedy })
        .into()
    }

    fn widest_activation(&self, m: &ModelConfig) -> usize {
        4 * m.n_embd
    }

    fn kv_cache(&self, m: &ModelConfig) -> (usize, usize) {
        (m.n_layer, 2 * m.n_embd)
    }

    fn hf(&self) -> &dyn hf::Mapping {
        &hf::Gpt2Mapping
    }

    fn gguf(&self) -> Option<&dyn gguf::Mapping> {
        Some(&gguf::Gpt2Mapping)
    }
}
