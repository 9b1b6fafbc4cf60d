//! Language models: families behind one trait, so that training, evaluation, generation and saving do not depend on the
//! family.
//!
//! A family is a file in this folder, a row of [`FAMILIES`], and a mapping to Hugging Face's format (`hf/`).
//! CONTRIBUTING.md describes how to add one.

mod cache;
mod config;
mod documents;
mod f16_weights;
pub mod gguf;
mod gpt2;
pub mod hf;
mod joined;
mod llama;
mod lora;
mod qwen3;
mod recurrent;
mod slots;
#[cfg(test)]
pub(crate) mod testing;

pub use cache::{Cache, CachedTokens, KvView, Past};
pub use config::{Family, LargeTensor, LlamaConfig, ModelConfig, ModelKind, build};
pub use documents::Documents;
pub(crate) use f16_weights::matmul_weights;
pub use f16_weights::{to_device_as_f16, to_device_quantized};
pub use gpt2::{Block, CausalSelfAttention, Gpt2, Mlp};
pub use hf::{AdapterWeights, ModelWeights, Weights, load, read_adapters};
pub use llama::Llama;
pub use lora::Lora;
pub use slots::{Next, Slots, hidden_states, logits_of_states};

use crate::nn::{Dropout, Module};
use crate::ops::Criterion;
use crate::tensor::no_grad;
use crate::{DType, Device, Error, Result, Tensor};

/// Every family.
pub const FAMILIES: &[&dyn Family] = &[
    &gpt2::Gpt2Family,
    &llama::FAMILY,
    &qwen3::FAMILY,
    &recurrent::LSTM,
    &recurrent::GRU,
    &recurrent::RNN,
    #[cfg(test)]
    &testing::MlpFamily,
];

/// Which activations backward recomputes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recomputed {
    /// Blocks, from the first one on.
    pub blocks: usize,
    /// Rotary embedding, attention and output projection of the other blocks.
    pub attention: bool,
}

/// A model that predicts the next token. Its family says how hidden states come about; all else follows from those. It
/// has parameters alone: no buffers and no counts ([`Module::visit_buffers`]), which checkpoints do not hold.
///
/// Shapes: B sequences of T tokens, width C, vocabulary V.
pub trait LanguageModel: Module + Send + Sync {
    /// Its family and shape.
    fn config(&self) -> &ModelConfig;

    /// The final hidden states: ids (B, T) -> (B, T, C), of the head's type. They follow the tokens of the `past`; what
    /// is to be known of them later is written to its cache, if there is one, but not counted yet. Models with
    /// attention take a cache for inference alone.
    ///
    /// # Errors
    /// If the shapes do not fit, all tokens together do not fit the context, or the model cannot keep documents apart.
    fn hidden(&self, ids: &Tensor, past: Past, dropout: &Dropout) -> Result<Tensor>;

    /// Which activations backward recomputes instead of keeping them; at first none. Results are equal to the bit.
    fn set_recompute(&mut self, what: Recomputed);

    /// The table of token embeddings, f32 or quantized (V, C), whose rows ids name.
    fn token_embeddings(&self) -> &Tensor;

    /// The weight of the classifier, (V, C), as an operand of matmuls.
    fn head(&self) -> &Tensor;

    /// Bias of the head, f32 (V), if any.
    fn head_bias(&self) -> Option<&Tensor> {
        None
    }

    /// Where the parameters are.
    fn device(&self) -> Device {
        self.head().device()
    }

    /// The mean cross-entropy, in nats, of predicting `targets` (B, T) from `ids` (B, T) and the `past`; ignored labels
    /// do not count.
    /// `criterion` says how classes are weighed. Gradients, but not the loss, are multiplied by `loss_scale` (1), if
    /// there is one.
    ///
    /// # Errors
    /// If the shapes do not fit.
    fn loss(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        past: Past,
        dropout: &Dropout,
        criterion: Criterion,
        loss_scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        let h = self.hidden(ids, past, dropout)?; // (B, T, C)
        h.linear_cross_entropy_with_bias(self.head(), self.head_bias(), targets, criterion, loss_scale)
    }

    /// The log-probabilities of `targets` (B, T) after `ids` (B, T) and the `past`, in nats: (B, T), f32; 0 for ignored
    /// labels. Gradients are multiplied by `loss_scale` (1), if there is one.
    ///
    /// # Errors
    /// If the shapes do not fit.
    fn log_probs(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        past: Past,
        dropout: &Dropout,
        loss_scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        let h = self.hidden(ids, past, dropout)?; // (B, T, C)
        h.linear_log_probs(self.head(), self.head_bias(), targets, loss_scale)
    }

    /// The unnormalized log-probabilities of every next token: ids (B, T) -> (B, T, V), f32.
    ///
    /// # Errors
    /// If the shapes do not fit.
    fn logits(&self, ids: &Tensor) -> Result<Tensor> {
        let h = self.hidden(ids, Past::Nothing, &Dropout::off())?; // (B, T, C)
        h.linear(self.head(), true, self.head_bias())?.to_dtype(DType::F32)
    }

    /// An empty cache for [`LanguageModel::next_token_logits`], of so many sequences of up to `tokens` tokens, or
    /// as many as the context has if that is fewer. Its numbers are of the type of what matmuls read.
    ///
    /// # Errors
    /// If the device runs out of memory.
    fn cache(&self, sequences: usize, tokens: usize) -> Result<Cache> {
        let (config, device) = (self.config(), self.device());
        if config.is_recurrent() {
            let state = |_| Tensor::zeros([config.n_layer, sequences, config.n_embd], DType::F32, &device);
            return Ok(Cache::of_states((0..config.states()).map(state).collect::<Result<_>>()?));
        }
        let (layers, width) = config.kv_cache();
        let sizes = [sequences, tokens.min(config.block_size), width];
        Cache::keys_and_values(layers, sizes, self.head().operand_dtype(), &device)
    }

    /// The logits of the tokens after the last ones of ids (B, T), which follow those in the cache and are added to it:
    /// (B, V), f32. For inference: nothing is recorded on the tape.
    ///
    /// # Errors
    /// If the shapes or the cache do not fit, or all tokens together do not fit the context.
    fn next_token_logits(&self, ids: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        let own = (self.config().kv_cache().0, self.config().states());
        let (kept, b) = ((cache.layers(), cache.states().len()), cache.sequences());
        let (shape, t) = (ids.shape(), ids.shape().last_dim());
        if shape[..] != [b, t] || ids.is_empty() || kept != own {
            return Err(Error::Invalid(format!(
                "next_token_logits: ids ({b}, T) with T above 0 and a cache of {} layers and {} states, got {shape}, \
                 {} and {}",
                own.0, own.1, kept.0, kept.1
            )));
        }
        no_grad(|| {
            let h = self.hidden(ids, Past::Cache(cache), &Dropout::off())?; // (B, T, C)
            let c = h.shape().last_dim();
            cache.advance(t);
            let h = h.reshape([b * t, c])?;
            // A step of generation has no other tokens.
            let last = if t == 1 { h } else { last_tokens(&h, b)? }; // (B, C)
            last.linear_to_f32(self.head(), self.head_bias())
        })
    }
}

/// Of hidden states (B T, C) those of the last token of each of B sequences, (B, C).
fn last_tokens(h: &Tensor, b: usize) -> Result<Tensor> {
    let t = h.shape().rows() / b;
    let last: Vec<u32> = (1..=b).map(|sequence| (sequence * t - 1) as u32).collect();
    let last = Tensor::from_u32(&last, [b], &h.device())?;
    h.to_dtype(DType::F32)?.embedding(&last)?.to_dtype(h.dtype())
}
