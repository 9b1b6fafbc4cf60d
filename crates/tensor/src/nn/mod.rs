//! The layers that models are built from. A module owns its parameters as tensors and knows their names.

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
pub use low_rank::LowRank;
pub use recurrent::{Gru, Lstm, RecurrentConfig, RecurrentInput, Rnn};
pub use residual::ResidualStream;
pub use rotary::{RopeScaling, Rotary};
pub use state_dict::StateDict;

use crate::{DType, Device, Error, Result, Tensor};
use std::ops::Deref;

/// How the weight of a linear layer is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearLayout {
    /// (outputs, inputs) as in `torch.nn.Linear`; else (inputs, outputs) as in GPT-2's `Conv1D`.
    pub outputs_first: bool,
    /// The outputs of each matrix that is stored in this one, in their order.
    pub outputs: Vec<usize>,
}

/// A tensor that is learned, or was: a frozen one is used as it is. Reads as its value.
#[derive(Clone)]
pub struct Parameter {
    /// f32; of a frozen parameter perhaps f16, and then there is no f32 value anywhere.
    pub value: Tensor,
    /// In mixed precision the same values as f16, the operand of matmuls. Both collect one and the same f32 gradient.
    pub half: Option<Tensor>,
    /// Of the weights of linear layers: what else is a matrix, such as an embedding, has none.
    pub linear: Option<LinearLayout>,
    /// Of the weight of a linear layer, what is learned beside it.
    pub low_rank: Option<Box<LowRank>>,
    trainable: bool,
}

impl Parameter {
    /// What matmuls are computed with.
    pub fn operand(&self) -> &Tensor {
        self.half.as_ref().unwrap_or(&self.value)
    }

    /// Whether it is learned: has a gradient, moments, and is updated.
    pub fn is_trainable(&self) -> bool {
        self.trainable
    }

    /// From here on its values stay: gradients stop here. What is to be trained is decided before the parameters move
    /// into an arena, which keeps neither gradients nor moments of frozen ones.
    pub fn freeze(&mut self) {
        (self.value, self.half) = (self.value.detach(), self.half.as_ref().map(Tensor::detach));
        self.trainable = false;
    }

    /// Freezes it and keeps f16 values alone. Only operands of matmuls may be f16: weights of [`Linear`], and a head
    /// that is not tied to an embedding.
    ///
    /// # Errors
    /// If the device cannot store f16 or has no memory left.
    pub fn freeze_as_f16(&mut self) -> Result<()> {
        self.freeze();
        (self.value, self.half) = (self.value.to_dtype(DType::F16)?, None);
        Ok(())
    }

    /// Gives it other values, where its own are: what shares their memory, such as an arena, has them too. A gradient
    /// stays as it is. What was computed from it before must not be differentiated after.
    ///
    /// # Errors
    /// If they are not f32 or f16 of its shape.
    pub fn assign(&self, values: &Tensor) -> Result<()> {
        const OP: &str = "assign";
        if values.shape() != self.value.shape() {
            let (expected, got) = (self.value.shape().to_string(), values.shape().to_string());
            return Err(Error::Shape { op: OP, expected, got });
        }
        if values.dtype() == DType::U32 {
            return Err(Error::DType { op: OP, expected: "f32 or f16", got: values.dtype().name() });
        }
        let values = values.detach().to_device(&Device::Cpu)?;
        for place in [Some(&self.value), self.half.as_ref()].into_iter().flatten() {
            place.write_bytes(&values.to_dtype(place.dtype())?.to_bytes()?)?;
        }
        Ok(())
    }

    /// Uses these tensors, which hold its values, from here on.
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

/// Something with parameters.
pub trait Module {
    /// Calls `visit` with the name and the place of every parameter, always in the same order. Names start with
    /// `prefix`, as in "h.0.attn.c_attn.weight".
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter));

    /// Calls `visit` with the name and the place of every buffer: f32 tensors that belong to the module's state and are
    /// not learned, such as the running averages of a batch norm. A module made of others that have some passes this
    /// on.
    fn visit_buffers(&mut self, _prefix: &str, _visit: &mut dyn FnMut(&str, &mut Tensor)) {}

    /// Calls `visit` with the name and the place of every count that belongs to the module's state, such as the passes
    /// that a dropout has made: which elements it drops follows from that. A module made of others that have some
    /// passes this on. They are no part of a [`StateDict`], but of what `fit::Trainer` saves.
    fn visit_counts(&mut self, _prefix: &str, _visit: &mut dyn FnMut(&str, &mut u64)) {}

    /// Says whether what follows is training, as for a module that is new, or evaluation: of the layers here, batch
    /// norms and dropouts then compute something else. A module made of others passes this on.
    fn set_training(&mut self, _training: bool) {}

    /// Copies of all parameters and buffers, by their names.
    ///
    /// # Errors
    /// If the device reported an error.
    fn state_dict(&mut self) -> Result<StateDict> {
        StateDict::of(self)
    }

    /// Gives every parameter and buffer the values that `state` has under its name, where its own are.
    ///
    /// # Errors
    /// If a tensor is missing, one is there that the module does not have, or one has another shape: nothing is changed
    /// then, and the message names them all.
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        state.load_into(self)
    }

    /// The name and value of every parameter.
    fn parameters(&mut self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        self.visit_parameters("", &mut |name, parameter| all.push((name.to_string(), parameter.value.clone())));
        all
    }

    /// Moves every parameter to a device, as plain values without gradients: f32, or f16 of those that are f16 only;
    /// and every buffer.
    ///
    /// # Errors
    /// If the device has no memory left.
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
    /// If the device has no memory left.
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

/// "h.0" and "ln_1" make "h.0.ln_1"; an empty prefix adds nothing.
pub fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") }
}
