//! GPT-2 (Radford et al. 2019) with nanoGPT's names and initialisation. Read it from the bottom up:
//! `Gpt` -> `Block` -> `CausalSelfAttention`, `Mlp`.
//!
//! Shapes: B sequences of T tokens, width C = `n_embd`, vocabulary V.
//!
//! In mixed precision (parameters with an f16 copy) the operands and results of products are f16: what leaves a layer norm, and
//! all that attention and the feed-forward layer compute from it. The stream that they are added to stays f32.

use super::layers::{Dropout, Embedding, LayerNorm, Linear};
use super::{Module, Parameter, ResidualStream, join};
use crate::ops::random::Key;
use crate::tensor::no_grad;
use crate::{DType, Device, Error, Result, Tensor};
use serde::{Deserialize, Serialize};

/// The shape of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GptConfig {
    pub vocab_size: usize,
    /// The longest sequence it can look at, T.
    pub block_size: usize,
    pub n_layer: usize,
    pub n_head: usize,
    pub n_embd: usize,
    /// Whether linear layers and layer norms have a bias, as GPT-2's have.
    pub bias: bool,
    /// Whether the head shares its weight with the token embedding (Press and Wolf 2017).
    pub tie_embeddings: bool,
}

impl GptConfig {
    /// How many numbers the model learns.
    pub fn parameter_count(&self) -> usize {
        let (c, bias) = (self.n_embd, self.bias as usize);
        let attention = 4 * c * c + bias * 4 * c;
        let mlp = 8 * c * c + bias * 5 * c;
        let norm = c + bias * c;
        let head = if self.tie_embeddings { 0 } else { self.vocab_size * c };
        (self.vocab_size + self.block_size) * c + self.n_layer * (attention + mlp + 2 * norm) + norm + head
    }

    /// Floating-point operations that one token of training costs, forward and backward: 6 per parameter that takes
    /// part in a product, and attention over half the context (Kaplan et al. 2020; Chowdhery et al. 2022, appendix B).
    pub fn train_flops_per_token(&self) -> f64 {
        let (c, t) = (self.n_embd as f64, self.block_size as f64);
        let products = 12.0 * c * c * self.n_layer as f64 + c * self.vocab_size as f64;
        6.0 * products + 6.0 * self.n_layer as f64 * c * t
    }
}

/// Attends to itself and everything before it.
pub struct CausalSelfAttention {
    c_attn: Linear,
    c_proj: Linear,
    n_head: usize,
}

impl CausalSelfAttention {
    fn forward(&self, x: &Tensor, dropout: &Dropout, past: Option<Past>) -> Result<Tensor> {
        let qkv = self.c_attn.forward(x)?; // (B, T, 3C)
        let y = match past {
            None => qkv.causal_attention(self.n_head, dropout.next())?, // (B, T, C)
            Some(Past { cache, tokens }) => qkv.cached_attention(self.n_head, cache, tokens)?,
        };
        self.c_proj.forward(&y)
    }
}

/// The keys and values that the attention of one layer keeps, and of how many tokens they are.
#[derive(Clone, Copy)]
struct Past<'a> {
    /// (block_size, 2C)
    cache: &'a Tensor,
    tokens: usize,
}

/// What a model keeps of the tokens that it has seen, so that the next costs no more than itself: of each layer their keys and
/// values.
pub struct KvCache {
    layers: Vec<Tensor>,
    tokens: usize,
}

impl KvCache {
    /// How many tokens it is of.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        self.tokens = 0;
    }

    fn layer(&self, i: usize) -> Past<'_> {
        Past { cache: &self.layers[i], tokens: self.tokens }
    }
}

impl Module for CausalSelfAttention {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.c_attn.visit_parameters(&join(prefix, "c_attn"), visit);
        self.c_proj.visit_parameters(&join(prefix, "c_proj"), visit);
    }
}

/// Thinks about each token by itself.
pub struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // c_proj(gelu(c_fc(x))), 4C wide in between
        let biases = self.c_fc.bias.as_deref().zip(self.c_proj.bias.as_deref());
        x.feed_forward(self.c_fc.weight.operand(), self.c_proj.weight.operand(), biases)
    }
}

impl Module for Mlp {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.c_fc.visit_parameters(&join(prefix, "c_fc"), visit);
        self.c_proj.visit_parameters(&join(prefix, "c_proj"), visit);
    }
}

/// One layer: both of the above, each on the normalized stream and added to it.
pub struct Block {
    ln_1: LayerNorm,
    attn: CausalSelfAttention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(config: &GptConfig, key: &mut dyn FnMut() -> Key) -> Result<Block> {
        let (c, bias) = (config.n_embd, config.bias);
        // Every layer adds twice to the stream: smaller steps keep its variance from growing with depth.
        let residual_std = STD / (2.0 * config.n_layer as f32).sqrt();
        Ok(Block {
            ln_1: LayerNorm::new(c, bias)?,
            attn: CausalSelfAttention {
                c_attn: Linear::new(c, 3 * c, bias, STD, key())?,
                c_proj: Linear::new(c, c, bias, residual_std, key())?,
                n_head: config.n_head,
            },
            ln_2: LayerNorm::new(c, bias)?,
            mlp: Mlp {
                c_fc: Linear::new(c, 4 * c, bias, STD, key())?,
                c_proj: Linear::new(4 * c, c, bias, residual_std, key())?,
            },
        })
    }

    /// The stream (B, T, C), with both branches added to it.
    fn forward(&self, mut stream: ResidualStream, dropout: &Dropout, past: Option<Past>) -> Result<ResidualStream> {
        let x = stream.norm(&self.ln_1)?;
        stream.add(self.attn.forward(&x, dropout, past)?, dropout)?;
        let x = stream.norm(&self.ln_2)?;
        stream.add(self.mlp.forward(&x)?, dropout)?;
        Ok(stream)
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

/// Standard deviation of initial weights (GPT-2).
const STD: f32 = 0.02;

/// A decoder-only Transformer.
pub struct Gpt {
    pub config: GptConfig,
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
    /// (V, C); `None` where the head is tied to `wte`.
    lm_head: Option<Embedding>,
}

impl Gpt {
    /// A model with random weights on the CPU, the same for the same seed.
    ///
    /// # Errors
    /// If the heads do not divide the width, a size is zero, or memory is used up.
    pub fn new(config: GptConfig, seed: u64) -> Result<Gpt> {
        let c = &config;
        if [c.vocab_size, c.block_size, c.n_layer, c.n_head, c.n_embd].contains(&0) {
            return Err(Error::Invalid(format!("a model needs sizes above zero, got {config:?}")));
        }
        if !c.n_embd.is_multiple_of(c.n_head) {
            return Err(Error::Invalid(format!("n_embd {} is not divisible by n_head {}", c.n_embd, c.n_head)));
        }
        let mut drawn = 0;
        let mut key = || {
            drawn += 1;
            Key::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(drawn))
        };
        let wte = Embedding::new(c.vocab_size, c.n_embd, STD, key())?;
        let wpe = Embedding::new(c.block_size, c.n_embd, STD, key())?;
        let h = (0..c.n_layer).map(|_| Block::new(c, &mut key)).collect::<Result<_>>()?;
        let ln_f = LayerNorm::new(c.n_embd, c.bias)?;
        let lm_head = (!c.tie_embeddings).then(|| Embedding::new(c.vocab_size, c.n_embd, STD, key())).transpose()?;
        Ok(Gpt { wte, wpe, h, ln_f, lm_head, config })
    }

    /// Where the parameters are.
    pub fn device(&self) -> Device {
        self.wte.weight.device()
    }

    /// The final hidden states: ids (B, T) -> (B, T, C), of the type that products have.
    ///
    /// # Errors
    /// If the sequences are longer than `block_size`.
    pub fn forward(&self, ids: &Tensor, dropout: &Dropout) -> Result<Tensor> {
        self.forward_after(None, ids, dropout)
    }

    /// The same of ids (1, T) that follow those in the cache, or of all there are.
    fn forward_after(&self, past: Option<&KvCache>, ids: &Tensor, dropout: &Dropout) -> Result<Tensor> {
        let (before, t) = (past.map_or(0, KvCache::tokens), ids.shape().last_dim());
        if before + t > self.config.block_size {
            return Err(Error::Invalid(format!(
                "{} tokens do not fit the model's context of {} (block_size)",
                before + t,
                self.config.block_size
            )));
        }
        let tokens = self.wte.forward(ids)?; // (B, T, C)
        let positions = if t == self.config.block_size {
            self.wpe.weight.value.clone() // (T, C): every position
        } else {
            let positions: Vec<u32> = (before as u32..(before + t) as u32).collect();
            self.wpe.forward(&Tensor::from_u32(&positions, [t], &ids.device())?)?
        };
        // Dropout is a kernel of its own here alone: it follows a sum, of which one term repeats, where the others precede one.
        let x = dropout.apply(tokens.add(&positions)?)?;
        let mut stream = ResidualStream::new(x, self.head().dtype());
        for (i, block) in self.h.iter().enumerate() {
            stream = block.forward(stream, dropout, past.map(|past| past.layer(i)))?;
        }
        stream.norm(&self.ln_f)
    }

    /// The weight of the classifier, (V, C).
    fn head(&self) -> &Tensor {
        self.lm_head.as_ref().unwrap_or(&self.wte).weight.operand()
    }

    /// The mean cross-entropy, in nats, of predicting `targets` (B, T) from `ids` (B, T); ignored labels do not count.
    /// Gradients, but not the loss, are multiplied by `loss_scale` (1), if there is one.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn loss(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        dropout: &Dropout,
        loss_scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.forward(ids, dropout)?.linear_cross_entropy(self.head(), targets, loss_scale)
    }

    /// The unnormalized log-probabilities of every next token: ids (B, T) -> (B, T, V).
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn logits(&self, ids: &Tensor) -> Result<Tensor> {
        self.forward(ids, &Dropout::off())?.matmul_transposed(self.head(), false, true)?.to_dtype(DType::F32)
    }

    /// An empty cache for [`Gpt::next_token_logits`].
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn kv_cache(&self) -> Result<KvCache> {
        let shape = [self.config.block_size, 2 * self.config.n_embd];
        let layer = || Tensor::zeros(shape, DType::F32, &self.device());
        Ok(KvCache { layers: self.h.iter().map(|_| layer()).collect::<Result<_>>()?, tokens: 0 })
    }

    /// The logits of the token after the last of ids (1, T), which follow those in the cache and are added to it: (1, V). For
    /// inference: nothing is recorded on the tape.
    ///
    /// # Errors
    /// If the shapes or the cache do not fit, or all tokens together do not fit the context.
    pub fn next_token_logits(&self, ids: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        let layers = cache.layers.len();
        if ids.shape()[..] != [1, ids.len()] || ids.is_empty() || layers != self.h.len() {
            let (shape, own) = (ids.shape(), self.h.len());
            return Err(Error::Invalid(format!(
                "next_token_logits: ids (1, T) with T above 0 and a cache of {own} layers, got {shape} and {layers}"
            )));
        }
        no_grad(|| {
            let h = self.forward_after(Some(cache), ids, &Dropout::off())?; // (1, T, C)
            let (t, c) = (ids.shape().last_dim(), self.config.n_embd);
            cache.tokens += t;
            let last = Tensor::from_u32(&[t as u32 - 1], [1], &ids.device())?;
            let last = h.to_dtype(DType::F32)?.reshape([t, c])?.embedding(&last)?.to_dtype(h.dtype())?;
            last.matmul_transposed(self.head(), false, true)?.to_dtype(DType::F32)
        })
    }
}

impl Module for Gpt {
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
