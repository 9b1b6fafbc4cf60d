//! Recurrent language models, as in pytorch/examples' `word_language_model`: an embedding, a stack of LSTM, GRU or
//! Elman layers, and a head that may share the embedding's weight (Zaremba et al. 2014; Press and Wolf 2017).
//! `model.bias` applies to layers and head. Hidden states have the width of the embedding.
//!
//! Shapes: B sequences of T tokens, width C = `n_embd`, vocabulary V.
//!
//! In mixed precision, only the head is computed in f16: the GEMMs of a step are too small to benefit.

use super::{Family, LanguageModel, LargeTensor, ModelConfig, Past, Recomputed, gguf, hf};
use crate::nn::{Dropout, Embedding, Gru, Lstm, Module, Parameter, RecurrentConfig, Rnn, init, init_keys, join};
use crate::{Error, Result, Tensor};

/// Standard deviation of the initial embedding: that of uniform values within 0.1, as in PyTorch's example.
const STD: f32 = 0.058;

/// A recurrent language model.
pub struct Recurrent {
    config: ModelConfig,
    encoder: Embedding,
    rnn: Layers,
    /// (V, C); `None` where the head is tied to `encoder`.
    decoder: Option<Embedding>,
    /// (V)
    decoder_bias: Option<Parameter>,
}

/// The layers, of one kind.
enum Layers {
    Lstm(Lstm),
    Gru(Gru),
    Rnn(Rnn),
}

impl Layers {
    /// x (T, B, C) to y (T, B, C) and the states after the last step, begun with those given, or zeros.
    fn forward(&self, x: &Tensor, states: &[Tensor], dropout: &Dropout) -> Result<(Tensor, Vec<Tensor>)> {
        match self {
            Layers::Lstm(lstm) => {
                let states = <&[Tensor; 2]>::try_from(states).ok();
                lstm.forward(x, states, dropout).map(|(y, states)| (y, states.into()))
            }
            Layers::Gru(gru) => gru.forward(x, states.first(), dropout).map(|(y, h)| (y, vec![h])),
            Layers::Rnn(rnn) => rnn.forward(x, states.first(), dropout).map(|(y, h)| (y, vec![h])),
        }
    }

    fn module(&mut self) -> &mut dyn Module {
        match self {
            Layers::Lstm(lstm) => lstm,
            Layers::Gru(gru) => gru,
            Layers::Rnn(rnn) => rnn,
        }
    }
}

impl LanguageModel for Recurrent {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// No gradient flows into a cache as past, which truncates backpropagation through time.
    fn hidden(&self, ids: &Tensor, mut past: Past, dropout: &Dropout) -> Result<Tensor> {
        if past.documents().is_some() {
            let kind = self.config.kind.as_str();
            return Err(Error::Invalid(format!("a model of kind {kind:?} cannot keep documents in a row apart")));
        }
        let x = dropout.apply_to_embeddings(self.encoder.forward(ids)?)?; // (B, T, C)
        let states = match &past {
            Past::Cache(cache) => cache.states(),
            _ => &[],
        };
        let (y, states) = self.rnn.forward(&x.permute(&[1, 0, 2])?, states, dropout)?; // (T, B, C)
        if let Past::Cache(cache) = &mut past {
            cache.set_states(&states);
        }
        let y = y.permute(&[1, 0, 2])?; // (B, T, C)
        let y = match dropout.next() {
            Some((probability, key)) => y.dropout(probability, key)?,
            None => y,
        };
        y.to_dtype(self.head().operand_dtype())
    }

    /// Its layers keep few activations, and are computed once.
    fn set_recompute(&mut self, _: Recomputed) {}

    fn token_embeddings(&self) -> &Tensor {
        &self.encoder.weight.value
    }

    fn head(&self) -> &Tensor {
        self.decoder.as_ref().unwrap_or(&self.encoder).weight.operand()
    }

    fn head_bias(&self) -> Option<&Tensor> {
        self.decoder_bias.as_ref().map(|bias| &bias.value)
    }
}

impl Module for Recurrent {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.encoder.visit_parameters(&join(prefix, "encoder"), visit);
        self.rnn.module().visit_parameters(&join(prefix, "rnn"), visit);
        if let Some(decoder) = &mut self.decoder {
            decoder.visit_parameters(&join(prefix, "decoder"), visit);
        }
        if let Some(bias) = &mut self.decoder_bias {
            visit(&join(prefix, "decoder.bias"), bias);
        }
    }
}

/// Long short-term memory (Hochreiter and Schmidhuber 1997).
pub(super) const LSTM: RecurrentFamily = RecurrentFamily {
    gates: 4,
    states: 2,
    layers: |config, keys| Lstm::new(config, keys).map(Layers::Lstm),
    mapping: hf::RecurrentMapping { kind: &["lstm"], rnn_type: "LSTM" },
};

/// Gated recurrent units (Cho et al. 2014).
pub(super) const GRU: RecurrentFamily = RecurrentFamily {
    gates: 3,
    states: 1,
    layers: |config, keys| Gru::new(config, keys).map(Layers::Gru),
    mapping: hf::RecurrentMapping { kind: &["gru"], rnn_type: "GRU" },
};

/// Elman's network (1990) with tanh.
pub(super) const RNN: RecurrentFamily = RecurrentFamily {
    gates: 1,
    states: 1,
    layers: |config, keys| Rnn::new(config, keys).map(Layers::Rnn),
    mapping: hf::RecurrentMapping { kind: &["rnn"], rnn_type: "RNN_TANH" },
};

/// Models of one kind of layer.
pub(super) struct RecurrentFamily {
    /// Matrices of inputs, and as many of states, in a layer.
    gates: usize,
    states: usize,
    layers: fn(RecurrentConfig, &mut dyn FnMut() -> crate::ops::random::Key) -> Result<Layers>,
    mapping: hf::RecurrentMapping,
}

impl Family for RecurrentFamily {
    fn kind(&self) -> &'static str {
        self.mapping.kind[0]
    }

    fn is_llama(&self) -> bool {
        false
    }

    fn build(&self, config: &ModelConfig, seed: u64) -> Result<Box<dyn LanguageModel>> {
        let (v, c) = (config.vocab_size, config.n_embd);
        // It has no heads.
        ModelConfig { n_head: 1, ..config.clone() }.check_sizes()?;
        let mut keys = init_keys(seed);
        let encoder = Embedding::new(v, c, STD, keys())?;
        let (num_layers, bias) = (config.n_layer, config.bias);
        let sizes = RecurrentConfig { input_size: c, hidden_size: c, num_layers, bias, bidirectional: false };
        let rnn = (self.layers)(sizes, &mut keys)?;
        let decoder = (!config.tie_embeddings).then(|| Embedding::new(v, c, STD, keys())).transpose()?;
        let decoder_bias = bias.then(|| init::constant([v], 0.0).map(Parameter::from)).transpose()?;
        Ok(Box::new(Recurrent { encoder, rnn, decoder, decoder_bias, config: config.clone() }))
    }

    fn parameter_count(&self, m: &ModelConfig) -> usize {
        let embeddings = if m.tie_embeddings { 1 } else { 2 } * m.vocab_size * m.n_embd;
        let biases = m.n_layer * 2 * self.gates * m.n_embd + m.vocab_size;
        embeddings + self.block_matrices(m) + m.bias as usize * biases
    }

    fn block_matrices(&self, m: &ModelConfig) -> usize {
        m.n_layer * 2 * self.gates * m.n_embd * m.n_embd
    }

    /// 6 per parameter that takes part in a matmul.
    fn train_flops_per_token(&self, m: &ModelConfig) -> f64 {
        6.0 * (self.block_matrices(m) + m.vocab_size * m.n_embd) as f64
    }

    fn largest_tensors(&self, m: &ModelConfig) -> Vec<LargeTensor> {
        let [v, c, gates] = [m.vocab_size, m.n_embd, self.gates].map(|n| n as u64);
        [
            ("encoder.weight", v * c, true, "use a smaller vocabulary or model.n_embd"),
            ("rnn.weight_ih_l0", gates * c * c, false, "use a smaller model.n_embd"),
        ]
        .map(|(name, elements, by_rows, remedy)| LargeTensor { name, elements, by_rows, remedy })
        .into()
    }

    fn widest_activation(&self, m: &ModelConfig) -> usize {
        self.gates * m.n_embd
    }

    fn kv_cache(&self, _: &ModelConfig) -> (usize, usize) {
        (0, 0)
    }

    fn states(&self) -> usize {
        self.states
    }

    fn hf(&self) -> &dyn hf::Mapping {
        &self.mapping
    }

    fn gguf(&self) -> Option<&dyn gguf::Mapping> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelKind;
    use crate::ops::Criterion;
    use crate::optim::ParameterArena;
    use crate::tensor::no_grad;
    use crate::testing::assert_close;
    use crate::{DType, Device};

    fn small(kind: &str, bias: bool, tie_embeddings: bool) -> ModelConfig {
        let kind = kind.parse::<ModelKind>().unwrap();
        let (vocab_size, block_size, n_layer, n_head, n_embd) = (11, 5, 2, 1, 8);
        ModelConfig { kind, vocab_size, block_size, n_layer, n_head, n_embd, bias, tie_embeddings, llama: None }
    }

    #[test]
    fn the_bias_of_the_head_is_in_all_logits_and_in_the_loss() {
        for (device, tied) in Device::for_tests().into_iter().flat_map(|d| [(d.clone(), true), (d, false)]) {
            let mut model = LSTM.build(&small("lstm", true, tied), 1).unwrap();
            model.visit_parameters("", &mut |name, parameter| {
                if name == "decoder.bias" {
                    let bias: Vec<f32> = (0..11).map(|i| (i as f32).sin()).collect();
                    assert_eq!(parameter.to_f32().unwrap(), [0.0; 11], "as in PyTorch's example");
                    *parameter = Tensor::from_f32(&bias, [11], &Device::Cpu).unwrap().into();
                }
            });
            let _arena = ParameterArena::new(&mut *model, &device, DType::F32).unwrap();
            let ids = Tensor::from_u32(&[1, 7, 3, 3, 0, 10, 2, 9, 4, 5], [2, 5], &device).unwrap();
            let h = no_grad(|| model.hidden(&ids, Past::Nothing, &Dropout::off())).unwrap();
            let bias = Tensor::from_f32(&(0..11).map(|i| (i as f32).sin()).collect::<Vec<_>>(), [11], &device).unwrap();
            let want = h.matmul_transposed(&model.head().detach(), false, true).unwrap().add(&bias).unwrap();
            let logits = model.logits(&ids).unwrap();
            // Sums of nine products below 1.
            let close = |got: &[f32], want: &[f32]| assert_close(&device, got, want, 1e-6, 1e-6);
            close(&logits.to_f32().unwrap(), &want.to_f32().unwrap());
            let mut cache = model.cache(2, 5).unwrap();
            let last = model.next_token_logits(&ids, &mut cache).unwrap();
            close(&last.to_f32().unwrap(), &want.narrow(1, 4, 1).unwrap().to_f32().unwrap());
            let criterion = Criterion::default();
            let loss = model.loss(&ids, &ids, Past::Nothing, &Dropout::off(), criterion, None).unwrap();
            close(&[loss.item().unwrap()], &[want.cross_entropy(&ids, criterion).unwrap().item().unwrap()]);
            loss.backward().unwrap();
            let parameters = model.parameters();
            let (_, bias) = parameters.iter().find(|(name, _)| name == "decoder.bias").unwrap();
            // Each row's is softmax less one, so that all add up to 0.
            let gradient = bias.grad().unwrap().to_f32().unwrap();
            assert!(gradient.iter().sum::<f32>().abs() < 1e-6 && gradient.iter().any(|g| g.abs() > 1e-2), "{device}");
        }
    }

    #[test]
    fn parameters_are_as_many_as_are_counted() {
        for family in [&LSTM, &GRU, &RNN] {
            for (bias, tied) in [(true, true), (true, false), (false, true), (false, false)] {
                let config = small(family.kind(), bias, tied);
                let mut model = family.build(&config, 1).unwrap();
                let count: usize = model.parameters().iter().map(|(_, tensor)| tensor.len()).sum();
                assert_eq!(count, config.parameter_count(), "{config:?}");
                assert_eq!(model.head_bias().is_some(), bias);
            }
        }
    }
}
