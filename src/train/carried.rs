//! What a recurrent model knows of the text after the last batch, in a checkpoint: `h` (L, B, C), and of an LSTM `c`,
//! in `recurrent_state.safetensors`. Without it, a run that is resumed would take the middle of its text for a
//! beginning.

use super::checkpoint::CARRIED;
use crate::models::{Cache, LanguageModel, ModelConfig};
use crate::tensor::Bytes;
use crate::{Device, Error, Result, Shape, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::fs;
use std::path::Path;

const NAMES: [&str; 2] = ["h", "c"];

/// The file's contents: the states with their shapes.
///
/// # Errors
/// If they make no file, which no model's do.
pub(super) fn encode(states: &[(Shape, Bytes)]) -> Result<Vec<u8>> {
    let views = NAMES.iter().zip(states).map(|(name, (shape, bytes))| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("a tensor's bytes fit its shape"))
    });
    let file = safetensors::serialize(views, None);
    file.map_err(|e| Error::Invalid(format!("{CARRIED} cannot be made: {e}")))
}

/// What a recurrent model knows of the text that a run has read, of so many sequences: nothing yet without a
/// checkpoint, and no other model ever.
///
/// # Errors
/// If the checkpoint lacks it or is of another model, or the device has no memory left.
pub(super) fn at(checkpoint: Option<&Path>, model: &dyn LanguageModel, sequences: usize) -> Result<Option<Cache>> {
    match checkpoint {
        _ if !model.config().is_recurrent() => Ok(None),
        Some(checkpoint) => read(checkpoint, model.config(), sequences, &model.device()).map(Some),
        None => model.cache(sequences, 0).map(Some),
    }
}

/// What a model of this shape knew of so many sequences when the checkpoint was saved.
///
/// # Errors
/// If the file is missing, damaged or of another model.
fn read(checkpoint: &Path, shape: &ModelConfig, sequences: usize, device: &Device) -> Result<Cache> {
    let path = checkpoint.join(CARRIED);
    let wrong = |message: String| Error::Checkpoint { path: path.clone(), message };
    let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("is damaged: {e}")))?;
    let expected = [shape.n_layer, sequences, shape.n_embd];
    let states = NAMES[..shape.states()].iter().map(|name| {
        let view = file.tensor(name).map_err(|e| wrong(format!("is damaged: {e}")))?;
        if view.dtype() != Dtype::F32 || view.shape() != expected {
            return Err(wrong(format!("{name} is of {:?} {:?}, not f32 {expected:?}", view.dtype(), view.shape())));
        }
        Tensor::from_f32(&bytemuck::pod_collect_to_vec::<u8, f32>(view.data()), expected, device)
    });
    Ok(Cache::of_states(states.collect::<Result<_>>()?))
}
