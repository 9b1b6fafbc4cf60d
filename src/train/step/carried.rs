//! States of a recurrent model after the last batch, in a checkpoint: `h` (L, B, C), and `c` of an LSTM, in
//! `recurrent_state.safetensors`. Without them, a resumed run would treat the middle of its text as a beginning. Each
//! rank has the states of its sequences; the file has all.

use crate::models::{Cache, ModelConfig};
use crate::tensor::Bytes;
use crate::train::checkpoint::CARRIED;
use crate::{Device, Error, Result, Shape, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::fs;
use std::path::Path;

const NAMES: [&str; 2] = ["h", "c"];

/// The file's contents: the states with their shapes.
///
/// # Errors
/// If they make no file, which no model's do.
pub(in crate::train) fn encode(states: &[(Shape, Bytes)]) -> Result<Vec<u8>> {
    serialize(states.iter().map(|(shape, bytes)| (shape.to_vec(), &bytes[..])))
}

fn serialize<'a>(states: impl Iterator<Item = (Vec<usize>, &'a [u8])>) -> Result<Vec<u8>> {
    let views = NAMES.iter().zip(states).map(|(name, (shape, bytes))| {
        (*name, TensorView::new(Dtype::F32, shape, bytes).expect("a tensor's bytes fit its shape"))
    });
    let file = safetensors::serialize(views, None);
    file.map_err(|e| Error::Invalid(format!("cannot serialize {CARRIED}: {e}")))
}

/// [`encode`] of the states as they are now, which it waits for.
///
/// # Errors
/// If the driver reported an error.
pub(in crate::train) fn encode_now(carried: &Cache) -> Result<Vec<u8>> {
    let states = carried.states().iter().map(|state| Ok((state.shape().clone(), Bytes::owned(state.to_bytes()?))));
    encode(&states.collect::<Result<Vec<_>>>()?)
}

/// One file of the sequences of several, in their order.
///
/// # Errors
/// If one is not of the same model as the first.
pub(in crate::train) fn join(files: &[Vec<u8>]) -> Result<Vec<u8>> {
    let wrong = || Error::Communication("a rank sent a malformed recurrent state".into());
    let files = files.iter().map(|file| SafeTensors::deserialize(file).map_err(|_| wrong()));
    let files = files.collect::<Result<Vec<_>>>()?;
    let mut joined = Vec::new();
    for name in &NAMES[..files.first().map_or(0, SafeTensors::len).min(NAMES.len())] {
        let views = files.iter().map(|file| file.tensor(name).map_err(|_| wrong())).collect::<Result<Vec<_>>>()?;
        let &[layers, _, width] = views[0].shape() else { return Err(wrong()) };
        if views.iter().any(|view| !matches!(view.shape(), [l, _, w] if (*l, *w) == (layers, width))) {
            return Err(wrong());
        }
        let sequences: usize = views.iter().map(|view| view.shape()[1]).sum();
        let of_layer = |view: &TensorView, layer: usize| {
            let len = view.data().len() / layers;
            view.data()[layer * len..(layer + 1) * len].to_vec()
        };
        let rows = (0..layers).flat_map(|layer| views.iter().map(move |view| of_layer(view, layer)));
        joined.push((vec![layers, sequences, width], rows.flatten().collect::<Vec<u8>>()));
    }
    serialize(joined.iter().map(|(shape, bytes)| (shape.clone(), &bytes[..])))
}

/// The file's contents; nothing without a checkpoint, or of another model than a recurrent one.
///
/// # Errors
/// If the checkpoint lacks it.
pub(in crate::train) fn read(checkpoint: Option<&Path>, shape: &ModelConfig) -> Result<Vec<u8>> {
    let Some(path) = checkpoint.filter(|_| shape.is_recurrent()).map(|checkpoint| checkpoint.join(CARRIED)) else {
        return Ok(Vec::new());
    };
    fs::read(&path).map_err(|e| Error::io("read", &path, e))
}

/// Decodes the states of `sequences` sequences for a model of this shape from the file at `path`.
///
/// # Errors
/// If it is damaged or belongs to another model, or the device runs out of memory.
pub(in crate::train) fn decode(
    path: &Path,
    bytes: &[u8],
    shape: &ModelConfig,
    sequences: usize,
    device: &Device,
) -> Result<Cache> {
    let wrong = |message: String| Error::Checkpoint { path: path.to_path_buf(), message };
    let file = SafeTensors::deserialize(bytes).map_err(|e| wrong(format!("is damaged: {e}")))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers of sequences with these numbers, and as many of another state.
    fn file(sequences: &[u8]) -> Vec<u8> {
        let state = |first: u8| {
            let numbers = (0..2).flat_map(|layer| sequences.iter().map(move |s| f32::from(first + 10 * layer + s)));
            let bytes = numbers.flat_map(|number| [number, -number]).flat_map(f32::to_le_bytes).collect();
            (Shape::from([2, sequences.len(), 2]), Bytes::owned(bytes))
        };
        encode(&[state(0), state(100)]).unwrap()
    }

    #[test]
    fn files_of_several_ranks_are_joined_sequence_by_sequence() {
        assert!(join(&[file(&[0]), file(&[1, 2]), file(&[3])]).unwrap() == file(&[0, 1, 2, 3]));
        assert!(join(&[file(&[5, 6])]).unwrap() == file(&[5, 6]));
    }

    #[test]
    fn what_is_no_file_of_states_is_refused() {
        let of_three_layers = encode(&[(Shape::from([3, 1, 2]), Bytes::owned(vec![0; 24]))]).unwrap();
        for other in [Vec::new(), vec![7; 40], of_three_layers] {
            assert!(matches!(join(&[file(&[0]), other]), Err(Error::Communication(_))));
        }
    }
}
