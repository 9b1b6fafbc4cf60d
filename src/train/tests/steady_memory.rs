//! A training whose pool is filled makes no more buffers on a GPU.

use crate::gpu::gpu_for_tests;
use crate::models::{Gpt2, LanguageModel, ModelConfig, ModelKind, Past};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::optim::{Kind, Optimizer, ParameterArena};
use crate::{DType, Device, Tensor};

/// Buffers that steps of these batches (rows, tokens of a row) make after two rounds of all of them.
fn made_after_warm_up(least_free_bytes: Option<usize>, batches: &[[usize; 2]]) -> Option<usize> {
    let gpu = gpu_for_tests()?;
    if let Some(bytes) = least_free_bytes {
        gpu.keep_least_free_bytes(bytes);
    }
    let device = Device::Gpu(gpu.clone());
    let (n_layer, n_head, n_embd) = (2, 2, 64);
    let (kind, vocab_size, block_size) = (ModelKind::GPT2, 300, 64);
    let (bias, tie_embeddings, llama) = (true, true, None);
    let shape = ModelConfig { kind, vocab_size, block_size, n_layer, n_head, n_embd, bias, tie_embeddings, llama };
    let mut model = Gpt2::new(shape, 1).unwrap();
    let parameters = ParameterArena::new(&mut model, &device, DType::F32).unwrap();
    let kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
    let mut step = |[rows, tokens]: [usize; 2], number: u64| {
        let ids: Vec<u32> = (0..rows * tokens).map(|i| (i * 37 % 300) as u32).collect();
        let [ids, targets] = [0, 1].map(|_| Tensor::from_u32(&ids, [rows, tokens], &device).unwrap());
        parameters.zero_gradients();
        let dropout = Dropout::new(0.1, 1, number);
        let loss = model.loss(&ids, &targets, Past::Nothing, &dropout, Criterion::default(), None).unwrap();
        loss.backward().unwrap();
        optimizer.step(&parameters, 1e-3).unwrap();
    };
    let mut made = [0, 0];
    for (made, rounds) in made.iter_mut().zip([2, 4]) {
        for number in 0..rounds {
            batches.iter().for_each(|batch| step(*batch, number));
        }
        *made = gpu.created_buffers();
    }
    Some(made[1] - made[0])
}

#[test]
fn steps_of_one_shape_make_no_buffers_after_the_first() {
    // The bound of 1.5 times the peak alone keeps all that a step takes.
    let Some(made) = made_after_warm_up(Some(0), &[[4, 64]]) else { return };
    assert_eq!(made, 0);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn steps_of_alternating_shapes_make_no_buffers_after_the_first() {
    let Some(made) = made_after_warm_up(None, &[[4, 64], [3, 40], [2, 24]]) else { return };
    assert_eq!(made, 0);
}
