//! The layers that models are built from. A module owns its parameters as tensors and knows their names.

mod layers;
mod residual;

pub use layers::{Dropout, Embedding, LayerNorm, Linear, init_keys};
pub use residual::ResidualStream;

use crate::{Device, Result, Tensor};
use std::ops::Deref;

/// A tensor that is learned. Reads as its f32 value.
#[derive(Clone)]
pub struct Parameter {
    pub value: Tensor,
    /// In mixed precision the same values as f16, the operand of products. Both collect one and the same f32 gradient.
    pub half: Option<Tensor>,
}

impl Parameter {
    /// What products are computed with.
    pub fn operand(&self) -> &Tensor {
        self.half.as_ref().unwrap_or(&self.value)
    }
}

impl From<Tensor> for Parameter {
    fn from(value: Tensor) -> Parameter {
        Parameter { value, half: None }
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

    /// The name and value of every parameter.
    fn parameters(&mut self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        self.visit_parameters("", &mut |name, parameter| all.push((name.to_string(), parameter.value.clone())));
        all
    }

    /// Moves every parameter to a device, as plain f32 values without gradients.
    ///
    /// # Errors
    /// If the device has no memory left.
    fn to_device(&mut self, device: &Device) -> Result<()> {
        let mut result = Ok(());
        self.visit_parameters("", &mut |_, parameter| {
            if result.is_ok() {
                result = parameter.to_device(device).map(|moved| *parameter = moved.detach().into());
            }
        });
        result
    }
}

/// "h.0" and "ln_1" make "h.0.ln_1"; an empty prefix adds nothing.
pub fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") }
}
