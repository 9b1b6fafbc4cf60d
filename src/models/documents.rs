//! Rows with several documents, without attention between them; each starts at position 0.

use crate::{Device, Error, Result, Tensor};

/// Document starts of a batch's tokens.
#[derive(Clone)]
pub struct Documents {
    /// (B, T), u32: the position in the row where each token's document starts, for attention.
    pub starts: Tensor,
    /// (B, T), u32: the position of each token in its document, for position embeddings. (Rotary positions do not need
    /// it, because they depend only on the distance of two tokens.)
    pub positions: Tensor,
}

impl Documents {
    /// Documents of rows (B, T), with the start position of each token's document in its row.
    ///
    /// # Errors
    /// If there is not one start per token, a start is after its token, or the device runs out of memory.
    pub fn new(starts: &[u32], shape: [usize; 2], device: &Device) -> Result<Documents> {
        let position = |(i, start): (usize, &u32)| ((i % shape[1].max(1)) as u32).checked_sub(*start);
        let Some(positions) = starts.iter().enumerate().map(position).collect::<Option<Vec<u32>>>() else {
            return Err(Error::Invalid("a token comes before the beginning of its document".into()));
        };
        let tensor = |values: &[u32]| Tensor::from_u32(values, shape, device);
        Ok(Documents { starts: tensor(starts)?, positions: tensor(&positions)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::models::{LanguageModel, LlamaConfig, ModelConfig, Recomputed, build};
    use crate::nn::Dropout;
    use crate::ops::Criterion;
    use crate::optim::ParameterArena;
    use crate::testing::assert_close;

    /// Of odd sizes; a Llama with fewer heads of keys and, if wanted, a window.
    fn model(
        kind: &str,
        window: Option<usize>,
        recomputed: Recomputed,
        device: &Device,
    ) -> (Box<dyn LanguageModel>, ParameterArena) {
        let mut config = ModelConfig {
            kind: kind.parse().unwrap(),
            vocab_size: 19,
            block_size: 16,
            n_layer: 2,
            n_head: 4,
            n_embd: 24,
            bias: true,
            tie_embeddings: true,
            llama: None,
        };
        if config.kind.is_llama() {
            config.llama = Some(LlamaConfig {
                n_kv_head: 2,
                head_dim: 6,
                intermediate_size: 40,
                qkv_bias: false,
                sliding_window: window,
                norm_eps: 1e-5,
                rope_theta: 10_000.0,
                rope_scaling: None,
            });
        }
        let mut model = build(&config, 3).unwrap();
        model.set_recompute(recomputed);
        let parameters = ParameterArena::new(&mut *model, device, DType::F32).unwrap();
        (model, parameters)
    }

    #[test]
    fn a_packed_batch_equals_its_documents_one_by_one() {
        // Documents of 5, 3 and 8 tokens; of 13 and a rest of 3 that nothing is learnt from.
        let starts: [u32; 32] =
            [0, 0, 0, 0, 0, 5, 5, 5, 8, 8, 8, 8, 8, 8, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13, 13, 13];
        let documents = [(0, 5), (5, 8), (8, 16), (16, 29)];
        let ids: Vec<u32> = (0..32).map(|i| (i * i + 3 * i) % 19).collect();
        let mut targets: Vec<u32> = (0..32).map(|i| (i * 7 + 2) % 19).collect();
        targets[29..].fill(u32::MAX);
        targets[8..11].fill(u32::MAX); // a prompt
        let kept = Recomputed::default();
        let (blocks, attention) = (Recomputed { blocks: usize::MAX, ..kept }, Recomputed { attention: true, ..kept });
        let cases = [
            ("gpt2", None, kept),
            ("gpt2", None, blocks),
            ("gpt2", None, attention),
            ("llama", Some(3), blocks),
            ("llama", Some(3), attention),
            ("qwen3", None, kept),
        ];
        for (device, (kind, window, recomputed)) in
            Device::for_tests().into_iter().flat_map(|device| cases.map(|case| (device.clone(), case)))
        {
            let (packed, of_packed) = model(kind, window, recomputed, &device);
            let tensor = |values: &[u32], shape: [usize; 2]| Tensor::from_u32(values, shape, &device).unwrap();
            let loss =
                |model: &dyn LanguageModel, ids: &[u32], targets: &[u32], starts: Option<&[u32]>, rows: usize| {
                    let shape = [rows, ids.len() / rows];
                    let documents = starts.map(|starts| Documents::new(starts, shape, &device).unwrap());
                    let (ids, targets) = (tensor(ids, shape), tensor(targets, shape));
                    model
                        .loss(&ids, &targets, documents.as_ref().into(), &Dropout::off(), Criterion::default(), None)
                        .unwrap()
                };
            let whole = loss(&*packed, &ids, &targets, Some(&starts), 2);
            whole.backward().unwrap();
            let (apart, of_apart) = model(kind, window, recomputed, &device);
            let (mut sum, all) = (0.0, 29 - 3);
            for (from, to) in documents {
                let predicted = targets[from..to].iter().filter(|&&target| target != u32::MAX).count();
                let share = predicted as f32 / all as f32;
                let one = loss(&*apart, &ids[from..to], &targets[from..to], None, 1).scale(share).unwrap();
                one.backward().unwrap();
                sum += one.to_f32().unwrap()[0];
            }
            let name = format!("{device} {kind}");
            // f32, sums in another order.
            assert_close(&name, &whole.to_f32().unwrap(), &[sum], 1e-5, 1e-5);
            let [got, want] = [of_packed, of_apart].map(|arena| arena.gradients().unwrap().to_f32().unwrap());
            assert_close(&name, &got, &want, 1e-5, 1e-4);
            // Without documents it is another number.
            let stream = loss(&*packed, &ids, &targets, None, 2).to_f32().unwrap()[0];
            assert!((stream - sum).abs() > 1e-3, "{name}: {stream} {sum}");
            let shape = [2, 16];
            let hidden = |documents: Option<&Documents>| {
                let h = packed.hidden(&tensor(&ids, shape), documents.into(), &Dropout::off()).unwrap();
                h.to_dtype(DType::F32).unwrap().to_f32().unwrap()
            };
            let at = Documents::new(&starts, shape, &device).unwrap();
            let first = hidden(Some(&at));
            // The first document of a row sees the same either way.
            assert_close(&name, &first[..5 * 24], &hidden(None)[..5 * 24], 1e-5, 1e-5);
        }
    }
}
