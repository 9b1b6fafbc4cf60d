//! Layers and the GPT built from them. A module owns its parameters as tensors and knows their names.

pub mod checkpoint;
mod gpt;
mod layers;

pub use gpt::{Block, CausalSelfAttention, Gpt, GptConfig, Mlp};
pub use layers::{Dropout, Embedding, LayerNorm, Linear};

use crate::{Device, Result, Tensor};

/// Something with parameters.
pub trait Module {
    /// Calls `visit` with the name and the place of every parameter, always in the same order. Names start with
    /// `prefix`, as in "h.0.attn.c_attn.weight".
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Tensor));

    /// The name and tensor of every parameter.
    fn parameters(&mut self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        self.visit_parameters("", &mut |name, tensor| all.push((name.to_string(), tensor.clone())));
        all
    }

    /// Moves every parameter to a device, as plain values without gradients.
    ///
    /// # Errors
    /// If the device has no memory left.
    fn to_device(&mut self, device: &Device) -> Result<()> {
        let mut result = Ok(());
        self.visit_parameters("", &mut |_, tensor| {
            if result.is_ok() {
                result = tensor.to_device(device).map(|moved| *tensor = moved.detach());
            }
        });
        result
    }
}

/// "h.0" and "ln_1" make "h.0.ln_1"; an empty prefix adds nothing.
fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") }
}
