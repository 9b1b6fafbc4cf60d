//! Layers with PyTorch's names and GPT-2's layouts.

use super::init::{constant, normal};
use super::low_rank::{LowRank, Magnitudes};
use super::{LinearLayout, Module, Parameter, join};
use crate::ops::random::Key;
use crate::ops::{LinearRef, NormRef};
use crate::tensor::adapters_enabled;
use crate::{DType, Device, Result, Tensor};
use std::sync::atomic::{AtomicU64, Ordering};

/// Random keys for initial weights: each call returns the next key of this seed.
pub fn init_keys(seed: u64) -> impl FnMut() -> Key {
    let mut drawn = 0;
    move || {
        drawn += 1;
        Key::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(drawn))
    }
}

/// The total number of outputs. A sum that overflows saturates, so that the allocation fails.
fn total(outputs: &[usize]) -> usize {
    outputs.iter().fold(0, |sum: usize, outputs| sum.saturating_add(*outputs))
}

/// y = x W + b, with W of shape (inputs, outputs) as in GPT-2's `Conv1D`, or y = x W^T + b, with (outputs, inputs) as
/// in `torch.nn.Linear`: the parameter's [`LinearLayout`] records which.
#[derive(Clone)]
pub struct Linear {
    pub weight: Parameter,
    pub bias: Option<Parameter>,
}

impl Linear {
    /// Weights from a normal distribution with this standard deviation, bias zero.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(inputs: usize, outputs: usize, bias: bool, std: f32, key: Key) -> Result<Linear> {
        Linear::fused(inputs, &[outputs], bias, std, key)
    }

    /// A fused layer: several matrices with the same input, whose outputs are concatenated, as GPT-2 stores queries,
    /// keys and values. Otherwise like [`Linear::new`].
    ///
    /// # Errors
    /// If memory runs out.
    pub fn fused(inputs: usize, outputs: &[usize], bias: bool, std: f32, key: Key) -> Result<Linear> {
        let weight = normal([inputs, total(outputs)], 0.0, std, key)?;
        Linear::of(weight, LinearLayout { outputs_first: false, outputs: outputs.into() }, bias)
    }

    /// [`Linear::fused`] with a weight of shape (outputs, inputs).
    ///
    /// # Errors
    /// If memory runs out.
    pub fn outputs_first(inputs: usize, outputs: &[usize], bias: bool, std: f32, key: Key) -> Result<Linear> {
        let weight = normal([total(outputs), inputs], 0.0, std, key)?;
        Linear::of(weight, LinearLayout { outputs_first: true, outputs: outputs.into() }, bias)
    }

    /// A layer with this weight, and a zero bias or none.
    pub(super) fn of(weight: Tensor, layout: LinearLayout, bias: bool) -> Result<Linear> {
        let outputs = total(&layout.outputs);
        let bias = bias.then(|| Tensor::zeros([outputs], DType::F32, &Device::Cpu)).transpose()?;
        let weight = Parameter { linear: Some(layout), ..weight.into() };
        Ok(Linear { weight, bias: bias.map(Parameter::from) })
    }

    /// (..., inputs) -> (..., outputs), of x's type. If x is f32 and the weight exists in f16 only, or quantized where
    /// the device has f16, the GEMM is f16.
    ///
    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, x: &Tensor, dropout: &Dropout) -> Result<Tensor> {
        let (weight, outputs_first) = (self.weight.operand(), self.has_outputs_first());
        let operand = x.to_dtype(weight.operand_dtype())?;
        let product = |bias: Option<&Tensor>| operand.linear(weight, outputs_first, bias)?.to_dtype(x.dtype());
        let bias = self.bias.as_deref();
        let Some(low_rank) = self.low_rank() else { return product(bias) };
        let Some(gain) = low_rank.gain(weight, outputs_first)? else {
            return low_rank.add_to(product(bias)?, x, dropout);
        };
        // DoRA's gain does not multiply the bias. In f32: the gradient of a gain is a sum over all rows.
        let y = low_rank.add_to(product(None)?, x, dropout)?.to_dtype(DType::F32)?.mul(&gain)?;
        match bias {
            Some(bias) => y.add(bias)?.to_dtype(x.dtype()),
            None => y.to_dtype(x.dtype()),
        }
    }

    /// Its active LoRA adapters.
    fn low_rank(&self) -> Option<&LowRank> {
        self.weight.low_rank.as_deref().filter(|_| adapters_enabled())
    }

    /// Whether the values of its weight lie as (outputs, inputs), as quantized ones do.
    fn has_outputs_first(&self) -> bool {
        let layout = self.weight.linear.as_ref();
        self.weight.dtype().is_quantized() || layout.is_some_and(|layout| layout.outputs_first)
    }

    /// Weight, bias and layout, if it has no LoRA adapters.
    pub(super) fn parts(&self, gelu: bool) -> Option<LinearRef<'_>> {
        let (weight, bias, outputs_first) = (self.weight.operand(), self.bias.as_deref(), self.has_outputs_first());
        self.low_rank().is_none().then_some(LinearRef { weight, outputs_first, bias, gelu })
    }

    /// Whether `forward` of an x of this type is a single GEMM, so that a fused kernel may replace it.
    pub fn is_plain(&self, dtype: DType) -> bool {
        self.low_rank().is_none() && self.weight.operand().dtype() == dtype
    }
}

impl Module for Linear {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit(&join(prefix, "weight"), &mut self.weight);
        if let Some(bias) = &mut self.bias {
            visit(&join(prefix, "bias"), bias);
        }
        if let Some(low_rank) = &mut self.weight.low_rank {
            visit(&join(prefix, "lora_A.weight"), &mut low_rank.a);
            visit(&join(prefix, "lora_B.weight"), &mut low_rank.b);
            visit(&join(prefix, "lora_scales"), &mut low_rank.scales);
            if let Some(Magnitudes { trained, squares }) = &mut low_rank.magnitudes {
                visit(&join(prefix, "lora_magnitude_vector"), trained);
                visit(&join(prefix, "lora_squares"), squares);
            }
        }
    }
}

/// One trained row per id, `torch.nn.Embedding`.
pub struct Embedding {
    /// (ids, width)
    pub weight: Parameter,
}

impl Embedding {
    /// Rows from a normal distribution with this standard deviation.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(ids: usize, width: usize, std: f32, key: Key) -> Result<Embedding> {
        Ok(Embedding { weight: normal([ids, width], 0.0, std, key)?.into() })
    }

    /// ids u32 (...) -> (..., width)
    ///
    /// # Errors
    /// If `ids` is not u32.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.weight.embedding(ids)
    }
}

impl Module for Embedding {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit(&join(prefix, "weight"), &mut self.weight);
    }
}

/// A layer that normalizes the residual stream.
pub trait Norm {
    /// (..., width) -> (..., width) of type `out`
    ///
    /// # Errors
    /// If the shape does not fit.
    fn forward(&self, x: &Tensor, out: DType) -> Result<Tensor>;

    /// The residual stream x + dropout(branch), and its norm of type `out`, each (..., width), in one kernel.
    ///
    /// # Errors
    /// If a shape does not fit.
    fn forward_add(
        &self,
        x: &Tensor,
        branch: &Tensor,
        dropout: Option<(f32, Key)>,
        out: DType,
    ) -> Result<(Tensor, Tensor)>;

    /// Weight, bias and epsilon.
    fn parts(&self) -> NormRef<'_>;
}

/// Layer normalization over the last dimension (Ba, Kiros, Hinton 2016), with PyTorch's epsilon.
#[derive(Clone)]
pub struct LayerNorm {
    pub weight: Parameter,
    pub bias: Option<Parameter>,
}

impl LayerNorm {
    /// Added to the variance.
    pub const EPS: f32 = 1e-5;

    /// Weight one, bias zero.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(width: usize, bias: bool) -> Result<LayerNorm> {
        let bias = bias.then(|| constant([width], 0.0)).transpose()?;
        Ok(LayerNorm { weight: constant([width], 1.0)?.into(), bias: bias.map(Parameter::from) })
    }
}

impl Norm for LayerNorm {
    fn forward(&self, x: &Tensor, out: DType) -> Result<Tensor> {
        x.layer_norm_to(out, &self.weight, self.bias.as_deref(), LayerNorm::EPS)
    }

    fn forward_add(
        &self,
        x: &Tensor,
        branch: &Tensor,
        dropout: Option<(f32, Key)>,
        out: DType,
    ) -> Result<(Tensor, Tensor)> {
        x.add_layer_norm(branch, dropout, out, &self.weight, self.bias.as_deref(), LayerNorm::EPS)
    }

    fn parts(&self) -> NormRef<'_> {
        NormRef { weight: &self.weight, bias: self.bias.as_deref(), eps: LayerNorm::EPS, rms: false }
    }
}

/// RMS normalization over the last dimension (Zhang and Sennrich 2019).
#[derive(Clone)]
pub struct RmsNorm {
    pub weight: Parameter,
    /// Added to the mean square.
    pub eps: f32,
}

impl RmsNorm {
    /// Weight one.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(width: usize, eps: f32) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: constant([width], 1.0)?.into(), eps })
    }
}

impl Norm for RmsNorm {
    fn forward(&self, x: &Tensor, out: DType) -> Result<Tensor> {
        x.rms_norm_to(out, &self.weight, self.eps)
    }

    fn forward_add(
        &self,
        x: &Tensor,
        branch: &Tensor,
        dropout: Option<(f32, Key)>,
        out: DType,
    ) -> Result<(Tensor, Tensor)> {
        x.add_rms_norm(branch, dropout, out, &self.weight, self.eps)
    }

    fn parts(&self) -> NormRef<'_> {
        NormRef { weight: &self.weight, bias: None, eps: self.eps, rms: true }
    }
}

impl Module for RmsNorm {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit(&join(prefix, "weight"), &mut self.weight);
    }
}

impl Module for LayerNorm {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit(&join(prefix, "weight"), &mut self.weight);
        if let Some(bias) = &mut self.bias {
            visit(&join(prefix, "bias"), bias);
        }
    }
}

/// The dropout of one forward pass, reproducible from (seed, pass).
#[derive(Debug)]
pub struct Dropout {
    probability: f32,
    of_embeddings: f32,
    of_adapters: f32,
    seed: u64,
    first_sequence: usize,
    drawn: AtomicU64,
}

impl Dropout {
    /// Drops nothing: for evaluation.
    pub fn off() -> Dropout {
        Dropout::new(0.0, 0, 0)
    }

    /// Drops each element with this probability. Each forward pass needs a different `pass`.
    pub fn new(probability: f32, seed: u64, pass: u64) -> Dropout {
        // Odd multiplier: different passes keep different seeds.
        let seed = seed ^ pass.wrapping_mul(0xd1b5_4a32_d192_ed03);
        let (of_embeddings, drawn) = (probability, AtomicU64::new(0));
        Dropout { probability, of_embeddings, of_adapters: 0.0, seed, first_sequence: 0, drawn }
    }

    /// With a separate probability for embeddings.
    pub fn of_embeddings(self, probability: f32) -> Dropout {
        Dropout { of_embeddings: probability, ..self }
    }

    /// With a separate probability for inputs of LoRA adapters.
    pub fn of_adapters(self, probability: f32) -> Dropout {
        Dropout { of_adapters: probability, ..self }
    }

    /// For a slice of the batch that starts at this sequence: the mask equals that of the whole batch.
    pub fn from_sequence(self, first_sequence: usize) -> Dropout {
        Dropout { first_sequence, ..self }
    }

    /// Advances to the position of `other`, a clone of this.
    pub(super) fn go_on_from(&self, other: &Dropout) {
        self.drawn.store(other.drawn.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Probability and random key of the next dropout in this pass, `None` if nothing is dropped.
    pub fn next(&self) -> Option<(f32, Key)> {
        self.next_with(self.probability)
    }

    fn next_with(&self, probability: f32) -> Option<(f32, Key)> {
        if probability == 0.0 {
            return None;
        }
        let place = self.drawn.fetch_add(1, Ordering::Relaxed);
        let key = Key::new(self.seed.wrapping_add(place.wrapping_mul(0x2545_f491_4f6c_dd1d)));
        Some((probability, key.slice(self.first_sequence)))
    }

    /// Embeddings x with elements dropped and the others scaled up (Srivastava et al. 2014).
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn apply_to_embeddings(&self, x: Tensor) -> Result<Tensor> {
        match self.next_with(self.of_embeddings) {
            Some((probability, key)) => x.dropout(probability, key),
            None => Ok(x),
        }
    }

    /// Input dropout of a LoRA adapter; x is f32 or f16.
    pub(super) fn apply_to_adapter(&self, x: &Tensor) -> Result<Tensor> {
        match self.next_with(self.of_adapters) {
            Some((probability, key)) => x.to_dtype(DType::F32)?.dropout(probability, key)?.to_dtype(x.dtype()),
            None => Ok(x.clone()),
        }
    }
}

/// The clone repeats the same masks.
impl Clone for Dropout {
    fn clone(&self) -> Dropout {
        Dropout { drawn: AtomicU64::new(self.drawn.load(Ordering::Relaxed)), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_values_have_the_right_moments() {
        let values = normal([100, 1000], 0.0, 2.0, Key::new(3)).unwrap().to_f32().unwrap();
        let n = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
        let kurtosis = values.iter().map(|v| (f64::from(*v) - mean).powi(4)).sum::<f64>() / n / variance.powi(2);
        // Standard errors at 100,000 draws: 0.006, 0.018, 0.015.
        assert!(mean.abs() < 0.03, "mean {mean}");
        assert!((variance - 4.0).abs() < 0.1, "variance {variance}");
        assert!((kurtosis - 3.0).abs() < 0.08, "kurtosis {kurtosis}");
    }

    #[test]
    fn embeddings_are_dropped_with_a_probability_of_their_own() {
        let x = Tensor::from_f32(&[1.0; 1000], [1000], &Device::Cpu).unwrap();
        let kept = |dropout: &Dropout| {
            let values = dropout.apply_to_embeddings(x.clone()).unwrap().to_f32().unwrap();
            values.iter().filter(|value| **value != 0.0).count()
        };
        let alone = Dropout::new(0.0, 1, 1).of_embeddings(0.5);
        assert!((400..600).contains(&kept(&alone)) && alone.next().is_none());
        let others = Dropout::new(0.2, 1, 1).of_embeddings(0.0);
        assert_eq!((kept(&others), others.next()), (1000, Dropout::new(0.2, 1, 1).next()));
        assert!((750..850).contains(&kept(&Dropout::new(0.2, 1, 1))));
    }

    #[test]
    fn every_dropout_of_every_pass_has_its_own_stream() {
        let mut keys = std::collections::HashSet::new();
        for pass in 0..100 {
            let dropout = Dropout::new(0.1, 1337, pass);
            for _ in 0..25 {
                assert!(keys.insert(dropout.next().unwrap().1.words));
            }
        }
    }
}
