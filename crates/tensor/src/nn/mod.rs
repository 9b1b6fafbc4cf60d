//! Layers with PyTorch's names. A [`Module`] owns its parameters and names them.

mod attention;
mod batch_norm;
mod conv;
mod dropout;
pub mod init;
mod layer;
mod layers;
mod low_rank;
mod recurrent;
mod residual;
mod rotary;
pub(crate) mod state_dict;

pub use attention::MultiHeadAttention;
pub use batch_norm::{BatchNorm, GroupNorm};
pub use conv::{AdaptiveAvgPool2d, AvgPool2d, Conv1d, Conv2d, ConvTranspose2d, MaxPool2d};
pub use dropout::{Dropout2d, DropoutLayer};
pub use layer::{Activation, Flatten, Layer, Sequential};
pub use layers::{Dropout, Embedding, LayerNorm, Linear, Norm, RmsNorm, init_keys};
pub use low_rank::{LowRank, Magnitudes};
pub use recurrent::{Gru, Lstm, RecurrentConfig, RecurrentInput, Rnn};
pub use residual::{ResidualStream, recomputed};
pub use rotary::{RopeScaling, Rotary};
pub use state_dict::StateDict;

use crate::{DType, Device, Error, Result, Shape, Tensor};
use std::ops::Deref;

/// How the weight of a linear layer is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearLayout {
    /// (outputs, inputs) as in `torch.nn.Linear`; else (inputs, outputs) as in GPT-2's `Conv1D`.
    pub outputs_first: bool,
    /// Output count of each fused matrix, in order.
    pub outputs: Vec<usize>,
}

/// A trained or frozen tensor. Dereferences to its value.
#[derive(Clone)]
pub struct Parameter {
    /// f32. A frozen parameter may be f16 or quantized instead, without an f32 copy.
    pub value: Tensor,
    /// In mixed precision, the f16 copy that GEMMs read. Value and copy share one f32 gradient.
    pub half: Option<Tensor>,
    /// Layout of a linear layer's weight; `None` for other matrices, such as embeddings.
    pub linear: Option<LinearLayout>,
    /// The LoRA adapter of a linear layer's weight.
    pub low_rank: Option<Box<LowRank>>,
    trainable: bool,
}

impl Parameter {
    /// The operand of GEMMs: the f16 copy if there is one, else the value.
    pub fn operand(&self) -> &Tensor {
        self.half.as_ref().unwrap_or(&self.value)
    }

    /// Whether it is trained: has a gradient and moments, and is updated.
    pub fn is_trainable(&self) -> bool {
        self.trainable
    }

    /// Freezes the values: they get no gradient. Freeze before the parameters move into an arena, which allocates no
    /// gradients and moments for frozen ones.
    pub fn freeze(&mut self) {
        (self.value, self.half) = (self.value.detach(), self.half.as_ref().map(Tensor::detach));
        self.trainable = false;
    }

    /// Freezes it and keeps only f16 values. Valid for GEMM operands only: weights of [`Linear`], and a head that is
    /// not tied to an embedding.
    ///
    /// # Errors
    /// If the device does not support f16 or runs out of memory.
    pub fn freeze_as_f16(&mut self) -> Result<()> {
        self.freeze();
        (self.value, self.half) = (self.value.to_dtype(DType::F16)?, None);
        Ok(())
    }

    /// Freezes a matrix and keeps only quantized values, which lie as (outputs, inputs) whatever its layout says. Valid
    /// for weights of [`Linear`], and for embeddings and heads.
    ///
    /// # Errors
    /// If its rows are not whole blocks, or memory runs out.
    pub fn freeze_quantized(&mut self, dtype: DType) -> Result<()> {
        self.freeze();
        let mut value = self.value.clone();
        if self.linear.as_ref().is_some_and(|layout| !layout.outputs_first) {
            let on_host = if value.device().has_values() { value.to_device(&Device::Cpu)? } else { value };
            value = on_host.permute(&[1, 0])?;
        }
        (self.value, self.half) = (value.to_dtype(dtype)?, None);
        Ok(())
    }

    /// The shape that its layout names: that of the values unless they are quantized.
    #[doc(hidden)]
    pub fn layout_shape(&self) -> Shape {
        let is_turned = self.dtype().is_quantized() && self.linear.as_ref().is_some_and(|l| !l.outputs_first);
        match (is_turned, &self.shape()[..]) {
            (true, &[outputs, inputs]) => [inputs, outputs].into(),
            _ => self.shape().clone(),
        }
    }

    /// Overwrites its values in place, so that an arena that shares the memory sees them. The gradient is unchanged. Do
    /// not differentiate results that were computed from the previous values.
    ///
    /// # Errors
    /// If `values` are not f32 or f16 of its shape.
    pub fn assign(&self, values: &Tensor) -> Result<()> {
        const OP: &str = "assign";
        if values.shape() != self.value.shape() {
            let (expected, got) = (self.value.shape().to_string(), values.shape().to_string());
            return Err(Error::Shape { op: OP, expected, got });
        }
        if !matches!(values.dtype(), DType::F32 | DType::F16) {
            return Err(Error::DType { op: OP, expected: "f32 or f16", got: values.dtype().name() });
        }
        let values = values.detach().to_device(&Device::Cpu)?;
        for place in [Some(&self.value), self.half.as_ref()].into_iter().flatten() {
            place.write_bytes(&values.to_dtype(place.dtype())?.to_bytes()?)?;
        }
        Ok(())
    }

    /// Replaces the storage by tensors that hold the same values.
    pub(crate) fn store(&mut self, value: Tensor, half: Option<Tensor>) {
        (self.value, self.half) = (value, half);
    }
}

impl From<Tensor> for Parameter {
    fn from(value: Tensor) -> Parameter {
        Parameter { value, half: None, linear: None, low_rank: None, trainable: true }
    }
}

impl Deref for Parameter {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.value
    }
}

/// A layer or model with named parameters and buffers.
pub trait Module {
    /// Calls `visit` with the name of every parameter and the parameter, always in the same order. Names start with
    /// `prefix`, as in "h.0.attn.c_attn.weight".
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter));

    /// Calls `visit` with the name of every buffer and the buffer: f32 state that is not trained, such as the running
    /// averages of a batch norm. A container forwards this to its modules.
    fn visit_buffers(&mut self, _prefix: &str, _visit: &mut dyn FnMut(&str, &mut Tensor)) {}

    /// Calls `visit` with the name of every counter and the counter, such as the number of passes of a dropout, which
    /// selects its mask. A container forwards this to its modules. `fit::Trainer` saves counters; a [`StateDict`] does
    /// not hold them.
    fn visit_counts(&mut self, _prefix: &str, _visit: &mut dyn FnMut(&str, &mut u64)) {}

    /// Switches to training mode, the default, or to evaluation mode. Affects batch norms and dropout. A container
    /// forwards this to its modules.
    fn set_training(&mut self, _training: bool) {}

    /// Copies all parameters and buffers to the CPU, by name.
    ///
    /// # Errors
    /// If the device reported an error.
    fn state_dict(&mut self) -> Result<StateDict> {
        StateDict::of(self)
    }

    /// Overwrites every parameter and buffer in place with the tensor of that name in `state`.
    ///
    /// # Errors
    /// If a tensor is missing, unexpected, or of another shape. The message names all such tensors, and nothing is
    /// changed.
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        state.load_into(self)
    }

    /// The name and value of every parameter.
    fn parameters(&mut self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        self.visit_parameters("", &mut |name, parameter| all.push((name.to_string(), parameter.value.clone())));
        all
    }

    /// Moves every parameter and buffer to a device, without gradients. Parameters stay f16 where they have no f32
    /// value, and are f32 otherwise.
    ///
    /// # Errors
    /// If the device runs out of memory.
    fn to_device(&mut self, device: &Device) -> Result<()> {
        let mut result = Ok(());
        self.visit_parameters("", &mut |_, parameter| {
            if result.is_ok() {
                result = parameter.to_device(device).map(|moved| parameter.store(moved.detach(), None));
            }
        });
        result.and_then(|()| self.buffers_to_device(device))
    }

    /// Moves every buffer to a device.
    ///
    /// # Errors
    /// If the device runs out of memory.
    fn buffers_to_device(&mut self, device: &Device) -> Result<()> {
        let mut result = Ok(());
        self.visit_buffers("", &mut |_, buffer| {
            if result.is_ok() {
                result = buffer.to_device(device).map(|moved| *buffer = moved);
            }
        });
        result
    }
}

/// Joins name parts with a dot: "h.0" and "ln_1" to "h.0.ln_1". An empty prefix adds nothing.
pub fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") }
}
