//! A parameter as its folder stores it: the rows of one tensor or several, one after the other.

use super::weight_files::{StoredTensor, WeightFiles};
use crate::models::joined::read_joined;
use crate::tensor::Source;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use safetensors::tensor::Dtype;
use std::sync::Arc;

/// It holds the files open until all that is needed of them was read.
pub struct StoredParameter {
    pub files: Arc<WeightFiles>,
    /// Tensors and how many of their first elements count.
    pub parts: Vec<(String, usize)>,
}

impl Source for StoredParameter {
    fn read(&self, first: usize, out: &mut [f32]) {
        read_joined(
            &self.parts,
            |(_, len)| *len,
            first,
            out,
            |(name, _), first, out| {
                let tensor = self.files.tensor(name).expect("it was found when the folder was opened");
                convert(&tensor, first, out);
            },
        );
    }
}

/// Whether the values of this type can be read.
pub fn is_readable(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// The elements from `first` on as f32. Files are little-endian and need not be aligned.
pub fn convert(tensor: &StoredTensor, first: usize, out: &mut [f32]) {
    let bytes = |size: usize| &tensor.bytes[size * first..size * (first + out.len())];
    match tensor.dtype {
        Dtype::BF16 => {
            let pairs = bytes(2).chunks_exact(2);
            out.iter_mut().zip(pairs).for_each(|(out, b)| *out = bf16::from_le_bytes([b[0], b[1]]).to_f32());
        }
        Dtype::F16 => {
            // By the processor's instruction, of which the compiler makes none by itself.
            let (chunks, mut halves) = (bytes(2).chunks(512), [f16::ZERO; 256]);
            for (out, bytes) in out.chunks_mut(256).zip(chunks) {
                let halves = &mut halves[..out.len()];
                halves.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(h, b)| *h = f16::from_le_bytes([b[0], b[1]]));
                halves.convert_to_f32_slice(out);
            }
        }
        _ => {
            let quads = bytes(4).chunks_exact(4);
            out.iter_mut().zip(quads).for_each(|(out, b)| *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        }
    }
}

/// All values of a tensor; `None` if its type cannot be read.
pub fn values(tensor: &StoredTensor) -> Option<Vec<f32>> {
    is_readable(tensor.dtype).then(|| {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        convert(tensor, 0, &mut values);
        values
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::hf::{load, open, shards};
    use crate::models::testing::{small, small_llama};
    use crate::models::{LanguageModel, build};
    use crate::{Device, Tensor};
    use safetensors::tensor::TensorView;
    use serde_json::Map;
    use std::collections::HashMap;

    /// Three tensors of five numbers, of every type that can be read.
    fn folder() -> tempfile::TempDir {
        let values = |first: i32| (first..first + 5).map(|i| i as f32 / 4.0);
        let f32s: Vec<u8> = values(0).flat_map(f32::to_le_bytes).collect();
        let f16s: Vec<u8> = values(5).flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
        let bf16s: Vec<u8> = values(10).flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect();
        let all = [("a", Dtype::F32, &f32s), ("b", Dtype::F16, &f16s), ("c", Dtype::BF16, &bf16s)];
        let views = all.map(|(name, dtype, bytes)| (name, TensorView::new(dtype, vec![5], bytes).unwrap()));
        let dir = tempfile::tempdir().unwrap();
        // Names of one letter leave the data unaligned.
        let metadata = HashMap::from([("x".to_string(), "y".to_string())]);
        std::fs::write(dir.path().join("model.safetensors"), safetensors::serialize(views, Some(metadata)).unwrap())
            .unwrap();
        dir
    }

    #[test]
    fn any_part_of_a_parameter_is_read_from_the_tensors_that_it_is_of() {
        let dir = folder();
        let files = Arc::new(WeightFiles::open(dir.path()).unwrap());
        // Of the second tensor the first three elements.
        let parts = [("a", 5), ("b", 3), ("c", 5)].map(|(name, len)| (name.to_string(), len)).to_vec();
        let parameter = StoredParameter { files, parts };
        let expected: Vec<f32> = [0..8, 10..15].into_iter().flatten().map(|i| i as f32 / 4.0).collect();
        for first in 0..13 {
            for end in first..=13 {
                let mut out = vec![f32::NAN; end - first];
                parameter.read(first, &mut out);
                assert_eq!(out, expected[first..end], "{first}..{end}");
            }
        }
    }

    #[test]
    fn an_opened_model_computes_once_it_is_moved_and_then_as_the_one_that_was_written() {
        for config in [small(50, 12, 4, 16), small_llama("llama"), small_llama("qwen3")] {
            let mut model = build(&config, 3).unwrap();
            let dir = tempfile::tempdir().unwrap();
            shards::write(&mut *model, shards::StoredType::F32, 1 << 30, &Map::new(), dir.path()).unwrap();
            for device in Device::for_tests() {
                let logits = |model: &dyn LanguageModel| {
                    let ids = Tensor::from_u32(&[3, 1, 2, 0], [1, 4], &device)?;
                    model.logits(&ids)?.to_f32()
                };
                model.to_device(&device).unwrap();
                let expected = logits(&*model).unwrap();
                let mut opened = open(dir.path(), usize::MAX).unwrap();
                assert!(logits(&*opened).is_err(), "{device}");
                opened.to_device(&device).unwrap();
                assert_eq!(logits(&*opened).unwrap(), expected, "{device}");
                let mut loaded = load(dir.path()).unwrap();
                loaded.to_device(&device).unwrap();
                assert_eq!(logits(&*loaded).unwrap(), expected, "{device}");
            }
        }
    }
}
