//! Multi-head attention (Vaswani et al. 2017) with PyTorch's parameter names, shapes and initial values.

use super::{Dropout, DropoutLayer, Layer, Linear, LinearLayout, Module, Parameter, init, join};
use crate::ops::random::Key;
use crate::ops::{AttentionMask, AttentionOptions, Heads, MAX_HEAD_SIZE};
use crate::{Error, Result, Tensor};

/// `torch.nn.MultiheadAttention` with `batch_first`: queries, keys and values are projected and split into heads, and
/// the concatenated heads are projected to the output. In training, dropout applies to the attention probabilities.
pub struct MultiHeadAttention {
    /// `in_proj_weight` (3 E, E) and `in_proj_bias` (3 E): the projections of queries, keys and values.
    pub in_proj: Linear,
    /// `out_proj.weight` (E, E) and `out_proj.bias` (E)
    pub out_proj: Linear,
    pub dropout: DropoutLayer,
    n_head: usize,
}

impl MultiHeadAttention {
    /// Attention over vectors of E = `width` elements, a multiple of the number of heads. Weights are uniform as in
    /// PyTorch, biases zero.
    ///
    /// # Errors
    /// If the width is not a multiple of the number of heads, or memory runs out.
    pub fn new(
        width: usize,
        n_head: usize,
        bias: bool,
        dropout: DropoutLayer,
        mut keys: impl FnMut() -> Key,
    ) -> Result<MultiHeadAttention> {
        if n_head == 0 || !width.is_multiple_of(n_head) {
            return Err(Error::Invalid(format!("attention: width {width} is not divisible by {n_head} heads")));
        }
        let linear = |outputs: &[usize], weight: Tensor| {
            Linear::of(weight, LinearLayout { outputs_first: true, outputs: outputs.into() }, bias)
        };
        // Of `torch.nn.Linear`: `kaiming_uniform` for a slope of sqrt(5).
        let gain = init::Nonlinearity::LeakyRelu(5f32.sqrt()).gain();
        let in_proj = linear(&[width; 3], init::xavier_uniform([width.saturating_mul(3), width], 1.0, keys())?)?;
        let out_proj = linear(&[width], init::kaiming_uniform([width, width], init::Fan::In, gain, keys())?)?;
        Ok(MultiHeadAttention { in_proj, out_proj, dropout, n_head })
    }

    /// Self-attention, x (B, T, E) -> (B, T, E). The mask is broadcast to (B, n_head, T, T); `causal` masks later
    /// positions.
    ///
    /// # Errors
    /// If a shape does not fit, or x is not f32.
    pub fn forward(&self, x: &Tensor, mask: Option<AttentionMask>, causal: bool) -> Result<Tensor> {
        self.expect_sequence(x)?;
        let qkv = self.in_proj.forward(x, &Dropout::off())?; // (B, T, 3 E)
        let head_size = self.width() / self.n_head;
        if mask.is_none() && causal && !x.is_empty() && head_size <= MAX_HEAD_SIZE {
            let y = qkv.causal_attention(Heads::multi_head(self.n_head), None, self.dropout.next())?;
            return self.out_proj.forward(&y, &Dropout::off());
        }
        let [batch, time, width] = [x.shape()[0], x.shape()[1], self.width()];
        let parts = qkv.reshape([batch, time, 3, self.n_head, head_size])?.permute(&[2, 0, 3, 1, 4])?;
        let part = |i: usize| parts.narrow(0, i, 1)?.reshape([batch, self.n_head, time, head_size]);
        self.attend([part(0)?, part(1)?, part(2)?], mask, causal, [batch, time, width])
    }

    /// Cross-attention of queries (B, Tq, E) to keys and values (B, Tk, E) -> (B, Tq, E). The mask is broadcast to (B,
    /// n_head, Tq, Tk).
    ///
    /// # Errors
    /// If a shape does not fit, a tensor is not f32, or the projection has adapters.
    pub fn forward_cross(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: Option<AttentionMask>,
        causal: bool,
    ) -> Result<Tensor> {
        let width = self.width();
        if self.in_proj.weight.low_rank.is_some() {
            return Err(Error::Invalid("cross-attention does not support LoRA adapters".into()));
        }
        let project = |i: usize, x: &Tensor| -> Result<Tensor> {
            self.expect_sequence(x)?;
            let weight = self.in_proj.weight.operand().narrow(0, i * width, width)?;
            let bias = self.in_proj.bias.as_ref().map(|bias| bias.narrow(0, i * width, width)).transpose()?;
            let y = x.to_dtype(weight.dtype())?.linear(&weight, true, bias.as_ref())?.to_dtype(x.dtype())?;
            let [batch, time] = [x.shape()[0], x.shape()[1]];
            y.reshape([batch, time, self.n_head, width / self.n_head])?.permute(&[0, 2, 1, 3])
        };
        let qkv = [project(0, queries)?, project(1, keys)?, project(2, values)?];
        self.attend(qkv, mask, causal, [queries.shape()[0], queries.shape()[1], width])
    }

    /// Attention of q, k and v (B, n_head, T, head_size), then the output projection.
    fn attend(
        &self,
        [q, k, v]: [Tensor; 3],
        mask: Option<AttentionMask>,
        causal: bool,
        to: [usize; 3],
    ) -> Result<Tensor> {
        let options = AttentionOptions { mask, causal, scale: None, dropout: self.dropout.next() };
        let y = q.scaled_dot_product_attention(&k, &v, options)?; // (B, n_head, Tq, head_size)
        self.out_proj.forward(&y.permute(&[0, 2, 1, 3])?.reshape(to)?, &Dropout::off())
    }

    /// E.
    fn width(&self) -> usize {
        self.out_proj.weight.shape()[0]
    }

    fn expect_sequence(&self, x: &Tensor) -> Result<()> {
        let width = self.width();
        if x.shape().len() == 3 && x.shape()[2] == width {
            return Ok(());
        }
        let (expected, got) = (format!("sequences (B, T, {width})"), x.shape().to_string());
        Err(Error::Shape { op: "multi_head_attention", expected, got })
    }
}

impl Module for MultiHeadAttention {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.in_proj.visit_parameters(prefix, &mut |name, parameter| {
            // "weight" is "in_proj_weight" here.
            let (before, name) = name.split_at(if prefix.is_empty() { 0 } else { prefix.len() + 1 });
            visit(&format!("{before}in_proj_{name}"), parameter);
        });
        self.out_proj.visit_parameters(&join(prefix, "out_proj"), visit);
    }

    fn visit_counts(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut u64)) {
        self.dropout.visit_counts(&join(prefix, "dropout"), visit);
    }

    fn set_training(&mut self, training: bool) {
        self.dropout.set_training(training);
    }
}

/// Self-attention without a mask.
impl Layer for MultiHeadAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        MultiHeadAttention::forward(self, x, None, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::init_keys;
    use crate::{Device, Shape};

    fn layer(dropout: f32) -> MultiHeadAttention {
        MultiHeadAttention::new(12, 3, true, DropoutLayer::new(dropout, 5), init_keys(1)).unwrap()
    }

    fn sequence(shape: [usize; 3], device: &Device) -> Tensor {
        init::normal(shape, 0.0, 1.0, Key::new(9)).unwrap().to_device(device).unwrap()
    }

    #[test]
    fn parameters_have_the_names_and_shapes_of_pytorch() {
        let mut layer = layer(0.0);
        let mut described = Vec::new();
        layer.visit_parameters("attn", &mut |name, x| described.push((name.to_string(), x.shape().clone())));
        let named = |name: &str, shape: &[usize]| (format!("attn.{name}"), Shape::from(shape));
        let want = [
            named("in_proj_weight", &[36, 12]),
            named("in_proj_bias", &[36]),
            named("out_proj.weight", &[12, 12]),
            named("out_proj.bias", &[12]),
        ];
        assert_eq!(described, want);
        assert_eq!(layer.parameters()[0].0, "in_proj_weight");
        let [in_proj, out_proj] = [&layer.in_proj, &layer.out_proj]
            .map(|linear| linear.weight.to_f32().unwrap().into_iter().map(f32::abs).max_by(f32::total_cmp).unwrap());
        // sqrt(6 / 48) and 1 / sqrt(12).
        assert!(in_proj <= 0.353_554 && in_proj > 0.34 && out_proj <= 0.288_676 && out_proj > 0.27);
    }

    /// Three ways to the same numbers: the fused kernel, matmuls, and projections apart.
    #[test]
    fn a_sequence_attends_to_itself_as_to_another_that_is_equal() {
        let mut layer = layer(0.0);
        for device in Device::for_tests() {
            layer.to_device(&device).unwrap();
            let x = sequence([2, 7, 12], &device);
            let visible = Tensor::full(1.0, [7, 7], &device).unwrap().tril(0).unwrap();
            let fused = layer.forward(&x, None, true).unwrap().to_f32().unwrap();
            let masked = layer.forward(&x, Some(AttentionMask::Keep(&visible)), false).unwrap().to_f32().unwrap();
            let apart = layer.forward_cross(&x, &x, &x, None, true).unwrap().to_f32().unwrap();
            crate::testing::assert_close(&device, &masked, &fused, 2e-6, 1e-5);
            crate::testing::assert_close(&device, &apart, &fused, 2e-6, 1e-5);
        }
    }

    #[test]
    fn dropout_follows_the_mode() {
        let mut layer = layer(0.5);
        let x = sequence([2, 7, 12], &Device::Cpu);
        for causal in [false, true] {
            let pass = |layer: &MultiHeadAttention| layer.forward(&x, None, causal).unwrap().to_f32().unwrap();
            layer.set_training(true);
            assert_ne!(pass(&layer), pass(&layer), "{causal}");
            layer.set_training(false);
            assert_eq!(pass(&layer), pass(&layer), "{causal}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(MultiHeadAttention::new(12, 5, true, DropoutLayer::new(0.0, 1), init_keys(1)).is_err());
        assert!(MultiHeadAttention::new(12, 0, true, DropoutLayer::new(0.0, 1), init_keys(1)).is_err());
        let layer = layer(0.0);
        let x = sequence([2, 7, 12], &Device::Cpu);
        let other = x.reshape([2, 14, 6]).unwrap();
        let is_shape = |result: Result<Tensor>| matches!(result, Err(Error::Shape { .. }));
        assert!(is_shape(layer.forward(&other, None, false)));
        assert!(is_shape(layer.forward_cross(&x, &other, &x, None, false)));
        assert!(is_shape(layer.forward_cross(&x, &x.narrow(1, 0, 3).unwrap(), &x, None, false)));
        let mask = Tensor::full(1.0, [3, 7], &Device::Cpu).unwrap();
        assert!(is_shape(layer.forward(&x, Some(AttentionMask::Keep(&mask)), false)));
        assert!(layer.forward(&x.narrow(1, 0, 0).unwrap(), None, true).unwrap().is_empty());
    }
}
